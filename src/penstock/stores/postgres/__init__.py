"""The queue on many machines: one PostgreSQL database, shared by any number of processes."""

"""Jobs in memory and, before anybody is answered, in a file: for one process.

Every write of the in-memory store is one batch. Here a batch is first a line at the end of a file;
see `docs/internals/journal.md` for the format.
"""

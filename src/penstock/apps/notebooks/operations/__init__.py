"""The operations: how changes are queued, run and kept in order."""

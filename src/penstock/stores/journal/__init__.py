"""Jobs in memory and, before any caller is answered, in a file: for one process.

Every write of the in-memory store is one batch. A journal appends each batch as a line to a file
before it acknowledges the write; see `docs/internals/journal.md` for the format.
"""

"""Jobs in memory: for tests, and for work that may go when the process goes.

Every write decides first, on a `Draft` over what is stored, and changes nothing. `_commit` then
applies the draft's `Batch` as a whole. Rankings, totals and what a pending job waits for follow
from the batches alone: to keep and replay the batches is to keep the store.
"""

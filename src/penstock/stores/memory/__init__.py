"""Jobs in memory: for tests, and for work that may be lost with the process.

The reference model of the Store protocol. A verb that writes decides first, on a `Draft` over the
stored content, and then commits the draft's `WriteBatch` as a whole. Indexes, totals and what a
pending job waits for are derived from the batches alone: applying the same batches again results
in the same store.
"""

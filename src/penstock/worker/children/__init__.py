"""Child processes, in which a worker runs handlers that it must be able to kill.

A child is a fresh interpreter that imports the app; nothing is forked, so no lock and no open
database is shared. Each child leads a process group of its own, which is killed as a whole when the
child has exited, for whatever reason.
"""

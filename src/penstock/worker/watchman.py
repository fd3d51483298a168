"""Ends child processes, with all that they have started, when their worker was killed.

A process of its own that does nothing but wait for the worker's end. It is told the process
groups on its standard input, as `+17` and `-17`. Run by its path, it starts in milliseconds because
it imports nothing of the package.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Wait until the worker is gone, then kill what it has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()

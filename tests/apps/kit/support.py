"""A program that runs in the processes of a pool."""

import os
import sys
from pathlib import Path

import msgspec

from penstock.apps.kit import startup_message


class Message(msgspec.Struct, frozen=True):
    """What the processes are started with."""

    folder: str


def main() -> None:
    """Leave a file named by the process ID, and run until the input ends."""
    message = startup_message(Message)
    Path(message.folder, str(os.getpid())).write_text(str(os.nice(0)))
    sys.stdin.read()

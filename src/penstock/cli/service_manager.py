"""The service manager that started this process, usually systemd: reports to it.

The protocol is one datagram per report, to the socket that NOTIFY_SOCKET names: see sd_notify(3).
"""

import logging
import os
import socket
from collections.abc import MutableMapping
from datetime import timedelta

_log = logging.getLogger(__name__)

# How long a report may wait for a service manager that does not read.
_PATIENCE = 5.0


class ServiceManager:
    """Reports the state of this process to its service manager; without one, it does nothing.

    Removes the variables of the protocol from the environment: programs that jobs start must not
    speak for this process.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        interval = environment.pop("WATCHDOG_USEC", "")
        owner = environment.pop("WATCHDOG_PID", "")
        self.every: timedelta | None = None
        """How often to call `alive`; None if nobody waits for that."""
        if self._address and interval.isdecimal() and owner in ("", str(os.getpid())):
            # Two beats may be late before the third would be too late.
            self.every = timedelta(microseconds=int(interval)) / 3 or None

    def ready(self, status: str) -> None:
        """Report that the process does its work from now on."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Report what the process is doing, for people."""
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        """Feed the watchdog: without this, the service manager kills the process after a while."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """Report that the process is about to end."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # an abstract socket
            address = f"\0{address[1:]}"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_PATIENCE)
                sender.sendto(text.encode(), address)
        except OSError as error:
            _log.warning("%r could not be sent to the service manager: %s", text, error)

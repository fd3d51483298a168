"""Types of job arguments and request bodies: values outside of their bounds fail to decode.

A job may have been stored by other means than a route, so its handler decodes its arguments into
the same types.
"""

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=200)]
PathText = Annotated[str, Meta(min_length=1, max_length=4_096)]
JobName = Annotated[str, Meta(min_length=1, max_length=64)]
"""The ID of a job, as text."""

NAME_LIMIT = 255
"""Bytes that a file name may have. To ask the system about a longer one is an error."""


def has_long_name(path: str) -> bool:
    """Return whether a path contains a name that no file can have."""
    names = path.encode("utf-8", "surrogatepass").split(b"/")
    return max(map(len, names)) > NAME_LIMIT

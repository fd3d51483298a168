"""Reads a file as text, or says why it is none."""

import codecs
import os
import stat

from penstock.vectors.walking import too_large, unreadable

_LOOKED_AT = 8_192
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Unfit(Exception):
    """A file that is skipped; the message says why."""


def content_of(path: str, largest: int) -> bytes:
    """The bytes of a regular file; raises `Unfit`.

    It may have become another since it was met: neither a link is followed nor a pipe waited for.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unfit("not a regular file")
            content = file.read(largest + 1)
    except OSError as error:
        raise Unfit(unreadable(error)) from error
    if len(content) > largest:
        raise Unfit(too_large(largest))
    return content


def text_of(content: bytes) -> str:
    """The text of a file; raises `Unfit` for what is none."""
    if content.startswith(_UTF_16):
        return content.decode("utf-16", "replace")
    if b"\0" in content[:_LOOKED_AT]:
        raise Unfit("binary")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")  # what older editors write in the West

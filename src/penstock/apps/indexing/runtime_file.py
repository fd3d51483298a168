"""The file `.agent-brain/runtime.json`, which tells clients of a project its server's address.

If the server requires tokens, the file contains one that is valid while the server runs.
"""

import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from penstock import Penstock
from penstock.errors import TokenNotFound
from penstock.tokens import Access

FOLDER = ".agent-brain"
FILE = "runtime.json"
TOKEN = "indexing-runtime"  # noqa: S105 - a name
_SCOPES = (Access.READ, Access.PUBLISH, Access.ADMIN)


@asynccontextmanager
async def runtime_file(penstock: Penstock, root: Path, address: str) -> AsyncIterator[None]:
    """Write the file for the duration of the block; it replaces that of a killed server."""
    content: dict[str, object] = {"base_url": address, "pid": os.getpid()}
    await _revoke(penstock)  # the token of a server that was killed
    if await penstock.tokens.list():
        content["api_key"] = await penstock.tokens.create(TOKEN, _SCOPES)
    file = root / FOLDER / FILE
    written = _write(file, json.dumps(content, indent=2) + "\n")
    try:
        yield
    finally:
        if _is_unchanged(file, written):  # another server may have replaced it
            file.unlink(missing_ok=True)
            await _revoke(penstock)


async def _revoke(penstock: Penstock) -> None:
    with suppress(TokenNotFound):
        await penstock.tokens.revoke(TOKEN)


def _write(file: Path, text: str) -> str:
    """Write the file atomically, readable for this user only."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(text)
    unfinished.replace(file)
    return text


def _is_unchanged(file: Path, text: str) -> bool:
    try:
        return file.read_text("utf-8") == text
    except OSError:
        return False

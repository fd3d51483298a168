"""`.agent-brain/runtime.json`: tells the clients of a project where its server is.

If the server asks for tokens, one is made for them while it runs, and stands in the file.
"""

import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from penstock import Access, Penstock, TokenNotFound

FOLDER = ".agent-brain"
FILE = "runtime.json"
TOKEN = "indexing-runtime"  # noqa: S105 - a name
_SCOPES = (Access.READ, Access.PUBLISH, Access.ADMIN)


@asynccontextmanager
async def announced(penstock: Penstock, root: Path, address: str) -> AsyncIterator[None]:
    """Let the file be there, inside the block; what a killed server has left is replaced."""
    content: dict[str, object] = {"base_url": address, "pid": os.getpid()}
    await _revoke(penstock)  # that of a server that was killed
    if await penstock.tokens():
        content["api_key"] = await penstock.create_token(TOKEN, _SCOPES)
    file = root / FOLDER / FILE
    written = _write(file, json.dumps(content, indent=2) + "\n")
    try:
        yield
    finally:
        if _is_still(file, written):  # another server may have come meanwhile
            file.unlink(missing_ok=True)
            await _revoke(penstock)


async def _revoke(penstock: Penstock) -> None:
    with suppress(TokenNotFound):
        await penstock.revoke_token(TOKEN)


def _write(file: Path, text: str) -> str:
    """Write it wholly or not at all, readable for this user alone from the beginning."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(text)
    unfinished.replace(file)
    return text


def _is_still(file: Path, text: str) -> bool:
    try:
        return file.read_text("utf-8") == text
    except OSError:
        return False

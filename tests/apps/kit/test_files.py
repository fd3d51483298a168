"""Files as answers."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from penstock.apps.kit import PIECE, file_stream


async def test_file_is_sent_in_pieces_and_closed(tmp_path: Path) -> None:
    content = bytes(range(256)) * (2 * PIECE // 256) + b"end"
    path = tmp_path / "file"
    path.write_bytes(content + b"appended meanwhile")
    file = path.open("rb")
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    stream = file_stream(file, len(content), [(b"content-type", b"text/plain")])
    await stream.send(send, asyncio.Event().wait)  # type: ignore[arg-type] # nothing is received
    start, *bodies = sent
    assert start["status"] == 200
    assert dict(start["headers"]) == {
        b"content-type": b"text/plain",
        b"content-length": str(len(content)).encode(),
    }
    assert b"".join(one["body"] for one in bodies) == content
    assert [one.get("more_body", False) for one in bodies] == [True, True, True, False]
    assert file.closed

"""What kind of content a file has, by its name and its first bytes; the same on every machine."""

import mimetypes

HEAD = 4_096
"""So many bytes decide where the name does not."""

_MORE = {
    ".adoc": "text/asciidoc",
    ".csv": "text/csv",
    ".ipynb": "application/x-ipynb+json",
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".org": "text/org",
    ".rst": "text/x-rst",
    ".toml": "application/toml",
    ".ts": "text/typescript",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}

_KNOWN = mimetypes.MimeTypes(filenames=())
for _suffix, _type in _MORE.items():
    _KNOWN.add_type(_type, _suffix)


def mime_type(path: str, head: bytes = b"") -> str:
    """The MIME type of a file."""
    named, encoding = _KNOWN.guess_type(path.rpartition("/")[2].replace(":", "_"))
    if encoding:
        return f"application/{encoding}"
    if named:
        return named
    return "text/plain" if _is_text(head[:HEAD]) else "application/octet-stream"


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) == HEAD and error.start > HEAD - 4  # cut within a letter
    return True

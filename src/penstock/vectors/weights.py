"""Reads the weights of models from the packages that carry them, without importing those."""

import hashlib
import json
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KINDS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def file_of(package: str, name: str, digest: str, install: str) -> Path:
    """A file inside an installed package, if it has this SHA-256; the package is not imported."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    path = next((Path(each) / name for each in folders if (Path(each) / name).is_file()), None)
    if path is None:
        raise ConfigurationError(f"the file {name} of {package} is not installed: {install}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise ConfigurationError(
            f"{path} is not the file that Penstock was tested with: its SHA-256 is {found}, "
            f"not {digest}; {install}"
        )
    return path


def read_tensors(path: Path) -> Mapping[str, NDArray[Any]]:
    """The tensors of a safetensors file as 32-bit floats, by name; others are left out."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    body = memoryview(data)[8 + size :]
    tensors = {}
    for name, about in header.items():
        if kind := KINDS.get(about.get("dtype", "")):
            start, end = about["data_offsets"]
            flat = np.frombuffer(body[start:end], dtype=kind)
            tensors[name] = flat.reshape(about["shape"]).astype(np.float32)
    return tensors


def read_tokenizer(path: Path) -> "Tokenizer":
    """A tokenizer that neither pads nor cuts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer

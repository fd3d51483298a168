"""Errors as one sentence for users; the job keeps the traceback."""

import re
from pathlib import PurePosixPath

INTERNAL = "an internal error occurred; the log of the job has the details"
_LIMIT = 500
# `package.module.Class: `, or a single name that is certainly a class.
_CLASS = re.compile(
    r"(?:(?:\w+\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception|Warning|Exit)|[A-Z][a-z]+[A-Z]\w*)(?:: |$)"
)
# Defects of the program rather than of its input: their messages mean nothing to users.
_PROGRAM = re.compile(
    r"\b(?:Assertion|Attribute|Import|Index|Key|Lookup|ModuleNotFound|Name|NotImplemented|Recursion"
    r"|Syntax|Type|UnboundLocal|ZeroDivision)Error(?:: |$)"
)
_NUMBER = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")
_QUOTED_PATH = re.compile(r"""(['"])(/[^'"\n]*)\1""")
_PATH = re.compile(r"(?<![\w/:.~'\"-])/(?:[^\s/'\":;,()\[\]]+/)*[^\s/'\":;,()\[\]]+/?")


def sentence(error: str) -> str:
    """Return the first line of an error without class names, error numbers and absolute paths.

    A path is shortened to its last part. The error of a program is replaced by `INTERNAL`.
    """
    line = error.strip().split("\n", 1)[0].strip()
    while found := _CLASS.match(line):
        if _PROGRAM.search(found[0]):
            return INTERNAL
        line = line[found.end() :]
    line = _NUMBER.sub("", line)
    line = _QUOTED_PATH.sub(lambda path: f"{path[1]}{_last_part(path[2])}{path[1]}", line)
    line = _PATH.sub(lambda path: _last_part(path[0]), line)
    return line[:_LIMIT] or INTERNAL


def _last_part(path: str) -> str:
    return PurePosixPath(path).name or path

"""Workbooks; small files that unpack to much are refused before they take much memory."""

import io
import re
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from openpyxl import Workbook, load_workbook

from penstock.apps.entries import workbooks
from penstock.apps.entries.formats import read
from penstock.apps.entries.records import Record, UnreadableFile, Unwritable
from tests.apps.entries.support import TYPES, note, parsed, written

MEGABYTE = 1_000_000


ALLOWED = 300 * MEGABYTE


PROGRAM = """
import resource, sys
from pathlib import Path
from penstock.apps.entries.types import BUILT_IN, EntryTypes
from penstock.apps.entries.formats import UnreadableFile, read

try:
    with Path(sys.argv[1]).open("rb") as file:
        found = read(file, sys.argv[2], EntryTypes(BUILT_IN), entity_type="experience")
        print(sum(1 for _ in found))
except UnreadableFile as error:
    print("refused:", str(error)[:200])
# Not what `getrusage` says: there, a process begins with the peak of the one that started it.
status = Path("/proc/self/status")
if status.exists():
    print(int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def book(**parts: Iterable[bytes]) -> bytes:
    """A workbook of one cell, with other content in some of its parts, packed tightly."""
    made = Workbook()
    assert made.active is not None
    made.active.append(["title"])
    made.active.append(["hello"])
    plain = io.BytesIO()
    made.save(plain)
    with zipfile.ZipFile(plain) as source:
        content: dict[str, Iterable[bytes]] = {
            name: [source.read(name)] for name in source.namelist()
        }
    (types,) = content["[Content_Types].xml"]
    named = {
        "strings": "xl/sharedStrings.xml",
        "strings_among_sheets": "xl/worksheets/ss.xml",
        "sheet": "xl/worksheets/sheet1.xml",
    }
    for key in parts.keys() & {"strings", "strings_among_sheets"}:
        types = re.sub(rb"<Override [^>]*sharedStrings[^>]*>", b"", types)
        declared = DECLARED.replace(b"xl/sharedStrings.xml", named[key].encode())
        content["[Content_Types].xml"] = [types.replace(b"</Types>", declared + b"</Types>")]
    content |= {named[key]: part for key, part in parts.items()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name, pieces in content.items():
            with target.open(name, "w") as part:
                for piece in pieces:
                    part.write(piece)
    return packed.getvalue()


DECLARED = (
    b'<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-'
    b'officedocument.spreadsheetml.sharedStrings+xml"/>'
)


HEAD = b'<?xml version="1.0"?>'


STRINGS = b'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'


SHEET = (
    b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    b'<row r="1"><c r="A1" t="inlineStr"><is><t>title</t></is></c></row>'
)


END = b"</sheetData></worksheet>"


CELL = b'<c t="inlineStr"><is><t>x</t></is></c>'


def bombs() -> dict[str, bytes]:
    many = b"<si><t>x</t></si>" * 60_000
    return {
        "many texts": book(strings=[HEAD + STRINGS, *[many] * 150, b"</sst>"]),
        "one text": book(
            strings=[HEAD + STRINGS + b"<si><t>", *[b"x" * MEGABYTE] * 150, b"</t></si></sst>"]
        ),
        "one row": book(
            sheet=[HEAD + SHEET + b'<row r="2">', *[CELL * 25_000] * 150, b"</row>" + END]
        ),
        "one cell": book(
            sheet=[
                HEAD + SHEET + b'<row r="2"><c t="inlineStr"><is><t>',
                *[b"x" * MEGABYTE] * 150,
                b"</t></is></c></row>" + END,
            ]
        ),
        "no row": book(sheet=[HEAD + SHEET[: -len(b"</row>")], *[b" " * MEGABYTE] * 150, END]),
        "a far row": book(sheet=[HEAD + SHEET + b'<row r="2000000000">' + CELL + b"</row>" + END]),
        "elements between tables of rows": book(
            sheet=[HEAD + SHEET, *[b"<x/>" * 1_000 + b"<sheetData/>"] * 10_000, END]
        ),
        "elements between rows": book(
            sheet=[HEAD + SHEET, *[b"<x/>" * 1_000 + b"<row></row>"] * 10_000, END]
        ),
        "rows of another namespace": book(
            sheet=[
                HEAD + SHEET + b'<y xmlns:y="other">',
                *[b"<y:row>" + b"<x/>" * 1_000 + b"</y:row>"] * 10_000,
                b"</y>" + END,
            ]
        ),
        "rows that are comments": book(
            sheet=[
                HEAD + SHEET + b"<row>",
                *[b"<x/>" * 1_000 + b"<!--</row>--><![CDATA[</row>]]>"] * 10_000,
                b"</row>" + END,
            ]
        ),
        "empty rows": book(sheet=[HEAD + SHEET, *[b"<row/>" * 100_000] * 150, END]),
        "attributes of rows": book(
            sheet=[HEAD + SHEET, *[b'<row x="' + b"x" * MEGABYTE + b'"/>'] * 300, END]
        ),
        "text between rows": book(sheet=[HEAD + SHEET, *[b" " * 1_000 + b"<row/>"] * 200_000, END]),
        "attributes of texts": book(
            strings=[
                HEAD + STRINGS + b"<si>",
                *[b"<t " + b" ".join(b'a%d=""' % n for n in range(1_000)) + b"/>"] * 6_000,
                b"</si></sst>",
            ]
        ),
        "texts among the sheets": book(
            strings_among_sheets=[
                HEAD + STRINGS,
                *[b"<si><t>x</t></si>" * 1_000 + b"<row></row>"] * 5_000,
                b"</sst>",
            ]
        ),
        "another encoding": book(
            strings=[
                text.decode().encode("cp037")
                for text in (
                    b'<?xml version="1.0" encoding="cp037"?>' + STRINGS,
                    *[b"<si><t>x</t></si>" * 1_000] * 3_000,
                    b"</sst>",
                )
            ]
        ),
        "entities": book(
            strings=[
                HEAD,
                b'<!DOCTYPE sst [<!ENTITY a "xxxxxxxxxx">',
                *(
                    b'<!ENTITY %c "%s">' % (ord("b") + n, b"&%c;" % (ord("a") + n) * 10)
                    for n in range(8)
                ),
                b"]>" + STRINGS + b"<si><t>&i;</t></si></sst>",
            ]
        ),
    }


@pytest.fixture(scope="module")
def packed() -> dict[str, bytes]:
    return bombs()


@pytest.mark.parametrize(
    "name",
    [
        "many texts",
        "one text",
        "one row",
        "one cell",
        "no row",
        "a far row",
        "elements between tables of rows",
        "elements between rows",
        "rows of another namespace",
        "rows that are comments",
        "empty rows",
        "attributes of rows",
        "text between rows",
        "attributes of texts",
        "texts among the sheets",
        "another encoding",
        "entities",
    ],
)
def test_small_workbook_that_unpacks_to_much_is_refused_in_little_memory(
    name: str, packed: dict[str, bytes], tmp_path: Path
) -> None:
    content = packed[name]
    assert len(content) < 3 * MEGABYTE
    file = tmp_path / "bomb.xlsx"
    file.write_bytes(content)
    answer, used = run(file, "xlsx")
    assert answer.startswith("refused:"), answer
    assert used < ALLOWED


def run(file: Path, kind: str) -> tuple[str, int]:
    """Read a file in a process of its own; what it said, and how much memory it took."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file), kind],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)),
    )
    answer, used = ended.stdout.splitlines()
    return answer, int(used)


def test_claimed_size_of_a_part_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbooks, "PARTS_LIMIT", 100)
    with pytest.raises(UnreadableFile, match="unpacks to more than 100 bytes"):
        list(read(io.BytesIO(book()), "xlsx", TYPES))


def test_each_row_is_limited_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are."""
    rows = [CELL.join([b"<row>", b"</row>"]) for _ in range(5_000)]
    content = book(sheet=[HEAD + SHEET, *rows, END])
    monkeypatch.setattr(workbooks, "ROW_LIMIT", 100_000)
    assert len(list(read(io.BytesIO(content), "xlsx", TYPES, entity_type="experience"))) == 5_000
    monkeypatch.setattr(workbooks, "ROWS_LIMIT", 4_000)
    with pytest.raises(UnreadableFile, match="more than 4,000 rows"):
        list(read(io.BytesIO(content), "xlsx", TYPES, entity_type="experience"))


def test_text_that_looks_like_a_formula_stays_text() -> None:
    content = written("xlsx", [note(1, {"title": "=HYPERLINK(1)"})])
    (cell,) = [
        cell
        for row in load_workbook(io.BytesIO(content)).active.iter_rows(min_row=2)
        for cell in row
        if cell.value == "=HYPERLINK(1)"
    ]
    assert cell.data_type == "s"


@pytest.mark.parametrize("title", ["x" * 32_768, "\r" * 5_000])
def test_what_a_cell_of_a_workbook_cannot_hold_is_refused_not_cut(title: str) -> None:
    with pytest.raises(Unwritable, match=r"entry id-1: .*export as csv or jsonl"):
        written("xlsx", [note(1, {"title": title})])
    (found,) = parsed("csv", written("csv", [note(1, {"title": title})]))
    assert isinstance(found, Record)
    assert found.data["title"] == title

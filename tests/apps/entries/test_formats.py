"""Entries in files: every format reads what it writes, and tells the line of what is wrong."""

import csv
import io
import json
import tracemalloc
import zipfile
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import Workbook, load_workbook

from penstock.apps.entries.entrytypes import BUILT_IN, EntryType, EntryTypes, Field
from penstock.apps.entries.formats import (
    FORMATS,
    BadRecord,
    Exported,
    Record,
    UnreadableFile,
    Unwritable,
    format_of,
    read,
    writing,
)

EVERY_KIND = EntryType(
    name="note",
    fields={
        "title": Field(required=True),
        "score": Field(kind="number"),
        "done": Field(kind="flag"),
        "tags": Field(kind="list"),
        "extra": Field(kind="object"),
        "context": Field(kind="any"),
    },
    embed=("title",),
)
TYPES = EntryTypes([*BUILT_IN, EVERY_KIND])
EMBEDDED = ("embedded", 3, "2030-01-01T00:00:00+00:00", "2030-01-01T00:00:00+00:00")


def entry(number: int, data: dict[str, Any], entity_type: str = "note") -> Exported:
    return Exported(f"id-{number}", entity_type, "A-1", data, *EMBEDDED)


def written(kind: str, entries: Iterable[Exported]) -> bytes:
    file = io.BytesIO()
    with writing(file, kind, list(TYPES)) as to:
        for one in entries:
            to.write(one)
    return file.getvalue()


def records(kind: str, content: bytes | str, **options: Any) -> list[Record | BadRecord]:
    content = content.encode() if isinstance(content, str) else content
    return list(read(io.BytesIO(content), kind, TYPES, **options))


def workbook(*rows: Iterable[Any]) -> bytes:
    book = Workbook()
    for row in rows:
        book.active.append(list(row))
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


ODD: list[dict[str, Any]] = [
    {"title": "plain"},
    {"title": 'quotes " and, commas; and\ttabs'},
    {"title": "two\nlines\r\nand three", "score": 0.25},
    {"title": "=1+1", "score": -3, "done": True},
    {"title": "ünïcödé 🦉", "done": False, "tags": ["a", "b,c", 'd"'], "extra": {"k": [1, None]}},
    {"title": "007", "context": "007"},
    {"title": "looks like JSON", "context": "12"},
    {"title": "is JSON", "context": {"a": [1, 2.5, "x"]}},
    {"title": "null", "context": "null"},
    {"title": " space around ", "tags": []},
    {"title": "\x00\x01\x1f\ufffe", "context": "_x000D_ and _x005F_ and _x"},
]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_written_is_read_again(kind: str) -> None:
    entries = [entry(n, data) for n, data in enumerate(ODD)]
    entries.append(entry(99, {"title": "t", "content": "c"}, "manual"))
    found = records(kind, written(kind, entries))
    assert [one[1:] for one in found] == [one[:4] for one in entries]


printable = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
json_values = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | printable,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(printable, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(
    data=st.fixed_dictionaries(
        {"title": printable},
        optional={
            "score": st.integers(-(2**53), 2**53),
            "done": st.booleans(),
            "tags": st.lists(json_values, max_size=3),
            "extra": st.dictionaries(printable, json_values, max_size=3),
            "context": json_values,
        },
    )
)
def test_any_data_come_back(kind: str, data: dict[str, Any]) -> None:
    (found,) = records(kind, written(kind, [entry(1, data)]))
    assert isinstance(found, Record)
    assert found.data == data


def test_mark_at_the_beginning_and_other_delimiters_are_understood() -> None:
    for delimiter in ",;\t":
        text = delimiter.join(("id", "entity_type", "title")) + "\n"
        text += delimiter.join(("1", "note", "hello")) + "\n"
        assert records("csv", b"\xef\xbb\xbf" + text.encode()) == [
            Record(2, "1", "note", None, {"title": "hello"})
        ]
    line = json.dumps({"entity_type": "note", "data": {"title": "hello"}}).encode()
    assert records("jsonl", b"\xef\xbb\xbf" + line) == [
        Record(1, None, "note", None, {"title": "hello"})
    ]


def test_records_are_numbered_by_the_line_on_which_they_begin() -> None:
    text = 'title,tags\n"two\nlines",\n\nnext,[1\n"three\n\nlines",[]\n'
    found = records("csv", text, entity_type="note")
    assert [one.line for one in found] == [2, 5, 6]
    assert isinstance(found[1], BadRecord)
    assert "data.tags: expected JSON" in found[1].error


def test_line_that_is_no_text_is_told_and_the_next_one_is_read() -> None:
    found = records("csv", b"title\nfine\n\xe9t\xe9\nfine\n", entity_type="note")
    assert [type(one) for one in found] == [Record, BadRecord, Record]
    why = "is no UTF-8 text: invalid continuation byte at byte 1; save it as UTF-8"
    assert found[1] == BadRecord(3, why)
    found = records("jsonl", b'{"title": "a"}\n{"title": "\xe9"}\n{"title": "b"}\n')
    assert [type(one) for one in found] == [Record, BadRecord, Record]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "is no JSON object"),
        ("[1]", "is no JSON object"),
        ('{"data": 5}', "data: expected object"),
        ('{"data": {}, "id": 5}', "id: expected text"),
        ('{"data": {}, "colour": "red"}', "has 'colour' beside its data"),
    ],
)
def test_bad_line_of_json_is_told(line: str, error: str) -> None:
    (found,) = records("jsonl", f"\n{line}\n")
    assert isinstance(found, BadRecord)
    assert found.line == 2
    assert error in found.error


def test_line_of_json_may_have_its_data_beside_the_rest() -> None:
    flat = {"id": "1", "entity_type": "note", "title": "a", "embedding_status": "embedded"}
    nested = {"entry_id": "1", "type": "note", "category": "X", "data": {"title": "a"}}
    assert records("jsonl", f"{json.dumps(flat)}\n{json.dumps(nested)}") == [
        Record(1, "1", "note", None, {"title": "a"}),
        Record(2, "1", "note", "X", {"title": "a"}),
    ]


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
@pytest.mark.parametrize(
    "header",
    [["ID", "Type", "TITLE", "Embedding_Status"], ["Entry_Id", "ENTITY_TYPE", "tiTle", "Version"]],
)
def test_headings_are_understood_in_any_case(kind: str, header: list[str]) -> None:
    row = ["1", "note", "hello", "7"]
    content = "\n".join(map(",".join, (header, row))).encode()
    assert records(kind, content if kind == "csv" else workbook(header, row)) == [
        Record(2, "1", "note", None, {"title": "hello"})
    ]


def test_heading_that_is_spelled_twice_is_told() -> None:
    with pytest.raises(UnreadableFile, match="two columns 'title'"):
        records("csv", "title,Title\n", entity_type="note")


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
@pytest.mark.parametrize(
    ("header", "why"),
    [
        (["title", "titel"], "line 1: there is no column 'titel'; known are id, entity_type"),
        (["title", "id", "title"], "line 1: there are two columns 'title'"),
        (["title", "id", "entry_id"], "line 1: there are two columns 'id'"),
        (["title", "", "id"], "line 1: column 2 has no name"),
        ([], "line 1: there are no columns"),
    ],
)
def test_wrong_header_is_named(kind: str, header: list[str], why: str) -> None:
    content = ",".join(header).encode() if kind == "csv" else workbook(header)
    with pytest.raises(UnreadableFile, match=why):
        records(kind, content, entity_type="note")


def test_column_of_another_type_is_refused_where_one_is_asked_for() -> None:
    with pytest.raises(UnreadableFile, match="no column 'playbook'"):
        records("csv", "title,playbook\n", entity_type="manual")
    assert records("csv", "title,playbook\n") == []


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("note,x,much,,,,", "data.score: expected number, got 'much'"),
        ("note,x,nan,,,,", "data.score: expected number"),
        ("note,x,,maybe,,,", "data.done: expected true or false, got 'maybe'"),
        ("note,x,,,{,,", "data.tags: expected JSON"),
        ("note,x,,,,,,more", "has more than 7 cells"),
        ("colour,x,,,,,", "entity_type: there is no 'colour'"),
        (",x,,,,,", "entity_type: is required"),
        ('note,"x,,,,,', "is no row of cells: a quotation mark is not closed"),
    ],
)
def test_wrong_cell_is_named(row: str, error: str) -> None:
    text = f"entity_type,title,score,done,tags,extra,context\n{row}\n"
    (found,) = records("csv", text)
    assert isinstance(found, BadRecord)
    assert found.line == 2
    assert error in found.error


def test_numbers_and_dates_of_a_sheet_become_text_where_text_is_asked_for() -> None:
    content = workbook(["id", "title", "score"], [7, 2024, 1.5], [8.0, True, 2], [None] * 3)
    assert records("xlsx", content, entity_type="note") == [
        Record(2, "7", None, None, {"title": "2024", "score": 1.5}),
        Record(3, "8", None, None, {"title": "true", "score": 2}),
    ]


def test_text_that_looks_like_a_formula_stays_text() -> None:
    content = written("xlsx", [entry(1, {"title": "=HYPERLINK(1)"})])
    (cell,) = [
        cell
        for row in load_workbook(io.BytesIO(content)).active.iter_rows(min_row=2)
        for cell in row
        if cell.value == "=HYPERLINK(1)"
    ]
    assert cell.data_type == "s"


@pytest.mark.parametrize(
    "title",
    [
        *(
            "=1+1",
            "+1+1",
            "-1+1",
            "@SUM(1)",
            "\t=1",
            "\r=1",
            "\n=1",
            "-",
            "=",
            "\uff1d1",
            "\uff20x",
        ),
        *("'=1", "''=1", "=cmd|' /C calc'!A0", '=HYPERLINK("http://x")', "-2+3", "+a", "--1"),
    ],
)
def test_table_has_no_cell_that_a_spreadsheet_takes_for_a_formula(title: str) -> None:
    content = written("csv", [entry(1, {"title": title, "score": -5, "context": title})])
    for row in csv.reader(io.StringIO(content.decode(), newline="")):
        for cell in row:
            assert cell[:1] not in tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20") or cell == "-5"
    (found,) = records("csv", content)
    assert isinstance(found, Record)
    assert found.data == {"title": title, "score": -5, "context": title}


@pytest.mark.parametrize("title", ["-5", "+5", "-5.25", "+1e-7", "'quoted'", "a=b", "'", "5-3", ""])
def test_numbers_and_other_texts_stay_as_they_are(title: str) -> None:
    content = written("csv", [entry(1, {"title": title or "x", "tags": ["=1"], "score": -0.5})])
    assert "'=" not in content.decode()
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert (title or "x") in rows[1]
    assert "-0.5" in rows[1]


@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\n\"15eE.;, a\uff1d"), min_size=1, max_size=8))
@pytest.mark.parametrize("kind", ["csv", "xlsx", "jsonl"])
def test_every_text_comes_back_from_every_format(kind: str, title: str) -> None:
    (found,) = records(kind, written(kind, [entry(1, {"title": title})]))
    assert isinstance(found, Record)
    assert found.data["title"] == title


@pytest.mark.parametrize("title", ["x" * 32_768, "\r" * 5_000])
def test_what_a_cell_of_a_workbook_cannot_hold_is_refused_not_cut(title: str) -> None:
    with pytest.raises(Unwritable, match=r"entry id-1: .*export as csv or jsonl"):
        written("xlsx", [entry(1, {"title": title})])
    (found,) = records("csv", written("csv", [entry(1, {"title": title})]))
    assert isinstance(found, Record)
    assert found.data["title"] == title


def test_files_of_another_kind_are_refused() -> None:
    with pytest.raises(UnreadableFile, match="is no workbook"):
        records("xlsx", "title\nhello\n")
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(UnreadableFile, match="is no workbook"):
        records("xlsx", other.getvalue())
    with pytest.raises(UnreadableFile, match="UTF-16"):
        records("csv", "title\n".encode("utf-16"))
    with pytest.raises(UnreadableFile, match="no UTF-8"):
        records("csv", b"title,\xff\n")
    with pytest.raises(UnreadableFile, match="no format 'yaml'"):
        records("yaml", "")


def test_format_is_known_by_the_name() -> None:
    names = ("a.csv", "b.TSV", "c.jsonl", "d.ndjson", "e.xlsx")
    assert [format_of(name) for name in names] == ["csv", "csv", "jsonl", "jsonl", "xlsx"]
    with pytest.raises(UnreadableFile, match="ends with none of"):
        format_of("f.pdf")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_memory_does_not_grow_with_the_file(kind: str) -> None:
    text = "x" * 2_000
    content = io.BytesIO(written(kind, (entry(n, {"title": text}) for n in range(5_000))))
    tracemalloc.start()
    assert sum(isinstance(one, Record) for one in read(content, kind, TYPES)) == 5_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000

"""Every format reads what it writes, and reports the line of what is wrong."""

import csv
import io
import json
import tracemalloc
import zipfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apps.entries import formats
from penstock.apps.entries.formats import FORMATS, format_of, read
from penstock.apps.entries.records import BadRecord, Record, UnreadableFile
from tests.apps.entries.support import TYPES, note, parsed, written

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
    entries = [note(n, data) for n, data in enumerate(ODD)]
    entries.append(note(99, {"title": "t", "content": "c"}, "manual"))
    found = parsed(kind, written(kind, entries))
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
    (found,) = parsed(kind, written(kind, [note(1, data)]))
    assert isinstance(found, Record)
    assert found.data == data


def test_mark_at_the_beginning_and_other_delimiters_are_understood() -> None:
    for delimiter in ",;\t":
        text = delimiter.join(("id", "entity_type", "title")) + "\n"
        text += delimiter.join(("1", "note", "hello")) + "\n"
        assert parsed("csv", b"\xef\xbb\xbf" + text.encode()) == [
            Record(2, "1", "note", None, {"title": "hello"})
        ]
    line = json.dumps({"entity_type": "note", "data": {"title": "hello"}}).encode()
    assert parsed("jsonl", b"\xef\xbb\xbf" + line) == [
        Record(1, None, "note", None, {"title": "hello"})
    ]


def test_records_are_numbered_by_the_line_on_which_they_begin() -> None:
    text = 'title,tags\n"two\nlines",\n\nnext,[1\n"three\n\nlines",[]\n'
    found = parsed("csv", text, entity_type="note")
    assert [one.line for one in found] == [2, 5, 6]
    assert isinstance(found[1], BadRecord)
    assert "data.tags: expected JSON" in found[1].error


def test_line_that_is_not_text_is_reported_and_the_next_one_is_read() -> None:
    found = parsed("csv", b"title\nfine\n\xe9t\xe9\nfine\n", entity_type="note")
    assert [type(one) for one in found] == [Record, BadRecord, Record]
    why = "is not UTF-8: invalid continuation byte at byte 1; save the file as UTF-8"
    assert found[1] == BadRecord(3, why)
    found = parsed("jsonl", b'{"title": "a"}\n{"title": "\xe9"}\n{"title": "b"}\n')
    assert [type(one) for one in found] == [Record, BadRecord, Record]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "is not a JSON object"),
        ("[1]", "is not a JSON object"),
        ('{"data": 5}', "data: expected object"),
        ('{"data": {}, "id": 5}', "id: expected text"),
        ('{"data": {}, "colour": "red"}', "has 'colour' besides its data"),
    ],
)
def test_bad_line_of_json_is_reported(line: str, error: str) -> None:
    (found,) = parsed("jsonl", f"\n{line}\n")
    assert isinstance(found, BadRecord)
    assert found.line == 2
    assert error in found.error


def test_line_of_json_may_have_its_data_beside_the_rest() -> None:
    flat = {"id": "1", "entity_type": "note", "title": "a", "embedding_status": "embedded"}
    nested = {"entry_id": "1", "type": "note", "category": "X", "data": {"title": "a"}}
    assert parsed("jsonl", f"{json.dumps(flat)}\n{json.dumps(nested)}") == [
        Record(1, "1", "note", None, {"title": "a"}),
        Record(2, "1", "note", "X", {"title": "a"}),
    ]


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
    content = written("csv", [note(1, {"title": title, "score": -5, "context": title})])
    for row in csv.reader(io.StringIO(content.decode(), newline="")):
        for cell in row:
            assert cell[:1] not in tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20") or cell == "-5"
    (found,) = parsed("csv", content)
    assert isinstance(found, Record)
    assert found.data == {"title": title, "score": -5, "context": title}


@pytest.mark.parametrize("title", ["-5", "+5", "-5.25", "+1e-7", "'quoted'", "a=b", "'", "5-3", ""])
def test_numbers_and_other_texts_stay_as_they_are(title: str) -> None:
    content = written("csv", [note(1, {"title": title or "x", "tags": ["=1"], "score": -0.5})])
    assert "'=" not in content.decode()
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert (title or "x") in rows[1]
    assert "-0.5" in rows[1]


@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\n\"15eE.;, a\uff1d"), min_size=1, max_size=8))
@pytest.mark.parametrize("kind", ["csv", "xlsx", "jsonl"])
def test_every_text_comes_back_from_every_format(kind: str, title: str) -> None:
    (found,) = parsed(kind, written(kind, [note(1, {"title": title})]))
    assert isinstance(found, Record)
    assert found.data["title"] == title


def test_files_of_another_kind_are_refused() -> None:
    with pytest.raises(UnreadableFile, match="is not a readable workbook"):
        parsed("xlsx", "title\nhello\n")
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(UnreadableFile, match="is not a readable workbook"):
        parsed("xlsx", other.getvalue())
    with pytest.raises(UnreadableFile, match="UTF-16"):
        parsed("csv", "title\n".encode("utf-16"))
    with pytest.raises(UnreadableFile, match="not UTF-8"):
        parsed("csv", b"title,\xff\n")
    with pytest.raises(UnreadableFile, match="unknown format 'yaml'"):
        parsed("yaml", "")


def test_format_is_known_by_the_name() -> None:
    names = ("a.csv", "b.TSV", "c.jsonl", "d.ndjson", "e.xlsx")
    assert [format_of(name) for name in names] == ["csv", "csv", "jsonl", "jsonl", "xlsx"]
    with pytest.raises(UnreadableFile, match="does not end with one of"):
        format_of("f.pdf")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_memory_does_not_grow_with_the_file(kind: str) -> None:
    text = "x" * 2_000
    content = io.BytesIO(written(kind, (note(n, {"title": text}) for n in range(5_000))))
    tracemalloc.start()
    assert sum(isinstance(one, Record) for one in read(content, kind, TYPES)) == 5_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_record_of_a_table_is_limited_over_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_LINE", 1_000)
    content = b"title\n" + b'"\n",' * 1_000 + b"\nhello\n"
    found = list(read(io.BytesIO(content), "csv", TYPES, entity_type="experience"))
    assert isinstance(found[0], BadRecord)
    assert found[0].error == "has more than 1,000 bytes"

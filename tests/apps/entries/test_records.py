"""The columns of a table are understood, and what is wrong is reported with its line."""

import pytest

from penstock.apps.entries.records import BadRecord, Record, UnreadableFile
from tests.apps.entries.support import parsed, workbook


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
@pytest.mark.parametrize(
    "header",
    [["ID", "Type", "TITLE", "Embedding_Status"], ["Entry_Id", "ENTITY_TYPE", "tiTle", "Version"]],
)
def test_headings_are_understood_in_any_case(kind: str, header: list[str]) -> None:
    row = ["1", "note", "hello", "7"]
    content = "\n".join(map(",".join, (header, row))).encode()
    assert parsed(kind, content if kind == "csv" else workbook(header, row)) == [
        Record(2, "1", "note", None, {"title": "hello"})
    ]


def test_repeated_heading_is_reported() -> None:
    with pytest.raises(UnreadableFile, match="column 'title' appears twice"):
        parsed("csv", "title,Title\n", entity_type="note")


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
@pytest.mark.parametrize(
    ("header", "why"),
    [
        (["title", "titel"], "line 1: unknown column 'titel'; known columns are id, entity_type"),
        (["title", "id", "title"], "line 1: column 'title' appears twice"),
        (["title", "id", "entry_id"], "line 1: column 'id' appears twice"),
        (["title", "", "id"], "line 1: column 2 has no name"),
        ([], "line 1: the table has no columns"),
    ],
)
def test_wrong_header_is_named(kind: str, header: list[str], why: str) -> None:
    content = ",".join(header).encode() if kind == "csv" else workbook(header)
    with pytest.raises(UnreadableFile, match=why):
        parsed(kind, content, entity_type="note")


def test_column_of_another_type_is_refused_where_one_is_asked_for() -> None:
    with pytest.raises(UnreadableFile, match="unknown column 'playbook'"):
        parsed("csv", "title,playbook\n", entity_type="manual")
    assert parsed("csv", "title,playbook\n") == []


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("note,x,much,,,,", "data.score: expected number, got 'much'"),
        ("note,x,nan,,,,", "data.score: expected number"),
        ("note,x,,maybe,,,", "data.done: expected true or false, got 'maybe'"),
        ("note,x,,,{,,", "data.tags: expected JSON"),
        ("note,x,,,,,,more", "has more than 7 cells"),
        ("colour,x,,,,,", "entity_type: 'colour' is not one of"),
        (",x,,,,,", "entity_type: is required"),
        ('note,"x,,,,,', "is not a valid CSV row: a quotation mark is not closed"),
    ],
)
def test_wrong_cell_is_named(row: str, error: str) -> None:
    text = f"entity_type,title,score,done,tags,extra,context\n{row}\n"
    (found,) = parsed("csv", text)
    assert isinstance(found, BadRecord)
    assert found.line == 2
    assert error in found.error


def test_numbers_and_dates_of_a_sheet_become_text_where_text_is_asked_for() -> None:
    content = workbook(["id", "title", "score"], [7, 2024, 1.5], [8.0, True, 2], [None] * 3)
    assert parsed("xlsx", content, entity_type="note") == [
        Record(2, "7", None, None, {"title": "2024", "score": 1.5}),
        Record(3, "8", None, None, {"title": "true", "score": 2}),
    ]

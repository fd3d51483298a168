from datetime import UTC, datetime, timedelta

import pytest

from penstock import JobQuery, State
from penstock.cli.top.filters import FilterRefused, parse
from penstock.jobs import JobId

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", JobQuery()),
        ("state:failed,done", JobQuery(states=frozenset({State.FAILED, State.DONE}))),
        ("state:failed state:done", JobQuery(states=frozenset({State.FAILED, State.DONE}))),
        ("queue:mail task:send", JobQuery(queue="mail", task="send")),
        ("tag:a tag:b key:k tenant:t", JobQuery(tags=("a", "b"), key="k", tenant="t")),
        ("batch:b parent:7", JobQuery(correlation="b", parent=JobId(7))),
        ("older:2h", JobQuery(before=NOW - timedelta(hours=2))),
        (
            "since:1d older:2h",
            JobQuery(since=NOW - timedelta(days=1), before=NOW - timedelta(hours=2)),
        ),
        ("no route queue:mail", JobQuery(queue="mail", text="no route")),
        ("'queue:two words'", JobQuery(queue="two words")),
        ("http://host/path", JobQuery(text="http://host/path")),
        ("worker:w1", JobQuery(states=frozenset({State.RUNNING}))),
    ],
)
def test_what_is_typed_is_asked_for(text: str, query: JobQuery) -> None:
    assert parse(text).query(NOW) == query


@pytest.mark.parametrize(
    "text", ["state:gone", "queue:", "parent:x", "older:soon", "since:now", "colour:red", "'open"]
)
def test_what_nobody_can_ask_for_is_refused(text: str) -> None:
    with pytest.raises(FilterRefused):
        parse(text)


def test_another_state_leaves_the_rest() -> None:
    found = parse("state:failed 'queue:two words' luck")
    assert found.of_state(State.DONE).query(NOW) == JobQuery(
        queue="two words", text="luck", states=frozenset({State.DONE})
    )
    assert found.of_state(None).query(NOW) == JobQuery(queue="two words", text="luck")

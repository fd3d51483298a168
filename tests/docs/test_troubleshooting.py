"""The page says what `explain` prints, in its words and without any that it does not use."""

import re
from datetime import timedelta

from msgspec.structs import replace

from penstock.core.explanation import Facts, explain
from penstock.core.lifecycle import State, Waiting
from penstock.core.limits import Held
from penstock.core.queue import Queue
from penstock.core.workers import MissingTask
from tests.core.support import NOW, SECOND, job
from tests.docs.support import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
WAITING = job(queue="mail", task="send", key="ada")
RUNNING = job(
    state=State.RUNNING, attempt=1, worker="web1:4711:fa5263", expires_at=NOW + 30 * SECOND
)
FACTS = Facts(now=NOW)


def phrases() -> list[str]:
    """What stands in backticks in the first column of the table."""
    table = PAGE.partition("\n| it says |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)]


def explanations() -> list[str]:
    """A text of every kind that `explain` has."""
    unknown = MissingTask(task="send", version=2, other_versions=False)
    seen = replace(unknown, seen_on="web1", seen_at=NOW)
    blocked = replace(WAITING, waiting=Waiting.BLOCKED)
    later = replace(WAITING, waiting=Waiting.SCHEDULED, run_at=NOW + SECOND)
    paused = Queue(name="mail", paused=True)
    running = Held(kind="queue", name="mail", taken=3, limit=3)
    limits = [
        running,
        replace(running, kind="task", name="send"),
        replace(running, kind="throttle", name="api"),
        Held(kind="rate", name="mail", taken=10, limit=10, until=NOW + SECOND),
    ]
    facts = [
        (WAITING, FACTS),
        *(
            (WAITING, replace(FACTS, unknown_task=task))
            for task in (unknown, seen, replace(unknown, other_versions=True))
        ),
        (WAITING, replace(FACTS, queue=paused)),
        (WAITING, replace(FACTS, queue=replace(paused, paused_until=NOW + timedelta(hours=1)))),
        (blocked, replace(FACTS, needed=job(7))),
        (blocked, replace(FACTS, needed=job(7, State.RUNNING), more_needed=2)),
        (blocked, replace(FACTS, first_of_key=job(7, State.RUNNING))),
        (later, FACTS),
        (replace(later, attempt=2, error="OSError: gone"), FACTS),
        *((WAITING, replace(FACTS, held=[limit])) for limit in limits),
        (RUNNING, FACTS),
        (RUNNING, replace(FACTS, now=NOW + timedelta(minutes=1))),
        *((job(state=state, finished_at=NOW), FACTS) for state in State if state.final),
    ]
    return [explain(one, known).text for one, known in facts]


def matches(phrase: str, text: str) -> bool:
    """Whether a text is of the form of a phrase, in which `…` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, phrase.split("…"))), text) is not None


def test_every_explanation_is_in_the_table() -> None:
    texts = explanations()
    missing = [text for text in texts if not any(matches(phrase, text) for phrase in phrases())]
    assert missing == []


def test_table_has_no_explanation_that_is_never_given() -> None:
    texts = explanations()
    assert len(phrases()) > 15
    invented = [phrase for phrase in phrases() if not any(matches(phrase, t) for t in texts)]
    assert invented == []

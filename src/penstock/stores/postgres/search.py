"""The conditions of a search for jobs."""

from typing import Any

from penstock.core.lifecycle import UNFINISHED
from penstock.core.query import JobQuery
from penstock.core.times import to_micros
from penstock.stores.sql.database import Search
from penstock.stores.sql.rows import STAGES, encoded

_COLUMNS = ("queue", "task", "key", "correlation", "tenant", "parent")
_TEXTS = ("task", "key", "tenant", "error", "tags", "body")


def searched(what: Search, query: JobQuery) -> tuple[str, str, list[Any]]:
    """Return the name of the query, what follows its WHERE, and the parameters."""
    parameters: list[Any] = []

    def given(value: Any) -> str:
        parameters.append(value)
        return f"${len(parameters)}"

    name: str = what
    place = "j.id"
    if len(query.tags) == 1:
        name, place = f"{what}_tagged", "t.job_id"
        given(query.tags[0])
    clauses = _conditions(query, given)
    if what == "tally":
        return name, f"{' AND '.join(clauses) or 'true'} GROUP BY j.stage", parameters
    if query.after is not None:
        clauses.append(f"{place} {'<' if query.newest_first else '>'} {given(query.after)}")
    if query.until is not None:
        clauses.append(f"{place} {'>=' if query.newest_first else '<='} {given(query.until)}")
    order = f"ORDER BY {place} {'DESC' if query.newest_first else 'ASC'}"
    return (
        name,
        f"{' AND '.join(clauses) or 'true'} {order} LIMIT {given(query.limit)}",
        parameters,
    )


def _conditions(query: JobQuery, given: Any) -> list[str]:
    clauses: list[str] = []
    if query.states is not None:
        # As literal numbers: they tell the planner which partitions to skip.
        stages = [str(n) for n, (state, _) in enumerate(STAGES) if state in query.states]
        clauses.append(f"j.stage IN ({', '.join(stages)})" if stages else "false")
        if query.states <= UNFINISHED:
            clauses.append("j.shelf = 0")
    if query.cancel_requested is not None:
        clauses.append("j.cancel_requested" if query.cancel_requested else "NOT j.cancel_requested")
    clauses += [
        f"j.{column} = {given(value)} AND j.{column} IS NOT NULL"
        for column in _COLUMNS
        if (value := getattr(query, column)) is not None
    ]
    if query.error is not None:
        clauses.append(f"position({given(query.error)} IN j.error) > 0")
    clauses += [
        f"coalesce(j.finished_at, j.enqueued_at) {sign} {given(to_micros(instant))}"
        for name, sign in (("since", ">="), ("before", "<"))
        if (instant := getattr(query, name)) is not None
    ]
    if query.text is not None:
        text = given(query.text)
        looked = [f"position({text} IN j.{column}) > 0" for column in _TEXTS]
        clauses.append(f"({' OR '.join(looked)})")
    if len(query.tags) > 1:
        tags = f"SELECT json_array_elements_text({given(encoded(query.tags))}::json)"
        found = f"SELECT job_id FROM penstock.tag WHERE tag IN ({tags})"  # noqa: S608 - a parameter
        clauses.append(f"j.id IN ({found})")
    return clauses

"""The conditions of a search for jobs, in the form that makes SQLite choose the best plan.

A plus sign keeps it from using an index or an order that would visit or sort more rows.
"""

from typing import Any

from penstock.core.lifecycle import FINAL, UNFINISHED, State
from penstock.core.query import JobQuery
from penstock.core.times import to_micros
from penstock.stores.sql.rows import STAGES, encoded

# The cheapest condition comes first: payloads are in a table of their own.
_MENTIONS = (
    "(instr(j.task, ?) OR instr(j.key, ?) OR instr(j.tenant, ?) OR instr(j.error, ?)"
    " OR instr(j.tags, ?)"
    " OR instr((SELECT body FROM penstock_payload WHERE job_id = j.id), ?))"
)


def searched(query: JobQuery) -> tuple[str, list[Any]]:
    """Return what follows the WHERE of `find` and `find_tagged`, and the parameters."""
    clauses, parameters = _conditions(query)
    walked = "+j.id" if _few(query) else "j.id"
    if tagged(query):
        walked = "t.job_id"
        parameters.insert(0, query.tags[0])
    if query.after is not None:
        clauses.append(f"{walked} {'<' if query.newest_first else '>'} ?")
        parameters.append(query.after)
    if query.until is not None:
        clauses.append(f"{walked} {'>=' if query.newest_first else '<='} ?")
        parameters.append(query.until)
    order = f"ORDER BY {walked} {'DESC' if query.newest_first else 'ASC'} LIMIT ?"
    return f"{' AND '.join(clauses) or 'true'} {order}", [*parameters, query.limit]


def tallied(query: JobQuery) -> tuple[str, list[Any]]:
    """Return what follows the WHERE of `tally` and `tally_tagged`, and the parameters."""
    clauses, parameters = _conditions(query)
    if tagged(query):
        parameters.insert(0, query.tags[0])
    return f"{' AND '.join(clauses) or 'true'} GROUP BY j.stage", parameters


def tagged(query: JobQuery) -> bool:
    """Return whether to scan the jobs of a tag: with several, a job would come up repeatedly."""
    return len(query.tags) == 1


def _conditions(query: JobQuery) -> tuple[list[str], list[Any]]:
    clauses: list[str] = []
    parameters: list[Any] = []
    if query.states is not None:
        clauses += _stages(query.states, walks=not _few(query))
    if query.cancel_requested is not None:
        clauses.append(f"j.cancel_requested = {query.cancel_requested:d}")
    for column in ("queue", "task", "key", "correlation", "tenant", "parent"):
        if (value := getattr(query, column)) is not None:
            clauses.append(f"j.{column} = ?")
            parameters.append(value)
    # Partial indexes: see `queries.sql`.
    for column in ("correlation", "parent"):
        if getattr(query, column) is not None:
            clauses.append(f"j.{column} IS NOT NULL")
    if query.key is not None and query.states is not None and query.states <= UNFINISHED:
        clauses.append("j.key IS NOT NULL AND j.stage < 4")
    _add_content(query, clauses, parameters)
    return clauses, parameters


def _add_content(query: JobQuery, clauses: list[str], parameters: list[Any]) -> None:
    """Add conditions without an index: texts, times, and any of several tags."""
    if query.error is not None:
        clauses.append("instr(j.error, ?)")
        parameters.append(query.error)
    for name, sign in (("since", ">="), ("before", "<")):
        if (instant := getattr(query, name)) is not None:
            clauses.append(f"ifnull(j.finished_at, j.enqueued_at) {sign} ?")
            parameters.append(to_micros(instant))
    if query.text is not None:
        clauses.append(_MENTIONS)
        parameters += [query.text] * _MENTIONS.count("?")
    if len(query.tags) > 1:
        any_of_them = (
            "SELECT job_id FROM penstock_tag WHERE tag IN (SELECT value FROM json_each(?))"
        )
        clauses.append(f"j.id IN ({any_of_them})")
        parameters.append(encoded(query.tags))


def _few(query: JobQuery) -> bool:
    """Return whether jobs in these states are better found by state than by id."""
    return (
        query.until is None
        and query.states is not None
        and query.states.isdisjoint({State.PENDING, State.DONE})
    )


def _stages(states: frozenset[State], *, walks: bool) -> list[str]:
    stages = ", ".join(str(n) for n, (state, _) in enumerate(STAGES) if state in states)
    if walks:
        return [f"+j.stage IN ({stages})"]
    if states == {State.RUNNING}:
        return ["j.stage = 3"]
    return [f"j.stage IN ({stages})", *(["j.stage >= 4"] if states <= FINAL else [])]

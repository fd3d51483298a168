"""When schedules run, held against references that are worked out another way."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.job import NewJob
from penstock.core.schedule import (
    CATCH_UP_LIMIT,
    Missed,
    Rhythm,
    Schedule,
    check_rhythm,
    plan,
    redefined,
)
from tests.core.cron_reference import Reference

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)

# Both directions of daylight saving; half an hour; at midnight; a day left out; without any.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "Pacific/Apia",
    "Asia/Kolkata",
    "UTC",
]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(zone: str, text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def runs(cron: str, zone: str, since: datetime, until: datetime) -> list[datetime]:
    """Every run later than one instant, up to another."""
    rhythm = check_rhythm(cron, timezone=zone, name="s")
    found = []
    while (run := rhythm.after(since, since)) is not None and run <= until:
        assert run > since
        found.append(run)
        since = run
    return found


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted)
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.integers(2, max(2, high // 2)).map(lambda step: f"*/{step}"),
        pair.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.lists(number, min_size=2, max_size=4).map(lambda many: ",".join(map(str, many))),
    )


CHANGES = [
    utc("2030-03-31T01:00"),  # Europe, forwards
    utc("2030-10-27T01:00"),  # Europe, back
    utc("2030-03-10T07:00"),  # New York
    utc("2030-11-03T06:00"),
    utc("2030-04-06T15:00"),  # Lord Howe, by half an hour
    utc("2030-10-05T15:30"),
    utc("2018-11-04T03:00"),  # São Paulo: midnight does not exist
    utc("2018-02-18T02:00"),
    utc("2011-12-30T10:00"),  # Apia: a day does not exist
]


@settings(max_examples=150, deadline=None)
@given(
    minute=field(0, 59),
    hour=field(0, 23),
    day=st.one_of(st.just("*"), field(1, 31)),
    weekday=st.one_of(st.just("*"), field(0, 7)),
    zone=st.sampled_from(ZONES),
    change=st.sampled_from(CHANGES),
    offset=st.integers(-36 * 60, 12 * 60),
    seconds=st.floats(0, 59.9),
)
@example("*/15", "5", "*", "*", "Australia/Lord_Howe", CHANGES[5], -120, 0.0)
@example("30", "2", "*", "*", "Europe/Berlin", CHANGES[1], 15, 0.0)
@example("0", "0", "*", "*", "America/Sao_Paulo", CHANGES[6], -120, 0.0)
@example("0", "12", "30", "*", "Pacific/Apia", CHANGES[8], -2000, 0.0)
def test_runs_around_clock_changes_are_those_of_the_reference(  # noqa: PLR0917 - drawn
    minute: str,
    hour: str,
    day: str,
    weekday: str,
    zone: str,
    change: datetime,
    offset: int,
    seconds: float,
) -> None:
    cron = f"{minute} {hour} {day} * {weekday}"
    since = change + offset * MINUTE + timedelta(seconds=seconds)
    until = since + 2 * DAY
    assert runs(cron, zone, since, until) == Reference(cron, zone).runs(since, until)


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # Named times happen once: one that does not exist, at the moment of the change.
        ("30 2 * * *", ["2030-03-30T02:30", "2030-03-31T03:00", "2030-04-01T02:30"]),
        ("0,30 2 31 3 *", ["2030-03-31T03:00"]),
        ("0 2,3 31 3 *", ["2030-03-31T03:00"]),
        # By the wall: an hour that does not exist is left out.
        ("30 */2 31 3 *", [f"2030-03-31T{n:02}:30" for n in range(0, 24, 2) if n != 2]),
    ],
)
def test_clock_put_forward(cron: str, expected: list[str]) -> None:
    berlin = "Europe/Berlin"
    found = runs(cron, berlin, local(berlin, "2030-03-30T00:00"), local(berlin, "2030-04-01T12:00"))
    assert found == [local(berlin, text) for text in expected]


def test_clock_put_back() -> None:
    berlin = "Europe/Berlin"
    since, until = local(berlin, "2030-10-27T00:00"), local(berlin, "2030-10-27T04:00")
    # A named time that occurs twice happens the first time.
    assert runs("30 2 * * *", berlin, since, until) == [local(berlin, "2030-10-27T02:30")]
    # By the wall, the hour runs twice.
    assert runs("0 * * * *", berlin, since, until) == [
        local(berlin, "2030-10-27T01:00"),
        local(berlin, "2030-10-27T02:00"),
        local(berlin, "2030-10-27T02:00", fold=1),
        local(berlin, "2030-10-27T03:00"),
        local(berlin, "2030-10-27T04:00"),
    ]


def test_named_time_is_not_repeated_when_planned_in_the_second_hour() -> None:
    berlin = "Europe/Berlin"
    asked = local(berlin, "2030-10-27T02:15", fold=1)
    [following] = runs("30 2 * * *", berlin, asked, asked + DAY + HOUR)
    assert following == local(berlin, "2030-10-28T02:30")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata"])
@pytest.mark.parametrize("since", [utc("2030-03-25T00:00"), utc("2030-10-01T00:00")])
def test_half_hours_by_the_wall_are_half_hours_of_the_sun(zone: str, since: datetime) -> None:
    """Wherever offsets from UTC are whole half hours, no change of the clock can be seen."""
    found = runs("*/30 * * * *", zone, since, since + 30 * DAY)
    assert found == [since + n * 30 * MINUTE for n in range(1, 30 * 48 + 1)]


@pytest.mark.parametrize(
    ("name", "expression"),
    [("@hourly", "0 * * * *"), ("@Daily", "0 0 * * *"), ("@weekly", "0 0 * * 0")],
)
def test_names_for_common_expressions(name: str, expression: str) -> None:
    since = utc("2030-01-01T00:00")
    assert runs(name, "UTC", since, since + 20 * DAY) == runs(
        expression, "UTC", since, since + 20 * DAY
    )
    assert Rhythm(cron=name).words == Rhythm(cron=expression).words


@pytest.mark.parametrize(
    ("every", "words"),
    [
        (SECOND, "Every second"),
        (90 * SECOND, "Every 90 seconds"),
        (1.5 * SECOND, "Every 1.5 seconds"),
        (MINUTE, "Every minute"),
        (90 * MINUTE, "Every 90 minutes"),
        (2 * HOUR, "Every 2 hours"),
        (7 * DAY, "Every 7 days"),
    ],
)
def test_interval_in_words(every: timedelta, words: str) -> None:
    assert Rhythm(every=every).words == words


# Planning


def due(rhythm: Rhythm, first: datetime, missed: Missed) -> Schedule:
    job = NewJob(task="t", payload="{}")
    return Schedule(name="s", job=job, rhythm=rhythm, missed=missed, next=first)


RHYTHMS = st.one_of(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "0 0 1 * *"]).map(
        lambda cron: Rhythm(cron=cron, timezone="Europe/Berlin")
    ),
    st.integers(1, 100_000).map(lambda n: Rhythm(every=n * SECOND)),
)


@settings(max_examples=150, deadline=None)
@given(
    rhythm=RHYTHMS,
    missed=st.sampled_from(Missed),
    start=st.datetimes(datetime(2029, 1, 1), datetime(2031, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - without a zone on purpose
    late=st.integers(0, 40 * 24 * 3600),
)
def test_plan_follows_its_policy_and_continues_after_now(
    rhythm: Rhythm, missed: Missed, start: datetime, late: int
) -> None:
    first = rhythm.after(start, start)
    assert first is not None
    now = first + late * SECOND
    firing = plan(due(rhythm, first, missed), now)
    every = [first]  # one by one, as long as that does not take for ever
    while len(every) < 60_000 and (run := rhythm.after(every[-1], first)) and run <= now:
        every.append(run)
    if len(every) == 60_000:
        return
    found = [job.run_at for job in firing.jobs]
    match missed:
        case Missed.ALL:
            assert found == every[-CATCH_UP_LIMIT:]
            assert firing.left_out == (len(every) > CATCH_UP_LIMIT)
        case Missed.ONCE:
            assert found == every[-1:]
            assert firing.left_out == (len(every) > 1)
        case Missed.SKIP:
            assert found == (every[-1:] if now - every[-1] <= MINUTE else [])
    assert firing.next is not None
    assert firing.next > now
    assert firing.next == rhythm.after(every[-1], first)


def test_plan_of_what_is_not_due_is_a_mistake() -> None:
    schedule = due(Rhythm(every=HOUR), utc("2030-01-01T01:00"), Missed.ONCE)
    with pytest.raises(ValueError, match="not due"):
        plan(schedule, utc("2030-01-01T00:59"))


def test_redefining_without_a_change_gives_back_what_is_stored() -> None:
    now = utc("2030-01-01T00:00")
    wanted = due(Rhythm(every=HOUR), now, Missed.ONCE)
    stored = replace(redefined(None, wanted, now), version=3, last=now, paused=True)
    assert redefined(stored, wanted, now + 5 * DAY) is stored
    assert redefined(stored, replace(wanted, overlap=False), now) == replace(stored, overlap=False)

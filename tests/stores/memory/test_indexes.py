from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.job import JobId
from penstock.stores.memory.indexes import SLACK, ById, Ranking

# Ranking

steps = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 5)), max_size=300)


@given(steps)
def test_ranking_is_a_sorted_set(steps: list[tuple[bool, int, int]]) -> None:
    ranking, model = Ranking(), dict[int, int]()
    for puts, place, rank in steps:
        if puts:
            ranking.put(JobId(place), rank)
            model[place] = rank
        else:
            ranking.drop(JobId(place))
            model.pop(place, None)
        wanted = sorted((rank, place) for place, rank in model.items())
        assert list(ranking) == wanted
        assert ranking.first() == (wanted[0] if wanted else None)
        assert (len(ranking), sorted(ranking.ids())) == (len(model), sorted(model))


def test_ranking_forgets_what_was_dropped() -> None:
    ranking = Ranking()
    ranking.put(JobId(0), 0)
    for place in range(1, 10_000):
        ranking.put(JobId(place), place)
        ranking.drop(JobId(place))
        ranking.put(JobId(0), 0)
    assert len(ranking._heap) <= 2 + SLACK


def test_reading_the_first_few_of_many_looks_at_few() -> None:
    looked = 0

    class Rank(int):
        def __lt__(self, other: int) -> bool:
            nonlocal looked
            looked += 1
            return int.__lt__(self, other)

    ranking = Ranking()
    for place in range(10_000):
        ranking.put(JobId(place), Rank(place * 7919 % 10_007))
    looked = 0
    read: Iterator[tuple[int, int]] = iter(ranking)
    assert [next(read)[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert looked < 100


# By id


@given(
    st.lists(st.integers(0, 200), unique=True), st.sets(st.integers(0, 200)), st.integers(0, 200)
)
def test_values_reads_onwards_and_backwards_from_any_id(
    kept: list[int], taken: set[int], start: int
) -> None:
    values: ById[str] = ById()
    for place in sorted({*kept, *taken}):
        values.put(place, f"value {place}")
    for place in taken:
        assert values.pop(place) == f"value {place}"
    left = sorted(set(kept) - taken)
    assert list(values.after(start)) == [f"value {n}" for n in left if n > start]
    assert list(values.before(start)) == [f"value {n}" for n in left[::-1] if n < start]
    assert list(values.after(None)) == [f"value {n}" for n in left]
    assert list(values.before(None)) == [f"value {n}" for n in left[::-1]]
    assert values.get(start) == (f"value {start}" if start in left else None)

"""Test what every index guarantees, with each vector store."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import ConfigurationError
from penstock.vectors import Hit, Index, IndexUnavailable, Item, Mode, Where, open_index
from tests.vectors.support import DIMENSIONS, item, vector

Open = Callable[..., Index]
KINDS = ("faiss", "chroma", "qdrant")


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    made: list[Index] = []

    def open_one(folder: str = "index", **options: Any) -> Index:
        options = {"dimensions": DIMENSIONS, "vectors": request.param, **options}
        made.append(open_index(tmp_path / folder, **options))
        return made[-1]

    yield open_one
    for index in made:
        index.close()


@pytest.fixture
def index(opened: Open) -> Index:
    return opened()


def ids(hits: list[Hit]) -> list[str]:
    return [hit.id for hit in hits]


def near(index: Index, text: str, k: int = 10, **where: Any) -> list[str]:
    return ids(index.search(vector(text), k=k, mode="vector", where=Where(**where)))


def worded(index: Index, text: str, k: int = 10, **where: Any) -> list[str]:
    return ids(index.search(text=text, k=k, mode="bm25", where=Where(**where)))


def test_empty_index_finds_nothing(index: Index) -> None:
    for mode in Mode:
        assert index.search(vector("a"), "a", mode=mode) == []
        assert index.search(vector("a"), "a", mode=mode, where=Where(types=("x",))) == []
    assert index.count() == 0


def test_item_is_found_with_all_it_has(index: Index) -> None:
    metadata = {"n": 1, "x": 1.5, "s": "ü", "b": True, "none": None, "list": [1, {"a": 2}]}
    index.upsert([Item("i", vector("red fox"), "red fox", "a/b.py", "function", "Fox", metadata)])
    for mode in Mode:
        (hit,) = index.search(vector("red fox"), "fox", mode=mode)
        assert (hit.id, hit.text, hit.path, hit.type) == ("i", "red fox", "a/b.py", "function")
        assert (hit.title, hit.metadata) == ("Fox", metadata)
    assert hit.vector_score == pytest.approx(1, abs=1e-5)
    assert hit.bm25_score is not None


def test_nearest_come_first_with_their_cosine(index: Index) -> None:
    index.upsert([item("one", "red fox"), item("two", "red fox runs"), item("three", "blue sea")])
    hits = index.search(vector("red fox"), k=2, mode="vector")
    assert ids(hits) == ["one", "two"]
    assert hits[0].score == pytest.approx(1, abs=1e-5)
    assert hits[1].score == pytest.approx(
        float(vector("red fox") @ vector("red fox runs")), abs=1e-5
    )
    assert hits[1].bm25_score is None


def test_words_are_found_in_text_and_title_whatever_their_ending(index: Index) -> None:
    titled = Item("titled", vector("x"), "nothing here", title="renew_lease")
    index.upsert([item("one", "the worker renews"), item("two", "blue sea"), titled])
    assert set(worded(index, "renewing")) == {"one", "titled"}
    assert worded(index, "lease") == ["titled"]
    assert worded(index, "green") == []


@pytest.mark.parametrize(
    "text",
    [
        '"',
        "a OR",
        "NEAR(",
        "*",
        "text:x",
        "-",
        "'; DROP TABLE item",
        "",
        "\x00",
        "\ud800",
        "(" * 999,
    ],
)
def test_question_is_never_taken_for_syntax(index: Index, text: str) -> None:
    index.upsert([item("one", "red fox")])
    assert ids(index.search(text=f"{text} fox", mode="bm25")) == ["one"]
    assert ids(index.search(text=f"fox {text}", mode="hybrid")) == ["one"]
    index.search(text=text, mode="bm25")


def test_hybrid_puts_first_what_both_searches_find(index: Index) -> None:
    index.upsert(
        [
            Item("vector", vector("red fox"), "no such word"),
            Item("words", vector("blue sea"), "red fox"),
            Item("both", vector("red fox"), "red fox"),
            Item("neither", vector("tall tree"), "tall tree"),
        ]
    )
    hits = index.search(vector("red fox"), "red fox", k=3)
    assert hits[0].id == "both"
    assert set(ids(hits)) == {"both", "vector", "words"}
    assert hits[0].score > hits[1].score
    assert None not in (hits[0].vector_score, hits[0].bm25_score)


def test_hybrid_makes_do_with_one_of_the_two(index: Index) -> None:
    index.upsert([item("one", "red fox"), item("two", "blue sea")])
    assert ids(index.search(text="fox")) == ["one"]
    assert ids(index.search(vector("red fox"), k=1)) == ["one"]
    assert index.search() == []


def test_upsert_replaces_by_id(index: Index) -> None:
    index.upsert([item("one", "red fox"), item("two", "tall tree")])
    index.upsert([item("one", "blue sea", path="new", type="t")])
    assert index.count() == 2
    assert worded(index, "fox") == []
    assert worded(index, "sea") == ["one"]
    assert near(index, "blue sea", 1) == ["one"]
    (hit,) = index.search(vector("red fox"), k=5, mode="vector", where=Where(paths=("new",)))
    assert hit.score == pytest.approx(float(vector("red fox") @ vector("blue sea")), abs=1e-5)


def test_of_equal_ids_in_one_call_the_last_one_counts(index: Index) -> None:
    index.upsert([item("one", "red fox"), item("one", "blue sea")])
    assert index.count() == 1
    assert worded(index, "fox sea") == ["one"]
    assert index.search(text="sea")[0].text == "blue sea"


def test_delete_by_id_and_by_filter(index: Index) -> None:
    index.upsert(item(f"i{n}", f"word{n} fox", path=f"p{n % 2}/f{n}") for n in range(10))
    assert index.delete(["i0", "unknown"]) == 1
    assert index.delete(where=Where(under="p1")) == 5
    assert index.delete() == 0
    assert index.count() == 4
    assert set(near(index, "fox")) == {"i2", "i4", "i6", "i8"}
    assert set(worded(index, "fox")) == {"i2", "i4", "i6", "i8"}


def test_replace_by_path_is_exact(index: Index) -> None:
    odd = ["a*.py", "ab.py", "a[b].py", "a.py/b", "a_.py", "A*.py"]
    index.upsert(item(path, "red fox", path=path) for path in odd)
    index.replace(["a*.py", "a[b].py"], [item("new", "blue sea", path="a*.py")])
    assert index.count() == 5
    assert worded(index, "sea") == ["new"]
    assert set(worded(index, "fox")) == {"ab.py", "a.py/b", "a_.py", "A*.py"}


def test_replace_by_nothing_removes(index: Index) -> None:
    index.upsert([item("one", path="p"), item("two", path="q")])
    index.replace(["p"], [])
    assert near(index, "one two") == ["two"]


FILTERS = [
    ({"paths": ("src/a.py",)}, {"a"}),
    ({"paths": ("src/a.py", "docs/d.md")}, {"a", "d"}),
    ({"under": "src"}, {"a", "b", "c"}),
    ({"under": "src/"}, {"a", "b", "c"}),
    ({"under": "src/deep"}, {"c"}),
    ({"under": "sr"}, set()),
    ({"glob": "*.py"}, {"a", "c", "e"}),
    ({"glob": "src/?.py"}, {"a"}),
    ({"glob": "src/[ab].*"}, {"a", "b"}),
    ({"types": ("function",)}, {"a", "c"}),
    ({"types": ("function", "section")}, {"a", "c", "d"}),
    ({"metadata": {"n": 1}}, {"a"}),
    ({"metadata": {"n": 1.0}}, {"a"}),
    ({"metadata": {"n": True}}, {"b"}),
    ({"metadata": {"n": False}}, set()),
    ({"metadata": {"n": "1"}}, {"c"}),
    ({"metadata": {"n": None}}, {"d"}),
    ({"metadata": {"n": 2.5, "who": "me"}}, {"e"}),
    ({"metadata": {"n": 2.5, "who": "you"}}, set()),
    ({"metadata": {"missing": None}}, set()),
    ({"metadata": {'a"b.c': "odd"}}, {"b"}),
    ({"under": "src", "types": ("function",), "metadata": {"n": 1}}, {"a"}),
    ({"glob": "*.py", "types": ("section",)}, set()),
]


@pytest.fixture(scope="module", params=KINDS)
def filtered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("filtered")
    with open_index(folder, DIMENSIONS, vectors=request.param) as index:
        index.upsert(
            [
                item("a", "red fox", "src/a.py", "function", n=1),
                item("b", "red fox b", "src/b.rs", "class", n=True, **{'a"b.c': "odd"}),
                item("c", "red fox c", "src/deep/c.py", "function", n="1"),
                item("d", "red fox d", "docs/d.md", "section", n=None),
                item("e", "red fox e", "src2/e.py", "class", n=2.5, who="me"),
            ]
        )
        yield index


@pytest.mark.parametrize(("where", "wanted"), FILTERS)
@pytest.mark.parametrize("mode", Mode)
def test_filter_holds_for_every_search(
    filtered: Index, where: dict[str, Any], wanted: set[str], mode: Mode
) -> None:
    only = Where(**where)
    assert set(ids(filtered.search(vector("red fox"), "fox", mode=mode, where=only))) == wanted
    assert filtered.count(only) == len(wanted)


def test_filter_finds_what_is_far_from_the_question(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More items match than can be sent with a query, and all others are nearer."""
    for module in ("chroma", "qdrant"):
        monkeypatch.setattr(f"penstock.vectors.{module}.FEW", 30)
    index.upsert(item(f"near{n}", "red fox", "near") for n in range(200))
    index.upsert(item(f"far{n}", "blue sea", "far") for n in range(50))
    found = near(index, "red fox", 5, paths=("far",))
    assert {name[:3] for name in found} == {"far"}
    assert len(found) == 5
    assert len(near(index, "red fox", 80, paths=("far",))) == 50
    assert len(near(index, "red fox", 20, paths=("near",))) == 20


def _at(path: str, place: int = 0, text: str = "") -> Item:
    text = text or f"words of {path}"
    about = {"place": place}
    return Item(f"{path}#{place}", vector(text), text, path, "text", "", about)


def test_move_gives_another_path_and_keeps_vectors(index: Index) -> None:
    index.upsert([_at("/a/x"), _at("/a/x", 1, "more"), _at("/a/sub/y"), _at("/ab"), _at("/b/x")])
    near(index, "more")
    assert index.move("/a", "/b", below=True) == 3
    assert index.paths() == ["/ab", "/b/sub/y", "/b/x"]
    assert near(index, "more")[0] == "/b/x#1"  # what was at /b/x is gone
    assert index.count() == 4
    assert index.move("/b/x", "/c") == 2
    assert index.paths(Where(paths=("/c",))) == ["/c"]
    assert worded(index, "more") == ["/c#1"]
    assert index.move("/b/x", "/c") == 0  # done twice, it changes nothing
    assert index.count() == 4


def test_metadata_of_paths_are_those_of_their_first_items(index: Index) -> None:
    index.upsert([_at("/a"), _at("/a", 1), _at("/b", 3)])
    assert index.metadata_at(["/b", "/a", "/missing"]) == {"/a": {"place": 0}, "/b": {"place": 3}}


def test_clear_removes_all_and_goes_on(index: Index) -> None:
    index.upsert([item("one", "red fox"), item("two", "blue sea")])
    assert near(index, "red fox", 1) == ["one"]
    index.clear()
    assert index.count() == 0
    assert near(index, "red fox") == worded(index, "fox") == []
    index.upsert([item("two", "tall tree")])
    assert near(index, "red fox") == ["two"]


def test_what_was_written_is_there_after_closing(opened: Open) -> None:
    first = opened()
    first.upsert([item("one", "red fox"), item("two", "blue sea")])
    first.delete(["two"])
    first.close()
    again = opened()
    assert near(again, "blue sea") == worded(again, "fox") == ["one"]
    again.upsert([item("three", "blue sea")])
    assert near(again, "blue sea") == ["three", "one"]


def test_index_for_other_vectors_is_refused(opened: Open) -> None:
    opened(fingerprint="one").close()
    with pytest.raises(ConfigurationError, match="was created for"):
        opened(fingerprint="two")
    with pytest.raises(ConfigurationError, match="was created for"):
        opened(fingerprint="one", dimensions=DIMENSIONS + 1)
    opened(fingerprint="one")


def test_indexes_in_different_folders_share_nothing(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    one.upsert([item("one", "red fox")])
    assert near(other, "red fox") == []


@pytest.mark.parametrize(
    "wrong", [np.zeros(DIMENSIONS + 1), np.zeros((1, DIMENSIONS)), np.full(DIMENSIONS, np.nan)]
)
def test_vector_that_does_not_fit_is_refused_and_nothing_is_written(
    index: Index, wrong: Any
) -> None:
    with pytest.raises(ValueError, match="the vector of item bad"):
        index.upsert([item("good"), Item("bad", wrong.astype(np.float32), "x")])
    with pytest.raises(ValueError, match="the vector of the query"):
        index.search(wrong.astype(np.float32))
    assert index.count() == 0


def test_name_that_is_no_text_is_refused(index: Index) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        index.upsert([item("good"), item("bad", "x", path="\udcff.py")])
    assert index.count() == 0


def test_text_that_is_no_text_is_kept_as_far_as_it_goes(index: Index) -> None:
    index.upsert([item("one", "red \ud800 fox \x00 end", odd="\ud800")])
    assert worded(index, "fox") == worded(index, "red") == ["one"]


def test_metadata_that_are_no_json_are_refused_and_nothing_is_written(index: Index) -> None:
    with pytest.raises(TypeError):
        index.upsert([item("good"), item("bad", odd=object())])
    assert index.count() == 0
    assert near(index, "good") == []


def test_text_without_words_can_be_kept(index: Index) -> None:
    index.upsert([item("empty", " "), item("one", "red fox")])
    assert near(index, "red fox", 1) == ["one"]
    assert index.count() == 2


def test_closed_index_says_so(index: Index) -> None:
    index.close()
    index.close()
    with pytest.raises(IndexUnavailable, match="is closed"):
        index.count()


def test_many_threads_write_and_search_at_once(index: Index) -> None:
    """Each thread has ids of its own, so that it knows what it must find, and takes some away."""
    threads, rounds = 6, 12
    problems: list[BaseException] = []

    def work(me: int) -> None:
        chance = random.Random(me)
        try:
            for turn in range(rounds):
                index.upsert(
                    item(f"{me}-{turn}-{n}", f"thread{me} turn{turn} n{n}", f"{me}/{turn}")
                    for n in range(5)
                )
                name = f"{me}-{turn}-{chance.randrange(5)}"
                text = "thread{} turn{} n{}".format(*name.split("-"))
                found = index.search(vector(text), text, k=10, where=Where(under=str(me)))
                assert name in ids(found)
                if turn % 3 == 2:
                    assert index.delete(where=Where(paths=(f"{me}/{turn - 1}",))) == 5
                    gone = index.search(vector(text), k=50, where=Where(under=str(me)))
                    assert not {i for i in ids(gone) if i.startswith(f"{me}-{turn - 1}-")}
        except BaseException as error:  # noqa: BLE001 - the test shall see it
            problems.append(error)

    running = [threading.Thread(target=work, args=(me,)) for me in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert problems == []
    left = threads * (rounds - rounds // 3) * 5
    assert index.count() == left
    everything = index.search(vector("thread1"), k=10 * left, mode="vector")
    assert len(set(ids(everything))) == len(everything) == left


def test_random_history_is_what_a_dictionary_says(index: Index) -> None:
    chance = random.Random(7)
    kept: dict[str, str] = {}
    words = ["red", "fox", "blue", "sea", "tall", "tree", "slow", "boat"]
    for _ in range(60):
        name, text = f"i{chance.randrange(12)}", " ".join(chance.sample(words, 3))
        match chance.randrange(5):
            case 0 | 1 | 2:
                index.upsert([item(name, text, path=name)])
                kept[name] = text
            case 3:
                assert index.delete([name]) == (kept.pop(name, None) is not None)
            case 4:
                assert set(near(index, text, 50)) == set(kept)
                word = chance.choice(words)
                assert set(worded(index, word, 50)) == {n for n, t in kept.items() if word in t}
    assert index.count() == len(kept)
    exact = sorted(kept, key=lambda n: (-float(vector("red fox") @ vector(kept[n])), n))
    scores = {n: float(vector("red fox") @ vector(kept[n])) for n in kept}
    found = near(index, "red fox", 50)
    assert [round(scores[n], 4) for n in found] == [round(scores[n], 4) for n in exact]


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexUnavailable):
        open_index(tmp_path / "file" / "index", DIMENSIONS)


def test_thread_of_an_index_ends_with_it(tmp_path: Path) -> None:
    def mine() -> list[str]:
        return [
            t.name for t in threading.enumerate() if t.name.startswith(f"index {tmp_path.name}")
        ]

    with open_index(tmp_path, DIMENSIONS) as index:
        index.count()
        assert len(mine()) == 1
    assert mine() == []
    (tmp_path / "catalogue.db").write_bytes(b"x" * 5000)
    with pytest.raises(IndexUnavailable):
        open_index(tmp_path, DIMENSIONS)
    assert mine() == []

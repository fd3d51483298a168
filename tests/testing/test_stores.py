import asyncio
from pathlib import Path

import pytest

from penstock import ConfigurationError, Penstock, run_sync
from penstock.testing import Clock, drain, enqueued, faulty, fresh
from tests.contract.support import HOUR


@pytest.fixture
def shop(tmp_path: Path) -> Penstock:
    """A program's own app, on a file that no test may touch."""
    app = Penstock(f"sqlite:///{tmp_path}/precious.db")
    app.task("buy", lambda what: None)
    return app


def buy(app: Penstock, what: str) -> None:
    run_sync(app.enqueue("buy", {"what": what}))


def bought(app: Penstock) -> list[str]:
    return [job.args["what"] for job in enqueued(app, "buy")]


def test_own_store_is_not_even_opened(shop: Penstock, tmp_path: Path) -> None:
    with fresh(shop) as app:
        assert app is shop
        buy(shop, "milk")
        assert bought(shop) == ["milk"]
    assert list(tmp_path.iterdir()) == []


def test_app_is_back_afterwards(shop: Penstock, tmp_path: Path) -> None:
    buy(shop, "bread")
    url, clock = shop.url, shop.clock

    def test() -> None:
        with fresh(shop):
            assert shop.clock is not clock
            assert bought(shop) == []
            buy(shop, "milk")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        test()
    assert bought(shop) == ["bread"]
    assert (shop.url, shop.clock) == (url, clock)
    run_sync(shop.close())


def test_each_block_begins_empty_and_blocks_nest(shop: Penstock) -> None:
    with fresh(shop):
        buy(shop, "milk")
        with fresh(shop):
            assert bought(shop) == []
        assert bought(shop) == ["milk"]
    with fresh(shop):
        assert bought(shop) == []


def test_sqlite_file_of_the_test(shop: Penstock, tmp_path: Path) -> None:
    with fresh(shop, url=f"sqlite:///{tmp_path}/test.db"):
        buy(shop, "milk")
        assert (tmp_path / "test.db").exists()
        assert drain(shop)
    again = Penstock(f"sqlite:///{tmp_path}/test.db")
    assert bought(again) == ["milk"]
    run_sync(again.close())


def test_closing_the_app_inside_loses_nothing(shop: Penstock) -> None:
    """A program that is tested closes its app when it ends."""
    with fresh(shop):
        buy(shop, "milk")
        run_sync(shop.close())
        assert bought(shop) == ["milk"]


async def test_in_an_event_loop(shop: Penstock) -> None:
    with fresh(shop):
        async with shop:
            await shop.enqueue("buy", {"what": "milk"})
        assert bought(shop) == ["milk"]


def test_apps_of_one_store_share_one_and_others_do_not(shop: Penstock) -> None:
    producer, apart, alone, lonely = (
        Penstock(shop.url),
        Penstock(shop.url + "2"),
        Penstock("memory://"),
        Penstock("memory://"),
    )
    with fresh(shop, producer, apart, alone, lonely):
        buy(shop, "milk")
        assert bought(producer) == ["milk"]
        assert bought(apart) == bought(alone) == bought(lonely) == []
        assert len({id(app.clock) for app in (shop, producer, apart, alone)}) == 1
        alone.task("buy", lambda what: None)
        buy(alone, "tea")
        assert bought(lonely) == []


def test_several_stores_need_several_urls(shop: Penstock, tmp_path: Path) -> None:
    other = Penstock("memory://")
    with (
        pytest.raises(ConfigurationError, match=r"add \{n\} to"),
        fresh(shop, other, url="x://"),
    ):
        pass
    with fresh(shop, other, url=f"sqlite:///{tmp_path}/test-{{n}}.db"):
        buy(shop, "milk")
        assert bought(other) == []
    assert {path.name for path in tmp_path.glob("*.db")} == {"test-1.db", "test-2.db"}


def test_needs_an_app() -> None:
    with pytest.raises(ConfigurationError, match="takes the apps"), fresh():
        pass


def test_clock_of_the_test(shop: Penstock) -> None:
    clock = Clock()
    with fresh(shop, clock=clock):
        run_sync(shop.enqueue("buy", {"what": "milk"}, delay=HOUR))
        assert drain(shop) == []
        clock.advance(HOUR)
        assert len(drain(shop)) == 1


def test_an_app_is_back_after_faults_too(app: Penstock) -> None:
    store = app.store
    with faulty(app):
        assert app.store is not store
        run_sync(app.close())
    assert app.store is store
    assert run_sync(app.count()) == {}


def test_a_test_that_is_cancelled_leaves_the_app_as_it_was(shop: Penstock) -> None:
    url = shop.url

    async def test() -> None:
        with fresh(shop):
            asyncio.current_task().cancel()  # type: ignore[union-attr] # there is one
            await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(test())
    assert shop.url == url

import asyncio

from msgspec.structs import replace

from penstock.core.store import Store
from penstock.core.tokens import Access, Token, digest_of
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import HOUR, ManualClock
from tests.environment import SOON

LONG = 60.0


def token(clock: ManualClock, name: str = "ci") -> Token:
    return Token(
        name=name,
        digest=digest_of(name),
        scopes=frozenset({Access.PUBLISH, Access.READ}),
        created_at=clock.now,
    )


async def test_tokens_come_back_as_they_were_stored_by_name(
    store: Store, clock: ManualClock
) -> None:
    ending = replace(token(clock, "b ö"), expires_at=clock.now + HOUR)
    assert await store.tokens() == []
    assert await store.add_token(ending)
    assert await store.add_token(token(clock, "a"))
    assert await store.tokens() == [token(clock, "a"), ending]


async def test_name_is_given_once(store: Store, clock: ManualClock) -> None:
    assert await store.add_token(token(clock))
    assert not await store.add_token(replace(token(clock), digest="another"))
    assert await store.tokens() == [token(clock)]


async def test_one_of_many_tokens_gets_the_name(store: Store, clock: ManualClock) -> None:
    wanted = [replace(token(clock), digest=str(n)) for n in range(5)]
    added = await asyncio.gather(*map(store.add_token, wanted))
    assert added.count(True) == 1
    assert await store.tokens() == [wanted[added.index(True)]]


async def test_dropped_token_is_gone_and_its_name_free(store: Store, clock: ManualClock) -> None:
    await store.add_token(token(clock))
    await store.add_token(token(clock, "other"))
    assert await store.drop_token("ci")
    assert await store.tokens() == [token(clock, "other")]
    assert not await store.drop_token("ci")
    assert await store.add_token(token(clock))


async def test_token_that_comes_or_goes_ends_the_wait(store: Store, clock: ManualClock) -> None:
    seen = await store.wait(-1, 0)
    await store.add_token(token(clock))
    later = await store.wait(seen, 0)
    assert later != seen
    await store.drop_token("ci")
    assert await store.wait(later, 0) != later


async def test_what_changes_no_token_wakes_nobody(store: Store, clock: ManualClock) -> None:
    await store.add_token(token(clock))
    seen = await store.wait(-1, 0)
    await store.add_token(token(clock))
    await store.drop_token("unknown")
    assert await store.wait(seen, 0) == seen


async def test_other_openers_see_tokens_and_hear_of_them(
    shared_url: str, clock: ManualClock
) -> None:
    one, other = (
        open_store(shared_url, runtime=Runtime(clock)),
        open_store(shared_url, runtime=Runtime(clock)),
    )
    seen = await one.wait(-1, 0)
    for change in (other.add_token(token(clock)), other.drop_token("ci")):
        waiting = asyncio.create_task(one.wait(seen, LONG))
        await change
        async with asyncio.timeout(SOON):
            seen = await waiting
        assert await one.tokens() == await other.tokens()
    await one.close()
    await other.close()

import pytest

from penstock.core.job import LogId
from penstock.core.lifecycle import Done, Expired, State, advance
from penstock.core.transition import Change, is_outdated
from tests.core.support import NOW, SECOND, job

RUNNING = job(state=State.RUNNING, version=LogId(5), attempt=1, worker="w", expires_at=NOW)


@pytest.mark.parametrize("version", [None, 4, 6])
def test_job_with_another_version_is_another_job(version: int | None) -> None:
    done = Change(RUNNING, advance(RUNNING, Done()))
    assert is_outdated(done, version, NOW, NOW)
    assert not is_outdated(done, 5, NOW + SECOND, NOW)


def test_renewed_lease_has_not_expired() -> None:
    expired = Change(RUNNING, advance(RUNNING, Expired()))
    assert not is_outdated(expired, 5, NOW, NOW)
    assert is_outdated(expired, 5, NOW + SECOND, NOW)
    assert not is_outdated(expired, 5, 10, 10)
    assert is_outdated(expired, 5, 11, 10)

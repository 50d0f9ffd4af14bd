"""The process of a handler dies by SIGKILL, or sleeps through its lease: its key is not free, it is reconciled."""

import signal
import time

import httpx2
import psycopg
import pytest

from endpoint_shop import Shop, running

LEASE = 1.0


def dies(shop: Shop, asked: dict[str, object]) -> None:
    with pytest.raises(httpx2.TransportError):
        shop.post(asked)
    assert shop.process.status(10) == -signal.SIGKILL


def past_its_lease(shop: Shop) -> None:
    time.sleep(LEASE + 0.2)
    assert shop.state() == "running"


def test_killed_after_its_effect_the_answer_is_found_after_the_restart(database_url: str) -> None:
    """Until its lease is over, the repeat is told that it is in flight."""
    asked: dict[str, object] = {"after": "kill"}
    with running(database_url, lease=3.0) as first, running(database_url, wait=0.3) as second:
        second.key = first.key
        dies(first, asked)
        assert second.post(asked).json()["code"] == "idempotency_key_in_use"
        time.sleep(3.2)
        assert second.state() == "running"
        answers = second.at_once(8, asked)
        assert {answer.json()["receipt"] for answer in answers} == set(second.effects())
        with running(database_url) as third:
            assert third.post(asked, key=first.key).json()["receipt"] == third.effects(first.key)[0]
        assert len(second.effects()) == 1


def test_a_repeat_that_waits_is_there_when_the_lease_ends(database_url: str) -> None:
    asked: dict[str, object] = {"after": "kill"}
    with running(database_url, lease=LEASE) as first:
        dies(first, asked)
        with running(database_url, lease=LEASE, wait=5.0) as second:
            second.key = first.key
            assert second.post(asked).json()["receipt"] == second.effects()[0]


def test_killed_before_its_effect_one_of_eight_repeats_runs_it(database_url: str) -> None:
    """The shop looks for the effect first, and finds none."""
    asked: dict[str, object] = {"before": "kill", "takes": 0.2}
    with running(database_url, lease=LEASE) as first, running(database_url, wait=5, mortal=0) as second:
        second.key = first.key
        dies(first, asked)
        answers = second.at_once(8, asked)
        assert len(second.effects()) == 1
        assert {answer.json()["receipt"] for answer in answers} == set(second.effects())
        assert sum("idempotency-replayed" in answer.headers for answer in answers) == 7


@pytest.mark.parametrize(
    ("reconcile", "says"),
    [
        ("cannot", "till is closed"),
        pytest.param("none", "did not come to an end", marks=pytest.mark.deep),
        pytest.param("fails", "RuntimeError", marks=pytest.mark.deep),
    ],
)
def test_while_nobody_can_tell_nobody_acts(database_url: str, reconcile: str, says: str) -> None:
    asked: dict[str, object] = {"before": "kill"}
    with running(database_url, lease=LEASE) as first:
        dies(first, asked)
        past_its_lease(first)
        with running(database_url, lease=LEASE, reconcile=reconcile) as second:
            second.key = first.key
            for _ in range(3):
                answer = second.post(asked)
                assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_unresolved")
                assert int(answer.headers["retry-after"]) >= 1
            assert second.state() == "unknown"
            time.sleep(1.2)
            assert says in second.post(asked).json()["detail"]
            assert second.effects() == []
        with running(database_url, mortal=0) as third:  # one that can tell, when it may be asked again
            time.sleep(1.1)
            assert third.post(asked, key=first.key).json()["receipt"] == third.effects(first.key)[0]


def test_done_is_answered_after_a_restart(database_url: str) -> None:
    with running(database_url) as first:
        told = first.post().json()
        key = first.key
    with running(database_url, reconcile="none") as second:
        answer = second.post(key=key)
        assert (answer.json(), answer.headers["idempotency-replayed"]) == (told, "true")


def test_a_frozen_handler_that_wakes_up_changes_nothing_that_was_recorded(database_url: str) -> None:
    """It froze after its effect; a second process told of that effect meanwhile."""
    asked: dict[str, object] = {"after": "freeze"}
    with running(database_url, lease=LEASE) as first, running(database_url, lease=LEASE) as second:
        second.key = first.key
        with pytest.raises(httpx2.ReadTimeout):
            first.post(asked, timeout=1.0)
        past_its_lease(second)
        told = second.post(asked)
        with psycopg.connect(database_url) as connection:
            before = connection.execute("SELECT * FROM settled.endpoint_keys").fetchall()
        first.wake()
        time.sleep(0.5)
        assert first.post(asked).json() == told.json()
        with psycopg.connect(database_url) as connection:
            assert connection.execute("SELECT * FROM settled.endpoint_keys").fetchall() == before
        assert len(first.effects()) == 1


def test_a_frozen_transaction_that_wakes_up_is_rolled_back(database_url: str) -> None:
    """Effect and answer in one commit: what was taken for dead cannot come to an effect any more."""
    asked: dict[str, object] = {"in_one_commit": True, "holds": 1.5}
    with running(database_url, lease=LEASE) as first, running(database_url, lease=LEASE) as second:
        second.key = first.key
        with pytest.raises(httpx2.ReadTimeout):
            first.post(asked, timeout=0.5)
        first.process.freeze()
        past_its_lease(second)
        told = second.post(asked, timeout=10)
        assert told.status_code == 201
        first.wake()
        second.wait_for_transactions()
        assert second.effects() == [told.json()["receipt"]]
        assert first.post(asked).json() == {"receipt": told.json()["receipt"]}

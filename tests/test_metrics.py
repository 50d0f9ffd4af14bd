"""What a scraper reads are the ledger's own numbers, and a ledger that is away is told."""

import re
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from acts import Remote, opened, rows
from browsing import serving, token
from settled import Ended, Ledger, Message, Unknown, action, always, perform
from settled.runtime.metrics import page
from settled.state import work
from settled.state.tokens import Role

LABELS = ("tenant", "tool", "state", "topic")


def scraped(ledger: Ledger) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and its labels' values."""
    families = text_string_to_metric_families(page(ledger).decode())
    samples = [sample for family in families for sample in family.samples]
    return {(one.name, *[one.labels[name] for name in LABELS if name in one.labels]): one.value for one in samples}


def emits(done: object) -> Message:
    return Message("paid")


def act(ledger: Ledger) -> None:
    """One action succeeds with a message, one waits for a person, one nobody can tell about."""
    remote = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), emits=emits)
    def pay(order: str) -> object:
        return remote.do(order=order)

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=always)
    def ask(order: str) -> object:
        return remote.do(order=order)

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def lose(order: str) -> object:
        raise Ended(Unknown("no answer"))

    for tool in (pay, ask, lose):
        perform(tool, ["A-1"], ledger=ledger, thread_id="t")


@pytest.mark.parametrize("swept", [False, True], ids=["no worker yet", "noted by a worker"])
def test_what_is_open_is_counted(ledger: Ledger, swept: bool) -> None:
    """Whether a worker has read the ledger already or not; what is settled counts among the recent ones alone."""
    act(ledger)
    if swept:
        work.on(ledger).run(work.sweep("new", most=100, grace_s=2, most_s=60))
    found = scraped(ledger)
    assert found["settled_up",] == 1
    assert found["settled_open_actions", "default", "ask", "planned"] == 1
    assert found["settled_open_actions", "default", "lose", "unknown"] == 1
    assert ("settled_open_actions", "default", "pay", "succeeded") not in found
    assert found["settled_manual_queue", "default", "lose"] == 1
    assert ("settled_manual_queue", "default", "ask") not in found
    assert found["settled_recent_actions", "default", "pay", "succeeded"] == 1
    assert found["settled_recent_attempts", "default", "ask", "planned"] == 0
    assert found["settled_open_approvals", "default"] == 1
    assert found["settled_outbox_waiting", "default", "paid"] == 1
    assert found["settled_dead_letters", "default", "paid"] == 0
    assert 0 < found["settled_manual_queue_oldest_seconds", "default", "lose"] < 60
    assert 0 < found["settled_outbox_oldest_seconds", "default", "paid"] < 60


def test_ages_are_those_of_the_ledger(ledger: Ledger) -> None:
    """By the database's clock, whatever this process thinks the time is."""
    act(ledger)
    clock = rows(ledger.url, "SELECT settled.now() AS now")[0]["now"]
    with opened(ledger.url, clock=lambda: clock + timedelta(hours=1)) as later:
        found = scraped(later)
    assert found["settled_open_actions_oldest_seconds", "default", "lose", "unknown"] == pytest.approx(3600, abs=60)
    assert found["settled_open_approvals_oldest_seconds", "default"] == pytest.approx(3600, abs=60)


def test_hostile_names_stay_labels(ledger: Ledger) -> None:
    """A tenant is a text of the host's; quotes and braces in it end no line."""
    tenant = 'x"} 1\\'
    remote = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=always)
    def ask(order: str) -> object:
        return remote.do(order=order)

    perform(ask, ["A-1"], ledger=ledger, thread_id="t", tenant=tenant)
    assert scraped(ledger)["settled_open_actions", tenant, "ask", "planned"] == 1


def test_a_ledger_that_is_away_is_told(database_url: str) -> None:
    """The page comes all the same, so that its absence is not mistaken for that of the process."""
    with opened(database_url, patience_s=0.2) as ledger:
        ledger.close()
        assert scraped(ledger) == {("settled_up",): 0}


def test_the_dashboard_asks_for_metrics_that_there_are(ledger: Ledger) -> None:
    """docs/grafana.json: a metric that was renamed would be a panel without data."""
    dashboard = (Path(__file__).parent.parent / "docs" / "grafana.json").read_text()
    asked = set(re.findall(r"settled_[a-z_]+", dashboard))
    known = set(re.findall(r"^# TYPE (\S+)", page(ledger).decode(), re.MULTILINE))
    assert len(asked) > 10
    assert asked - known == {"settled_ledger_behind_seconds"}  # which is there once a worker has read the ledger


def test_a_server_counts_for_an_operator_and_his_tenant_alone(ledger: Ledger) -> None:
    """A scraper shows a token; what another tenant has does not exist for it."""
    act(ledger)
    with serving(ledger) as url:
        assert httpx.get(f"{url}/metrics").status_code == 401
        viewer = {"authorization": f"Bearer {token(ledger, 'vera', Role.VIEWER)}"}
        assert httpx.get(f"{url}/metrics", headers=viewer).status_code == 403
        mine = {"authorization": f"Bearer {token(ledger)}"}
        answer = httpx.get(f"{url}/metrics", headers=mine)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'settled_manual_queue{tenant="default",tool="lose"} 1.0' in answer.text
        others = {"authorization": f"Bearer {token(ledger, 'otto', tenant='other')}"}
        assert "default" not in httpx.get(f"{url}/metrics", headers=others).text

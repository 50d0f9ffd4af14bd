"""`settled chains` and `settled actions compensate`: where each step stands and why, and what a person says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chain_shop import FORWARD, INPUT, Counter, order_chain, raising, shop_tools
from settled import AlreadyDecided, Ended, InvalidArguments, Ledger, NotFound, Rejected, always
from settled.runtime import cli
from settled.tools.chain_desk import ChainDesk

FAR = Counter()
order = order_chain(FAR, on_failure="stop")
tools = [*shop_tools(FAR).values()]


@pytest.fixture(autouse=True)
def _empty() -> None:
    """The module's far side, for the commands that import it by name, begins anew with each test."""
    FAR.effects.clear()
    FAR.faults.clear()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ledger: Ledger) -> Any:
    """Return what a command prints, and its exit code."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["settled", *words, "--database-url", ledger.url])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return run


def stopped(ledger: Ledger, what: str = "pay") -> Any:
    FAR.faults[what] = raising(Ended(Rejected("card declined")))
    end = order.run(INPUT, ledger=ledger, thread_id="t")
    FAR.faults.clear()
    return end


def test_list_and_show_say_where_it_stands_and_why(said: Any, ledger: Ledger) -> None:
    """Per step: its state, action, receipt and reason; as a page and as JSON."""
    end = stopped(ledger)
    code, page = said("chains", "list")
    assert code == 0
    for word in (end.chain_id, "stopped", "pay", "order (coupon C-1, order O-1)"):
        assert word in page
    code, page = said("chains", "show", end.chain_id)
    for word in ("card declined", "rejected", "R-1", "no way back", end["deduct_coupon"].action_id):
        assert word in page
    code, text = said("chains", "show", end.chain_id, "--json")
    record = json.loads(text)
    assert [step["state"] for step in record["steps"]] == ["done", "done", "failed", "to_do"]
    assert record["irreversible"] == ["ship"]


def test_list_by_state_and_thread(said: Any, ledger: Ledger) -> None:
    """A state is worked out when it is asked for: what a person has done since counts."""
    end = stopped(ledger)
    order.run(INPUT, ledger=ledger, thread_id="u")

    def ids(*words: str) -> list[str]:
        return [one["chain_id"] for one in json.loads(said("chains", "list", "--json", *words)[1])]

    assert ids("--state", "stopped") == [end.chain_id]
    assert len(ids("--state", "succeeded")) == 1
    assert ids("--thread", "t") == [end.chain_id]
    assert ids("--state", "waiting") == []
    assert ids("--tenant", "acme") == []
    assert said("chains", "list", "--state", "lost")[0] == 2


def test_a_step_is_finished_by_hand_after_it_was_foretold(said: Any, ledger: Ledger) -> None:
    """Without the fingerprint nothing is written; with it the step is done by that person, and the run goes on."""
    end = stopped(ledger)
    words = (
        "chains",
        "finish-step",
        end.chain_id,
        "pay",
        "--by",
        "mia",
        "--receipt",
        "CASH-7",
        "--note",
        "paid in cash",
    )
    code, page = said(*words)
    assert (code, order.run(INPUT, ledger=ledger, thread_id="t").state) == (2, "stopped")
    assert "by the word of mia" in page
    (command,) = (line for line in page.splitlines() if line.startswith("settled chains finish-step"))
    fingerprint = command.rsplit(" ", 1)[1]
    code, page = said(*words, "--fingerprint", fingerprint)
    assert (code, "by mia" in page, "in cash" in page) == (0, True, True)
    done = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (done.state, done.receipts["pay"], FAR.done) == ("succeeded", "CASH-7", ["deduct_coupon", "ship"])
    assert "pay (receipt CASH-7)" in done.message
    code, page = said(*words, "--fingerprint", fingerprint)
    assert (code, "is over" in page) == (1, True)


def test_another_runs_fingerprint_is_refused(said: Any, ledger: Ledger) -> None:
    """What was shown is what is decided, or nothing is."""
    end = stopped(ledger)
    words = ("chains", "finish-step", end.chain_id, "pay", "--by", "mia", "--fingerprint", "sha256:" + "0" * 64)
    code, page = said(*words)
    assert (code, "is not that of" in page) == (1, True)
    assert order.run(INPUT, ledger=ledger, thread_id="t").state == "stopped"


def test_retry_carries_a_run_on(said: Any, ledger: Ledger) -> None:
    """With the module of the chain: the first step that is not done, in this process."""
    end = stopped(ledger)
    ChainDesk(ledger).finish(str(end.chain_id), "pay", by="mia")
    words = ("chains", "retry", end.chain_id, "--tools", "test_chain_commands:order")
    code, _ = said(*words)
    assert (code, FAR.done) == (2, ["deduct_coupon"])
    here = sys.modules[__name__]
    sys.modules.setdefault("test_chain_commands", here)
    code, page = said(*words, "--fingerprint", ledger_fingerprint(ledger, end.chain_id), "--json")
    assert code == 0
    assert json.loads(page)["chain"]["state"] == "succeeded"
    assert FAR.done == ["deduct_coupon", "ship"]
    code, page = said("chains", "retry", end.chain_id, "--tools", "json")
    assert (code, "no chain named order" in page) == (2, True)


def ledger_fingerprint(ledger: Ledger, chain_id: str) -> str:
    return ChainDesk(ledger).show(chain_id).chain.fingerprint


def test_actions_compensate_is_foretold_and_done(said: Any, ledger: Ledger) -> None:
    """The action that undoes it is run; `show` links the two both ways."""
    done = order.run(INPUT, ledger=ledger, thread_id="t")
    pay = ledger.action(str(done["pay"].action_id))
    words = (
        "actions",
        "compensate",
        pay.id,
        "--by",
        "mia",
        "--note",
        "sent back",
        "--tools",
        "test_chain_commands:tools",
    )
    code, page = said(*words)
    assert (code, FAR.done) == (2, list(FORWARD))
    assert "stays in effect until that action has succeeded" in page
    code, page = said(*words, "--fingerprint", pay.fingerprint)
    assert (code, "has been undone by act-" in page, FAR.done[-1]) == (0, True, "refund")
    undone = ledger.action(pay.id)
    assert undone.state == "compensated"
    _, page = said("actions", "show", pay.id)
    assert any(line.split() == ["undone", "by", undone.compensated_by] for line in page.splitlines())
    _, text = said("actions", "show", str(undone.compensated_by), "--json")
    assert json.loads(text)["compensates"] == pay.id
    _, text = said("actions", "show", pay.id, "--json")
    assert json.loads(text)["compensated_by"] == undone.compensated_by
    code, page = said(*words)
    assert (code, "there is nothing to undo" in page) == (1, True)


def test_actions_undone_is_the_word_of_a_person_where_an_action_could_not(said: Any, ledger: Ledger) -> None:
    """The refund was declined: somebody pays it out by hand, and says so; the payment counts as undone."""
    done = order.run(INPUT, ledger=ledger, thread_id="t")
    pay = ledger.action(str(done["pay"].action_id))
    FAR.faults["refund"] = raising(Ended(Rejected("the card is gone")))
    shown = ("--by", "mia", "--fingerprint", pay.fingerprint)
    code, page = said("actions", "undone", pay.id, *shown)
    assert (code, "nobody has begun to undo it" in page) == (1, True)
    said("actions", "compensate", pay.id, "--tools", "test_chain_commands:tools", *shown)
    code, page = said("actions", "undone", pay.id, "--by", "mia")
    assert (code, "by your word" in page, ledger.action(pay.id).state) == (2, True, "compensation_pending")
    code, page = said("actions", "undone", pay.id, *shown, "--note", "in cash")
    assert (code, "by the word of a person" in page, ledger.action(pay.id).state) == (0, True, "compensated")
    last = ledger.timeline(pay.id)[-1]
    assert (last.trigger, last.actor, last.detail) == ("compensated", "mia", {"by_hand": True, "note": "in cash"})


def test_what_a_person_may_not_say_is_refused_with_the_reason(ledger: Ledger) -> None:
    """Each with the way on: a step that may have happened is resolved, one that waits is decided."""
    desk = ChainDesk(ledger)
    end = stopped(ledger)
    chain_id = str(end.chain_id)
    with pytest.raises(InvalidArguments, match="pay comes first"):
        desk.finish(chain_id, "ship", by="mia")
    with pytest.raises(AlreadyDecided, match="the step deduct_coupon is done"):
        desk.finish(chain_id, "deduct_coupon", by="mia")
    with pytest.raises(NotFound, match="has no step 'fly'; it has verify_coupon"):
        desk.finish(chain_id, "fly", by="mia")
    with pytest.raises(NotFound):
        ChainDesk(ledger, tenant="acme").finish(chain_id, "pay", by="mia")
    for wrong in ({"receipt": 5}, {"note": b"x"}):
        with pytest.raises(InvalidArguments, match="must be a text"):
            desk.finish(chain_id, "pay", by="mia", **wrong)
    with pytest.raises(InvalidArguments, match="by"):
        desk.finish(chain_id, "pay", by=" ")
    with pytest.raises(AlreadyDecided, match="nothing of it is to be undone by hand"):
        desk.undone(chain_id, "deduct_coupon", by="mia")
    far = Counter(faults={"pay, answered": raising(TimeoutError())})
    unknown = order_chain(far, contracts={"pay": {"query": None, "remote": "opaque"}}).run(
        INPUT, ledger=ledger, thread_id="u"
    )
    with pytest.raises(AlreadyDecided, match="may have happened: resolve act-"):
        desk.finish(str(unknown.chain_id), "pay", by="mia")
    waits = order_chain(far, contracts={"pay": {"approval": always}}).run(INPUT, ledger=ledger, thread_id="v")
    with pytest.raises(AlreadyDecided, match="deny or withdraw act-"):
        desk.finish(str(waits.chain_id), "pay", by="mia")


async def test_the_desk_in_an_event_loop(ledger: Ledger) -> None:
    """As the sync one."""
    end = stopped(ledger)
    desk = ChainDesk(ledger)
    now = await desk.afinish(str(end.chain_id), "pay", by="mia", result={"receipt": "X-1"}, receipt="X-1")
    assert (now.state, now.of("pay").by) == ("running", "mia")  # type: ignore[union-attr]
    assert [one.chain.id for one in await desk.aruns(thread_id="t")] == [end.chain_id]
    assert (await desk.ashow(str(end.chain_id))).chain.id == end.chain_id


def test_hostile_text_is_inert(said: Any, ledger: Ledger, tmp_path: Path) -> None:
    """Markup and control characters of an input or a reason move no terminal."""
    FAR.faults["pay"] = raising(Ended(Rejected("\x1b[31m[red]no[/red]")))
    end = order.run({**INPUT, "order": "\x1b[2J[bold]O[/bold]"}, ledger=ledger, thread_id="t")
    for words in (("chains", "list"), ("chains", "show", end.chain_id), ("chains", "show", end.chain_id, "--json")):
        assert "\x1b" not in said(*words)[1]
    assert "[red]no[/red]" in said("chains", "show", end.chain_id)[1]

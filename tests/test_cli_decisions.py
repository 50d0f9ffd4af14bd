"""What a person decides from a terminal: nothing is written before it was shown, and what was shown is what is done."""

import io
import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer.testing import CliRunner, Result

from acts import states, triggers_of
from settled import (
    Code,
    Desk,
    Ledger,
    Outcome,
    Reject,
    Secret,
    Unknown,
    action,
    always,
    over,
    perform,
)
from settled.runtime.cli import app, main
from settled.state.secrets import HIDDEN
from settled.tools.contract import ActionTool
from unknowing import mail, pay

FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
HERE = "test_cli_decisions"
WRONG = f"sha256:{'0' * 64}"


@action(
    risk="non_idempotent_write",
    identity=("order_id",),
    summary="refund of {amount} for order {order_id}",
    approval=over("amount", 100, approvers=("supervisor", "bob"), four_eyes=True),
)
def refund(order_id: str, amount: float) -> dict[str, Any]:
    """Refund an order."""
    return {"receipt": f"RF-{order_id}"}


@action(risk="non_idempotent_write", identity=("card",), summary="charge {card}", approval=always)
def charge(card: Annotated[str, Secret()], amount: int) -> dict[str, Any]:
    """Charge a card."""
    return {"receipt": "C-1"}


@action(risk="non_idempotent_write", identity=("order_id",), summary="ship {order_id}")
def ship(order_id: str, boxes: int = 1) -> dict[str, Any]:
    """Ship an order; who may have it done is the agent's business."""
    return {"receipt": "S-1"}


TOOLS = [refund, pay]


def more_tools() -> list[ActionTool]:
    return TOOLS


def run(ledger: Ledger, *arguments: str, columns: int = 140) -> Result:
    environment = {"SETTLED_DATABASE_URL": ledger.url, "COLUMNS": str(columns), "SETTLED_SECRET_KEY": FERNET}
    return CliRunner().invoke(app, ["actions", *arguments], env=environment)


def as_json(ledger: Ledger, *arguments: str, code: int = 0) -> Any:
    result = run(ledger, *arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def process(ledger: Ledger, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, with the tools of this file at hand: its own `main`, so that an error is what it
    is there. In a process of its own only where the folder counts: that takes a second.
    """
    environment = {"SETTLED_DATABASE_URL": ledger.url, "SETTLED_SECRET_KEY": FERNET}
    if cwd is not None:
        command = [sys.executable, "-c", "from settled.runtime.cli import main; main()", "actions", *arguments]
        environment |= {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["settled", "actions", *arguments])
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def asked(ledger: Ledger, tool: object = refund, **arguments: object) -> Outcome:
    """Ask for something that waits for a person."""
    given = arguments or {"order_id": "A-1", "amount": 118.5}
    outcome = perform(tool, given, ledger=ledger, thread_id="t-1", requester="alice")
    assert outcome.code is Code.WAITING_FOR_APPROVAL
    return outcome


def id_of(outcome: Outcome) -> str:
    assert outcome.action_id is not None
    return outcome.action_id


def printed(ledger: Ledger, outcome: Outcome) -> str:
    """Return an action's fingerprint."""
    return ledger.action(id_of(outcome)).fingerprint


def unknown(ledger: Ledger, tool: object = mail, **arguments: object) -> Outcome:
    """Do something of which nobody knows what became of it."""
    given = arguments or {"to": "alice"}
    outcome = perform(tool, given, ledger=ledger, thread_id="t-1", requester="alice")
    assert outcome.code is Code.MANUAL_REVIEW
    return outcome


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("columns", [80, 140])
def test_an_open_approval_says_who_asks_for_what_why_until_when_and_who_may_decide(
    ledger: Ledger, columns: int
) -> None:
    """On a narrow terminal, and on a wide one."""
    outcome = asked(ledger)
    page = run(ledger, "approvals", columns=columns).stdout
    assert max(map(len, page.splitlines())) <= columns
    for part in (
        f"{outcome.action_id}  refund of 118.5 for order A-1",
        "asked by      alice",
        "conversation  t-1",
        "why           amount 118.5 is over 100",
        "may decide    supervisor or bob, but not alice (four eyes)",
        "(in 24 h)",
        "amount: 118.5",
        printed(ledger, outcome),
    ):
        assert part in page
    assert run(ledger, "approvals", "--thread", "another").stdout == "nothing waits for an approval\n"
    assert run(ledger, "approvals", "--tenant", "acme").stdout == "nothing waits for an approval\n"
    shown = as_json(ledger, "approvals")[0]
    assert (shown["requester"], shown["approvers"], shown["four_eyes"]) == ("alice", ["supervisor", "bob"], True)
    assert (shown["fingerprint"], shown["decision"]) == (printed(ledger, outcome), None)


def test_in_a_pipe_no_line_ends_in_blanks(ledger: Ledger) -> None:
    asked(ledger)
    piped = process(ledger, "approvals").stdout.splitlines()
    assert [line.rstrip() for line in piped] == piped


def test_the_queue_shows_both_versions_and_what_the_service_answered(ledger: Ledger) -> None:
    outcome = unknown(ledger, pay, order_id="P-1", amount=118.5)
    page = run(ledger, "queue", columns=80).stdout
    for part in ("the remote side has other values", "meant         amount: 118.5", "found         amount: 180"):
        assert part in page
    shown = as_json(ledger, "queue")[0]
    assert (shown["action_id"], shown["receipt"]) == (outcome.action_id, "R-9")
    assert (shown["meant"], shown["found"]) == ({"amount": 118.5}, {"amount": 180.0})


def test_an_empty_queue_says_so(ledger: Ledger) -> None:
    assert run(ledger, "queue").stdout == "the manual queue is empty\n"
    unknown(ledger)
    assert "it was not asked" in run(ledger, "queue").stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("approve",), "with these arguments and no others"),
        (("deny", "--note", "too much"), "not approved by bob (“too much”)"),
        (("edit", "--tools", HERE, "--set", "amount=180"), "“refund of 180.0 for order A-1”"),
        (("withdraw",), "Nobody can approve it any more"),
        (("retry", "--tools", HERE), "nothing is run"),
    ],
)
def test_without_a_fingerprint_it_says_what_will_follow_and_does_nothing(
    ledger: Ledger, command: tuple[str, ...], said: str
) -> None:
    """The command that it prints, once more, is the one that does it."""
    outcome = asked(ledger)
    before = ledger.timeline(id_of(outcome))
    result = run(ledger, command[0], id_of(outcome), "--by", "bob", *command[1:])
    assert result.exit_code == 2
    assert said in one_line(result.stdout)
    for part in ("nothing has been done yet", "refund of 118.5 for order A-1", "t-1"):
        assert part in result.stdout
    assert ledger.timeline(id_of(outcome)) == before
    words = shlex.split(result.stdout.splitlines()[-1])
    assert words[-2:] == ["--fingerprint", printed(ledger, outcome)]
    assert run(ledger, *words[words.index("actions") + 1 :]).exit_code == 0


def test_what_will_follow_is_json_too(ledger: Ledger) -> None:
    outcome = asked(ledger)
    shown = as_json(ledger, "approve", id_of(outcome), "--by", "bob", "--note", "it's fine", code=2)
    assert shown["done"] is False
    assert shown["approval"]["arguments"] == {"order_id": "A-1", "amount": 118.5}
    words = shlex.split(shown["command"])
    done = json.loads(run(ledger, *words[words.index("actions") + 1 :]).stdout)
    assert (done["done"], done["action"]["state"], done["action"]["approver"]) == (True, "approved", "bob")
    assert as_json(ledger, "show", id_of(outcome))["approvals"][0]["note"] == "it's fine"


@pytest.mark.parametrize(
    ("command", "is_unknown"),
    [
        (("approve",), False),
        (("deny",), False),
        (("edit", "--tools", HERE, "--set", "amount=180"), False),
        (("withdraw",), False),
        (("retry", "--tools", HERE), False),
        (("resolve", "--happened", "R-1"), True),
    ],
)
def test_a_wrong_fingerprint_decides_nothing_and_says_what_stands_there(
    ledger: Ledger, command: tuple[str, ...], is_unknown: bool
) -> None:
    outcome = unknown(ledger) if is_unknown else asked(ledger)
    before = ledger.timeline(id_of(outcome))
    result = process(ledger, command[0], id_of(outcome), "--by", "bob", *command[1:], "--fingerprint", WRONG)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    for part in (WRONG, printed(ledger, outcome), ledger.action(id_of(outcome)).summary, "Nothing was done"):
        assert part in result.stderr
    assert ledger.timeline(id_of(outcome)) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--by'"),
        (("--by", " "), "Invalid value for '--by': must not be blank"),
        (("--by", "bob\x1b[31m"), "Invalid value for '--by': must be at most 200 printable characters"),
        (("--by", "b" * 201), "Invalid value for '--by': must be at most 200 printable characters"),
        (("--by", "bob", "--role", ""), "Invalid value for '--role': must not be blank"),
        (("--by", "bob", "--note", "two\nlines"), "Invalid value for '--note': must be one line"),
        (("--by", "bob", "--note", "gpj.\u202eexe"), "Invalid value for '--note': must be one line"),
        (("--by", "bob", "--note", "\udcff"), "Invalid value for '--note': must be one line"),
        (("--by", "bob", "--fingerprint", "abc"), "Invalid value for '--fingerprint': must be sha256: and 12 to 64"),
        (("--by", "bob", "--limit", "3"), "No such option: --limit"),
    ],
)
def test_a_wrong_use_is_one_line_that_names_the_option_and_the_rule(
    ledger: Ledger, arguments: tuple[str, ...], said: str
) -> None:
    result = process(ledger, "approve", "act-1", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"settled: {said}")
    assert len(result.stderr.splitlines()) == 1


def test_nobody_decides_in_the_name_of_the_policy(ledger: Ledger) -> None:
    result = process(ledger, "approve", id_of(asked(ledger)), "--by", "Policy")
    assert result.returncode == 1
    assert result.stderr.startswith("settled: by: cannot be 'policy'")


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (("--by", "Alice"), "Alice asked for it, and somebody else must decide"),
        (("--by", "eve"), "eve may not decide: it takes supervisor or bob, by that name or with that role"),
        (
            ("--by", "eve", "--role", "clerk"),
            "eve may not decide: it takes supervisor or bob, by that name or with that role",
        ),
    ],
)
def test_whoever_may_not_decide_is_told_before_anything_is_shown(
    ledger: Ledger, by: tuple[str, ...], said: str
) -> None:
    outcome = asked(ledger)
    for more in ((), ("--fingerprint", printed(ledger, outcome))):
        result = process(ledger, "approve", id_of(outcome), *by, *more)
        assert (result.returncode, result.stdout, result.stderr) == (1, "", f"settled: {said}\n")
    assert states(ledger.url) == ["planned"]


def test_a_role_lets_decide(ledger: Ledger) -> None:
    outcome = asked(ledger)
    given = ("--by", "eve", "--role", "clerk", "--role", "supervisor", "--fingerprint", printed(ledger, outcome))
    result = run(ledger, "approve", id_of(outcome), *given)
    assert result.exit_code == 0
    assert f"{outcome.action_id} is approved by eve." in result.stdout
    assert "the approval is good until" in one_line(result.stdout)


def test_the_first_decision_is_final(ledger: Ledger) -> None:
    """The second person hears of the first one; the first one may say it again."""
    outcome = asked(ledger)
    shown = ("--fingerprint", printed(ledger, outcome))
    for _ in range(2):
        assert run(ledger, "approve", id_of(outcome), "--by", "bob", *shown).exit_code == 0
    for more in (shown, ()):
        result = process(ledger, "deny", id_of(outcome), "--by", "eve", "--role", "supervisor", *more)
        assert result.returncode == 1
        assert "bob approved it at" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert triggers_of(ledger, outcome) == ["plan", "approve"]


def test_a_request_that_has_expired_is_no_longer_decided(ledger: Ledger) -> None:
    @action(risk="non_idempotent_write", identity="all", approval=always(ttl=timedelta(seconds=0.1)))
    def briefly(order_id: str) -> None:
        """Do something that is asked for briefly."""

    outcome = asked(ledger, briefly, order_id="A")
    time.sleep(0.15)
    for more in ((), ("--fingerprint", printed(ledger, outcome))):
        result = process(ledger, "approve", id_of(outcome), "--by", "bob", *more)
        assert (result.returncode, result.stdout) == (1, "")
        assert "in time" in result.stderr
    assert run(ledger, "approvals").stdout == "nothing waits for an approval\n"


def test_what_is_denied_is_told_with_the_note_and_sends_nothing(ledger: Ledger) -> None:
    outcome = asked(ledger)
    done = run(
        ledger, "deny", id_of(outcome), "--by", "bob", "--note", "too much", "--fingerprint", printed(ledger, outcome)
    )
    assert f"{outcome.action_id} is cancelled by bob." in done.stdout
    again = perform(refund, ("A-1", 118.5), ledger=ledger, thread_id="t-1", requester="alice")
    assert again.code is Code.DENIED
    assert "too much" in again.message
    assert states(ledger.url) == ["cancelled"]


def test_an_approved_action_is_run_once_by_retry(ledger: Ledger) -> None:
    outcome = asked(ledger)
    shown = ("--by", "bob", "--fingerprint", printed(ledger, outcome))
    assert run(ledger, "approve", id_of(outcome), *shown).exit_code == 0
    preview = run(ledger, "retry", id_of(outcome), "--by", "bob", "--tools", f"{HERE}:TOOLS")
    assert "It is run now, by this process, once" in preview.stdout
    done = as_json(ledger, "retry", id_of(outcome), *shown, "--tools", f"{HERE}:more_tools")
    assert (done["outcome"]["code"], done["action"]["receipt"]) == ("succeeded", "RF-A-1")
    again = process(ledger, "retry", id_of(outcome), *shown, "--tools", "json")
    assert (again.returncode, again.stderr) == (
        2,
        "settled: Invalid value for --tools: json has no tool that was declared with @action\n",
    )
    result = run(ledger, "retry", id_of(outcome), *shown, "--tools", HERE)
    assert "there is nothing to carry on" in str(result.exception)
    assert triggers_of(ledger, outcome) == ["plan", "approve", "claim", "succeed"]


def test_an_edit_is_a_new_action_that_its_own_policy_judges(ledger: Ledger) -> None:
    outcome = asked(ledger)
    settings = ("--by", "bob", "--tools", HERE, "--set", "amount=180", "--note", "as agreed")
    preview = one_line(run(ledger, "edit", id_of(outcome), *settings).stdout)
    assert "takes its place, with amount: 118.5 → 180.0." in preview
    done = as_json(ledger, "edit", id_of(outcome), *settings, "--fingerprint", printed(ledger, outcome))["action"]
    assert (done["state"], done["arguments"]) == ("planned", {"order_id": "A-1", "amount": 180.0})
    assert (done["supersedes"], done["requester"]) == (outcome.action_id, "alice")
    assert as_json(ledger, "show", id_of(outcome))["superseded_by"] == done["action_id"]
    page = run(ledger, "show", id_of(outcome)).stdout
    assert "replaced by another request by bob" in page
    assert "(“as agreed”)" in page


def test_an_edit_that_its_policy_allows_is_approved_at_once(ledger: Ledger) -> None:
    outcome = asked(ledger)
    settings = ("--by", "bob", "--tools", HERE, "--set", "amount=50", "--fingerprint", printed(ledger, outcome))
    done = run(ledger, "edit", id_of(outcome), *settings).stdout
    assert "took the place of" in done
    assert states(ledger.url) == ["cancelled", "approved"]


def test_an_edit_of_a_tool_without_a_policy_of_its_own_is_asked_about_again(ledger: Ledger) -> None:
    """Its agent has one by risk, which this process does not know: it must not be the way around it."""
    waiting = perform(
        ship,
        ("A-1",),
        ledger=ledger,
        thread_id="t",
        requester="alice",
        policies={"non_idempotent_write": always},
    )
    settings = ("--by", "bob", "--tools", HERE, "--set", "boxes=2", "--fingerprint", printed(ledger, waiting))
    done = run(ledger, "edit", id_of(waiting), *settings)
    assert "It waits for an approval of its own" in done.stdout
    assert states(ledger.url) == ["cancelled", "planned"]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (("amount=118.50",), 1, "--set: changes nothing"),
        (("amount=x",), 2, "Invalid value for --set: amount: is no JSON"),
        (("amount=NaN",), 2, "Invalid value for --set: amount: is no JSON"),
        (('amount="x"',), 1, "amount: Input should be a valid number"),
        (("total=1",), 1, "total: is not an argument of this tool"),
        (('order_id="\u202eA"',), 2, "Invalid value for '--set': must be printable characters"),
        (("amount",), 2, "Invalid value for --set: 'amount' must be name=JSON"),
        (("amount=1", "amount=2"), 2, "Invalid value for --set: amount is given twice"),
        ((), 2, "Missing option '--set'"),
    ],
)
def test_an_edit_that_cannot_be_names_the_argument_and_the_rule(
    ledger: Ledger, settings: tuple[str, ...], code: int, said: str
) -> None:
    outcome = asked(ledger)
    given = [word for setting in settings for word in ("--set", setting)]
    result = process(ledger, "edit", id_of(outcome), "--by", "bob", "--tools", HERE, *given)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith(f"settled: {said}")
    assert len(result.stderr.splitlines()) == 1
    assert states(ledger.url) == ["planned"]


def test_a_secret_is_not_printed_when_it_is_edited(database_url: str) -> None:
    """The command that is printed asks for it again, and does nothing as it stands."""
    with Ledger.connect(database_url, secret_key=FERNET) as ledger:
        outcome = asked(ledger, charge, card="4111-1111", amount=5)
        given = ("edit", id_of(outcome), "--by", "bob", "--tools", HERE, "--set", "amount=7")
        secret = ("--set", 'card="4222-2222"')
        for form in ((), ("--json",)):
            preview = run(ledger, *given, *secret, *form)
            assert preview.exit_code == 2
            assert "4111" not in preview.output
            assert "4222" not in preview.output
            assert f"card={HIDDEN}" in preview.output
        copied = run(ledger, *given, "--set", f"card={HIDDEN}")
        assert "put its value in again" in one_line(copied.output)
        done = as_json(ledger, *given, *secret, "--fingerprint", printed(ledger, outcome))["action"]
        assert done["arguments"] == {"card": HIDDEN, "amount": 7}


def test_a_password_is_not_printed_in_the_command(ledger: Ledger) -> None:
    outcome = asked(ledger)
    url = f"{ledger.url}&password=hunter2" if "?" in ledger.url else f"{ledger.url}?password=hunter2"
    result = run(ledger, "approve", id_of(outcome), "--by", "bob", "--database-url", url)
    assert result.exit_code == 2, result.output
    assert "hunter2" not in result.output
    assert f"password={HIDDEN}" in result.output


def test_a_request_is_taken_back_before_it_ran_and_not_after(ledger: Ledger) -> None:
    outcome = asked(ledger)
    shown = ("--by", "alice", "--note", "a mistake", "--fingerprint", printed(ledger, outcome))
    assert run(ledger, "withdraw", id_of(outcome), *shown).exit_code == 0
    assert triggers_of(ledger, outcome) == ["plan", "withdraw"]
    done = perform(refund, ("B", 5.0), ledger=ledger, thread_id="t-1")
    result = process(ledger, "withdraw", id_of(done), "--by", "alice")
    assert (result.returncode, result.stderr) == (
        1,
        f"settled: {done.action_id} is succeeded: cannot be taken back\n",
    )


def test_a_person_says_that_it_happened(ledger: Ledger) -> None:
    outcome = unknown(ledger)
    given = ("resolve", id_of(outcome), "--by", "bob", "--happened", "M-7", "--note", "seen in the outbox")
    preview = run(ledger, *given)
    assert preview.exit_code == 2
    assert "settled as succeeded, with the receipt M-7, on your word" in one_line(preview.stdout)
    done = run(ledger, *given, "--fingerprint", printed(ledger, outcome))
    assert f"{outcome.action_id} is succeeded, with the receipt M-7." in done.stdout
    page = run(ledger, "show", id_of(outcome)).stdout
    assert "by bob" in page
    assert "seen in the outbox" in page
    again = process(ledger, *given)
    assert (again.returncode, again.stderr) == (
        1,
        f"settled: {outcome.action_id} is succeeded: there is nothing to resolve\n",
    )


def test_a_person_says_that_it_did_not_happen(ledger: Ledger) -> None:
    """Not before the instant until which it may still take effect."""
    outcome = unknown(ledger)
    time.sleep(0.25)
    given = ("resolve", id_of(outcome), "--by", "bob", "--did-not-happen")
    assert "a new request for the same would do it a second time" in one_line(run(ledger, *given).stdout)
    done = as_json(ledger, *given, "--fingerprint", printed(ledger, outcome))["action"]
    assert (done["state"], done["evidence"]) == ("failed", "person")


def test_nobody_can_say_that_it_did_not_happen_while_it_may(ledger: Ledger) -> None:
    @action(risk="non_idempotent_write", identity=("to",), settle_window=60.0, summary="fax to {to}")
    def fax(to: str) -> object:
        """Send a fax."""
        return Unknown("no answer came back")

    outcome = unknown(ledger, fax, to="alice")
    result = process(ledger, "resolve", id_of(outcome), "--by", "bob", "--did-not-happen")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("settled: --did-not-happen: it may still take effect until ")


def test_a_case_is_sent_back_to_be_asked_about(ledger: Ledger) -> None:
    outcome = unknown(ledger, pay, order_id="P-1", amount=118.5)
    given = ("resolve", id_of(outcome), "--by", "bob", "--ask-again", "--fingerprint", printed(ledger, outcome))
    assert run(ledger, *given).exit_code == 0
    assert run(ledger, "queue").stdout == "the manual queue is empty\n"
    shown = ("--by", "bob", "--tools", HERE, "--fingerprint", printed(ledger, outcome))
    done = run(ledger, "retry", id_of(outcome), *shown)
    assert "Only a person can decide what became of it" in done.stdout
    assert triggers_of(ledger, outcome)[-2:] == ["ask_again", "escalate"]


@pytest.mark.parametrize("given", [(), ("--ask-again", "--did-not-happen"), ("--happened", "R", "--ask-again")])
def test_a_resolution_is_one_of_three(ledger: Ledger, given: tuple[str, ...]) -> None:
    result = process(ledger, "resolve", "act-1", "--by", "bob", *given)
    assert result.returncode == 2
    assert "--happened RECEIPT, --did-not-happen, --ask-again: give one of them" in result.stderr


def test_hostile_values_move_no_terminal(ledger: Ledger) -> None:
    """Not in an argument, not in a note, not in what another one's decision is told with."""
    hostile = "[red]A[/red]\x1b[31m\x9b31m\u202eB\u200b"
    outcome = asked(ledger, order_id=hostile, amount=118.5)
    pages = [
        run(ledger, "approvals"),
        run(ledger, "deny", id_of(outcome), "--by", "bob", "--note", "[bold]no[/bold]"),
        run(ledger, "approvals", "--json"),
    ]
    note = "[bold]no[/bold] \x1b[31m\u202egpj"  # from somewhere else than a command line
    Desk(ledger).decide(id_of(outcome), Reject(note), by="bob", fingerprint=printed(ledger, outcome))
    pages += [run(ledger, "show", id_of(outcome)), run(ledger, "show", id_of(outcome), "--json")]
    for page in pages:
        assert page.exit_code in (0, 2), page.output
        assert not {"\x1b", "\x9b", "\u202e"} & set(page.stdout)
    assert "[red]A[/red]" in pages[0].stdout
    assert r"\u009b31m\u202eB\u200b" in pages[0].stdout
    told = process(ledger, "approve", id_of(outcome), "--by", "bob")
    assert "[bold]no[/bold]" in told.stderr
    assert not {"\x1b", "\u202e"} & set(told.stderr)


def test_another_tenants_approvals_do_not_exist(ledger: Ledger) -> None:
    outcome = asked(ledger)
    for command in ("approve", "deny", "withdraw"):
        result = process(ledger, command, id_of(outcome), "--by", "bob", "--tenant", "acme")
        assert (result.returncode, result.stderr) == (1, f"settled: there is no action '{outcome.action_id}'\n")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("no_such_module", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("../tools.py", "'../tools.py' is no module; give module or module:name"),
        ("json:loads", "json:loads() raised TypeError"),
        ("json:nothing", "json:nothing: there is no 'nothing' in it"),
        ("json", "json has no tool that was declared with @action"),
        ("json:", "json:: there is no '' in it"),
    ],
)
def test_tools_that_cannot_be_found_are_one_line(ledger: Ledger, place: str, said: str) -> None:
    result = process(ledger, "retry", "act-1", "--by", "bob", "--tools", place)
    assert result.returncode == 2
    assert result.stderr.startswith(f"settled: Invalid value for --tools: {said}")
    assert len(result.stderr.splitlines()) == 1


def test_what_a_module_prints_is_no_part_of_the_json(ledger: Ledger, tmp_path: Path) -> None:
    """And a module in the folder where the command is run is found."""
    (tmp_path / "mine.py").write_text("print('hello')\nfrom test_cli_decisions import refund\n")
    outcome = asked(ledger)
    result = process(ledger, "retry", id_of(outcome), "--by", "bob", "--tools", "mine", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["action"]["state"] == "planned"
    assert result.stderr == "hello\n"


@pytest.mark.parametrize(
    "arguments", [("show", "\udcff"), ("list", "--tenant", "\udcff"), ("list", "--thread", "a\x1bb")]
)
def test_a_reference_that_no_ledger_holds_is_a_wrong_use(ledger: Ledger, arguments: tuple[str, ...]) -> None:
    result = process(ledger, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith(": must be printable characters\n")

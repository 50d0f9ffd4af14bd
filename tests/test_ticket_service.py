"""The demo's ticket service on a real socket and Postgres: one effect per key, and each fault does what it says."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx2
import pytest

import servers
from settled.demo.processes import Service
from settled.demo.service import store
from settled.demo.service.faults import Kind, fault, switches


class Client:
    """The service, and its database behind its back."""

    def __init__(self, url: str, database_url: str) -> None:
        self.http = httpx2.Client(base_url=url, timeout=5)
        self.database = store.open_database(database_url)
        self.employee = ""

    def faults(self, **sent: Any) -> None:
        assert self.http.put("/faults", json=sent).status_code == 200

    def create(self, key: str | None = None, amount: object = 118.5, **more: Any) -> httpx2.Response:
        body = {"employee_id": self.employee, "invoice_id": "INV-102", "amount": amount, "over_limit": 38.5}
        return self.http.post("/tickets", json=body, headers={"Idempotency-Key": key or uuid4().hex}, **more)

    def find(self, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/tickets", params={"idempotency_key": key}).json()
        return found

    def count(self) -> int:
        return self.database.run(store.count_tickets(self.employee))


@pytest.fixture(scope="module")
def running(server_url: str) -> Iterator[Client]:
    with servers.database(server_url) as database_url, Service(database_url, {}) as service:
        client = Client(service.url, database_url)
        yield client
        client.http.close()
        client.database.close()


@pytest.fixture
def service(running: Client) -> Client:
    """The service with every switch off, and an employee whom it has never seen."""
    running.faults()
    running.employee = f"E-{uuid4().hex[:8]}"
    return running


def test_equal_requests_at_the_same_instant_make_one_ticket_and_all_get_its_number(service: Client) -> None:
    service.faults(next=[{"kind": "delay_before_commit", "seconds": 0.2}])
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: service.create("same"), range(8)))
    assert service.count() == 1
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["receipt"] for answer in answers}) == 1
    assert sum(answer.headers.get("idempotency-replayed") == "true" for answer in answers) == 7


def test_a_receipt_reads_like_one(service: Client) -> None:
    receipt = service.create().json()["receipt"]
    assert receipt.startswith("R-")
    assert int(receipt[2:]) >= 55821


def test_the_same_key_with_another_payload_is_refused(service: Client) -> None:
    key = uuid4().hex
    service.create(key)
    answer = service.create(key, amount=180)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert service.count() == 1


def test_the_same_amount_in_other_digits_is_the_same_payload(service: Client) -> None:
    key = uuid4().hex
    assert service.create(key, amount=118.5).json() == service.create(key, amount=118.50).json()


def test_a_key_that_stays_in_flight_is_said_to_be_in_use(service: Client) -> None:
    service.faults(next=[{"kind": "delay_before_commit", "seconds": 3}])
    key = uuid4().hex
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(service.create, key)
        time.sleep(0.2)
        second = service.create(key)
        assert (second.status_code, second.json()["code"]) == (409, "idempotency_key_in_use")
        assert first.result().status_code == 201
    assert service.create(key).json() == first.result().json()
    assert service.count() == 1


def test_a_second_ticket_for_an_invoice_is_refused_with_the_receipt_of_the_first(service: Client) -> None:
    receipt, key = service.create().json()["receipt"], uuid4().hex
    for _ in range(2):
        answer = service.create(key)
        assert answer.status_code == 409
        assert answer.json() == {
            "code": "already_reimbursed",
            "message": "invoice INV-102 was already reimbursed",
            "receipt": receipt,
        }
    assert service.count() == 1


def test_after_a_cancellation_the_invoice_may_be_filed_again(service: Client) -> None:
    receipt = service.create().json()["receipt"]
    cancel = {"url": f"/tickets/{receipt}/cancel", "headers": {"Idempotency-Key": uuid4().hex}}
    assert service.http.post(**cancel).json()["status"] == "cancelled"
    assert service.http.post(**cancel).headers["idempotency-replayed"] == "true"
    assert service.create().status_code == 201
    assert service.count() == 2


def test_there_is_nothing_to_cancel_under_an_unknown_receipt(service: Client) -> None:
    answer = service.http.post("/tickets/R-1/cancel", headers={"Idempotency-Key": uuid4().hex})
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_ticket")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "employee_id"),
        ([], "employee_id"),
        ({"employee_id": "E\x00"}, "employee_id"),
        ({"employee_id": "E", "invoice_id": 7}, "invoice_id"),
        ({"employee_id": "E", "invoice_id": "I", "amount": True}, "amount"),
        ({"employee_id": "E", "invoice_id": "I", "amount": "nan"}, "amount"),
        ({"employee_id": "E", "invoice_id": "I", "amount": 1, "over_limit": -1}, "over_limit"),
    ],
)
def test_a_payload_that_breaks_a_rule_names_the_field(service: Client, body: object, field: str) -> None:
    answer = service.http.post("/tickets", json=body, headers={"Idempotency-Key": "bad"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", field]


def test_a_write_without_a_key_is_refused(service: Client) -> None:
    body = {"employee_id": service.employee, "invoice_id": "INV-102", "amount": 1, "over_limit": 0}
    answer = service.http.post("/tickets", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_missing")
    assert service.count() == 0


def test_a_ticket_is_found_by_key_and_by_employee_and_invoice(service: Client) -> None:
    made = service.create("key-of-mine").json()
    assert service.find("key-of-mine") == [made]
    fields = {"employee_id": service.employee, "invoice_id": "INV-102"}
    assert service.http.get("/tickets", params=fields).json() == [made]
    assert service.http.get("/tickets", params=fields | {"invoice_id": "INV-101"}).json() == []


@pytest.mark.parametrize(
    ("kind", "prefix"), [("refunds", "RF-"), ("coupons", "C-"), ("shipments", "S-"), ("notifications", "N-")]
)
def test_the_other_records_are_made_one_per_key(service: Client, kind: str, prefix: str) -> None:
    order, key = f"A-{uuid4().hex[:6]}", uuid4().hex
    sent = {"json": {"order_id": order, "amount": 25.0}, "headers": {"Idempotency-Key": key}}
    first, second = service.http.post(f"/{kind}", **sent), service.http.post(f"/{kind}", **sent)
    assert first.status_code == 201
    assert first.json() == second.json()
    assert first.json()["receipt"].startswith(prefix)
    assert service.http.get(f"/{kind}", params={"order_id": order}).json() == [first.json()]
    assert service.http.get(f"/{kind}", params={"idempotency_key": key}).json() == [first.json()]


def test_commit_and_drop_closes_the_connection_after_the_effect(service: Client) -> None:
    service.faults(next=["commit_and_drop"])
    key = uuid4().hex
    with pytest.raises(httpx2.RemoteProtocolError):
        service.create(key)
    assert service.count() == 1
    assert service.create(key).headers["idempotency-replayed"] == "true"


def test_truncate_sends_half_of_the_answer_after_the_effect(service: Client) -> None:
    service.faults(next=["truncate"])
    with pytest.raises(httpx2.RemoteProtocolError, match="without sending complete"):
        service.create()
    assert service.count() == 1


def test_commit_and_500_hides_the_effect(service: Client) -> None:
    service.faults(next=["commit_and_500"])
    assert service.create().status_code == 500
    assert service.count() == 1


def shows(service: Client, key: str) -> bool:
    """Whether the one record of a key is found soon: a loaded machine takes its time."""
    end = time.monotonic() + 10
    while not (found := service.find(key)) and time.monotonic() < end:
        time.sleep(0.05)
    return len(found) == 1


def test_commit_and_delay_answers_after_the_client_has_left(service: Client) -> None:
    service.faults(next=[{"kind": "commit_and_delay", "seconds": 1}])
    key = uuid4().hex
    with pytest.raises(httpx2.ReadTimeout):
        service.create(key, timeout=0.3)
    assert shows(service, key)


def test_delay_before_commit_takes_effect_after_the_client_has_left(service: Client) -> None:
    service.faults(next=[{"kind": "delay_before_commit", "seconds": 1.5}])
    key = uuid4().hex
    with pytest.raises(httpx2.ReadTimeout):
        service.create(key, timeout=0.2)
    assert service.find(key) == []
    assert shows(service, key)


@pytest.mark.parametrize(("kind", "status"), [("refuse_503", 503), ("refuse_429", 429)])
def test_a_refusal_has_no_effect_and_says_when_to_come_back(service: Client, kind: str, status: int) -> None:
    service.faults(next=[{"kind": kind, "retry_after": 5}, kind])
    key = uuid4().hex
    first, second = service.create(key), service.create(key)
    assert (first.status_code, first.headers["retry-after"]) == (status, "5")
    assert (second.status_code, second.headers.get("retry-after")) == (status, None)
    assert service.count() == 0
    assert service.create(key).status_code == 201


def test_freeze_neither_acts_nor_answers_and_the_rest_goes_on(service: Client) -> None:
    service.faults(always="freeze")
    with pytest.raises(httpx2.ReadTimeout):
        service.create(timeout=0.3)
    assert service.count() == 0
    service.faults()
    assert service.create().status_code == 201


def test_a_lagging_replica_does_not_show_the_newest(service: Client) -> None:
    service.faults(lag_s=60)
    key = uuid4().hex
    service.create(key)
    assert service.find(key) == []
    service.faults(lag_s=0.3)
    assert shows(service, key)


def test_no_query_answers_every_question_with_501(service: Client) -> None:
    service.faults(no_query=True)
    service.create("asked")
    assert service.http.get("/tickets", params={"idempotency_key": "asked"}).status_code == 501
    service.faults(no_query=404)
    assert service.http.get("/tickets", params={"idempotency_key": "asked"}).status_code == 404


def test_forget_keys_makes_a_second_ticket_of_a_repeat(service: Client) -> None:
    """Without this the scenario no-query could not tell a resend from none."""
    service.faults(forget_keys=True)
    key = uuid4().hex
    receipts = {service.create(key).json()["receipt"] for _ in range(2)}
    assert len(receipts) == 2
    assert service.count() == 2


def test_faults_are_taken_one_per_write_and_not_by_reads(service: Client) -> None:
    service.faults(next=["refuse_503", None, "refuse_503"])
    key = uuid4().hex
    assert service.http.get("/invoices/INV-102").json()["amount"] == 118.5
    assert [service.create(key).status_code for _ in range(4)] == [503, 201, 503, 201]


def test_an_unknown_fault_is_refused_and_changes_nothing(service: Client) -> None:
    service.faults(next=["refuse_503"])
    for wrong in (["explode"], {"nxt": []}, 7, [{"kind": "truncate", "speed": 1}], {"lag_s": "soon"}):
        assert service.http.put("/faults", json=wrong).status_code == 422
    assert [one["kind"] for one in service.http.get("/faults").json()["next"]] == ["refuse_503"]


def test_the_log_tells_what_was_seen_and_what_became_of_it(service: Client) -> None:
    service.faults(next=["commit_and_drop"])
    key = uuid4().hex
    with pytest.raises(httpx2.RemoteProtocolError):
        service.create(key)
    last = service.http.get("/log").json()[-1]
    assert (last["method"], last["path"], last["key"]) == ("POST", "/tickets", key)
    assert last["outcome"] == "committed, and the reply was lost"


def test_every_kind_of_fault_can_be_named() -> None:
    assert [fault(str(kind)).kind for kind in Kind] == list(Kind)
    assert switches([None, "truncate"]).next[1].kind is Kind.TRUNCATE


_STARTER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "settled.demo.service", "--port", "0", "--parent", str(os.getpid())])
sys.stdin.read()
"""


def test_the_service_ends_when_the_process_that_started_it_is_killed(database_url: str) -> None:
    environment = {**os.environ, "SETTLED_DATABASE_URL": database_url}
    command = [sys.executable, "-c", _STARTER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as starter:
        assert starter.stdout is not None
        url = starter.stdout.readline().split()[-1]
        assert httpx2.get(f"{url}/log").status_code == 200
        starter.send_signal(signal.SIGKILL)
        _gone(url)


def test_the_service_ends_when_its_life_is_over(database_url: str) -> None:
    command = [sys.executable, "-m", "settled.demo.service", "--port", "0", "--max-life", "0.1"]
    environment = {**os.environ, "SETTLED_DATABASE_URL": database_url}
    assert subprocess.run(command, env=environment, capture_output=True, timeout=20).returncode == 0


def test_the_service_needs_a_database() -> None:
    command = [sys.executable, "-m", "settled.demo.service"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "--database-url" in done.stderr


def _gone(url: str) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            httpx2.get(f"{url}/log", timeout=1)
        except httpx2.TransportError:
            return
        time.sleep(0.1)
    pytest.fail("the service still answers 10 s after its parent was killed")

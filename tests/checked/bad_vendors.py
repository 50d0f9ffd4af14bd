"""Bodies with the clients of vendors, with a fault each, marked at its line (`# <- id`). Never run."""

import smtplib
from email.message import EmailMessage

import httpx

from settled import Found, Inquiry, action, current_action, http

shop = http.client(base_url="https://shop.example", timeout=5)
Result = dict[str, object]


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("charge",), query=find)
def by_stripe(charge: str) -> Result:
    """Refund."""
    import stripe

    return dict(stripe.Refund.create(charge=charge))  # <- sdk-retries, key-not-sent


@action(risk="non_idempotent_write", remote="dedupes", identity=("charge",), query=find)
def by_a_stripe_client(charge: str) -> Result:
    """Refund."""
    import stripe

    client = stripe.StripeClient("sk_test")  # <- sdk-retries
    options = {"idempotency_key": current_action().idempotency_key}
    return dict(client.refunds.create(params={"charge": charge}, options=options))


@action(risk="non_idempotent_write", remote="queryable", identity=("message",), query=find)
def by_boto(message: int) -> Result:
    """Queue."""
    import boto3
    from botocore.config import Config

    queue = boto3.client("sqs", config=Config(retries={"max_attempts": 4}))  # <- sdk-retries
    return dict(queue.send_message(QueueUrl="q", MessageBody=str(message)))


@action(risk="non_idempotent_write", remote="queryable", identity=("message",), query=find)
def by_a_boto_session(message: int) -> Result:
    """Queue."""
    import boto3

    session = boto3.Session()
    queue = session.client("sqs")  # <- sdk-retries
    return dict(queue.send_message(QueueUrl="q", MessageBody=str(message)))


@action(risk="non_idempotent_write", remote="queryable", identity=("prompt_id",), query=find)
def by_openai(prompt_id: str) -> Result:
    """Draw, and publish."""
    from openai import OpenAI

    client = OpenAI()  # <- sdk-retries
    image = client.images.generate(prompt=prompt_id)
    return dict(shop.post("/images", json={"url": image.data[0].url}).json())


@action(risk="non_idempotent_write", remote="queryable", identity=("task_id",), query=find)
def by_google_cloud(task_id: str) -> Result:
    """Queue."""
    from google.cloud import tasks_v2

    client = tasks_v2.CloudTasksClient()
    return {"receipt": client.create_task(parent="q", task={"name": task_id}).name}  # <- sdk-retries


@action(risk="non_idempotent_write", remote="queryable", identity=("event_id",), query=find)
def by_googleapiclient(event_id: str) -> Result:
    """Invite."""
    from googleapiclient.discovery import build

    calendar = build("calendar", "v3")
    return dict(calendar.events().insert(body={"id": event_id}).execute(num_retries=5))  # <- sdk-retries


@action(risk="non_idempotent_write", remote="queryable", identity=("order_id",), query=find)
def by_a_retrying_transport(order_id: str) -> Result:
    """Order."""
    from httpx_retries import RetryTransport

    client = http.guard(httpx.Client(transport=RetryTransport()))  # <- sdk-retries
    return dict(client.post("https://shop.example/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("to",), query=find)
def by_twilio(to: str) -> Result:
    """Text."""
    from twilio.rest import Client as Twilio

    return {"receipt": Twilio("sid").messages.create(to=to, body="hello").sid}  # <- key-not-sent


@action(risk="non_idempotent_write", remote="dedupes", identity=("to",), query=find)
def by_smtp(to: str) -> Result:
    """Mail."""
    message = EmailMessage()
    message["To"] = to
    with smtplib.SMTP("mail.example") as server:
        server.send_message(message)  # <- key-not-sent
    return {"receipt": to}

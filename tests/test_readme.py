"""The README's Python is run as it stands, with a shop on loopback and a model that follows a script."""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from scripted import ScriptedModel, call, once

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


class Shop(ThreadingHTTPServer):
    """shop.example: refunds by key. While `loses` is true it refunds, and its reply is lost."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Shop)
        self.refunds: dict[str, dict[str, object]] = {}
        self.posts = 0
        self.loses = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Shop(BaseHTTPRequestHandler):
    server: Shop

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts += 1
        refund = {**body, "receipt": f"RF-{len(self.server.refunds) + 1}"}
        known = self.server.refunds.setdefault(self.headers["Idempotency-Key"], refund)
        if not self.server.loses:
            self._answer(201, known)

    def do_GET(self) -> None:
        key = parse_qs(urlsplit(self.path).query)["idempotency_key"][0]
        found = self.server.refunds.get(key)
        self._answer(200, [found] if found else [])

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("SETTLED_DATABASE_URL", database_url)
    with Shop() as serving:
        threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield serving
        serving.shutdown()


def run(source: str, shop: Shop, names: dict[str, Any]) -> None:
    """Run a block with the shop in place of shop.example."""
    exec(compile(source.replace("https://shop.example", shop.url), "README.md", "exec"), names)


@pytest.mark.parametrize("loses", [False, True], ids=["answered", "reply lost"])
def test_the_blocks_do_what_the_text_says(loses: bool, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """One refund and its receipt, also when the reply is lost; the agent's call afterwards gets the same one."""
    shop.loses = loses
    small = once(call("refund", order_id="A-1001", amount="25.00"))
    large = once(call("large_refund", order_id="A-2002", amount="118.50"))
    other = once(call("refund", order_id="A-3003", amount="40.00"))
    scripts = {"A-1001": small, "A-2002": large, "A-3003": other}

    def script(said: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        return next(scripts[order] for order in scripts if order in said[0].text)(said, has_tools)

    model = ScriptedModel(script=script)
    names: dict[str, Any] = {"__name__": "readme", "model": model}
    *first, agent, guarded, approval = BLOCKS
    for block in first:
        run(block, shop, names)
    assert (names["outcome"].code, names["outcome"].receipt) == ("succeeded", "RF-1")
    run(agent, shop, names)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "succeeded RF-1 The request “refund (order_id A-1001)” was carried out. Receipt: RF-1."
    assert said[-1] == "The request “refund (order_id A-1001)” was carried out. Receipt: RF-1."
    assert (len(shop.refunds), shop.posts) == (1, 1)
    run(guarded, shop, names)
    assert capsys.readouterr().out.splitlines()[-1].endswith("order_id A-3003)” was carried out. Receipt: RF-2.")
    run(approval, shop, names)
    said = capsys.readouterr().out.splitlines()
    assert said == ["The request “large refund (order_id A-2002)” was carried out. Receipt: RF-3."]
    assert (len(shop.refunds), shop.posts) == (3, 3)


SHARED = (
    r"^```python\n(.*?)^```",
    r"^```mermaid\n(.*?)^```",
    r"\]\((tests/[^)]*)\)",
    r"\]\(((?:docs|src)[^)]*)\)",
    r"^(## |\||- )",
)
"""Code, the picture, links to tests and to pages, and how many parts, rows and points there are."""


@pytest.mark.parametrize("part", SHARED)
def test_the_chinese_readme_has_the_same_parts(part: str) -> None:
    """What is changed in one is changed in the other."""
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))
    found = re.findall(part, english, re.DOTALL | re.MULTILINE)
    assert found
    assert re.findall(part, chinese, re.DOTALL | re.MULTILINE) == found

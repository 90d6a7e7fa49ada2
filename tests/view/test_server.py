"""The server of `otel-rl view`: addresses, tokens, names."""

from __future__ import annotations

import http.client
import json
import math
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.message import Message
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_rl.report.page.document import PageParts, parts_of_figures, to_script
from otel_rl.report.page.figure import Axis, Curves, Figure, Heat, Stack, StepCurve
from otel_rl.view import server as server_module
from otel_rl.view.pieces import Pieces
from otel_rl.view.server import MOST_RUNS, Server, Viewer, is_loopback
from tests.made_runs import Plan, write_run


class FakeReader:
    """Has read a run whose name is markup."""

    started_s = asked_s = inf
    has_ended = False

    def __init__(self, *_: str) -> None:
        self.pieces = Pieces()
        self.parts = PageParts("<script>", {"head": '<header id="head">the page</header>'}, {})
        self.pieces.update(self.parts)

    def page(self) -> tuple[PageParts, str, int]:
        return self.parts, self.pieces.epoch, self.pieces.version

    def state(self, epoch: str, version: int) -> dict[str, Any]:
        return self.pieces.since(version) | {"said": ""}

    def close(self) -> None:
        pass


@dataclass
class Answer:
    """What the server says."""

    status: int
    headers: Message
    body: str


Ask = Callable[..., Answer]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ask]]:
    """Return what starts a server of a folder with one run, and asks it."""
    monkeypatch.setattr(server_module, "ReadingProcess", FakeReader)
    write_run(tmp_path, Plan(steps=1))
    started: list[Server] = []

    def serve(token: str = "") -> Ask:
        server = Server("127.0.0.1", 0, Viewer(tmp_path), token)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)

        def ask(path: str, **headers: str) -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            return Answer(answer.status, answer.headers, body)

        return ask

    yield serve
    for server in started:
        server.shutdown()
        server.server_close()
        server.viewer.close()


def run_of(tmp_path: Path) -> str:
    return next(path.name for path in tmp_path.iterdir())


def test_it_has_a_list_pages_and_what_changes(serve: Callable[..., Ask], tmp_path: Path) -> None:
    ask = serve()
    assert "the page" in ask("/").body
    name = run_of(tmp_path)
    answer = ask(f"/run/{name}")
    page = answer.body
    assert answer.status == 200 and '<a href="/">all runs</a>' in page and "<title>&lt;script&gt;" in page
    assert "connect-src 'self'" in page and "'unsafe-inline'" not in page.partition("script-src")[2].partition(";")[0]
    state = json.loads(ask(f"/state/{name}?epoch=&since=0").body)
    assert state["html"] == {"head": '<header id="head">the page</header>'} and state["now"].startswith("<section")


@pytest.mark.parametrize("path", ["/run/none", "/run/..%2F..%2Fetc", "/run/", "/elsewhere", "/run/%00", "*"])
def test_what_is_no_run_is_not_found(serve: Callable[..., Ask], path: str) -> None:
    assert serve()(path).status == 404


def test_a_run_that_is_gone_has_a_sentence(serve: Callable[..., Ask]) -> None:
    assert "gone" in json.loads(serve()("/state/gone?epoch=&since=0").body)["said"]


def test_a_run_that_gets_its_name_is_followed(serve: Callable[..., Ask], tmp_path: Path) -> None:
    """Until a rank knows the name of its run it writes into a folder of its own."""
    run = tmp_path / run_of(tmp_path)
    nameless = tmp_path / ".pending" / "0a1b"
    nameless.parent.mkdir()
    shutil.copytree(run, nameless)
    shutil.rmtree(run)
    ask = serve()
    assert "moved" not in json.loads(ask("/state/.pending%2F0a1b?epoch=&since=0").body)
    nameless.rename(tmp_path / "named")
    assert json.loads(ask("/state/.pending%2F0a1b?epoch=&since=0").body)["moved"] == "/run/named"


def test_a_token_is_asked_for_and_kept_by_the_browser(serve: Callable[..., Ask]) -> None:
    """It leaves the address at once; a wrong one, and one in a damaged cookie, are none."""
    ask = serve("secret")
    assert ask("/").status == 403 and ask("/?token=wrong").status == 403
    assert ask("/", Cookie="otel_rl_token=wrong").status == 403 and ask("/", Cookie="=;;\x01").status == 403
    answer = ask("//evil.example/?token=secret")
    assert answer.status == 303 and re.match(r"/(?!/)", answer.headers["Location"])
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert ask("/", Cookie=cookie.partition(";")[0]).status == 200


def test_a_foreign_name_of_this_machine_is_refused(serve: Callable[..., Ask]) -> None:
    """A page elsewhere may let its own name point here; it must not read runs."""
    ask = serve()
    assert ask("/", Host="evil.example:80").status == 403
    assert ask("/", Host="localhost:80").status == 200


def test_nonsense_is_answered(serve: Callable[..., Ask], tmp_path: Path) -> None:
    ask = serve()
    assert json.loads(ask(f"/state/{run_of(tmp_path)}?since=-1x&epoch=%00").body)["version"] == 1


def test_pages_that_are_looked_at_do_not_end_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many; a page that nobody looks at any more makes room for a new one."""
    monkeypatch.setattr(server_module, "ReadingProcess", FakeReader)
    keys = [f"run{number}" for number in range(MOST_RUNS + 2)]
    for key in keys:
        write_run(tmp_path, Plan(run_id=key, steps=1))
    viewer = Viewer(tmp_path)
    *looked_at, last = keys
    readers = [viewer.reader(key) for key in looked_at]
    assert [viewer.reader(key) for key in looked_at] == readers and None not in readers
    left = readers[2]
    assert left is not None
    left.asked_s = -inf
    viewer.reader(last)
    assert list(viewer._readers) == [key for key in keys if key != looked_at[2]]


def test_numbers_that_are_none_are_json_everywhere(tmp_path: Path) -> None:
    """In a page, and in what changed since: NaN and infinity would be no JSON for a browser."""
    values = np.array([[math.nan, 1.0], [math.inf, 2.0]])
    heat = Heat(rows=["a", "b"], left=0.5, right=2.5, values=values)
    curve = StepCurve(label="a", x=[1, 2], y=[math.nan, -math.inf], smooth=[math.nan, math.inf])
    stack = Stack(left=[0.5], right=[1.5], parts={"a": [math.nan]})
    pieces = Pieces()
    for contents in ([heat, Curves(curves=[curve]), stack], [replace(heat, values=-values), Curves(curves=[]), stack]):
        figures = [Figure(name=f"f{at}", title="", y=Axis(label=""), content=one) for at, one in enumerate(contents)]
        parts = parts_of_figures("run", figures)
        to_script(parts.data)  # raises for NaN
        pieces.update(parts)
    assert json.dumps(pieces.since(0) | pieces.since(1), allow_nan=False)


def test_which_addresses_are_of_this_machine() -> None:
    assert [is_loopback(one) for one in ("localhost", "127.0.0.1", "127.1.2.3", "::1")] == [True] * 4
    assert [is_loopback(one) for one in ("0.0.0.0", "::", "10.0.0.1", "node17", "")] == [False] * 5

"""The server of `otel-rl view`: the list of runs, and a page for each of them."""

from __future__ import annotations

import gzip
import hmac
import json
import os
import re
import threading
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET, AF_INET6, gethostname
from time import monotonic
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from otel_rl.guard import guard
from otel_rl.report.page.blocks import safe
from otel_rl.report.page.document import PageParts, to_script, write_document, write_page
from otel_rl.runs.locate import PENDING, is_run, recorded_below
from otel_rl.view.now import now_html
from otel_rl.view.reading_process import ReadingProcess, with_part

UNASKED_S: Final = 60.0
"""A run that nobody has asked for so long is no longer read."""
AGAIN_S: Final = 10.0
"""A process that ended by an error is started again after this time."""
MOST_RUNS: Final = 4
"""Runs that are read at the same time, unless more are looked at: the one that nobody has asked for longest goes."""
LEFT_S: Final = 20.0
"""A page that is hidden asks every ten seconds: after this time nobody looks."""
NOW_S: Final = 0.5
EVERYWHERE: Final = ("0.0.0.0", "::")
COOKIE: Final = "otel_rl_token"
NUMBER: Final = re.compile(r"[0-9]{1,15}")
ZIPPED: Final = 2_000
GONE: Final = "This run is gone: its directory is not there any more. What was read of it is still shown."
LIST: Final = ""
"""The key of the list of runs."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Viewer:
    """The runs below a directory, or one run alone, and the processes that read them."""

    def __init__(self, root: Path, run: Path | None = None) -> None:
        self.root, self.run = root, run
        self._lock = threading.Lock()
        self._readers: dict[str, ReadingProcess] = {}
        self._now: dict[str, tuple[float, str]] = {}
        self._nameless: dict[str, set[str]] = {}
        """What tells the writers of a run that has no name yet from all others, by key."""

    def key_of(self, path: Path) -> str:
        """Return what a run is called in addresses."""
        try:
            return str(path.relative_to(self.root))
        except ValueError:
            return str(path)

    def path_of(self, key: str) -> Path | None:
        """Return the run with a key, or what was opened as one; None if there is no such run now."""
        path = self.root / key
        if path == self.run:
            return path if path.exists() else None
        is_below = path.parent in (self.root, self.root / PENDING) and path.name != os.pardir and "\0" not in key
        return path if is_below and is_run(path) else None

    def reader(self, key: str) -> ReadingProcess | None:
        """Return what reads a run, or the list; None if there is no such run and none was read."""
        with self._lock:
            known = self._readers.get(key)
            if known is not None and not (known.has_ended and monotonic() - known.started_s > AGAIN_S):
                return known
            path = self.root if key == LIST else self.path_of(key)
            if path is None:
                return None
            by_age = sorted(self._readers.keys() - {LIST}, key=lambda one: self._readers[one].asked_s)
            left = [one for one in by_age if monotonic() - self._readers[one].asked_s > LEFT_S]
            self._close([key] if known else left[: max(0, len(by_age) - MOST_RUNS + 1)])
            module = "list_reader" if key == LIST else "run_reader"
            return self._readers.setdefault(key, ReadingProcess(module, str(path)))

    def now(self, key: str) -> str:
        """Return what the processes of a run are in."""
        at_s, html = self._now.get(key, (-NOW_S, ""))
        path = self.path_of(key)
        if path is not None and path.parent.name == PENDING:
            self._nameless[key] = _writers(path)
        if monotonic() - at_s >= NOW_S:
            html = '<section id="now" hidden></section>'
            with guard("show what is open"):
                html = now_html(path) if path is not None else html
            self._now[key] = monotonic(), html
        return html

    def sweep(self) -> None:
        """End what reads for nobody."""
        with self._lock:
            self._close([key for key, one in self._readers.items() if monotonic() - one.asked_s > UNASKED_S])

    def named(self, key: str) -> str | None:
        """Return the key of the run that one without a name has become; None if it is not known."""
        writers = self._nameless.get(key, set())
        return next((self.key_of(one) for one in recorded_below(self.root) if writers & _writers(one)), None)

    def close(self) -> None:
        with self._lock:
            self._close(list(self._readers))

    def _close(self, keys: list[str]) -> None:
        for key in keys:
            self._readers.pop(key).close()


def address_of(key: str) -> str:
    """Return where the page of a run is."""
    return f"/run/{quote(key, safe='')}"


def _writers(run: Path) -> set[str]:
    """Return the process and the random part of the name of each writer, which stay as its role and rank get known."""
    return {"-".join(one.name.partition(".")[0].split("-")[-2:]) for one in run.glob("*.otlp")}


def page_of(viewer: Viewer, key: str) -> str:
    """Return the page of a run, or the list, or what stands for it while it is read for the first time."""
    reader = viewer.reader(key)
    parts, epoch, version = reader.page() if reader is not None else (None, "", 0)
    title = "runs" if key == LIST else key
    if parts is None:
        parts = PageParts(title, {"head": f'<header id="head"><h1>{safe(title)}</h1></header>'}, {})
    link = "" if key == LIST else '<a href="/">all runs</a> · '
    parts = with_part(parts, "live", f'<p>{link}<output id="live" role="status"></output></p>', after="head")
    if key != LIST:
        parts = with_part(parts, "now", viewer.now(key), after="live")
    data = to_script({"url": f"/state/{quote(key, safe='')}", "epoch": epoch, "version": version})
    state = f'<script type="application/json" id="live-data">{data}</script><style>{_asset("live.css")}</style>'
    if "document" in parts.data:
        return write_page(parts, live=state, live_script=_asset("live.js"))
    return write_document(parts.title, [*parts.body.values(), state], [_asset("live.js")], is_live=True)


def state_of(viewer: Viewer, key: str, epoch: str, version: int) -> dict[str, Any]:
    """Return what a browser does not know yet."""
    if key != LIST and viewer.path_of(key) is None and (name := viewer.named(key)):
        return {"epoch": "", "said": "", "moved": address_of(name)}
    reader = viewer.reader(key)
    if reader is None:
        return {"epoch": "", "said": GONE}
    state = reader.state(epoch, version)
    if key == LIST:
        return state
    return state | {"now": viewer.now(key)} | ({} if viewer.path_of(key) else {"said": GONE})


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


class Server(ThreadingHTTPServer):
    """Answers browsers; its token is asked for unless it is empty."""

    daemon_threads = True

    def __init__(self, host: str, port: int, viewer: Viewer, token: str) -> None:
        self.viewer, self.token = viewer, token
        self.hosts = {host, "localhost", "127.0.0.1", "::1"} if is_loopback(host) else None
        """Names by which a browser may call it: on loopback no other, which a foreign page could have made its own."""
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), Handler)

    def service_actions(self) -> None:
        """Do what is to be done every half second."""
        self.viewer.sweep()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep silent about a browser that went away; errors of ours are caught where they happen."""

    def url(self, path: str = "/") -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        name = gethostname() if host in EVERYWHERE else f"[{host}]" if ":" in host else host
        return f"http://{name}:{port}{path}" + (f"?token={quote(self.token)}" if self.token else "")


class Handler(BaseHTTPRequestHandler):
    """Answers one browser."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "otel-rl"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer."""
        address = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        if not self._is_called_rightly():
            self._answer(HTTPStatus.FORBIDDEN, "This server is called by another name.")
        elif self.server.token and not self._has_token(query):
            self._answer(HTTPStatus.FORBIDDEN, "This address needs its token, which otel-rl view printed.")
        elif "token" in query:
            self._leave_token(address)
        else:
            with guard("answer a browser"), suppress(ConnectionError):
                self._route(address.path, query)
                return
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "An error in otel_rl, which standard error has.")

    def _route(self, path: str, query: dict[str, str]) -> None:
        place, _, name = path.removeprefix("/").partition("/")
        key, since, viewer = unquote(name), query.get("since", ""), self.server.viewer
        if place == "state":
            version = int(since) if NUMBER.fullmatch(since) else 0
            state = state_of(viewer, key, query.get("epoch", ""), version)
            self._answer(HTTPStatus.OK, json.dumps(state), "application/json")
        elif path == "/":
            self._answer(HTTPStatus.OK, page_of(viewer, LIST), "text/html")
        elif place == "run" and key and viewer.reader(key) is not None:
            self._answer(HTTPStatus.OK, page_of(viewer, key), "text/html")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "There is no such run. All runs are listed at /")

    def _is_called_rightly(self) -> bool:
        host = self.headers.get("Host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # brackets that are not closed
            return False
        return self.server.hosts is None or name in self.server.hosts

    def _has_token(self, query: dict[str, str]) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(self.headers.get("Cookie", ""))
        except CookieError:
            return False
        kept = cookies[COOKIE].value if COOKIE in cookies else ""
        return any(
            hmac.compare_digest(one.encode(), self.server.token.encode()) for one in (query.get("token", ""), kept)
        )

    def _leave_token(self, address: SplitResult) -> None:
        """Let the browser keep the token, so that it is in no further address."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/{address.path.lstrip('/')}")
        if self.server.token:
            self.send_header("Set-Cookie", f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        is_zipped = len(body) > ZIPPED and "gzip" in self.headers.get("Accept-Encoding", "")
        if is_zipped:
            body = gzip.compress(body, 1)
        self.send_response(status)
        for name, value in {
            **HEADERS,
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        if is_zipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: it would tell tokens, too."""

"""A server that answers as an OpenAI-compatible one does, with what a test gives it, and says when it did."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic_ns, sleep
from typing import Any

CHUNK_S = 0.003
"""Between two chunks of a stream."""

Answer = Callable[["Handler"], None]


@dataclass
class Server:
    """A running server."""

    url: str
    answer: Answer
    received: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """Path, headers (lower case) and body of every request."""
    came: list[int] = field(default_factory=list)
    """When they came, monotonic ns."""
    sent: list[int] = field(default_factory=list)
    """When each chunk of a stream began to be sent."""
    release: threading.Event = field(default_factory=threading.Event)
    """Ends the silence of a server that does not answer."""


class Handler(BaseHTTPRequestHandler):
    """Reads one request and lets the test's function answer it."""

    server_of_test: Server

    def do_POST(self) -> None:
        self.server_of_test.came.append(monotonic_ns())
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"null")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_of_test.received.append((self.path, headers, body))
        with suppress(ConnectionError):  # the client has left
            self.server_of_test.answer(self)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def begin(self, status: int, **headers: str) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


@contextmanager
def serve() -> Iterator[Server]:
    """Run a server; every request gets ``Server.answer``."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{httpd.server_port}/v1", answer=whole({}))
    httpd.RequestHandlerClass = type("Bound", (Handler,), {"server_of_test": server})
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def whole(content: Any, status: int = 200, **headers: str) -> Answer:
    """Answer at once."""

    def answer(handler: Handler) -> None:
        text = json.dumps(content).encode()
        handler.begin(status, content_type="application/json", content_length=str(len(text)), **headers)
        handler.wfile.write(text)

    return answer


def events(*chunks: Any, last: str = "[DONE]", promised: int | None = None) -> Answer:
    """Answer with a stream of server-sent events; ``promised`` bytes that do not come break the connection."""

    def answer(handler: Handler) -> None:
        length = {} if promised is None else {"content_length": str(promised)}
        handler.begin(200, content_type="text/event-stream", **length)
        for chunk in chunks:
            sleep(CHUNK_S)
            handler.server_of_test.sent.append(monotonic_ns())
            if chunk is SILENCE:
                handler.server_of_test.release.wait(60)
                return
            name = f"event: {chunk['type']}\n" if "type" in chunk else ""
            handler.wfile.write(f"{name}data: {json.dumps(chunk)}\n\n".encode())
            handler.wfile.flush()
        if last:
            handler.wfile.write(f"data: {last}\n\n".encode())

    return answer


SILENCE = object()
"""A chunk that never comes."""


def nothing(handler: Handler) -> None:
    """Never answer."""
    handler.server_of_test.release.wait(60)


def in_turn(*answers: Answer) -> Answer:
    """Answer the first request with the first, the second with the second."""
    left = iter(answers)

    def answer(handler: Handler) -> None:
        next(left)(handler)

    return answer


# --- contents ---------------------------------------------------------------------------------------------------------


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """Give the tokens of a completion."""
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}


def completion(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Give a chat completion."""
    rows = [
        {"index": index, "message": {"role": "assistant", "content": "a b"}, "finish_reason": "stop", **choice}
        for index, choice in enumerate(choices)
    ]
    return {"id": "c-1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": rows, **more}


def chunk(index: int = 0, content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Give one chunk of a streamed chat completion."""
    delta = {"content": content} if content is not None else {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": {} if finish and content is None else delta, "finish_reason": finish}
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return {**head, "choices": [choice], **more}


def last_usage(counts: dict[str, Any]) -> dict[str, Any]:
    """Give the chunk that holds the tokens and nothing else."""
    return {**chunk(), "choices": [], "usage": counts}


def response(status: str, **more: Any) -> dict[str, Any]:
    """Give a response of the responses API."""
    head = {"id": "r-1", "object": "response", "created_at": 1, "model": "tiny", "status": status}
    return {**head, "output": [], "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], **more}

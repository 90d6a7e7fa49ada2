"""Calls of the OpenAI client: what is asked, what the server says to it, and the rows that are noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_rl.requests.queue import Request
from tests.integrations import api_server as api
from tests.integrations.api_server import chunk, usage

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 7}
STREAM: dict[str, Any] = {**ASK, "stream": True}
TALK = (chunk(), chunk(content="a"), chunk(content=" b"), chunk(finish="length"), api.last_usage(usage(5, 3, 4)))


class Notes:
    """The rows that were noted, each with the span it belongs to."""

    def __init__(self) -> None:
        self.parents: list[Any] = []
        self.rows: list[Request] = []

    def __call__(self, read: Callable[..., Any], *arguments: Any, parent: Any = None) -> None:
        rows = list(map(Request._make, read(*arguments)))
        self.rows += rows
        self.parents += [parent] * len(rows)

    def untimed(self) -> list[Request]:
        """Give the rows without what no test can know: times, and ids that nobody gave."""
        return [row._replace(submitted=0, ended=0, first_token=0, last_token=0, replica="") for row in self.rows]


def keep(kept: list[Any]) -> Callable[..., None]:
    """Stand for ``record_requests`` while the flusher does not come."""

    def record(read: Callable[..., Any], *arguments: Any, parent: Any = None) -> None:
        kept.append((read, arguments))

    return record


def row(**fields: Any) -> Request:
    """Give what most rows of these tests have in common."""
    common = {"engine": "openai", "submitted": 0, "ended": 0, "streamed": True, "operation": "chat", "model": "tiny"}
    return Request(**{**common, "limit": 7, "id": "c-1", "sample": "c-1", **fields})  # type: ignore[arg-type]


ONE = row(input_tokens=5, output_tokens=3, cached_tokens=4, finish="length")

"""What is remembered of generation while this process records."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from otel_rl.process.memory import Memory

if TYPE_CHECKING:
    from otel_rl.integrations.openai.hooks import ApiStream
    from otel_rl.integrations.trl.rollouts import Sampling


class CountsUnfinished(Protocol):
    """What an integration remembers of one engine."""

    @property
    def unfinished(self) -> int:
        """Requests that are inside."""


class Generating(threading.local):
    """What this thread generates now with transformers."""

    call: Any = None
    """The innermost call of ``generate``."""
    marks: list[int] | None = None
    """When it began to decode and when each of its tokens was there; hooks of the kind ``marks`` append to it."""
    engine: Any = None
    """The continuous batching whose loop this thread runs."""
    indices: dict[int, int] | None = None
    """Places of the prompts that are being submitted together, by the prompt's ``id()``."""
    origin: Any = None
    """Engine and origin of the request that is being submitted."""
    error: str = ""
    """Class of the exception that fails the request which is given back next."""


@dataclass(eq=False)
class Generation(Memory):
    """What engines and trainers share."""

    thread: Generating = field(default_factory=Generating)
    sampling: Sampling | None = None
    """What the trainer says of the requests of its open rollout."""
    engines: set[CountsUnfinished] = field(default_factory=set)
    """Engines that the program has not dropped."""
    streams: WeakKeyDictionary[Any, ApiStream] = field(default_factory=WeakKeyDictionary)
    """The stream that is being read from each response of an API client."""
    recording: object = field(default_factory=object)
    """Another object in every recording and in a forked child: what a child inherits is its parent's to count."""


generation = Generation.keep("generation")

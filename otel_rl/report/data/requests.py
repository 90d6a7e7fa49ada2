"""What a report says of rollout requests, as data; a part of ``model.Report``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Values of many requests, as their histogram tells them: within 9 %, which is a bucket, of the truth."""

    count: int
    median: float
    p99: float
    longest: float
    """The greatest value, exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """The rollout requests of one engine and model, of all processes; a number that no request told is null."""

    engine: str
    model: str
    is_bulk: bool
    """Submitted all at once, so that `ttft_s` is the position in the queue."""
    is_evaluation: bool
    count: int
    """Requests that are over, however they ended."""
    aborted: int
    timed_out: int
    clipped: int
    """Cut at the length limit."""
    errors: int
    preemptions: int | None
    """As the requests tell them; null where they do not: see `engine_preemptions`."""
    ttft_s: Quantiles | None
    """First token - submit."""
    queue_s: Quantiles | None
    """Scheduled - submit."""
    prefill_s: Quantiles | None
    """First token - scheduled."""
    tpot_s: Quantiles | None
    """(Last - first token) / (n - 1)."""
    duration_s: Quantiles | None
    prompt_tokens: Quantiles | None
    response_tokens: Quantiles | None
    cached_tokens: Quantiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What the slowest requests of the rollouts of the training cost, mean by the rollouts' time."""

    slowest: float
    """Which: this share of the requests."""
    share: float
    """Of the rollouts' time, the part in which nothing else is left to generate."""
    step_share: float | None
    """The same as part of the step time; null where the rollouts are no stage `rl.sample`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreemptions:
    """Preemptions as an engine tells them, of all its requests together."""

    engine: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequests:
    """Requests with something that cannot be."""

    reason: str
    """A word of docs/requests.md."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The rollout requests of a run."""

    rows: list[RequestRow]
    tails: list[Tail]
    bubble: float | None
    """Slots of the engines that idle at the end of rollouts, as part of slots x rollout time."""
    kv_cache_peak: float | None
    engine_preemptions: list[EnginePreemptions]
    """Of engines whose requests do not tell them; an engine that does not either is not there."""
    spans: int
    """Requests that are spans."""
    omitted: int
    """Requests that did not become spans; what a rollout keeps is decided, and told, at its end."""
    bad: list[BadRequests]

"""What a report reads in a span: the attributes that it asks for, the rank, the work that was done."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import add
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.journal.read import OpenView, SpanView
from otel_rl.records import Value
from otel_rl.report.data.ranks import Rank
from otel_rl.runs.spans import integer, text

KEYS: Final = (
    v.ITERATION, v.LOOP_NAME, v.MODE, v.IDLE_REASON, v.LOGPROB_KIND, v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE,
    v.TOKENS_ENVIRONMENT, v.TOKENS_PADDING, v.SAMPLE_BATCH_SIZE, v.BATCH_SIZE, v.COMM_COUNT, v.COMM_TIME, v.COMM_HIDDEN,
    v.CLOCK,
    v.TRUNCATED, v.ERROR_TYPE, v.SUBMISSION, v.COMM_OPERATION, v.COMM_ASYNC, v.OPTIMIZER_SKIPPED, v.CHECKPOINT_ASYNC,
    v.DEVICE_TIME, v.COMM_BYTES, v.COMM_GROUP, v.COMM_GROUP_SIZE, v.COMM_SEQUENCE, v.CHECKPOINT_LOAD, v.CLOCK_SET,
    v.LOOP_RESTART_OF, v.CPU_TIME, v.ALGORITHM, v.MODEL_NAME, *v.ALL_SETTINGS,
)  # fmt: skip
ERROR: Final = 2
MOST_SET_NS: Final = 1 << 62
"""No clock is set by that; a crafted journal may say anything."""


class WorkSums(NamedTuple):
    """Counts of what was handled: samples and tokens."""

    samples: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    environment_tokens: int = 0
    padding_tokens: int = 0
    """Padding of the forwards that say their tokens, too."""
    padded_tokens: int = 0
    forward_tokens: int = 0
    train_tokens: int = 0
    """Tokens that the loss uses, as far as the forwards say which are prompts or of an environment."""
    has_samples: int = 0
    """So many stages say how many there were; a sum of which none says anything is not known, rather than 0."""
    has_prompts: int = 0
    has_responses: int = 0
    has_environment: int = 0
    has_trained: int = 0
    has_generated: int = 0
    """So many of those say which of their tokens the policy generated."""

    @property
    def padding(self) -> int | None:
        """All padding positions; None if a forward that says its tokens does not say them, or if none does."""
        is_said = self.padded_tokens == self.forward_tokens and self.padded_tokens + self.padding_tokens
        return self.padding_tokens if is_said else None

    def plus(self, other: WorkSums) -> WorkSums:
        return WorkSums(*map(add, self, other))

    def most(self, other: WorkSums) -> WorkSums:
        """Return the larger of each count: of ranks that share their samples some may count what others do not see."""
        return WorkSums(*map(max, self, other))


def clock_set_ns(view: SpanView | OpenView) -> int:
    """Return by how much the wall clock of a container's process had been set when it began, ns."""
    set_ns = integer(view.attributes, v.CLOCK_SET)
    return set_ns if abs(set_ns) < MOST_SET_NS else 0


def begun_ns(view: SpanView | OpenView) -> int:
    return view.start_ns - clock_set_ns(view)


def rank_of(resource: Mapping[str, Value]) -> Rank:
    return _rank(text(resource, v.ROLE) or "trainer", integer(resource, v.RANK))


_rank: Final = lru_cache(maxsize=4096)(Rank)


def sampled(attributes: Mapping[str, Value], samples: int, *, is_said: bool = True) -> WorkSums:
    """Return what a rollout, or one trajectory, says of its samples and tokens."""
    return WorkSums(
        samples=samples,
        prompt_tokens=integer(attributes, v.TOKENS_PROMPT),
        response_tokens=integer(attributes, v.TOKENS_RESPONSE),
        environment_tokens=integer(attributes, v.TOKENS_ENVIRONMENT),
        has_samples=is_said,
        has_prompts=v.TOKENS_PROMPT in attributes,
        has_responses=v.TOKENS_RESPONSE in attributes,
        has_environment=v.TOKENS_ENVIRONMENT in attributes,
    )

"""Groups of samples between the driver, which submits prompts and trains on what came of them, and the rollouts.

A group that may outlive the step that submits it is a trace of its own, with ids that derive from its key (the uid of
its prompt). The step that trains on it links to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs, Memory
from otel_rl.metrics.record import count, gauge
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.records import Count, Value
from otel_rl.trace.apart import link_apart
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost
from otel_rl.trace.throughput import ENVIRONMENT, PROMPT, RESPONSE

QUEUE = (vocabulary.IDLE_REASON, "queue")
"""Of a wait for samples, for room in a queue, or for a server."""
OF_SAMPLE = vocabulary.MODE, vocabulary.GROUP_ID, vocabulary.SAMPLE_ID


@dataclass(eq=False)
class Groups(Memory):
    """What a process that makes rollouts remembers of the prompts that it has, and of its calls to servers."""

    submitted: dict[str, Carrier] = field(default_factory=dict)
    """Carrier of the call that brought a prompt, by the prompt's key, until it is taken."""
    in_flight: Counter[str] = field(default_factory=Counter)
    """Open calls by server."""


groups = Groups.keep("groups")


# --- submit -----------------------------------------------------------------------------------------------------------


def remember_submitted(keys: Iterable[str]) -> None:
    """Keep which call submitted these prompts: the task that works on one may serve the submissions of many steps."""
    carrier = Carrier.current()
    if carrier is not None:
        groups.submitted.update(dict.fromkeys(keys, carrier))


# --- roll out ---------------------------------------------------------------------------------------------------------


def count_samples(samples: int, prompt: int, response: int, environment: int) -> None:
    """Count samples for training that are complete, and their tokens by who wrote them."""
    for record in sample_counts(samples, prompt, response, environment):
        state.add(record)


def sample_counts(samples: int, prompt: int, response: int, environment: int) -> tuple[Count, ...]:
    """Return the records of ``count_samples``, for functions of the flusher."""
    kinds = (PROMPT, prompt), (RESPONSE, response), (ENVIRONMENT, environment)
    tokens = (Count(vocabulary.SAMPLE_TOKENS, number, kind) for kind, number in kinds)
    return Count(vocabulary.SAMPLES, samples), *tokens


def server_acquired(server: str) -> None:
    """Count a call that a server gets, and name the server on the turn that makes it."""
    groups.in_flight[server] += 1
    _show_in_flight(server)
    turn = innermost()
    if turn is not None and turn.name == vocabulary.SAMPLE_TURN:
        turn.set_attribute(vocabulary.REPLICA, server)


def server_released(server: str) -> None:
    """Count a call that a server has answered."""
    if groups.in_flight[server]:
        groups.in_flight[server] -= 1
        _show_in_flight(server)


def _show_in_flight(server: str) -> None:
    gauge(vocabulary.IN_FLIGHT, groups.in_flight[server], (vocabulary.REPLICA, server))


def count_attempt(args: Args, kwargs: Kwargs) -> None:
    """Count a call that a turn makes again, because a server aborted it to get new weights."""
    turn = innermost()
    if turn is not None and turn.name == vocabulary.SAMPLE_TURN:
        made = (turn.attributes or {}).get(vocabulary.ATTEMPTS, 0)
        turn.set_attribute(vocabulary.ATTEMPTS, int(made) + 1)  # type: ignore[arg-type]


def of_sample(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Repeat whose work this is, as the stage around it says: servers learn from it whether it is an evaluation's."""
    stage = innermost()
    said = (stage and stage.attributes) or {}
    return {key: said[key] for key in OF_SAMPLE if key in said}


def versions_of(versions: Iterable[tuple[int, int]]) -> dict[str, Value]:
    """Return the policy versions of the first and the last token; each pair is of one answer."""
    known = list(versions)
    if not known:
        return {}
    first, last = min(first for first, _ in known), max(last for _, last in known)
    return {vocabulary.POLICY_VERSION: first, vocabulary.POLICY_VERSION_END: last}


# --- queue ------------------------------------------------------------------------------------------------------------


def show_groups(numbers: Mapping[str, int], mode: str) -> None:
    """Record how many groups are in each state (``pending``, ``running``, ``finished``, ``failed``)."""
    for kind, number in numbers.items():
        gauge(vocabulary.GROUPS, number, (vocabulary.GROUP_STATE, kind), (vocabulary.MODE, mode))


def count_dropped(number: int, reason: str, mode: str) -> None:
    """Count groups that no step will train on, and why (``stale``, ``filtered``, ``failed``, ``surplus``)."""
    count(vocabulary.GROUPS_DROPPED, number, (vocabulary.DROPPED_BECAUSE, reason), (vocabulary.MODE, mode))


def group_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Let the group around a function fail with it, and count it: the framework catches the exception and goes on."""
    group = innermost()
    if group is not None and group.name == vocabulary.SAMPLE_GROUP:
        group.fail(error)
        count_dropped(1, "failed", str((group.attributes or {}).get(vocabulary.MODE, "train")))


# --- consume ----------------------------------------------------------------------------------------------------------


def lags_of(lags: Iterable[int], newest: int) -> dict[str, Value]:
    """Record how old the weights are that a step's samples were made with, and return it for the span of the wait.

    Args:
        lags: of each sample, by how many versions its policy is older than the newest; of none nothing is recorded.
        newest: version of the policy that the step trains.
    """
    known = list(lags)
    if not known:
        return {}
    stale = sum(lag > 0 for lag in known)
    gauge(vocabulary.SAMPLE_LAG, fmean(known))
    gauge(vocabulary.SAMPLE_LAG_MAX, max(known))
    gauge(vocabulary.SAMPLE_STALE, stale / len(known))
    return {vocabulary.POLICY_VERSION: newest, vocabulary.LAG_MAX: max(known), vocabulary.STALE_COUNT: stale}


def link_groups(samples: Iterable[tuple[str, int | None]], stage: Stage | None = None) -> None:
    """Link a stage, or the open step, to the groups that it takes.

    Args:
        samples: key of the group and lag of each sample; the link has the greatest lag of its group.
        stage: None: the root of the open step.
    """
    links: dict[str, dict[str, Value]] = {}
    for key, lag in samples:
        said = links.setdefault(key, {vocabulary.GROUP_ID: key})
        if lag is not None:
            said[vocabulary.POLICY_LAG] = max(lag, int(said.get(vocabulary.POLICY_LAG, 0)))  # type: ignore[arg-type]
    tree = None if tracing.loop is None else tracing.loop.tree
    taker = stage if stage is not None or tree is None else tree.root or tree.container
    if taker is not None:
        link_apart(taker, links)

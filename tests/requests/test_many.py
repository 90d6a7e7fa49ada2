"""Readers that read many finished requests in one go: nothing of one comes into the row of another."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf, nan
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.integrations.sglang import _answer as read_answer
from otel_rl.integrations.vllm.finished import rows as read_sequence
from otel_rl.integrations.vllm.rows import Batch, Engine, Shown
from otel_rl.process.state import state
from otel_rl.requests.api import _rows as read_given
from otel_rl.requests.queue import OneOf, Request, Row
from tests.integrations.vllm_shapes import VERSIONS, FinishReason, Kind, Parent, Queue, S, Stats
from tests.integrations.vllm_shapes import Request as Submitted
from tests.integrations.vllm_shapes import Sequence as Shape

Reader = Any
"""With ``many``."""


def both(read: Reader, run: Sequence[tuple[Any, ...]]) -> tuple[list[Request], list[Request]]:
    """Read the requests of a run one by one, and together."""
    together = read.many(*map(list, zip(*run, strict=True)))
    return [row for arguments in run for row in read(*arguments)], list(map(Request._make, together))


def test_one_is_read_as_many_of_one() -> None:
    """Of a function that reads many, a reader of one is made."""
    row = Request("mine", 1, 2)

    def many(names: Sequence[str], ends: Sequence[int]) -> list[Row]:
        return [tuple(row._replace(engine=name, ended=end)) for name, end in zip(names, ends, strict=True) if end]

    read: Reader = OneOf(many)
    (found,) = read("yours", 3)
    assert (("yours", 1, 3), Request, []) == (found[:3], type(found), read("yours", 0))
    assert (many(["a", "b"], [1, 2]), many) == (read.many(["a", "b"], [1, 2]), read.many)


# --- vLLM -------------------------------------------------------------------------------------------------------------

ENDED = 100 * S
TOLD = st.sampled_from([0.0, 98.0, 98.5, 99.0, 99.995, 100.005, 110.0, 5000.0])
"""By an engine core's clock, s: as it should be, 0 where unknown, out of order, another host's."""


def place(index: int, rows: int) -> tuple[str, str]:
    """Name sample and group of one of the two rows that a trainer's rollout has."""
    return (f"train-1.{index}", "train-1.0") if rows == 2 else ("", "")


def engine(*, is_shared: bool, places: int) -> tuple[Engine, Batch]:
    """Make an engine of two ranks, and a trainer's batch of so many rows."""
    made, batch = Engine(), Batch(SimpleNamespace(policy=6, place=place))
    made.model, made.replica, made.is_shared, made.ranks = "tiny", "0", is_shared, 2
    batch.places = {f"1_{number}": number for number in range(places)}
    return made, batch


ENGINES = [engine(is_shared=True, places=4), engine(is_shared=False, places=4), engine(is_shared=True, places=2)]


@st.composite
def stats(draw: st.DrawFn, version: tuple[int, int]) -> Stats:
    """Make what an engine tells of the times of a sequence."""
    made = Stats(version, (state.clock.anchor + 98 * S) / S)
    times = [draw(TOLD) for _ in range(3)]
    made.tell(*(sorted(times) if draw(st.booleans()) else times))
    if version >= (0, 10):
        made.first_token_latency = draw(st.sampled_from([0.0, 0.5, 1.0, -3.0]))
    return made


@st.composite
def sequences(draw: st.DrawFn) -> Any:
    """Make a sequence of any version and kind."""
    version = draw(st.sampled_from(list(VERSIONS.values())))
    name = f"{draw(st.integers(1, 2))}_{draw(st.integers(0, 4))}"
    parent, queue = draw(st.sampled_from([None, Parent("7")])), draw(st.sampled_from([None, Queue()]))
    made: Any = Shape(version, Submitted(version, name, 0.0), parent, queue)
    made.output_kind = draw(st.sampled_from(Kind))
    made.max_tokens_param = draw(st.sampled_from([None, 32]))
    made.stats = draw(st.none() | stats(version))
    if version >= (0, 14):
        made.external_req_id = draw(st.sampled_from(["", "mine"]))
    if version >= (0, 32):
        made.input_chunk_queue = draw(st.sampled_from([None, None, None, deque()]))
        made.weight_version_starts = draw(st.sampled_from([[], [("3", 0)], [("3", 0), ("4", 2)], [("last", 0)]]))
    return made


@st.composite
def looks(draw: st.DrawFn) -> Shown | None:
    """Make what is known of when a caller got the outputs."""
    if draw(st.booleans()):
        return None
    shown = Shown(0.0)
    shown.submitted, shown.first, shown.last = (
        97 * S,
        draw(st.sampled_from([0, 99 * S])),
        draw(st.integers(99, 101)) * S,
    )
    return shown


@st.composite
def endings(draw: st.DrawFn) -> tuple[Any, ...]:
    """Make what is noted of a sequence that is over."""
    engine, batch = draw(st.sampled_from(ENGINES))
    error = draw(st.sampled_from(["", "EngineDeadError"]))
    how = engine, draw(st.integers(-1, 2)), error, draw(st.sampled_from([None, batch]))
    sequence = draw(sequences())
    arrival = 0.0 if sequence.stats else draw(st.sampled_from([0.0, (state.clock.anchor + 97 * S) / S]))
    reason = draw(st.sampled_from([*FinishReason, "abort", "error"]))
    return how, sequence, draw(st.integers(0, 3)), arrival, draw(looks()), reason, ENDED


@given(st.lists(endings(), min_size=1, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8))
def test_sequences_of_vllm(run: list[tuple[Any, ...]], held: list[bool]) -> None:
    """Of all versions and kinds, as they are and as what was read of them when they ended."""
    expected, found = both(read_sequence, run)
    assert expected == found
    kept = [
        one if is_held else (one[0], one[0][0].read(one[1]), *one[2:]) for one, is_held in zip(run, held, strict=False)
    ]
    assert (expected, expected) == both(read_sequence, kept)


# --- SGLang -----------------------------------------------------------------------------------------------------------


@st.composite
def answers(draw: st.DrawFn) -> tuple[Any, ...]:
    """Make a call of one sequence and what that says of itself."""
    obj = SimpleNamespace(
        rid=draw(st.sampled_from(["a", "HEALTH_CHECK_1.5", None])),
        stream=False,
        sampling_params=draw(st.sampled_from([None, {}, {"max_new_tokens": 9}, [{"max_new_tokens": 8}]])),
    )
    told: dict[str, Any] = {"finish_reason": draw(st.sampled_from([{"type": "stop"}, {"type": "length"}, "abort"]))}
    optional = {"id": "a", "prompt_tokens": 5, "e2e_latency": 0.25, "weight_version": "7", "dp_rank": 1}
    told |= {name: value for name, value in optional.items() if draw(st.booleans())}
    manager = SimpleNamespace(model_path=draw(st.sampled_from(["tiny", "/models/tiny", None])))
    return manager, obj, draw(st.integers(1, ENDED)), told, ENDED, draw(st.sampled_from([None, 0]))


@given(st.lists(answers(), min_size=1, max_size=8))
def test_answers_of_sglang(run: list[tuple[Any, ...]]) -> None:
    """Each of a sample of its own; health checks are none of them."""
    expected, found = both(read_answer, run)
    assert len(found) == len({row.sample for row in found})
    assert [row._replace(sample="") for row in expected] == [row._replace(sample="") for row in found]


# --- an engine of one's own -------------------------------------------------------------------------------------------

GIVEN_TIMES = st.sampled_from([None, 1.5, 2, 0.0, -1.0, nan, inf])
GIVEN_COUNTS = st.sampled_from([None, 3, 0, -4, True, 2.5])


@st.composite
def given_values(draw: st.DrawFn) -> tuple[Any, ...]:
    """Make what was said of a request."""
    times, counts = [draw(GIVEN_TIMES) for _ in range(5)], [draw(GIVEN_COUNTS) for _ in range(8)]
    error = draw(st.sampled_from([None, ValueError, "ValueError"]))
    clock = draw(st.sampled_from(["monotonic", "wall", "perf_counter"]))
    words = ["chat", "m", "id", "sample", "group"]
    return (
        ("mine", *times, *counts[:3], "stop", error, counts[3], False, *words, *counts[4:7], "", counts[7], clock, S),
    )


@given(st.lists(given_values(), min_size=1, max_size=8))
def test_what_was_said_of_requests(run: list[tuple[Any, ...]]) -> None:
    """By any clock, with what is left out and what cannot be."""
    expected, found = both(read_given, run)
    assert repr(expected) == repr(found)  # nan is no number's equal

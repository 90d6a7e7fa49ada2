"""observe() from end to end: MFU of published configurations by hand, planted faults, bad input, clean runs."""

from __future__ import annotations

import math
import random
import threading
from collections import UserDict
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.observing import api
from otel_rl.observing.book import book
from otel_rl.observing.network import formula_of
from otel_rl.probes import deferred
from otel_rl.probes.deferred import deferral
from otel_rl.process import state as runtime
from otel_rl.process.state import state
from tests.analysis.test_flops import DEEPSEEK_V2_LITE, QWEN_0_5B, QWEN_7B, QWEN_30B_A3B
from tests.fixtures import Recording

H100 = 989.4e12
"""FLOP/s."""
COUNTED = "rl.logprob, rl.train, rl.train.forward, rl.value, or in a stage of your own inside of these"


@pytest.fixture
def known_peak(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A recording on a CPU whose peak the user says."""
    monkeypatch.setenv("OTEL_RL_PEAK_FLOPS", "989.4e12")
    return stubbed.start()


def numbers(run: Run, name: str) -> dict[Any, list[float]]:
    """Give the points of a metric by scope, stage or fault."""
    found: dict[Any, list[float]] = {}
    for point in run.points(name):
        keys = (v.FLOPS_SCOPE, v.FLOPS_STAGE, v.LEDGER_FAULT, v.REASON)
        found.setdefault(next(point.attributes[key] for key in keys if key in point.attributes), []).append(point.value)
    return found


def mismatches(run: Run) -> list[tuple[int, str, str]]:
    """Give step, boundary and fault of every mismatch, and see that nothing else says otherwise."""
    logs = list(run.logs(v.LEDGER_MISMATCH))
    assert {13} >= {log.severity for log in logs}
    return [
        (int(log.attributes[v.ITERATION]), str(log.attributes[v.LEDGER_BOUNDARY]), str(log.attributes[v.LEDGER_FAULT]))
        for log in logs
    ]


# --- FLOPs and MFU ----------------------------------------------------------------------------------------------------

PUBLISHED = [
    # tokens of each sequence, operations of a forward by hand (``analysis/test_flops.py`` adds them up)
    pytest.param(QWEN_0_5B, [2048], 2_203_653_767_168, id="Qwen2.5 0.5B"),
    pytest.param(QWEN_7B, [16384], 285_555_195_641_856, id="Qwen2.5 7B"),
    pytest.param(QWEN_30B_A3B, [4096], 2 * 4096 * 3_029_073_920 + 48 * 2 * 32 * 128 * 4096**2, id="a MoE"),
    pytest.param(DEEPSEEK_V2_LITE, [4096], 2 * 4096 * 2_447_914_496 + 27 * 16 * 320 * 4096**2, id="MLA"),
]


@pytest.mark.parametrize(("config", "lengths", "forward"), PUBLISHED)
def test_mfu_is_what_a_hand_computes(
    known_peak: Recording, config: dict[str, Any], lengths: list[int], forward: int
) -> None:
    """Half a second of log-probabilities, 1.5 s of update in four stages, a step of 4 s; padding is not counted."""
    longest = max(lengths)
    mask = torch.zeros(2, longest + 7, dtype=torch.long)
    mask[0, 7:] = 1  # padded on the left; the second sequence is empty
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            otel_rl.observe(batch={"attention_mask": mask})  # what a rollout computes is not counted
            known_peak.tick(1900)
        with otel_rl.stage("logprob"):
            otel_rl.observe(model=config, batch={"attention_mask": mask})
            known_peak.tick(500)
        with otel_rl.stage("train.forward"):
            otel_rl.observe(batch={"attention_mask": mask})
            known_peak.tick(400)
        for name, ms in (("train.backward", 800), ("train.clip", 100), ("train.optimizer", 200)):
            with otel_rl.stage(name):
                known_peak.tick(ms)
        known_peak.tick(100)
    run = known_peak.stop()
    assert {"rl.logprob": [forward], "rl.train.forward": [3 * forward]} == numbers(run, v.FLOPS)
    rates = {"update": [3 * forward / 1.5], "logprob": [forward / 0.5], "step": [4 * forward / 4.0]}
    assert rates == numbers(run, v.FLOPS_RATE)
    mfu = {scope: [pytest.approx(rate / H100, rel=1e-12)] for scope, (rate,) in rates.items()}
    assert mfu == numbers(run, v.MFU)
    update = next(point for point in run.points(v.MFU) if point.attributes[v.FLOPS_SCOPE] == "update")
    assert {
        v.FLOPS_SCOPE: "update",
        v.FLOPS_FORMULA: "megatron",
        v.FLOPS_PEAK: H100,
        v.FLOPS_PEAK_SOURCE: "given by the user",
    } == update.attributes


def test_without_a_peak_there_is_no_mfu(recording: Recording) -> None:
    """FLOP/s only, as on any CPU; one point for each step that has operations."""
    for number in (1, 2, 3):
        with otel_rl.step(number), otel_rl.stage("train.forward"):
            if number != 2:
                otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
            recording.tick(1000)
    run = recording.stop()
    assert {"update": [6_610_961_301_504.0] * 2, "step": [6_610_961_301_504.0] * 2} == numbers(run, v.FLOPS_RATE)
    assert {} == numbers(run, v.MFU)


def test_overlapping_stages_of_the_update_count_once(recording: Recording) -> None:
    """A stage around the others, and what lies between them."""
    with otel_rl.step(1), otel_rl.stage("train"):
        with otel_rl.stage("train.forward"):
            otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
            recording.tick(1000)
        recording.tick(500)
        with otel_rl.stage("train.backward"):
            recording.tick(500)
    assert [6_610_961_301_504 / 2] == numbers(recording.stop(), v.FLOPS_RATE)["update"]


def test_a_model_whose_flops_cannot_be_known_has_no_number(recording: Recording) -> None:
    """One log record says why, however often it is shown; a known model beside it keeps its scope."""
    for number in (1, 2):
        with otel_rl.step(number):
            with otel_rl.stage("logprob"):
                otel_rl.observe(model={"model_type": "mamba"}, batch={"lengths": [4]})
                recording.tick(1000)
            with otel_rl.stage("train.forward"):
                otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
                recording.tick(1000)
    run = recording.stop()
    notes = [(log.severity, log.body) for log in run.logs(v.FLOPS_NOTE)]
    assert [(13, "the FLOPs of this model cannot be known: model type 'mamba'")] == notes
    assert ({"rl.train.forward"}, {"update"}) == (set(numbers(run, v.FLOPS)), set(numbers(run, v.FLOPS_RATE)))


def observed_inside(recording: Recording, stages: list[str]) -> Run:
    """Show a batch with a loss that is NaN inside of stages, one inside the other."""
    with otel_rl.step(1), ExitStack() as around:
        for name in stages:
            around.enter_context(otel_rl.stage(name))
        otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048], "loss": torch.tensor(math.nan)})
        recording.tick(1000)
    return recording.stop()


@pytest.mark.parametrize(
    ("stages", "boundary"),
    [
        (["train", "train.optimizer"], "rl.train"),
        (["train", "mine", "train.optimizer"], "mine"),
        (["train", "train.optimizer", "mine"], "mine"),
        (["train", "train.optimizer", "train.optimizer"], "rl.train"),
    ],
)
def test_what_the_step_of_an_optimizer_calls_belongs_to_the_stage_around_it(
    recording: Recording, stages: list[str], boundary: str
) -> None:
    """A closure, which computes the loss: nobody who writes one opens the stage that is between."""
    run = observed_inside(recording, stages)
    assert ({"rl.train": [3 * 2_203_653_767_168]}, []) == (numbers(run, v.FLOPS), list(run.logs(v.FLOPS_NOTE)))
    assert [(1, boundary, "values that are NaN or infinite")] == mismatches(run)


@pytest.mark.parametrize(
    ("stages", "counted", "passes"),
    [
        (["train.forward", "my loss"], "rl.train.forward", 3),
        (["train", "epoch", "micro batch"], "rl.train", 3),
        (["logprob", "reference"], "rl.logprob", 1),
        (["train", "logprob", "mine"], "rl.logprob", 1),
    ],
)
def test_a_stage_of_your_own_is_a_part_of_the_one_around_it(
    recording: Recording, stages: list[str], counted: str, passes: int
) -> None:
    """FLOPs are those of the nearest stage of ours; the ledger's boundary has the name of where it was shown."""
    run = observed_inside(recording, stages)
    assert ({counted: [passes * 2_203_653_767_168]}, []) == (numbers(run, v.FLOPS), list(run.logs(v.FLOPS_NOTE)))
    assert [(1, stages[-1], "values that are NaN or infinite")] == mismatches(run)


@pytest.mark.parametrize(
    "stages", [["train.forward critic"], ["mine", "inner"], ["train.backward"], ["train.optimizer"], []]
)
def test_operations_that_no_stage_counts_are_said_once(recording: Recording, stages: list[str]) -> None:
    """However many such stages there are; a step alone is none either."""
    for number in (1, 2):
        with otel_rl.step(number), ExitStack() as around:
            for name in stages:
                around.enter_context(otel_rl.stage(name if number == 1 else f"{name} again"))
            otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
            recording.tick(1000)
    run = recording.stop()
    names = {"train.backward": "rl.train.backward", "train.optimizer": "rl.loop", "": "rl.loop"}
    shown = names.get("".join(stages), "".join(stages[-1:]))
    text = f"FLOPs are counted of batches that are shown in {COUNTED}: not in {shown}"
    assert ({}, [(9, text)]) == (
        numbers(run, v.FLOPS),
        [(log.severity, log.body) for log in run.logs(v.FLOPS_NOTE)],
    )


@pytest.mark.parametrize("stages", [["sample"], ["sample", "mine"], ["train", "sample", "mine"], ["train", "reward"]])
def test_what_is_no_pass_of_a_model_is_silently_not_counted(recording: Recording, stages: list[str]) -> None:
    """Rollouts and rewards, whatever is around them."""
    with otel_rl.step(1), ExitStack() as around:
        for name in stages:
            around.enter_context(otel_rl.stage(name))
        otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
    run = recording.stop()
    assert ({}, []) == (numbers(run, v.FLOPS), list(run.logs(v.FLOPS_NOTE)))


def test_stages_of_set_up_are_not_kept(recording: Recording) -> None:
    """It may last as long as the process, as where an engine serves that knows of no steps."""
    otel_rl.observe(model=QWEN_0_5B)
    with otel_rl.stage("logprob"):
        pass
    otel_rl.flush(5)
    before = [trace.step for trace in book.steps]
    with otel_rl.step(1), otel_rl.stage("logprob"):
        pass
    otel_rl.flush(5)
    assert ([], ["train 1"]) == (before, [trace.step for trace in book.steps])


def test_a_step_that_fails_has_no_rate(recording: Recording) -> None:
    """But the rows of what it handled: NaN is often why."""
    with pytest.raises(LookupError), otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048], "loss": torch.tensor(math.nan)})
        recording.tick(1000)
        raise LookupError
    run = recording.stop()
    assert [(1, "rl.train.forward", "values that are NaN or infinite")] == mismatches(run)
    assert {} == numbers(run, v.FLOPS_RATE)


# --- the ledger -------------------------------------------------------------------------------------------------------


class Loop:
    """A loop that shows its batches as a careful user would: rollout, log-probabilities, two micro-batches."""

    ROWS, COLUMNS = 4, 24

    def __init__(self, seed: int = 0) -> None:
        self.draw = torch.Generator().manual_seed(seed)

    def step(self, number: int, plant: Callable[[dict[str, Any]], None] = lambda batch: None) -> None:
        """Do one step; ``plant`` changes what training gets."""
        shape = (self.ROWS, self.COLUMNS)
        lengths = torch.randint(10, self.COLUMNS - 1, (self.ROWS, 1), generator=self.draw)
        mask = (torch.arange(self.COLUMNS) < lengths).long()
        ids = torch.randint(1, 150_000, shape, generator=self.draw) * mask
        rolled = -(torch.rand(shape, generator=self.draw) * 3.7 + 0.3) * mask
        noise = torch.rand(shape, generator=self.draw) * 0.08 - 0.04
        batch = {"completion_ids": ids, "completion_mask": mask, "rollout_logprobs": rolled}
        with otel_rl.step(number):
            with otel_rl.stage("sample"):
                otel_rl.observe(batch=batch)
            batch["old_logprobs"] = rolled + noise
            with otel_rl.stage("logprob"):
                otel_rl.observe(batch=batch)
            batch = {key: value.clone() for key, value in batch.items()}
            plant(batch)
            for rows in (slice(0, 2), slice(2, 4)):
                with otel_rl.stage("train.forward"):
                    loss = torch.tensor(0.1 * number)
                    otel_rl.observe(batch={"loss": loss, **{key: value[rows] for key, value in batch.items()}})


def shift_tokens(batch: dict[str, Any]) -> None:
    """Lose the first token of every row."""
    batch["completion_ids"] = torch.roll(batch["completion_ids"], -1, 1)


def shift_mask(batch: dict[str, Any]) -> None:
    """Move the mask by one."""
    batch["completion_mask"] = torch.roll(batch["completion_mask"], 1, 1)


def pad_logprobs(batch: dict[str, Any]) -> None:
    """Fill what is missing with zeros."""
    batch["rollout_logprobs"][:, 5:] = 0.0


def shift_logprobs(batch: dict[str, Any]) -> None:
    """Move the engine's logprobs by one."""
    logprobs = batch["rollout_logprobs"]
    batch["rollout_logprobs"] = torch.cat([logprobs[:, :1], logprobs[:, :-1]], 1)


def permute(batch: dict[str, Any]) -> None:
    """Exchange rows, all of their columns alike."""
    for key in batch:
        batch[key] = batch[key][[2, 1, 0, 3]]


def spoil(batch: dict[str, Any]) -> None:
    """Make one value infinite."""
    batch["old_logprobs"][1, 3] = math.inf


def cut(batch: dict[str, Any]) -> None:
    """Lose a column of the logprobs and one more."""
    batch["old_logprobs"] = batch["old_logprobs"][:, :-2]


BETWEEN = "rl.logprob -> rl.train.forward"
FORWARD = "rl.train.forward"


@pytest.mark.parametrize(
    ("plant", "boundary", "fault"),
    [
        (shift_tokens, BETWEEN, "tokens shifted by one"),
        (shift_mask, BETWEEN, "mask off by one"),
        (permute, BETWEEN, "permuted batch"),
        (pad_logprobs, FORWARD, "logprobs padded with zeros"),
        (shift_logprobs, FORWARD, "logprobs shifted by one"),
        (spoil, FORWARD, "values that are NaN or infinite"),
        (cut, FORWARD, "other shape or type"),
    ],
)
def test_a_planted_fault_is_named(recording: Recording, plant: Any, boundary: str, fault: str) -> None:
    """In its step, at its boundary; the steps around it are clean."""
    loop = Loop()
    for number in range(1, 6):
        loop.step(number, plant if number == 3 else lambda batch: None)
    run = recording.stop()
    assert [(3, boundary, fault)] == mismatches(run)
    assert {fault: [1]} == numbers(run, v.LEDGER_FAULTS)
    state.dropped.clear()


@pytest.mark.parametrize("key", ["loss", "advantages"])
@pytest.mark.parametrize("micro", [2, 4])
def test_a_call_of_its_own_hides_no_fault(recording: Recording, key: str, micro: int) -> None:
    """What is shown after each micro-batch, without ids: the tokens are compared, and its own values judged."""
    ids, values = np.arange(1, 25).reshape(4, 6) ** 2, {"loss": math.inf, "advantages": [0.5, math.nan, 1.0, 0.0]}
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            otel_rl.observe(batch={"completion_ids": ids})
        with otel_rl.stage("train.forward"):
            for rows in range(0, 4, micro):
                otel_rl.observe(batch={"completion_ids": np.roll(ids, 1, 1)[rows : rows + micro]})
                otel_rl.observe(batch={key: values[key]})
    faults = [(FORWARD, "values that are NaN or infinite"), (f"rl.sample -> {FORWARD}", "tokens shifted by one")]
    assert [(1, *fault) for fault in faults] == mismatches(recording.stop())


NESTED: dict[str, Any] = {**QWEN_0_5B, "rope": {"factors": [1.0, 2.0]}, "labels": {0: "a"}, "types": {"x", "y"}}
"""Values that have no hash."""


@pytest.mark.parametrize("kind", ["object", "equal", "other mapping"])
def test_a_configuration_is_known_by_what_is_in_it(recording: Recording, kind: str) -> None:
    """As ``policy.config.to_dict()``, which makes a new mapping for each micro-batch."""
    kept: list[Any] = []  # so that no address is used twice

    def shown() -> Any:
        made = {"object": lambda: NESTED, "equal": lambda: deepcopy(NESTED), "other mapping": lambda: UserDict(NESTED)}
        kept.append(made[kind]())
        return kept[-1]

    ids = np.arange(1, 25).reshape(4, 6) ** 2
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            otel_rl.observe(batch={"completion_ids": ids})
        with otel_rl.stage("train.forward"):
            for rows in (slice(0, 2), slice(2, 4)):
                otel_rl.observe(model=shown(), batch={"completion_ids": np.roll(ids, 1, 1)[rows]})
    assert [(1, f"rl.sample -> {FORWARD}", "tokens shifted by one")] == mismatches(recording.stop())


def test_known_configurations_are_few(recording: Recording) -> None:
    """Those that were made last, of which each is found again."""
    most = api.LIMIT_CONFIGURATIONS
    seen = [api.show({"layers": number}) for number in range(most + 2)]
    assert most == len(book.configurations)
    assert seen[2:] == [api.show({"layers": number}) for number in range(2, most + 2)]
    assert seen[0] is not api.show({"layers": 0})


def test_what_cannot_be_compared_is_another_configuration(recording: Recording) -> None:
    """An array has no truth; the batch is taken all the same."""
    config = {**QWEN_0_5B, "scales": np.ones(2)}
    one, again, copied = (api.show(made) for made in (config, config, deepcopy(config)))
    assert (True, False) == (one is again, one is copied)
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(model=deepcopy(config), batch={"lengths": [2048]})
    assert {"rl.train.forward": [3 * 2_203_653_767_168]} == numbers(recording.stop(), v.FLOPS)


@pytest.mark.medium
def test_a_thousand_clean_steps_raise_nothing(recording: Recording) -> None:
    """3,000 rows, no mismatch, nothing dropped."""
    loop = Loop(seed=1)
    for number in range(1, 1001):
        loop.step(number)
        if number % 100 == 0:
            otel_rl.flush(10)
    run = recording.stop()
    assert [] == mismatches(run)
    assert ({}, {}) == (numbers(run, v.LEDGER_FAULTS), numbers(run, v.SELF_DROPPED))
    rows = list(run.logs(v.LEDGER))
    assert (3000, set(range(1, 1001))) == (len(rows), {row.attributes[v.ITERATION] for row in rows})


@pytest.mark.parametrize(
    ("stage", "key", "expected"),
    [
        ("logprob", "logprobs", ["logprobs of rollout and training far apart"]),
        ("logprob > mine", "logprobs", ["logprobs of rollout and training far apart"]),
        ("logprob", "old_logprobs", ["logprobs of rollout and training far apart"]),
        ("train.forward", "old_logprobs", ["logprobs of rollout and training far apart"]),
        ("train.forward", "logprobs", []),
    ],
)
def test_a_policy_that_learns_goes_away_from_its_rollout(
    recording: Recording, stage: str, key: str, expected: list[str]
) -> None:
    """The engine's logprobs are judged against those of the policy that it had, by whomever they are shown."""
    draw = torch.Generator().manual_seed(0)
    rolled = -torch.rand(4, 24, generator=draw) * 4 - 0.2
    batch = {"completion_ids": torch.ones(4, 24), "rollout_logprobs": rolled}
    with otel_rl.step(1), ExitStack() as around:
        for name in stage.split(" > "):
            around.enter_context(otel_rl.stage(name))
        otel_rl.observe(batch={**batch, key: rolled + torch.rand(4, 24, generator=draw) - 0.5})
    assert expected == [fault for _, _, fault in mismatches(recording.stop())]


def test_a_row_says_what_was_noted(recording: Recording) -> None:
    """Of two rows, by hand; below the span of the rank in its step."""
    with otel_rl.step(5), otel_rl.stage("train.forward"):
        batch = {
            "completion_ids": [[5, 7], [2, 3, 4]],
            "rollout_logprobs": [[-1.0, -2.0], [-1.0, -1.0, -3.0]],
            "logprobs": [[-1.5, -2.0], [-1.0, -1.0, -2.75]],
            "advantages": [0.5, -0.5],
        }
        otel_rl.observe(batch=batch)
    run = recording.stop()
    (row,) = run.logs(v.LEDGER)
    logprobs = row.attributes[v.LEDGER_LOGPROBS]
    assert isinstance(logprobs, tuple)
    assert {
        v.ITERATION: 5,
        v.LOOP_NAME: "train",
        v.LEDGER_BOUNDARY: "rl.train.forward",
        v.LEDGER_ROWS: 2,
        v.LEDGER_NONFINITE: 0,
        v.LEDGER_TOKENS: (21, 5 + 14 + 2 + 6 + 12, 14 + 12, 19 + 2 * 20),
        v.LEDGER_MASK: (6, 5, 2, 0, 3),
        v.LEDGER_UPDATED: True,
    } == {key: value for key, value in row.attributes.items() if key not in (v.LEDGER_LOGPROBS, v.LEDGER_SHAPE)}
    assert (5.0, 0.15, -0.05, 0.5, 0.0) == tuple(round(value, 12) for value in logprobs[:5])
    assert [True] * 3 == [math.isnan(value) for value in logprobs[5:]]
    container = next(span for span in run.spans() if span.name == "rl.rank 0" and span.trace_id == row.trace_id)
    assert container.span_id == row.span_id
    points = {p.name: p.value for p in run.points() if p.name.startswith("rl.ledger.")}
    assert {
        v.MASK_RATIO: 5 / 6,
        v.LOGPROB_DIFFERENCE: pytest.approx(0.15),
        v.LOGPROB_MAX_DIFFERENCE: 0.5,
    } == points


def test_a_loop_that_shuffles_gives_numbers_of_samples(recording: Recording) -> None:
    """Then another order is none, but a sample under another number is."""
    ids = torch.arange(1, 41).reshape(4, 10)
    order = torch.tensor([2, 0, 3, 1])
    for number in (1, 2):
        with otel_rl.step(number):
            with otel_rl.stage("sample"):
                otel_rl.observe(batch={"input_ids": ids, "sample_ids": torch.arange(4)})
            with otel_rl.stage("train.forward"):
                numbers_B = order if number == 1 else torch.arange(4)
                otel_rl.observe(batch={"input_ids": ids[order], "sample_ids": numbers_B})
    assert [(2, "rl.sample -> rl.train.forward", "permuted batch")] == mismatches(recording.stop())


# --- the host is left alone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "view", "array", "list"])
def test_what_is_changed_later_was_copied_before(recording: Recording, kind: str) -> None:
    """In place, before the flusher has read it."""
    ids: Any = torch.ones(2, 3, dtype=torch.long)
    shown = {"tensor": ids, "view": ids[:, :2], "array": ids.numpy(), "list": [[1, 1, 1], [1, 1, 1]]}[kind]
    with otel_rl.step(1), otel_rl.stage("sample"):
        otel_rl.observe(batch={"input_ids": shown})
        ids.fill_(9)
        if kind == "list":
            shown[0][0] = 9
    (row,) = recording.stop().logs(v.LEDGER)
    assert (4 if kind == "view" else 6) == row.attributes[v.LEDGER_TOKENS][0]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["tensor", "rows"])
def test_a_tensor_that_was_shown_may_be_resized(recording: Recording, kind: str) -> None:
    """As FSDP does with its storage; ``Tensor.numpy`` would forbid it for good."""
    mask = torch.ones(2, 3)
    with otel_rl.step(1), otel_rl.stage("sample"):
        otel_rl.observe(batch={"attention_mask": mask if kind == "tensor" else [mask[0], mask[1]]})
    otel_rl.flush(5)
    mask.resize_(64)
    mask.untyped_storage().resize_(0)


def test_random_numbers_and_gradients_are_the_hosts(recording: Recording) -> None:
    """Nothing is drawn, and a loss keeps its graph."""
    model, weight = torch.nn.Linear(2, 2), torch.ones(3, requires_grad=True)
    before = random_states()
    loss = (weight * 2).sum()
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(model=model, batch={"loss": loss, "logprobs": weight[None].bfloat16()})
        loss.backward()
    recording.stop()
    assert ([2.0, 2.0, 2.0], before) == (weight.grad.tolist(), random_states())


def random_states() -> list[Any]:
    """Say where every generator of the host is."""
    return [random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]


def test_without_instrument_it_does_nothing() -> None:
    """And keeps nothing."""
    otel_rl.observe(model=object(), batch={"input_ids": object()})
    assert not book.is_open


# --- bad input --------------------------------------------------------------------------------------------------------


class Placed:
    """Stands in for a DTensor."""

    placements = ()


class Broken:
    """Looks like a sequence and is none."""

    def __len__(self) -> int:
        raise RuntimeError


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"input_ids": Placed()}, "distributed_tensor"),
        ({"input_ids": object()}, "unreadable_batch"),
        ({"input_ids": Broken()}, "unreadable_batch"),
        ({"input_ids": torch.ones(2, 2).to_sparse()}, "unreadable_batch"),
        ({"input_ids": torch.ones(2, 2, device="meta")}, "unreadable_batch"),
        ({"input_ids": [[[1]]]}, "unreadable_batch"),
        ({"input_ids": [2**70]}, "misfit"),
        ({"input_ids": "text"}, "unreadable_batch"),
        ({"input_ids": np.array(["a"])}, "misfit"),
        ({"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(3, 2)}, "misfit"),
        ([1, 2], "no_batch"),
    ],
)
def test_what_cannot_be_used_is_counted(recording: Recording, batch: Any, reason: str) -> None:
    """Training goes on, and what can be used of the batch is."""
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(batch=batch)
        otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
        recording.tick(1000)
    run = recording.stop()
    assert {reason: [1]} == numbers(run, v.SELF_DROPPED)
    assert [6_610_961_301_504.0] == numbers(run, v.FLOPS_RATE)["update"]


def test_a_batch_outside_of_a_step_is_counted(recording: Recording) -> None:
    """It belongs nowhere; a model may be shown there."""
    otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
    otel_rl.observe(model="gpt2")
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(batch={"lengths": [2048]})
        recording.tick(1000)
    run = recording.stop()
    assert {"outside_step": [1], "no_model": [1]} == numbers(run, v.SELF_DROPPED)
    assert [6_610_961_301_504.0] == numbers(run, v.FLOPS_RATE)["update"]


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": torch.ones(0, 5, dtype=torch.long)},
        {"input_ids": torch.ones(3, 0, dtype=torch.long), "attention_mask": torch.ones(3, 0)},
        {"input_ids": torch.ones(3, 4, dtype=torch.long), "attention_mask": torch.zeros(3, 4)},
        {"completion_ids": [[], []], "logprobs": [[], []], "rollout_logprobs": [[], []]},
        {"completion_ids": [], "completion_mask": []},
        {},
    ],
    ids=["no rows", "no columns", "all masked", "empty responses", "empty lists", "nothing"],
)
def test_an_empty_batch_is_no_fault(recording: Recording, batch: dict[str, Any]) -> None:
    """At two boundaries alike; it computes nothing, so there is no rate."""
    with otel_rl.step(1):
        for name in ("sample", "train.forward"):
            with otel_rl.stage(name):
                otel_rl.observe(model=QWEN_0_5B, batch=batch)
                recording.tick(1000)
    run = recording.stop()
    assert ([], {}, {}) == (mismatches(run), numbers(run, v.FLOPS_RATE), numbers(run, v.SELF_DROPPED))


def test_copies_that_nobody_reads_have_a_limit(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a batch is left out, until the flusher has caught up."""
    monkeypatch.setattr(api, "LIMIT_BYTES", 100)
    ids = torch.ones(2, 5, dtype=torch.long)
    with otel_rl.step(1), otel_rl.stage("sample"):
        otel_rl.observe(batch={"input_ids": ids})
        otel_rl.observe(batch={"input_ids": ids})
        otel_rl.flush(5)
        otel_rl.observe(batch={"input_ids": ids})
    run = recording.stop()
    assert {"too_many_bytes": [1]} == numbers(run, v.SELF_DROPPED)
    (row,) = run.logs(v.LEDGER)
    assert 4 == row.attributes[v.LEDGER_ROWS]


@pytest.mark.parametrize("kind", ["tensor", "array", "rows"])
def test_a_batch_over_the_limit_is_not_copied(recording: Recording, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It could be as large as what is left of the memory."""
    monkeypatch.setattr(api, "LIMIT_BYTES", 100)
    copies: list[Any] = []
    monkeypatch.setattr(api, "_copy", copies.append)
    values = torch.ones(2, 50)
    shown = {"tensor": values, "array": values.numpy(), "rows": [values[0], values[1]]}[kind]
    with otel_rl.step(1), otel_rl.stage("sample"):
        otel_rl.observe(batch={"rewards": [1.0], "values": shown})
    assert ([], {"too_many_bytes": [1]}) == (copies, numbers(recording.stop(), v.SELF_DROPPED))


def test_a_full_queue_uses_up_no_limit(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a disk that hangs: what did not come to the flusher does not wait for it."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        with monkeypatch.context() as full:
            full.setattr(runtime, "QUEUE_LIMIT", 0)
            otel_rl.observe(batch={"input_ids": torch.ones(2, 5)})
        assert (0, {("metrics", "queue_full"): 1}) == (book.copied_bytes, dict(state.dropped))
        state.dropped.clear()


def test_lists_hold_rows_and_numbers(recording: Recording) -> None:
    """Of any kind: tensors of one number, arrays and lists of different lengths, long ones."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        batch = {
            "completion_ids": [[1] * 70_000, np.array([2, 2]), torch.tensor([3])],
            "rewards": [torch.tensor(0.5), torch.tensor(math.nan), torch.tensor(1.0)],
            "advantages": (0.5, math.inf, 1),
        }
        otel_rl.observe(batch=batch)
    run = recording.stop()
    (row,) = run.logs(v.LEDGER)
    assert (2, 70_000 + 4 + 3, {}) == (
        row.attributes[v.LEDGER_NONFINITE],
        row.attributes[v.LEDGER_TOKENS][0],  # type: ignore[index]
        numbers(run, v.SELF_DROPPED),
    )


def test_another_thread_may_observe(recording: Recording) -> None:
    """What it shows without a stage of its own belongs to the step."""
    with otel_rl.step(1):
        thread = threading.Thread(target=otel_rl.observe, kwargs={"batch": {"input_ids": torch.ones(2, 2)}})
        thread.start()
        thread.join()
    (row,) = recording.stop().logs(v.LEDGER)
    assert "rl.loop" == row.body


# --- a device ---------------------------------------------------------------------------------------------------------


class Event:
    """An event of the device, over when the test says so."""

    over = True

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return Event.over


class Remote:
    """A tensor that stands in for one of a device."""

    def __init__(self, value: Any, index: int = 0) -> None:
        self.value = value
        self.device = SimpleNamespace(type="tpu", index=index)
        self.dtype, self.shape = value.dtype, value.shape

    def detach(self) -> Any:
        return Remote(self.value.clone())

    def numel(self) -> int:
        return int(self.value.numel())

    def element_size(self) -> int:
        return int(self.value.element_size())

    def __getitem__(self, place: Any) -> Any:
        return Remote(self.value[place])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An H100 that is none: its copies are made by the host."""
    module = SimpleNamespace(
        Event=Event,
        current_device=lambda: 0,
        current_stream=lambda device: None,
        get_device_name=lambda device: "NVIDIA H100 80GB HBM3",
        is_current_stream_capturing=lambda: False,
    )
    monkeypatch.setattr(torch, "tpu", module, raising=False)
    monkeypatch.setattr(Event, "over", True)

    class Pinned:
        def copy_(self, values: Remote, non_blocking: bool) -> Any:
            assert non_blocking
            return values.value

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: Pinned())
    return module


def test_what_lies_on_a_device_comes_when_it_can(recording: Recording, device: Any) -> None:
    """The numbers of its step wait for it; its name gives the peak, and the host's clock is said."""
    mask = torch.ones(1, 2048, dtype=torch.long)
    Event.over = False
    for number in (1, 2):
        with otel_rl.step(number):
            with otel_rl.stage("train.forward"):
                otel_rl.observe(model=QWEN_0_5B, batch={"attention_mask": Remote(mask), "loss": torch.tensor(0.5)})
                recording.tick(1000)
            with otel_rl.stage("train.backward"):
                recording.tick(1000)
        otel_rl.flush(5)
    assert [] == list(recording.run().points(v.FLOPS_RATE))
    Event.over = True
    run = recording.stop()
    assert [6_610_961_301_504 / 2] * 2 == numbers(run, v.FLOPS_RATE)["update"]
    point = next(point for point in run.points(v.MFU) if point.attributes[v.FLOPS_SCOPE] == "update")
    assert (pytest.approx(6_610_961_301_504 / 2 / H100), "host", H100) == (
        point.value,
        point.attributes[v.CLOCK],
        point.attributes[v.FLOPS_PEAK],
    )
    assert "NVIDIA H100" in str(point.attributes[v.FLOPS_PEAK_SOURCE])


@pytest.mark.parametrize("kept", [None, 0, 3])
@pytest.mark.parametrize("kind", [torch.long, torch.bool])
@pytest.mark.parametrize("where", ["host", "device"])
def test_masks_that_nobody_changes(recording: Recording, device: Any, where: str, kind: Any, kept: int | None) -> None:
    """A trainer's own say how long its sequences are, and how many tokens have logits; the host's may be resized."""
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]], dtype=kind)
    seen = api.show(QWEN_0_5B)
    responses = None if kept is None else int(mask[:, mask.shape[1] - kept :].sum())
    with otel_rl.step(1), otel_rl.stage("logprob"):
        masks = {"attention_mask": mask if where == "host" else Remote(mask)}
        api.observe_masks(masks, stage=v.LOGPROB, seen=seen, kept=kept, logits=-1)
        deferred.resolve()
    otel_rl.flush(5)
    expected = formula_of(seen).count([4, 4], responses, is_training=False, has_adapters=True)
    assert {v.LOGPROB: [expected]} == numbers(recording.stop(), v.FLOPS)
    mask.resize_(64)


def waiting() -> tuple[int, list[int]]:
    """Give the bytes that wait for the flusher, and how many batches each open step waits for."""
    known = book
    return known.copied_bytes - known.done_bytes, [step.pending for step in known.steps.values()]


def test_bfloat16_of_a_device_is_read(recording: Recording, device: Any) -> None:
    """Numpy has none; it is what log-probabilities of a GPU are."""
    logprobs = torch.tensor([[-1.0, math.nan]], dtype=torch.bfloat16)
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            otel_rl.observe(batch={"completion_ids": Remote(torch.ones(1, 2)), "logprobs": Remote(logprobs)})
        deferred.resolve()
        otel_rl.flush(5)
        assert (0, [0]) == waiting()
    assert [(1, "rl.train.forward", "values that are NaN or infinite")] == mismatches(recording.stop())


@pytest.mark.guarded
def test_a_copy_that_cannot_be_read_holds_up_no_step(recording: Recording, device: Any) -> None:
    """Neither its numbers nor the bytes that may wait."""
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            otel_rl.observe(batch={"loss": Remote(torch.ones(2).to_sparse())})
        deferred.resolve()
        otel_rl.flush(5)
        assert (0, [0]) == waiting()
    state.dropped.clear()


@pytest.mark.guarded
@pytest.mark.parametrize("failure", ["full queue", "too many", "error"])
def test_a_copy_that_does_not_come_holds_up_no_step(
    recording: Recording, device: Any, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """Its bytes are free again and nobody waits for it."""
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        with monkeypatch.context() as failing:
            if failure == "full queue":
                failing.setattr(runtime, "QUEUE_LIMIT", 0)
            elif failure == "too many":
                failing.setattr(deferred, "LIMIT", 0)
            else:
                failing.setattr(deferred, "copy", lambda *_: 1 / 0)
            otel_rl.observe(batch={"loss": Remote(torch.ones(2))})
        otel_rl.flush(5)
        assert (0, [] if failure == "full queue" else [0]) == waiting()
        assert 0 == len(deferral.pending)
    state.dropped.clear()


def pass_over(recording: Recording, forward_s: float, backward_s: float) -> None:
    """Go forward and backward once, in so much time of the device."""
    for name, seconds in (("train.forward", forward_s), ("train.backward", backward_s)):
        with otel_rl.stage(name) as span:
            if name == "train.forward":
                mask = Remote(torch.ones(1, 2048, dtype=torch.long))
                otel_rl.observe(model=QWEN_0_5B, batch={"attention_mask": mask})
            span.set_attribute(v.DEVICE_TIME, seconds)
            recording.tick(1)


def assert_update_takes_4_s(recording: Recording) -> None:
    """By the device's clock."""
    points = recording.stop().points(v.FLOPS_RATE)
    point = next(point for point in points if point.attributes[v.FLOPS_SCOPE] == "update")
    assert (6_610_961_301_504 / 4, False) == (point.value, v.CLOCK in point.attributes)


def test_the_devices_own_time_is_taken_where_it_knows_all(recording: Recording, device: Any) -> None:
    """Then it is no launch that is measured."""
    with otel_rl.step(1):
        pass_over(recording, 1.0, 3.0)
    assert_update_takes_4_s(recording)


def test_the_devices_time_of_overlapping_stages_counts_once(recording: Recording, device: Any) -> None:
    """A stage around the others has theirs in its own."""
    with otel_rl.step(1), otel_rl.stage("train") as train:
        pass_over(recording, 1.0, 2.5)
        recording.tick(1)
        train.set_attribute(v.DEVICE_TIME, 4.0)
    assert_update_takes_4_s(recording)


def test_a_tensor_of_another_device_is_left_out(recording: Recording, device: Any) -> None:
    """Its copy would run on another stream than the event that says that it is over."""
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(batch={"attention_mask": Remote(torch.ones(1, 4), index=1)})
    assert {"other_device": [1]} == numbers(recording.stop(), v.SELF_DROPPED)


def test_nothing_is_copied_while_a_graph_is_captured(recording: Recording, device: Any) -> None:
    """It is counted."""
    device.is_current_stream_capturing = lambda: True
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(batch={"attention_mask": Remote(torch.ones(1, 4))})
    assert {"device_too_late": [1]} == numbers(recording.stop(), v.SELF_DROPPED)

"""Tests of samples and tokens per second of loops without a framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.clock import monotonic_ns
from otel_rl.journal.read import Run, open_run
from tests.fixtures import Recording

COUNTERS = (v.SAMPLES, v.SAMPLE_TOKENS, v.TRAIN_TOKENS)
Rates = dict[tuple[str, str, str], list[float]]


def rates(run: Run) -> Rates:
    """Every rate by metric, work and wall, in order of time."""
    found: Rates = {}
    points = [point for name in (v.SAMPLES_RATE, v.TOKENS_RATE) for point in run.points(name)]
    for point in sorted(points, key=lambda point: point.time_ns):
        key = point.name.rpartition(".")[2], str(point.attributes[v.WORK]), str(point.attributes[v.WALL])
        found.setdefault(key, []).append(round(point.value, 6))
    return found


def totals(run: Run) -> dict[tuple[str, Any], float]:
    """Every counter of samples and tokens, by metric and kind of token."""
    points = [point for point in run.last_points() if point.name in COUNTERS]
    return {(point.name, point.attributes.get(v.TOKEN_KIND)): point.value for point in points}


@contextmanager
def said(name: str, **tokens: int) -> Iterator[None]:
    """Hold a stage that tells tokens at its end, by the last word of their attribute."""
    with otel_rl.stage(name) as stage:
        yield
        for kind, number in tokens.items():
            stage.set_attribute("rl.tokens" if kind == "all" else f"rl.tokens.{kind}", number)


def request(prompt: int | None = 10, response: int | None = 20, **more: Any) -> None:
    """Report a finished sequence."""
    more = {"finish": "stop", **more}
    now = monotonic_ns() / 1e9
    otel_rl.request("mine", submitted=now, ended=now, input_tokens=prompt, output_tokens=response, **more)


def test_a_loop_that_only_generates(recording: Recording) -> None:
    """Rollout tokens are prompts and responses; of training there is no number, not even 0."""
    for number in range(1, 5):
        with otel_rl.step(number):
            with otel_rl.stage("sample", batch_size=8) as stage:
                stage.set_attribute("rl.tokens.prompt", 40)
                stage.set_attribute("rl.tokens.response", 160)
            recording.tick(500)
    run = recording.stop()
    assert {
        ("samples", "rollout", "step"): [16.0] * 4,
        ("samples", "rollout", "cycle"): [16.0] * 3,
        ("tokens", "rollout", "step"): [400.0] * 4,
        ("tokens", "rollout", "cycle"): [400.0] * 3,
    } == rates(run)
    assert {(v.SAMPLES, None): 32, (v.SAMPLE_TOKENS, "prompt"): 160, (v.SAMPLE_TOKENS, "response"): 640} == totals(run)


def test_a_rollout_and_several_forwards_and_an_evaluation(recording: Recording) -> None:
    """One rollout for two steps, four forwards each; an evaluation inside a step and one behind it count nothing."""

    def evaluate() -> None:
        with otel_rl.stage("evaluate"):
            with said("sample", prompt=1000, response=1000):
                request()
            with said("train.forward", all=1000, prompt=10):
                pass
        with otel_rl.stage("sample", mode="eval") as stage:
            stage.set_attribute("rl.tokens.response", 1000)

    for number in range(1, 7):
        with otel_rl.step(number):
            if number % 2:
                with said("sample", prompt=100, response=300, environment=50):
                    pass
            with otel_rl.stage("train"):
                for _ in range(4):
                    with said("train.forward", all=110, prompt=40, environment=10, padding=5):
                        pass
            evaluate()
            recording.tick(500)
        evaluate()
    run = recording.stop()
    assert {
        ("tokens", "rollout", "step"): [800.0, 0.0] * 3,
        ("tokens", "rollout", "cycle"): [400.0] * 2,
        ("tokens", "train", "step"): [480.0] * 6,
        ("tokens", "train", "cycle"): [480.0] * 2,
    } == rates(run)
    assert {
        (v.SAMPLE_TOKENS, "prompt"): 300, (v.SAMPLE_TOKENS, "response"): 900, (v.SAMPLE_TOKENS, "environment"): 150,
        (v.TRAIN_TOKENS, "prompt"): 960, (v.TRAIN_TOKENS, "response"): 1440, (v.TRAIN_TOKENS, "environment"): 240,
        (v.TRAIN_TOKENS, "padding"): 120,
    } == totals(run)  # fmt: skip


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {"prompt": 80, "response": 160}),
        ({"response": 160}, {"prompt": 80, "response": 160}),
        ({"response": 7}, {"prompt": 80, "response": 7}),
        ({"prompt": 3, "response": 7}, {"prompt": 3, "response": 7}),
        ({"all": 100}, {}),
        ({"all": 100, "response": 60}, {"prompt": 40, "response": 60}),
        ({"all": 100, "environment": 20, "prompt": 10}, {"prompt": 10, "response": 70, "environment": 20}),
    ],
)
def test_requests_tell_what_their_stage_does_not(
    recording: Recording, told: dict[str, int], expected: dict[str, int]
) -> None:
    """Each token once: of eight requests what the stage around them leaves open."""
    with otel_rl.step(1):
        with said("sample", **told):
            for place in range(8):
                request(id=str(place))
        recording.tick(1000)
    run = recording.stop()
    all_tokens = expected.get("prompt", 0) + expected.get("response", 0) or 100
    assert {
        ("samples", "rollout", "step"): [8.0],
        ("tokens", "rollout", "step"): [float(all_tokens)],
    } == rates(run)
    kinds = {(v.SAMPLE_TOKENS, kind): number for kind, number in expected.items()}
    assert {(v.SAMPLES, None): 8, **kinds} == totals(run)


def test_requests_of_a_pool_and_of_inner_stages(recording: Recording) -> None:
    """They belong to no rollout stage: they count where no rollout stage of the step tells their tokens."""
    for number, told in ((1, {}), (2, {"prompt": 5, "response": 5})):
        with otel_rl.step(number):
            with said("sample", **told), otel_rl.stage("mine.generate"):
                request()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(request).result()
            recording.tick(1000)
    assert [60.0, 10.0] == rates(recording.stop())["tokens", "rollout", "step"]


def test_a_stage_inside_another_counts_once(recording: Recording) -> None:
    """Of rollouts the outer one, of training the forwards; also where the outer one tells only all tokens."""
    with otel_rl.step(1):
        with said("sample", prompt=10, response=30):
            with said("sample", prompt=10, response=10):
                pass
            with said("sample", response=20):
                request(10, 20)
        with said("sample", all=60), said("sample", prompt=10, response=50):
            pass
        with said("sample"), said("sample", prompt=1, response=2):
            pass
        with said("train", response=500):
            for _ in range(3):
                with said("train.forward", response=100):
                    pass
        recording.tick(1000)
    run = recording.stop()
    assert [103.0] == rates(run)["tokens", "rollout", "step"]
    assert [300.0] == rates(run)["tokens", "train", "step"]


def test_the_update_as_one_stage(recording: Recording) -> None:
    """Where no forward tells its tokens the stage around them does."""
    with otel_rl.step(1):
        with said("train", all=500, prompt=100), said("train.forward"):
            pass
        recording.tick(1000)
    assert {("tokens", "train", "step"): [400.0]} == rates(recording.stop())


def test_turns_and_what_is_resumed_count_once(recording: Recording) -> None:
    """The prompt of a later turn repeats the first; what resumes an aborted request has its tokens in the prompt."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        request(10, 20, id="a", turn=0)
        request(40, 20, id="a", turn=1)
        request(10, 7, id="b", finish="abort")
        request(17, 13, id="b-2", sample="b")
        request(10, 7, id="c", error="ValueError")
        recording.tick(1000)
    run = recording.stop()
    assert {("samples", "rollout", "step"): [2.0], ("tokens", "rollout", "step"): [80.0]} == rates(run)


@pytest.mark.parametrize("value", ["many", -1, True, float("nan"), float("inf"), 1e300])
def test_what_is_no_count_is_no_number(recording: Recording, value: Any) -> None:
    """Nor does it hide what requests tell."""
    with otel_rl.step(1):
        with otel_rl.stage("sample") as stage:
            stage.set_attribute("rl.tokens.response", value)
        recording.tick(1000)
    assert {} == rates(recording.stop())


def test_a_loop_that_tells_nothing_has_no_number(recording: Recording) -> None:
    """Nor has one that tells prompts alone: what was generated is not known."""
    for number in range(1, 4):
        with otel_rl.step(number):
            with said("sample", prompt=100), otel_rl.stage("mine"):
                pass
            with otel_rl.stage("train"), otel_rl.stage("train.forward"):
                pass
            recording.tick(500)
    assert {} == rates(recording.stop())


def test_a_step_whose_tokens_are_not_told_has_no_rate(recording: Recording) -> None:
    """It is no fall to 0: neither of its step nor of its cycle."""
    for number in range(1, 5):
        with otel_rl.step(number):
            with said("sample", **({} if number == 2 else {"response": 50})):
                pass
            recording.tick(500)
    run = recording.stop()
    assert {("tokens", "rollout", "step"): [100.0] * 3, ("tokens", "rollout", "cycle"): [100.0] * 2} == rates(run)


def test_a_step_that_failed_is_in_no_cycle(recording: Recording) -> None:
    """Its time and its tokens are left out, also of what failed and was tried again."""

    def work(*, fails: bool = False) -> None:
        with said("sample", response=50):
            pass
        recording.tick(500)
        if fails:
            raise ValueError

    for number in range(1, 7):
        try:
            with otel_rl.step(number):
                work(fails=number == 3)
        except ValueError:
            pass
    with otel_rl.step(7):
        try:
            with otel_rl.stage("sample") as stage:
                stage.set_attribute("rl.tokens.response", 50)
                raise ValueError
        except ValueError:
            work()
    run = recording.stop()
    assert {("tokens", "rollout", "step"): [100.0] * 6, ("tokens", "rollout", "cycle"): [100.0] * 4} == rates(run)


def test_set_up_and_another_loop_are_apart(recording: Recording) -> None:
    """A warm-up before the first step counts in none; a second loop begins cycles of its own."""
    with said("sample", response=1000):
        request()
    for _ in range(2):
        for number in range(1, 4):
            with otel_rl.step(number):
                with said("sample", response=50):
                    pass
                recording.tick(500)
    run = recording.stop()
    assert {("tokens", "rollout", "step"): [100.0] * 6, ("tokens", "rollout", "cycle"): [100.0] * 4} == rates(run)
    assert {(v.SAMPLE_TOKENS, "response"): 300} == totals(run)


RANKS = """
import os, time
import otel_rl
otel_rl.instrument()
rank = int(os.environ["RANK"])
for n in range(1, 5):
    with otel_rl.step(n):
        with otel_rl.stage("sample", batch_size=8):
            for i in range(8):
                now = time.perf_counter()
                otel_rl.request("mine", clock="perf_counter", submitted=now, ended=now, input_tokens=10,
                                output_tokens=20 + rank, finish="stop", id=f"{n}-{i}")
        with otel_rl.stage("train.forward") as s:
            s.set_attribute("rl.tokens", 240)
            s.set_attribute("rl.tokens.prompt", 80)
        time.sleep(0.05)
otel_rl.uninstrument()
"""


@pytest.mark.medium
def test_two_ranks_of_a_program(tmp_path: Path) -> None:
    """Every rank has rates of its own: what it counted, over the time between its steps."""
    for rank in range(2):
        environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OTEL_RL_DIR": str(tmp_path),
                   "OTEL_RL_RUN_ID": "run", "OTEL_RL_SIDECAR": "false"}  # fmt: skip
        subprocess.run([sys.executable, "-c", RANKS], env=environ, check=True)
    run = open_run(tmp_path / "run")
    for rank in range(2):
        of_rank = [point for point in run.points(v.TOKENS_RATE) if point.resource[v.RANK] == rank]
        steps = {point.time_ns: point.value for point in run.points(v.STEP_TIME) if point.resource[v.RANK] == rank}
        assert 4 == len(steps)
        for work, tokens in (("rollout", 8 * (30 + rank)), ("train", 160)):
            mine = {
                p.time_ns: p.value for p in of_rank if (p.attributes[v.WORK], p.attributes[v.WALL]) == (work, "step")
            }
            assert mine == {time_ns: pytest.approx(tokens / seconds) for time_ns, seconds in steps.items()}
            walls = sorted(steps)
            cycle = {
                p.time_ns: p.value for p in of_rank if (p.attributes[v.WORK], p.attributes[v.WALL]) == (work, "cycle")
            }
            assert cycle == {time_ns: pytest.approx(tokens / steps[time_ns]) for time_ns in walls[:3]}

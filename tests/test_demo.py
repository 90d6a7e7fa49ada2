"""Tests of the demo's training program: its parts, and the real thing on two ranks."""

from __future__ import annotations

import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.cli import app
from otel_rl.demo import progress_line, task, train
from tests.backend.stored import attributes, spans_of

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run_demo(directory: Path, *options: str, ranks: int = 2) -> str:
    """Run the training program on ``ranks`` processes and give its output back."""
    launcher = LAUNCHER if ranks == 2 else ()
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "otel_rl.demo.train", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OTEL_RL_DIR": str(directory / "runs")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "find_unused_parameters" not in done.stderr
    return done.stdout


def test_parity_counts_digits_of_the_wanted_kind() -> None:
    """Other characters, the other parity and missing characters count as wrong."""
    texts, wanted = ["024688", "024687", "0246ev", "24", ""], ["even"] * 4 + ["odd"]
    assert task.parity(texts, wanted) == [1.0, 5 / 6, 4 / 6, 2 / 6, 0.0]


def test_the_judge_wants_a_long_enough_answer_that_ends() -> None:
    """An answer that is cut off, or too short, gets nothing."""
    answers = [[5] * 6 + [task.EOS], [5] * 7, [5] * 5 + [task.EOS]]
    assert asyncio.run(task.judge(answers)) == [1.0, 0.0, 0.0]


def test_the_tokenizer_has_one_token_for_each_character() -> None:
    """Every prompt goes through it and back unchanged."""
    tokenizer = task.tokenizer()
    texts = task.prompts(40)["prompt"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    assert [len(text) for text in texts] == [len(row) for row in ids]
    assert list(texts) == tokenizer.batch_decode(ids)


def test_the_model_depends_on_the_seed_alone(tmp_path: Path) -> None:
    """Two ranks that make it for themselves have the same one."""
    states = [task.model(tmp_path / str(i), seed).state_dict() for i, seed in enumerate((1, 1, 2))]
    weights = [b"".join(value.numpy().tobytes() for value in state.values()) for state in states]
    assert [True, False] == [weights[0] == weights[1], weights[0] == weights[2]]


def test_the_curve_has_a_bar_for_each_part_of_the_run() -> None:
    """What lies outside 0..1 is drawn as the nearest bar, and steps to come are blank."""
    points = [(1, -1.0), (2, 0.5), (3, 2.0)]
    assert progress_line.curve(points, 24, "abcd") == "acd" + " " * 21
    assert progress_line.curve([(1, 0.0), (2, 0.5)], 48, "abcd") == "b" + " " * 23
    assert progress_line.curve([(4, 0.0), (8, 0.5)], 24, "abcd") == "aaaacccc" + " " * 16


class Terminal(io.StringIO):
    """A stream that says it is a terminal and knows only ASCII."""

    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def steps_of(progress: progress_line.ProgressLine, num: int) -> None:
    """Let ``num`` steps pass, the trainer's log after each."""
    state: Any = SimpleNamespace(global_step=0)
    for step in range(1, num + 1):
        state.global_step = step
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, {"reward": 0.5})
    progress.on_log(None, state, None, {"eval_reward": 0.75})
    progress.on_train_end(None, state, None)


def test_progress_is_a_line_in_25_steps_where_nobody_watches() -> None:
    """A log file gets few lines, the last of them complete."""
    out = io.StringIO()
    progress = progress_line.ProgressLine(30, out)
    steps_of(progress, 30)
    first, last = out.getvalue().splitlines()
    assert first.startswith("step 25/30   reward ")
    assert last == f"step 30/30   reward {'=' * 24} 0.50   evaluation 0.75"
    assert progress.result(1.5) == progress_line.DemoResult(30, 1.5, 0.5, 0.5, 0.75)


def test_progress_rewrites_one_line_in_a_terminal() -> None:
    """Each step starts at the line's beginning; only the end of training ends the line."""
    out = Terminal()
    steps_of(progress_line.ProgressLine(2, out), 2)
    assert out.getvalue().count("\r") == 3
    assert out.getvalue().endswith("\n")
    assert out.getvalue().count("\n") == 1


def test_a_run_without_a_step_has_no_rewards() -> None:
    """Nothing is made up."""
    assert progress_line.ProgressLine(2, io.StringIO()).result(0.0) == progress_line.DemoResult(
        0, 0.0, None, None, None
    )


def test_the_defaults_train_with_otel_rl() -> None:
    """Without options the program is the demo."""
    assert (True, 240) == (train.parse([]).otel, train.parse([]).steps)


@pytest.mark.slow
def test_a_single_process_trains_without_otel_rl(tmp_path: Path) -> None:
    """With two micro-batches to an update; it leaves its result behind, and no run."""
    result, work = tmp_path / "result.json", tmp_path / "work"
    options = ("--no-otel", "--steps=4", "--iters=1", "--grad-accum=2", "--eval-every=0", "--save-every=0")
    run_demo(tmp_path, *options, "--workdir", str(work), "--output", str(result), ranks=1)
    assert 4 == json.loads(result.read_text())["steps"]
    assert (work / "rank-0" / "tiny-qwen2" / "config.json").exists()
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the demo on two ranks; return its folder and output."""
    folder = tmp_path_factory.mktemp("trained")
    files = ("--output", str(folder / "result.json"), "--workdir", str(folder / "work"))
    return folder, run_demo(folder, "--steps=140", "--save-every=100", *files)


@pytest.mark.slow
def test_the_reward_rises_on_two_ranks(trained: tuple[Path, str]) -> None:
    """The real trainer learns the task, evaluates and writes checkpoints."""
    folder, output = trained
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == STEPS
    assert result["first_reward"] < 0.4
    assert result["last_reward"] > 0.8
    assert result["eval_reward"] > result["first_reward"]
    checkpoints = (folder / "work" / "checkpoints").glob("checkpoint-*")
    assert {path.name for path in checkpoints} == {"checkpoint-100", "checkpoint-140"}
    assert output.splitlines()[-1].startswith("step 140/140   reward ")


STEPS = 140
STAGES = {
    "rl.idle", "rl.sample", "rl.sample.tokenize", "rl.sample.generate", "rl.sample.decode", "rl.sample.process",
    "rl.logprob old", "rl.logprob ref", "rl.reward", "rl.reward parity", "rl.reward judge", "rl.advantage",
    "rl.log.gather", "rl.log", "rl.train.forward", "rl.train.backward", "rl.train.clip", "rl.train.optimizer",
    "rl.evaluate", "rl.checkpoint",
}  # fmt: skip
"""All but the weight synchronisation: nobody else has the weights."""
SAYS = {
    "rl.sample": {
        v.MODE,
        v.ROLLOUT_ID,
        v.POLICY_VERSION,
        v.SAMPLE_BATCH_SIZE,
        v.GROUP_SIZE,
        v.TOKENS,
        v.TOKENS_PADDING,
    },
    "rl.logprob old": {v.MODE, v.ROLLOUT_ID, v.BATCH_SIZE, v.TOKENS, v.TOKENS_PADDING},
    "rl.logprob ref": {v.MODE, v.ROLLOUT_ID, v.BATCH_SIZE, v.TOKENS, v.TOKENS_PADDING},
    "rl.reward": {v.MODE, v.BATCH_SIZE},
    "rl.reward parity": {v.MODE, v.REWARD_FUNCTION},
    "rl.reward judge": {v.MODE, v.REWARD_FUNCTION},
    "rl.advantage": {v.MODE, v.BATCH_SIZE},
    "rl.train.forward": {
        v.MODE,
        v.ROLLOUT_ID,
        v.TRAIN_BATCH_SIZE,
        v.TOKENS_PROMPT,
        v.TOKENS_RESPONSE,
        v.TOKENS_PADDING,
    },
    "rl.train.optimizer": {v.OPTIMIZER_SKIPPED},
}
"""What stages say besides memory."""


@dataclass
class Exported:
    """One span of an export."""

    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    says: dict[str, Any]

    @property
    def label(self) -> str:
        return f"{self.name} {self.says[v.LOGPROB_KIND]}" if self.name == v.LOGPROB else self.name


@pytest.fixture(scope="module")
def exported(trained: tuple[Path, str]) -> list[Exported]:
    """Export the run's journal; the earliest span first, without requests."""
    folder, _ = trained
    (run,) = (path for path in (folder / "runs").iterdir() if path.name != ".pending")
    file = folder / "run.jsonl"
    assert 0 == CliRunner().invoke(app, ["export", str(run), "--to", "otlp-json", "--output", str(file)]).exit_code
    spans = [
        Exported(
            name=span["name"],
            trace=span["traceId"],
            id=span["spanId"],
            parent=span.get("parentSpanId", ""),
            begin=int(span["startTimeUnixNano"]),
            end=int(span["endTimeUnixNano"]),
            says=attributes(span.get("attributes", [])),
        )
        for span in spans_of(map(json.loads, file.read_text().splitlines()))
    ]
    return sorted((span for span in spans if v.OPERATION not in span.says), key=lambda span: (span.begin, -span.end))


def below(exported: list[Exported]) -> dict[str, list[Exported]]:
    """Find the children of every span, by its id."""
    children: dict[str, list[Exported]] = {}
    for span in exported:
        children.setdefault(span.parent, []).append(span)
    return children


@pytest.mark.slow
def test_each_step_of_an_export_is_one_trace_of_both_ranks(exported: list[Exported]) -> None:
    """As many as optimizer steps, numbered, no span without its parent; on every rank the steps tile the loop."""
    children = below(exported)
    roots = [root for root in children[""] if root.name == v.LOOP]
    assert [*range(1, STEPS + 1)] == [root.says[v.ITERATION] for root in roots]
    assert [["rl.rank 0", "rl.rank 1"]] * STEPS == [sorted(child.name for child in children[root.id]) for root in roots]
    assert len(exported) == len({span.id for span in exported})
    assert set(children) - {span.id for span in exported} == {""}
    assert len(children[""]) == len({span.trace for span in exported})
    for rank in ("rl.rank 0", "rl.rank 1"):
        steps = [span for span in exported if span.name == rank and v.ITERATION in span.says]
        assert [step.begin for step in steps[1:]] == [step.end for step in steps[:-1]]


@pytest.mark.slow
def test_every_stage_is_in_the_export_of_both_ranks(exported: list[Exported]) -> None:
    """With its attributes, inside its parent, and none overlaps another but reward functions."""
    children = below(exported)
    steps = [span for span in exported if span.name.startswith(v.RANK_SPAN) and v.ITERATION in span.says]
    for rank in ("rl.rank 0", "rl.rank 1"):
        inside = [span for step in steps if step.name == rank for span in walk(step, children)]
        assert {span.label for span in inside} - {v.COMM} == STAGES
        assert [] == [(span.label, SAYS.get(span.label, set()) - set(span.says)) for span in inside if lacks(span)]
        for above in inside:
            found = children.get(above.id, [])
            assert [] == [one.label for one in found if one.begin < above.begin or one.end > above.end]
            found = [one for one in found if not one.name.startswith(f"{v.REWARD} ")]
            assert [] == [(a.label, b.label) for a, b in pairwise(found) if a.end > b.begin]


@pytest.mark.slow
def test_little_of_a_step_is_in_no_stage(exported: list[Exported]) -> None:
    """In the median at most 5 % of it; the first two steps warm up."""
    children = below(exported)
    shares = []
    for step in exported:
        if step.name.startswith(v.RANK_SPAN) and step.says.get(v.ITERATION, 0) > 2:
            named = sum(child.end - child.begin for child in children[step.id])  # none overlaps another
            shares.append(1 - named / (step.end - step.begin))
    assert 2 * (STEPS - 2) == len(shares)
    assert statistics.median(shares) <= 0.05


def walk(span: Exported, children: dict[str, list[Exported]]) -> Iterator[Exported]:
    """Go through all below a span."""
    for child in children.get(span.id, []):
        yield child
        yield from walk(child, children)


def lacks(span: Exported) -> bool:
    """Whether a stage does not say all that it has to; collectives hold no memory of their own."""
    memory = set() if span.name == v.COMM else {v.RSS_START, v.RSS_END}
    return not SAYS.get(span.label, set()) | memory <= set(span.says)

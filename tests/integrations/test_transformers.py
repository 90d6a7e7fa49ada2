"""The loop of transformers' trainer: its steps, however a training begins, goes on, repeats or is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from otel_rl.trace.training import training
from tests.programs.launch import Trainings
from tests.programs.recorded import Recorded, outside, overlapping

pytestmark = pytest.mark.slow


def whole(recorded: Recorded) -> None:
    """Nothing is orphaned, left open, outside its parent or on top of its neighbour, and traces are told apart."""
    assert ([], [], {}) == (recorded.orphans, recorded.run.open_stages(), recorded.errors())
    assert [] == [names for node in recorded.nodes for names in (*overlapping(node), *outside(node))]
    assert len(recorded.roots) == len({node.span.trace_id for node in recorded.nodes})
    assert [] == recorded.run.damage


def tiled(recorded: Recorded) -> list[str]:
    """Name the roots, each of which must begin where the one before ended."""
    assert all(a.span.end_ns == b.span.start_ns for a, b in pairwise(recorded.roots))
    return [
        f"{root.attributes[v.LOOP_NAME]} {root.attributes[v.ITERATION]}"
        if v.ITERATION in root.attributes
        else root.name
        for root in recorded.roots
    ]


def test_a_data_set_that_ends_begins_anew(trainings: Trainings) -> None:
    """Epochs of two steps: the numbers go on, and no step begins without a batch."""
    result = trainings.train("epochs", prompts=2, config={"max_steps": 5})
    recorded = Recorded(result.runs)
    whole(recorded)
    assert [v.SETUP, *[f"train {number}" for number in range(1, 6)], v.TEARDOWN] == tiled(recorded)
    assert [1, 2, 3, 4, 5] == result.truth["steps"]
    assert recorded.total(v.TRAIN_STEPS) == 5


def test_an_incomplete_accumulation_ends_its_epoch(trainings: Trainings) -> None:
    """Three batches accumulated by two: the second step of each epoch has one micro-batch, and its loss is right."""
    result = trainings.train(
        "remainder", prompts=3, config={"gradient_accumulation_steps": 2, "steps_per_generation": 1, "max_steps": 4}
    )
    recorded = Recorded(result.runs)
    whole(recorded)
    forwards = [sum(c.name == v.FORWARD for c in step.children) for step in recorded.steps().values()]
    assert [2, 1, 2, 1] == forwards
    logged = {entry["step"]: entry["loss"] for entry in result.truth["logs"] if "loss" in entry}
    assert logged == pytest.approx({n: x for n, (x,) in recorded.values(v.LOSS).items()}, abs=1e-6)


def test_a_resumed_training_goes_on_with_its_numbers(trainings: Trainings) -> None:
    """In the same process it is a second loop; the steps until the checkpoint are not repeated."""
    config = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}
    recorded = Recorded(trainings.train("resumed", play="train_resumed", config=config).runs)
    whole(recorded)
    expected = [v.SETUP, "train 1", "train 2", "train 3", v.TEARDOWN, "train.2 4", "train.2 5", "train.2 6", v.TEARDOWN]
    assert expected == tiled(recorded)
    assert v.IDLE in {child.name for child in recorded.steps(loop="train.2")[4].children}


def test_resuming_in_another_process_is_another_attempt(trainings: Trainings) -> None:
    """Of the same run, if it has the same name: one directory, and no trace id twice."""
    env = {"OTEL_RL_RUN_ID": "long training"}
    config = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    result = trainings.train("first", config=config, env=env)
    again = {**env, "OTEL_RL_DIR": str(result.runs)}
    resume = str(result.directory / "checkpoints" / "checkpoint-2")
    trainings.train("second", config={"max_steps": 4}, env=again, resume=resume, work=str(result.directory))
    recorded = Recorded(result.runs)
    whole(recorded)
    attempts = {node.span.resource[v.ATTEMPT_ID] for node in recorded.nodes}
    loops = [root for root in recorded.roots if root.name == v.LOOP]
    assert (2, [1, 2, 3, 4]) == (len(attempts), [root.attributes[v.ITERATION] for root in loops])
    assert len(recorded.roots) == len({root.span.trace_id for root in recorded.roots})
    assert {"long training"} == {node.span.resource[v.RUN_ID] for node in recorded.nodes}


def test_a_second_training_is_a_second_loop(trainings: Trainings) -> None:
    """Equal numbers of two loops never share a trace, and each value lies in its own step."""
    result = trainings.train("twice", play="train_twice", config={"max_steps": 2})
    recorded = Recorded(result.runs)
    whole(recorded)
    assert [
        v.SETUP, "train 1", "train 2", v.TEARDOWN, "train.2 1", "train.2 2", v.TEARDOWN,
    ] == tiled(recorded)  # fmt: skip
    losses = [entry["loss"] for entry in result.truth["logs"] if "loss" in entry]
    found = [x for loop in ("train", "train.2") for (x,) in recorded.values(v.LOSS, loop=loop).values()]
    assert losses == pytest.approx(found, abs=1e-6)


def test_steps_that_are_tried_again_are_wasted(trainings: Trainings) -> None:
    """Of a trainer that runs out of memory and begins anew with smaller batches."""
    config = {"max_steps": 3, "auto_find_batch_size": True}
    recorded = Recorded(trainings.train("retried", play="retried", config=config).runs)
    whole(recorded)
    steps = ["train 1", "train 2", v.TEARDOWN, "train.2 1", "train.2 2", "train.2 3"]
    assert [v.SETUP, *steps, v.TEARDOWN] == tiled(recorded)
    first, again = (list(recorded.steps(loop=loop).values()) for loop in ("train", "train.2"))
    assert {None} == {step.attributes.get(v.LOOP_RESTART_OF) for step in first}
    assert {"train"} == {step.attributes.get(v.LOOP_RESTART_OF) for step in again}
    goodput = build_report(recorded.run, 10**19).efficiency.goodput[-1]
    (wasted,) = (part.time_ns for part in goodput.parts if part.kind == "wasted")
    assert sum(step.span.end_ns - step.span.start_ns for step in first) == wasted


def test_two_algorithms_are_told_apart(trainings: Trainings) -> None:
    """The resource names the first that trains, whichever trainer was made last; steps of the other name it."""
    result = trainings.train("both", play="train_both", config={"max_steps": 1})
    recorded = Recorded(result.runs)
    whole(recorded)
    named = {
        loop: (step.span.resource[v.ALGORITHM], step.attributes.get(v.ALGORITHM))
        for loop in ("train", "train.2")
        for step in recorded.steps(loop=loop).values()
    }
    assert {"train": ("RLOO", None), "train.2": ("RLOO", "GRPO")} == named
    reported = build_report(recorded.run, 10**19).trainings
    assert [("RLOO", ["train"], 1), ("GRPO", ["train.2"], 1)] == [
        (one.algorithm, one.loops, one.steps) for one in reported
    ]


def test_a_training_inside_a_step_is_work_of_that_step(trainings: Trainings) -> None:
    """It makes no steps, and its numbers are not taken for those of the training around it."""
    result = trainings.train("inner", play="with_inner")
    recorded = Recorded(result.runs)
    whole(recorded)
    assert [v.SETUP, *[f"train {number}" for number in range(1, 5)], v.TEARDOWN] == tiled(recorded)
    logged = [entry for entry in result.truth["logs"] if "grad_norm" in entry]
    for key, name in (("loss", v.LOSS), ("grad_norm", v.GRAD_NORM), ("learning_rate", v.LEARNING_RATE)):
        assert [[pytest.approx(entry[key], abs=1e-6)] for entry in logged] == list(recorded.values(name).values())
    judged = next(node for node in recorded.steps()[2].walk() if node.name == f"{v.REWARD} judged")
    assert 3 == [child.name for child in judged.children].count(v.OPTIMIZER)


def test_stages_of_other_threads_find_a_place_at_every_moment(trainings: Trainings) -> None:
    """A thread that records all the time belongs to the step that is open, also while one step follows another."""
    recorded = Recorded(trainings.train("noisy", play="with_noisy_threads", config={"max_steps": 12}).runs)
    assert ([], [], {}) == (recorded.orphans, recorded.run.open_stages(), recorded.errors())
    assert [v.SETUP, *[f"train {number}" for number in range(1, 13)], v.TEARDOWN] == tiled(recorded)
    places = {recorded.by_id[node.span.parent_id].name for node in recorded.nodes if node.name == "prefetch"}
    assert places <= {f"{v.RANK_SPAN} 0"}


def test_a_slow_set_up_does_not_hide_what_is_trained(trainings: Trainings) -> None:
    """The trainer is made long after the start; everything is still known as its work."""
    recorded = Recorded(trainings.train("frozen", play="train_frozen").runs)
    whole(recorded)
    assert {("trl", "GRPO")} == {
        (step.span.resource.get(v.SYSTEM), step.span.resource.get(v.ALGORITHM)) for step in recorded.steps().values()
    }
    assert {"trl-trainer"} == {point.resource[v.SERVICE_NAME] for point in recorded.run.points(v.STEP_TIME)}


def test_a_users_own_stages_spans_and_threads_nest(trainings: Trainings) -> None:
    """A stage and a span of OpenTelemetry inside a reward function lie below it; a number that is NaN is kept."""
    recorded = Recorded(trainings.train("own", play="own_spans", config={"max_steps": 2}).runs)
    whole(recorded)
    for step in recorded.steps().values():
        (reward,) = [child for child in step.children if child.name == v.REWARD]
        assert ["rl.reward digits_in_threads", "  judge", "    http"] == reward.outline()
        assert reward.children[0].children[0].attributes[v.BATCH_SIZE] == 4
    assert ["nan", "nan"] == [str(point.value) for point in recorded.run.points("user.judge.score")]


def test_the_norm_is_known_without_clipping(trainings: Trainings) -> None:
    """With ``max_grad_norm=0`` the trainer measures the norm without clipping, and logs it."""
    result = trainings.train("unclipped", config={"max_steps": 2, "max_grad_norm": 0.0})
    recorded = Recorded(result.runs)
    logged = {entry["step"]: entry["grad_norm"] for entry in result.truth["logs"] if "grad_norm" in entry}
    assert logged == pytest.approx({n: x for n, (x,) in recorded.values(v.GRAD_NORM).items()}, rel=1e-5)


def test_callbacks_that_somebody_listens_to_are_stages(trainings: Trainings) -> None:
    """Those of the frameworks and of the user; an event that nobody hears has none."""
    recorded = Recorded(trainings.train("heard", listens=["on_step_begin", "on_pre_optimizer_step"]).runs)
    whole(recorded)
    names = [child.name for child in recorded.steps()[2].children]
    assert [v.IDLE, v.LOG, v.SAMPLE] == names[:3]
    assert [v.CLIP, v.LOG, v.OPTIMIZER, v.LOG, v.LOG] == names[-5:]


def test_who_listens_is_asked_of_the_callbacks_there_are() -> None:
    """Not of those that were replaced."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import CallbackHandler

    from otel_rl.integrations.transformers import hooks

    class Quiet(TrainerCallback):
        pass

    class Listening(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            pass

    def handler(kind: type[TrainerCallback]) -> Any:
        return CallbackHandler([kind()], None, None, None, None)

    def stage(of: Any) -> str | None:
        return hooks._event_stage((of, "on_step_end"), {})

    replaced = handler(Quiet)
    assert stage(replaced) is None
    replaced.remove_callback(Quiet)
    replaced.add_callback(Listening)
    assert v.LOG == stage(replaced)


def test_a_plain_trainer_has_its_steps_too(trainings: Trainings) -> None:
    """Supervised training with transformers alone: data wait, forward, backward, clip, optimizer, log."""
    result = trainings.train("plain", play="supervised", config={"max_steps": 2})
    recorded = Recorded(result.runs)
    whole(recorded)
    update = [v.IDLE, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER, v.LOG]
    steps: Any = {number: step.outline() for number, step in recorded.steps().items()}
    assert {1: [*update, "rl.log"], 2: [*update, "rl.log", "rl.log"]} == steps
    assert {"learning_rate": 5e-5, "gradient_limit": 1.0, "steps": 2.0} == build_report(recorded.run, 10**19).settings
    assert {"transformers-trainer"} == {step.span.resource[v.SERVICE_NAME] for step in recorded.steps().values()}


# --- what is no training ----------------------------------------------------------------------------------------------


class Measured:
    """A trainer on a clock that only its data and its checkpoints move, and what of it was counted as outside."""

    def __init__(self, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch
        import transformers

        from otel_rl.integrations.transformers import hooks

        self.now = 1_000
        monkeypatch.setattr(training, "throughput", SimpleNamespace(outside_ns=0))
        monkeypatch.setattr(hooks, "monotonic_ns", lambda: self.now)

        def spend(ns: int) -> None:
            self.now += ns

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def forward(self, x: Any, labels: Any) -> Any:
                return {"loss": ((self.layer(x) - labels) ** 2).mean()}

        class Rows(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return 3

            def __getitem__(self, index: int) -> Any:
                spend(7)
                return {"x": torch.ones(1), "labels": torch.ones(1)}

        class Trainer(transformers.Trainer):  # type: ignore[misc,unused-ignore]
            def save_model(self, *args: Any, **kwargs: Any) -> None:
                spend(100)
                super().save_model(*args, **kwargs)

        arguments = transformers.TrainingArguments(
            output_dir=str(work), per_device_eval_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
            save_only_model=True, save_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        self.rows = Rows()
        self.trainer: Any = Trainer(Model(), arguments, eval_dataset=self.rows)

    @property
    def outside(self) -> tuple[int, int]:
        """Give what was counted, ns, and how many evaluations are open."""
        return training.throughput.outside_ns, training.evaluating

    def on(self, event: str, act: Any) -> None:
        """Do something at an event of the trainer."""
        from transformers import TrainerCallback

        self.trainer.add_callback(type("Act", (TrainerCallback,), {event: lambda *_, **__: act()})())


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    """Make a trainer while its integration records."""
    otel_rl.instrument(["transformers"])
    yield Measured(tmp_path / "checkpoints", monkeypatch)
    otel_rl.uninstrument()


def test_an_evaluation_is_no_training_whoever_asks_for_it(measured: Measured) -> None:
    """The loop does by one method, a callback or the program by another that the first one calls: it counts once."""
    measured.trainer.evaluate()
    assert (21, 0) == measured.outside
    measured.trainer._evaluate(None, None, skip_scheduler=True)
    assert (42, 0) == measured.outside


def test_evaluations_in_an_evaluation_count_once(measured: Measured) -> None:
    """Of several data sets each has its own; what a callback saves or evaluates meanwhile is inside as well."""
    measured.trainer.evaluate({"one": measured.rows, "two": measured.rows})
    assert (42, 0) == measured.outside
    seen: list[int] = []
    measured.on("on_evaluate", lambda: seen.append(training.evaluating))
    measured.on("on_evaluate", lambda: measured.trainer._save_checkpoint(measured.trainer.model, None))
    measured.trainer._evaluate(None, None, skip_scheduler=True)
    assert ([2], (42 + 21 + 100, 0)) == (seen, measured.outside)


def test_an_evaluation_that_its_class_does_by_itself_is_one(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls nothing of the base's."""
    seen: list[int] = []

    def evaluate(*_: Any, **__: Any) -> dict[str, float]:
        seen.append(training.evaluating)
        return {"rows": len([measured.rows[0], measured.rows[1]])}

    monkeypatch.setattr(type(measured.trainer), "evaluate", evaluate, raising=False)
    measured.trainer._evaluate(None, None, skip_scheduler=True)
    assert ([1], (14, 0)) == (seen, measured.outside)


def test_what_fails_outside_is_over(measured: Measured) -> None:
    """An evaluation and a checkpoint count until they fail; the host gets its exception."""

    def fail() -> None:
        raise LookupError("no disk")

    measured.on("on_evaluate", fail)
    with pytest.raises(LookupError, match="no disk"):
        measured.trainer._evaluate(None, None, skip_scheduler=True)
    assert (21, 0) == measured.outside
    measured.trainer._save = lambda *_, **__: fail()
    with pytest.raises(LookupError, match="no disk"):
        measured.trainer._save_checkpoint(measured.trainer.model, None)
    assert (121, 0) == measured.outside

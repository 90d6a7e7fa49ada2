"""NeMo-RL by its shape: whole traces of synchronous and asynchronous GRPO, their numbers, and planted faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.nemo_rl import INTEGRATION
from otel_rl.journal.read import Run
from otel_rl.journal.views import SpanView
from tests.fixtures import ATTEMPT, Recording, described
from tests.nemo_rl import world
from tests.programs.signatures import script

SHAPE = Path(__file__).parent / "shape"
TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text("utf-8"))
RANK = f"{v.RANK_SPAN} 0"
UPDATE = [
    (v.LOGPROB, RANK), (v.LOGPROB, v.LOGPROB), (v.LOGPROB_FORWARD, v.LOGPROB),
    (v.LOGPROB, RANK), (v.LOGPROB, v.LOGPROB), (v.LOGPROB_FORWARD, v.LOGPROB),
    (v.ADVANTAGE, RANK), (v.TRAIN, RANK), (v.TRAIN, v.TRAIN), (v.FORWARD, v.TRAIN),
]  # fmt: skip
Program = Callable[[str, Any], Run]


@pytest.fixture
def train(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Return a function that runs a training of NeMo-RL's shape, recorded."""
    monkeypatch.syspath_prepend(str(SHAPE))
    monkeypatch.setattr(world, "CLOCK", [stubbed.tick])
    stubbed.start("nemo_rl")
    grpo = import_module("nemo_rl.algorithms.grpo")
    policy, logger = import_module("nemo_rl.models.policy.lm_policy"), import_module("nemo_rl.utils.logger")
    classes = {
        name: kind
        for module in [module for name, module in sys.modules.items() if name.startswith("nemo_rl.")]
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }
    for hook in INTEGRATION.arriving:
        kind, _, name = hook.target.partition(".")
        if kind in classes:
            monkeypatch.setattr(classes[kind], name, wrap(hook, vars(classes[kind])[name]))

    def run(name: str, config: Any) -> Run:
        grpo.setup(config, None, None, None)
        saved = {"total_steps": 0, "current_step": 0}
        function = getattr(grpo, name)
        function(policy.Policy(), None, [], None, None, None, config.fails, None, logger.Logger(), None, saved, config)
        return stubbed.stop()

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]:
        del sys.modules[name]


def ordered(run: Run) -> list[SpanView]:
    """Return all spans in the order of their begin."""
    return sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns))


def of_step(run: Run, number: int) -> list[SpanView]:
    """Return the spans of the trace of a step."""
    (root,) = [one for one in ordered(run) if one.name == v.LOOP and one.attributes[v.ITERATION] == number]
    return [one for one in ordered(run) if one.trace_id == root.trace_id]


def names(spans: list[SpanView]) -> list[tuple[str, str]]:
    """Return the name of each span and of its parent."""
    known = {span.span_id: span.name for span in spans}
    return [(span.name, known.get(span.parent_id, "")) for span in spans]


def test_a_synchronous_step(train: Program) -> None:
    """Timers are the stages of the driver; the calls of the policy are those of its ranks, too."""
    spans = of_step(train("grpo_train", world.config()), 2)
    assert [
        (v.LOOP, ""), (RANK, v.LOOP), (v.SYNC, RANK), (v.SYNC, v.SYNC), (v.SAMPLE, RANK),
        (v.SAMPLE_GENERATE, v.SAMPLE), (v.REWARD, v.SAMPLE), *UPDATE,
        (v.SYNC, RANK), (v.SYNC, v.SYNC), (v.EVALUATE, RANK), (v.CHECKPOINT, RANK),
    ] == [pair for pair in names(spans) if pair != (v.LOG, RANK)]  # fmt: skip
    kinds = [span.attributes[v.LOGPROB_KIND] for span in spans if span.name == v.LOGPROB]
    assert (["old", "old", "ref", "ref"], 3) == (kinds, names(spans).count((v.LOG, RANK)))
    reward = next(described(span.attributes) for span in spans if span.name == v.REWARD)
    assert {v.MODE: "train", v.REWARD_FUNCTION: "math", v.BATCH_SIZE: 4} == reward


def test_a_step_that_fills_its_batch_later(train: Program) -> None:
    """It goes on in the next block of its timer: steps are those that NeMo-RL logs."""
    run = train("grpo_train", world.config(unfilled=2))
    numbers = [span.attributes[v.ITERATION] for span in ordered(run) if span.name == v.LOOP]
    samples = [sum(span.name == v.SAMPLE for span in of_step(run, number)) for number in (1, 2)]
    assert ([1, 2], [3, 1]) == (numbers, samples)


def test_an_asynchronous_step(train: Program) -> None:
    """Groups are traces of their own; the replay buffer links to those that a step takes, with their lags."""
    run = train("async_grpo_train", world.config())
    step = of_step(run, 2)
    assert [
        (v.LOOP, ""), (RANK, v.LOOP), (v.IDLE, RANK), (v.SAMPLE_PROCESS, v.IDLE), *UPDATE, (v.SYNC, RANK),
        (v.SYNC, v.SYNC), (v.LOG, RANK),
    ] == names(step)  # fmt: skip
    taken = next(described(span.attributes) for span in step if span.name == v.SAMPLE_PROCESS)
    assert {v.POLICY_VERSION: 1, v.LAG_MAX: 1, v.STALE_COUNT: 4} == taken
    traces = [ids.trace_id(ATTEMPT, "rollout", f"group-1-{place}").to_bytes(16, "big") for place in range(2)]
    group = [span for span in ordered(run) if span.trace_id == traces[0]]
    trajectory = [(v.TRAJECTORY, v.SAMPLE_GROUP), (v.SAMPLE_TURN, v.TRAJECTORY), (v.REWARD, v.TRAJECTORY)]
    assert [(v.SAMPLE_GROUP, ""), *trajectory, *trajectory] == names(group)
    said = {v.MODE: "train", v.GROUP_ID: "group-1-0", v.BATCH_SIZE: 2, v.POLICY_VERSION: 0}
    assert said == described(group[0].attributes)
    tokens = {v.TOKENS_RESPONSE: 2, v.TOKENS_ENVIRONMENT: 1, v.FINISH_REASONS: ("length",)}
    assert {v.MODE: "train", v.GROUP_ID: "group-1-0", v.SAMPLE_ID: "0", **tokens} == described(group[1].attributes)
    _, sampled = written(run, v.SAMPLE_PROCESS)
    assert traces == [link.trace_id for link in sampled.links]


def written(run: Run, name: str) -> list[Any]:
    """Return the spans of a name as they are on disk, in the order of their begin."""
    found = [
        span
        for _, frame in run.frames("traces")
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == name
    ]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


@pytest.mark.parametrize("kl", [0.01, 0])
def test_numbers(kl: float, train: Program) -> None:
    """Ours where the meaning is the same; a KL that the loss does not have is none."""
    run = train("grpo_train", world.config(kl=kl))
    found = {point.name: point.value for point in run.points()}
    expected = {
        v.REWARD_SCORE: 0.5, v.LOSS: 0.25, v.GRAD_NORM: 2, v.LEARNING_RATE: 1e-6, v.RESPONSE_LENGTH: 2,
        v.RESPONSE_CLIPPED: 0.5, v.EVAL_REWARD: 0.75, "nemo_rl.train/approx_entropy": 1.5,
        "nemo_rl.timing/train/generation": 2, v.KL_REFERENCE if kl else "nemo_rl.train/kl_penalty": 0.125,
    }  # fmt: skip
    assert expected == {name: found[name] for name in expected}
    assert (v.KL_REFERENCE in found) == bool(kl)


def test_a_reward_that_raises(train: Program, stubbed: Recording) -> None:
    """It is the error of its stage, and of the step of a synchronous training."""
    with pytest.raises(OSError, match="theirs"):
        train("grpo_train", world.config(fails="reward"))
    failed = {span.name for span in stubbed.stop().spans(None) if span.attributes.get(v.ERROR_TYPE) == "OSError"}
    assert {v.REWARD, v.SAMPLE, v.LOOP} <= failed


def test_a_reward_that_raises_in_a_group(train: Program) -> None:
    """NeMo-RL goes on without the group; its trajectory says why."""
    run = train("async_grpo_train", world.config(fails="reward"))
    failed = {span.name for span in run.spans(None) if span.attributes.get(v.ERROR_TYPE) == "OSError"}
    assert {v.REWARD, v.TRAJECTORY} == failed


def test_what_is_trained(train: Program) -> None:
    """The algorithm, the model, and the settings of a rank, of which there are two."""
    run = train("grpo_train", world.config())
    (root,) = {
        (span.resource[v.ALGORITHM], span.resource[v.MODEL_NAME], span.resource[v.SYSTEM]) for span in run.spans(None)
    }
    assert ("GRPO", "Tiny-1B", "nemo_rl") == root
    (setup,) = [span for span in run.spans(None) if v.SETTINGS_STEPS in span.attributes]
    assert {
        v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_SAMPLES: 2, v.SETTINGS_GROUP: 2, v.SETTINGS_LIMIT: 64,
        v.SETTINGS_UPDATES: 1, v.SETTINGS_STEPS: 2, v.SETTINGS_TEMPERATURE: 1, v.SETTINGS_KL: 0.01,
        v.SETTINGS_GRADIENT: 1,
    } == {key: value for key, value in setup.attributes.items() if key.startswith("rl.settings")}  # fmt: skip


def test_which_version_this_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree says it: the distribution on the package index is another one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl" / "__init__.py").touch()
    found = [INTEGRATION.installed()]
    (tmp_path / "nemo_rl" / "package_info.py").write_text('MAJOR = 0\nMINOR = 7\nPATCH = 1\nPRE_RELEASE = "rc0"\n')
    assert [None, "0.7.1"] == [*found, INTEGRATION.installed()]


def test_every_target_is_in_nemo_rl() -> None:
    """``signatures.json`` is of NeMo-RL 0.7.0; ``scripts/signatures nemo_rl`` wrote it."""
    assert set(script.targets("nemo_rl")) == TABLE.keys()


def test_the_shape_has_the_signatures_of_nemo_rl() -> None:
    """All of them."""
    assert script.signatures("nemo_rl", SHAPE) == TABLE

"""NeMo-RL by its shape: whole traces of synchronous and asynchronous GRPO, their numbers, and planted faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.nemo_rl import INTEGRATION
from otel_rl.journal.read import Run
from otel_rl.journal.views import SpanView
from tests.fixtures import ATTEMPT, Recording, described
from tests.nemo_rl import world
from tests.nemo_rl.conftest import SHAPE, Program
from tests.programs.signatures import script

TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text("utf-8"))
RANK = f"{v.RANK_SPAN} 0"
UPDATE = [
    (v.LOGPROB, RANK), (v.LOGPROB, v.LOGPROB), (v.LOGPROB_FORWARD, v.LOGPROB),
    (v.LOGPROB, RANK), (v.LOGPROB, v.LOGPROB), (v.LOGPROB_FORWARD, v.LOGPROB),
    (v.ADVANTAGE, RANK), (v.TRAIN, RANK), (v.TRAIN, v.TRAIN), (v.FORWARD, v.TRAIN),
]  # fmt: skip


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
        (v.SAMPLE_GENERATE, v.SAMPLE), (v.REWARD, v.SAMPLE), (v.REWARD, RANK), *UPDATE,
        (v.SYNC, RANK), (v.SYNC, v.SYNC), (v.EVALUATE, RANK), (v.SAMPLE_GENERATE, v.EVALUATE), (v.REWARD, v.EVALUATE),
        (v.CHECKPOINT, RANK),
    ] == [pair for pair in names(spans) if pair != (v.LOG, RANK)]  # fmt: skip
    kinds = [span.attributes[v.LOGPROB_KIND] for span in spans if span.name == v.LOGPROB]
    assert (["old", "old", "ref", "ref"], 3) == (kinds, names(spans).count((v.LOG, RANK)))
    reward, _, evaluated = [described(span.attributes) for span in spans if span.name == v.REWARD]
    assert {v.MODE: "train", v.REWARD_FUNCTION: "math", v.BATCH_SIZE: 4} == reward
    assert {v.MODE: "eval", v.REWARD_FUNCTION: "math", v.BATCH_SIZE: 1} == evaluated
    sampled = next(described(span.attributes) for span in spans if span.name == v.SAMPLE)
    assert {v.MODE: "train", v.BATCH_SIZE: 4, v.TOKENS_RESPONSE: 8, v.TOKENS_ENVIRONMENT: 2} == sampled


@pytest.mark.parametrize("calls_super", [False, True])
def test_a_logger_of_the_users_own(calls_super: bool, train: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and numbers are known from what it overrides, each once."""
    module = import_module("nemo_rl.utils.logger")

    class Own(module.Logger):  # type: ignore[misc,name-defined]
        """Says nothing to the services of NeMo-RL, or does."""

        def log_metrics(self, metrics: Any, step: Any, prefix: Any = "", **others: Any) -> None:
            if calls_super:
                super().log_metrics(metrics, step, prefix, **others)

    monkeypatch.setattr(module, "Logger", Own)
    run = train("grpo_train", world.config())
    assert [1, 2] == [span.attributes[v.ITERATION] for span in ordered(run) if span.name == v.LOOP]
    assert [0.25, 0.25] == [point.value for point in run.points(v.LOSS.__eq__)]


@pytest.mark.parametrize(("tasks", "name"), [(["math", "math"], "math"), (["math", "code", "math"], "2 tasks")])
def test_an_environment_has_the_name_of_its_task(tasks: list[str], name: str, train: Program) -> None:
    """Mixtures of tasks would each be a series of metrics."""
    rollouts = import_module("nemo_rl.experience.rollouts")
    rollouts.calculate_rewards(world.Batch(task_name=tasks), [])
    run = train("grpo_train", world.config())
    first = next(span for span in ordered(run) if span.name == v.REWARD)
    assert (name, len(tasks)) == (first.attributes[v.REWARD_FUNCTION], first.attributes[v.BATCH_SIZE])


def test_trajectories_of_a_synchronous_step(train: Program) -> None:
    """With asynchronous rollouts the driver has them; those of an evaluation count apart."""
    spans = of_step(train("grpo_train", world.config(async_rollouts=True)), 1)
    found = [described(span.attributes) for span in spans if span.name == v.TRAJECTORY]
    tokens = {v.TOKENS_RESPONSE: 2, v.TOKENS_ENVIRONMENT: 1, v.FINISH_REASONS: ("length",)}
    expected = [("train", "0"), ("train", "1"), ("train", "2"), ("train", "3"), ("eval", "0")]
    assert [{v.MODE: mode, v.SAMPLE_ID: sample, **tokens} for mode, sample in expected] == found
    assert {v.MODE: "train"} == next(described(span.attributes) for span in spans if span.name == v.SAMPLE)


def test_a_step_that_fills_its_batch_later(train: Program) -> None:
    """It goes on in the next block of its timer: steps are those that NeMo-RL logs."""
    run = train("grpo_train", world.config(spreads=[0, 0]))
    numbers = [span.attributes[v.ITERATION] for span in ordered(run) if span.name == v.LOOP]
    samples = [sum(span.name == v.SAMPLE for span in of_step(run, number)) for number in (1, 2)]
    assert ([1, 2], [2, 1]) == (numbers, samples)


@pytest.mark.parametrize(("spreads", "expected"), [([], {}), ([0, 1, 0, 0], {"filtered": 3, "surplus": 1})])
def test_groups_that_dynamic_sampling_drops(spreads: list[int], expected: dict[str, int], train: Program) -> None:
    """Those of equal rewards, and those that are too many: the second batch of the first step has one more."""
    run = train("grpo_train", world.config(**({"spreads": spreads} if spreads else {})))
    found = {point.attributes[v.DROPPED_BECAUSE]: point.value for point in run.points(v.GROUPS_DROPPED.__eq__)}
    assert expected == {reason: number for reason, number in found.items() if number}


def test_an_asynchronous_step(train: Program) -> None:
    """Groups are traces of their own; the replay buffer links to those that a step takes, with their lags."""
    run = train("async_grpo_train", world.config())
    step = of_step(run, 2)
    assert [
        (v.LOOP, ""), (RANK, v.LOOP), (v.IDLE, RANK), (v.SAMPLE_PROCESS, v.IDLE), *UPDATE, (v.SYNC, RANK),
        (v.SYNC, v.SYNC), (v.LOG, RANK), (v.LOG, RANK),
    ] == names(step)  # fmt: skip
    taken = next(described(span.attributes) for span in step if span.name == v.SAMPLE_PROCESS)
    assert {v.POLICY_VERSION: 1, v.LAG_MAX: 1, v.STALE_COUNT: 4} == taken
    traces = [ids.trace_id(ATTEMPT, "rollout", f"group-1-{place}").to_bytes(16, "big") for place in range(2)]
    group = [span for span in ordered(run) if span.trace_id == traces[0]]
    trajectory, rewards = (
        [(v.TRAJECTORY, v.SAMPLE_GROUP), (v.SAMPLE_TURN, v.TRAJECTORY)],
        [(v.REWARD, v.TRAJECTORY)] * 2,
    )
    assert [(v.SAMPLE_GROUP, ""), *trajectory, *trajectory, *rewards] == names(group)
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


@pytest.mark.parametrize(("kl", "in_reward"), [(0.01, False), (0, False), (0.01, True)])
def test_numbers(kl: float, in_reward: bool, train: Program) -> None:
    """Ours where the meaning is the same; a KL that the loss does not have, as one in the rewards, is none."""
    run = train("grpo_train", world.config(kl=kl, kl_in_reward=in_reward))
    has_kl = bool(kl) and not in_reward
    found = {point.name: point.value for point in run.points()}
    expected = {
        v.REWARD_SCORE: 0.5, v.LOSS: 0.25, v.GRAD_NORM: 2, v.LEARNING_RATE: 1e-6, v.RESPONSE_LENGTH: 2,
        v.RESPONSE_CLIPPED: 0.5, v.EVAL_REWARD: 0.75, "nemo_rl.train/approx_entropy": 1.5,
        "nemo_rl.timing/train/generation": 2, v.KL_REFERENCE if has_kl else "nemo_rl.train/kl_penalty": 0.125,
    }  # fmt: skip
    assert expected == {name: found[name] for name in expected}
    assert (v.KL_REFERENCE in found) == has_kl


def test_ppo(train: Program, stubbed: Recording) -> None:
    """The critic is trained in each epoch of a step; the policy has no loss before its own training begins."""
    ppo, policy, value, logger = (
        import_module(f"nemo_rl.{name}")
        for name in ("algorithms.ppo", "models.policy.lm_policy", "models.value.lm_value", "utils.logger")
    )
    config = world.config()
    config.ppo = {**config.grpo, "max_num_steps": 6, "ppo_epochs": 2, "policy_training_start_step": 5}
    del config.grpo
    ppo.setup(config, None, None, None)
    ppo.ppo_train(
        policy.Policy(), [], value.Value(), [], None, None, None, None, [], None, logger.Logger(), None,
        {"total_steps": 4}, config,
    )  # fmt: skip
    run = stubbed.stop()
    critic = [(v.TRAIN, RANK), (v.TRAIN, v.TRAIN), (v.FORWARD, v.TRAIN)]
    assert [
        (v.LOOP, ""), (RANK, v.LOOP), (v.SAMPLE, RANK), (v.SAMPLE_GENERATE, v.SAMPLE), (v.REWARD, v.SAMPLE),
        (v.VALUE, RANK), (v.VALUE, v.VALUE), (v.LOGPROB, RANK), (v.LOGPROB, v.LOGPROB), (v.LOGPROB_FORWARD, v.LOGPROB),
        (v.ADVANTAGE, RANK), *critic * 4, (v.LOG, RANK), (v.LOG, RANK),
    ] == names(of_step(run, 6))  # fmt: skip
    models = [span.attributes[v.TRAIN_MODEL] for span in of_step(run, 6) if span.name == v.TRAIN]
    assert ["critic", "critic", "actor", "actor"] * 2 == models
    assert "PPO" == next(run.spans(None)).resource[v.ALGORITHM]
    (setup,) = [span for span in run.spans(None) if v.SETTINGS_UPDATES in span.attributes]
    assert 2 == setup.attributes[v.SETTINGS_UPDATES]
    found = [point.value for point in run.points() if point.name == "nemo_rl.train/critic/loss"]
    assert [0.75] == found


def test_timers_with_spans_of_their_own(train: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both trees are whole, as beside NeMo Lens; the rank of a step links to the span around it."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("theirs")

    @contextmanager
    def time(self: object, label: str) -> Iterator[None]:
        with tracer.start_as_current_span(label):
            yield

    (hook,) = [hook for hook in INTEGRATION.hooks if hook.target.endswith("Timer.time")]
    monkeypatch.setattr(import_module("nemo_rl.utils.timer").Timer, "time", wrap(hook, time))
    with tracer.start_as_current_span("job") as job:
        run = train("async_grpo_train", world.config())
    assert [
        (v.LOOP, ""), (RANK, v.LOOP), (v.IDLE, RANK), (v.SAMPLE_PROCESS, v.IDLE), *UPDATE, (v.SYNC, RANK),
        (v.SYNC, v.SYNC), (v.LOG, RANK), (v.LOG, RANK),
    ] == names(of_step(run, 2))  # fmt: skip
    assert [job.get_span_context().span_id] == [
        int.from_bytes(link.span_id, "big") for link in written(run, RANK)[-2].links
    ]
    theirs = {span.context.span_id: span.name for span in kept.get_finished_spans()}
    inner = "exposed_generation", "policy_and_reference_logprobs", "advantage_calculation", "policy_training"
    expected = [*((name, "total_step_time") for name in (*inner, "weight_sync")), ("total_step_time", "job")]
    assert [*expected * 2, ("job", "")] == [
        (span.name, theirs[span.parent.span_id] if span.parent else "") for span in kept.get_finished_spans()
    ]


def test_groups_of_a_checkpoint(train: Program) -> None:
    """How old the weights of restored groups are is not known: the step has no lag, and links to no group."""
    run = train("async_grpo_train", world.config(restored=True))
    first, second = [described(span.attributes) for span in ordered(run) if span.name == v.SAMPLE_PROCESS]
    assert ({}, {v.POLICY_VERSION: 1, v.LAG_MAX: 1, v.STALE_COUNT: 4}) == (first, second)
    assert [0, 2] == [len(span.links) for span in written(run, v.SAMPLE_PROCESS)]


def test_the_policy_of_the_data_plane(train: Program) -> None:
    """Its log-probabilities are those of its methods of their own."""
    policy = import_module("nemo_rl.models.policy.tq_policy").TQPolicy()
    import_module("nemo_rl.algorithms.grpo").setup(
        master_config=world.config(), tokenizer=None, dataset=None, val_dataset=None
    )
    policy.get_logprobs_from_meta(None)
    policy.get_reference_policy_logprobs_from_meta(None)
    run = train("grpo_train", world.config())
    known = {span.span_id for span in of_step(run, 1)} | {span.span_id for span in of_step(run, 2)}
    found = [span for span in ordered(run) if span.span_id not in known and span.name == v.LOGPROB]
    assert ["old", "old", "ref", "ref"] == [span.attributes[v.LOGPROB_KIND] for span in found]
    assert {"nemo_rl"} == {span.resource[v.SYSTEM] for span in found}


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

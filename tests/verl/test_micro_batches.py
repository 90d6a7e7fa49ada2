"""Micro-batches as verl itself makes them: what is read of them, and where."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.hooks import Deferred
from otel_rl.integrations.verl import micro_batches
from otel_rl.journal.read import open_run
from otel_rl.single_controller.micro_batches import count_tokens
from tests.programs.launch import ROOT, run

pytestmark = pytest.mark.verl

PROMPTS, MASKS = [3, 2, 7, 2], [[1, 1], [1, 0, 1, 1], [1], [0]]
"""A tool wrote one token of the second response; the last sample fills up the batch."""
ONE_RANK = {
    "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "VERL_USE_EXTERNAL_MODULES": "verl_cpu.device",
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "OTEL_RL_PROCESS_KIND": "worker", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
ACAUSAL = 2 * 2 * (4 * 8 * 8 * 64) // 2
"""Half of the attention of two layers to two rows of eight tokens, 64 wide: the other half of each square is masked."""
POSITIONS = 2 * 2 * 8 * 8
"""What rotary embeddings multiply, which is no matrix of the model."""


@pytest.fixture(scope="module")
def of_dicts() -> Any:
    """What verl does with a ``TensorDict``."""
    return pytest.importorskip("verl.utils.tensordict_utils")


@pytest.fixture
def batch(of_dicts: Any) -> Any:
    """The batch that a rank of V1 fetches."""
    torch = pytest.importorskip("torch")
    rows = [[1] * (prompt + len(mask)) for prompt, mask in zip(PROMPTS, MASKS, strict=True)]

    def nested(rows: list[list[int]]) -> Any:
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

    tensors = {"input_ids": nested(rows), "responses": nested(MASKS), "loss_mask": nested(MASKS)}
    return of_dicts.get_tensordict({**tensors, "uid": ["a", "a", "b", "pad7"]}, {"use_remove_padding": False})


def counts(data: Any) -> tuple[int, ...] | None:
    """Count the tokens of a micro-batch: prompt, response, padding, environment."""
    return count_tokens(micro_batches.fields_of(data), is_packed=micro_batches.is_packed(data))


def test_micro_batches_of_equal_size(of_dicts: Any, batch: Any) -> None:
    """All rows of one are as long as its longest; the sample that fills up the batch is padding."""
    assert [(5, 5, 1, 1), (7, 1, 8, 0)] == [counts(one) for one in of_dicts.chunk_tensordict(batch, 2)]


def test_micro_batches_of_equal_tokens(of_dicts: Any, batch: Any) -> None:
    """They are packed, without positions that make rows equally long."""
    of_dicts.assign_non_tensor(batch, use_remove_padding=True)
    assert (9, 4, 3, 1) == counts(of_dicts.index_select_tensor_dict(batch, [1, 2, 3]))
    assert (5, 5, 0, 1) == counts(of_dicts.index_select_tensor_dict(batch, [0, 1]))


def test_the_legacy_trainer_pads_responses() -> None:
    """Their tokens are those of the mask of the whole sequence."""
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")
    convert = pytest.importorskip("verl.workers.utils.padding").left_right_2_no_padding
    real = torch.tensor(
        [[0] * (7 - p) + [1] * (p + len(m)) + [0] * (4 - len(m)) for p, m in zip(PROMPTS, MASKS, strict=True)]
    )
    mask = torch.tensor([m + [0] * (4 - len(m)) for m in MASKS])
    padded = {
        "input_ids": real.clone(), "position_ids": real.clone(), "attention_mask": real,
        "prompts": real[:, :7], "responses": mask, "response_mask": mask,
    }  # fmt: skip
    data = tensordict.TensorDict(padded, batch_size=4)
    assert (sum(PROMPTS), 6, 0, 2) == counts(convert(data))


def test_a_forward_is_described_on_the_host(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flusher reads what the hook has kept of it."""
    kept: list[Any] = []
    monkeypatch.setattr("otel_rl.observing.samples.state.add", kept.append)
    said = micro_batches.say_forward((SimpleNamespace(), batch, None, False), {})
    assert ({v.BATCH_SIZE: 4}, False) == (dict(said), said.is_complete)
    (later,) = kept
    assert isinstance(later, Deferred)
    later.function(*later.arguments)
    assert (19, 13, True) == (said[v.TOKENS], said[v.TOKENS_PADDING], said.is_complete)


def test_engines_take_what_we_read() -> None:
    """By position, as the hooks read it."""
    fsdp = pytest.importorskip("verl.workers.engine.fsdp.transformer_impl")
    forward = fsdp.FSDPEngineWithLMHead.forward_step
    assert ["self", "micro_batch", "loss_function", "forward_only"] == [*inspect.signature(forward).parameters]
    assert ["self", "module"] == [*inspect.signature(fsdp.FSDPEngine._build_fsdp_module).parameters]
    assert fsdp.FSDPEngineWithValueHead.forward_step is forward


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run the engines, the actor's with its states on the host meanwhile; return the folder, and what was printed."""
    path = tmp_path_factory.mktemp("one_rank")
    printed = run(path, str(ROOT / "tests" / "verl" / "one_rank.py"), str(path / "model"), **ONE_RANK)
    return path, json.loads(printed.splitlines()[-1])


def test_operations_are_those_that_torch_counts(one_rank: tuple[Path, dict[str, Any]]) -> None:
    """Of the networks that verl's engine makes: the actor's, and the critic's, whose head has one output."""
    path, printed = one_rank
    counted = {kind: printed[kind] for kind in ("language_model", "value_model")}
    points = open_run(path / "runs" / "job").last_points(v.FLOPS)
    found = {point.attributes[v.FLOPS_STAGE]: point.value for point in points}
    once = {stage: counted[kind][0] for stage, kind in ((v.LOGPROB, "language_model"), (v.VALUE, "value_model"))}
    updates = sum(update for _, update in counted.values())
    expected = {stage: number - ACAUSAL - POSITIONS for stage, number in once.items()}
    assert {**expected, v.FORWARD: updates - 2 * (3 * ACAUSAL + POSITIONS)} == found


def test_parts_of_a_call_are_stages(one_rank: tuple[Path, dict[str, Any]]) -> None:
    """Loading and offloading of what a call needs, the forwards of log-probabilities, and the clipping."""
    path, _ = one_rank
    spans = list(open_run(path / "runs" / "job").spans((v.SYNC_OPERATION, v.SYNC_STATES, v.TOKENS)))
    names = {span.span_id: span.name for span in spans}
    moved = {
        (names.get(span.parent_id), span.attributes[v.SYNC_OPERATION], span.attributes[v.SYNC_STATES])
        for span in spans
        if v.SYNC_STATES in span.attributes
    }
    model, optimizer = ("load_states", "model"), ("load_states", "optimizer")
    offloaded = (v.CHECKPOINT, "offload_states", "model")  # to a CPU engines load, but for their checkpoints
    assert {(v.LOGPROB, *model), (v.TRAIN, *model), (v.TRAIN, *optimizer), offloaded} <= moved
    (forward,) = (span for span in spans if span.name == v.LOGPROB_FORWARD)
    assert (v.LOGPROB, 16) == (names[forward.parent_id], forward.attributes[v.TOKENS])
    assert 2 == sum(span.name == v.CLIP for span in spans)
    assert 2 * [(v.FORWARD, 16)] == [(one.name, one.attributes[v.TOKENS]) for one in spans if one.name == v.FORWARD]


def test_bytes_are_those_that_were_sent_and_written(one_rank: tuple[Path, dict[str, Any]]) -> None:
    """Of the weights that an engine hands on, and of the files of a rank."""
    path, printed = one_rank
    spans = list(open_run(path / "runs" / "job").spans((v.SYNC_BYTES, v.CHECKPOINT_BYTES)))
    assert [printed["sent"]] == [one.attributes[v.SYNC_BYTES] for one in spans if v.SYNC_BYTES in one.attributes]
    written = sum(one.stat().st_size for one in (path / "checkpoint").glob("*.pt"))
    assert 0 < written
    assert [written] == [one.attributes[v.CHECKPOINT_BYTES] for one in spans if v.CHECKPOINT_BYTES in one.attributes]

"""The ledger of verl: what processes note of samples, and what a report says of them.

Batches are those of verl 0.9.1: nested tensors on the host with the trainers of V1, padded ones with the legacy one.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from rich.console import Console

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.verl import ledger as verl
from otel_rl.report.build import build_report
from otel_rl.report.rows.ledger_rows import ledger
from otel_rl.report.terminal import render
from tests.fixtures import WALL_NS, Recording

PROMPTS = [[5, 6, 7], [5, 6, 7], [8, 9], [8, 9]]
RESPONSES = [[11, 12, 13, 14], [15, 16], [17, 18, 19], [20, 21, 22, 23]]
MASKS = [[1, 1, 1, 1], [1, 1], [1, 0, 1], [1, 1, 0, 1]]
IDS = ["a_0", "a_1", "b_0", "b_1"]
WIDTH = 5
"""Columns of a padded response."""


class Fields(dict[str, Any]):
    """What a ``TensorDict`` has in common with a dictionary, and what it has more."""

    batch_size = (4,)


def nested(rows: list[list[Any]], dtype: torch.dtype = torch.int64) -> Any:
    """Make a tensor of rows of different lengths."""
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def padded(rows: list[list[Any]], dtype: torch.dtype = torch.int64) -> Any:
    """Make a tensor of rows that are filled up on the right."""
    return torch.tensor([row + [0] * (WIDTH - len(row)) for row in rows], dtype=dtype)


def floats(lay: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Any:
    """Make numbers of each token of the responses."""
    return lay([[-0.5 - 0.1 * token for token in row] for row in RESPONSES], dtype)


def batch(**changes: Any) -> Fields:
    """Make the batch that a rank of V1 fetches for an update."""
    whole = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    fields = Fields(
        uid=np.array(["a", "a", "b", "b"], dtype=object),
        session_id=np.array([0, 1, 0, 1]),
        input_ids=nested(whole),
        responses=nested(RESPONSES),
        response_mask=nested(MASKS),
        rollout_log_probs=floats(nested),
        old_log_probs=floats(nested, torch.bfloat16),
        advantages=floats(nested),
    )
    fields.update(changes)
    return fields


def legacy_batch(**changes: Any) -> Fields:
    """Make the batch that a rank of the legacy trainer gets; the response's tensors are padded."""
    fields = batch(
        responses=padded(RESPONSES),
        response_mask=padded(MASKS),
        attention_mask=torch.cat([torch.ones(4, 3), padded([[1] * len(row) for row in RESPONSES])], 1).long(),
        rollout_log_probs=floats(padded),
        old_log_probs=floats(padded),
        advantages=floats(padded),
    )
    del fields["session_id"]
    fields.update(changes)
    return fields


def generate(masks: list[list[int]] = MASKS, *, sessions: bool = True) -> None:
    """Generate the trajectories."""
    with otel_rl.stage("sample"):
        for number, (prompt, response, mask) in enumerate(zip(PROMPTS, RESPONSES, masks, strict=True)):
            output = SimpleNamespace(prompt_ids=prompt, response_ids=response, response_mask=mask)
            said = {"uid": "ab"[number // 2], **({"session_id": number % 2} if sessions else {})}
            verl.generated((None, [output], said), {})


def mismatches(recording: Recording) -> list[tuple[int, str, str, list[str]]]:
    """End the recording and return what a report says, and see that the mismatches of processes are counted."""
    run = recording.stop()
    points = {one.attributes[v.LEDGER_FAULT]: one.value for one in run.last_points(v.LEDGER_FAULTS)}
    logs = [str(log.attributes[v.LEDGER_FAULT]) for log in run.logs(v.LEDGER_MISMATCH)]
    assert {fault: logs.count(fault) for fault in logs} == points
    return [(one.step, one.boundary, one.fault, one.samples) for one in ledger(run).mismatches]


def fetch(stage: str, fields: Fields) -> None:
    """Let a rank fetch a batch, and hand it to the worker inside of it."""
    with otel_rl.stage(stage):
        verl.received((None,), {}, fields)
        verl.given((None, fields), {})


# --- clean ------------------------------------------------------------------------------------------------------------


def test_a_clean_step_raises_nothing(recording: Recording) -> None:
    """Rows are noted of every boundary; the worker inside of another one notes nothing again."""
    with otel_rl.step(1):
        generate()
        fetch("logprob", batch())
        fetch("train", batch())
        with otel_rl.stage("train"):
            verl.lost((None, {"loss": [0.5, 0.25]}), {"forward_only": False})
            verl.answered(({"log_probs": floats(nested)}, None, "compute_log_prob"), {})
    assert [] == mismatches(recording)
    noted = [(log.body, list(log.attributes[v.LEDGER_IDS])) for log in recording.run().logs(v.LEDGER_SAMPLES)]
    assert [*(("rl.sample", [one]) for one in IDS), ("rl.logprob", IDS), ("rl.train", IDS)] == noted
    ratios = [(one.attributes[v.LEDGER_BOUNDARY], one.value) for one in recording.run().points(v.MASK_RATIO)]
    assert [("rl.logprob", 11 / 13), ("rl.train", 11 / 13)] == ratios


def test_a_sample_is_noted_by_nine_numbers(recording: Recording) -> None:
    """As ``rl.ledger.sums`` says."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        output = SimpleNamespace(prompt_ids=[5, 6], response_ids=[7, 8, 9], response_mask=[1, 0, 1])
        verl.generated((None, [output], {"uid": "a", "session_id": 0}), {})
    (log,) = recording.stop().logs(v.LEDGER_SAMPLES)
    assert {
        v.LOOP_NAME: "train",
        v.ITERATION: 1,
        v.LEDGER_BOUNDARY: "rl.sample",
        v.LEDGER_IDS: ("a_0",),
        v.LEDGER_SUMS: (2, 3, 35, 5 + 12 + 21 + 32 + 45, 45, 2, 0, 2, 2),
    } == log.attributes


def test_a_clean_step_of_the_legacy_trainer_raises_nothing(recording: Recording) -> None:
    """Its batches come with the call, and its samples have no sessions."""
    with otel_rl.step(1):
        generate(sessions=False)
        with otel_rl.stage("logprob"):
            verl.given((None, legacy_batch()), {})
        verl.given((None, legacy_batch(mini_batch_size=2)), {})
    assert [] == mismatches(recording)
    noted = [log.body for log in recording.run().logs(v.LEDGER_SAMPLES)]
    assert [*["rl.sample"] * 4, "rl.logprob", "rl.train"] == noted


def test_samples_that_are_not_known_are_not_judged(recording: Recording) -> None:
    """Evaluations, sessions of several outputs, padding, and samples whose generation nobody noted."""
    output = SimpleNamespace(prompt_ids=[1], response_ids=[2], response_mask=[1])
    with otel_rl.step(1):
        with otel_rl.stage("sample") as stage:
            stage.set_attribute(v.MODE, "eval")
            verl.generated((None, [output], {"uid": "a", "session_id": 0}), {})
        with otel_rl.stage("sample"):
            verl.generated((None, [output, output], {"uid": "a", "session_id": 1}), {})
        fetch("logprob", batch())
        fetch("train", batch(response_mask=nested([[0, 1, 1, 1], [1, 1], [1, 0, 1], [1, 1, 0, 1]])))
        fetch("train", batch(uid=np.array(["pad1"] * 4, dtype=object)))
    assert [] == mismatches(recording)


def test_without_a_step_nothing_is_lost(recording: Recording) -> None:
    """Warm-up rollouts are generated before the first step, which trains on them."""
    generate()
    with otel_rl.step(1):
        fetch("train", batch(response_mask=nested([[0, 1, 1, 1], *MASKS[1:]])))
    assert [(1, "rl.sample -> rl.train", "mask off by one", ["a_0"])] == mismatches(recording)


# --- planted faults ---------------------------------------------------------------------------------------------------

SHIFTED = [[0, 1, 1, 1], [0, 1], [0, 1, 0], [0, 1, 1, 0]]
LEFT = [[1, 1, 1, 0], [1, 0], [0, 1, 0], [1, 0, 1, 0]]
OTHER = [[11, 12, 13, 14], [16, 15], [17, 18, 19], [20, 21, 22, 23]]
CHANGES = [
    pytest.param({"response_mask": nested(SHIFTED)}, "mask off by one", IDS, id="shifted right"),
    pytest.param({"response_mask": nested([LEFT[0], *MASKS[1:]])}, "mask off by one", ["a_0"], id="shifted left"),
    pytest.param({"response_mask": nested([*MASKS[:3], [1, 0, 1, 1]])}, "other mask", ["b_1"], id="inside"),
    pytest.param(
        {"input_ids": nested([p + r for p, r in zip(PROMPTS, OTHER, strict=True)])},
        "tokens in another order",
        ["a_1"],
        id="tokens",
    ),
    pytest.param(
        {"input_ids": nested([[1, *p, *r] for p, r in zip(PROMPTS, RESPONSES, strict=True)])},
        "other shape or type",
        IDS,
        id="a longer prompt",
    ),
]


@pytest.mark.parametrize(("changes", "fault", "samples"), CHANGES)
def test_what_changes_on_the_way_names_stage_and_samples(
    recording: Recording, changes: dict[str, Any], fault: str, samples: list[str]
) -> None:
    """Between the log-probabilities, where all was well, and the update."""
    with otel_rl.step(3):
        generate()
        fetch("logprob", batch())
        fetch("train", batch(**changes))
    assert [(3, "rl.logprob -> rl.train", fault, samples)] == mismatches(recording)


def test_the_head_of_a_report_and_its_list_name_a_sample(recording: Recording) -> None:
    """The first one, and how many others there are."""
    with otel_rl.step(3):
        generate()
        fetch("train", batch(response_mask=nested(SHIFTED)))
    console = Console(file=io.StringIO(), width=400)
    render(build_report(recording.stop(), WALL_NS), console)
    fault, samples = "mask off by one", "rank 0, a_0 and 3 more samples"
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    said = [
        f"Training does not use what was sampled: {fault} (rl.sample -> rl.train), {samples}, in 1 step, "
        "first in step 3.",
        f"correctness: {fault}, rl.sample -> rl.train: {samples}, step 3",
    ]
    found = [line.strip().removeprefix("HEALTH  ").partition(" Next:")[0] for line in lines if fault in line]
    assert said == list(dict.fromkeys(found))  # the head is repeated where its details are


def test_a_shifted_mask_of_the_legacy_trainer_is_named(recording: Recording) -> None:
    """By the group, and the checksum of the response."""
    with otel_rl.step(1):
        generate(sessions=False)
        with otel_rl.stage("train"):
            verl.given((None, legacy_batch(mini_batch_size=2, response_mask=padded(MASKS).roll(1, 1))), {})
    ((step, boundary, fault, samples),) = mismatches(recording)
    assert (1, "rl.sample -> rl.train", "mask off by one") == (step, boundary, fault)
    assert ["a", "a", "b", "b"] == [sample.split("_")[0] for sample in samples]


def test_a_mask_that_is_generated_wrong_is_named(recording: Recording) -> None:
    """A response begins with a token of the policy."""
    with otel_rl.step(1):
        generate([SHIFTED[0], *MASKS[1:]])
    assert [(1, "rl.sample", "mask off by one", ["a_0"])] == mismatches(recording)


def test_masks_that_change_on_purpose_are_none(recording: Recording) -> None:
    """Rejection sampling takes tokens out before the update."""
    config = {"rollout_correction": {"rollout_rs": "token"}}
    compared = SimpleNamespace(batch={"advantages": floats(padded)}, non_tensor_batch={"uid": np.array(list("aabb"))})
    with otel_rl.step(1):
        generate()
        with otel_rl.stage("advantage"):
            verl.compared((None, [f"{one}_0" for one in IDS]), {"config": config}, compared)
        fetch("train", batch(response_mask=nested(SHIFTED)))
    assert [] == mismatches(recording)


def test_numbers_that_do_not_fit_the_response_are_named(recording: Recording) -> None:
    """By the rank: all samples of its batch may be cut in the wrong place."""
    longer = nested([[*row, 0.0] for row in RESPONSES], torch.float32)
    with otel_rl.step(1):
        generate()
        fetch("train", batch(rollout_log_probs=longer))
    assert [(1, "rl.train", "other shape or type", [])] == mismatches(recording)


NAN = [[math.nan] * len(row) for row in RESPONSES]


def test_values_that_are_no_numbers_name_their_samples(recording: Recording) -> None:
    """In what ranks get and compute, on the driver, and in the loss, which is that of no sample."""
    log_probs = floats(nested)
    log_probs.values()[4] = math.inf
    old = floats(nested, torch.bfloat16)
    old.values()[-1] = -math.inf
    rewards = SimpleNamespace(
        batch={"rm_scores": padded([*NAN[:1], *RESPONSES[1:]], torch.float32)},
        non_tensor_batch={"uid": np.array(list("aabb"), dtype=object)},
    )
    with otel_rl.step(2):
        with otel_rl.stage("logprob"):
            verl.received((None,), {}, batch())
            verl.answered(({"log_probs": log_probs}, None, "compute_log_prob"), {})
        with otel_rl.stage("advantage"):
            verl.compared((None, [f"{one}_0" for one in IDS]), {}, rewards)
        fetch("train", batch(old_log_probs=old))
        with otel_rl.stage("train"):
            verl.lost((None, {"loss": [0.5, math.nan]}), {"forward_only": False})
            verl.lost((None, {"loss": [math.nan]}), {"forward_only": True})
    fault = "values that are NaN or infinite"
    assert [
        (2, "rl.train", fault, ["b_1"]),
        (2, "rl.logprob", fault, ["a_1"]),
        (2, "rl.advantage", fault, ["a_0"]),
    ] == mismatches(recording)


def test_group_ids_are_judged_where_they_are_given(recording: Recording) -> None:
    """Two prompts of one submission, more samples than were asked for, a sample that is there twice."""
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=2)))
    keys = ["a_0_0", "a_1_0", "a_2_0", "b_0_0", "b_0_1", "b_1_0", "b_1_0"]
    with otel_rl.step(1):
        verl.submitted((None, Fields(uid=np.array(["a", "b", "a"], dtype=object))), {})
        verl.balanced((SimpleNamespace(config=config), SimpleNamespace(keys=keys)), {})
    assert [
        (1, "rl.sample.submit", "one group id for two prompts", ["a"]),
        (1, "rl.sample.process", "the same sample twice", ["b_1_0"]),
        (1, "rl.sample.process", "more samples in a group than were asked for", ["a"]),
    ] == mismatches(recording)


def test_group_ids_are_judged_where_groups_are_compared(recording: Recording) -> None:
    """In V1 an id is part of a sample's name."""
    data = SimpleNamespace(batch={}, non_tensor_batch={"uid": np.array(["a", "a", "a", "c"], dtype=object)})
    with otel_rl.step(1):
        verl.compared((None, [f"{one}_0" for one in IDS]), {}, data)
    assert [
        (1, "rl.advantage", "one group id for two prompts", ["b_0"]),
        (1, "rl.advantage", "sample in another group", ["b_1"]),
    ] == mismatches(recording)


def test_group_ids_of_the_legacy_trainer_are_judged_by_prompts(recording: Recording) -> None:
    """There a group is known by its size alone, and by what it was asked."""
    prompts = torch.tensor([[0, 1], [0, 1], [0, 2], [0, 2], [0, 3], [0, 3], [0, 3]])
    uids = np.array(["a", "a", "a", "a", "b", "b", "b"], dtype=object)
    data = SimpleNamespace(batch={"prompts": prompts}, non_tensor_batch={"uid": uids})
    with otel_rl.step(1):
        verl.grouped((data,), {"num_repeat": 2}, data)
    assert [
        (1, "rl.advantage", "one group id for two prompts", ["a"]),
        (1, "rl.advantage", "more samples in a group than were asked for", ["b"]),
    ] == mismatches(recording)


def test_one_id_that_two_prompts_generate_under_is_named(recording: Recording) -> None:
    """Although each process has seen only one of them."""
    with otel_rl.step(1):
        generate()
        with otel_rl.stage("sample"):
            output = SimpleNamespace(prompt_ids=[9], response_ids=[11, 12], response_mask=[1, 1])
            verl.generated((None, [output], {"uid": "a", "session_id": 0}), {})
        fetch("train", batch())
    assert [(1, "rl.sample", "one group id for two prompts", ["a_0"])] == mismatches(recording)


# --- cost -------------------------------------------------------------------------------------------------------------


def test_of_many_samples_the_same_are_read_everywhere(recording: Recording) -> None:
    """At most 64 of one call."""
    many = 100
    fields = Fields(
        uid=np.array([f"u{number}" for number in range(many)], dtype=object),
        session_id=np.zeros(many, np.int64),
        input_ids=nested([[1, 2]] * many),
        responses=nested([[2]] * many),
        response_mask=nested([[1]] * many),
    )
    order = np.arange(many)[::-1].copy()
    with otel_rl.step(1):
        fetch("logprob", fields)
        fetch("train", Fields({**fields, "uid": fields["uid"][order]}))
    before, after = (set(log.attributes[v.LEDGER_IDS]) for log in recording.stop().logs(v.LEDGER_SAMPLES))
    assert (64, before) == (len(before), after)


def test_nothing_is_read_of_a_device(recording: Recording) -> None:
    """Only the names of samples are asked for."""
    fields = batch(
        **{key: torch.empty(4, 5, device="meta") for key in ("input_ids", "responses", "response_mask", "advantages")}
    )
    with otel_rl.step(1):
        fetch("train", fields)
    assert ([], []) == (mismatches(recording), list(recording.run().logs(v.LEDGER_SAMPLES)))

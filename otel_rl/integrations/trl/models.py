"""TRL: what its trainers show of models and batches, for FLOPs, MFU and the correctness ledger.

Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_generate_and_score_completions``, 2324; ``_prepare_inputs``, 1522;
``_compute_loss``, 3020). A rollout is shuffled and split into micro-batches, which may last for several steps: its
tokens are compared with those of each whole pass over it, in any order of the samples. Logits are computed of responses
alone (``add_fused_lm_head``), so FLOPs count those. Evaluations are not shown.

FLOPs count every batch. The ledger reads a rollout whenever half a second has passed since the last one that it read:
every one of a real training, and some of a toy's, whose steps would notice
(``benchmarks/overhead_trl.py``).
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.observing.api import observe_batch, observe_masks, show
from otel_rl.observing.book import book
from otel_rl.observing.network import Network
from otel_rl.process.state import state

HIDING = ("DeepSpeedEngine",)
"""Models with hidden collectives; those of DDP, FSDP1 and FSDP2 are seen."""
LEDGER_EVERY_NS = 500_000_000
RESPONSES = -1
"""Logits of the responses' tokens alone."""
NUMBERS = frozenset({"numbers"})
UNSCORED = frozenset({"rollout_logprobs"})
"""vLLM gives no logprob for some tokens: TRL makes it NaN, and leaves these tokens out."""
OF_ROLLOUT = {
    "completion_ids": "completion_ids",
    "completion_mask": "completion_mask",
    "advantages": "advantages",
    "old_per_token_logps": "old_logprobs",
    "ref_per_token_logps": "ref_logprobs",
    "sampling_per_token_logps": "rollout_logprobs",
}
"""TRL's names of what a rollout has become, and ours."""


def is_reference(trainer: Any, model: Any) -> bool:
    """Return whether a model is the reference: one of its own, or the policy with its adapter off or ``ref`` on."""
    if trainer.ref_model is not None:
        return model is trainer.ref_model
    for module in model.modules() if hasattr(getattr(trainer, "model", None), "peft_config") else ():
        is_off = getattr(module, "disable_adapters", None)
        if isinstance(is_off, bool):
            return is_off or "ref" in module.active_adapters
    return False


def hides_collectives(model: Any) -> bool:
    """Return whether collectives may run in a model's forward that Python does not see."""
    return state.identity.world_size > 1 and any(kind.__name__ in HIDING for kind in type(model).__mro__)


def read_networks(trainer: Any) -> tuple[Network | None, Network | None]:
    """Read the policy and the reference once, as soon as they are made and before engines shard them."""
    known = book.trainers
    seen = known.get(trainer)
    if seen is None:
        reference = getattr(trainer, "ref_model", None)
        seen = known[trainer] = (show(trainer.model), None if reference is None else show(reference))
    return seen


def observe_rollout(scored: dict[str, Any]) -> None:
    """Show a rollout of training with its advantages and log-probabilities."""
    rollout = rollouts.open.get("train")
    if rollout is None:
        return
    known, now = book, monotonic_ns()
    if known.ledger_ns and now - known.ledger_ns < LEDGER_EVERY_NS:
        known.ledger_rollout = ""
        return
    known.ledger_ns, known.ledger_rollout = now, rollout.id
    batch = {ours: scored[theirs] for theirs, ours in OF_ROLLOUT.items() if scored.get(theirs) is not None}
    if "tool_mask" in scored:
        batch.pop("rollout_logprobs", None)  # tokens of tools have none, and a mask of their own
    observe_batch(batch, stage=vocabulary.SAMPLE, parts=NUMBERS, group=rollout.id, lenient=UNSCORED)


def observe_logprobs(trainer: Any, mask: Any, kept: Any, is_reference: bool) -> None:
    """Show a forward for old or reference log-probabilities."""
    policy, reference = read_networks(trainer)
    observe_masks(
        {"attention_mask": mask},
        stage=vocabulary.LOGPROB,
        seen=(reference or policy) if is_reference else policy,
        kind="ref" if is_reference else "old",
        has_adapters=not is_reference,
        kept=kept,
        logits=RESPONSES,
    )


def observe_forward(trainer: Any, inputs: dict[str, Any], loss: Any) -> None:
    """Show a micro-batch of training and its loss."""
    rollout, seen = rollouts.open.get("train"), read_networks(trainer)[0]
    masks = {key: inputs[key] for key in ("prompt_mask", "completion_mask")}
    if rollout is None or rollout.id != book.ledger_rollout:
        observe_masks(masks, stage=vocabulary.FORWARD, seen=seen, logits=RESPONSES)
        return
    batch = {**masks, "completion_ids": inputs["completion_ids"], "loss": loss}
    observe_batch(batch, stage=vocabulary.FORWARD, seen=seen, logits=RESPONSES, parts=NUMBERS, group=rollout.id)

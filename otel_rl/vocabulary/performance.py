"""Collectives, where the time of a rank went, floating-point operations, and the correctness ledger."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, counter, event, gauge, histogram, label, log_attribute
from otel_rl.vocabulary.metrics import DURATION_BOUNDARIES

# --- collectives

COMM_GROUP: Final = attribute("rl.comm.group", "string", "description and name of the group, equal on all of its ranks")
COMM_GROUP_SIZE: Final = attribute("rl.comm.group_size", "int", "ranks of the process group")
COMM_GROUP_KIND: Final = label("rl.comm.group_kind", "description of the process group: `default_pg`, `mesh_dp`, ...")
COMM_SEQUENCE: Final = attribute(
    "rl.comm.sequence", "int", "number of the collective in its group, from 1, equal on all ranks of the group"
)
COMM_ASYNC: Final = attribute("rl.comm.async", "boolean", "true if it is the wait for an asynchronous collective")
COMM_WAIT: Final = attribute(
    "rl.comm.wait",
    "double",
    "seconds at the end of a backward in which this rank only waited for DDP's reduction; a part of `rl.comm.time`",
)
COMM_EXPOSED: Final = attribute(
    "rl.comm.exposed",
    "double",
    "seconds of `rl.device.time` in which the stage's stream waited for the collectives directly inside; absent if a "
    "wait was not seen",
)
COMM_EXPOSED_TIME: Final = histogram(
    "rl.comm.exposed", "s", "exposed communication of every stage timed for it, by `rl.stage`", DURATION_BOUNDARIES
)
DDP_ALL_REDUCE: Final = "ddp_all_reduce"
"""`rl.comm.operation` of a rank's wait for DDP at the end of a backward: all reductions of it together."""
MAKING_A_GROUP: Final = ("new_group", "split_group")
"""`rl.comm.operation` of what makes a process group: a row of the group that is made, without a number in it."""

# --- where the time of a rank went

GOODPUT_KIND: Final = label("rl.goodput.kind", "`productive`, `overhead`, `idle`, `wasted` or `other`")
ACTIVITY: Final = label(
    "rl.activity",
    "`active` (own time of stages), `comm` (collectives), `inseparable` (stages that hide collectives), `idle` "
    "(`rl.idle`) or `other` (under no stage)",
)
BUBBLE_DENOMINATOR: Final = label("rl.bubble.denominator", "what the bubble was divided by")
SKEW_RANK: Final = attribute("rl.skew.rank", "int", "the rank that was waited for: the shortest time in the collective")
GOODPUT_TIME: Final = counter("rl.goodput.time", "s", "wall time of a rank by `rl.goodput.kind`, which add up to it")
ACTIVITY_TIME: Final = gauge("rl.step.activity", "s", "one step of a rank by `rl.activity`, one point for each")
BUBBLE_RATIO: Final = gauge(
    "rl.bubble.ratio", "1", "share of the step that this rank waited, by `rl.idle.reason`; one point per step"
)
SKEW_WAIT: Final = counter(
    "rl.skew.wait",
    "s",
    "time in collectives in which a rank waited for slower peers, by `rl.rank`; a lower bound if not all are spans; "
    "`rl.scope` says whose were compared",
)
STRAGGLER_COST: Final = gauge(
    "rl.straggler.cost",
    "s",
    "own time of a slow rank in a stage beyond the median of its peers, by `rl.rank` and `rl.stage`; one point per "
    "step",
)

# --- floating-point operations

FLOPS_STAGE: Final = label("rl.flops.stage", "the stage that computed: `rl.train.forward`, ...")
FLOPS_SCOPE: Final = label(
    "rl.flops.scope",
    "the work that is counted: `update` (forward, backward, clipping, optimizer), `logprob` (with values) or `step`",
)
FLOPS_FORMULA: Final = label("rl.flops.formula", "how operations are counted: `megatron`")
FLOPS_PEAK: Final = label("rl.flops.peak", "peak of one device that MFU divides by, FLOP/s", type="double")
FLOPS_PEAK_SOURCE: Final = label("rl.flops.peak.source", "source of the peak")
FLOPS: Final = counter("rl.flops.count", "{flop}", "operations of the model on this device, padding excluded, by stage")
FLOPS_RATE: Final = gauge("rl.flops.rate", "{flop}/s", "operations by the time of their scope, one point per step")
MFU: Final = gauge("rl.flops.mfu", "1", "share of the device's peak, if that is known; one point per step and scope")
FLOPS_NOTE: Final = event("rl.flops.note", "what a model's count of operations assumes, or why it is unknown; once")

# --- the correctness ledger

LEDGER_BOUNDARY: Final = log_attribute("rl.ledger.boundary", "string", "name of the stage; `a -> b` if two disagree")
LEDGER_ROWS: Final = log_attribute("rl.ledger.rows", "int", "samples that passed it")
LEDGER_SHAPE: Final = log_attribute("rl.ledger.shape", "int", "checksum of the number of samples and of the type")
LEDGER_TOKENS: Final = log_attribute(
    "rl.ledger.tokens",
    "int[]",
    "sums over token ids, modulo 2^64: plain, by column, of each row's last one by column, by column and row (0 if "
    "the rows have no order)",
)
LEDGER_MASK: Final = log_attribute(
    "rl.ledger.mask", "int[]", "positions, true ones, rows that have one, sums of their first and last true columns"
)
LEDGER_NONFINITE: Final = log_attribute("rl.ledger.nonfinite", "int", "values that are NaN or infinite")
LEDGER_MISFIT: Final = log_attribute("rl.ledger.misfit", "int", "arrays whose shape does not fit the others'")
LEDGER_LOGPROBS: Final = log_attribute(
    "rl.ledger.logprobs",
    "double[]",
    "training against rollout: tokens, mean |difference|, mean difference, largest |difference|, missing logprobs, "
    "correlations with the previous, same and next column (NaN: none)",
)
LEDGER_UPDATED: Final = log_attribute("rl.ledger.updated", "boolean", "true if the policy may be newer than rollouts")
LEDGER_FAULT: Final = log_attribute("rl.ledger.fault", "string", "the fault, as in docs/model.md")
LEDGER_IDS: Final = log_attribute("rl.ledger.ids", "string[]", "ids of single samples, or of their groups")
LEDGER_SUMS: Final = log_attribute(
    "rl.ledger.sums",
    "int[]",
    "of each sample: tokens of prompt and response, sums over the token ids of both (plain, by column, last one by "
    "column), and of the mask: true columns, first, last, sum of them",
)
LEDGER: Final = event("rl.ledger", "what one rank recorded of a step's batch at one boundary")
LEDGER_SAMPLES: Final = event("rl.ledger.samples", "what one process recorded of single samples at one boundary")
LEDGER_MISMATCH: Final = event("rl.ledger.mismatch", "a fault that a rank found by itself, with step and boundary")
LEDGER_FAULTS: Final = counter("rl.ledger.faults", "{fault}", "mismatches of this rank, by `rl.ledger.fault`")
LOGPROB_DIFFERENCE: Final = gauge(
    "rl.ledger.logprob.difference", "nat", "mean |logprob of training - of rollout| over a step's tokens, by boundary"
)
LOGPROB_MAX_DIFFERENCE: Final = gauge(
    "rl.ledger.logprob.max_difference", "nat", "the largest such difference in a step, by boundary"
)
MASK_RATIO: Final = gauge("rl.ledger.mask.ratio", "1", "share of true positions of the masks, by boundary")

"""The correctness ledger: what a rank noted of a batch at each place that it passed."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, event, metric

LEDGER_BOUNDARY: Final = attribute(
    "rl.ledger.boundary", "string", "log", "the place: name of the stage; `a -> b` for what two of them disagree about"
)
LEDGER_ROWS: Final = attribute("rl.ledger.rows", "int", "log", "samples that passed it")
LEDGER_SHAPE: Final = attribute("rl.ledger.shape", "int", "log", "checksum of the number of samples and of the type")
LEDGER_TOKENS: Final = attribute(
    "rl.ledger.tokens",
    "int[]",
    "log",
    "sums over token ids, modulo 2^64: plain, by column, of each row's last one by column, by column and row (0 where "
    "the rows have no order)",
)
LEDGER_MASK: Final = attribute(
    "rl.ledger.mask",
    "int[]",
    "log",
    "positions, true ones, rows that have one, sums of their first and of their last true column",
)
LEDGER_NONFINITE: Final = attribute("rl.ledger.nonfinite", "int", "log", "values that are NaN or infinite")
LEDGER_MISFIT: Final = attribute("rl.ledger.misfit", "int", "log", "arrays whose shape does not fit the others'")
LEDGER_LOGPROBS: Final = attribute(
    "rl.ledger.logprobs",
    "double[]",
    "log",
    "training against rollout: tokens, mean |difference|, mean difference, largest |difference|, zeros of the rollout "
    "that are far off, correlations with the column before, the same and the next one (NaN: none)",
)
LEDGER_UPDATED: Final = attribute(
    "rl.ledger.updated",
    "boolean",
    "log",
    "true where training's logprobs are of a policy that may have been updated since the rollout",
)
LEDGER_FAULT: Final = attribute("rl.ledger.fault", "string", "log", "what is wrong: docs/model.md lists the faults")
LEDGER: Final = event("rl.ledger", "what one rank noted of a step's batch at one boundary")
LEDGER_MISMATCH: Final = event("rl.ledger.mismatch", "a fault that a rank found by itself, with step and boundary")
LEDGER_FAULTS: Final = metric("rl.ledger.faults", "counter", "{fault}", "mismatches of this rank, by `rl.ledger.fault`")
LOGPROB_DIFFERENCE: Final = metric(
    "rl.ledger.logprob.difference",
    "gauge",
    "nat",
    "|logprob of training - logprob of the rollout|, mean over a step's tokens, by boundary",
)
LOGPROB_MAX_DIFFERENCE: Final = metric(
    "rl.ledger.logprob.max_difference", "gauge", "nat", "the largest such difference of a step's tokens, by boundary"
)
MASK_RATIO: Final = metric("rl.ledger.mask.ratio", "gauge", "1", "share of true positions of the masks, by boundary")

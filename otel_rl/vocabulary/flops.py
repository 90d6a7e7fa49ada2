"""Floating-point operations of the model: how many, how fast, and against which peak."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, event, metric

FLOPS_STAGE: Final = attribute("rl.flops.stage", "string", "metric", "the stage that computed: `rl.train.forward`, ...")
FLOPS_SCOPE: Final = attribute(
    "rl.flops.scope",
    "string",
    "metric",
    "whose operations and whose time: `update` (forward, backward, clipping, optimizer), `logprob` (values too) or "
    "`step`",
)
FLOPS_FORMULA: Final = attribute("rl.flops.formula", "string", "metric", "how operations are counted: `megatron`")
FLOPS_PEAK: Final = attribute("rl.flops.peak", "double", "metric", "peak of one device that MFU divides by, FLOP/s")
FLOPS_PEAK_SOURCE: Final = attribute("rl.flops.peak.source", "string", "metric", "who says so")
FLOPS: Final = metric(
    "rl.flops.count", "counter", "{flop}", "operations of the model on this device, padding excluded, by stage"
)
FLOPS_RATE: Final = metric(
    "rl.flops.rate", "gauge", "{flop}/s", "operations by the time of their scope; one point per step and scope"
)
MFU: Final = metric(
    "rl.flops.mfu",
    "gauge",
    "1",
    "share of the device's peak that the same is, only where the peak is known; one point per step and scope",
)
FLOPS_NOTE: Final = event(
    "rl.flops.note", "what the operations of a model assume, or why they are not known or not counted; each once"
)

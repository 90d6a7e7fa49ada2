"""Actions: what a run does by itself, as its user chose in `otel_rl.toml`."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import counter, event, label, log_attribute, stage

ACTION: Final = stage("rl.action", "what an action of docs/actions.md does: it saves a checkpoint, or asks for a stop")
ACTION_TAKEN: Final = event(
    "rl.action.taken", "what an action of docs/actions.md did, or why it did nothing; the body is a sentence"
)
ACTIONS: Final = counter("rl.actions", "{action}", "how often actions of docs/actions.md were due, by outcome")
ACTION_NAME: Final = label("rl.action.name", "the action, as `otel_rl.toml` names it")
ACTION_KIND: Final = label("rl.action.kind", "`checkpoint`, `stop` or `call`")
ACTION_OUTCOME: Final = label(
    "rl.action.outcome",
    "`done`; `rehearsed`: only said, because of `dry_run`; `failed`; `no_value`: its metric was no number, or never "
    "came",
)
ACTION_STEP: Final = log_attribute("rl.action.step", "int", "the step after which it was due")
ACTION_METRIC: Final = log_attribute("rl.action.metric", "string", "the metric that decided")
ACTION_VALUE: Final = log_attribute("rl.action.value", "double", "the value of that metric")

"""Stalls: what is said of a stage that holds the run up, and of event loops that are late."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, event, gauge, log_attribute

STALL: Final = event(
    "rl.stall",
    "a stage that holds the run up, when it is found and when it ends; the body has the chain and the stacks. In a "
    "step's span: the stage is in this process",
)
STALL_ACTIVE: Final = gauge(
    "rl.stall.active", "s", "age of the stall that goes on, by role and stage of what holds the run up; 0 once it ended"
)
EVENT_LOOP_LAG: Final = gauge(
    "rl.event_loop.lag",
    "s",
    "how long a call waits in the asyncio event loop of this process that is latest, once a second; a call that still "
    "waits counts with its age. Only with `OTEL_RL_EVENT_LOOP_LAG=true`",
)
STALL_ID: Final = attribute("rl.stall.id", "string", "the stall: writer of the journal, and when the stage began")
STALL_AGE: Final = attribute("rl.stall.age", "double", "how long nothing has happened in the stage, s")
STALL_STATE: Final = log_attribute(
    "rl.stall.state", "string", "`found`, `ended`, or `died`: its process was killed in it"
)
STALL_NORMAL: Final = log_attribute(
    "rl.stall.normal", "double", "median duration of the ended calls of the stage, s; absent if fewer than 3 ended"
)
STALL_CHAIN: Final = log_attribute("rl.stall.chain", "string", "who waits for whom, the last link first")
STALL_CAUSE: Final = log_attribute(
    "rl.stall.cause", "string", "`stage`, `collective`, `silent`, `stopped`, `dead` or `unseen`; see docs/stalls.md"
)
STALL_RANK: Final = log_attribute("rl.stall.rank", "int", "rank of the process that holds the run up")
STALL_ROLE: Final = log_attribute("rl.stall.role", "string", "role of the process that holds the run up")
STALL_STEP: Final = log_attribute("rl.stall.step", "int", "the step in which it is")
STALL_WAITING: Final = log_attribute("rl.stall.waiting", "int", "how many processes wait for it")

"""All boards, and what is drawn over their panels."""

from typing import Final

from otel_rl import vocabulary as v
from scripts.boards import comparison, correctness, learning, memory, overview, ranks, rollouts, telemetry
from scripts.boards.model import Annotation
from scripts.boards.queries import (
    ANY,
    HOST,
    RANK,
    RUN,
    STAGE,
    Scope,
    by,
    is_not,
    label_name,
    last,
    series,
    shown,
    total,
    window,
)

ATTEMPT = label_name(v.ATTEMPT_ID)
AGO = Scope(ANY.matchers, "offset 1m")
OF_FAULT = (RUN, RANK, label_name(v.LEDGER_FAULT))
FAULTS = by(OF_FAULT, total(v.LEDGER_FAULTS, of=ANY))
ROOMS: Final = (overview, ranks, rollouts, memory, learning, correctness, comparison, telemetry)
BOARDS: Final = tuple(room.BOARD for room in ROOMS)


def attempts(span: str, of: Scope) -> str:
    """Return the attempts that recorded something within a span."""
    name = series(v.SELF_RECORDED, "counter")
    return by((RUN, ATTEMPT), f"last_over_time({window(name, is_not(v.ATTEMPT_ID, ''), of=of, span=span)})", "group")


ANNOTATIONS: Final = (
    Annotation(
        "Alerts",
        f'ALERTS{{alertstate="firing", alertname=~"OtelRl.+", {RUN}=~"$run|"}}',
        shown((RUN, "alertname")),
        "red",
    ),
    Annotation(
        "Faults of batches",
        f"{FAULTS} - ({by(OF_FAULT, total(v.LEDGER_FAULTS, of=AGO))} or {FAULTS} * 0) > 0",
        shown(OF_FAULT),
        "orange",
    ),
    Annotation(
        "Stalls",
        f"{by((RUN, HOST, STAGE), last(v.STALL_ACTIVE, of=ANY), 'max')} > 0",
        shown((RUN, HOST, STAGE)),
        "purple",
    ),
    Annotation(
        "Starts",
        f"{attempts('1m', ANY)} unless {attempts('1d', AGO)}",
        shown((RUN, ATTEMPT)),
        "blue",
    ),
)
"""The findings that a metric says. The others are in `otel-rl report`."""

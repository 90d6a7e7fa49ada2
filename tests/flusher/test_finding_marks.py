"""What the sidecar tells of a run is an event in the step that goes on."""

from __future__ import annotations

from typing import Any

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.process.mailbox import send
from otel_rl.process.on_finding import FINDING, LiveFinding
from otel_rl.process.state import state
from tests.fixtures import ATTEMPT, RUN, Recording
from tests.trace.test_stage import proto_spans


def tell(recording: Recording, rule: str, attempt: str = ATTEMPT) -> None:
    """Tell of a finding as a sidecar does, and let the flusher look."""
    said = LiveFinding(rule=rule, kind="learn", severity="alarm", state="begun", sentence="All is NaN.", id=rule)
    send(recording.root / RUN, "sidecar-0-1", FINDING, attempt, said.to_json())
    recording.flusher.dispatcher.page.heartbeat()


def marks(recording: Recording) -> dict[str, list[dict[str, Any]]]:
    """Return the marks of each span that has some, by its name and step."""
    found = {}
    for span in proto_spans(recording).values():
        if span.events:
            step = next(one.value.int_value for one in span.attributes if one.key == v.ITERATION)
            said = [{one.key: one.value.string_value for one in event.attributes} for event in span.events]
            found[f"{span.name} {step}"] = said
    return found


def test_the_open_step_has_it(recording: Recording) -> None:
    """Once, on rank 0's span; what comes between two steps is in the next one, and stalls have a mark of their own."""
    with otel_rl.step(1):
        otel_rl.flush()
        tell(recording, "nan")
        tell(recording, "stalled")
        tell(recording, "of_another_attempt", "b" * 16)
    mark = {
        v.FINDING_RULE: "nan", v.FINDING_KIND: "learn", v.FINDING_SEVERITY: "alarm", v.FINDING_STATE: "begun",
        v.FINDING_ID: "nan", v.FINDING_SENTENCE: "All is NaN.",
    }  # fmt: skip
    with otel_rl.step(2):
        pass
    assert {"rl.rank 0 1": [mark]} == marks(recording)


def test_other_ranks_have_none(recording: Recording) -> None:
    """One mark for a finding: that of the process that emits the root."""
    with otel_rl.step(1):
        otel_rl.flush()
        state.inherit(rank=1)
        tell(recording, "nan")
        state.inherit(rank=0)
    assert {} == marks(recording)

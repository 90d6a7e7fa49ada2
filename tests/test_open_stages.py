"""What the journal says of stages that are open, where they end while it looks."""

from __future__ import annotations

import otel_rl
from otel_rl import vocabulary
from otel_rl.collectives import Collective
from otel_rl.open_stages import OpenStages
from otel_rl.runtime import state
from tests.fixtures import Recording


def test_a_launch_that_is_over_is_not_journaled_as_open(recording: Recording) -> None:
    """The flusher saw it open and speaks later; what is forgotten after it spoke is a span."""
    opened = OpenStages()
    with otel_rl.step(1):
        over, said = Collective("all_reduce", 0), Collective("all_reduce", 0)
        look = tuple(one for one in state.open if isinstance(one, Collective))
        over.forget()
        (log,) = opened.logs(look, [])
        said.forget()
    assert (said.span_id, False, True) == (log.span_id, over in opened, said in opened)
    run = recording.stop()
    assert ([], [log.span_id]) == (
        run.open_stages(),
        [int.from_bytes(span.span_id, "big") for span in run.spans() if span.name == vocabulary.COMM],
    )

"""Hooks on work that another call has submitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Kwargs
from otel_rl.hooks.callbacks import StageHook
from otel_rl.process.carrier import Carrier
from otel_rl.trace.apart import open_apart, open_below
from otel_rl.trace.stage import Stage

Submitted = Callable[[Args, Kwargs], tuple[Carrier | None, str | None]]
"""``(args, kwargs)``: returns the carrier of the call that submitted this work, and the key of a trace of its own."""


@dataclass(frozen=True, kw_only=True)
class SubmittedHook(StageHook):
    """A stage of work that another call has submitted.

    It is below the span of that call, or a trace of its own that links to it. What the task or thread inherited counts
    only where neither is known: it may serve the submissions of many steps.
    """

    submitted: Submitted

    def begin(self, args: Args, kwargs: Kwargs) -> Stage | None:
        """Open the stage of a call, if it is one."""
        name = self.stage if isinstance(self.stage, str) else self.stage(args, kwargs)
        if not isinstance(name, str):
            return None
        if callable(self.attributes):
            attributes = attempt("describe", self.target, self.attributes, args, kwargs)
        else:
            attributes = dict(self.attributes)
        opened = Stage(name, attributes, coarse=True)
        carrier, key = attempt("find what submitted", self.target, self.submitted, args, kwargs) or (None, None)
        if key is not None:
            open_apart(opened, key, carrier)
        elif carrier is not None:
            open_below(opened, carrier)
        else:
            opened.open()
        return opened

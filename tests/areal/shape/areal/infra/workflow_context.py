"""Which task runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkflowContext:
    is_eval: bool = False
    task_id: int | None = None


_current = ContextVar("workflow_context", default=WorkflowContext())  # noqa: B039  it is frozen
set, get = _current.set, _current.get

"""The state of a worker."""

from __future__ import annotations

from typing import Any


class GuardState:
    pass


def configure_state_from_args(state: Any, args: Any):
    state.role, state.worker_index = args.role, args.worker_index

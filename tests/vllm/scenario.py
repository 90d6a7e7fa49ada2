"""A recording of a real engine: the rows, the spans they belong to and the load that the integration hands on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import guard
from otel_rl.journal.read import Run, open_run
from otel_rl.requests import queue
from otel_rl.requests.queue import Request
from tests.noted import parts

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "OTEL_RL_RUN_ID": "run",
}
ENGINE: dict[str, Any] = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 2048, "max_num_seqs": 8}
PROMPTS = [{"prompt_token_ids": [5, 6, 7, 8] * (3 + number % 4)} for number in range(8)]
TOO_LONG = {"prompt_token_ids": [5] * (ENGINE["max_model_len"] + 1)}


@dataclass
class Seen:
    """What was handed on."""

    root: Path
    rows: list[Request] = field(default_factory=list)
    parents: dict[str, Any] = field(default_factory=dict)
    """By request id."""
    loads: list[tuple[Any, ...]] = field(default_factory=list)

    def sample(self, sample: str) -> list[Request]:
        """Give the rows of one prompt."""
        return [row for row in self.rows if row.sample == sample]

    @property
    def run(self) -> Run:
        """The journal."""
        return open_run(self.root / "run")


@contextmanager
def recorded(root: Path, **settings: str) -> Iterator[Seen]:
    """Record vLLM and nothing else, and look at what it hands on; no error of ours may be swallowed."""
    seen, hand_on, hand_load = Seen(root), queue.add_finished, queue.record_load

    def add_finished(finished: tuple[Any, ...]) -> None:
        for read, parent, arguments in parts(finished):
            for row in map(Request._make, read(*arguments)):
                seen.rows.append(row)
                seen.parents[row.id] = parent
        hand_on(finished)

    def load(*values: Any) -> None:
        seen.loads.append(values)
        hand_load(*values)

    with pytest.MonkeyPatch.context() as patch:
        for name in filter(lambda name: name.startswith("OTEL_"), tuple(os.environ)):
            patch.delenv(name)
        for name, value in {**ENVIRONMENT, "OTEL_RL_DIR": str(root), **settings}.items():
            patch.setenv(name, value)
        patch.setattr("otel_rl.requests.queue.add_finished", add_finished)
        patch.setattr("otel_rl.integrations.vllm.requests.add_finished", add_finished)
        patch.setattr("otel_rl.integrations.vllm.hooks.record_load", load)
        patch.setattr("otel_rl.entry.EXIT_LIMIT_S", 60.0)
        guard.errors.clear()
        otel_rl.instrument(["vllm"])
        try:
            yield seen
            assert {} == guard.errors
        finally:
            otel_rl.uninstrument()
            guard.errors.clear()


def outputs(results: list[Any]) -> list[Any]:
    """Give all that an engine answered: token ids, texts, log-probabilities, reasons."""
    return [
        [
            (
                one.index,
                list(one.token_ids),
                one.text,
                one.finish_reason,
                one.stop_reason,
                one.cumulative_logprob,
                [sorted((token, value.logprob) for token, value in step.items()) for step in one.logprobs or ()],
            )
            for one in result.outputs
        ]
        for result in results
    ]

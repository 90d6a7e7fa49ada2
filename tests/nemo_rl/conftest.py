"""A program of NeMo-RL's shape, recorded in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from otel_rl.hooks.hook import wrap
from otel_rl.integrations.nemo_rl import INTEGRATION
from otel_rl.journal.read import Run
from tests.fixtures import Recording
from tests.nemo_rl import world

SHAPE = Path(__file__).parent / "shape"
Program = Callable[[str, Any], Run]


@pytest.fixture
def train(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Return a function that runs a training of NeMo-RL's shape, recorded."""
    monkeypatch.syspath_prepend(str(SHAPE))
    monkeypatch.setattr(world, "CLOCK", [stubbed.tick])
    stubbed.start("nemo_rl")
    grpo = import_module("nemo_rl.algorithms.grpo")
    policy, logger = import_module("nemo_rl.models.policy.lm_policy"), import_module("nemo_rl.utils.logger")
    import_module("nemo_rl.models.value.lm_value")
    classes = {
        name: kind
        for module in [module for name, module in sys.modules.items() if name.startswith("nemo_rl.")]
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }
    for hook in INTEGRATION.arriving:
        kind, _, name = hook.target.partition(".")
        if kind in classes:
            monkeypatch.setattr(classes[kind], name, wrap(hook, vars(classes[kind])[name]))

    def run(name: str, config: Any) -> Run:
        grpo.setup(config, None, None, None)
        saved = {"total_steps": 0, "current_step": 0}
        function = getattr(grpo, name)
        function(
            policy.Policy(), config.engine, [], None, None, None, config.rewards, None, logger.Logger(), None, saved,
            config,
        )  # fmt: skip
        return stubbed.stop()

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]:
        del sys.modules[name]

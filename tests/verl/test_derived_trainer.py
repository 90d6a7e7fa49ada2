"""A trainer of the program's own, derived from verl's: it overrides ``fit``, with a timer that it imports itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.verl import trainer
from tests.fixtures import Recording, trees

pytestmark = pytest.mark.verl


@pytest.mark.parametrize("calls_super", [False, True])
def test_steps_of_an_overridden_fit(stubbed: Recording, monkeypatch: pytest.MonkeyPatch, *, calls_super: bool) -> None:
    """They are recorded once, also where a further class calls it."""
    kind = pytest.importorskip("verl.trainer.ppo.ray_trainer").RayPPOTrainer

    def init(self: Any, config: Any) -> None:
        self.config, self.global_steps = config, 1

    monkeypatch.setattr(kind, "__init__", init)
    monkeypatch.setattr(trainer, "_trained", lambda config: {})
    monkeypatch.setattr(trainer, "_settings_of", lambda trainer: {})
    stubbed.start("verl")
    from verl.utils.profiler import marked_timer

    class Derived(kind):  # type: ignore[misc, valid-type]
        def fit(self) -> str:
            for self.global_steps in (1, 2):
                with marked_timer("step", {}), marked_timer("update_actor", {}):
                    stubbed.tick(1)
            return "done"

    class Further(Derived):
        def fit(self) -> str:
            return super().fit() + " further"

    config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir="checkpoints"))
    assert ("done further" if calls_super else "done") == (Further if calls_super else Derived)(config).fit()
    roots = [tree for tree in trees(stubbed.stop()) if tree.name == v.LOOP]
    assert [[v.TRAIN], [v.TRAIN]] == [[stage.name for rank in root.below for stage in rank.below] for root in roots]

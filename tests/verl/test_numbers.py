"""The numbers of verl that have our names mean the same: computed by verl itself, and as we define them."""

from __future__ import annotations

import inspect
from importlib.resources import files
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.verl.tracking import CLIPPING, ESTIMATES, LIMIT, ONLY_WITH, SIGNED, _setting
from otel_rl.integrations.verl.trainer import _holding

pytestmark = pytest.mark.verl

LOW, HIGH = 0.2, 0.3


@pytest.fixture(scope="module")
def core() -> Any:
    """The losses of verl."""
    return pytest.importorskip("verl.trainer.ppo.core_algos")


def test_settings_are_where_we_look_for_them() -> None:
    """And by default every number means the same as ours."""
    config = pytest.importorskip("omegaconf").OmegaConf.load(
        str(files("verl") / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    )
    assert [] == [(key, path) for key, path, values in ONLY_WITH if _setting(config, path) not in values]
    assert 512 == _setting(config, LIMIT)
    assert _holding(config) == {v.SETTINGS_TEMPERATURE: 1.0, v.SETTINGS_KL: 0.0, v.SETTINGS_GRADIENT: 1.0}
    config.actor_rollout_ref.actor.use_kl_loss = config.algorithm.use_kl_in_reward = True
    assert 0.002 == _holding(config)[v.SETTINGS_KL]


def test_trackers_take_what_we_read() -> None:
    """By position as well as by name."""
    tracking = pytest.importorskip("verl.utils.tracking").Tracking
    assert ["data", "step", "backend"] == [*inspect.signature(tracking.log).parameters][1:]
    assert "config" == [*inspect.signature(tracking.__init__).parameters][4]


def test_every_loss_of_verl_was_looked_at(core: Any) -> None:
    """A new one keeps verl's names until somebody has."""
    assert {*SIGNED, "kl_cov", "gpg"} == set(core.POLICY_LOSS_REGISTRY)


def test_share_of_clipped_tokens(core: Any) -> None:
    """Tokens whose ratio, or whose sequence's, was clipped; with the loss of CISPO whatever their advantage is."""
    torch = pytest.importorskip("torch")
    workers = pytest.importorskip("verl.workers.config")
    made = torch.Generator().manual_seed(0)
    old, change, advantages = (torch.randn(8, 50, generator=made) for _ in range(3))
    mask = torch.rand(8, 50, generator=made) < 0.8
    ratio = (0.3 * change).exp()
    of_sequence = ((0.3 * change * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp().expand_as(ratio)
    expected = {
        "vanilla": _clipped(ratio, advantages),
        "gspo": _clipped(of_sequence, advantages),
        "cispo": _clipped(ratio, advantages) | _clipped(ratio, -advantages),
    }
    assert {*expected, "bypass_mode"} == {*CLIPPING}, "bypass_mode calls vanilla"
    for mode, clipped in expected.items():
        config = workers.ActorConfig(
            strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_low=LOW, clip_ratio_high=HIGH
        )
        _, said = core.get_policy_loss_fn(mode)(old, old + 0.3 * change, advantages, mask, "token-mean", config)
        assert clipped[mask].float().mean().item() == pytest.approx(said["actor/pg_clipfrac"]), mode


def _clipped(ratio: Any, advantages: Any) -> Any:
    return ((ratio > 1 + HIGH) & (advantages > 0)) | ((ratio < 1 - LOW) & (advantages < 0))


def test_estimates_of_the_divergence(core: Any) -> None:
    """Each is near the divergence of the distributions; the one that we leave to verl is not."""
    torch = pytest.importorskip("torch")
    made = torch.Generator().manual_seed(0)
    reference = torch.randn(50, generator=made)
    policy = (reference + 0.3 * torch.randn(50, generator=made)).log_softmax(-1)
    reference = reference.log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum().item()
    tokens = torch.multinomial(policy.exp(), 400_000, replacement=True, generator=made)
    said = {
        kind: core.kl_penalty(policy[tokens], reference[tokens], kind).mean().item() for kind in (*ESTIMATES, "abs")
    }
    assert said.pop("abs") > 3 * exact
    assert said == pytest.approx(dict.fromkeys(ESTIMATES, exact), rel=0.1)

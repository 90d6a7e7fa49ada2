"""What verl logs with ``Tracking``, under canonical names where the meaning is the same.

What means something else, or is wrong in some version, keeps verl's name; docs/verl.md says what it is. Some keys mean
the same only under some settings, or only as some versions compute them, which the keys beside them tell.

``single_controller/tracked.py`` says how they are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs, Memory
from otel_rl.metrics.naming import Series
from otel_rl.single_controller.tracked import Numbers, extremes_at, lengths_at, name_numbers, numbers_of, record_numbers

CANONICAL: Final[dict[str, Series]] = {
    "critic/score/mean": (vocabulary.REWARD_SCORE, ()),
    **extremes_at("critic/score", vocabulary.REWARD_MAX, vocabulary.REWARD_MIN),
    "critic/advantages/mean": (vocabulary.ADVANTAGE_MEAN, ()),
    **extremes_at("critic/advantages", vocabulary.ADVANTAGE_MAX, vocabulary.ADVANTAGE_MIN),
    "actor/loss": (vocabulary.LOSS, ()),
    "actor/pg_loss": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "policy"),)),
    "critic/vf_loss": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "value"),)),
    "actor/entropy": (vocabulary.ENTROPY, ()),
    "actor/entropy_loss": (vocabulary.ENTROPY, ()),
    "actor/kl_loss": (vocabulary.KL_REFERENCE, ()),
    "actor/reward_kl_penalty": (vocabulary.KL_REFERENCE, ()),
    "actor/ppo_kl": (vocabulary.KL_POLICY, ()),
    "actor/pg_clipfrac": (vocabulary.CLIP_FRACTION, ()),
    "actor/grad_norm": (vocabulary.GRAD_NORM, ()),
    "actor/lr": (vocabulary.LEARNING_RATE, ()),
    "training/epoch": (vocabulary.EPOCH, ()),
    **lengths_at("response_length"),
}
INSTEAD_OF: Final = {"actor/entropy_loss": "actor/entropy", "actor/reward_kl_penalty": "actor/kl_loss"}
"""What counts only where the other is missing or is no canonical number."""
ENGINE, CRITIC_ENGINE = "actor/loss", "critic/loss"
"""Logged by workers that scale losses by the whole mini-batch, since 0.7.1."""
OF_ALL_RANKS = "response/aborted_ratio"
"""Logged since what the ranks measured is merged, 0.6."""
BESIDE: Final = {
    "actor/pg_loss": ENGINE,
    "actor/kl_loss": ENGINE,
    "actor/entropy_loss": ENGINE,
    "critic/vf_loss": CRITIC_ENGINE,
    "actor/ppo_kl": OF_ALL_RANKS,
    "actor/pg_clipfrac": OF_ALL_RANKS,
}
"""Older workers multiply or divide losses by the number of (micro-)batches, or report the first rank's numbers."""

AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"
LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
PER_TOKEN: Final = ("token-mean", "seq-mean-token-mean")
ESTIMATES: Final = ("kl", "kl+", "k1", "k1+", "mse", "k2", "low_var_kl", "low_var_kl+", "k3", "k3+")
CLIPPING: Final = ("vanilla", "gspo", "cispo", "bypass_mode")
SIGNED: Final = (*CLIPPING, "dppo_tv", "dppo_kl", "sapo", "clip_cov", "geo_mean", "dro")
ONLY_WITH: Final = (
    ("actor/entropy", AGGREGATION, PER_TOKEN),
    ("actor/entropy_loss", AGGREGATION, PER_TOKEN),
    ("actor/kl_loss", AGGREGATION, PER_TOKEN),
    ("actor/kl_loss", "actor_rollout_ref.actor.kl_loss_type", ESTIMATES),
    ("actor/reward_kl_penalty", "algorithm.kl_penalty", ESTIMATES),
    ("actor/pg_clipfrac", LOSS_MODE, CLIPPING),
    ("actor/ppo_kl", LOSS_MODE, SIGNED),
)
"""Settings under which a key means the same; a setting that is not there has verl's default, which is among them."""
LIMIT = "actor_rollout_ref.rollout.response_length"
EVALUATIONS: Final = frozenset(("val", "val-core", "val-aux", "validation"))
EVALUATED: Final[Series] = (vocabulary.EVAL_REWARD, ())
EVAL_REWARD: Final = re.compile(r"val-(?:core|aux)/.+/reward/mean@\d+")


@dataclass(eq=False)
class Meaning(Memory):
    """What the run's settings say of the numbers that verl logs."""

    others: frozenset[str] = frozenset()
    """Keys that mean something else than usual."""
    limit: int | None = None
    """Most tokens of a response."""


meaning = Meaning.keep("meaning")


def read_settings(args: Args, kwargs: Kwargs) -> None:
    """Learn what the numbers mean from the settings that ``Tracking.__init__`` gets."""
    settings = kwargs.get("config", args[4] if len(args) > 4 else None)
    found = ((key, _setting(settings, path), values) for key, path, values in ONLY_WITH)
    meaning.others = frozenset(key for key, value, values in found if value is not None and value not in values)
    meaning.limit = _setting(settings, LIMIT)


def _setting(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def log_metrics(args: Args, kwargs: Kwargs) -> None:
    """Record the numbers that ``Tracking.log`` gets."""
    data = kwargs["data"] if "data" in kwargs else args[1]
    record_numbers(_named(numbers_of(data, "verl")))


def _named(numbers: Numbers) -> Iterator[tuple[Series, int | float]]:
    rewards = [key for key in numbers if EVAL_REWARD.fullmatch(key)]

    def canonical(key: str) -> Series | None:
        if rewards == [key]:  # of several data sources none is that of the whole evaluation
            return EVALUATED
        return CANONICAL[key] if _is_canonical(key, numbers) else None

    yield from name_numbers(numbers, vocabulary.VERL, canonical, EVALUATIONS)
    share, longest = numbers.get("response_length/clip_ratio"), numbers.get("response_length/max")
    if share is not None and longest is not None and meaning.limit is not None:
        yield (vocabulary.RESPONSE_CLIPPED, ()), share if longest >= meaning.limit else 0.0  # it is of the longest ones


def _is_canonical(key: str, numbers: Numbers) -> bool:
    if key not in CANONICAL or key in meaning.others or BESIDE.get(key, key) not in numbers:
        return False
    other = INSTEAD_OF.get(key, "")
    return other not in numbers or not _is_canonical(other, numbers)

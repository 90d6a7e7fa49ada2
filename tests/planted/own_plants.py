"""Plants problems into ``own_loop.py``: each function changes a clean training, and has the name of the rule."""

from __future__ import annotations

import copy

import pynvml
import torch
from torch import Tensor

from tests.nvml import GIB
from tests.planted.devices import Board, with_board
from tests.planted.own_loop import EOS, PLANTED, PROMPT, Loop, even


def divergence(loop: Loop) -> None:
    """From step 31 on rewards are noise, advantages and rate are 30 times as large: the policy wanders off."""

    def wander(number: int, advantages: Tensor) -> Tensor:
        return advantages if number <= PLANTED else 30 * torch.randn_like(advantages)

    def hasten(loop: Loop, number: int) -> None:
        if number > PLANTED:
            loop.optimizer.param_groups[0]["lr"] = 30 * loop.rate

    loop.advantages, loop.before = wander, hasten
    loop.reward = lambda number, ids, mask: even(ids, mask) if number <= PLANTED else torch.rand(len(ids))


def reward_constant(loop: Loop) -> None:
    """The reward function returns its default from step 31 on; nobody counts groups."""
    loop.counts_groups, loop.beta = False, 0.0
    loop.reward = lambda number, ids, mask: even(ids, mask) if number <= PLANTED else torch.full((len(ids),), 0.5)


def policy_unchanged(loop: Loop) -> None:
    """The optimizer has the parameters of a copy, as after wrapping the model too late."""

    def replace(loop: Loop, number: int) -> None:
        if number == 1:
            other = copy.deepcopy(loop.policy)
            loop.optimizer = torch.optim.Adam(other.parameters(), loop.rate)

    loop.before = replace


def rollout_drifts(loop: Loop) -> None:
    """The engine gets no new weights from step 21 on, and nobody says so."""
    loop.frozen_since = 21


def rollout_apart(loop: Loop) -> None:
    """The engine samples at a temperature of 1.6, the trainer assumes 1."""
    loop.temperature = 1.6


def reward_noisy(loop: Loop) -> None:
    """A rare reward that no answer earns: 1 of 8 by chance, whatever it says."""
    loop.reward = lambda number, ids, mask: (torch.rand(len(ids)) < 0.125).float()
    loop.rate = 1e-4


def cut_rises(loop: Loop) -> None:
    """From step 31 on the engine does not know the stop token: its probability fades."""

    def fade(loop: Loop, number: int) -> None:
        if number > 15:
            with torch.no_grad():
                loop.policy.head.bias[EOS] -= 0.2

    loop.before = fade
    loop.reward = lambda number, ids, mask: (ids[:, PROMPT] % 2 == 0).float() * 0.2 + torch.rand(len(ids))


def requests_worse(loop: Loop) -> None:
    """More and more requests time out from step 21 on."""
    loop.finish = lambda number, place: "timeout" if place < (number - 20) // 3 else "stop"


def engine_full(loop: Loop) -> None:
    """The engine preempts one of eight requests, as with a KV cache that is too small."""
    loop.preemptions = lambda number, place: int(place % 8 == 0)


def tokens_jump(loop: Loop) -> None:
    """From step 31 on the packing puts five batches into one."""
    loop.repeats = lambda number: 5 if number > PLANTED else 1


# --- with a board that stands in (``devices.py``) ---------------------------------------------------------------------


def device(loop: Loop) -> None:
    """A clean training on a board."""
    with_board(loop)


def memory_fragmented(loop: Loop) -> None:
    """From step 31 on the allocator finds no room between blocks: it holds up to 78 GiB, of which 58 are live."""

    def grow(board: Board, number: int) -> None:
        board.reserved = min(78, 60 + max(0, number - PLANTED)) * GIB
        board.allocated = 58 * GIB

    with_board(loop, grow)


def device_errors(loop: Loop) -> None:
    """The board reports XID 79 in step 31."""

    def fail(board: Board, number: int) -> None:
        if number == PLANTED + 1:
            board.events.append((1, 79))

    with_board(loop, fail)


def device_throttled(loop: Loop) -> None:
    """From step 31 on the board is too hot."""

    def heat(board: Board, number: int) -> None:
        board.why = pynvml.nvmlClocksEventReasonHwThermalSlowdown if number > PLANTED else 0

    with_board(loop, heat)


def low_gpu_use(loop: Loop) -> None:
    """Kernels run in 30 % of the time."""
    with_board(loop, lambda board, number: setattr(board, "use", 30))

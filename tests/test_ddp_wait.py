"""The wait for DDP at the end of a backward: what is watched, and that nothing of ours stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import otel_rl
from otel_rl import ddp_wait
from otel_rl import vocabulary as v
from otel_rl.runtime import state
from tests.fixtures import Recording

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def ranks(stubbed: Recording) -> Iterator[Recording]:
    """One gloo process that takes itself for one of two."""
    stubbed.start("torch")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state.identify(world_size=2, rank=0)
    yield stubbed
    otel_rl.uninstrument()
    dist.destroy_process_group()


def wrapped() -> Any:
    """Make a model that DDP wraps."""
    return DistributedDataParallel(torch.nn.Linear(4, 1))


def backwards(recording: Recording) -> list[dict[str, Any]]:
    """Say of each backward what it tells of its collectives."""
    keys = (v.COMM_WAIT, v.COMM_HIDDEN, v.COMM_COUNT)
    spans = [span for span in recording.stop().spans(None) if span.name == v.BACKWARD]
    spans.sort(key=lambda span: span.start_ns)
    return [{key: span.attributes[key] for key in keys if key in span.attributes} for span in spans]


def test_the_wait_is_a_collective_of_the_backward(ranks: Recording) -> None:
    """From the last local gradient to the end, on every backward that reduces; nothing is left on model and loss."""
    model = wrapped()

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ranks.tick(50)
            return gradients[0]

    losses = []
    for _ in range(2):
        with otel_rl.step(len(losses) + 1):
            losses.append(Late.apply(model(torch.ones(2, 4))).sum())
            losses[-1].backward()
    assert [0, 0] == [len(loss._backward_hooks or ()) for loss in losses]
    assert [None, None] == [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
    assert [{v.COMM_WAIT: 0.0, v.COMM_COUNT: 1}] * 2 == backwards(ranks)


def test_a_backward_that_fails_leaves_nothing(ranks: Recording) -> None:
    """Not on the loss, and not for the next one."""
    model = wrapped()
    loss = model(torch.ones(2, 4)).sum()
    handle = model.module.weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)
    with otel_rl.step(1), pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    assert (0, None) == (len(loss._backward_hooks or ()), ddp_wait._open.backward)
    ddp = wrapped()
    ranks.tick(1)
    with otel_rl.step(2):
        ddp(torch.ones(2, 4)).sum().backward()
    assert [{}, {v.COMM_WAIT: 0.0, v.COMM_COUNT: 1}] == backwards(ranks)


def test_what_cannot_be_told_is_hidden(ranks: Recording) -> None:
    """A backward inside the backward, where DDP may wait as well; and one with two beginnings."""
    model = wrapped()
    batch = torch.ones(2, 4, requires_grad=True)
    with otel_rl.step(1):
        checkpoint(model, batch, use_reentrant=True).sum().backward()
        first, second = model(batch).sum(), model(batch).sum()
        torch.autograd.backward([first, second])
    assert [{v.COMM_HIDDEN: True}] * 2 == backwards(ranks)


def test_without_ddp_a_backward_hides_what_was_not_seen(ranks: Recording) -> None:
    """With a collective of its own that was seen, it says nothing more."""
    layer = torch.nn.Linear(4, 1)
    with otel_rl.step(1):
        layer(torch.ones(2, 4)).sum().backward()
        ranks.tick(1)
        handle = layer.weight.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        layer(torch.ones(2, 4)).sum().backward()
        handle.remove()
    assert [{v.COMM_HIDDEN: True}, {v.COMM_COUNT: 1}] == backwards(ranks)


def test_an_end_with_collectives_of_its_own_is_not_ddps(ranks: Recording) -> None:
    """As FSDP2 ends the backward of a policy, where a reward model is wrapped by DDP: those are rows already."""
    reward, layer = wrapped(), torch.nn.Linear(4, 1)

    def at_the_end(parameter: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: dist.all_reduce(parameter.grad))

    layer.weight.register_post_accumulate_grad_hook(at_the_end)
    with otel_rl.step(1):
        layer(torch.ones(2, 4)).sum().backward()
    assert (True, [{v.COMM_COUNT: 1}]) == (reward.training, backwards(ranks))


def test_between_micro_batches_nothing_is_reduced(ranks: Recording) -> None:
    """So there is nothing to wait for, and nothing hidden."""
    model = wrapped()
    with otel_rl.step(1), model.no_sync():
        model(torch.ones(2, 4)).sum().backward()
    assert [{}] == backwards(ranks)


def test_a_model_is_not_kept_alive(ranks: Recording) -> None:
    """Neither the wrapped one nor what wraps it."""
    model = wrapped()
    with otel_rl.step(1):
        model(torch.ones(2, 4)).sum().backward()
    gone = weakref.ref(model), weakref.ref(model.module)
    del model
    gc.collect()
    assert (None, None) == tuple(one() for one in gone)


def test_after_uninstrument_a_wrapped_model_trains_on(ranks: Recording) -> None:
    """With no callback of ours in its backward."""
    model = wrapped()
    otel_rl.uninstrument()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    assert (None, None) == (loss._backward_hooks, ddp_wait._open.backward)

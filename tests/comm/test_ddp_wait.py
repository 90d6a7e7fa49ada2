"""The wait for DDP at the end of a backward: what is watched, and that nothing of ours stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.comm import ddp_wait
from otel_rl.comm.collectives import Collective
from otel_rl.comm.memory import comm
from otel_rl.hooks.collective import input_bytes
from otel_rl.journal.read import Run
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing
from tests.fixtures import WALL_NS, Recording

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NO_TIME = timedelta(milliseconds=1)


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


def at_the_end_of(model: Any, function: Callable[[], object]) -> None:
    """Have a function called at the end of each backward, between our two looks at it."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    model.module.weight.register_post_accumulate_grad_hook(lambda _: queue(function))


def waits(run: Run) -> list[bytes]:
    """Give the ids of the waits for DDP that are spans."""
    spans = sorted(run.spans(None), key=lambda span: span.start_ns)
    return [span.span_id for span in spans if span.attributes.get(v.COMM_OPERATION) == v.DDP_ALL_REDUCE]


def test_the_wait_is_open_while_it_lasts(ranks: Recording) -> None:
    """So a hang in it is in the journal of the live run; it becomes the row that was journaled as open."""
    model, seen = wrapped(), []

    def look() -> None:
        otel_rl.flush()
        ranks.tick(50)
        seen.extend((ranks.clock.ns, comm.seen_in, ranks.run().open_stages()))

    at_the_end_of(model, look)
    with otel_rl.step(1):
        began = ranks.clock.ns
        model(torch.ones(2, 4)).sum().backward()
        assert not [one for one in tracing.open if isinstance(one, Collective)]
    ended, seen_in, opened = seen
    (wait,) = [one for one in opened if one.name == v.COMM]
    (around,) = [one for one in opened if one.name == v.BACKWARD]
    assert (around.span_id, WALL_NS + began, None) == (wait.parent_id, wait.start_ns, seen_in)
    assert {
        v.COMM_OPERATION: "ddp_all_reduce",
        v.COMM_GROUP: "default_pg",
        v.COMM_GROUP_SIZE: 1,
        v.COMM_ASYNC: True,
        v.STAGE: v.COMM,
    } == wait.attributes
    run = ranks.stop()
    assert ([], [wait.span_id]) == (run.open_stages(), waits(run))
    (row,) = [span for span in run.spans(None) if span.span_id == wait.span_id]
    assert (WALL_NS + began, WALL_NS + ended) == (row.start_ns, row.end_ns)
    assert [{v.COMM_WAIT: 0.05, v.COMM_COUNT: 1}] == backwards(ranks)


@pytest.mark.parametrize("is_journaled", [False, True])
@pytest.mark.parametrize("what", ["fails", "has collectives of its own"])
def test_a_wait_that_was_none_is_open_no_longer(ranks: Recording, what: str, is_journaled: bool) -> None:
    """It leaves no row, unless the journal says that it was open."""
    model, opened = wrapped(), []

    def end() -> None:
        if is_journaled:
            otel_rl.flush()
        opened.extend(one.span_id for one in tracing.open if isinstance(one, Collective))
        if what == "fails":
            raise ValueError
        dist.all_reduce(torch.ones(1))

    at_the_end_of(model, end)
    with otel_rl.step(1):
        with suppress(ValueError):
            model(torch.ones(2, 4)).sum().backward()
        assert not [one for one in tracing.open if isinstance(one, Collective)]
    run = ranks.stop()
    assert ([], is_journaled, 1) == (run.open_stages(), opened[0] > 0, len(opened))
    assert [one.to_bytes(8, "big") for one in opened if is_journaled] == waits(run)


def test_a_wait_in_which_a_backward_began_is_not_open(ranks: Recording) -> None:
    """DDP may have waited in the middle."""
    model, opened = wrapped(), []
    batch = torch.ones(2, 4, requires_grad=True)
    at_the_end_of(model, lambda: opened.append([one for one in tracing.open if isinstance(one, Collective)]))
    with otel_rl.step(1):
        checkpoint(model, batch, use_reentrant=True).sum().backward()
    assert ([[]], []) == (opened, waits(ranks.stop()))


def test_a_backward_that_fails_leaves_nothing(ranks: Recording) -> None:
    """Not on the loss, and not for the next one."""
    model = wrapped()
    loss = model(torch.ones(2, 4)).sum()
    handle = model.module.weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)
    with otel_rl.step(1), pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    assert (0, None) == (len(loss._backward_hooks or ()), ddp_wait._open.backward)
    del model, loss, handle
    gc.collect()
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


def test_several_models_of_one_group_are_waited_for_together(ranks: Recording) -> None:
    """An actor and a critic: whichever of them takes part, and both in one backward."""
    actor, critic = wrapped(), wrapped()
    with otel_rl.step(1):
        actor(torch.ones(2, 4)).sum().backward()
        ranks.tick(1)
        (actor(torch.ones(2, 4)) + critic(torch.ones(2, 4))).sum().backward()
        ranks.tick(1)
        with critic.no_sync():
            actor(torch.ones(2, 4)).sum().backward()
    assert [{v.COMM_WAIT: 0.0, v.COMM_COUNT: 1}] * 3 == backwards(ranks)


def test_of_models_of_several_groups_none_is_taken_for_the_one(ranks: Recording) -> None:
    """Which group a rank waits for is not known; while only one reduces, it is that one's."""
    actor, layer = wrapped(), torch.nn.Linear(4, 1)
    critic = DistributedDataParallel(torch.nn.Linear(4, 1), process_group=dist.new_group([0]))
    with otel_rl.step(1):
        actor(torch.ones(2, 4)).sum().backward()
        ranks.tick(1)
        layer(torch.ones(2, 4)).sum().backward()
        ranks.tick(1)
        with critic.no_sync():
            (actor(torch.ones(2, 4)) + critic(torch.ones(2, 4))).sum().backward()
    assert [{v.COMM_HIDDEN: True}] * 2 + [{v.COMM_WAIT: 0.0, v.COMM_COUNT: 1}] == backwards(ranks)


def test_the_wait_takes_no_number_of_its_group(ranks: Recording) -> None:
    """One rank may see a wait that another does not: what follows has the same number on both."""
    model = wrapped()
    ranks.tick(1)
    with otel_rl.step(1):
        for losses in (1, 2):
            torch.autograd.backward([model(torch.ones(2, 4)).sum() for _ in range(losses)])
            ranks.tick(1)
            dist.all_reduce(torch.ones(1))
    spans = sorted((span for span in ranks.stop().spans(None) if span.name == v.COMM), key=lambda span: span.start_ns)
    keys = (v.COMM_OPERATION, v.COMM_GROUP, v.COMM_SEQUENCE)
    assert [
        ("_broadcast_coalesced", "default_pg", 1),
        ("ddp_all_reduce", "default_pg", None),
        ("all_reduce", "default_pg", 2),
        ("all_reduce", "default_pg", 3),
    ] == [tuple(span.attributes.get(key) for key in keys) for span in spans]


def test_a_users_own_stage_knows_the_wait(ranks: Recording) -> None:
    """It takes the place of ours, of several backwards together; nothing stays on the losses."""
    model, losses = wrapped(), []

    def run(*, twice: bool = False) -> None:
        with otel_rl.stage("train.backward"):
            for _ in range(1 + twice):
                dist.all_reduce(torch.ones(1))
                losses.append(model(torch.ones(2, 4)).sum())
                losses[-1].backward()

    with otel_rl.step(1):
        run()
        ranks.tick(1)
        run(twice=True)
        ranks.tick(1)
        with otel_rl.stage("train.backward"):
            torch.autograd.backward([model(torch.ones(2, 4)).sum(), model(torch.ones(2, 4)).sum()])
    assert [0, 0, 0] == [len(loss._backward_hooks or ()) for loss in losses]
    assert ddp_wait._open.backward is None
    assert [
        {v.COMM_WAIT: 0.0, v.COMM_COUNT: 2},
        {v.COMM_WAIT: 0.0, v.COMM_COUNT: 4},
        {v.COMM_HIDDEN: True},
    ] == backwards(ranks)


def test_waits_of_one_stage_add_up(ranks: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all backwards in it."""
    model = wrapped()

    def describe(stage: Any) -> dict[str, Any]:
        ddp_wait.cancel()
        return {v.COMM_WAIT: 1.5}

    monkeypatch.setattr(ddp_wait, "describe", describe)
    with otel_rl.step(1), otel_rl.stage("train.backward"):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
    assert [{v.COMM_WAIT: 3.0}] == [
        {key: value for key, value in one.items() if key == v.COMM_WAIT} for one in backwards(ranks)
    ]


class Inherits(dist.Work):
    """A backend's work that has a wait of torch's."""


class Extends(dist.Work):
    """One that calls torch's."""

    def wait(self, timeout: timedelta = NO_TIME) -> bool:
        """Wait as its base does."""
        return super().wait(timeout)


@pytest.mark.parametrize("kind", [Inherits, Extends])
def test_a_work_of_python_waits_as_without_us(ranks: Recording, kind: type[dist.Work]) -> None:
    """Torch's own error after its time, and one row."""
    with otel_rl.step(1), pytest.raises(RuntimeError, match="timed out"):
        kind().wait(NO_TIME)
    assert {"wait"} == {span.attributes[v.COMM_OPERATION] for span in ranks.stop().spans(None) if span.name == v.COMM}


def test_a_sparse_tensor_is_a_collective_of_its_group(ranks: Recording) -> None:
    """Torch does not say its bytes; it has its place in the order, also in a list with others."""
    with otel_rl.step(1):
        dist.all_reduce(torch.eye(3).to_sparse())
        ranks.tick(1)
        dist.all_reduce(torch.ones(1))
    spans = sorted((span for span in ranks.stop().spans(None) if span.name == v.COMM), key=lambda span: span.start_ns)
    assert [(1, None), (2, 4)] == [
        (span.attributes[v.COMM_SEQUENCE], span.attributes.get(v.COMM_BYTES)) for span in spans
    ]
    assert 4 == input_bytes([torch.eye(3).to_sparse(), torch.ones(1)])


def test_without_ddp_a_backward_hides_what_was_not_seen(ranks: Recording) -> None:
    """Until a collective was seen in one: FSDP reduces nothing between the micro-batches of an accumulation."""
    layer = torch.nn.Linear(4, 1)
    with otel_rl.step(1):
        layer(torch.ones(2, 4)).sum().backward()
        ranks.tick(1)
        handle = layer.weight.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        layer(torch.ones(2, 4)).sum().backward()
        handle.remove()
        ranks.tick(1)
        layer(torch.ones(2, 4)).sum().backward()
    assert [{v.COMM_HIDDEN: True}, {v.COMM_COUNT: 1}, {}] == backwards(ranks)


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


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ((), True),
        (("forward", "backward"), False),
        (("backward",), True),
        (("forward",), False),
    ],
)
@pytest.mark.parametrize("is_between", [False, True])
def test_the_forward_decides_what_a_backward_reduces(
    ranks: Recording, inside: tuple[str, ...], expected: bool, is_between: bool
) -> None:
    """As torch does it, which calls a hook to reduce: whatever is reduced is seen, also behind a forward for nothing.

    Only a forward without gradients in front of a backward inside of ``no_sync`` hides that it reduces.
    """
    model, reduced = wrapped(), []

    def reduce(bucket: Any) -> Any:
        reduced.append(bucket)
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, lambda _, bucket: reduce(bucket))  # torch refuses annotations that are strings

    def within(what: str) -> Any:
        return model.no_sync() if what in inside else nullcontext()

    with otel_rl.step(1):
        with within("forward"):
            loss = model(torch.ones(2, 4)).sum()
        if is_between:
            with torch.no_grad():
                model(torch.ones(2, 4))
        with within("backward"):
            loss.backward()
    is_unknown = is_between and "backward" in inside
    (described,) = backwards(ranks)
    assert expected == bool(reduced)
    assert ("backward" not in inside or (expected and not is_unknown)) == (v.COMM_WAIT in described)


def test_a_process_alone_asks_nothing(ranks: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to wait for, with a model that DDP wraps and in a user's own stage too."""
    state.identify(world_size=1)
    asked: list[str] = []
    for name in ("watch", "describe"):
        monkeypatch.setattr(ddp_wait, name, lambda *_, name=name: asked.append(name))
    model = wrapped()
    with otel_rl.step(1):
        model(torch.ones(2, 4)).sum().backward()
        with otel_rl.stage("train.backward"):
            model(torch.ones(2, 4)).sum().backward()
    assert ([{}, {}], []) == (backwards(ranks), asked)


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

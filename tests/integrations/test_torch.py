"""torch: backward, optimizers, checkpoints, data loading, compiled regions and collectives."""

from __future__ import annotations

import copy
import importlib
import io
import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import cloudpickle
import torch
from opentelemetry.context import get_current

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.trace.current import CURRENT, SPAN_KEY
from otel_rl.trace.memory import tracing
from otel_rl.trace.training import training
from tests.programs.launch import HERE, launcher, run
from tests.programs.recorded import COLLECTIVE, Node, Recorded
from tests.waiting import wait_for


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[], Recorded]]:
    """Record this process with torch alone; calling it ends the recording and reads it."""
    otel_rl.instrument(["torch"])

    def end() -> Recorded:
        otel_rl.uninstrument()
        return Recorded(tmp_path / "runs")

    yield end
    otel_rl.uninstrument()


def model() -> Any:
    """Make two layers."""
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


# --- backward and optimizers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_backward_counts_once(recorded: Callable[[], Recorded], reentrant: bool) -> None:
    """Recomputing calls the backward of torch again, from inside the first one."""
    from torch.utils.checkpoint import checkpoint

    layers, batch = model(), torch.ones(4, 8, requires_grad=True)
    with otel_rl.step(1):
        for _ in range(2):
            checkpoint(
                lambda x: checkpoint(layers, x, use_reentrant=reentrant), batch, use_reentrant=reentrant
            ).sum().backward()
    assert [v.BACKWARD] * 2 == recorded().steps()[1].outline()


def test_both_ways_to_call_the_backward_are_seen(recorded: Callable[[], Recorded]) -> None:
    """``loss.backward()`` and ``torch.autograd.backward(loss)``; ``autograd.grad`` is no update."""
    layers, batch = model(), torch.ones(4, 8, requires_grad=True)
    with otel_rl.step(1):
        layers(batch).sum().backward()
        torch.autograd.backward(layers(batch).sum())
        torch.autograd.grad(layers(batch).sum(), batch)
    assert [v.BACKWARD] * 2 == recorded().steps()[1].outline()


def test_an_optimizer_without_a_framework_is_a_stage(recorded: Callable[[], Recorded]) -> None:
    """Each step once, with a scheduler attached, for an optimizer made before and one after."""
    layers = model()
    one, two = torch.optim.SGD(layers.parameters(), lr=0.1), torch.optim.AdamW(layers.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(one)
    with otel_rl.step(1):
        layers(torch.ones(4, 8)).sum().backward()
        one.step()
        scheduler.step()
        two.step()
    assert [v.BACKWARD, v.OPTIMIZER, v.OPTIMIZER] == recorded().steps()[1].outline()


def by_value(*things: Any) -> list[bytes | str]:
    """Pickle as Ray does, with the globals that a function uses, and make the fingerprints of datasets."""
    fingerprint = pytest.importorskip("datasets.fingerprint")
    return [*map(cloudpickle.dumps, things), *map(fingerprint.Hasher.hash, things)]


def test_what_pickles_an_optimizer_by_value_gets_nothing_of_ours(recorded: Callable[[], Recorded]) -> None:
    """Data sets are found in their cache by such bytes; hooks of others are among them as ever."""

    class Own(torch.optim.Optimizer):
        """An optimizer of the user's, in the program itself."""

        def __init__(self) -> None:
            super().__init__(model().parameters(), {})

        def step(self, closure: Any = None) -> None:
            """Update nothing."""

    Own().step()  # torch wraps it
    optimizer = importlib.import_module("torch.optim.optimizer")
    handle = optimizer.register_optimizer_step_pre_hook(print)
    while_recording = by_value(Own.step, torch.optim.SGD.step)
    recorded()
    assert while_recording == by_value(Own.step, torch.optim.SGD.step)
    assert b"print" in while_recording[0]
    handle.remove()
    assert {} == vars(optimizer._global_optimizer_pre_hooks)


def test_an_optimizer_inside_the_backward_belongs_to_it(recorded: Callable[[], Recorded]) -> None:
    """One optimizer per parameter, stepped as its gradient arrives: no stage of their own."""
    layers = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in layers.parameters()}
    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    with otel_rl.step(1):
        layers(torch.ones(4, 8)).sum().backward()
    assert [v.BACKWARD] == recorded().steps()[1].outline()


def test_what_a_closure_does_is_inside_the_step_of_its_optimizer(recorded: Callable[[], Recorded]) -> None:
    """Several forwards and backwards: they lie below the update, and not beside it."""
    layers = model()
    optimizer = torch.optim.LBFGS(layers.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = layers(torch.ones(4, 8)).sum()
        loss.backward()
        return loss

    with otel_rl.step(1):
        optimizer.step(closure)
    (step,) = recorded().steps().values()
    assert [v.OPTIMIZER, f"  {v.BACKWARD}"] == step.outline()


class Both(torch.optim.Optimizer):
    """An optimizer made of two, one of them of a class that calls the step of its base."""

    def __init__(self, layers: Any) -> None:
        super().__init__(layers.parameters(), {})
        first, last = layers[0], layers[2]
        self.parts = [torch.optim.SGD(first.parameters(), lr=0.1), Derived(last.parameters(), lr=0.1)]

    def step(self, closure: Any = None) -> None:
        """Step both, and do something before and behind."""
        with otel_rl.stage("scale"):
            pass
        for part in self.parts:
            part.step()
        with otel_rl.stage("average"):
            pass


class Derived(torch.optim.SGD):
    """Both its own step and that of its base have torch's hooks."""

    def step(self, closure: Any = None) -> Any:
        """Step as the base does."""
        return super().step(closure)


def test_an_optimizer_made_of_optimizers_is_one_stage(recorded: Callable[[], Recorded]) -> None:
    """From its own begin to its own end; what is behind it is not inside."""
    layers = model()
    both, derived = Both(layers), Derived(layers.parameters(), lr=0.1)
    with otel_rl.step(1):
        layers(torch.ones(4, 8)).sum().backward()
        for optimizer in (both, derived):
            optimizer.step()
            with otel_rl.stage("behind"):
                pass
    (step,) = recorded().steps().values()
    expected = [v.BACKWARD, v.OPTIMIZER, "  scale", "  average", "behind", v.OPTIMIZER, "behind"]
    assert expected == step.outline()


class Again(torch.optim.SGD):
    """Steps as its base does, and once more where that raises."""

    def step(self, closure: Any = None) -> Any:
        """Step, twice if need be."""
        with suppress(ValueError):
            return super().step(closure)
        return super().step(closure)


def test_a_step_of_an_optimizer_that_tries_again_is_one_stage(recorded: Callable[[], Recorded]) -> None:
    """It ends where the optimizer's own step does, however the first one of its base ended."""
    layers = model()
    torch.optim.SGD(layers.parameters())  # torch puts its hooks around the step of a class with the first of it
    optimizer = Again(layers.parameters(), lr=0.1)
    gone = iter([ValueError("gone")])

    def closure() -> float:
        with otel_rl.stage("loss"):
            for error in gone:
                raise error
        return 0.0

    with otel_rl.step(1):
        optimizer.step(closure)
        with otel_rl.stage("behind"):
            pass
    (step,) = recorded().steps().values()
    assert [v.OPTIMIZER, "  loss", "  loss", "behind"] == step.outline()
    assert v.TRUNCATED not in step.children[0].attributes


class Raising(torch.optim.SGD):
    """Raises when it is told to."""

    error: Exception | None = None

    def step(self, closure: Any = None) -> Any:
        """Step, or raise."""
        if self.error is not None:
            raise self.error
        return super().step(closure)


def test_a_step_of_an_optimizer_that_raises_ends_with_the_next_one(recorded: Callable[[], Recorded]) -> None:
    """Torch does not tell that it is over; what is around it, and the next step of any optimizer, do."""
    layers = model()
    optimizer = Raising(layers.parameters(), lr=0.1)
    layers(torch.ones(4, 8)).sum().backward()
    with otel_rl.step(1):
        optimizer.error = ValueError("gone")
        with pytest.raises(ValueError, match="gone"), otel_rl.stage("update"):
            optimizer.step()
        optimizer.error = None
        optimizer.step()
        with otel_rl.stage("behind"):
            pass
    (step,) = recorded().steps().values()
    assert ["update", f"  {v.OPTIMIZER}", v.OPTIMIZER, "behind"] == step.outline()
    update, optimized, _ = step.children
    (raised,) = update.children
    assert (True, None) == (raised.attributes[v.TRUNCATED], optimized.attributes.get(v.TRUNCATED))
    assert raised.span.end_ns == update.span.end_ns


@pytest.mark.parametrize("is_caught", [True, False])
def test_a_step_of_an_optimizer_that_raises_ends_with_the_step_of_the_training(
    recorded: Callable[[], Recorded], is_caught: bool
) -> None:
    """Nothing stays open or current: neither where the error ends the step nor where the program goes on."""
    optimizer = Raising(model().parameters(), lr=0.1)
    optimizer.error = ValueError("gone")

    def train() -> None:
        with otel_rl.step(1):
            with suppress(ValueError if is_caught else KeyError):
                optimizer.step()
            with otel_rl.stage("behind"):
                pass

    with suppress(ValueError):
        train()
    assert (None, None, []) == (
        get_current().get(SPAN_KEY),
        CURRENT.get(),
        [one.name for one in tracing.open if one.name == v.OPTIMIZER],
    )
    (step,) = recorded().steps().values()
    (raised,) = step.children
    expected = (None, True, ["behind"]) if is_caught else ("ValueError", None, [])
    assert (v.OPTIMIZER, *expected) == (
        raised.name,
        raised.attributes.get(v.ERROR_TYPE),
        raised.attributes.get(v.TRUNCATED),
        raised.outline(),
    )


@pytest.mark.parametrize("is_optimizer", [True, False])
def test_a_step_of_an_optimizer_that_raised_does_not_take_the_error_of_something_else(
    recorded: Callable[[], Recorded], is_optimizer: bool
) -> None:
    """Its own was caught; another one, of another optimizer even, ends the step of the training."""
    caught, uncaught = Raising(model().parameters(), lr=0.1), Raising(model().parameters(), lr=0.1)
    caught.error, uncaught.error = ValueError("gone"), LookupError("gone, too")
    with suppress(LookupError), otel_rl.step(1):
        with suppress(ValueError):
            caught.step()
        if is_optimizer:
            uncaught.step()
        raise uncaught.error
    assert {} == training.stepping
    (step,) = recorded().steps().values()
    expected = [(v.OPTIMIZER, None, True), (v.OPTIMIZER, "LookupError", None)]
    actual = [(one.name, one.attributes.get(v.ERROR_TYPE), one.attributes.get(v.TRUNCATED)) for one in step.children]
    assert ("LookupError", expected[: 1 + is_optimizer]) == (step.attributes[v.ERROR_TYPE], actual)


def test_a_step_of_an_optimizer_in_another_thread_may_outlast_the_step_of_the_training(
    recorded: Callable[[], Recorded],
) -> None:
    """It has not raised: it ends where it ends."""
    layers = model()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    has_begun, may_end = threading.Event(), threading.Event()

    def closure() -> float:
        has_begun.set()
        assert may_end.wait(60)
        return 0.0

    with ThreadPoolExecutor(1) as pool:
        with otel_rl.step(1):
            stepped = pool.submit(optimizer.step, closure)
            assert has_begun.wait(60)
        with otel_rl.step(2):
            may_end.set()
            stepped.result()
    one, two = recorded().steps().values()
    (optimized,) = one.children
    assert (v.OPTIMIZER, None, []) == (optimized.name, optimized.attributes.get(v.TRUNCATED), two.outline())
    assert optimized.span.end_ns > one.span.end_ns


def test_an_error_in_the_backward_is_the_hosts_own(recorded: Callable[[], Recorded]) -> None:
    """And closes the stage with its type; the message is content."""
    with otel_rl.step(1), pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    (backward,) = recorded().steps()[1].children
    assert (2, "RuntimeError") == (backward.span.status_code, backward.attributes[v.ERROR_TYPE])


# --- checkpoints ------------------------------------------------------------------------------------------------------

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@alone
def test_saving_is_a_checkpoint(recorded: Callable[[], Recorded], tmp_path: Path) -> None:
    """With torch.save, also where its name was imported before, and with torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp

    with otel_rl.step(1):
        torch.save(model().state_dict(), tmp_path / "model.pt")
        torch.serialization.save(model().state_dict(), tmp_path / "model.pt")
        dcp.save({"model": model().state_dict()}, checkpoint_id=str(tmp_path / "dcp"))
    saved = recorded().steps()[1].children
    assert [(v.CHECKPOINT, "torch.save")] * 2 + [(v.CHECKPOINT, "dcp")] == [
        (node.name, node.attributes[v.CHECKPOINT_FORMAT]) for node in saved
    ]
    assert all(node.attributes[v.CHECKPOINT_BYTES] > 0 for node in saved)
    parts = sum(file.stat().st_size for file in (tmp_path / "dcp").glob("*.distcp"))
    assert parts == saved[-1].attributes[v.CHECKPOINT_BYTES]


@alone
def test_a_checkpoint_has_the_bytes_of_its_parts(recorded: Callable[[], Recorded], tmp_path: Path) -> None:
    """Each counts once; of what was written into memory nothing does."""
    import torch.distributed.checkpoint as dcp

    with otel_rl.step(1), otel_rl.stage("checkpoint"):
        torch.save(model().state_dict(), tmp_path / "model.pt")
        torch.save([1, 2], str(tmp_path / "rest.pt"))
        torch.save([1, 2], io.BytesIO())
        dcp.save({"model": model().state_dict()}, checkpoint_id=str(tmp_path / "dcp"))
    (saved,) = recorded().steps()[1].children
    written = [*tmp_path.glob("*.pt"), *(tmp_path / "dcp").glob("*.distcp")]
    assert sum(file.stat().st_size for file in written) == saved.attributes[v.CHECKPOINT_BYTES]
    assert (tmp_path / "model.pt").exists()


PICKLING: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
    "an old pickle": lambda tensor: pickle.loads(pickle.dumps([tensor], protocol=0))[0],
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "typed storage": lambda tensor: torch.tensor(pickle.loads(pickle.dumps(tensor.storage())).tolist()).view(2, 2),
    "storage": lambda tensor: tensor if pickle.dumps(tensor.untyped_storage()) else None,
    "multiprocessing": lambda tensor: ForkingPickler.loads(ForkingPickler.dumps(tensor)),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("kind", PICKLING)
def test_a_tensor_that_is_pickled_is_no_checkpoint(recorded: Callable[[], Recorded], kind: str) -> None:
    """Though torch writes its storage with torch.save."""
    tensor = torch.arange(4.0).view(2, 2)
    with otel_rl.step(1):
        assert torch.equal(tensor, PICKLING[kind](tensor))
    assert [] == recorded().steps()[1].children


def test_saving_to_a_file_is_a_checkpoint(recorded: Callable[[], Recorded], tmp_path: Path) -> None:
    """And into memory none: batches go to other processes so. A pickle inside a checkpoint is a part of it."""
    weights, memory = model().state_dict(), io.BytesIO()
    with otel_rl.step(1):
        with (tmp_path / "file.pt").open("wb") as file:
            torch.save(obj={"model": weights, "pickle": pickle.dumps(weights)}, f=file)
        torch.save(weights, memory)
        torch.save(weights["0.weight"].untyped_storage(), tmp_path / "storage.pt")
    assert [("torch.save", None, [])] * 2 == checkpoints(recorded())
    memory.seek(0)
    assert torch.equal(weights["0.weight"], torch.load(memory)["0.weight"])


def checkpoints(recorded: Recorded) -> list[tuple[Any, ...]]:
    """Give format, whether it was read, and what lies inside, of the checkpoints of step 1."""
    keys = v.CHECKPOINT_FORMAT, v.CHECKPOINT_LOAD
    nodes = recorded.steps()[1].children
    assert {v.CHECKPOINT} == {node.name for node in nodes}
    return [(*map(node.attributes.get, keys), node.outline()) for node in nodes]


@alone
@pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")
@pytest.mark.parametrize("where", ["", ".state_dict_loader"])
def test_loading_is_a_checkpoint(recorded: Callable[[], Recorded], tmp_path: Path, where: str) -> None:
    """That says so, by either name of the function; what was saved is loaded."""
    import torch.distributed.checkpoint as dcp

    saved, loaded = {"model": model().state_dict()}, {"model": model().state_dict()}
    with otel_rl.step(1):
        dcp.save(saved, checkpoint_id=str(tmp_path))
        importlib.import_module(f"{dcp.__name__}{where}").load(loaded, checkpoint_id=str(tmp_path))
    assert [("dcp", None, []), ("dcp", True, [])] == checkpoints(recorded())
    assert all(torch.equal(saved["model"][key], loaded["model"][key]) for key in saved["model"])


def test_the_old_names_of_saving_and_loading(recorded: Callable[[], Recorded], tmp_path: Path) -> None:
    """Torch warns the program of its own line, as without us."""
    import torch.distributed.checkpoint as dcp

    weights = model().state_dict()
    with otel_rl.step(1), pytest.warns(FutureWarning, match="is deprecated") as warned:
        dcp.save_state_dict(weights, dcp.FileSystemWriter(str(tmp_path)), no_dist=True)
        dcp.load_state_dict(weights, dcp.FileSystemReader(str(tmp_path)), no_dist=True)
    assert [("dcp", None, []), ("dcp", True, [])] == checkpoints(recorded())
    assert {__file__} == {warning.filename for warning in warned}


def wait_until_saved() -> None:
    """Wait until the checkpoint has ended: callbacks of a future run behind its result."""
    wait_for(lambda: all(getattr(one, "name", "") != v.CHECKPOINT for one in tuple(tracing.open)))


@alone
@pytest.mark.parametrize("where", ["", ".state_dict_saver"])
def test_an_asynchronous_checkpoint_ends_with_its_future(
    recorded: Callable[[], Recorded], tmp_path: Path, where: str
) -> None:
    """The call is its staging; what comes next is outside it, although it goes on. By either name of the function."""
    from torch.distributed.checkpoint import FileSystemWriter

    dcp = importlib.import_module(f"torch.distributed.checkpoint{where}")

    written = threading.Event()

    class Slow(FileSystemWriter):
        def finish(self, *args: Any, **kwargs: Any) -> Any:
            written.wait(60)
            return super().finish(*args, **kwargs)

    with otel_rl.step(1):
        future = dcp.async_save({"model": model().state_dict()}, storage_writer=Slow(str(tmp_path / "dcp")))
        with otel_rl.stage("next"):
            written.set()
            future.result()
            wait_until_saved()
    (checkpoint, following) = recorded().steps()[1].children
    assert (v.CHECKPOINT, "next") == (checkpoint.name, following.name)
    assert {v.CHECKPOINT_ASYNC: True, v.CHECKPOINT_FORMAT: "dcp"}.items() <= checkpoint.attributes.items()
    assert [v.CHECKPOINT_STAGING] == checkpoint.outline()
    assert following.span.start_ns < checkpoint.span.end_ns < following.span.end_ns


@alone
def test_an_asynchronous_checkpoint_that_fails_says_so(recorded: Callable[[], Recorded], tmp_path: Path) -> None:
    """In its call, and in its future."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.api import CheckpointException

    class Full(FileSystemWriter):
        def finish(self, *args: Any, **kwargs: Any) -> Any:
            raise OSError("no space")

    with otel_rl.step(1):
        future = dcp.async_save({"model": model().state_dict()}, storage_writer=Full(str(tmp_path / "dcp")))
        with pytest.raises(CheckpointException, match="no space"):
            future.result()
        wait_until_saved()
        with pytest.raises(TypeError):
            dcp.async_save(no_such_argument=1)
        with otel_rl.stage("next"):
            pass
    (first, second, following) = recorded().steps()[1].children
    assert [(v.CHECKPOINT, 2), (v.CHECKPOINT, 2), ("next", 0)] == [
        (node.name, node.span.status_code) for node in (first, second, following)
    ]


# --- compiled regions -------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_compiled_regions_do_not_know_us(recorded: Callable[[], Recorded]) -> None:
    """A function with stages in it compiles into one graph, gives the same result, and records nothing."""

    @otel_rl.stage("decorated")
    def decorated(x: Any) -> Any:
        return x + 1

    def function(x: Any) -> Any:
        with otel_rl.stage("inside") as span:
            span.set_attribute("rl.tokens", 1)
            return decorated(torch.sin(x)) * 2

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    batch = torch.ones(4)
    with otel_rl.step(1):
        assert torch.equal(compiled(batch), (torch.sin(batch) + 1) * 2)
        with otel_rl.stage("outside"):
            compiled(batch)
    assert ["outside"] == recorded().steps()[1].outline()


# --- data loading -----------------------------------------------------------------------------------------------------


def test_waiting_for_data_is_idle(recorded: Callable[[], Recorded]) -> None:
    """Each batch that is asked for, and the end; nothing counts as an error."""
    loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2)
    with otel_rl.step(1):
        assert [2, 2, 2] == [len(batch) for batch in loader]
    waits = recorded().steps()[1].children
    assert [(v.IDLE, "data", 0)] * 4 == [
        (node.name, node.attributes[v.IDLE_REASON], node.span.status_code) for node in waits
    ]


def test_fetching_ahead_holds_nobody_up(recorded: Callable[[], Recorded]) -> None:
    """On another thread than that of the steps; without steps nobody knows better."""
    loader = torch.utils.data.DataLoader([1, 2])
    with otel_rl.step(1):
        thread = threading.Thread(target=lambda: list(loader))
        thread.start()
        thread.join()
        with otel_rl.stage("reward"):
            next(iter(loader))
    assert [v.REWARD, f"  {v.IDLE}"] == recorded().steps()[1].outline()


def test_a_pipeline_waits_for_its_neighbours(recorded: Callable[[], Recorded]) -> None:
    """Where torch's schedules wait for messages; for none they wait as well, and that is no wait."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if not hasattr(schedules, "_wait_batch_p2p"):
        pytest.skip("an older torch waits in each schedule by itself")

    class Work:
        waited = 0

        def wait(self) -> None:
            self.waited += 1

    works = [Work(), Work()]
    with otel_rl.step(1):
        schedules._wait_batch_p2p([])
        schedules._wait_batch_p2p(works)
        schedules._wait_batch_p2p(work=works)
    assert [2, 2] == [work.waited for work in works]
    assert [(v.IDLE, "pipeline")] * 2 == [
        (node.name, node.attributes[v.IDLE_REASON]) for node in recorded().steps()[1].children
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_record_for_themselves(tmp_path: Path, method: str) -> None:
    """Two workers whose data set opens a stage for each item: journals of their own, all items, the parent's waits."""
    run(tmp_path, str(HERE / "loader.py"), method)
    recorded = [Recorded(directory.parent, directory.name) for directory in (tmp_path / "runs").glob("[!.]*")]
    nodes = [node for one in recorded for node in one.nodes]
    items = [node for node in nodes if node.name == "item"]
    assert Counter({number: 1 for number in range(8)}) == Counter(node.attributes["rl.number"] for node in items)
    writers = {node.span.resource[v.PROCESS_PID] for node in items}
    assert 2 == len(writers)
    assert 2 == len({node.span.resource["service.instance.id"] for node in items})
    (main,) = {node.span.resource[v.PROCESS_PID] for node in nodes if node.name == v.IDLE}
    assert main not in writers
    assert [[]] * len(recorded) == [one.orphans for one in recorded]
    steps = {point.resource[v.PROCESS_PID] for one in recorded for point in one.run.points(v.STEP_TIME)}
    assert {main} == steps


# --- collectives ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorded]:
    """Two gloo ranks that call every collective."""
    directory = tmp_path_factory.mktemp("collectives")
    run(directory, *launcher(2), str(HERE / "collectives.py"), str(directory / "error-{rank}.json"))
    return directory, Recorded(directory / "runs")


def operations(node: Node) -> list[str]:
    """Name the collectives among the children of a span."""
    return [child.attributes[v.COMM_OPERATION] for child in node.children if child.name == COLLECTIVE]


EVERY = [
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier",
    "all_gather_object", "gather_object", "broadcast_object_list",
]  # fmt: skip
LAUNCHED = ["all_reduce", "all_reduce"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_every_collective_is_a_row_of_its_stage(collectives: tuple[Path, Recorded], rank: int) -> None:
    """Once each, by the name it was called by, with this rank's bytes; of an asynchronous one its wait."""
    (stage,) = collectives[1].steps(rank)[1].children
    assert [*EVERY, *LAUNCHED] == operations(stage)
    assert [True, True] == [
        child.attributes[v.COMM_ASYNC] for child in stage.children if v.COMM_ASYNC in child.attributes
    ]
    sizes = {child.attributes[v.COMM_OPERATION]: child.attributes.get(v.COMM_BYTES, 0) for child in stage.children}
    tensors = EVERY[:6]
    assert {**dict.fromkeys(EVERY, 0), **dict.fromkeys(tensors, 4096)} == sizes
    assert len(EVERY) + len(LAUNCHED) == stage.attributes[v.COMM_COUNT]
    total_s = sum((child.span.end_ns - child.span.start_ns) / 1e9 for child in stage.children)
    assert stage.attributes[v.COMM_TIME] == pytest.approx(total_s, abs=1e-8)


@pytest.mark.slow
def test_the_longest_collectives_are_spans_and_all_are_counted(collectives: tuple[Path, Recorded]) -> None:
    """Of forty, 32 are spans, those for which this rank waited among them; metrics count every one."""
    (stage,) = collectives[1].steps(0)[2].children
    assert (40, 40) == (stage.attributes[v.COMM_COUNT], len(stage.children) + stage.attributes[v.COMM_OMITTED])
    assert len(stage.children) in (32, 33)  # one more where the journal had named it as open already
    waits = sorted(child.span.end_ns - child.span.start_ns for child in stage.children)[-5:]
    assert min(waits) > 2_000_000
    counts = {
        point.attributes.get(v.COMM_ASYNC, False): point.count
        for point in collectives[1].last(v.COMM_DURATION)
        if point.resource[v.RANK] == 0 and point.attributes[v.COMM_OPERATION] == "all_reduce"
    }
    assert {False: 41, True: 2} == counts
    assert 40 * 16 + 3 * 4096 == collectives[1].total(v.COMM_IO, rl_comm_operation="all_reduce")


@pytest.mark.slow
def test_sharded_models_show_their_gathers(collectives: tuple[Path, Recorded]) -> None:
    """FSDP2's own calls of torch.distributed are rows of the stage or of the backward, which hides no others."""
    (stage,) = collectives[1].steps(0)[3].children
    (backward,) = [child for child in stage.children if child.name == v.BACKWARD]
    assert v.COMM_HIDDEN not in backward.attributes
    gathers = [name for name in operations(stage) if name.startswith("all_gather")]
    assert len(gathers) >= 2
    assert {name.rpartition("_")[0] for name in operations(backward)} <= {
        "all_gather",
        "reduce_scatter",
        "all_gather_into",
    }


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_outside_a_stage_lie_below_the_rank(collectives: tuple[Path, Recorded], rank: int) -> None:
    """One that raises is over as well, and the exception is torch's own."""
    directory, recorded = collectives
    assert ["barrier", "broadcast"] == operations(recorded.steps(rank)[6])
    assert json.loads((directory / f"error-{rank}.json").read_text()) in ("ValueError", "RuntimeError")
    assert ([], [], {}) == (recorded.orphans, recorded.run.open_stages(), recorded.errors())
    assert 1 == len({step.span.trace_id for step in (recorded.steps(0)[6], recorded.steps(1)[6])})


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_compiled_collective_is_torchs_alone(collectives: tuple[Path, Recorded], rank: int) -> None:
    """One graph with a collective in it compiles as without us, sums right and has no row."""
    (stage,) = collectives[1].steps(rank)[5].children
    assert (True, []) == (stage.attributes["right"], operations(stage))

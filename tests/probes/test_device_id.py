"""Which device a rank uses: the same id as the sidecar's, on the right thread, without making a context."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import otel_rl
from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.integrations.torch import hooks
from otel_rl.probes.device_id import learn_device
from otel_rl.probes.nvidia import NvidiaProbe
from otel_rl.process.identity import identifying
from otel_rl.process.state import after_fork_in_child, state
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording
from tests.nvml import Driver

torch = pytest.importorskip("torch")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The devices on which this process has a context."""
    found: set[int] = set()
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", found.__contains__, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


@pytest.fixture
def cuda(recording: Recording, used: set[int]) -> Iterator[FakeCuda]:
    """A program that torch has told of devices."""
    device = FakeCuda()
    leave = hooks._know_device("cuda", device)
    yield device
    leave()


def known(recording: Recording) -> list[object]:
    """End the recording: the id in each step's resource, in order."""
    return [span.resource.get(v.HW_ID) for span in recording.stop().spans(None) if span.name == v.LOOP]


@pytest.mark.parametrize(
    ("contexts", "current", "expected"),
    [
        ({3}, 3, "GPU-uuid-of-3"),
        ({0, 3}, 3, "GPU-uuid-of-3"),
        ({3}, 0, "GPU-uuid-of-3"),
        ({1, 2}, 0, None),
        (set(), 0, None),
    ],
)
def test_a_rank_names_the_device_that_it_uses(
    recording: Recording, cuda: FakeCuda, used: set[int], contexts: set[int], current: int, expected: str | None
) -> None:
    """The current one of those with a context; a context alone, by a program's mistake, makes none it."""
    used |= contexts
    cuda.stream.device = f"cuda:{current}"
    with otel_rl.step(1):
        pass
    assert [expected] == known(recording)


def test_a_device_that_is_used_late_is_named(recording: Recording, cuda: FakeCuda, used: set[int]) -> None:
    """The resource is final by then; nothing is initialised before."""
    cuda.initialized = False
    with otel_rl.step(1):
        assert (True, "", {}) == (identifying.frozen, state.identity.device_id, guard.errors)
        cuda.initialized = True
        used.add(0)
    with otel_rl.step(2):
        pass
    assert "GPU-uuid-of-0" == known(recording)[-1]


@pytest.mark.parametrize(("contexts", "expected"), [({3}, "GPU-uuid-of-3"), ({0, 3}, "")])
def test_another_thread_than_that_of_the_steps_does_not_guess(
    cuda: FakeCuda, used: set[int], contexts: set[int], expected: str
) -> None:
    """It begins on device 0, which an engine's process without steps need not use."""
    used |= contexts
    flusher = threading.Thread(target=learn_device)
    flusher.start()
    flusher.join()
    assert expected == state.identity.device_id


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", None), ("MIG-a,MIG-b", "MIG-a"), ("GPU-7", None), ("0", None)],
)
def test_a_part_is_named_where_its_user_names_it(
    recording: Recording, cuda: FakeCuda, used: set[int], monkeypatch: pytest.MonkeyPatch, visible: str, expected: str
) -> None:
    """Its UUID is not what torch tells of it, so no other id is taken for it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    used.add(0)
    cuda.name += " MIG 1g.10gb"
    with otel_rl.step(1):
        pass
    assert [expected] == known(recording)


def test_devices_of_others_have_no_id_of_nvidia(
    recording: Recording, used: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROCm is torch.cuda too, and says of itself that it is."""
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    used.add(0)
    leave = hooks._know_device("cuda", FakeCuda())
    with otel_rl.step(1):
        pass
    leave()
    assert [None] == known(recording)


def test_it_is_the_id_that_the_sidecar_gives(
    recording: Recording, cuda: FakeCuda, used: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch tells the UUID without NVML's prefix."""
    Driver().install(monkeypatch)
    (sampled,) = {dict(sample.labels)[v.HW_ID] for sample in NvidiaProbe().read()}
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: SimpleNamespace(name="H100", uuid=index + 1))
    used.add(0)
    with otel_rl.step(1):
        pass
    assert [sampled] == known(recording)


def test_a_forked_child_uses_no_device(cuda: FakeCuda, used: set[int]) -> None:
    """CUDA does not work in it."""
    used.add(0)
    with otel_rl.step(1):
        before = state.identity.device_id
        after_fork_in_child()
        assert ("GPU-uuid-of-0", "") == (before, state.identity.device_id)

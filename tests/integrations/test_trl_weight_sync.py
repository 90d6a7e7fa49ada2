"""The bytes of the weights that TRL hands to vLLM, by its own functions: vLLM's engines and network are stubs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from tests.fixtures import Recording

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trl.generation import vllm_client  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402
from trl.generation.vllm_generation import VLLMGeneration  # noqa: E402

BYTES = 4 * (3 * 4 + 4) + 2 * 5
"""Of a layer of float32 and a vector of bfloat16."""


def engine(mode: str, **more: Any) -> Any:
    """Make TRL's side of vLLM, without vLLM."""
    model = torch.nn.Linear(3, 4)
    model.scale = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    made = object.__new__(VLLMGeneration)
    made.mode, made.model, made.enable_sleep_mode, made._weight_metadata = mode, model, False, None
    made._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda params: nullcontext())
    made.accelerator = SimpleNamespace(is_main_process=True)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def bytes_of(stubbed: Recording) -> Any:
    """End the recording; return what its weight sync says."""
    return stubbed.spans()["rl.sync"].attributes.get(v.SYNC_BYTES)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the client send into a list."""
    names: list[str] = []
    monkeypatch.setattr(vllm_client, "_HAS_STATEFUL_TRAINER_ENGINE", True)
    monkeypatch.setattr(
        vllm_client,
        "packed_nccl_broadcast_producer",
        lambda iterator, **_: names.extend(name for name, _ in iterator),
        raising=False,
    )
    return names


def client() -> Any:
    """Make a client whose server takes everything."""
    made = object.__new__(VLLMClient)
    made.base_url, made.communicator, made._updating_weights = "", None, True
    made._post = lambda *_, **__: None
    made.reset_prefix_cache = lambda: None
    return made


def test_a_server_gets_each_weight_once(stubbed: Recording, sent: list[str]) -> None:
    """The walk that reads the shapes before the first sync hands nothing on."""
    stubbed.start("trl")
    with otel_rl.step(1):
        engine("server", vllm_client=client()).sync_weights()
    assert BYTES == bytes_of(stubbed)
    assert ["weight", "bias", "scale"] == sorted(sent, key=["weight", "bias", "scale"].index)


def test_weights_that_are_sent_one_by_one_add_up(stubbed: Recording, sent: list[str]) -> None:
    """As OnlineDPO does."""
    stubbed.start("trl")
    made = client()
    with otel_rl.step(1), otel_rl.stage("sync"):
        for name, parameter in engine("server").model.named_parameters():
            made.update_named_param(name, parameter.data)
    assert BYTES == bytes_of(stubbed)


def test_an_engine_in_the_process_loads_each_weight(stubbed: Recording) -> None:
    """Nothing is sent."""
    loaded: list[str] = []
    model = SimpleNamespace(load_weights=lambda pairs: loaded.extend(name for name, _ in pairs))
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    core = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
    stubbed.start("trl")
    with otel_rl.step(1):
        engine("colocate", llm=SimpleNamespace(llm_engine=core, reset_prefix_cache=lambda: None)).sync_weights()
    assert BYTES == bytes_of(stubbed)
    assert 3 == len(loaded)


@pytest.mark.parametrize(("group", "expected"), [(object(), BYTES), (None, None)])
def test_async_grpo_sends_what_it_announced(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, group: object, expected: int | None
) -> None:
    """Without a group it sends nothing."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    stubbed.start("trl")
    transfer = object.__new__(WeightTransferClient)
    transfer.model_update_group, transfer.weight_sync_timeout = group, 1
    transfer._weight_update_info = {
        "names": ["weight", "bias", "scale"],
        "dtype_names": ["float32", "float32", "bfloat16"],
        "shapes": [[4, 3], [4], [5]],
    }
    with otel_rl.step(1), otel_rl.stage("sync"):
        try:
            transfer.send_weights(iter(()))
        except AttributeError:  # there is no server
            assert group is not None
    assert expected == bytes_of(stubbed)

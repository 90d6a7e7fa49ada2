"""TRL's rollouts as requests: all of them, with policy, sample and group; and those that a vLLM server answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("requests")

import requests
import transformers
import trl
from trl.generation.vllm_client import VLLMClient

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.demo import task
from otel_rl.integrations.trl import memory
from otel_rl.integrations.trl.rollouts import Sampling
from otel_rl.process.identity import training_of
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import UNKNOWN, Request
from otel_rl.trace.stage import current_stage
from tests.noted import Taken, held, take

__all__ = ["held"]


def test_the_algorithm_is_that_of_trl() -> None:
    """A trainer of one's own is derived from one of its."""

    class Mine(trl.GRPOTrainer):  # type: ignore[misc]  # TRL tells no types
        """As users write them."""

    names = [training_of(kind.__new__(kind)).get("algorithm") for kind in (Mine, trl.RLOOTrainer, SimpleNamespace)]
    assert ["GRPO", "RLOO", None] == names


# --- a real training --------------------------------------------------------------------------------------------------


def train(work: Path, kind: str, **changes: Any) -> tuple[list[dict[str, Any]], Taken]:
    """Train two steps and evaluate once; give what the reward function saw, and the requests."""
    transformers.utils.logging.disable_progress_bar()
    seen: list[dict[str, Any]] = []

    def reward(prompts: list[str], completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[float]:
        lengths = [len(ids) for ids in completion_ids]
        seen.append({"step": trainer_state.global_step, "prompts": prompts, "lengths": lengths})
        return [float(length) for length in lengths]

    config = {
        "output_dir": str(work), "max_steps": 2, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8,
        "num_generations": 4, "max_completion_length": 12, "eval_strategy": "steps", "eval_steps": 2,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False,
        "dataloader_pin_memory": False, "seed": 0, **changes,
    }  # fmt: skip
    trainer = getattr(trl, f"{kind}Trainer")(
        model=task.model(work / "tiny", 0),
        reward_funcs=reward,
        args=getattr(trl, f"{kind}Config")(**config),
        train_dataset=task.prompts(32),
        eval_dataset=task.prompts(2),
        processing_class=task.tokenizer(),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return seen, take()


CONTINUOUS = {
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("GRPO", {}),
        ("RLOO", {}),
        ("GRPO", CONTINUOUS),
        ("RLOO", CONTINUOUS),
    ],
    ids=["grpo", "rloo", "grpo, continuous batching", "rloo, continuous batching"],
)
def test_every_sample_of_a_training_is_a_request(
    held: None, tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    """Its tokens are what the reward function saw, its stage the rollout's, its policy that of the step."""
    otel_rl.instrument(["torch", "accelerate", "transformers", "transformers_generate", "trl"])
    seen, taken = train(tmp_path, kind, **changes)
    rollouts: dict[Any, list[Request]] = {}
    for row, parent in zip(taken.rows, taken.parents, strict=True):
        rollouts.setdefault(parent, []).append(row)
    assert [v.SAMPLE] * len(seen) == [stage.name for stage in rollouts]  # though all are made in a stage inside it
    assert ["train", "train", "eval"] == [stage.attributes[v.MODE] for stage in rollouts]
    for (stage, found), rollout in zip(rollouts.items(), seen, strict=True):
        rows = sorted(found, key=lambda row: int(row.sample.rpartition(".")[2]))
        assert [len(text) for text in rollout["prompts"]] == [row.input_tokens for row in rows]
        assert rollout["lengths"] == [row.output_tokens for row in rows]
        assert {(rollout["step"], rollout["step"])} == {(row.policy_start, row.policy_end) for row in rows}
        assert list(range(8)) == [int(row.sample.rpartition(".")[2]) for row in rows]
        assert [0] * 4 + [1] * 4 == [int(row.group.rpartition(".")[2]) for row in rows]
        assert {12} == {row.limit for row in rows}
        assert all(row.submitted <= row.scheduled < row.first_token <= row.last_token <= row.ended for row in rows)
        padding = max(rollout["lengths"]) * 8 - sum(rollout["lengths"])
        assert (None if changes else padding) == stage.attributes.get(v.TOKENS_PADDING)
    assert 3 == len({row.group.partition(".")[0] for row in taken.rows})
    assert (None, 3) == (generation.sampling, memory.rollouts.begun)


# --- a server ---------------------------------------------------------------------------------------------------------


class Server(BaseHTTPRequestHandler):
    """Answers as vLLM's server does, with as many tokens as the prompt and the sequence's number say."""

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.get("max_tokens") == 13:
            self.send_error(400)
            return
        prompts = asked.get("prompt") or [asked.get("token_ids") or [1, 2, 3]]
        each = asked.get("n") or asked.get("sampling_params", {}).get("n", 1)
        choices = [
            {
                "index": index,
                "prompt_token_ids": prompts[index // each],
                "token_ids": [7] * (index + 1),
                "finish_reason": "length" if index == 0 else "stop",
                "logprobs": None,
            }
            for index in range(len(prompts) * each)
        ]
        body = json.dumps({"id": "cmpl-1", "prompt_token_ids": prompts[0], "choices": choices}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def client(held: None) -> Iterator[Any]:
    """TRL's client of a server; made without vLLM, which it asks for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = object.__new__(VLLMClient)
    client.session, client.model = requests.Session(), "org/tiny"
    client.base_url = f"http://127.0.0.1:{server.server_address[1]}"
    otel_rl.instrument(["trl"])
    yield client
    client.session.close()
    server.shutdown()
    server.server_close()


def sampling(*prompts: str, size: int = 2) -> Sampling:
    """Begin a rollout, as TRL does."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=0))
    generation.sampling = Sampling(trainer, prompts, mode="train", policy=6, size=size)
    return generation.sampling


def test_a_server_tells_tokens_and_durations(client: Any) -> None:
    """One row a sequence; the server tells no times of tokens, and none is made up."""
    sampling("a", "a", "b", "b")
    with otel_rl.stage("sample") as stage:
        output = client.generate([[1, 2, 3], [4, 5]], n=2, max_tokens=20)
    taken = take()
    assert [[7], [7] * 2, [7] * 3, [7] * 4] == output["completion_ids"]
    assert [
        (3, 1, "length", "cmpl-1.0", "train-1.0", "train-1.0"),
        (3, 2, "stop", "cmpl-1.1", "train-1.1", "train-1.0"),
        (2, 3, "stop", "cmpl-1.2", "train-1.2", "train-1.1"),
        (2, 4, "stop", "cmpl-1.3", "train-1.3", "train-1.1"),
    ] == [(r.input_tokens, r.output_tokens, r.finish, r.id, r.sample, r.group) for r in taken.rows]
    assert {("trl-client", "tiny", "text_completion", 6, 6, 20, 0, 0, 0, "")} == {
        (*r[:1], r.model, r.operation, r.policy_start, r.policy_end, r.limit, *r[3:6], r.error) for r in taken.rows
    }
    assert [stage] * 4 == taken.parents
    assert all(row.submitted < row.ended for row in taken.rows)


def test_a_server_is_the_engine_of_a_rollout(client: Any) -> None:
    """Its call is the stage, with the gathers around it; the requests belong to the rollout."""
    from trl.generation.vllm_generation import VLLMGeneration

    engine = object.__new__(VLLMGeneration)
    engine.accelerator, engine.mode = SimpleNamespace(is_main_process=True, process_index=0), "server"
    engine.vllm_client, engine.max_completion_length, engine.logprobs = client, 20, 0
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        setattr(engine, name, 1)
    engine.structured_outputs_regex, engine.generation_kwargs = None, {}
    engine.generate([[1, 2]], None, 1)
    sampling("a", "a")
    opened: list[tuple[str, Any]] = []
    post = client._post

    def watched(*args: Any, **kwargs: Any) -> Any:
        stage = current_stage()
        opened.append((stage.name, dict(stage.attributes)) if stage is not None else ("", {}))
        return post(*args, **kwargs)

    client._post = watched
    with otel_rl.stage("sample") as stage:
        assert [[7], [7] * 2] == engine.generate([[1, 2, 3]] * 2, None, 2)[1]
    taken = take()
    assert [(v.SAMPLE_GENERATE, {v.MODE: "train"})] == opened
    assert [stage] * 2 == taken.parents[1:]
    assert v.SAMPLE_GENERATE != getattr(taken.parents[0], "name", "")


def test_conversations_are_asked_from_a_pool(client: Any) -> None:
    """Requests of its threads belong to the open rollout."""
    sampling("a", "b")
    with otel_rl.stage("sample") as stage:
        client.chat([[{"role": "user", "content": text}] for text in "ab"], n=2, max_tokens=20)
    taken = take()
    assert [("chat", 3, 1), ("chat", 3, 2)] * 2 == [(r.operation, r.input_tokens, r.output_tokens) for r in taken.rows]
    assert [stage] * 4 == taken.parents
    assert {""} == {row.group for row in taken.rows}


def test_images_are_asked_one_by_one(client: Any) -> None:
    """Each HTTP request has the sequences of one prompt."""
    client.generate([[1, 2, 3], [4, 5]], features=[{}, {}], n=2, max_tokens=20)
    rows = sorted(take().rows, key=lambda row: (row.input_tokens, row.output_tokens))
    assert [(2, 1), (2, 2), (3, 1), (3, 2)] == [(row.input_tokens, row.output_tokens) for row in rows]
    assert {("generate_content", UNKNOWN, 20)} == {(row.operation, row.policy_start, row.limit) for row in rows}


def test_a_server_that_refuses(client: Any) -> None:
    """TRL gets its own exception, and every sequence is a failed request."""
    with pytest.raises(Exception, match="Request failed: 400"):
        client.generate([[1, 2, 3], [4, 5]], n=2, max_tokens=13)
    rows = take().rows
    assert [("error", "Exception", UNKNOWN)] * 4 == [(row.finish, row.error, row.output_tokens) for row in rows]
    assert 4 == len({row.id for row in rows})


def test_other_calls_are_no_requests(client: Any) -> None:
    """Weights are sent by the same function."""
    client._post(f"{client.base_url}/pause", json={})
    assert [] == take().rows


# --- places -----------------------------------------------------------------------------------------------------------


def test_a_later_turn_has_no_place(held: None) -> None:
    """Of fewer rows than the rollout, nobody knows which they are; the second rank's samples follow the first's."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=1))
    second = Sampling(trainer, "aabb", mode="eval", policy=0, size=2)
    assert (("eval-1.5", "eval-1.2"), ("", "")) == (second.place(1, 4), second.place(1, 3))
    trainer.rollout_func = print
    of_user = Sampling(trainer, "aabb", mode="eval", policy=0, size=2)
    assert [("", "")] * 2 == [of_user.place(1, rows) for rows in (4, 0)]
    memory.rollouts.begun = 0

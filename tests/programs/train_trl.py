"""Trains a tiny model with TRL as the JSON on the command line says, and writes what really happened into a file.

Keys: ``truth`` (where to write it, ``{rank}`` becomes the rank), ``work`` (a directory), ``trainer`` (grpo or rloo),
``derived`` (true: of a class derived from TRL's, which overrides methods), ``config`` (arguments of TRL's config),
``otel`` (false: without otel_rl), ``rewards`` (names of the functions below), ``prompts`` (size of the data set),
``look`` (true: the ledger checks every rollout, however fast they follow) and ``play`` (what happens besides
training: a function below).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import math
import os
import random
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
RANK = int(os.environ.get("RANK", "0"))
TRUTH: dict[str, Any] = {"rank": RANK, "rollouts": [], "logs": [], "steps": [], "errors": []}


# --- reward functions -------------------------------------------------------------------------------------------------


def digits(completions: list[str], **_: Any) -> list[float]:
    """Give the share of digits."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


async def short(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Give more to short answers, after a wait."""
    await asyncio.sleep(0.01)
    return [1.0 / (1 + len(ids)) for ids in completion_ids]


async def ends(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Give 1 to answers that end by themselves, after a wait."""
    await asyncio.sleep(0.01)
    return [float(ids[-1] == 1) for ids in completion_ids]


def unsure(completions: list[str], **_: Any) -> list[float | None]:
    """Give no reward at all in every third rollout."""
    unsure.calls = getattr(unsure, "calls", 0) + 1  # type: ignore[attr-defined]
    return [None if unsure.calls % 3 == 0 else 0.5 for _ in completions]  # type: ignore[attr-defined]


def broken(completions: list[str], **_: Any) -> list[float | None]:
    """Give NaN, no reward at all, infinity, then numbers."""
    return [float("nan"), None, math.inf, *[0.5] * (len(completions) - 3)]


async def broken_async(completions: list[str], **_: Any) -> list[float | None]:
    """Do the same in a task."""
    await asyncio.sleep(0)
    return broken(completions)


def failing(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """Fail in the third step."""
    if trainer_state.global_step == 2:
        raise LookupError("the judge is away")
    return [0.0] * len(completions)


async def failing_async(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """Fail in the third step, in a task."""
    return failing(completions, trainer_state)


def interrupted(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """Be interrupted in the third step."""
    if trainer_state.global_step == 2:
        raise KeyboardInterrupt
    return [0.0] * len(completions)


def hanging(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """Hang on rank 1 in the third step until the file ``go`` appears."""
    if trainer_state.global_step == 2 and RANK == 1:
        while not Path(os.environ["GO"]).exists():
            time.sleep(0.05)
    return digits(completions)


def exits_once(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """End rank 1 in the third step of the first attempt, once the journal says that rank 0 is in it."""
    if trainer_state.global_step == 2 and RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        while not is_journaled(rank=0, step=3):
            time.sleep(0.1)
        sys.exit(3)
    return digits(completions)


def is_journaled(rank: int, step: int) -> bool:
    """Whether the run's journal says that a rank is in a step."""
    from otel_rl import vocabulary as v
    from otel_rl.journal.read import open_run

    run = open_run(Path(os.environ["OTEL_RL_DIR"]) / os.environ["OTEL_RL_RUN_ID"])
    inside = {(stage.name, stage.resource[v.RANK], stage.attributes.get(v.ITERATION)) for stage in run.open_stages()}
    return (v.LOOP, rank, step) in inside


def keep(function: Any, trainer_of: Any) -> Any:
    """Note what a reward function is shown."""

    def note(arguments: dict[str, Any]) -> None:
        TRUTH["rollouts"].append(
            {
                "mode": "train" if trainer_of().model.training else "eval",
                "step": arguments["trainer_state"].global_step + 1,
                "prompts": list(arguments["prompts"]),
                "completion_ids": [list(ids) for ids in arguments["completion_ids"]],
            }
        )

    @functools.wraps(function)
    def kept(**arguments: Any) -> Any:
        note(arguments)
        return function(**arguments)

    @functools.wraps(function)
    async def kept_async(**arguments: Any) -> Any:
        note(arguments)
        return await function(**arguments)

    return kept_async if asyncio.iscoroutinefunction(function) else kept


# --- training ---------------------------------------------------------------------------------------------------------

SLEPT_S = 0.02


def derived(kind: Any) -> Any:
    """Derive trainers: a method is added to in two classes, one replaced, one only in the class between."""
    import torch

    class Between(kind):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLEPT_S)
            return super().compute_loss(*args, **kwargs)

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            result = super()._generate(*args, **kwargs)
            time.sleep(SLEPT_S)
            return result

    class Own(Between):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLEPT_S)
            return super().compute_loss(*args, **kwargs)

        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
            return torch.tensor([[float(len(ids))] for ids in completion_ids_list])

    return Own


def make(job: dict[str, Any], **changes: Any) -> Any:
    """Make the trainer of a job."""
    import torch
    import transformers
    import trl

    from otel_rl.demo import task

    if job.get("look"):
        from otel_rl.integrations.trl import models

        models.LEDGER_EVERY_NS = 0
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    work = Path(job["work"])
    if job.get("trainer") == "online_dpo":
        return make_pairs(job, work)
    kind = job.get("trainer", "grpo").upper()
    config = {
        "output_dir": str(work / "checkpoints"), "max_steps": 4, "learning_rate": 1e-3,
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_generations": 4,
        "max_completion_length": 8, "beta": 0.04, "logging_steps": 1, "eval_strategy": "no", "save_strategy": "no",
        "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False, "dataloader_pin_memory": False,
        **job.get("config", {}), **changes,
    }  # fmt: skip
    functions = [globals()[name] for name in job.get("rewards", ["digits"])]
    holder: list[Any] = []
    functions[0] = keep(functions[0], lambda: holder[0])
    lora = job.get("lora")
    if lora is not None:
        import peft

        lora = peft.LoraConfig(**lora)
    trainer_class = getattr(trl, f"{kind}Trainer")
    trainer = (derived(trainer_class) if job.get("derived") else trainer_class)(
        model=task.model(work / f"rank-{RANK}" / "tiny-qwen2", 0),
        reward_funcs=functions,
        args=getattr(trl, f"{kind}Config")(**config),
        train_dataset=task.prompts(job.get("prompts", 64)),
        eval_dataset=task.prompts(4),
        processing_class=task.tokenizer(),
        callbacks=[callback(), listener(job.get("listens", []))],
        peft_config=lora,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    holder.append(trainer)
    return trainer


def make_pairs(job: dict[str, Any], work: Path) -> Any:
    """Make a trainer of OnlineDPO."""
    import transformers
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    from otel_rl.demo import task

    config = OnlineDPOConfig(
        output_dir=str(work / "checkpoints"), max_steps=3, learning_rate=1e-3, per_device_train_batch_size=4,
        max_new_tokens=8, max_length=32, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        use_cpu=True, bf16=False, dataloader_pin_memory=False, **job.get("config", {}),
    )  # fmt: skip
    trainer = OnlineDPOTrainer(
        model=task.model(work / f"rank-{RANK}" / "tiny-qwen2", 0),
        ref_model=task.model(work / f"rank-{RANK}" / "reference", 0),
        reward_funcs=[globals()[name] for name in job.get("rewards", ["digits"])],
        args=config,
        train_dataset=task.prompts(job.get("prompts", 64)),
        processing_class=task.tokenizer(),
        callbacks=[callback()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def callback() -> Any:
    """Make a callback that notes steps and logs."""
    from transformers import TrainerCallback

    class Notes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            TRUTH["steps"].append(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            TRUTH["logs"].append({"step": state.global_step, **logs})

    return Notes()


def listener(events: list[str]) -> Any:
    """Make a callback that listens to some events and does nothing."""
    from transformers import TrainerCallback

    return type("Listener", (TrainerCallback,), {event: lambda *_, **__: None for event in events})()


def train(job: dict[str, Any]) -> None:
    """Train once."""
    TRUTH["trainer"] = make(job)
    TRUTH["trainer"].train(resume_from_checkpoint=job.get("resume"))


def train_twice(job: dict[str, Any]) -> None:
    """Train twice in one process."""
    train(job)
    make(job, max_steps=2).train()


def train_resumed(job: dict[str, Any]) -> None:
    """Train the first steps, then go on from the checkpoint in the same process."""
    train(job)
    make(job, max_steps=6).train(resume_from_checkpoint=True)


def train_both(job: dict[str, Any]) -> None:
    """Make trainers of two algorithms, then train with each."""
    trainers = [make({**job, "trainer": kind}) for kind in ("rloo", "grpo")]
    for trainer in trainers:
        trainer.train()


def retried(job: dict[str, Any]) -> None:
    """Run out of memory in the second step of a trainer that tries again with smaller batches."""
    import torch

    trainer = supervisor(job)
    forward, calls = trainer.model.forward, iter(range(1, 100))

    @functools.wraps(forward)
    def exhausting(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return forward(*args, **kwargs)

    trainer.model.forward = exhausting
    trainer.train()


def train_frozen(job: dict[str, Any]) -> None:
    """Begin to train long after the start, as with a large model."""
    from otel_rl.flusher import thread as flusher

    flusher.FREEZE_S = 0.2  # type: ignore[misc]
    time.sleep(1.5)
    train(job)


def exhausted(job: dict[str, Any]) -> None:
    """Run out of device memory in the second step, in the second call inside the stage ``where``; then train again."""
    import torch
    from opentelemetry.trace import get_current_span

    trainer = make(job)
    calls = 0

    def allocate() -> bool:
        nonlocal calls
        calls += trainer.state.global_step == 1 and get_current_span().name == job["where"]  # type: ignore[attr-defined]
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return calls == 1

    def watched(logits: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if allocate():
                TRUTH.setdefault("tokens", int(kwargs["attention_mask"].sum()))
            return logits(*args, **kwargs)

        return forward

    for model in (trainer.model, trainer.ref_model):
        model.forward = watched(model.forward)
    next(trainer.model.parameters()).register_hook(lambda gradient: (allocate(), gradient)[1])
    try:
        trainer.train()
    except torch.OutOfMemoryError as error:
        TRUTH["errors"].append(repr(error))
    TRUTH["logs"].clear()
    make(job, max_steps=1).train()


def rewritten(kind: Any, name: str, swapped: tuple[str, str] = ("", "")) -> None:
    """Write a method anew from its source, as libraries do that make training faster; or with two arguments swapped."""
    import inspect
    import textwrap

    source = textwrap.dedent(inspect.getsource(getattr(kind, name)))
    if all(swapped):
        source = source.replace(swapped[0], "_swapped").replace(swapped[1], swapped[0]).replace("_swapped", swapped[1])
    space = dict(vars(sys.modules[kind.__module__]))
    exec("from __future__ import annotations\n" + source, space)
    setattr(kind, name, space[name])


def train_replaced(job: dict[str, Any]) -> None:
    """Train with methods that other libraries replace: before the trainer is made, behind that, and of it alone."""
    import transformers
    import trl

    kind = getattr(trl, f"{job.get('trainer', 'grpo').upper()}Trainer")
    rewritten(kind, "_generate")
    rewritten(transformers.Trainer, "_inner_training_loop")
    TRUTH["trainer"] = trainer = make(job)
    rewritten(transformers.Trainer, "get_batch_samples")
    former = kind._calculate_rewards
    kind._calculate_rewards = lambda self, *args, **kwargs: former(self, *args, **{**kwargs})
    own = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: own(*args, **{**kwargs})
    trainer.train()


def train_unhooked(job: dict[str, Any]) -> None:
    """Train with methods in the place of hooked ones that take other arguments."""
    import transformers
    import trl

    if job["unhooked"] == "get_batch_samples":
        rewritten(transformers.Trainer, "get_batch_samples", ("epoch_iterator", "num_batches"))
    else:
        trl.GRPOTrainer.compute_loss = lambda self, inputs, model, *_, **__: self._compute_loss(inputs, model)
    train(job)


def corrupted(job: dict[str, Any]) -> None:
    """Move the tokens of the second micro-batch by one, behind the rollout's back."""
    trainer = make(job)

    def spoil(_: Any, args: Any, state: Any, control: Any, **__: Any) -> None:
        if state.global_step == 1:
            inputs = trainer._buffered_inputs[1]
            inputs["completion_ids"] = inputs["completion_ids"].roll(1, 1)

    trainer.add_callback(type("Spoil", (type(callback()),), {"on_step_begin": spoil})())
    trainer.train()


def with_noisy_threads(job: dict[str, Any]) -> None:
    """Train while another thread records stages as fast as it can."""
    import otel_rl

    ended = threading.Event()

    def record() -> None:
        while not ended.is_set():
            with otel_rl.stage("prefetch"):
                time.sleep(0.0002)

    thread = threading.Thread(target=record)
    trainer = make(job)
    trainer.add_callback(type("Start", (type(callback()),), {"on_train_begin": lambda *_, **__: thread.start()})())
    trainer.train()
    ended.set()
    thread.join()


def own_spans(job: dict[str, Any]) -> None:
    """Train with a reward function that opens stages, spans of OpenTelemetry and threads of its own."""
    from concurrent.futures import ThreadPoolExecutor

    from opentelemetry import trace

    import otel_rl

    tracer = trace.get_tracer("mine")

    def digits_in_threads(completions: list[str], **_: Any) -> list[float]:
        with otel_rl.stage("judge", batch_size=len(completions)), tracer.start_as_current_span("http"):
            otel_rl.record("judge.score", math.nan)
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(lambda text: float(len(text)), completions))

    globals()["digits_in_threads"] = digits_in_threads
    train({**job, "rewards": ["digits_in_threads"]})


def slow_texts(job: dict[str, Any]) -> None:
    """Train with a tokenizer that takes its time, and a third step in which it fails if the job says so."""
    trainer = TRUTH["trainer"] = make(job)
    kind = type(trainer.processing_class)

    class Slow(kind):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLEPT_S)
            return super().__call__(*args, **kwargs)

        def batch_decode(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLEPT_S)
            if job.get("fails") and trainer.state.global_step == 2:
                raise LookupError("no such token")
            return super().batch_decode(*args, **kwargs)

    trainer.processing_class.__class__ = Slow
    trainer.train()


def without_room(job: dict[str, Any]) -> None:
    """Train where a file may be larger than the weights, and not as large as the optimizer's state."""
    trainer = TRUTH["trainer"] = make(job)
    weights = Path(job["work"]) / f"rank-{RANK}" / "tiny-qwen2" / "model.safetensors"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (weights.stat().st_size * 3 // 2, before[1]))
    trainer.train()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def supervised(job: dict[str, Any]) -> None:
    """Train on given texts with the trainer of transformers."""
    supervisor(job).train()


def with_inner(job: dict[str, Any]) -> None:
    """Train another model, as a judge that learns, before the first step, in the second one and behind the third."""
    from transformers import TrainerCallback

    def judged(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        if trainer_state.global_step == 1:
            supervisor({**job, "config": {"max_steps": 3}}).train()
        return digits(completions)

    def train_judge(_: Any, args: Any, state: Any, control: Any, **__: Any) -> None:
        if state.global_step in (0, 3):
            supervisor({**job, "config": {"max_steps": 1}}).train()

    globals()["judged"] = judged
    TRUTH["trainer"] = make({**job, "rewards": ["judged"]})
    events = {"on_train_begin": train_judge, "on_step_end": train_judge}
    TRUTH["trainer"].add_callback(type("Judge", (TrainerCallback,), events)())
    TRUTH["trainer"].train()


def supervisor(job: dict[str, Any]) -> Any:
    """Make the trainer of transformers."""
    import transformers

    from otel_rl.demo import task

    work = Path(job["work"])
    rows = [dict(input_ids=[3 + i % 8] * 6, attention_mask=[1] * 6, labels=[3 + i % 8] * 6) for i in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(work), per_device_train_batch_size=4, logging_steps=1, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False, **job["config"],
    )  # fmt: skip
    return transformers.Trainer(task.model(work / "tiny-qwen2", 0), arguments, train_dataset=rows)


# --- program ----------------------------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_of_random() -> dict[str, str]:
    """Hash the random states."""
    import pickle

    import numpy as np
    import torch

    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state().tolist()}
    return {name: digest(pickle.dumps(state)) for name, state in states.items()}


def serve() -> None:
    """Import everything once, then do each job of standard input in a forked child; answer with its exit code."""
    import torch
    import trl

    from otel_rl.demo import task

    torch.set_num_threads(1)
    assert task and trl.GRPOTrainer and trl.RLOOTrainer  # asking for them imports them
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            os.environ.update(job.pop("env"))
            output = os.open(job.pop("output"), os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            main(job)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def main(job: dict[str, Any]) -> None:
    """Do one job."""
    if job.get("otel", True):
        import otel_rl

        otel_rl.instrument()
    try:
        globals()[job.get("play", "train")](job)
    except BaseException as error:
        TRUTH["errors"].append(repr(error))
        TRUTH["traceback"] = traceback.format_exc()
        raise
    finally:
        trainer = TRUTH.pop("trainer", None)
        if trainer is not None:
            weights = b"".join(value.detach().numpy().tobytes() for value in trainer.model.state_dict().values())
            TRUTH["parameters"] = digest(weights)
        TRUTH["random"] = digest_of_random()
        Path(job["truth"].format(rank=RANK)).write_text(json.dumps(TRUTH, default=str))
    import torch

    if torch.distributed.is_initialized():
        from tests.programs.group import leave

        del trainer
        leave()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve()
    else:
        main(json.loads(sys.argv[1]))

"""Programs whose processes work for the steps of one: a pool, Ray actors, a server. The first argument names one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import sys
import tempfile
import urllib.request
from typing import Any

import otel_rl
from otel_rl import Carrier

STEPS = 3


# --- a pool of multiprocessing ----------------------------------------------------------------------------------------


def start_worker() -> None:
    """Record in a worker of the pool."""
    otel_rl.instrument(())


def judge(carrier: Carrier, step: int, sample: int) -> int:
    """Score one sample of a step."""
    with carrier.use(), otel_rl.stage("reward", step=step, sample=sample):
        return sample


def pool(method: str) -> None:
    """Score the samples of each step in a pool that is older than the steps."""
    otel_rl.instrument(())
    with multiprocessing.get_context(method).Pool(2, start_worker) as workers:
        for step in range(STEPS):
            with otel_rl.step(step), otel_rl.stage("score", step=step):
                carrier = Carrier.current()
                assert workers.starmap(judge, [(carrier, step, sample) for sample in range(4)]) == [0, 1, 2, 3]
        workers.close()
        workers.join()


# --- actors of Ray ----------------------------------------------------------------------------------------------------


class Trainer:
    """Works off one call after the other."""

    def __init__(self) -> None:
        otel_rl.instrument(())
        with otel_rl.stage("load"):
            pass

    def update(self, carrier: Carrier, step: int) -> int:
        """Train on the batch of a step."""
        with carrier.use(), otel_rl.stage("train", step=step), otel_rl.stage("forward", step=step):
            pass
        assert otel_rl.flush(60)  # Ray ends actors without notice
        return os.getpid()


class Generator:
    """Works for several steps at once."""

    def __init__(self) -> None:
        otel_rl.instrument(())
        self.begun = 0
        self.all_begun = asyncio.Event()

    async def generate(self, carrier: Carrier, step: int) -> int:
        """Make the samples of a step, slowly."""
        with carrier.use(), otel_rl.stage("sample", step=step):
            self.begun += 1  # all of them overlap, though Ray may hand the last call over late
            if self.begun == STEPS:
                self.all_begun.set()
            await asyncio.wait_for(self.all_begun.wait(), 120)
            for turn in range(5):
                with otel_rl.stage("turn", step=step, turn=turn):
                    await asyncio.sleep(0.02)
        return step

    async def leave(self) -> int:
        """Journal everything: Ray ends actors without notice."""
        assert otel_rl.flush(60)
        return os.getpid()


def actors(_: str) -> None:
    """Generate for three steps at once while a trainer works for each."""
    import ray

    otel_rl.instrument(())
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir=folder)
    try:
        generator: Any = ray.remote(Generator).options(max_concurrency=8).remote()
        trainer: Any = ray.remote(Trainer).remote()
        asyncio.run(train(generator, trainer))
        print(len({os.getpid(), ray.get(generator.leave.remote()), ray.get(trainer.update.remote(*last()))}))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def last() -> tuple[Carrier | None, int]:
    """Make the carrier of one more step."""
    with otel_rl.step(STEPS):
        return Carrier.current(), STEPS


async def train(generator: Any, trainer: Any) -> None:
    """Hold three steps that overlap, each in a task of its own."""

    async def one(step: int) -> None:
        with otel_rl.step(step), otel_rl.stage("control", step=step):
            carrier = Carrier.current()
            await generator.generate.remote(carrier, step)
            await trainer.update.remote(carrier, step)

    await asyncio.gather(*map(one, range(STEPS)))


# --- a server of HTTP -------------------------------------------------------------------------------------------------


def serve(port: Any) -> None:
    """Answer requests, each below the span that its headers name."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    otel_rl.instrument(())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            carrier = Carrier.from_headers(dict(self.headers))
            assert carrier is not None
            with carrier.use(), otel_rl.stage("serve", step=int(self.path[1:])):
                pass
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Be silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_port)
    for _ in range(STEPS):
        server.handle_request()


def client(_: str) -> None:
    """Ask a server, which is a process of its own, in each step."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    os.environ["OTEL_RL_PROCESS_KIND"] = "engine"
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    server.start()
    del os.environ["OTEL_RL_PROCESS_KIND"]
    otel_rl.instrument(())
    port = ours.recv()
    for step in range(STEPS):
        with otel_rl.step(step), otel_rl.stage("ask", step=step):
            carrier = Carrier.current()
            headers = carrier.to_headers() if carrier else {}
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{step}", headers=headers)).close()
    server.join(60)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")

"""What processes do to each other: forks, workers, threads, deaths. The first argument names what happens."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import otel_rl
from otel_rl.journal.read import open_run

MS = 0.001


def record(name: str, times: int, **attributes: Any) -> None:
    """Record a few stages."""
    for number in range(times):
        with otel_rl.stage(name, number=number, **attributes):
            pass


def work(number: int) -> None:
    """Be a worker that instruments itself, as in a program started by spawn."""
    otel_rl.instrument()
    record("worked", 3, worker=number)


def start_workers(method: str, *, is_instrumented: bool = True) -> None:
    """Start three workers with one of multiprocessing's methods and wait for them."""
    if is_instrumented:
        otel_rl.instrument()
    context: Any = multiprocessing.get_context(method)
    workers = [context.Process(target=work, args=(number,)) for number in range(3)]
    if is_instrumented:
        with otel_rl.step(1):
            record("before", 5)
            run_all(workers)
    else:
        run_all(workers)
    print(*(worker.exitcode for worker in workers))


def run_all(processes: list[Any]) -> None:
    """Start processes and wait for them."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)


def workers(method: str) -> None:
    """Start workers from a process that records."""
    start_workers(method)


def workers_of_a_stranger(method: str) -> None:
    """Start workers from a process that does not record."""
    start_workers(method, is_instrumented=False)


def train(number: int) -> None:
    """Be a training that instruments itself, with a set-up of its own."""
    otel_rl.instrument()
    record("load", 1, training=number)
    for step in range(2):
        with otel_rl.step(step):
            record("worked", 1, training=number)


def trainings(method: str) -> None:
    """Start three trainings, one after the other, as a sweep does."""
    otel_rl.instrument()
    context: Any = multiprocessing.get_context(method)
    for number in range(3):
        run_all([context.Process(target=train, args=(number,))])


def forks(times: str) -> None:
    """Fork again and again while four threads record and fork themselves, and the flusher works."""
    otel_rl.instrument()
    ended = threading.Event()

    def busy() -> None:
        while not ended.is_set():
            record("busy", 50)
            time.sleep(1 * MS)

    def fork_too() -> None:
        for number in range(int(times) // 4):
            wait_for(fork(number + 1000))

    threads = [threading.Thread(target=busy) for _ in range(3)]
    forking = threading.Thread(target=fork_too)
    with otel_rl.step(1):
        record("before", 5)
        for thread in [*threads, forking]:
            thread.start()
        for number in range(int(times)):
            wait_for(fork(number))
        forking.join()
        ended.set()
        for thread in threads:
            thread.join()
    assert otel_rl.flush(60)
    print("done")


def fork(number: int) -> int:
    """Fork a child that records and leaves in the hardest way that still lets it flush."""
    pid = os.fork()
    if not pid:
        record("child", 1, child=number)
        os._exit(0 if otel_rl.flush(10) else 1)
    return pid


def wait_for(pid: int) -> None:
    """Wait for a child, which must have been well."""
    assert os.waitpid(pid, 0)[1] == 0


def wait_until_journaled(name: str, number: int) -> None:
    """Wait until the journals below the root hold so many spans of a name."""
    root = Path(os.environ["OTEL_RL_DIR"])
    while number > sum(
        span.name == name for run in {path.parent for path in root.glob("*/*.otlp")} for span in open_run(run).spans()
    ):
        time.sleep(0.05)


def leaving_hard(_: str) -> None:
    """Fork a child that records, waits for a cycle of the flusher, records again and is gone."""
    otel_rl.instrument()
    with otel_rl.step(1):
        pid = os.fork()
        if not pid:
            record("early", 20)
            wait_until_journaled("early", 20)
            record("late", 20)
            os._exit(0)
        wait_for(pid)


def forking_while_numpy_is_imported(_: str) -> None:
    """Fork while the flusher imports numpy for the first request; the child imports it, too, and may not hang."""
    otel_rl.instrument()
    assert "numpy" not in sys.modules
    with otel_rl.step(1):
        now = time.monotonic()
        otel_rl.request("own", submitted=now - MS, ended=now, output_tokens=1)
        threading.Thread(target=otel_rl.flush, args=(60,), daemon=True).start()
        while "numpy" not in sys.modules:
            time.sleep(MS)
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            __import__("numpy")
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def dying(how: str) -> None:
    """Record a stage and a point every 5 ms and say so, until a signal comes; or end by itself as ``how`` says."""
    otel_rl.instrument()
    if how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    with otel_rl.step(6):
        pass  # from here on points wait for nothing
    with otel_rl.step(7), otel_rl.stage("rollout"):
        for number in range(100_000):
            with otel_rl.stage("turn", number=number):
                time.sleep(5 * MS)
            otel_rl.record("turn.number", number)
            print(number, flush=True)


def dying_in_set_up(_: str) -> None:
    """Record a stage and a point every 5 ms before any step, and say so, until a signal comes."""
    otel_rl.instrument()
    with otel_rl.stage("load"):
        for number in range(100_000):
            with otel_rl.stage("turn", number=number):
                time.sleep(5 * MS)
            otel_rl.record("turn.number", number)
            print(number, flush=True)


def threads(_: str) -> None:
    """Record from eight threads and from tasks at once."""
    import asyncio

    otel_rl.instrument()

    @otel_rl.stage("task")
    async def task(number: int) -> None:
        await asyncio.sleep(1 * MS * (number % 3))
        with otel_rl.stage("inner", number=number):
            await asyncio.sleep(1 * MS)

    async def tasks() -> None:
        await asyncio.gather(*(task(number) for number in range(50)))

    with otel_rl.step(1):
        pool = [threading.Thread(target=record, args=("threaded", 500)) for _ in range(8)]
        run_all(pool)
        asyncio.run(tasks())


def exits(how: str) -> None:
    """End in one of the ways in which programs end, right after a stage: a word and the code of an exit."""
    how, _, code = how.partition(" ")
    otel_rl.instrument()
    with otel_rl.step(1):
        record("last", 10)
        if how == "exception":
            raise LookupError("gone")
        if how == "exit":
            sys.exit(int(code))
        if how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    if how == "between":
        raise LookupError("gone")


def leaves(how: str) -> None:
    """End while a thread is inside its second step: by an exit with a code, or by an exception."""
    inside = threading.Event()

    def train() -> None:
        for number in (1, 2):
            with otel_rl.step(number), otel_rl.stage("reward"):
                if number == 2:
                    inside.set()
                    time.sleep(60)

    otel_rl.instrument()
    threading.Thread(target=train, daemon=True).start()
    inside.wait()
    if how == "exception":
        raise LookupError("gone")
    sys.exit(int(how))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])

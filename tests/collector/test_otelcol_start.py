"""The start command of Collectors with a queue: what it takes for damage, whose folder it refuses, how it ends.

A program stands in for the Collector; ``tests/backend/test_queue_damaged.py`` damages the real one's queue.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collector.test_files import COLLECTOR
from tests.waiting import wait_for

START = COLLECTOR / "otelcol-start"
PANIC = "panic: assertion failed: Page expected to be: 6, but self identifies as 9\n\ngoroutine 137 [running]:\n"
DAMAGED = (
    'Error: cannot start pipelines: failed to start "otlp_grpc/jaeger" exporter: invalid database\n',
    'Error: cannot start pipelines: failed to start "otlp_grpc/jaeger" exporter: file size too small 5000\n',
    PANIC + "go.etcd.io/bbolt/internal/common.Assert(...)\n",
)
OTHERS = (
    "Error: failed to get config: cannot unmarshal the configuration\n",
    "Error: cannot start pipelines: listen tcp 127.0.0.1:4317: bind: address already in use\n",
    PANIC + "main.f(...)\n\ngoroutine 9 [select]:\ngo.etcd.io/bbolt.(*DB).freepages.func2()\n",
)


HEEDING = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
"""Tests may run under nohup, which ignores SIGHUP; a shell cannot trap what is ignored."""


def started(folder: Path, program: str, **environ: str) -> subprocess.Popen[str]:
    """Start it with a program in the Collector's place."""
    otelcol = folder / "otelcol"
    otelcol.write_text(f"#!{shutil.which('sh')}\n{program}")
    otelcol.chmod(0o755)
    shell = "dash" if shutil.which("dash") else "sh"
    return subprocess.Popen(
        [sys.executable, "-c", HEEDING, shell, str(START), "--config", "a b"],
        env={
            "PATH": os.environ["PATH"],
            "OTEL_RL_OTELCOL": str(otelcol),
            "OTEL_RL_QUEUE_DIR": str(folder / "q"),
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(folder: Path, program: str) -> tuple[int, str]:
    """Its exit code, and what it says."""
    process = started(folder, program)
    return process.wait(), process.communicate()[1]


@pytest.mark.parametrize("words", DAMAGED)
def test_a_damaged_queue_is_moved_aside(words: str, tmp_path: Path) -> None:
    """And the Collector started again, with an empty one."""
    code, said = ended(
        tmp_path,
        f"[ \"$*\" = '--config a b' ] || exit 9\nqueue=$OTEL_RL_QUEUE_DIR/queue\n"
        f"[ -e $queue.damaged*/first ] || {{ touch $queue/first; echo '{words}' >&2; exit 2; }}\n",
    )
    (aside,) = (tmp_path / "q").glob("queue.damaged-*")
    assert (0, ["first"], []) == (code, os.listdir(aside), os.listdir(tmp_path / "q" / "queue"))
    assert said.startswith(words)
    assert f"the queue was damaged: it is in {aside} now" in said
    assert [0o700, 0o700] == [(tmp_path / "q" / name).stat().st_mode & 0o777 for name in ("", "queue")]


@pytest.mark.parametrize("words", OTHERS)
def test_another_failure_leaves_the_queue_alone(words: str, tmp_path: Path) -> None:
    """A wrong configuration or a port that is taken says nothing about the queue; so does a fault elsewhere."""
    assert (3, f"{words}\n") == ended(tmp_path, f"touch $OTEL_RL_QUEUE_DIR/queue/mine; echo '{words}' >&2; exit 3")
    assert ["mine"] == os.listdir(tmp_path / "q" / "queue")


def test_it_gives_up_after_three_times(tmp_path: Path) -> None:
    """Where a new queue is damaged at once, the disk is."""
    assert 2 == ended(tmp_path, f"echo '{DAMAGED[0]}' >&2; exit 2")[0]
    assert 3 == len([*(tmp_path / "q").glob("queue.damaged-*")])


def test_a_signal_ends_the_collector(tmp_path: Path) -> None:
    """It is told, ends as it wants, and its exit code is that of the command."""
    process = started(
        tmp_path, "trap 'echo told >&2; exit 5' TERM\ntouch $OTEL_RL_QUEUE_DIR/here\nwhile :; do sleep 0.02; done"
    )
    assert wait_for((tmp_path / "q" / "here").exists)
    process.send_signal(signal.SIGTERM)
    assert (5, "told\n") == (process.wait(), process.communicate()[1])


def test_sighup_lets_the_collector_read_its_configuration_again(tmp_path: Path) -> None:
    """It is passed on, as often as it comes, and ends nothing: so certificates are changed."""
    process = started(
        tmp_path,
        "trap 'touch \"$OTEL_RL_QUEUE_DIR/read\"' HUP\ntouch $OTEL_RL_QUEUE_DIR/here\nwhile :; do sleep 0.02; done",
    )
    read = tmp_path / "q" / "read"
    assert wait_for((tmp_path / "q" / "here").exists)
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        assert wait_for(read.exists)
        read.unlink()
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert (143, "") == (process.wait(), process.communicate()[1].replace("Terminated\n", ""))


def test_each_of_two_at_once_has_a_queue(tmp_path: Path) -> None:
    """Two jobs of one user on a node; the next ones take over what either left."""
    program = 'echo "$OTEL_RL_QUEUE_DIR"; touch "$OTEL_RL_QUEUE_DIR/here"; read -r _ <"$OTEL_RL_QUEUE_DIR/../go"'
    os.mkfifo(tmp_path / "go")
    (tmp_path / "q" / "2").mkdir(parents=True)
    os.mkfifo(tmp_path / "q" / "go")
    processes = []
    for place in ("q", "q/2"):
        processes.append(started(tmp_path, program))
        assert wait_for((tmp_path / place / "here").exists)
    for fifo in (tmp_path / "go", tmp_path / "q" / "go"):
        fifo.write_text("\n")
    said = [process.communicate() for process in processes]
    expected = [f"{tmp_path}/q\n", f"{tmp_path}/q/2\n"]
    assert expected == [out for out, _ in said]
    assert ["", f"otelcol-start: another Collector has the queue in {tmp_path}/q\n"] == [err for _, err in said]
    for place in ("", "q"):
        (tmp_path / place / "go").unlink()
        (tmp_path / place / "go").write_text("\n")
    for place in ("q", "q/2", "q"):  # in turn, so that nothing waits in one of them for ever
        os.utime(tmp_path / place / "last-words", (1, 1))
        assert (f"{tmp_path}/{place}\n", "") == started(tmp_path, program).communicate()


@pytest.mark.parametrize("place", ["q", "q/queue"])
@pytest.mark.parametrize("kind", ["owner", "link", "file"])
def test_a_folder_of_somebody_else_is_refused(kind: str, place: str, tmp_path: Path) -> None:
    """Whoever owns it reads and changes what waits there; a link leads to such a folder."""
    folder = tmp_path / place
    folder.parent.mkdir(exist_ok=True)
    if kind == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root gives a folder away")
        folder.mkdir()
        os.chown(folder, 12345, 12345)
        expected = f"otelcol-start: {folder} belongs to user 12345, not to 0: choose another one in OTEL_RL_QUEUE_DIR\n"
    else:
        folder.symlink_to(tmp_path) if kind == "link" else folder.touch()
        expected = f"otelcol-start: {folder} is no folder: choose another one in OTEL_RL_QUEUE_DIR, or remove it\n"
    code, said = ended(tmp_path, f"touch {tmp_path}/started")
    assert (1, False) == (code, (tmp_path / "started").exists())
    assert expected == said

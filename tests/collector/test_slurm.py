"""The batch script for SLURM ends what it started in the right order, and with the training's exit code.

There is no SLURM here: programs on ``PATH`` stand in for it, and for what the script starts. They note what happens.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otel_rl.process.identity import folder_name
from tests.fixtures import commands
from tests.waiting import wait_for

pytestmark = pytest.mark.medium

SCRIPT = Path(__file__).parents[2] / "collector" / "slurm" / "train.sbatch"
SRUN = """
for word; do case $word in --job-name=*) name=${word#*=otel-rl-} ;; --*) ;; *) break ;; esac; done
words=$*
while [[ $1 == --* ]]; do shift; done
echo "$words" > "$NOTES/words.${name:=unnamed}"
(until [[ -e $NOTES/step.$BASHPID.$name ]]; do sleep 0.02; done; exec "$@") &  # nobody sees it before squeue does
step=$!
# As the real one: "forcing job termination".
trap 'killed=yes; echo "killed $name" >> "$NOTES/log"; kill -KILL "$step"' TERM
touch "$NOTES/step.$step.$name"
wait "$step"
code=$?
if [[ ${killed:-} ]]; then wait "$step"; code=$?; fi  # that wait ended with the signal
trap "" TERM  # the step has ended: there is nothing to kill
rm "$NOTES/step.$step.$name"
echo "ended $name $code" >> "$NOTES/log"
exit "$code"
"""
SQUEUE = """
for path in "$NOTES"/step.*; do
    IFS=. read -r _ step name <<< "${path##*/}"
    echo "77.$step otel-rl-$name"
done
"""
SCANCEL = """
[[ $1 == --signal=TERM ]] || exit 1
path=$(echo "$NOTES/step.${2#77.}".*)
echo "told ${path##*.}" >> "$NOTES/log"
kill -TERM "${2#77.}"
"""
SLEEP = """
[[ $1 == 1 ]] || { command -p sleep "$@"; exit; }
told=$(sed -n 's/^told //p' "$NOTES/log" | tail -n 1)
[[ $told != "${DEAF:-}s" ]] || exit 0
while compgen -G "$NOTES/step.*.$told" > /dev/null; do command -p sleep 0.02; done
"""
"""The batch script's seconds: so long as the step that it told takes to end; for one that is deaf, over at once."""
STAYS = """
trap '[[ ${DEAF:-} == "$me" ]] || over=yes' TERM
touch "$NOTES/here.$me"
until [[ ${over:-} ]]; do sleep 0.02; done
[[ ${FAILS:-} != "$me" ]]
"""
LISTENS = 'echo "$OTEL_RL_GRPC $OTEL_RL_HTTP $OTEL_RL_HEALTH $OTEL_RL_OWN" > "$NOTES/listens"\n'
OTEL_RL = f"""
me=$1
if [[ $1 == sidecar ]]; then
    {STAYS}
    exit
fi
until [[ -e $NOTES/here.sidecar && -e $NOTES/here.otelcol ]]; do sleep 0.02; done
trap 'sleep 0.2; exit 5' TERM  # a checkpoint before it goes
echo "${{OTEL_EXPORTER_OTLP_HEADERS:-}}" > "$NOTES/headers"
echo "$OTEL_RL_SIDECAR $OTEL_EXPORTER_OTLP_ENDPOINT $OTEL_RL_DIR $OTEL_RL_RUN_ID" > "$NOTES/trains"
while [[ ! ${{CODE:-}} ]]; do sleep 0.02; done
exit "$CODE"
"""
PROGRAMS = {
    "srun": SRUN,
    "squeue": SQUEUE,
    "scancel": SCANCEL,
    "sleep": SLEEP,
    "scontrol": "echo node-1; echo node-2",
    "otelcol": f"me=otelcol\n{LISTENS}{STAYS}",
    "otel-rl": OTEL_RL,
}


@contextmanager
def job(folder: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """The script as SLURM runs it on two nodes; what still lives at the end is killed."""
    programs, notes = folder / "bin", folder / "notes"
    programs.mkdir()
    notes.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!{shutil.which('bash')}\n{text}")
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "NOTES": str(notes),
        "USER": "somebody",
        "OTEL_RL_GATEWAY": "gateway",
        "OTEL_RL_COLLECTOR": str(SCRIPT.parents[1]),
        "OTEL_RL_QUEUE_DIR": str(folder / "queue"),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NAME": "my job/a",
        "SLURM_JOB_NODELIST": "node-[1-2]",
        "SLURM_NNODES": "2",
        **environ,
    }
    process = subprocess.Popen(
        ["bash", str(SCRIPT)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def outcome(process: subprocess.Popen[str], folder: Path) -> tuple[int, str, list[str]]:
    """Exit code, standard error, and what happened, once the script has ended."""
    _, errors = process.communicate()
    return process.returncode, errors, (folder / "notes" / "log").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 7])
def test_sidecars_end_before_agents_and_after_the_training(tmp_path: Path, code: int) -> None:
    """The last batches are handed over before the agents are told to end; the exit code is the training's."""
    with job(tmp_path, CODE=str(code)) as process:
        ended = outcome(process, tmp_path)
    told = ["told sidecars", "ended sidecars 0", "told agents", "ended agents 0"]
    assert (code, "", [f"ended training {code}", *told]) == ended


def test_a_signal_reaches_the_training_first(tmp_path: Path) -> None:
    """Before the time is up the training is told to end, and only then, what takes its records."""
    with job(tmp_path) as process:
        assert wait_for((tmp_path / "notes" / "trains").exists)
        process.terminate()
        ended = outcome(process, tmp_path)
    told = ["told sidecars", "ended sidecars 0", "told agents", "ended agents 0"]
    assert (5, "", ["told training", "ended training 5", *told]) == ended


def test_what_was_not_sent_is_said(tmp_path: Path) -> None:
    """A sidecar that could not send everything does not change the exit code, but the user hears how to send it."""
    with job(tmp_path, CODE="0", FAILS="sidecar") as process:
        ended = outcome(process, tmp_path)
    said = f"not all was sent: otel-rl ship {tmp_path}/otel_rl_runs/my_job_a-77\n"
    told = ["told sidecars", "ended sidecars 1", "told agents", "ended agents 0"]
    assert (0, said, ["ended training 0", *told]) == ended


def test_a_sidecar_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """Where the agents take nothing, the nodes are not held for longer than the user wants."""
    with job(tmp_path, CODE="0", DEAF="sidecar", OTEL_RL_DRAIN_S="1") as process:
        code, errors, happened = outcome(process, tmp_path)
    assert (0, True) == (code, "not all was sent" in errors)
    killed = ["told sidecars", "killed sidecars", "ended sidecars 137"]
    assert ["ended training 0", *killed, "told agents", "ended agents 0"] == happened


def test_an_agent_that_fails_is_said(tmp_path: Path) -> None:
    """What waits in its queue is on the node's disk."""
    with job(tmp_path, CODE="0", FAILS="otelcol") as process:
        code, errors, _ = outcome(process, tmp_path)
    assert (0, f"an agent failed; what waits is in {tmp_path}/queue of its node\n") == (code, errors)


def test_one_agent_and_one_sidecar_run_on_every_node(tmp_path: Path) -> None:
    """Both beside the training; the sidecar follows the folder that the training writes, which starts none itself."""
    with job(tmp_path, CODE="0") as process:
        outcome(process, tmp_path)
    notes = tmp_path / "notes"
    words = {name: (notes / f"words.{name}").read_text().split() for name in ("agents", "sidecars", "training")}
    beside = ["--overlap", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gres=none"]
    assert [beside, beside] == [words[name][: len(beside)] for name in ("agents", "sidecars")]
    assert ["sh", "otelcol-start"] == [Path(word).name for word in words["agents"][6:8]]
    command = commands()["sidecar"]
    with command.make_context("sidecar", words["sidecars"][8:]) as context:
        followed = (context.params["stay"], Path(context.params["run"]))
    sidecar, endpoint, root, run_id = (notes / "trains").read_text().split()
    assert ("false", "http://127.0.0.1:20308") == (sidecar, endpoint)
    assert "127.0.0.1:20308 127.0.0.1:20309 127.0.0.1:20310 20311\n" == (notes / "listens").read_text()
    assert (True, Path(root) / folder_name(run_id)) == followed
    assert ["otel-rl", "run", "--", "torchrun"] == words["training"][1:5]
    assert "node-1:29500" in words["training"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_agents_on_shared_nodes_ask_for_a_token(tmp_path: Path, is_shared: bool) -> None:
    """Where its file is named, the agents ask for it and the senders show it."""
    token = tmp_path / "local.token"
    token.write_text("abc\n")
    with job(tmp_path, CODE="0", **({"OTEL_RL_LOCAL_TOKEN_FILE": str(token)} if is_shared else {})) as process:
        assert (0, "") == outcome(process, tmp_path)[:2]
    notes = tmp_path / "notes"
    named = [f"--config {SCRIPT.parents[1]}/{name}.yaml" for name in ("agent", "agent-token", "agent-local-token")]
    asked = (notes / "words.agents").read_text().strip().partition("otelcol-start ")[2]
    shown = (notes / "headers").read_text()
    expected = (named, "authorization=Bearer%20abc\n") if is_shared else (named[:2], "\n")
    assert (" ".join(expected[0]), expected[1]) == (asked, shown)

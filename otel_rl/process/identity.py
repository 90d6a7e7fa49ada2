"""Who this process is: run, attempt, rank, role; and the OTLP resource made of it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from otel_rl import ids, vocabulary
from otel_rl.clock import strftime, time_ns
from otel_rl.config import LAUNCH, Config
from otel_rl.config.parsers import ProcessKind
from otel_rl.journal.identity import start_time
from otel_rl.process.memory import Memory
from otel_rl.process.memory_limit import memory_limit
from otel_rl.records import Value
from otel_rl.version import __version__

if TYPE_CHECKING:
    from otel_rl.process.rendezvous import Rendezvous

TRAINER = "trainer"
ROLES: Mapping[ProcessKind, str] = {"worker": "worker", "engine": "rollout"}
"""Roles of processes that are given none."""
UNKNOWN = -1
MAX_FOLDER_BYTES = 128
RANK, WORLD_SIZE, LOCAL_RANK = TORCHRUN = "RANK", "WORLD_SIZE", "LOCAL_RANK"
SRUN = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
RAY_WORKER = "default_worker.py"
"""The program in which Ray runs tasks and actors."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The process as its telemetry names it; immutable, a change makes a new one."""

    run_id: str = ""
    attempt_id: str = ""
    """Empty until known: on ranks above 0 it comes with the process group."""
    rank: int = 0
    local_rank: int = UNKNOWN
    world_size: int = 1
    role: str = TRAINER
    kind: ProcessKind = "driver"
    system: str = ""
    system_version: str = ""
    algorithm: str = ""
    model_name: str = ""
    pid: int = 0
    started_ns: int = 0
    host: str = ""
    memory_limit: int = 0
    """Bytes that all processes of the host have together; 0 if unknown."""
    device_id: str = ""
    """The device that it uses, as its driver names it."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """Place along each axis of the parallel layout that is known, by the resource's key."""
    extra: Mapping[str, Value] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Return whether the attempt is known, so that ids of steps can be derived."""
        return bool(self.attempt_id)

    @property
    def is_worker(self) -> bool:
        """Return whether it works for the steps of another process."""
        return self.kind in ("worker", "engine")

    @property
    def emits_root(self) -> bool:
        """Return whether it emits the roots of its traces: one process of an attempt does."""
        return self.rank == 0 and not self.is_worker

    @property
    def in_world(self) -> dict[str, int]:
        """Return where the process stands among all of its role."""
        return {"rank": self.rank, "world_size": self.world_size}

    @property
    def instance_id(self) -> str:
        """``service.instance.id``: one per process and rank of an attempt."""
        return ids.instance_id(self.attempt_id, self.role, self.rank, self.pid, self.started_ns)

    def resource(self, service_name: str) -> dict[str, Value]:
        """Make the OTLP resource; what is not known is left out."""
        attributes: dict[str, Value] = {
            vocabulary.SERVICE_NAME: service_name or f"{self.system or 'rl'}-{self.role}",
            vocabulary.SERVICE_INSTANCE_ID: self.instance_id,
            vocabulary.HOST_NAME: self.host,
            vocabulary.PROCESS_PID: self.pid,
            vocabulary.DISTRO_NAME: vocabulary.SCOPE,
            vocabulary.DISTRO_VERSION: __version__,
            vocabulary.SYSTEM: self.system,
            vocabulary.SYSTEM_VERSION: self.system_version,
            vocabulary.ALGORITHM: self.algorithm,
            vocabulary.MODEL_NAME: self.model_name,
            vocabulary.RUN_ID: self.run_id,
            vocabulary.ATTEMPT_ID: self.attempt_id,
            vocabulary.ROLE: self.role,
            vocabulary.RANK: self.rank,
            vocabulary.WORLD_SIZE: self.world_size,
            vocabulary.HW_ID: self.device_id,
            **self.coordinates,
        }
        if self.memory_limit:
            attributes[vocabulary.MEMORY_LIMIT] = self.memory_limit
        if self.local_rank != UNKNOWN:
            attributes[vocabulary.LOCAL_RANK] = self.local_rank
        return {**self.extra, **{key: value for key, value in attributes.items() if value != ""}}

    def independent(self, kind: ProcessKind) -> Identity:
        """Return the identity of a process that turns out to hold steps, or a run, of its own."""
        return replace(self, kind=kind, role=TRAINER if self.role == ROLES.get(self.kind) else self.role)

    def in_child(self) -> Identity:
        """Return the identity of a forked child: a worker of the same rank and attempt."""
        return replace(self, kind="worker", pid=os.getpid(), started_ns=time_ns(), device_id="")


def from_launcher(config: Config, environ: Mapping[str, str] = os.environ) -> Identity:
    """Read what the launcher says (torchrun, srun); who is given an attempt has it, a driver and rank 0 make it."""
    rank, world_size, local_rank = rank_variables(environ)
    kind = _kind(config, is_rank=rank in environ)
    identity = Identity(
        run_id=config.run_id,
        rank=_number(environ, rank, 0),
        local_rank=_number(environ, local_rank, UNKNOWN),
        world_size=_number(environ, world_size, 1),
        kind=kind,
        role=ROLES.get(kind, TRAINER),
        pid=os.getpid(),
        started_ns=time_ns(),
        host=socket.gethostname(),
        memory_limit=memory_limit(),
        extra={key: value for key, value in config.resource_attributes if key != vocabulary.SERVICE_NAME},
    )
    if config.attempt_id:
        # torchrun keeps the environment when it starts the ranks anew.
        restarts = _number(environ, RESTARTS, 0)
        attempt = f"{config.attempt_id}.{restarts}" if restarts else config.attempt_id
        return replace(identity, attempt_id=attempt, run_id=config.run_id or attempt)
    return make_attempt(identity) if identity.emits_root else identity


def _kind(config: Config, *, is_rank: bool) -> ProcessKind:
    if config.process_kind:
        return config.process_kind
    if is_ray_worker() or (config.attempt_id and is_started_by_rank()):
        return "worker"
    return "rank" if is_rank else "driver"


def is_ray_worker() -> bool:
    """Return whether Ray started this process for its tasks and actors: it runs Ray's program, not the user's."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.basename(main or "") == RAY_WORKER


def rank_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, str, str]:
    """Name the variables that hold rank, world size and local rank.

    srun sets its own for each task of a step; Ray's workers inherit those of the task that started Ray.
    """
    is_task = RANK not in environ and _number(environ, SRUN[1], 1) > 1 and not is_ray_worker()
    return SRUN if is_task else TORCHRUN


def ancestors() -> Iterator[int]:
    """Find the processes that this one was started by, the nearest first, as far as the system shows them."""
    pid = os.getppid()
    with suppress(OSError, ValueError, IndexError):
        while pid > 0:
            yield pid
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])


def is_started_by_rank() -> bool:
    """Return whether a rank started this process: it has the variables of a rank, but is none.

    A rank writes a journal and has the variables, too; a program that records and starts ranks lacks them.
    """
    names = tuple(f"{name}=".encode() for name in (rank_variables()[0], "OTEL_RL_ATTEMPT_ID"))
    return any(name.endswith(".otlp") for pid in ancestors() if has_variable(pid, names) for name in _open_files(pid))


def has_variable(pid: int, names: tuple[bytes, ...]) -> bool:
    """Return whether a process was started with one of these variables, each given as ``NAME=``."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
        return any(entry.startswith(names) for entry in environ.read().split(b"\0"))
    return False


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it is over, or somebody else's
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")


def make_attempt(identity: Identity) -> Identity:
    """Make the attempt id, and the run's name if it has none.

    Below `otel-rl run`, all starts of a program have one name: a restart is another attempt of the run. What a launch
    trains at once, or by several programs one after the other, are runs of their own.
    """
    attempt, launch = ids.attempt_id(), os.environ.get(LAUNCH, "") if identity.emits_root else ""
    made = _name_below(launch) if launch and not _has_twin() else new_run_id(attempt)
    return replace(identity, attempt_id=attempt, run_id=identity.run_id or made)


def _name_below(launch: str) -> str:
    begun, program = launch.rpartition("/")[2], getattr(sys.modules.get("__main__"), "__file__", None)
    digest = hashlib.blake2b(f"{launch} {program or ''}".encode("utf-8", "replace"), digest_size=3).hexdigest()
    return f"{begun.rpartition('-')[0]}-{digest}"


def _has_twin() -> bool:
    """Return whether the same program goes on that our parent started before us, or is our parent; no ranks do that."""
    if rank_variables()[0] in os.environ:
        return False
    parent, program = os.getppid(), sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    ours = start_time(os.getpid()) or 0, os.getpid()
    earlier = [pid for pid in [parent, *_children(parent)] if ((start_time(pid) or inf), pid) < ours]
    return bool(program) and any(_command(pid)[1 : len(program) + 1] == program for pid in earlier)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread is over
            found += map(int, children.read_text().split())
    return found


def _command(pid: int) -> list[str]:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command:
        return os.fsdecode(command.read()).split("\0")
    return []


def training_of(trainer: Any) -> dict[str, str]:
    """Name algorithm and model of a trainer of TRL, from which the program's may be derived.

    A model's folder is named by its last part only.
    """
    own = [kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.partition(".")[0] == "trl"]
    if not own:
        return {}
    name = next((name for name in own if not name.startswith("_")), own[0])
    config = getattr(getattr(trainer, "model", None), "config", None)
    model = os.path.basename(str(getattr(config, "_name_or_path", "") or ""))
    return {"algorithm": name.removesuffix("Trainer"), "model_name": model}


def new_launch(environ: Mapping[str, str]) -> str:
    """Make the mark of a command's processes, after that of an `otel-rl run` that runs it."""
    mark = f"{strftime('%Y%m%d-%H%M%S')}-{os.urandom(8).hex()}"
    return "/".join(filter(None, (environ.get(LAUNCH, ""), mark)))


def new_run_id(attempt: str) -> str:
    """Make a run's name that sorts by time and does not repeat."""
    return f"{strftime('%Y%m%d-%H%M%S')}-{attempt[:6]}"


def is_made_up(run_id: str) -> bool:
    """Return whether a run's name was made up, since its user gave none."""
    return re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", run_id) is not None


def folder_name(run_id: str) -> str:
    """Make a run's name fit for a folder: no separator, no leading dot, 128 bytes; names that differ stay different."""
    name = re.sub(r"[^\w.=@+-]", "_", run_id).lstrip(".") or "_"
    if name == run_id and len(name.encode("utf-8")) <= MAX_FOLDER_BYTES:
        return name
    start = name.encode("utf-8", "replace")[: MAX_FOLDER_BYTES - 9].decode("utf-8", "ignore")
    return f"{start}-{hashlib.blake2b(run_id.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


@dataclass(eq=False)
class Identifying(Memory):
    """How this process learns who it is; the result is ``state.identity``."""

    lock: RLock = field(default_factory=RLock)
    """Held while the identity changes: the flusher's thread may freeze what the program's is learning."""
    learned: dict[str, Any] = field(default_factory=dict)
    """What this process has learned of itself; the rest of its identity comes from its launcher or its parent."""
    frozen: bool = False
    """Whether the resource is final."""
    may_meet: bool = False
    """Whether this is a rank that searches for the others when it begins its first step."""
    rendezvous: Rendezvous | None = None
    """Where it meets the other ranks while it does, once it trains without a process group."""
    ask_again: Callable[[], object] | None = None
    """Learns the attempt that rank 0 had not said in time; the connection is not a forked child's."""

    def after_fork_in_child(self) -> None:
        """Keep the resource final: it is the parent's but for the process."""
        frozen = self.frozen
        self.renew()
        self.frozen = frozen


identifying = Identifying.keep("identifying")

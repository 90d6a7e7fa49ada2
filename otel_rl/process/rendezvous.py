"""Where ranks without a process group find each other: a folder below the root of the runs.

Each rank puts a file there that is named by its rank and by a number that it has drawn. Rank 0 answers with its attempt
and with the numbers that it has found; a rank takes an answer that has its own. So nothing that an earlier start has
left there counts, nor does any clock, and ranks may come one after the other. The flusher polls now and then.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from otel_rl.clock import monotonic
from otel_rl.config import Config
from otel_rl.guard import say
from otel_rl.ids import random_bits
from otel_rl.journal.filesystem import make_directory
from otel_rl.journal.identity import WriterIdentity, start_time
from otel_rl.process.directories import usable_root
from otel_rl.process.identity import SRUN, Identity, ancestors, has_variable, is_started_by_rank, rank_variables

FOLDER: Final = ".ranks"
ANSWER: Final = "answer"
DONE: Final = "done"
LIMIT_S: Final = 60.0
"""A rank searches this long for rank 0, and rank 0 for the others: many ranks begin that far apart."""
PAUSE_S: Final = 0.1, 5.0
"""Between two polls, at first and at last."""
SAME: Final = ("MASTER_PORT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE")
"""Variables that all ranks of a start have alike, where they have them: other starts meet elsewhere then."""
TASKS: Final = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), SRUN[:2])
"""Where a launcher gives each task its rank and how many there are: the task may be a script that sets ``RANK``."""


class Rendezvous:
    """One rank's part of it; used by the flusher only.

    Every poll renames the rank's own file. So it sees whether another start has put another in its place, and on NFS
    the folder that it reads is no cached one.
    """

    def __init__(self, identity: Identity, config: Config) -> None:
        """Begin; nothing is opened before the first poll.

        Args:
            identity: of this process; of a run without a name that of rank 0 has one already.
            config: says the name and where the runs are.
        """
        self.is_over = False
        self._rank, self._size = identity.rank, identity.world_size
        self._config = config
        self._number = f"{random_bits(64):016x}"
        self._file: Path | None = None
        """Ours, as it is called now."""
        self._polls = 0
        self._began = self._polled = monotonic()
        self._answered: set[str] = set()
        self._known: set[str] = set()
        """Ranks that rank 0 has answered; one may take the answer when rank 0 has left."""

    def poll(self, identity: Identity, *, is_asked: bool) -> tuple[str, str] | None:
        """Read the folder if it is time; return attempt and run once rank 0 has answered.

        Args:
            identity: of this process as it is now.
            is_asked: it is time in any case.
        """
        now = monotonic()
        pause = min(max((now - self._began) / 4, PAUSE_S[0]), PAUSE_S[1])
        if self._file is not None and now - self._polled < pause and not is_asked:
            return None
        self._polled = now
        found = None
        try:
            if self._config.attempt_id:
                self._use(identity)
            elif self._stay():
                if self._rank:
                    found = self._ask()
                else:
                    self._answer(identity)
        except (OSError, ValueError):  # a disk that is away for a moment
            pass
        self.is_over |= found is not None or (self._rank > 0 and identity.known)
        if now - self._began > LIMIT_S and not self.is_over:
            self.leave()
        return found

    def _use(self, identity: Identity) -> None:
        """Mark the attempt that a launcher named as used, and log if an earlier start had it."""
        self.is_over = True
        if self._rank == 0 and identity.attempt_id.startswith(self._config.attempt_id):
            name = blake2b(f"{identity.run_id}/{identity.attempt_id}".encode(), digest_size=8).hexdigest()
            folder = usable_root(self._config.directory) / FOLDER
            make_directory(folder)
            try:
                (folder / f"used.{name}").touch(mode=0o600, exist_ok=False)
            except FileExistsError:
                say(
                    "otel_rl: OTEL_RL_ATTEMPT_ID: an earlier start had the attempt %s in this run, so steps of both "
                    "share their traces; give each start another",
                    identity.attempt_id,
                )

    def _stay(self) -> bool:
        """Stay visible to the others; False if another process of this rank has come, or a rank has started us."""
        before, self._polls = self._file, self._polls + 1
        if before is None:
            self.is_over = is_started_by_rank()
            return not self.is_over and self._come()
        self._file = before.with_name(f"{self._rank}.{self._number}.{self._polls}")
        try:
            os.rename(before, self._file)
        except FileNotFoundError:
            self.is_over = True
        return not self.is_over

    def _come(self) -> bool:
        folder = usable_root(self._config.directory) / FOLDER / self._key()
        make_directory(folder)
        for name in os.listdir(folder):
            if name.startswith(f"{self._rank}."):  # of an earlier start
                (folder / name).unlink(missing_ok=True)
        file = folder / f"{self._rank}.{self._number}.{self._polls}"
        file.touch(mode=0o600)
        self._file = file
        return True

    def _key(self) -> str:
        of: list[Any] = [self._config.run_id or _launcher(), self._size, [os.environ.get(name) for name in SAME]]
        return blake2b(json.dumps(of).encode(), digest_size=8).hexdigest()

    def _ask(self) -> tuple[str, str] | None:
        assert self._file is not None
        with suppress(FileNotFoundError):
            attempt, run, numbers = json.loads((self._file.parent / ANSWER).read_bytes())
            if self._number in numbers:
                os.rename(self._file, self._file.with_name(f"{self._rank}.{self._number}.{DONE}"))
                return attempt, run
        return None

    def _answer(self, identity: Identity) -> None:
        """Publish our attempt to the ranks that have come; it is over when all have it."""
        assert self._file is not None
        folder = self._file.parent
        there = [name.split(".") for name in os.listdir(folder) if name.count(".") == 2]
        numbers = {number for rank, number, _ in there if rank != "0"}
        if numbers - self._answered:
            new = folder / f"{ANSWER}.{self._number}"
            new.write_text(json.dumps([identity.attempt_id, identity.run_id, sorted(numbers | self._answered)]))
            os.replace(new, folder / ANSWER)
            self._answered |= numbers
        self._known |= {rank for rank, _, _ in there if rank != "0"}
        done = {rank for rank, number, last in there if last == DONE and number in self._answered}
        if len(done) == self._size - 1:
            self.is_over = True
            for name in os.listdir(folder):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # another start comes
                folder.rmdir()

    def leave(self) -> None:
        """Leave; what rank 0 has answered stays for those who have not read it yet."""
        self.is_over = True
        missing = 0 if self._rank else self._size - 1 - len(self._known)
        if missing > 0:
            say(
                "otel_rl: %d of the %d ranks did not find rank 0 in time and report alone; "
                "set OTEL_RL_ATTEMPT_ID for all ranks",
                missing,
                self._size,
            )
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()
                self._file.parent.rmdir()


def _launcher() -> list[Any]:
    """Name the process that started the ranks of this node: the nearest that is not of one rank itself."""
    variable, size, _ = rank_variables()
    tasks = [rank for rank, tasks in TASKS if os.environ.get(tasks) == os.environ[size]]
    names = tuple(f"{name}=".encode() for name in (variable, *tasks))
    pid = next((pid for pid in ancestors() if not has_variable(pid, names)), 0)
    here = WriterIdentity.current("", 0)
    return [here.boot_id, here.pid_namespace, pid, start_time(pid)]

"""How much memory the processes of a host have."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rl.process.memory_limit import memory_limit

TOTAL = "MemFree: 5 kB\nMemTotal:       1000 kB\n"
V1 = "5:cpuset:/\n4:cpu,memory:/pod/one\n0::/\n"


def system(root: Path, files: dict[str, str]) -> Path:
    """Write files of a system below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc/meminfo": "MemTotal: many kB\n"}, 0),
        ({"proc/meminfo": TOTAL}, 1_024_000),
        ({"proc/meminfo": TOTAL, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1_024_000),
        ({"proc/meminfo": TOTAL, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "9000\n"}, 9000),
        ({"proc/meminfo": TOTAL, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "8000\n"}, 8000),
        ({"proc/meminfo": TOTAL, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "7000\n"}, 7000),
        (
            {
                "proc/meminfo": TOTAL,
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/memory/pod/one/memory.limit_in_bytes": "9223372036854771712\n",
            },
            1_024_000,
        ),
        (
            {"proc/meminfo": TOTAL, "proc/self/cgroup": V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "6000\n"},
            6000,
        ),
        ({"proc/meminfo": TOTAL, "proc/self/cgroup": "nonsense\n"}, 1_024_000),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    """Of the machine and of all cgroups around the process; 0 if none is known."""
    assert expected == memory_limit(system(tmp_path, files))


def test_this_machine_has_memory() -> None:
    """More than this process has taken."""
    assert memory_limit() > 1 << 24

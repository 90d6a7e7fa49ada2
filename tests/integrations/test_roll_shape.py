"""Which ROLL a checkout is, and who a process of it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.roll.shape import TREE, mode_of_process, role_of_actor, version_of_tree
from otel_rl.process.state import state
from tests.fixtures import Recording

NAMES = "CLUSTER_NAME", "WORKER_NAME", "RANK"
TELEMETRY, ROUTER, GENERATE = (
    "utils/telemetry.py",
    "distributed/scheduler/router.py",
    "distributed/scheduler/generate_scheduler.py",
)


@pytest.fixture(autouse=True)
def outside_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be no worker of a cluster."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ((TREE, GENERATE, ROUTER, TELEMETRY), "0.3.0"),
        ((TREE, GENERATE, ROUTER), "0.2.1"),
        ((TREE, GENERATE), "0.2.0"),
        ((TREE,), "0.1.0"),
        ((TELEMETRY,), None),
        ((), None),
    ],
)
def test_the_version_is_told_by_the_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...], version: str | None
) -> None:
    """Another package of the name has none, and the package is not imported."""
    for file in ("__init__.py", *files):
        path = tmp_path / "roll" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "roll", raising=False)
    assert version == version_of_tree()
    assert "roll" not in sys.modules


def test_without_a_package_there_is_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor where a module has its name."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "roll", raising=False)
    assert version_of_tree() is None
    (tmp_path / "roll.py").write_text("")
    assert version_of_tree() is None


class DynamicSamplingScheduler:
    pass


class RolloutScheduler:
    pass


class Derived(RolloutScheduler):
    pass


@pytest.mark.parametrize(
    ("kind", "name", "role"),
    [
        (DynamicSamplingScheduler, "", "scheduler"),
        (RolloutScheduler, "RolloutScheduler-train", "scheduler"),
        (Derived, "RolloutScheduler-val", "scheduler_val"),
        (Derived, "RolloutScheduler-validated", "scheduler"),
        (type("RouterManager", (), {}), "RouterManager-val_env-val", "router_val"),
        (type("GroupQueueManager", (), {}), "GroupQueueManager-train", "group_queue"),
        (int, "val", None),
    ],
)
def test_a_role_is_what_a_class_does(kind: type, name: str, role: str | None) -> None:
    """Its name tells what is a validation's; other actors have the role that Ray's layer gives them."""
    assert role == role_of_actor(kind, name)


def test_the_role_of_a_worker_is_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several clusters have one class. A worker of the program's own may set single names of these."""
    for name, value in zip(NAMES, ("reference", "reference-0", "0"), strict=True):
        assert role_of_actor(int, "") is None
        monkeypatch.setenv(name, value)
    assert "reference" == role_of_actor(int, "")


@pytest.mark.parametrize(
    ("name", "cluster", "mode"),
    [
        ("", "", "train"),
        ("GroupQueueManager-train", "", "train"),
        ("GroupQueueManager-val", "", "eval"),
        ("val_env-0", "val_env", "eval"),
        ("train_env-0", "train_env", "train"),
        ("validator", "validator", "train"),
    ],
)
def test_a_process_serves_training_or_validation(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, name: str, cluster: str, mode: str
) -> None:
    """As the name of its actor or of its cluster says."""
    if name:
        state.inherit(extra={v.ACTOR_NAME: name})
    monkeypatch.setenv("CLUSTER_NAME", cluster)
    assert mode == mode_of_process()

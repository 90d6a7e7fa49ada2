"""Where the configurations come from, and how they are copied."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from otel_rl.stack import configurations
from otel_rl.stack.problem import StackError

NEEDED = {"standalone.yaml", "jaeger.yaml", "prometheus.yaml", "tempo.yaml", "compose.yaml"}


def test_an_installed_package_has_them_and_a_checkout_has_them_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own win; where they are in neither place, the sentence says what to do."""
    package = tmp_path / "otel_rl"
    monkeypatch.setattr(configurations, "PACKAGE", package)
    with pytest.raises(StackError, match=r"otel_rl/collector: install otel-rl anew$"):
        configurations.shipped()
    for folder in (tmp_path / "collector", package / "collector"):
        folder.mkdir(parents=True)
        (folder / "standalone.yaml").write_text("")
        assert folder == configurations.shipped()


def test_the_copy_is_whole_and_new(tmp_path: Path) -> None:
    """What was there is overwritten; whatever the umask, another user (of a container) can read each file."""
    (tmp_path / "jaeger.yaml").write_text("old")
    before = os.umask(0o077)
    try:
        configurations.copy(tmp_path)
    finally:
        os.umask(before)
    source = configurations.shipped()
    files = [path for path in source.rglob("*") if path.is_file()]
    assert set() == NEEDED - {path.name for path in files}
    assert [path.read_bytes() for path in files] == [
        (tmp_path / path.relative_to(source)).read_bytes() for path in files
    ]
    assert {0o644} == {stat.S_IMODE((tmp_path / path.relative_to(source)).stat().st_mode) for path in files}

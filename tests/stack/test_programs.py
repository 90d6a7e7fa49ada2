"""Where the programs of the stack are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_rl.stack.plan import StackError
from otel_rl.stack.programs import find_all, missing


def program(folder: Path, name: str) -> Path:
    """Put a program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Name three empty places."""
    return {
        "OTEL_RL_BACKENDS": str(tmp_path / "named"),
        "PATH": f"{tmp_path / 'first'}{os.pathsep}{tmp_path / 'second'}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def test_what_the_user_names_goes_before_path_before_what_was_built(tmp_path: Path, environ: dict[str, str]) -> None:
    """A setting would be no setting if PATH could outdo it."""
    places = [tmp_path / "cache/otel_rl/backends/1/bin", tmp_path / "second", tmp_path / "first", tmp_path / "named"]
    for place in places:
        expected = program(place, "jaeger")
        assert {"jaeger": expected} == find_all(environ)


def test_a_folder_that_is_named_is_found_as_a_shell_would(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``~`` and by variables."""
    monkeypatch.setenv("HOME", str(tmp_path))
    jaeger, tempo = program(tmp_path / "mine", "jaeger"), program(tmp_path / "other", "tempo")
    named = {"OTEL_RL_BACKENDS": "~/mine", "OTEL_RL_TEMPO_PROGRAM": "$HOME/other/tempo"}
    assert {"jaeger": jaeger, "tempo": tempo} == find_all(environ | named)


def test_the_newest_build_is_taken(tmp_path: Path, environ: dict[str, str]) -> None:
    """A build that was broken off holds some of the programs; the others come from the one before."""
    builds = tmp_path / "cache/otel_rl/backends"
    old = [program(builds / "9.9/bin", name) for name in ("jaeger", "prometheus")]
    new = program(builds / "10.0/bin", "jaeger")
    os.utime(builds / "9.9/bin", (1, 1))
    assert {"jaeger": new, "prometheus": old[1]} == find_all(environ)


def test_the_contrib_collector_is_taken_where_both_are(tmp_path: Path, environ: dict[str, str]) -> None:
    """The core one lacks what our configurations need."""
    core, contrib = (program(tmp_path / "first", name) for name in ("otelcol", "otelcol-contrib"))
    assert {"collector": contrib} == find_all(environ)
    contrib.unlink()
    assert {"collector": core} == find_all(environ)


def test_what_is_missing_is_named_as_one_types_it(tmp_path: Path, environ: dict[str, str]) -> None:
    """Tempo is never missing."""
    assert ["jaeger", "prometheus", "otelcol"] == missing(find_all(environ))
    program(tmp_path / "first", "otelcol")
    assert ["jaeger", "prometheus"] == missing(find_all(environ))


def test_tempo_is_taken_from_its_variable_or_from_path(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its variable wins; one that names no program is a mistake. Builds hold none: it is not built here."""
    for folder in ("named", "cache/otel_rl/backends/1.0/bin"):
        program(tmp_path / folder, "tempo")
    assert {} == find_all({**environ, "OTEL_RL_BACKENDS": str(tmp_path / "named")})
    on_path, elsewhere = program(tmp_path / "first", "tempo"), program(tmp_path / "x", "tempo-3")
    assert {"tempo": on_path} == find_all(environ)
    assert {"tempo": elsewhere} == find_all({**environ, "OTEL_RL_TEMPO_PROGRAM": str(elsewhere)})
    with pytest.raises(StackError, match=r"^OTEL_RL_TEMPO_PROGRAM=/nowhere/tempo is not a program"):
        find_all({**environ, "OTEL_RL_TEMPO_PROGRAM": "/nowhere/tempo"})

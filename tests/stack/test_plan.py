"""What runs where."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.stack import plan
from otel_rl.stack.plan import PORTS, StackError, configurations, copy_configurations, environment, make_plan
from tests.backends import CONFIGURATIONS

FOUND = {name: Path("/bin", name) for name in ("jaeger", "prometheus", "collector", "tempo")}


def test_the_usual_ports() -> None:
    """Where every exporter and every person looks first."""
    rows = {part.name: part.address for part in make_plan(FOUND, 0)}
    expected = {
        "jaeger": "http://127.0.0.1:16686",
        "prometheus": "http://127.0.0.1:9090",
        "tempo": "http://127.0.0.1:3200",
        "collector": "http://127.0.0.1:4317",
    }
    assert expected == rows
    assert sorted(PORTS.values()) == sorted(port for part in make_plan(FOUND, 0) for port in part.ports)


def test_an_offset_shifts_all_of_them() -> None:
    """None stays behind, in no flag and no variable either."""
    usual, shifted = (make_plan(FOUND, offset) for offset in (0, 1000))
    assert [[port + 1000 for port in part.ports] for part in usual] == [list(part.ports) for part in shifted]
    text = " ".join(word for part in shifted for word in (*part.command, *(value for _, value in part.environ)))
    assert [] == [port for port in PORTS.values() if f":{port}" in text or f"={port}" in text.split()]


def test_paths_are_relative_to_the_folder_of_the_stack() -> None:
    """A part reads an absolute one in its own way: `:`, `$` and `"` of a folder's name mean something to each."""
    words = [word for part in make_plan(FOUND, 0) for word in (*part.command[1:], *(v for _, v in part.environ))]
    assert [] == [word for word in words if word.rpartition("=")[2].startswith("/")]
    assert {"."} == {v for part in make_plan(FOUND, 0) for name, v in part.environ if name == "OTEL_RL_STACK_DIR"}


def test_every_address_is_on_loopback() -> None:
    """Nobody else on the network reads prompts, or sends."""
    hosts = {
        value.removeprefix("http://").partition(":")[0]
        for part in make_plan(FOUND, 0)
        for _, value in part.environ
        if ":" in value
    }
    assert {"127.0.0.1"} == hosts


def test_who_is_sent_to_starts_before_who_sends() -> None:
    """The Collector is last."""
    assert "collector" == make_plan(FOUND, 0)[-1].name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("jaeger", "prometheus", "collector"), "[otlp_grpc/jaeger]"),
        (("jaeger", "prometheus", "collector", "tempo"), "[otlp_grpc/jaeger, otlp_grpc/tempo]"),
    ],
)
def test_traces_go_to_tempo_where_there_is_one(names: tuple[str, ...], expected: str) -> None:
    """Otherwise the Collector would wait for it for ever."""
    *_, collector = make_plan({name: FOUND[name] for name in names}, 0)
    assert expected == dict(collector.environ)["OTEL_RL_TRACES_TO"]


def test_what_is_set_for_the_training_does_not_reach_the_programs() -> None:
    """They would send their own telemetry there, and call themselves so.

    What our configurations read stays, but for how to reach other stores.
    """
    *_, collector = make_plan(FOUND, 0)
    user = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
        "OTEL_RESOURCE_ATTRIBUTES": "a=b",
        "OTEL_RL_LOGS_TO": "[file/logs]",
        "OTEL_RL_GRPC": "0.0.0.0:1",
        "OTEL_RL_PROMETHEUS_PATH": "/otlp",
        "OTEL_RL_JAEGER_TLS": "{ca_file: /ca.pem}",
        "HOME": "/h",
    }
    found = environment(collector, user)
    expected = {"HOME": "/h", "OTEL_RL_LOGS_TO": "[file/logs]"} | dict(collector.environ)
    assert (expected, "127.0.0.1:4317") == (found, found["OTEL_RL_GRPC"])


def test_jaeger_does_not_trace_itself() -> None:
    """Its own spans would stand among the steps."""
    jaeger = next(part for part in make_plan(FOUND, 0) if part.name == "jaeger")
    compose = yaml.safe_load((CONFIGURATIONS / "compose.yaml").read_text())["services"]["jaeger"]["environment"]
    assert ["always_off"] * 2 == [found["OTEL_TRACES_SAMPLER"] for found in (environment(jaeger, {}), compose)]


def test_the_largest_offset_that_the_command_takes_is_possible() -> None:
    """No port is above the last one."""
    too_much = CliRunner().invoke(app, ["stack", "up", "--port-offset", "41001"])
    assert (2, True) == (too_much.exit_code, max(PORTS.values()) + 41_000 <= 65_535)


def test_an_installed_package_has_them_and_a_checkout_has_them_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own win; where they are in neither place, the sentence says what to do."""
    package = tmp_path / "otel_rl"
    monkeypatch.setattr(plan, "PACKAGE", package)
    with pytest.raises(StackError, match=r"otel_rl/collector: install otel-rl again$"):
        configurations()
    for folder in (tmp_path / "collector", package / "collector"):
        folder.mkdir(parents=True)
        (folder / "standalone.yaml").write_text("")
        assert folder == configurations()


def test_the_copy_is_whole_and_new(tmp_path: Path) -> None:
    """The copy of an earlier version is overwritten."""
    (tmp_path / "jaeger.yaml").write_text("old")
    copy_configurations(tmp_path)
    source = configurations()
    files = [path for path in source.rglob("*") if path.is_file()]
    assert set() == {"standalone.yaml", "jaeger.yaml", "prometheus.yaml", "tempo.yaml"} - {path.name for path in files}
    assert [path.read_bytes() for path in files] == [
        (tmp_path / path.relative_to(source)).read_bytes() for path in files
    ]

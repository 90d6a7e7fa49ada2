"""`otel-rl doctor` as a user types it."""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError
from pathlib import Path
from typing import Literal

import grpc
import pytest
from google.protobuf.internal import api_implementation
from rich.console import Console
from typer.testing import CliRunner

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.cli import app, checks, shipping
from otel_rl.cli.checks import (
    Check,
    absent,
    hook,
    integrations,
    journal_root,
    protobuf,
    recorded,
    redaction,
    shown,
    standard_variables,
    writers,
)
from otel_rl.cli.commands.doctor import _print
from otel_rl.cli.console import stdout
from otel_rl.cli.shipping import sending, sent
from otel_rl.integrations import OURS, choice
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp import encode
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.process.state import state
from otel_rl.runs.format import size
from otel_rl.sidecar.settings import SIGNALS
from otel_rl.sidecar.ship.progress import ShipProgress, load, save
from otel_rl.sidecar.streams import Position
from tests.fixtures import Recording
from tests.made_runs import Plan, write_run
from tests.programs import launch
from tests.sink import Answer, Tls, make_certificates, sink

cli = CliRunner()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Begin with no setting but the directory of the runs."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_a_sound_machine_is_exit_code_0(root: Path) -> None:
    """Python, packages, settings and the journal's place are shown."""
    result = cli.invoke(app, ["doctor"])
    assert 0 == result.exit_code, result.stdout
    assert all(name in result.stdout for name in ("python", "torch", "OTEL_RL_DIR", "[environment]", "is writable"))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_RL_ENABLED", "perhaps", "perhaps  [not possible: it takes true or false]"),
        ("OTEL_RL_RUN_IDD", "x", "unknown setting, ignored; did you mean OTEL_RL_RUN_ID?"),
        ("OTEL_RL_DIR", "/proc/nowhere", "cannot write below /proc/nowhere"),
        ("OTEL_RL_ON_FINDING", "/nowhere/page --me", "its command (page) does not exist, or is not executable"),
        ("OTEL_RL_ON_FINDING", "/etc/passwd", "its command (passwd) does not exist, or is not executable"),
    ],
)
def test_what_is_wrong_is_exit_code_1(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    """Wrong settings and an unwritable place are named."""
    monkeypatch.setenv(name, value)
    result = cli.invoke(app, ["doctor"])
    assert (1, True) == (result.exit_code, expected in result.stdout), result.stdout


def test_what_is_wrong_twice_is_named_once(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last line counts each, and names a file once."""
    (tmp_path / "mine.toml").write_text("[finding.a]\n[rulez]\n")
    monkeypatch.setenv("OTEL_RL_RULES", str(tmp_path / "mine.toml"))
    result = cli.invoke(app, ["doctor"])
    assert (1, "2 wrong: mine.toml") == (result.exit_code, result.stdout.splitlines()[-1])


def test_an_integration_that_was_asked_for_in_vain_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody knows, and one whose package is absent: neither would be recorded."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "tlr,sglang,auto")
    found = {finding.name: finding for finding in integrations()}
    assert ("wrong", "there is no such integration") == (found["tlr"].state, found["tlr"].detail)
    assert "wrong" == found["sglang"].state
    assert "auto" not in found
    assert {"ok", "note"} >= {found[name].state for name in OURS if name != "sglang"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("note", "OTEL_RL_ENABLED=true would record verl also without otel-rl run")),
        ({"OTEL_RL_ENABLED": "true"}, ("ok", "OTEL_RL_ENABLED=true applies to verl also without otel-rl run")),
        (
            {"OTEL_RL_ENABLED": "true", "VERL_USE_EXTERNAL_PLUGINS": "none"},
            ("note", "VERL_USE_EXTERNAL_PLUGINS=none: verl is recorded below otel-rl run only"),
        ),
    ],
)
def test_whether_verl_starts_otel_rl_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[str, str]
) -> None:
    """Where verl is installed in a version that is supported."""
    monkeypatch.setattr(choice, "every_status", lambda: [choice.Status("verl", "applies", "")])
    known = EntryPoints([EntryPoint("otel_rl", "otel_rl.verl_plugin", "verl.plugins")])
    monkeypatch.setattr(checks, "entry_points", lambda group: known.select(group=group))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = {finding.name: (finding.state, finding.detail) for finding in integrations()}
    assert expected == found["verl's plugin"]


def test_a_plugin_that_verl_does_not_find_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an otel_rl that is on PYTHONPATH only."""
    monkeypatch.setattr(choice, "every_status", lambda: [choice.Status("verl", "applies", "")])
    monkeypatch.setattr(checks, "entry_points", lambda group: EntryPoints())
    monkeypatch.setenv("OTEL_RL_ENABLED", "true")
    found = {finding.name: (finding.state, finding.detail) for finding in integrations()}
    expected = "not installed by pip: verl is recorded below otel-rl run only"
    assert ("note", expected) == found["verl's plugin"]


def test_what_a_run_of_verl_lacks_is_said(recording: Recording) -> None:
    """Its driver recorded, and nobody else."""
    state.identify(system="verl", role="driver")
    with otel_rl.step(1):
        pass
    rows = absent(recording.stop())
    why = "otel_rl may not be installed on its node, or that node writes to a disk of its own"
    assert [("no actor", f"no training: {why}"), ("no agent_loop", f"no rollouts: {why}")] == [
        (row.name, row.detail) for row in rows
    ]


def test_without_a_framework_it_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most likely it is another Python than that of the training; nothing is wrong with otel_rl."""

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("otel_rl.hooks.integration.version", version)
    first, advice, known = integrations()
    assert Check("note", "no framework", f"{sys.executable} has none that otel_rl records by itself") == first
    assert advice.detail.endswith("pip install trl")
    assert {"torch >=2.4", "trl >=1.16,<2"} <= set(known.detail.split(", "))
    result = cli.invoke(app, ["doctor"])
    assert (0, False) == (result.exit_code, "Nothing is wrong." in result.stdout)
    assert "No framework is installed in this Python" in result.stdout
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "trl")
    assert "wrong" == {finding.name: finding.state for finding in integrations()}["trl"]


def test_what_the_collector_reads_is_not_wrong(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown, without its secrets."""
    monkeypatch.setenv("OTEL_RL_STACK_DIR", str(root))
    monkeypatch.setenv("OTEL_RL_GRPC", "127.0.0.1:4317")
    monkeypatch.setenv("OTEL_RL_TOKEN_FILE", "abc")
    result = cli.invoke(app, ["doctor"])
    assert (0, True, False) == (
        result.exit_code,
        "127.0.0.1:4317  [of the Collector]" in result.stdout,
        "abc" in result.stdout,
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_SERVICE_NAME", "mine", "mine  [honoured]"),
        ("OTEL_BSP_SCHEDULE_DELAY", "abc", "set  [not honoured: has no effect on otel_rl]"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer abc", "set (hidden)  [honoured]"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:abc@127.0.0.1:9", "127.0.0.1:9 by grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:abc@127.0.0.1:9", "No server accepts traces at present"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500", "500  [honoured]"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "500", "500  [honoured]"),
        ("OTEL_PYTHON_TRACER_PROVIDER", "mine", "mine  [honoured]"),
        ("OTEL_PROPAGATORS", "b3multi", "b3multi  [honoured]"),
    ],
)
def test_standard_variables_are_judged(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    """Each one that is set is honoured or named as without effect; secrets are hidden."""
    monkeypatch.setenv(name, value)
    text = cli.invoke(app, ["doctor"]).stdout
    assert expected in text
    assert "abc" not in text


def test_a_variable_of_others_that_is_ignored_is_nothing_wrong(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes is said, and what is done without it; what may be secret is hidden."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "xray")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "abc")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "lots")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")
    samplers = "always_on, always_off or traceidratio, also with parentbased_ before it"
    without = "the OpenTelemetry SDK cannot be imported, so spans and metrics of other libraries are not recorded"
    expected = [
        Check("ok", "OTEL_EXPORTER_OTLP_COMPRESSION", "zstd  [honoured]"),
        Check(
            "note",
            "OTEL_RESOURCE_ATTRIBUTES",
            "keys: set (hidden)  [ignored: it takes key=value pairs with commas between them; its default is used]",
        ),
        Check(
            "note",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
            f"lots  [ignored: it takes a whole number, 0 or above; {without}]",
        ),
        Check("note", "OTEL_TRACES_SAMPLER", f"xray  [ignored: it takes {samplers}; its default is used]"),
    ]
    assert expected == standard_variables({"OTEL_EXPORTER_OTLP_COMPRESSION"})
    assert 0 == cli.invoke(app, ["doctor"]).exit_code
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:9")
    said = "zstd  [ignored: it takes gzip or none; its default is used]"
    assert Check("note", "OTEL_EXPORTER_OTLP_COMPRESSION", said) == standard_variables(())[0]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://host:4318/path", "http://host:4318/path"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:pw@host:4318", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:p/w@host:4317", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "me:pw@host:4317", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/v1?sig=abc", "set (hidden)"),
        ("OTEL_RL_PROMETHEUS", "//me:p//w@host:4317", "set (hidden)"),
        ("OTEL_RL_DCGM", "[me:pw@a:9400, me:pw@b:9400]", "set (hidden)"),
        ("OTEL_RL_DIR", "/srv/job@2/runs", "/srv/job@2/runs"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=rl,api.key=abc", "keys: team, api.key"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=rl,abc", "keys: team, set (hidden)"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,,c=d, ", "keys: a, c"),
        ("MY_API_KEY", "abc", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "-----BEGIN CERTIFICATE-----", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "first\nsecond", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.pem", "/etc/ca.pem"),
        ("OTEL_RL_DIR", "/srv/keystone", "/srv/keystone"),
        ("OTEL_RL_RUN_ID", "", ""),
    ],
)
def test_secrets_are_never_shown(name: str, value: str, expected: str) -> None:
    """By the name of the variable, by the name of a pair in it, or as the user or the query of an address."""
    assert expected == shown(name, value)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    "address",
    [
        "http://me:1/abc@host:4317",
        "http://me:a/abc@host:4317",
        "me:abc@127.0.0.1:1",
        "http://127.0.0.1:1/abc@collector.corp",
    ],
)
def test_no_line_shows_the_password_of_an_address(
    root: Path, monkeypatch: pytest.MonkeyPatch, address: str, protocol: str
) -> None:
    """Not that of the variable, and not that of what would be sent there."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    result = cli.invoke(app, ["doctor"])
    assert (1, False, True) == (result.exit_code, "abc" in result.stdout, "(hidden)" in result.stdout), result.stdout


def judged(endpoint: str, **variables: object) -> list[Check]:
    """What is said of sending traces to an address."""
    names = {f"OTEL_EXPORTER_OTLP_{name}": str(value) for name, value in variables.items()}
    none = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("METRICS", "LOGS")}
    found = sending({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **none, **names})
    return [Check(row.state, row.name, row.detail.replace(endpoint.partition("//")[2], "HERE")) for row in found]


SPOKEN = {"grpc": "grpc", "http": "http/protobuf"}


@pytest.fixture
def pem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make certificates, and wait for who has them however slow this machine is."""
    monkeypatch.setattr(shipping, "ANSWER_S", 60.0)
    return make_certificates(tmp_path)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificates_are_tried(pem: Path, protocol: Literal["grpc", "http"]) -> None:
    """By the handshake that the sidecar would make: what listens there says yes, or what of TLS fails is said."""
    how = {"grpc": "HERE by grpc, TLS", "http": "https://HERE/v1/traces by http/protobuf, TLS"}[protocol]
    own = {"CLIENT_CERTIFICATE": pem / "client.pem", "CLIENT_KEY": pem / "client.key"}

    def said(endpoint: str, **variables: object) -> str:
        (row,) = judged(endpoint, PROTOCOL=SPOKEN[protocol], **variables)
        assert row.detail.startswith(how), row
        assert ("ok" if row.detail == how else "wrong", "traces") == (row.state, row.name)
        text, separator, _ = row.detail.removeprefix(how).partition(" fails")
        return text + separator

    fault = ": The traces cannot be sent: TLS fails"
    with sink(protocol, tls=Tls(pem / "server.key", pem / "server.pem")) as server:
        assert "" == said(server.endpoint, CERTIFICATE=pem / "ca.pem")
        assert fault == said(server.endpoint, CERTIFICATE=pem / "other.pem")
        assert fault == said(server.endpoint)
    with sink(protocol, tls=Tls(pem / "server.key", pem / "server.pem", pem / "ca.pem")) as server:
        assert "" == said(server.endpoint, CERTIFICATE=pem / "ca.pem", **own)
        assert "certificates" in said(server.endpoint, CERTIFICATE=pem / "ca.pem")
    with sink(protocol) as server:
        assert fault == said(server.endpoint.replace("http:", "https:"), CERTIFICATE=pem / "ca.pem")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_what_the_server_answers_is_said(root: Path, protocol: Literal["grpc", "http"]) -> None:
    """Each answer that keeps records waiting has a line that says what to do; nothing but an empty request is sent."""
    with sink(protocol) as server:
        for answer, state, expected in (
            (Answer(), "ok", ""),
            (Answer(401, grpc.StatusCode.UNAUTHENTICATED), "wrong", "The server rejected our credentials for traces"),
            (Answer(404, grpc.StatusCode.UNIMPLEMENTED), "wrong", "The server accepts no traces at this address"),
            (Answer(503, grpc.StatusCode.UNAVAILABLE), "wrong", "No server accepts traces at present"),
            (Answer(400, grpc.StatusCode.INVALID_ARGUMENT), "note", "the server answers, but refused an empty request"),
        ):
            server.answer = lambda signal, payload, answer=answer: answer
            (row,) = judged(server.endpoint, PROTOCOL=SPOKEN[protocol])
            assert (state, expected) == (row.state, row.detail.partition(": ")[2].partition(" (")[0])
        assert {b""} == {payload for _, payload, _, _ in server.requests}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_place_where_nobody_listens_is_wrong(protocol: str) -> None:
    """With the words of the operating system."""
    (row,) = judged("http://127.0.0.1:1", PROTOCOL=protocol)
    assert "wrong" == row.state
    assert "No server accepts traces at present (" in row.detail
    assert ", Connection refused); records wait in the journal" in row.detail


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_no_line_shows_the_password_of_a_proxy(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """A proxy that does not answer is wrong."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for proxy in ("http://me:abc@127.0.0.1:1", "http://me:abc/d@127.0.0.1:1"):
        monkeypatch.setenv("http_proxy", proxy)
        (row,) = judged("http://collector.corp:4318", PROTOCOL=protocol)
        assert ("wrong", False) == (row.state, "abc" in row.detail), row


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("traces", "metrics", "logs")),
        ({"ENDPOINT": "http://127.0.0.1:1"}, ("traces", "metrics", "logs")),
        ({"ENDPOINT": "http://127.0.0.1:1", "TIMEOUT": "never"}, ("traces", "metrics", "logs")),
        ({"ENDPOINT": "http://127.0.0.1:1", "LOGS": "none", "METRICS": "none"}, ("traces",)),
        ({"ENDPOINT": "http://127.0.0.1:1", "LOGS": "none", "METRICS": "none", "TRACES": "none"}, ()),
        ({"TRACES_ENDPOINT": "http://127.0.0.1:1"}, ("traces",)),
    ],
)
def test_only_what_is_to_be_sent_waits(
    root: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[str, ...]
) -> None:
    """A signal without an exporter or an endpoint stays in the journal for ever; of no settings nothing is known."""
    path = write_run(root)
    name = next(path.glob("*.traces.*")).name.partition(".")[0]
    progress = load(path, name)
    progress["traces"].put_off("later", "HTTP 503")
    save(path, name, {signal: row.row() for signal, row in progress.items()})
    for variable, value in variables.items():
        monkeypatch.setenv(f"OTEL_{variable}_EXPORTER" if value == "none" else f"OTEL_EXPORTER_OTLP_{variable}", value)
    waiting = sum(file.stat().st_size for signal in expected for file in path.glob(f"*.{signal}.*"))
    (row,) = [finding for finding in sent(open_run(path)) if finding.name == "waiting"]
    assert ("note" if waiting else "ok", f"{size(waiting)} to be sent") == (row.state, row.detail.partition(",")[0])


def test_a_file_that_cannot_be_read_hides_nothing_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it has waited is not known then; that it is damage is said of the records."""

    def first_ns(self: ShipProgress, stream: object) -> int:
        raise PermissionError

    path = write_run(root)
    name = next(path.glob("*.traces.*")).name.partition(".")[0]
    progress = load(path, name)
    progress["traces"].put_off("later", "HTTP 503")
    save(path, name, {signal: row.row() for signal, row in progress.items()})
    monkeypatch.setattr(ShipProgress, "first_ns", first_ns)
    found = {finding.name: finding.detail for finding in sent(open_run(path))}
    assert "HTTP 503: 1; the last answer: HTTP 503" == found["traces put off"]
    assert found["waiting"].endswith(" to be sent")


def test_trying_to_write_leaves_nothing_behind(tmp_path: Path) -> None:
    """No directory is made."""
    root = tmp_path / "a" / "b"
    assert "ok" == journal_root(root)[0].state
    assert [] == list(tmp_path.iterdir())


def test_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C it says what to do; nothing is wrong then."""
    advice = "slower: install otel_rl again where there is a C compiler"
    monkeypatch.setattr(encode, "native", object())
    assert Check("ok", "compiled parts", "spans in C") == checks.compiled()
    monkeypatch.setattr(encode, "native", None)
    assert Check("note", "compiled parts", f"in Python, 3 to 16 us a span {advice}") == checks.compiled()


def test_protobuf_in_python_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A common workaround makes every span 200 times as expensive."""
    monkeypatch.setattr(api_implementation, "Type", lambda: "python")
    assert "wrong" == protobuf().state
    monkeypatch.setattr(api_implementation, "Type", lambda: "upb")
    assert Check("ok", "protobuf", "implementation upb") == protobuf()


def test_a_run_is_examined(root: Path) -> None:
    """Its records and its processes are listed."""
    path = write_run(root)
    result = cli.invoke(app, ["doctor", str(path)])
    assert 0 == result.exit_code, result.stdout
    assert all(text in result.stdout for text in ("recorded, all journaled: 390 spans, ", "gone, pid ", "trainer-1-"))


def test_records_that_are_all_there_are_one_row(recording: Recording) -> None:
    """As many were recorded, encoded and journaled; only the last points of a process are not in its own counts."""
    for number in (1, 2):
        with otel_rl.step(number), otel_rl.stage("tool"):
            recording.tick(5)
        assert otel_rl.flush()
    run = recording.stop()
    spans, points, logs = (sum(frame.count for _, frame in run.frames(signal)) for signal in SIGNALS)
    detail = f"{spans + points + logs} recorded, all journaled: {spans} spans, {points} points, {logs} log records"
    assert [Check("ok", "records", detail)] == recorded(run)


def test_a_signal_of_which_records_are_missing_has_a_row(recording: Recording) -> None:
    """With the count at each stage of their way, of which the last is what can be read."""
    with otel_rl.step(1), otel_rl.stage("tool"):
        recording.tick(5)
    run = recording.stop()
    spans = sum(frame.count for _, frame in run.frames("traces"))
    (file,) = run.path.glob("*.traces.*.otlp")
    file.unlink()
    rows = {row.name: row for row in recorded(open_run(run.path))}
    expected = f"{spans} recorded, {spans} encoded, {spans} journaled, 0 here"
    assert Check("note", "traces", expected) == rows["traces"]
    assert {"records", "traces"} == set(rows)
    assert " here: 0 spans, " in rows["records"].detail


def test_what_a_sidecar_journaled_is_told_apart(root: Path) -> None:
    """No process that records counts it."""
    path = write_run(root)
    (before,) = recorded(open_run(path))
    sidecar = Writer(path, WriterIdentity.current("sidecar", 0), max_bytes=1 << 20)
    sidecar.append("metrics", b"", 1_234, 1, 1)
    sidecar.close()
    (after,) = recorded(open_run(path))
    assert f"{before.detail}; 1,234 more by the sidecar" == after.detail


def test_what_had_to_be_changed_is_a_note(root: Path) -> None:
    """It is said, and the records are there."""
    result = cli.invoke(app, ["doctor", str(write_run(root, Plan(changed=3)))])
    assert (0, True) == (result.exit_code, "changed text_cut" in result.stdout)


def test_a_run_that_lost_something_is_exit_code_1(root: Path) -> None:
    """Dropped records and damage are wrong."""
    path = write_run(root, Plan(dropped=7, killed_in=v.SAMPLE))
    torn = next(path.glob("*.logs.*"))
    torn.write_bytes(torn.read_bytes()[:-3])
    result = cli.invoke(app, ["doctor", str(path)])
    assert 1 == result.exit_code
    assert all(text in result.stdout for text in ("dropped traces journal_full", " damaged"))


def test_what_the_other_side_answered_is_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a request was put off is worth knowing; that nothing is taken at present is wrong."""
    path = write_run(root)
    name = next(path.glob("*.traces.*")).name.partition(".")[0]
    progress = load(path, name)
    progress["logs"].put_off("later", "gRPC UNAVAILABLE")
    progress["logs"].advance(progress["logs"].live, Position(0, 1), {"shipped": 1})
    for kind, reason in (("blocked", "HTTP 401"), ("later", "HTTP 503"), ("later", "HTTP 503")):
        progress["traces"].put_off(kind, reason)
    save(path, name, {signal: row.row() for signal, row in progress.items()})
    found = {finding.name: finding for finding in sent(open_run(path))}
    assert Check("note", "logs put off", "gRPC UNAVAILABLE: 1") == found["logs put off"]
    detail = "HTTP 401 (blocked): 1, HTTP 503: 2; the last answer: HTTP 503"
    assert Check("wrong", "traces put off", detail) == found["traces put off"]
    result = cli.invoke(app, ["doctor", str(path)])
    assert (1, True) == (result.exit_code, detail in result.stdout), result.stdout


def test_nothing_from_outside_orders_the_terminal_about(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes in a setting, in a run's name and in a writer's are replaced."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "a\x1b[2Jb\x9b[/x]")
    path = write_run(root, Plan(run_id="odd\x1b]0;x\x07"))
    shown = cli.invoke(app, ["doctor", str(path)]).stdout
    assert "a\ufffd[2Jb\ufffd[/x]" in shown
    assert set() == set("\x1b\x07\x9b") & set(shown)


@pytest.mark.parametrize("name", ["n" * 5000, "/dev/null/below"])
def test_a_place_that_cannot_be_is_a_finding(name: str) -> None:
    """Not an error of the doctor."""
    assert ["wrong"] == [finding.state for finding in journal_root(Path("/tmp", name))]


def test_a_narrow_terminal_shows_marks_and_details(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name gives way before what is said of it is a letter a line, or nothing."""
    monkeypatch.setenv("COLUMNS", "30")
    console = stdout()
    with console.capture() as capture:
        _print(console, "settings", [Check("wrong", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "no such setting")])
    lines = capture.get().splitlines()
    assert {"✗", "such", "setting"} <= {word for line in lines for word in line.split()}
    assert 30 >= max(map(len, lines))


def test_marks_differ_in_any_encoding() -> None:
    """A question mark would stand for each of them."""
    for encoding, expected in (("utf-8", "✓·✗"), ("ascii", "+-x")):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        _print(Console(file=out), "title", [Check(state, "name", "detail") for state in ("ok", "note", "wrong")])
        out.seek(0)
        assert expected == "".join(line[0] for line in out.read().splitlines()[1:4])


@pytest.mark.parametrize("target", ["", "cat -", f"{sys.executable} 'my hook.py'", "https://example.org/x", "a 'b"])
def test_a_hook_that_may_work_has_no_line(target: str) -> None:
    """An address is not tried; quotes that are open are a matter of the settings."""
    assert [] == hook({"OTEL_RL_ON_FINDING": target})


@pytest.mark.parametrize(
    ("name", "capture", "expected"),
    [
        ("", "true", []),
        ("textwrap:dedent", "true", []),
        ("no_such:f", "perhaps", []),
        ("textwrap:dedent", "", ["without effect: no text is recorded without OTEL_RL_CAPTURE_CONTENT=true"]),
        ("textwrap:no", "true", ["cannot be imported here (AttributeError): no text of a sample is recorded"]),
        ("no_such:f", "true", ["cannot be imported here (ModuleNotFoundError): no text of a sample is recorded"]),
    ],
)
def test_a_redaction_is_tried(name: str, capture: str, expected: list[str]) -> None:
    """It is imported, and not called."""
    environ = {"OTEL_RL_REDACT": name, "OTEL_RL_CAPTURE_CONTENT": capture}
    assert expected == [one.detail for one in redaction(environ)]


def test_rules_that_were_changed_are_listed(root: Path) -> None:
    """What is off, bounds with their defaults, advice and the range of the KL; a wrong name fails the doctor."""
    found = cli.invoke(app, ["doctor"])
    assert "- otel_rl.toml none: the rules are as shipped" in " ".join(found.output.replace("·", "-").split())
    (root / "otel_rl.toml").write_text(
        "[rules.idle]\nenabled = false\n[rules.engine_full]\nlimit = 0.2\nadvice = 'Ask Ada.'\n[kl]\naggressive = 1.0\n"
        "[rules.slow_tial]\n[actions.end]\ndo = 'stop'\nrule = 'divergence'\n"
    )
    found = cli.invoke(app, ["doctor"])
    assert found.exit_code == 1
    lines = [" ".join(line.split()[1:]) for line in found.output.splitlines()]
    for line in (
        "idle switched off",
        "engine_full limit = 0.2 (default 0.05)",
        "engine_full advice: Ask Ada.",
        "action end: stops if divergence holds",
        f"actions {checks.WHERE}",
        "kl usually 0.01 to 0.05 nat; below 0.005 stalled, above 1 too fast (yours)",
        "otel_rl.toml Unknown rule slow_tial is ignored; did you mean slow_tail?",
    ):
        assert line in lines, found.output


KILLED = """
import os, signal
import otel_rl

otel_rl.instrument()
with otel_rl.step(1):
    otel_rl.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_is_worth_knowing(tmp_path: Path) -> None:
    """It may have had records that it did not write."""
    launch.run(tmp_path, "-c", KILLED, code=-signal.SIGKILL, OTEL_RL_RUN_ID="r", OTEL_RL_ATTEMPT_ID="a")
    (check,) = (one for one in writers(open_run(tmp_path / "runs" / "r")) if one.name.startswith("trainer-"))
    assert ("note", "killed") == (check.state, check.detail.partition(",")[0])

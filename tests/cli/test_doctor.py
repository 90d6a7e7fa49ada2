"""`otel-rl doctor` as a user types it."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import grpc
import pytest
from google.protobuf.internal import api_implementation
from rich.console import Console
from typer.testing import CliRunner

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.cli import app, checks, reachability
from otel_rl.cli.checks import Finding, integrations, journal_root, protobuf, recorded, shown, standard_variables
from otel_rl.cli.commands.doctor import _print
from otel_rl.cli.console import stdout
from otel_rl.cli.shipping import sending, sent
from otel_rl.integrations import OURS
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp import encode
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.report.format import size
from otel_rl.requests import queue
from otel_rl.sidecar.follow import Position
from otel_rl.sidecar.settings import targets
from otel_rl.sidecar.ship.client import connect
from otel_rl.sidecar.ship.progress import Progress, load, save
from tests.fixtures import Recording
from tests.made_runs import Plan, write_run
from tests.sink import Tls, make_certificates, sink

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
        ("OTEL_RL_RUN_IDD", "x", "no such setting; meant OTEL_RL_RUN_ID?"),
        ("OTEL_RL_DIR", "/proc/nowhere", "cannot write below /proc/nowhere"),
    ],
)
def test_what_is_wrong_is_exit_code_1(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    """Wrong settings and an unwritable place are named."""
    monkeypatch.setenv(name, value)
    result = cli.invoke(app, ["doctor"])
    assert (1, True) == (result.exit_code, expected in result.stdout), result.stdout


def test_an_integration_that_was_asked_for_in_vain_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody knows, and one whose package is absent: neither would be recorded."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "tlr,sglang,auto")
    found = {finding.name: finding for finding in integrations()}
    assert ("wrong", "there is no such integration") == (found["tlr"].state, found["tlr"].detail)
    assert "wrong" == found["sglang"].state
    assert "auto" not in found
    assert {"ok", "note"} >= {found[name].state for name in OURS if name != "sglang"}


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
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:abc@127.0.0.1:9", "nobody answers"),
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
        Finding("ok", "OTEL_EXPORTER_OTLP_COMPRESSION", "zstd  [honoured]"),
        Finding(
            "note",
            "OTEL_RESOURCE_ATTRIBUTES",
            "keys: set (hidden)  [ignored: it takes key=value pairs with commas between them; its default is used]",
        ),
        Finding(
            "note",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
            f"lots  [ignored: it takes a whole number, 0 or above; {without}]",
        ),
        Finding("note", "OTEL_TRACES_SAMPLER", f"xray  [ignored: it takes {samplers}; its default is used]"),
    ]
    assert expected == standard_variables({"OTEL_EXPORTER_OTLP_COMPRESSION"})
    assert 0 == cli.invoke(app, ["doctor"]).exit_code
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:9")
    said = "zstd  [ignored: it takes gzip or none; its default is used]"
    assert Finding("note", "OTEL_EXPORTER_OTLP_COMPRESSION", said) == standard_variables(())[0]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:pw@host:4318", "https://(hidden)@host:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:p/w@host:4317", "http://(hidden)@host:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:p@w@host:4317", "http://(hidden)@host:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "me:pw@host:4317", "(hidden)@host:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/v1?sig=abc", "https://host/v1?(hidden)"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:pw@host/v1?sig=abc", "https://(hidden)@host/v1?(hidden)"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/v1?sig=a@bc", "set (hidden)"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:p?w@host", "set (hidden)"),
        ("OTEL_RL_PROMETHEUS", "//me:p//w@host:4317", "//(hidden)@host:4317"),
        ("OTEL_RL_DCGM", "[me:pw@a:9400, me:pw@b:9400]", "(hidden)@b:9400]"),
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
    """By the name of the variable, by the name of a pair in it, or as the user of an address."""
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
    assert (1, False, True) == (result.exit_code, "abc" in result.stdout, "(hidden)@" in result.stdout), result.stdout


def test_a_host_that_no_name_can_be_is_a_finding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error of the doctor."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://my..host:4317")
    result = cli.invoke(app, ["doctor"])
    expected = "http://my..host:4317 by grpc: nobody answers (no possible name of a host); records wait in the journal"
    assert (1, True) == (result.exit_code, expected.removeprefix("http://") in result.stdout), result.stdout


def judged(endpoint: str, **variables: object) -> list[Finding]:
    """What is said of sending traces to an address."""
    names = {f"OTEL_EXPORTER_OTLP_{name}": str(value) for name, value in variables.items()}
    found = sending({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint, **names})
    return [Finding(row.state, row.name, row.detail.replace(endpoint.partition("//")[2], "HERE")) for row in found]


SPOKEN = {"grpc": "grpc", "http": "http/protobuf"}


@pytest.fixture
def pem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make certificates, and wait for who has them however slow this machine is."""
    monkeypatch.setattr(reachability, "ANSWER_S", 60.0)
    return make_certificates(tmp_path)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificates_are_tried(pem: Path, protocol: Literal["grpc", "http"]) -> None:
    """By the handshake that the sidecar would make: what listens there says yes, or what of TLS fails is said."""
    how = {"grpc": "HERE by grpc, TLS", "http": "https://HERE by http/protobuf, TLS"}[protocol]
    own = {"CLIENT_CERTIFICATE": pem / "client.pem", "CLIENT_KEY": pem / "client.key"}

    def said(endpoint: str, **variables: object) -> str:
        (row,) = judged(endpoint, PROTOCOL=SPOKEN[protocol], **variables)
        assert row.detail.startswith(how), row
        assert ("ok" if row.detail == how else "wrong", "traces") == (row.state, row.name)
        return row.detail.removeprefix(how).removesuffix("; records wait in the journal").partition(" (")[0]

    with sink(protocol, tls=Tls(pem / "server.key", pem / "server.pem")) as server:
        assert "" == said(server.endpoint, CERTIFICATE=pem / "ca.pem")
        assert ": TLS fails" == said(server.endpoint, CERTIFICATE=pem / "other.pem")
        assert ": TLS fails" == said(server.endpoint)
    with sink(protocol, tls=Tls(pem / "server.key", pem / "server.pem", pem / "ca.pem")) as server:
        assert "" == said(server.endpoint, CERTIFICATE=pem / "ca.pem", **own)
        assert ": TLS fails" == said(server.endpoint, CERTIFICATE=pem / "ca.pem")
    with sink(protocol) as server:
        assert ": TLS fails" == said(server.endpoint.replace("http:", "https:"), CERTIFICATE=pem / "ca.pem")


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificates_are_judged_as_the_client_does(pem: Path, protocol: Literal["grpc", "http"]) -> None:
    """By gRPC it trusts a certificate that it is given, whoever signed that; by HTTP no common name is a host."""
    make_chain(pem)
    for server, authority, host in (
        (pem / "chain.pem", pem / "middle.pem", "127.0.0.1"),
        (pem / "chain.pem", pem / "leaf.pem", "127.0.0.1"),
        (pem / "chain.pem", pem / "ca.pem", "localhost"),
        (pem / "nameless.pem", pem / "ca.pem", "localhost"),
    ):
        with sink(protocol, tls=Tls(pem / "leaf.key", server)) as taken:
            variables = {
                "ENDPOINT": taken.endpoint.replace("127.0.0.1", host),
                "PROTOCOL": SPOKEN[protocol],
                "CERTIFICATE": str(authority),
                "TIMEOUT": "60000",
            }
            environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
            client = connect(targets(environ)[0])
            answered = client.send(b"").kind
            client.close()
            assert {"accepted": "ok", "later": "wrong"}[answered] == sending(environ)[0].state, (server, authority)


def make_chain(pem: Path) -> None:
    """Add an authority that the first one signed, a server's certificate of that, and one that names no address."""
    (pem / "middle.ext").write_text("basicConstraints=critical,CA:TRUE")
    for name, subject, authority, extensions in (
        ("middle", "middle", "ca", ["-extfile", "middle.ext"]),
        ("leaf", "localhost", "middle", ["-extfile", "server.ext"]),
        ("nameless", "localhost", "ca", []),
    ):
        key = [] if name == "nameless" else ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key"]
        asked = ["req", "-new", *(key or ["-key", "leaf.key"]), "-out", f"{name}.csr", "-subj", f"/CN={subject}"]
        signed = ["x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                  "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", *extensions]  # fmt: skip
        for arguments in (asked, signed):
            subprocess.run(["openssl", *arguments], cwd=pem, check=True, capture_output=True)
    (pem / "chain.pem").write_bytes((pem / "leaf.pem").read_bytes() + (pem / "middle.pem").read_bytes())


@pytest.mark.parametrize(
    ("protocol", "variables", "expected"),
    [
        ("grpc", {"grpc_proxy": "http://me:abc@a:1", "https_proxy": "http://b", "http_proxy": "http://c"}, "a"),
        ("grpc", {"https_proxy": "http://b", "http_proxy": "http://c"}, "b"),
        ("grpc", {"http_proxy": "http://c", "NO_PROXY": "corp", "no_proxy": "*"}, "c"),
        ("grpc", {"http_proxy": "http://c", "no_proxy": "x, .CORP"}, ""),
        ("grpc", {"http_proxy": "http://c", "no_grpc_proxy": "corp", "no_proxy": "x"}, ""),
        ("grpc", {"http_proxy": "http://c", "no_grpc_proxy": "x", "no_proxy": "corp"}, "c"),
        ("grpc", {"HTTP_PROXY": "http://c", "ALL_PROXY": "http://c"}, ""),
        ("grpc", {"http_proxy": "https://c"}, ""),
        ("grpc", {"grpc_proxy": "", "http_proxy": "http://c"}, ""),
        ("http/protobuf", {"HTTP_PROXY": "http://me:a@bc@a:1", "HTTPS_PROXY": "http://b"}, "a"),
        ("http/protobuf", {"http_proxy": "a.corp:1"}, "a.corp"),
        ("http/protobuf", {"ALL_PROXY": "http://a"}, "a"),
        ("http/protobuf", {"HTTP_PROXY": "http://a", "NO_PROXY": "corp"}, ""),
        ("http/protobuf", {"grpc_proxy": "http://a", "HTTPS_PROXY": "http://b"}, ""),
    ],
)
def test_the_proxy_is_the_clients(
    monkeypatch: pytest.MonkeyPatch, protocol: str, variables: dict[str, str], expected: str
) -> None:
    """Each client reads variables of its own."""
    set_proxies(monkeypatch, variables)
    where = {"ENDPOINT": "http://collector.corp:4318", "PROTOCOL": protocol}
    target, *_ = targets({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in where.items()})
    found = reachability.proxy(target)
    assert expected == ((found.hostname or "") if found else "")


PROXY = "http://127.0.0.9:9"
UNREADABLE = "its proxy cannot be used (no possible address: it takes http://host:port)"
WITHOUT_PACKAGE = "" if find_spec("socks") else "its proxy cannot be used (SOCKS needs the package PySocks)"
OF_A_NAME = [
    ("collector.localhost:4", {"http_proxy": PROXY, "no_proxy": spared})
    for spared in (
        "x", "collector.localhost", ".collector.localhost", ".localhost", "localhost", "..localhost",
        "lector.localhost", "LOCALHOST", "*", "*.localhost", ".", " , ", "\t.localhost ", "collector.localhost:4",
        "localhost/8",
    )
]  # fmt: skip
OF_AN_ADDRESS = [
    (place, {"http_proxy": PROXY, "no_proxy": spared})
    for place, entries in (
        ("127.1.2.3:4", ("127.0.0.0/8", "127.1.2.3/32", "127.2.0.0/16", "127.1.2", "2.3", "::/0", "127.0.0.0/x")),
        ("[::1]:4", ("::1", "[::1]", "1", ":1", "::/0")),
    )
    for spared in entries
]
OF_PROXIES = [
    ("collector.localhost:4", {"http_proxy": proxy})
    for proxy in (
        "HTTP://127.0.0.9:9", "127.0.0.9:9", "https://127.0.0.9:9", " http://127.0.0.9:9", f"{PROXY}\n",
        f"{PROXY}/path", "http:127.0.0.9:9", "http://127.0.0.9", "http://127.0.0.9:", "http://[::1]", "http://", "http:///x",
        "http://me@", "http://me:p@w@127.0.0.9:9", "http://me:p\N{ACCOUNT OF}w@127.0.0.9:9",
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "variables"),
    [
        *OF_A_NAME,
        *OF_AN_ADDRESS,
        *OF_PROXIES,
        ("127.0.0.1:4", {"http_proxy": PROXY}),
        ("127.0.0.1:4", {"grpc_proxy": "", "http_proxy": PROXY}),
        ("127.0.0.1:4", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}),
        ("127.0.0.1:4", {"grpc_proxy": PROXY, "https_proxy": "http://127.0.0.8", "http_proxy": "http://127.0.0.7"}),
        ("127.0.0.1:4", {"http_proxy": PROXY, "no_grpc_proxy": "", "no_proxy": "127.0.0.1"}),
        ("127.0.0.1:4", {"http_proxy": PROXY, "NO_PROXY": "127.0.0.1"}),
        ("127.0.0.1:4", {"http_proxy": "http://[bad", "no_proxy": "127.0.0.1"}),
    ],
)
def test_the_proxy_is_that_which_grpc_dials(
    monkeypatch: pytest.MonkeyPatch, place: str, variables: dict[str, str]
) -> None:
    """The client says where it called in vain: nobody listens there."""
    set_proxies(monkeypatch, variables)
    (target,) = targets({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://{place}"})
    host = place.removesuffix(":4").strip("[]")
    assert (reachability.proxy(target) or ("127.0.0.1" if host == "collector.localhost" else host, 4)) == dialed(place)


def dialed(place: str) -> tuple[str, int]:
    """Host and port that the real client of gRPC calls to send to a place."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(place, alone) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/a/b")(b"", timeout=60)
    found = re.search(r"ipv[46]:(\S+):(\d+): ", caught.value.details())
    assert found is not None, caught.value.details()
    return unquote(found[1]).strip("[]"), int(found[2])


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    "address",
    [
        "http://[bad",
        "http://127.0.0.1:x",
        "http://:1",
        "http://me:abc/d@127.0.0.1:1",
        "http://abc:1/d@127.0.0.1:1",
        "http://127.0.0.1:1/abc@proxy",
        "http://me:abc\N{ACCOUNT OF}@127.0.0.1:1",
    ],
)
def test_a_proxy_that_cannot_be_read_is_a_finding(
    root: Path, monkeypatch: pytest.MonkeyPatch, address: str, protocol: str
) -> None:
    """Not an error of the doctor, which could show its password."""
    set_proxies(monkeypatch, {"http_proxy": address})
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.corp:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    result = cli.invoke(app, ["doctor"])
    is_read_by_grpc = "\N{ACCOUNT OF}" in address and protocol == "grpc"
    said = "nobody answers at its proxy 127.0.0.1" if is_read_by_grpc else UNREADABLE
    assert (1, True, False) == (result.exit_code, f": {said}" in result.stdout, "abc" in result.stdout), result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("http://127.0.0.1", ""),
        ("HTTP://127.0.0.1", ""),
        ("https://127.0.0.1", ""),
        ("127.0.0.1", ""),
        ("localhost", UNREADABLE),
        ("ftp://127.0.0.1", UNREADABLE),
        ("socks9://127.0.0.1", UNREADABLE if find_spec("socks") else WITHOUT_PACKAGE),
        ("socks5://127.0.0.1", WITHOUT_PACKAGE),
        ("socks5h://127.0.0.1", WITHOUT_PACKAGE),
    ],
)
def test_a_proxy_that_the_client_cannot_use(monkeypatch: pytest.MonkeyPatch, host: str, expected: str) -> None:
    """It is wrong also where somebody listens; the client says the same of it for ever."""
    where = {"TRACES_ENDPOINT": "http://collector.corp:4318", "TIMEOUT": "60000"}
    (target,) = targets({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in where.items()})
    with socket.create_server(("127.0.0.1", 0)) as server:
        set_proxies(monkeypatch, {"all_proxy": f"{host}:{server.getsockname()[1]}"})
        assert expected == reachability.trouble(target)
    client = connect(target)
    reason = client.send(b"").reason
    client.close()
    assert bool(expected) == (reason in ("InvalidSchema", "InvalidURL", "InvalidProxyURL")), reason


def test_an_address_that_goes_by_no_proxy_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie in a network that is named."""
    (target,) = targets({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://10.1.2.3:4317"})
    set_proxies(monkeypatch, {"http_proxy": "http://c", "no_proxy": "10.2.0.0/16"})
    assert reachability.proxy(target) is not None
    set_proxies(monkeypatch, {"http_proxy": "http://c", "no_proxy": "10.2.0.0/16, 10.1.0.0/16"})
    assert reachability.proxy(target) is None


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_behind_a_proxy_only_that_is_tried(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """Who is behind it only it can tell; its password is not shown."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        set_proxies(monkeypatch, {"http_proxy": f"http://me:abc@127.0.0.1:{port}"})
        (found,) = judged("http://collector.corp:4318", PROTOCOL=protocol)
        assert "note" == found.state
        assert found.detail.endswith("; its proxy 127.0.0.1 answers, what is behind that was not tried"), found
    (found,) = judged("http://collector.corp:4318", PROTOCOL=protocol)
    assert "wrong" == found.state
    assert ": nobody answers at its proxy 127.0.0.1 (Connection refused); records wait" in found.detail
    set_proxies(monkeypatch, {"http_proxy": "http://me:abc/d@127.0.0.1"})
    (found,) = judged("http://collector.corp:4318", PROTOCOL=protocol)
    assert ("wrong", False) == (found.state, "abc" in found.detail), found


def set_proxies(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Let the environment name these proxies and no other."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


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

    def first_ns(self: Progress, stream: object) -> int:
        raise PermissionError

    path = write_run(root)
    name = next(path.glob("*.traces.*")).name.partition(".")[0]
    progress = load(path, name)
    progress["traces"].put_off("later", "HTTP 503")
    save(path, name, {signal: row.row() for signal, row in progress.items()})
    monkeypatch.setattr(Progress, "first_ns", first_ns)
    found = {finding.name: finding.detail for finding in sent(open_run(path))}
    assert "HTTP 503: 1; the last answer: HTTP 503" == found["traces put off"]
    assert found["waiting"].endswith(" to be sent")


def test_trying_to_write_leaves_nothing_behind(tmp_path: Path) -> None:
    """Directories that were made for the attempt go again."""
    root = tmp_path / "a" / "b"
    assert "ok" == journal_root(root)[0].state
    assert [] == list(tmp_path.iterdir())


def test_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C it says what to do; nothing is wrong then."""
    advice = "slower: install otel_rl again where there is a C compiler"
    for module in (encode, queue):
        monkeypatch.setattr(module, "native", object())
    assert Finding("ok", "compiled parts", "spans and requests in C") == checks.compiled()
    monkeypatch.setattr(queue, "native", None)
    assert Finding("note", "compiled parts", f"in Python, 3 to 5 us a request {advice}") == checks.compiled()
    monkeypatch.setattr(encode, "native", None)
    assert Finding("note", "compiled parts", f"in Python, 3 to 5 us a span and a request {advice}") == checks.compiled()


def test_protobuf_in_python_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A common workaround makes every span 200 times as expensive."""
    monkeypatch.setattr(api_implementation, "Type", lambda: "python")
    assert "wrong" == protobuf().state
    monkeypatch.setattr(api_implementation, "Type", lambda: "upb")
    assert Finding("ok", "protobuf", "implementation upb") == protobuf()


def test_a_run_is_examined(root: Path) -> None:
    """Its records and its processes are listed."""
    path = write_run(root)
    result = cli.invoke(app, ["doctor", str(path)])
    assert 0 == result.exit_code, result.stdout
    assert all(text in result.stdout for text in ("390 records journaled", "gone, pid ", "trainer-1-"))


def test_what_a_process_counted_is_shown(recording: Recording) -> None:
    """By signal: what it recorded, what of that was encoded and what was journaled."""
    with otel_rl.step(1), otel_rl.stage("tool"):
        pass
    rows = {row.name: row for row in recorded(recording.stop())}
    number = rows["traces"].detail.partition(" ")[0]
    for name in ("recorded traces", "encoded traces", "journaled traces"):
        assert Finding("ok", name, number) == rows[name]


def test_counted_points_and_those_that_say_so_are_all(recording: Recording) -> None:
    """The last points of a process hold how many there were before them."""
    for number in (1, 2):
        with otel_rl.step(number), otel_rl.stage("tool"):
            recording.tick(5)
        assert otel_rl.flush()
    run = recording.stop()
    rows = {row.name: row.detail for row in recorded(run)}
    *before, last = (frame.count for _, frame in run.frames("metrics"))
    assert rows["metrics"].startswith(f"{sum(before) + last} records journaled ")
    assert f"{sum(before)}, without the last points, which say so" == rows["journaled metrics"]


def test_what_a_sidecar_journaled_is_told_apart(root: Path) -> None:
    """No process that records counts it; a signal of which it wrote nothing names none."""
    path = write_run(root)
    sidecar = Writer(path, WriterIdentity.current("sidecar", 0), max_bytes=1 << 20)
    sidecar.append("metrics", b"", 1_234, 1, 1)
    sidecar.close()
    rows = {row.name: row.detail for row in recorded(open_run(path))}
    assert "390 records journaled by its processes are here" == rows["traces"]
    assert rows["metrics"].endswith(" records journaled by its processes are here, and 1,234 by the sidecar")


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
    assert Finding("note", "logs put off", "gRPC UNAVAILABLE: 1") == found["logs put off"]
    detail = "HTTP 401 (blocked): 1, HTTP 503: 2; the last answer: HTTP 503"
    assert Finding("wrong", "traces put off", detail) == found["traces put off"]
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
        _print(console, "settings", [Finding("wrong", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "no such setting")])
    lines = capture.get().splitlines()
    assert {"✗", "such", "setting"} <= {word for line in lines for word in line.split()}
    assert 30 >= max(map(len, lines))


def test_marks_differ_in_any_encoding() -> None:
    """A question mark would stand for each of them."""
    for encoding, expected in (("utf-8", "✓·✗"), ("ascii", "+-x")):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        _print(Console(file=out), "title", [Finding(state, "name", "detail") for state in ("ok", "note", "wrong")])
        out.seek(0)
        assert expected == "".join(line[0] for line in out.read().splitlines()[1:4])

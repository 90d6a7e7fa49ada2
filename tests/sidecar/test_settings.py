"""Where to send: every variable of OTLP, a signal's own before the general ones, and values that are not possible."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_rl.config import FOREIGN, ConfigurationError
from otel_rl.sidecar.settings import Target, ignored, is_sent, targets
from tests.sink import make_certificates

GENERAL = "OTEL_EXPORTER_OTLP_"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of them, and of files that are none."""
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    whole = (made / "ca.pem").read_text()
    for name, text in {"bad": "garbage", "cut": whole[:300], "mixed": f"a comment\n{whole}\ngarbage"}.items():
        (made / f"{name}.pem").write_text(f"{text}\n")
    lock = ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", "client.key", "-out", "locked.key"]
    subprocess.run(lock, cwd=made, check=True, capture_output=True)
    return made


def read(**variables: str) -> dict[str, Target]:
    """Read the targets by signal; the names are without their prefix."""
    return {target.signal: target for target in targets({GENERAL + name: value for name, value in variables.items()})}


def test_nothing_is_sent_without_an_endpoint() -> None:
    """Neither empty nor other variables make a target."""
    assert {} == read() == read(ENDPOINT=" ") == read(PROTOCOL="grpc", HEADERS="a=b")


@pytest.mark.parametrize(
    ("endpoint", "place", "secure"),
    [
        ("http://collector:4317", "collector:4317", False),
        ("https://collector:4317", "collector:4317", True),
        ("http://collector", "collector:4317", False),
        ("https://collector/path", "collector:4317", True),
        ("collector:4317", "collector:4317", True),
        ("http://[::1]:4317", "[::1]:4317", False),
        ("https://[fd00::2]", "[fd00::2]:4317", True),
        ("http://user:secret@collector:5", "collector:5", False),
        ("HTTP://collector:4317", "collector:4317", False),
    ],
)
def test_endpoints_of_grpc(endpoint: str, place: str, secure: bool) -> None:
    """Scheme, host and port count."""
    target = read(ENDPOINT=endpoint, PROTOCOL="grpc")["traces"]
    assert (place, secure, "grpc") == (target.endpoint, target.secure, target.protocol)


@pytest.mark.parametrize(("insecure", "secure"), [("true", False), ("TRUE", False), ("false", True), ("", True)])
def test_insecure_counts_without_a_scheme(insecure: str, secure: bool) -> None:
    """With a scheme, that says it."""
    assert secure is read(ENDPOINT="collector:4317", INSECURE=insecure)["logs"].secure
    assert read(ENDPOINT="https://collector:4317", INSECURE=insecure)["logs"].secure
    assert secure is read(ENDPOINT="collector:4317", LOGS_INSECURE=insecure)["logs"].secure


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/prefix", "https://collector/prefix/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("http://collector:4318/x?token=a", "http://collector:4318/x/v1/traces?token=a"),
    ],
)
def test_endpoints_of_http(endpoint: str, url: str) -> None:
    """The general one is a prefix, a signal's own one is the whole URL."""
    assert url == read(ENDPOINT=endpoint, PROTOCOL="http/protobuf")["traces"].endpoint
    own = read(ENDPOINT="http://other:1", TRACES_ENDPOINT=endpoint, PROTOCOL="http/protobuf")
    assert (endpoint, "http://other:1/v1/logs") == (own["traces"].endpoint, own["logs"].endpoint)


def test_the_usual_port_says_the_protocol() -> None:
    """4318 is HTTP; anything else, and what is said, counts before it."""
    assert "http/protobuf" == read(ENDPOINT="http://c:4318")["traces"].protocol
    assert "grpc" == read(ENDPOINT="http://c:4317")["traces"].protocol
    assert "grpc" == read(ENDPOINT="http://c:9")["traces"].protocol
    assert "grpc" == read(ENDPOINT="http://c:4318", PROTOCOL="grpc")["traces"].protocol


@pytest.mark.medium
def test_each_signal_has_its_own(tmp_path: Path) -> None:
    """Every variable has one for each signal, which counts before the general one, unless it is empty."""
    made = make_certificates(tmp_path)
    files = {"ca": "ca.pem", "ca2": "other.pem", "key": "client.key", "cert": "client.pem"}
    names = {name: made / file for name, file in files.items()}
    found = read(
        ENDPOINT="http://general:4317", METRICS_ENDPOINT="https://own:1/push", LOGS_ENDPOINT="",
        PROTOCOL="grpc", METRICS_PROTOCOL="http/protobuf",
        HEADERS="a=1", METRICS_HEADERS="B=2, c = x%20y ,",
        TIMEOUT="1500", METRICS_TIMEOUT="10",
        COMPRESSION="gzip", METRICS_COMPRESSION="none",
        CERTIFICATE=str(names["ca"]), METRICS_CERTIFICATE=str(names["ca2"]),
        METRICS_CLIENT_KEY=str(names["key"]), METRICS_CLIENT_CERTIFICATE=str(names["cert"]),
    )  # fmt: skip
    general = Target("traces", "grpc", "general:4317", False, (("a", "1"),), 1.5, True, names["ca"])
    own = Target(
        "metrics", "http/protobuf", "https://own:1/push", True, (("b", "2"), ("c", "x y")), 0.01, False,
        names["ca2"], names["key"], names["cert"],
    )  # fmt: skip
    assert (general, own) == (found["traces"], found["metrics"])
    assert "general:4317" == found["logs"].endpoint


def test_what_is_not_said() -> None:
    """The specification's defaults."""
    target = read(TRACES_ENDPOINT="http://c:4317")["traces"]
    assert Target("traces", "grpc", "c:4317", False, (), 10.0, False) == target
    assert ["traces"] == list(read(TRACES_ENDPOINT="http://c:4317"))


@pytest.mark.parametrize(
    ("value", "signals"),
    [
        ("none", ["metrics", "logs"]),
        ("console", ["metrics", "logs"]),
        ("OTLP", ["traces", "metrics", "logs"]),
        ("console, otlp", ["traces", "metrics", "logs"]),
        ("", ["traces", "metrics", "logs"]),
    ],
)
def test_a_signal_that_goes_elsewhere(value: str, signals: list[str]) -> None:
    """OTEL_TRACES_EXPORTER takes a signal out."""
    environ = {GENERAL + "ENDPOINT": "http://c:4317", "OTEL_TRACES_EXPORTER": value}
    assert signals == [target.signal for target in targets(environ)]


SECRET = "hunter2"
PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET * 40}\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ENDPOINT": "ftp://c"}, "ENDPOINT"),
        ({"ENDPOINT": "http://"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:{SECRET}@c:99999"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:{SECRET}@c:x"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:{SECRET}@[::1"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:1/{SECRET}@c:4318"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:/{SECRET}@c"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:1@2/{SECRET}@c"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://{SECRET}/{SECRET}@c:4318"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:1/{SECRET}@c"}, "ENDPOINT"),
        ({"ENDPOINT": f"http://u:4318?{SECRET}@c", "PROTOCOL": "grpc"}, "ENDPOINT"),
        ({"ENDPOINT": "unix:///socket"}, "ENDPOINT"),
        ({"ENDPOINT": "c:4318"}, "ENDPOINT"),
        ({"TRACES_ENDPOINT": "::"}, "TRACES_ENDPOINT"),
        ({"HEADERS": SECRET}, "HEADERS"),
        ({"HEADERS": f"={SECRET}"}, "HEADERS"),
        ({"HEADERS": f"a b={SECRET}"}, "HEADERS"),
        ({"HEADERS": f"a={SECRET}%0d%0ab: c"}, "HEADERS"),
        ({"HEADERS": f"a={SECRET}ä"}, "HEADERS"),
        ({"HEADERS": f"a-bin={SECRET}"}, "HEADERS"),
        ({"METRICS_HEADERS": SECRET}, "METRICS_HEADERS"),
        ({"CERTIFICATE": "/nowhere/ca"}, "CERTIFICATE"),
        ({"CLIENT_KEY": "/nowhere/key"}, "CLIENT_KEY"),
        ({"CLIENT_KEY": __file__}, "CLIENT_KEY"),
        ({"LOGS_CLIENT_CERTIFICATE": "/nowhere/c"}, "LOGS_CLIENT_CERTIFICATE"),
        ({"CERTIFICATE": PEM}, "CERTIFICATE"),
        ({"CERTIFICATE": "/" + "x" * 300}, "CERTIFICATE"),
        ({"CERTIFICATE": "/nowhere/\0"}, "CERTIFICATE"),
        ({"CERTIFICATE": f"{SECRET}\n{SECRET}"}, "CERTIFICATE"),
        ({"CERTIFICATE": f"{SECRET}\x01"}, "CERTIFICATE"),
        ({"CLIENT_CERTIFICATE": f"-----BEGIN PRIVATE KEY-----\\n{SECRET}"}, "CLIENT_CERTIFICATE"),
        ({"CLIENT_CERTIFICATE": SECRET * 40}, "CLIENT_CERTIFICATE"),
        ({"CLIENT_KEY": PEM}, "CLIENT_KEY"),
        ({"CLIENT_KEY": SECRET}, "CLIENT_KEY"),
        ({"TRACES_CLIENT_KEY": SECRET}, "TRACES_CLIENT_KEY"),
    ],
)
def test_a_value_that_is_not_possible(variables: Mapping[str, str], named: str) -> None:
    """The variable is named, and no secret is shown."""
    with pytest.raises(ConfigurationError, match=rf"^{GENERAL}{named}\b.* is not possible: ") as caught:
        read(**{"ENDPOINT": "http://c:4317", **variables})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("PROTOCOL", "http/json", "grpc or http/protobuf"),
        ("LOGS_PROTOCOL", PEM, "grpc or http/protobuf"),
        ("TIMEOUT", "10s", "milliseconds, a whole number above 0"),
        ("TIMEOUT", "0", "milliseconds, a whole number above 0"),
        ("TRACES_TIMEOUT", "²", "milliseconds, a whole number above 0"),
        ("METRICS_TIMEOUT", "-1", "milliseconds, a whole number above 0"),
        ("COMPRESSION", "zstd", "gzip or none"),
        ("TRACES_COMPRESSION", PEM, "gzip or none"),
        ("INSECURE", "1", "true or false"),
    ],
)
def test_how_to_send_has_a_default(variable: str, value: str, allowed: str) -> None:
    """What is no value counts as not set, and is said; without an endpoint it is of no importance."""
    environ = {GENERAL + variable: value}
    sent = {GENERAL + "ENDPOINT": "http://c:4318", **environ}
    assert targets({GENERAL + "ENDPOINT": "http://c:4318"}) == targets(sent)
    expected = {GENERAL + variable: f"it takes {allowed}; its default is used"}
    assert (expected, {}) == (ignored(sent), ignored(environ))


def test_an_own_variable_that_is_ignored_leaves_the_general_one() -> None:
    """As where it is not set; capitals are no mistake."""
    found = read(ENDPOINT="http://c:4317", PROTOCOL="HTTP/Protobuf", COMPRESSION="GZIP", LOGS_PROTOCOL="thrift")
    assert [("http/protobuf", True)] * 3 == [(target.protocol, target.gzip) for target in found.values()]


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("CERTIFICATE", "/nowhere/ca", "CERTIFICATE"),
        ("CERTIFICATE", PEM, "CERTIFICATE"),
        ("LOGS_CLIENT_KEY", "/nowhere/key", "LOGS_CLIENT_KEY"),
    ],
)
def test_what_a_path_has_to_be_is_said(variable: str, value: str, named: str) -> None:
    """The value is never shown: it may be a certificate or a key."""
    with pytest.raises(ConfigurationError) as caught:
        read(ENDPOINT="http://c:4317", **{variable: value})
    expected = f"{GENERAL}{named} is not possible: it takes the path of a file, and there is no such file"
    assert expected == str(caught.value)


HOLDS_NO_CERTIFICATE = "it holds no certificate in PEM that can be read"
HOLDS_NO_KEY = "it holds no certificate in PEM, or there is no key to it without a password"


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    ("files", "named", "said"),
    [
        ({"CERTIFICATE": "bad.pem"}, "CERTIFICATE", HOLDS_NO_CERTIFICATE),
        ({"LOGS_CERTIFICATE": "cut.pem"}, "LOGS_CERTIFICATE", HOLDS_NO_CERTIFICATE),
        ({"CERTIFICATE": "client.key"}, "CERTIFICATE", HOLDS_NO_CERTIFICATE),
        ({"CLIENT_CERTIFICATE": "bad.pem", "CLIENT_KEY": "client.key"}, "CLIENT_CERTIFICATE", HOLDS_NO_KEY),
        ({"CLIENT_CERTIFICATE": "client.pem"}, "CLIENT_CERTIFICATE", HOLDS_NO_KEY),
        ({"CLIENT_CERTIFICATE": "client.pem", "CLIENT_KEY": "bad.pem"}, "CLIENT_CERTIFICATE", HOLDS_NO_KEY),
        ({"CLIENT_CERTIFICATE": "client.pem", "CLIENT_KEY": "other.key"}, "CLIENT_CERTIFICATE", HOLDS_NO_KEY),
        ({"CLIENT_CERTIFICATE": "client.pem", "CLIENT_KEY": "locked.key"}, "CLIENT_CERTIFICATE", HOLDS_NO_KEY),
    ],
)
def test_a_file_that_tls_cannot_use(
    certificates: Path, files: Mapping[str, str], named: str, said: str, protocol: str
) -> None:
    """It is said before anything is sent; the other side would only seem to be down. Nobody asks for a password."""
    variables = {name: str(certificates / file) for name, file in files.items()}
    with pytest.raises(ConfigurationError) as caught:
        read(ENDPOINT="https://c:1", PROTOCOL=protocol, **variables)
    assert f"{GENERAL}{named} is not possible: {said}" == str(caught.value)


def test_files_that_tls_can_use(certificates: Path) -> None:
    """A bundle, whatever stands beside its certificates, and a key with its certificate in one file."""
    mixed, both = certificates / "mixed.pem", certificates / "both.pem"
    found = read(ENDPOINT="https://c:1", CERTIFICATE=str(mixed), CLIENT_CERTIFICATE=str(both))["logs"]
    assert (mixed, None, both) == (found.certificate, found.client_key, found.client_certificate)


def test_files_that_nobody_uses(certificates: Path) -> None:
    """Without TLS it does not count what they hold."""
    path = certificates / "bad.pem"
    assert path == read(ENDPOINT="http://c:1", CERTIFICATE=str(path))["logs"].certificate


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_a_timeout_for_ever(digits: int) -> None:
    """It is as long as a socket can wait."""
    assert 2147483.647 == read(ENDPOINT="http://c:4317", TIMEOUT="9" * digits)["traces"].timeout_s


def test_a_password_that_has_to_be_written_otherwise() -> None:
    """It is said how."""
    with pytest.raises(ConfigurationError) as caught:
        read(ENDPOINT="http://u:1/2@c:4318")
    assert str(caught.value) == (
        f"{GENERAL}ENDPOINT is not possible: it takes http://host:port or https://host:port, "
        "a password's / and @ as %2F and %40"
    )
    assert "http://u:1%2F2@c:4318/v1/traces" == read(ENDPOINT="http://u:1%2F2@c:4318")["traces"].endpoint


def test_no_secret_is_shown() -> None:
    """Neither in the representation of a target nor where its endpoint is printed."""
    target = read(ENDPOINT=f"http://u:{SECRET}@[::1]:4318", HEADERS=f"authorization=Bearer%20{SECRET}")["traces"]
    assert (("authorization", f"Bearer {SECRET}"),) == target.headers
    assert SECRET not in repr(target) + target.shown
    assert "http://[::1]:4318/v1/traces" == target.shown
    assert "http://c:4318/x/v1/logs" == read(ENDPOINT=f"http://c:4318/x?sig={SECRET}")["logs"].shown
    assert "[::1]:4317" == read(ENDPOINT="http://[::1]")["traces"].shown


def test_nothing_goes_to_an_endpoint_that_the_program_made_for_itself() -> None:
    """It stands in the environment of all its processes; another one counts."""
    theirs, own = "http://10.0.0.1:40001", "http://collector:4317"
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": theirs, FOREIGN: theirs}
    assert ((), False, {}) == (targets(environ), is_sent(environ), ignored(environ))
    environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = own
    found = [(one.signal, one.endpoint) for one in targets(environ)]
    assert ([("traces", "collector:4317")], True) == (found, is_sent(environ))

"""What runs on which port, with which configuration and flags.

Every program works in the folder of the stack, and all paths are relative to it: in an absolute path ``:``, ``$`` and
``"`` would mean something to each of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.journal.filesystem import make_directory

LOOPBACK: Final = "127.0.0.1"
PACKAGE: Final = Path(__file__).resolve().parents[1]
PORTS: Final = {
    "grpc": 4317,
    "http": 4318,
    "collector_health": 13133,
    "collector_own": 8888,
    "jaeger": 16686,
    "jaeger_query": 16685,
    "jaeger_otlp": 14317,
    "jaeger_health": 13134,
    "jaeger_own": 18888,
    "prometheus": 9090,
    "tempo": 3200,
    "tempo_grpc": 9095,
    "tempo_otlp": 24317,
    "tempo_gossip": 7946,
}
"""The usual ports, but of Jaeger those that the Collector does not have."""
FOR_OTHER_STORES: Final = (
    "OTEL_RL_PROMETHEUS_PATH",
    *(f"OTEL_RL_{store}_{what}" for store in ("JAEGER", "TEMPO", "PROMETHEUS") for what in ("HEADERS", "TLS")),
)
"""With these standalone.yaml reaches stores that are not those of the stack."""
CONFIGURATIONS: Final = "configurations"
"""A folder below that of the stack, written anew at every start."""


class StackError(Exception):
    """One sentence that says what is wrong and what to do.

    Attributes:
        lines: the last lines of the log that say more, oldest first; often none.
    """

    def __init__(self, sentence: str, lines: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the stack."""

    name: str
    command: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    ports: tuple[int, ...]
    """All ports on which it listens, on loopback only."""
    address: str
    health_port: int
    health_path: str
    """It answers 200 when the program works, 503 until then."""
    is_killed: bool = False
    """Whether it is ended by SIGKILL at once. Tempo takes minutes after SIGTERM; Jaeger keeps nothing on disk and takes
    10 s."""


class Addresses:
    """The ports of one stack."""

    def __init__(self, offset: int) -> None:
        self.port = {name: port + offset for name, port in PORTS.items()}

    def of(self, name: str) -> str:
        return f"{LOOPBACK}:{self.port[name]}"

    def url(self, name: str) -> str:
        return f"http://{self.of(name)}"

    def ports(self, *names: str) -> tuple[int, ...]:
        return tuple(self.port[name] for name in names)


def make_plan(found: Mapping[str, Path], offset: int) -> tuple[Program, ...]:
    """Plan the stack, in the order in which its programs start: receivers before senders."""
    addresses = Addresses(offset)
    makers = {"jaeger": _jaeger, "prometheus": _prometheus, "tempo": _tempo}
    stores = [make(str(found[name]), addresses) for name, make in makers.items() if name in found]
    return (*stores, _collector(str(found["collector"]), addresses, has_tempo="tempo" in found))


def environment(program: Program, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a program's environment, without what the user set for the training and for other stores."""
    inherited = {k: v for k, v in environ.items() if k.startswith("OTEL_RL_") or not k.startswith("OTEL_")}
    for name in FOR_OTHER_STORES:
        inherited.pop(name, None)
    return {**inherited, **dict(program.environ)}


def _jaeger(program: str, at: Addresses) -> Program:
    return Program(
        name="jaeger",
        command=(program, "--config", f"{CONFIGURATIONS}/jaeger.yaml"),
        environ=(
            ("OTEL_RL_JAEGER_OTLP", at.of("jaeger_otlp")),
            ("OTEL_RL_JAEGER_UI", at.of("jaeger")),
            ("OTEL_RL_JAEGER_QUERY", at.of("jaeger_query")),
            ("OTEL_RL_JAEGER_HEALTH", at.of("jaeger_health")),
            ("OTEL_RL_JAEGER_OWN", str(at.port["jaeger_own"])),
            ("OTEL_TRACES_SAMPLER", "always_off"),  # else it records its own work among the runs
        ),
        ports=at.ports("jaeger", "jaeger_query", "jaeger_otlp", "jaeger_health", "jaeger_own"),
        address=at.url("jaeger"),
        health_port=at.port["jaeger_health"],
        health_path="/status",
        is_killed=True,
    )


def _prometheus(program: str, at: Addresses) -> Program:
    return Program(
        name="prometheus",
        command=(
            program,
            f"--config.file={CONFIGURATIONS}/prometheus.yaml",
            f"--web.listen-address={at.of('prometheus')}",
            "--storage.tsdb.path=prometheus",
            "--web.enable-otlp-receiver",
            "--enable-feature=exemplar-storage,native-histograms",
        ),
        environ=(),
        ports=at.ports("prometheus"),
        address=at.url("prometheus"),
        health_port=at.port["prometheus"],
        health_path="/-/ready",
    )


def _tempo(program: str, at: Addresses) -> Program:
    return Program(
        name="tempo",
        command=(
            program,
            f"-config.file={CONFIGURATIONS}/tempo.yaml",
            "-config.expand-env=true",
            f"-memberlist.bind-port={at.port['tempo_gossip']}",
        ),
        environ=(
            ("OTEL_RL_STACK_DIR", "."),
            ("OTEL_RL_TEMPO_OTLP", at.of("tempo_otlp")),
            ("OTEL_RL_TEMPO_HOST", LOOPBACK),
            ("OTEL_RL_TEMPO_PORT", str(at.port["tempo"])),
            ("OTEL_RL_TEMPO_GRPC_PORT", str(at.port["tempo_grpc"])),
        ),
        ports=at.ports("tempo", "tempo_grpc", "tempo_otlp", "tempo_gossip"),
        address=at.url("tempo"),
        health_port=at.port["tempo"],
        health_path="/ready",
        is_killed=True,
    )


def _collector(program: str, at: Addresses, *, has_tempo: bool) -> Program:
    stores = ["otlp_grpc/jaeger", *(["otlp_grpc/tempo"] if has_tempo else [])]
    return Program(
        name="collector",
        command=(program, "--config", f"{CONFIGURATIONS}/standalone.yaml"),
        environ=(
            ("OTEL_RL_STACK_DIR", "."),
            ("OTEL_RL_GRPC", at.of("grpc")),
            ("OTEL_RL_HTTP", at.of("http")),
            ("OTEL_RL_HEALTH", at.of("collector_health")),
            ("OTEL_RL_OWN", str(at.port["collector_own"])),
            ("OTEL_RL_TRACES_TO", f"[{', '.join(stores)}]"),
            ("OTEL_RL_JAEGER", at.of("jaeger_otlp")),
            ("OTEL_RL_TEMPO", at.of("tempo_otlp")),
            ("OTEL_RL_PROMETHEUS", at.url("prometheus")),
        ),
        ports=at.ports("grpc", "http", "collector_health", "collector_own"),
        address=at.url("grpc"),
        health_port=at.port["collector_health"],
        health_path="/",
    )


def configurations() -> Path:
    """Find the folder of the configurations: in the installed package, or beside it in a checkout.

    Raises:
        StackError: it is in neither place.
    """
    for folder in (PACKAGE / "collector", PACKAGE.parent / "collector"):
        if (folder / "standalone.yaml").is_file():
            return folder
    raise StackError(f"the configurations are not in {PACKAGE / 'collector'}: install otel-rl again")


def copy_configurations(folder: Path) -> None:
    """Copy them all, over the copy of an earlier version."""
    source = configurations()
    for path in source.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(source)
            make_directory(target.parent)
            shutil.copyfile(path, target)

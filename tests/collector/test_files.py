"""What a cluster deploys holds together: it parses, is pinned, and uses only names that otel_rl emits.

The real programs judge the configurations in ``tests/backend``. The published schemas of Compose and of the Helm chart
are no part of this repository. ``scripts/backends`` fetches that of Compose; ``OTEL_RL_SCHEMAS`` names a folder with
the chart's ``values.schema.json`` and ``values.yaml``, which no Go module holds. Without them their tests are skipped,
and the structure is checked all the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from otel_rl.catalogue.series_names import all_series, emitted, series_name
from otel_rl.sdk import CONTENT
from otel_rl.version import __version__
from otel_rl.vocabulary import (
    ATTRIBUTES,
    DURATION_BOUNDARIES,
    EVENTS,
    METRICS,
    SAMPLE_PROMPT,
    SAMPLE_RESPONSE,
    SCOPE,
    STAGES,
)
from tests.fixtures import commands
from tests.rules import RECORDED, RULES, alerts, recording, rules, series_of_rules

ROOT = Path(__file__).parents[2]
COLLECTOR = ROOT / "collector"
FILES = sorted(COLLECTOR.rglob("*.yaml"))
SERVED = sorted(COLLECTOR.glob("*.yaml"))
"""What the Collector, Jaeger, Tempo and Prometheus read, and compose and the builder."""
WITH_REDACTION = ("agent.yaml", "gateway.yaml", "standalone.yaml")
IMAGES = {
    "grafana/grafana": "13.2.0",
    "grafana/tempo": "3.0.3",
    "jaegertracing/jaeger": "2.20.0",
    "otel-rl/collector": "0.159.0",
    "otel-rl/sidecar": __version__,
    "otel/opentelemetry-collector-contrib": "0.159.0",
    "prom/prometheus": "v3.14.0",
}
PROMETHEUS_UNITS = {"s": "seconds", "By": "bytes", "1": "ratio"}
OF_THE_SIDECAR = ("rl.finding.", "hw.", "rl.hw.", "rl.node.", "rl.stall.", "otel_rl.ship.", "otel_rl.derive.")
"""How metrics begin that are the sidecar's own, once a node."""
NAMES_OF_CONTENT = (
    "prompt", "prompts", "Prompt", "PROMPT", "user_prompt", "user_prompts", "system_prompt", "rl.prompt",
    "rl.sample.prompt", "promptText", "prompt_text", "prompt.text", "prompt_ids", "prompt.token_ids",
    "prompt.template", "userPrompt", "LLM.PROMPT", "gen_ai.request.prompt", "gen_ai.content.prompt",
    "gen_ai.prompt.0.content", "response", "responses", "sample.response", "rl.response", "model_response",
    "llm.response", "ai.response.text", "gen_ai.response.text", "completion", "rl.completion",
    "gen_ai.content.completion", "message", "messages", "chat_messages", "error.message", "messages.0.content",
    "ai.prompt.messages", "llm.input_messages.0.message.content", "input", "output", "inputs", "outputs",
    "input.value", "output.value", "traceloop.entity.input", "traceloop.entity.output", "langsmith.inputs",
    "mlflow.spanInputs", "lk.user_input", "text", "content", "generated_text", "question", "answer",
    "retrieval.documents.0.document.content", "process.command_line", "gen_ai.tool.call.arguments",
    "PROMPT_TEXT", "RESPONSE_TEXT", "USER_PROMPT_TEXT", "PROMPT_IDS", "LLM.OUTPUT.VALUE", "QUESTION", "TEXT",
    "LLM_TEXTS", "Question", "Answer", "user_question", "final_answer", "question_text", "answers", "Text", "texts",
    "generatedText", "generated.text", "embedding.text", "input_text", "promptTokenIds", "prompt_token_ids", "prompt.0",
    "messages.0", "prompts[0]", "prompt_0", "response_0", "RESPONSE_0", "messages.0.text", "messages.0.content.0.text",
    "user-prompt", "prompt-text", "response_ids", "message_ids", "prompt_text_de", "PROMPTS[0]", "env.PROMPT",
    "process.environment_variable.SYSTEM_PROMPT", "app.RESPONSE_TEXT", "llm_PROMPT", "Llm_PROMPT", "userPROMPT",
    "MESSAGES.0.content", "llm.TEXT", "Llm_TEXT", "generated-text", "GENERATED-TEXT", "tool_calls", "toolCalls",
    "message.tool_calls", "tool_call.function.arguments", "tool_calls.0.function.arguments", "error.stack_trace",
)  # fmt: skip
"""Of other libraries, and as one would name them oneself."""
NAMES_OF_COUNTS = (
    "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.prompt",
    "llm.token_count.completion", "llm.cost.prompt", "llm.cost.output", "prompt_tokens", "response_length",
    "prompt.length", "rl.sample.response.length", "message.id", "messaging.message.id", "gen_ai.output.type",
    "gen_ai.response.model", "http.response.status_code", "rpc.message.type", "input_tokens",
    "http.request.header.content-type", "content_length", "db.query.text", "context", "rl.context",
    "CONTEXT", "prompts_per_step", "answer_type", "env.CONTEXT", "PROMPT_TOKENS", "app.PROMPT_TOKENS", "env.OUTPUT_DIR",
    "HTTP_CONTENT_LENGTH", "app.CONTENT-TYPE", "pretext", "tool_call_id", "tool_call_count", "tool_name",
)  # fmt: skip
"""Of other libraries too, and no contents."""
NAMES_OF_NUMBERS = (
    "prompt_text_length", "response_text_len", "output_ids_len", "prompt_ids_count", "num_prompts", "num_inputs",
    "num_outputs", "n_responses", "total_completions", "max_prompt", "batch_inputs", "num_messages", "rl.num_prompts",
    "has_content", "is_text", "question", "PROMPT", "io.output", "num_tool_calls", "env.PROMPTS",
)  # fmt: skip
"""Some read like contents, and a text under them is masked, but a number is none."""
SCHEMAS = os.environ.get("OTEL_RL_SCHEMAS")


def read(path: Path) -> Any:
    """A file as YAML."""
    return yaml.safe_load(path.read_text())


def ids(path: Path) -> str:
    """The name of a file in the folder."""
    return str(path.relative_to(COLLECTOR))


def texts(node: Any) -> list[str]:
    """Every key and text of a document."""
    if isinstance(node, dict):
        return [text for pair in node.items() for part in pair for text in texts(part)]
    if isinstance(node, list):
        return [text for each in node for text in texts(each)]
    return [node] if isinstance(node, str) else []


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_file_parses_and_names_its_program(path: Path) -> None:
    """Every file is YAML, and its first line says from which version of which program on it holds."""
    assert isinstance(read(path), dict)
    first = path.read_text().splitlines()[0]
    assert re.search(r"\d+\.\d+\.\d+", first) or path.name == "compose.yaml", first


@pytest.mark.parametrize("path", [COLLECTOR / name for name in WITH_REDACTION], ids=ids)
def test_configuration_states_the_oldest_collector(path: Path) -> None:
    """The names of components changed in 2026: the first line says where they began."""
    assert path.read_text().startswith("# otelcol >= 0.159.0. ")


@pytest.mark.parametrize("path", sorted(path for path in COLLECTOR.rglob("*") if path.is_file()), ids=ids)
def test_nothing_is_latest(path: Path) -> None:
    """No image, chart or module floats."""
    assert [] == re.findall(r"[:@]latest\b|\b(?:nightly|main)@", path.read_text())


def test_images_are_pinned() -> None:
    """Every image is one that was chosen, at its version."""
    composed = [service["image"] for service in read(COLLECTOR / "compose.yaml")["services"].values()]
    deployed = [read(path)["image"] for path in sorted((COLLECTOR / "kubernetes").glob("*.values.yaml"))]
    named = {*composed, *(f"{image['repository']}:{image['tag']}" for image in deployed)}
    assert {f"{name}:{tag}" for name, tag in IMAGES.items()} == named


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_names_are_of_the_vocabulary(path: Path) -> None:
    """A name of ours in a configuration is one that otel_rl emits."""
    prefixes = ("rl.span",)  # of span metrics, in the gateway's options
    names = {
        name
        for name in re.findall(r"(?<![\w.@/-])(?:otel_)?rl\.[a-z_.]*[a-z_][0-9]*", path.read_text())
        if not name.endswith((".yaml", ".jsonl"))
    }
    known = {*ATTRIBUTES, *METRICS, *STAGES, *EVENTS, SCOPE, *prefixes}
    assert set() == names - known


def test_queries_of_grafana_are_of_the_vocabulary() -> None:
    """A series that Grafana asks for is a metric of ours as Prometheus names it, with labels that it promotes."""
    series = {
        "_".join([*name.split("."), *([PROMETHEUS_UNITS[row.unit]] if row.unit in PROMETHEUS_UNITS else [])])
        for name, row in METRICS.items()
    }
    promoted = read(COLLECTOR / "prometheus.yaml")["otlp"]["promote_resource_attributes"]
    for source in read(COLLECTOR / "grafana" / "datasources.yaml")["datasources"]:
        linked = source["jsonData"].get("tracesToMetrics", {"queries": [], "tags": []})
        assert set() == {query["query"].removesuffix("{$$__tags}") for query in linked["queries"]} - series
        assert all(tag["key"] in promoted for tag in linked["tags"])
        assert all(tag["value"] == tag["key"].replace(".", "_") for tag in linked["tags"])


def test_no_group_of_rules_is_refused_by_mimir() -> None:
    """Its default limit."""
    assert 20 >= max(len(group["rules"]) for group in read(RULES)["groups"])


def test_rules_are_of_the_vocabulary() -> None:
    """A series that a rule reads is a metric of ours as Prometheus names it, with labels that it has."""
    promoted = read(COLLECTOR / "prometheus.yaml")["otlp"]["promote_resource_attributes"]
    labels = {key.replace(".", "_") for key in (*promoted, *ATTRIBUTES)}
    asked = series_of_rules()
    classic = {f"{series_name(row)}_sum" for row in emitted().values() if row.kind == "histogram"}
    assert set() == set(asked) - all_series() - classic
    assert set() == set().union(*asked.values()) - labels
    named = [label for rule in recording() for label in rule.get("labels", {}).items()]
    assert set() == {*named} - {("rl_stage", stage) for stage in STAGES}


def test_rules_are_found_and_name_what_they_make() -> None:
    """Where the configuration says, and no rule hides another: one name has different labels each time."""
    (pattern,) = read(COLLECTOR / "prometheus.yaml")["rule_files"]
    assert [RULES] == list(COLLECTOR.glob(pattern))
    made = [(rule["record"], *rule.get("labels", {}).items()) for rule in recording()]
    assert len(set(made)) == len(made)
    known = {rule["record"] for rule in recording()}
    used = {name for rule in rules() for name in RECORDED.findall(rule["expr"])}
    assert set() == used - known


def test_alerts_say_what_is_wrong_and_where() -> None:
    """Each has a name of its own, how bad it is, and words that use only labels which its expression leaves."""
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    severities = [rule["labels"]["severity"] for rule in alerts() if rule["alert"] != "OtelRlFinding"]
    assert {"critical", "warning"} == set(severities)  # that of a finding is the rule's
    by_record = {rule["record"]: rule["expr"] for rule in recording()}
    for rule in alerts():
        whole = rule["expr"] + "".join(by_record[name] for name in RECORDED.findall(rule["expr"]))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", whole))))
        used = re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values()))
        assert set() == set(used) - kept, rule["alert"]
        assert {"summary", "description"} == set(rule["annotations"])


def test_traces_and_metrics_lead_to_each_other() -> None:
    """Exemplars lead from metrics to both trace stores, spans from both back to metrics."""
    sources = {each["uid"]: each for each in read(COLLECTOR / "grafana" / "datasources.yaml")["datasources"]}
    destinations = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert {"tempo", "jaeger"} == {each["datasourceUid"] for each in destinations}
    for uid in ("tempo", "jaeger"):
        assert "prometheus" == sources[uid]["jsonData"]["tracesToMetrics"]["datasourceUid"]
    command = read(COLLECTOR / "compose.yaml")["services"]["prometheus"]["command"]
    assert {"--web.enable-otlp-receiver", "--enable-feature=exemplar-storage,native-histograms"} <= set(command)


def test_every_pipeline_into_prometheus_drops_old_points() -> None:
    """Right before Prometheus, behind every queue, and against the window that Prometheus has."""
    window = read(COLLECTOR / "prometheus.yaml")["storage"]["tsdb"]["out_of_order_time_window"]
    assert "24h" == window
    for name in ("standalone.yaml", "gateway.yaml"):
        configuration = read(COLLECTOR / name)
        into = [
            each
            for each in configuration["service"]["pipelines"].values()
            if "otlp_http/prometheus" in each["exporters"]
        ]
        assert 2 == len(into)
        assert {"filter/too_old"} == {each["processors"][-1] for each in into}
        assert {"enabled": False} == configuration["exporters"]["otlp_http/prometheus"]["sending_queue"]
        first, second = configuration["processors"]["filter/too_old"]["metric_conditions"]
        assert 'datapoint.time < Now() - Duration("23h")' == first
        assert 'datapoint.time > Now() + Duration("9m")' == second


def test_memory_limiter_stands_first() -> None:
    """Every pipeline refuses before it grows without bounds."""
    for name in WITH_REDACTION:
        pipelines = read(COLLECTOR / name)["service"]["pipelines"].values()
        assert {"memory_limiter"} == {each["processors"][0] for each in pipelines}


REDACTION = read(COLLECTOR / "agent.yaml")["processors"]["redaction/content"]


def is_masked(key: str) -> bool:
    """Whether the redaction masks an attribute of this name: not where it is told to ignore the name."""

    def matches(patterns: list[str]) -> bool:
        return any(re.search(pattern, key) for pattern in patterns)

    is_ignored = key in REDACTION["ignored_keys"] or matches(REDACTION["ignored_key_patterns"])
    return not is_ignored and matches(REDACTION["blocked_key_patterns"])


def test_redaction_is_the_same_everywhere_and_masks_what_is_content() -> None:
    """The shipped patterns know every key of contents that otel_rl knows, and no key that it emits otherwise."""
    found = {name: read(COLLECTOR / name)["processors"]["redaction/content"] for name in WITH_REDACTION}
    assert found["agent.yaml"] == found["gateway.yaml"] == found["standalone.yaml"]
    for processor in ("redaction/digits", "transform/content"):
        assert 1 == len({str(read(COLLECTOR / name)["processors"][processor]) for name in WITH_REDACTION})
    by_type = {"redact_all_types": False, "blocked_values": [], "allowed_values": ["^$"]}
    assert {**REDACTION, **by_type} == read(COLLECTOR / "agent.yaml")["processors"]["redaction/digits"]

    assert [] == [key for key in CONTENT if not is_masked(f"{key}arguments" if key.endswith(".") else key)]
    assert [] == [key for key in NAMES_OF_CONTENT if not is_masked(key)]
    assert [SAMPLE_PROMPT, SAMPLE_RESPONSE] == [
        key for key in ATTRIBUTES if is_masked(key) and not key.startswith(CONTENT)
    ]
    assert [] == [key for key in NAMES_OF_COUNTS if is_masked(key)]
    assert [] == [
        key for key in found["agent.yaml"]["ignored_keys"] if key not in ATTRIBUTES or key.startswith(CONTENT)
    ]


def test_every_pipeline_masks() -> None:
    """What comes by OTLP goes through all three processors, in every signal that each of them knows."""
    for name in WITH_REDACTION:
        for pipeline, row in read(COLLECTOR / name)["service"]["pipelines"].items():
            if "otlp" in row["receivers"]:
                wanted = {"redaction/content", "redaction/digits"}
                wanted |= {"transform/content"} if pipeline != "logs" else set()
                assert wanted <= set(row["processors"]), (name, pipeline)


def test_agent_and_standalone_listen_on_loopback() -> None:
    """Unless the environment says otherwise, every address of an agent is of loopback."""
    for name in ("agent.yaml", "standalone.yaml"):
        configuration = read(COLLECTOR / name)
        endpoints = [
            *(each["endpoint"] for each in configuration["receivers"]["otlp"]["protocols"].values()),
            configuration["extensions"]["health_check"]["endpoint"],
        ]
        assert 3 == len(endpoints)
        assert all(":-127.0.0.1:" in each for each in endpoints)


def test_compose_publishes_on_loopback_only() -> None:
    """Nothing of the stack is reached from another machine."""
    services = read(COLLECTOR / "compose.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert 5 == len(ports)
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_mounts_what_there_is() -> None:
    """Every file that compose mounts is here, every volume is declared, and every variable is one that is read."""
    composed = read(COLLECTOR / "compose.yaml")
    known = "".join(path.read_text() for path in SERVED if path.name != "compose.yaml")
    for service in composed["services"].values():
        for source in (mount.split(":")[0] for mount in service.get("volumes", []) if isinstance(mount, str)):
            assert (COLLECTOR / source).exists() if source.startswith("./") else source in composed["volumes"]
        for variable in service.get("environment", {}):
            assert (
                variable.startswith(("GF_", "OTEL_EXPORTER_OTLP_", "OTEL_TRACES_SAMPLER")) or f"{variable}:-" in known
            ), variable


def test_the_image_of_compose_has_what_the_start_command_needs() -> None:
    """The official program as `otelcol`, the script, and a shell; an init container of Kubernetes brings the same."""
    text = read(COLLECTOR / "compose.yaml")["services"]["collector"]["build"]["dockerfile_inline"]
    official = IMAGES["otel/opentelemetry-collector-contrib"]
    bases = [f"otel/opentelemetry-collector-contrib:{official}", "busybox:1.37.0-musl"]
    assert bases == re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert [] == [
        name for name in re.findall(r"^COPY ([^-]\S+)", text, re.MULTILINE) if not (COLLECTOR / name).is_file()
    ]
    values = read(COLLECTOR / "kubernetes" / "agent.values.yaml")
    (shell,) = values["initContainers"]
    assert bases[1] == shell["image"]
    script = (COLLECTOR / "otelcol-start").read_text()
    linked = set(re.search(r"for name in ([a-z ]+);", shell["command"][2])[1].split())  # type: ignore[index]
    programs = {"awk", "cat", "chmod", "date", "flock", "grep", "id", "mkdir", "mv", "stat"}
    assert programs | {"sh"} == linked
    assert programs == {name for name in programs if re.search(rf"\b{name} ", script)}
    assert ["sh", "/etc/otel-rl/otelcol-start"] == values["command"]["extraArgs"][:2]


def job() -> Any:
    """What the pods of the training job are."""
    return read(COLLECTOR / "kubernetes" / "training.job.yaml")["spec"]["template"]["spec"]


def test_a_sidecar_container_sees_who_lives_and_what_they_wrote() -> None:
    """One table of processes, one user, one directory; it stays until it is told to end, and has time then."""
    (sidecar,), (trainer,) = job()["initContainers"], job()["containers"]
    assert (True, "Always") == (job()["shareProcessNamespace"], sidecar["restartPolicy"])
    assert 0 < job()["securityContext"]["runAsUser"]
    assert [set()] * 2 == [
        {"runAsUser", "runAsGroup"} & set(each.get("securityContext", ())) for each in (sidecar, trainer)
    ]
    assert sidecar["volumeMounts"] == trainer["volumeMounts"]
    assert {mount["name"] for mount in sidecar["volumeMounts"]} == {volume["name"] for volume in job()["volumes"]}
    environ = {row["name"]: row["value"] for row in trainer["env"]}
    assert ("false", trainer["volumeMounts"][0]["mountPath"]) == (environ["OTEL_RL_SIDECAR"], environ["OTEL_RL_DIR"])
    assert {"name": "OTEL_RL_RUN_ID", "value": environ["OTEL_RL_RUN_ID"]} in sidecar["env"]
    assert [f"{environ['OTEL_RL_DIR']}/$(OTEL_RL_RUN_ID)"] == sidecar["args"][2:]

    composed = read(COLLECTOR / "compose.yaml")["services"]["sidecar"]
    assert (["sidecar"], "host", "60s") == (composed["profiles"], composed["pid"], composed["stop_grace_period"])
    assert sidecar["image"] == composed["image"]


def test_the_sidecar_containers_say_what_the_command_understands() -> None:
    """Their arguments are those of `otel-rl`, which is what the image starts, and not as root."""
    composed = read(COLLECTOR / "compose.yaml")["services"]["sidecar"]
    for words in (composed["command"], job()["initContainers"][0]["args"]):
        command = commands()[words[0]]
        with command.make_context("sidecar", words[1:]) as context:
            assert (True, words[-1]) == (context.params["stay"], context.params["run"])
    lines = (COLLECTOR / "Dockerfile").read_text().replace("\\\n", "").splitlines()
    assert {'ENTRYPOINT ["otel-rl"]', "USER 10001:10001"} <= set(lines)


def test_the_image_is_built_from_what_there_is() -> None:
    """Every file that is copied is in the repository, its base has a whole version, and torch is no part of it."""
    context = COLLECTOR / read(COLLECTOR / "compose.yaml")["services"]["sidecar"]["build"]["context"]
    text = (COLLECTOR / "Dockerfile").read_text()
    assert {"python:3.13.12-slim-trixie"} == set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    copied = [name for line in re.findall(r"^COPY ([^-].*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert [] == [name for name in copied if not (context / name).exists()]
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "otel_rl", "collector"}
    assert set() == needed - {*copied}, "the project is not built without them"
    assert ["/source"] == re.findall(r"pip install .* (\S+)$", text, re.MULTILINE), "no extras"


def test_variables_of_kubernetes_and_slurm_are_read() -> None:
    """A variable that a deployment sets is one of the configurations', of otel_rl or of OpenTelemetry."""
    known = {*re.findall(r"env:(OTEL_RL_\w+)", "".join(path.read_text() for path in SERVED))}
    of_otel_rl = {"OTEL_RL_RUN_ID", "OTEL_RL_DIR", "OTEL_RL_SIDECAR", "OTEL_RL_COLLECTOR", "OTEL_RL_DRAIN_S"}
    of_otel_rl |= {"OTEL_RL_ATTEMPT_ID", "OTEL_RL_OTELCOL"}  # the second is of otelcol-start
    for path in (*sorted((COLLECTOR / "kubernetes").glob("*.yaml")), COLLECTOR / "slurm" / "train.sbatch"):
        assert set() == {*re.findall(r"OTEL_RL_\w+", path.read_text())} - known - of_otel_rl


def test_variables_are_explained_where_they_are_read() -> None:
    """The head of a configuration names every variable that it reads."""
    for path in SERVED:
        lines = path.read_text().splitlines()
        head = "\n".join(line for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")])
        used = {*re.findall(r"\$\{(?:env:)?(OTEL_RL_\w+)", path.read_text())} - {"OTEL_RL_RUN_ID", "OTEL_RL_DIR"}
        beside = {"gateway-token.yaml", "gateway-mtls.yaml"}
        if path.name in beside:
            head += (COLLECTOR / "gateway.yaml").read_text().partition("extensions:")[0]
        assert set() == used - {*re.findall(r"OTEL_RL_\w+", head)}, path.name


def test_sizes_are_of_the_vocabulary_and_of_the_measured_rank() -> None:
    """What a rank can have is counted here; the rows for many ranks follow from the samples of the one measured."""
    text = (COLLECTOR / "README.md").read_text()
    rows = [row for row in METRICS.values() if not row.name.startswith(OF_THE_SIDECAR)]
    named = [len(row.boundaries) for row in rows if row.kind == "histogram"]
    stages = [len(DURATION_BOUNDARIES) for stage in STAGES.values() if stage.duration]
    others = len(rows) - len(named)
    series = len(rows) + len(stages) + sum(len(row.boundaries) + 2 for row in rows if row.is_signed)
    classic = others + sum(number + 3 for number in (*named, *stages))
    assert f"{classic} series instead of {series}" in text
    said = re.findall(
        r"(\d+) counters and gauges, (\d+) histograms and one for each of (\d+) stages: (\d+) series", text
    )
    assert [(others, len(named), len(stages), series)] == [tuple(map(int, found)) for found in said]

    (measured,) = re.findall(r"\| 10[\d.]* s \| [\d,]+ \| [\d,]+ \| (\d+) \|", text)
    assert [measured] == re.findall(r"Every rank writes (\d+) samples/s", text)
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if " | 500 | " in line]
    ranks = [int(row[0].replace(",", "")) for row in cells]
    per_s = [number * int(measured) for number in ranks]
    assert [8, 64, 512, 4096] == ranks
    assert [f"{float(f'{number:.3g}'):,.0f}" for number in per_s] == [row[4] for row in cells]
    (bytes_a_sample,) = re.findall(r"in a block (\d+) bytes a sample", text)
    (point_us,) = re.findall(r"^\| `gateway\.yaml` \| [^|]+ \| ([\d.]+) us \|", text, re.MULTILINE)
    assert f"{per_s[-1] * float(point_us) / 1e6:.1f} cores" in cells[-1][2]
    per_day = [number * 86_400 * int(bytes_a_sample) / 1e9 for number in per_s]
    assert [f"{float(f'{number:.2g}'):g} GB" for number in per_day] == [row[6] for row in cells]


def test_builder_and_sources_agree() -> None:
    """What ``scripts/backends`` builds is what the manifest names, and both are of one version."""
    manifest = read(COLLECTOR / "builder.yaml")
    modules = [each["gomod"] for kind, part in manifest.items() if kind != "dist" for each in part]
    required = (ROOT / "scripts" / "go" / "collector" / "go.mod").read_text()
    assert [] == [module for module in modules if f"\t{module}\n" not in required]
    assert {"v0.159.0", "v1.65.0"} == {module.split()[1] for module in modules}
    assert "0.159.0" == manifest["dist"]["version"]


def test_backends_need_go(tmp_path: Path) -> None:
    """Without Go, ``scripts/backends`` says so in one sentence and ends with 3, which means: skip what needs them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "env", "find", "sort", "xargs"):
        (programs / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [str(ROOT / "scripts" / "backends")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (3, "") == (done.returncode, done.stdout)
    assert ["backends: no Go here: install Go 1.26 or newer"] == [part[:46] for part in done.stderr.splitlines()]
    where = subprocess.run([*command, "where"], check=True, capture_output=True, text=True, env=environment)
    assert where.stdout.startswith(f"{tmp_path}/cache/otel_rl/backends/otelcol-0.159.0_")
    assert where.stdout.endswith("/bin\n")


def test_batch_script_is_bash() -> None:
    """The SLURM form and the start command are scripts that bash reads, and that shellcheck has nothing against."""
    scripts = [str(COLLECTOR / "slurm" / "train.sbatch"), str(COLLECTOR / "otelcol-start")]
    for command in (["bash", "-n", *scripts], [str(Path(sys.executable).with_name("shellcheck")), *scripts]):
        checked = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)


def schema(name: str) -> Path:
    """A published schema, or a skipped test."""
    where = subprocess.run([ROOT / "scripts" / "backends", "where"], check=True, capture_output=True, text=True).stdout
    folders = (Path(where).parent / "schemas", *([Path(SCHEMAS)] if SCHEMAS else []))
    found = [folder / name for folder in folders if (folder / name).is_file()]
    if not found:
        pytest.skip(f"no {name}: scripts/backends fetches that of Compose, OTEL_RL_SCHEMAS names a folder of others")
    return found[0]


@pytest.mark.backend
def test_compose_keeps_to_its_schema() -> None:
    """The Compose Specification's own schema has nothing against it."""
    found = jsonschema.Draft7Validator(json.loads(schema("compose-spec.json").read_text()))
    assert [] == [error.message for error in found.iter_errors(read(COLLECTOR / "compose.yaml"))]


@pytest.mark.parametrize("name", ["agent", "gateway"])
def test_helm_values_keep_to_the_schema(name: str) -> None:
    """The chart's own schema has nothing against our values over its defaults."""
    found = jsonschema.Draft202012Validator(json.loads(schema("values.schema.json").read_text()))
    defaults = read(schema("values.yaml"))
    ours = read(COLLECTOR / "kubernetes" / f"{name}.values.yaml")
    assert [] == [error.message for error in found.iter_errors(merged(defaults, ours))]


def merged(below: Any, above: Any) -> Any:
    """Values over values, as Helm merges them: maps by key, everything else replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}
    return above

"""Tests of the settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl.config import (
    LAUNCH,
    LIMITS,
    OF_COLLECTOR,
    PARSERS,
    Config,
    ConfigurationError,
    ignored,
    root,
    settings,
    traces_url,
    unknown_variables,
)

AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


def test_without_variables_everything_has_its_default() -> None:
    """Two ways to the same settings; empty values count as absent."""
    assert Config() == Config.from_env({}) == Config.from_env({"OTEL_RL_ENABLED": " ", "OTEL_TRACES_SAMPLER": ""})


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("OTEL_RL_ENABLED", "FALSE", "enabled", False),
        ("OTEL_RL_ENABLED", "on", "enabled", True),
        ("OTEL_RL_DIR", "/tmp/runs", "directory", Path("/tmp/runs")),
        ("OTEL_RL_RUN_ID", " name ", "run_id", "name"),
        ("OTEL_RL_ATTEMPT_ID", "train-1:77.0", "attempt_id", "train-1:77.0"),
        ("OTEL_RL_INTEGRATIONS", "trl, torch,", "integrations", ("trl", "torch")),
        ("OTEL_RL_JOURNAL_MAX_BYTES", "8388608", "journal_max_bytes", 8 << 20),
        ("OTEL_RL_CAPTURE_CONTENT", "1", "capture_content", True),
        ("OTEL_RL_PEAK_FLOPS", "989.4e12", "peak_flops", 989.4e12),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "10", "attribute_length", 10),
        ("OTEL_SERVICE_NAME", "mine", "service_name", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b=x%20y", "resource_attributes", (("a", "1"), ("b", "x y"))),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "sampler", "traceidratio"),
        ("OTEL_TRACES_SAMPLER", "always_off", "sampler", "always_off"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25", "sampler_ratio", 0.25),
        ("OTEL_TRACES_SAMPLER", "ParentBased_Always_Off", "sampler", "always_off"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,,c=d,", "resource_attributes", (("a", "b"), ("c", "d"))),
        ("OTEL_SDK_DISABLED", "TRUE", "disabled", True),
        (AGGREGATION, "Explicit_Bucket_Histogram", "histograms", "explicit_bucket_histogram"),
        ("OTEL_RL_REQUEST_SPANS", "9" * 5000, "request_spans", sys.maxsize),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "9" * 30, "attribute_length", sys.maxsize),
        ("OTEL_RL_DIR", "~/runs", "directory", Path("/people/me/runs")),
        ("OTEL_RL_DIR", "$HOME/$UNSET/${HOME}", "directory", Path("/people/me/$UNSET//people/me")),
        ("OTEL_RL_BACKENDS", "~/bin", "backends", "/people/me/bin"),
        ("OTEL_RL_TEMPO_PROGRAM", "$HOME/tempo", "tempo", "/people/me/tempo"),
        ("OTEL_RL_TRACES_URL", "https://jaeger.example/ui", "traces_url", "https://jaeger.example/ui"),
    ],
)
def test_a_variable_sets_its_field(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: Any
) -> None:
    """And no other."""
    monkeypatch.setenv("HOME", "/people/me")
    assert {field: value} == {
        row.name: getattr(found, row.name)
        for found in [Config.from_env({variable: text})]
        for row in fields(Config)
        if row.name == field or getattr(found, row.name) != row.default
    }


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        *(
            (
                "OTEL_RL_ATTEMPT_ID",
                text,
                "at most 128 letters, digits and _.:@+-, the first a letter or digit",
            )
            for text in ("two words", "-0", "a" * 129, "ä", "$SLURM_JOB_ID")
        ),
        ("OTEL_RL_ENABLED", "maybe", "true or false"),
        ("OTEL_RL_CAPTURE_CONTENT", "2", "true or false"),
        ("OTEL_RL_JOURNAL_MAX_BYTES", "8388607", "a whole number of bytes, at least 8388608 (8 MiB)"),
        ("OTEL_RL_JOURNAL_MAX_BYTES", "0", "a whole number of bytes, at least 8388608 (8 MiB)"),
        ("OTEL_RL_JOURNAL_MAX_BYTES", "-5", "a whole number of bytes, at least 8388608 (8 MiB)"),
        ("OTEL_RL_JOURNAL_MAX_BYTES", "1.5", "a whole number of bytes, at least 8388608 (8 MiB)"),
        ("OTEL_RL_JOURNAL_MAX_BYTES", "\u0663", "a whole number of bytes, at least 8388608 (8 MiB)"),
        ("OTEL_RL_PEAK_FLOPS", "fast", "a number of operations per second, above 0, such as 989e12"),
        ("OTEL_RL_PEAK_FLOPS", "-1", "a number of operations per second, above 0, such as 989e12"),
        ("OTEL_RL_PEAK_FLOPS", "inf", "a number of operations per second, above 0, such as 989e12"),
        ("OTEL_RL_PEAK_FLOPS", "nan", "a number of operations per second, above 0, such as 989e12"),
        ("OTEL_RL_TRACES_URL", "javascript:alert(1)", "an `http://` or `https://` address"),
        ("OTEL_RL_TRACES_URL", "http://h/'><script>", "an `http://` or `https://` address"),
    ],
)
def test_a_value_that_is_not_possible_is_named_with_what_is(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, allowed: str
) -> None:
    """Variable, value and allowed values, at the first call of instrument()."""
    message = f"{variable}={text!r} is not possible: it takes {allowed}"
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigurationError) as caught:
        otel_rl.instrument()
    assert message == str(caught.value)
    row = next(row for row in settings({variable: text}) if row.variable == variable)
    assert (text, f"not possible: it takes {allowed}") == (row.value, row.source)


def test_the_address_of_traces_does_not_depend_on_other_settings() -> None:
    """A page is written though something else is wrong; one that is no address is none."""
    assert traces_url({"OTEL_RL_TRACES_URL": " http://h:16686 ", "OTEL_RL_ENABLED": "maybe"}) == "http://h:16686"
    assert not traces_url({"OTEL_RL_TRACES_URL": "h:16686"})
    assert not traces_url({})


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("OTEL_SDK_DISABLED", "no thanks", "true or false"),
        ("OTEL_SDK_DISABLED", "1", "true or false"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "0", "a whole number above 0"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "unlimited", "a whole number above 0"),
        (AGGREGATION, "ddsketch", "base2_exponential_bucket_histogram or explicit_bucket_histogram"),
        ("OTEL_TRACES_SAMPLER", "xray", "always_on, always_off or traceidratio, also with parentbased_ before it"),
        ("OTEL_TRACES_SAMPLER", "y" * 9999, "always_on, always_off or traceidratio, also with parentbased_ before it"),
        ("OTEL_TRACES_SAMPLER_ARG", "endpoint=http://me:secret@h:1", "a number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "a number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "a number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "1e999", "a number from 0 to 1"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,secret", "key=value pairs with commas between them"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=secret", "key=value pairs with commas between them"),
        ("OTEL_PYTHON_CONTEXT", "gevent_context", "the name of a context that is installed"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-1", "a whole number, 0 or above"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "\u0663", "a whole number, 0 or above"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "9" * 5000, f"a whole number below {sys.maxsize}"),
    ],
)
def test_a_value_of_a_variable_of_others_is_ignored(variable: str, text: str, allowed: str) -> None:
    """The default is used, and what is said of it shows no value."""
    environ = {variable: text}
    assert Config() == Config.from_env(environ)
    assert {variable: f"it takes {allowed}; its default is used"} == ignored(environ)
    assert settings({}) == settings(environ)


def test_a_context_that_is_not_installed_is_one_line() -> None:
    """OpenTelemetry's API logs a traceback when it is imported."""
    program = "import otel_rl; otel_rl.instrument(())"
    environ = {**os.environ, "OTEL_PYTHON_CONTEXT": "gevent_context"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    said = (
        "otel_rl: OTEL_PYTHON_CONTEXT is ignored: it takes the name of a context that is installed; its default is used"
    )
    assert [said] == done.stderr.splitlines()


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_not_set(text: str) -> None:
    """Whoever reads it."""
    environ = dict.fromkeys([*PARSERS, *LIMITS], text)
    assert (Config(), {}) == (Config.from_env(environ), ignored(environ))


def test_readers_know_the_root_where_another_setting_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only one that they need."""
    monkeypatch.setenv("HOME", "/people/me")
    environ = {"OTEL_RL_ENABLED": "perhaps", "OTEL_RL_DIR": " ~/runs "}
    assert (Path("/people/me/runs"), Path("otel_rl_runs")) == (root(environ), root({"OTEL_RL_DIR": " "}))


def test_either_switch_turns_everything_off() -> None:
    """Ours and OpenTelemetry's."""
    off = [{"OTEL_RL_ENABLED": "0"}, {"OTEL_SDK_DISABLED": "true"}]
    assert [False, False, True] == [Config.from_env(environ).active for environ in (*off, {})]


def test_every_setting_is_listed_with_its_source() -> None:
    """One row for each field of the settings."""
    rows = settings({"OTEL_RL_RUN_ID": "x"})
    assert [row.metadata["variable"] for row in fields(Config)] == [row.variable for row in rows]
    assert {"OTEL_RL_RUN_ID": "x"} == {row.variable: row.value for row in rows if row.source == "environment"}
    assert {"auto"} == {row.value for row in rows if row.variable == "OTEL_RL_INTEGRATIONS"}


def test_every_setting_is_documented() -> None:
    """A variable, a meaning, a parser."""
    assert all(
        {"variable", "parse", "meaning"} == set(row.metadata) and row.metadata["meaning"] for row in fields(Config)
    )
    assert len(fields(Config)) == len({row.metadata["variable"] for row in fields(Config)})


def test_a_variable_that_nobody_reads_is_named_with_its_neighbour() -> None:
    """Only ours; those of OpenTelemetry belong to others."""
    environ = {"OTEL_RL_RUNID": "x", "OTEL_RL_ZZZ": "1", "OTEL_RL_DIR": "y", "OTEL_SOMETHING": "z"}
    assert [("OTEL_RL_RUNID", "OTEL_RL_RUN_ID"), ("OTEL_RL_ZZZ", "")] == unknown_variables(environ)


def test_the_variables_of_the_collector_are_no_mistake() -> None:
    """Just those that the shipped configurations read; nobody is told that they do nothing."""
    folder = Path(__file__).parents[1] / "collector"
    files = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    named = {name for text in files for name in re.findall(r"OTEL_RL_[A-Z_]*[A-Z]", text)}
    own = {row.variable for row in settings({})}
    assert named - own == OF_COLLECTOR
    assert [] == unknown_variables(dict.fromkeys(OF_COLLECTOR, "x"))


def test_the_mark_of_a_launch_is_no_mistake() -> None:
    """It is in the environment of all that `otel-rl run` starts."""
    assert [] == unknown_variables({LAUNCH: "0123"})

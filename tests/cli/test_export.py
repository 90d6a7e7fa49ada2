"""`otel-rl export` as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.cli import app
from otel_rl.exports.log_lines import log_lines
from otel_rl.exports.perfetto_trace import perfetto_trace
from otel_rl.journal.read import open_run
from otel_rl.query.engine import RunTables
from otel_rl.query.run_schema import TABLES
from otel_rl.runs.otlp_json import lines
from otel_rl.trace.attempt import know_attempt
from tests.fixtures import ATTEMPT, RUN, Recording
from tests.made_runs import Plan, write_run

pytestmark = pytest.mark.medium

cli = CliRunner()
OTEL_RL = [sys.executable, "-m", "otel_rl"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run."""
    return write_run(tmp_path)


@pytest.mark.parametrize("options", [["--to", "otlp-json"], ["-o", "-"]])
def test_every_line_is_a_request(run: Path, options: list[str]) -> None:
    """Standard output holds the requests and nothing else."""
    result = cli.invoke(app, ["export", str(run), *options])
    assert 0 == result.exit_code
    assert [line for line, _ in lines(open_run(run))] == result.stdout.splitlines()


def test_a_file_holds_the_same(run: Path, tmp_path: Path) -> None:
    """With --output standard output stays empty."""
    file = tmp_path / "run.jsonl"
    result = cli.invoke(app, ["export", str(run), "--output", str(file)])
    assert (0, "") == (result.exit_code, result.stdout)
    assert [line for line, _ in lines(open_run(run))] == file.read_text(encoding="utf-8").splitlines()


def test_a_file_that_cannot_be_written_is_exit_code_1(run: Path, tmp_path: Path) -> None:
    """The message names the file and the reason."""
    result = cli.invoke(app, ["export", str(run), "--output", str(tmp_path)])
    assert (1, f"otel-rl: cannot write {tmp_path}: Is a directory\n") == (result.exit_code, result.stderr)


def test_what_cannot_be_read_is_named(run: Path) -> None:
    """An export that lacks something does not look whole."""
    torn = next(run.glob("trainer-1-*.traces.*"))
    torn.write_bytes(torn.read_bytes()[:-3])
    result = cli.invoke(app, ["export", str(run)])
    (said,) = result.stderr.splitlines()
    assert (0, True) == (result.exit_code, said.startswith("otel-rl: left out of trainer-1-"))
    assert said.endswith(": torn")


def test_an_unknown_format_is_wrong_usage(run: Path) -> None:
    """The message lists what there is."""
    result = cli.invoke(app, ["export", str(run), "--to", "csv"])
    assert (2, True) == (result.exit_code, "otlp-json" in result.stderr)


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    """`otel-rl export RUN | head -1` prints one line and no error."""
    path = write_run(tmp_path, Plan(steps=400))
    export = subprocess.Popen([*OTEL_RL, "export", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert export.stdout is not None and export.stderr is not None
    first = export.stdout.readline()
    export.stdout.close()
    with export.stderr:
        assert b"" == export.stderr.read()
    assert 0 == export.wait()
    assert ["resourceSpans"] == list(json.loads(first))


# --- other formats ----------------------------------------------------------------------------------------------------


def test_lines_of_the_layers_go_where_they_are_sent(recording: Recording, tmp_path: Path) -> None:
    """To standard output, or into a file."""
    with otel_rl.step(1):
        recording.tick(5)
    run = recording.stop()
    found, said = export(run.path, "--to", "jsonl")
    assert (list(log_lines(run)), "") == (found, said)
    export(run.path, "--to", "jsonl", "-o", str(tmp_path / "lines"))
    assert found == (tmp_path / "lines").read_text().splitlines()


def test_parquet_has_each_table(run: Path, tmp_path: Path) -> None:
    """With the rows of a query, as the engine itself reads them."""
    directory = tmp_path / "a" / "b"
    export(run, "--to", "parquet", "-o", str(directory))
    tables = RunTables(open_run(run))
    assert {f"{name}.parquet" for name in TABLES} == {file.name for file in directory.iterdir()}
    for name in TABLES:
        found = duckdb.read_parquet(str(directory / f"{name}.parquet"))
        assert getattr(tables, name).columns == found.columns
        assert Counter(map(str, getattr(tables, name).fetchall())) == Counter(map(str, found.fetchall()))


def test_perfetto_and_tensorboard_have_what_was_recorded(run: Path, tmp_path: Path) -> None:
    """What they hold is checked with their own readers, in tests/exports."""
    export(run, "--to", "perfetto", "-o", str(tmp_path / "run.pftrace"))
    assert b"".join(perfetto_trace(open_run(run))) == (tmp_path / "run.pftrace").read_bytes()
    export(run, "--to", "tensorboard", "-o", str(tmp_path / "events"))
    assert ["trainer-0", "trainer-1"] == sorted(folder.name for folder in (tmp_path / "events").iterdir())
    export(run, "--to", "tensorboard", "-o", str(tmp_path / "events"))
    assert 2 == len(list((tmp_path / "events").rglob("*tfevents*")))


@pytest.mark.parametrize("form", ["otlp-json", "parquet", "perfetto", "tensorboard"])
def test_a_full_disk_leaves_no_half_file(run: Path, tmp_path: Path, form: str) -> None:
    """What an earlier export wrote stays as it was."""
    out = tmp_path / "out"
    out.mkdir()
    place = out if form in ("parquet", "tensorboard") else out / "run"
    arguments = ["export", str(run), "--to", form, "-o", str(place)]
    for number in range(2):
        limited = ["bash", "-c", 'ulimit -f 4 && exec "$@"', "bash", *OTEL_RL, *arguments]
        result = subprocess.run(limited, capture_output=True, text=True, check=False)
        assert (1, 1) == (result.returncode, len(result.stderr.splitlines()))
        if number == 0:
            assert [] == [file for file in out.rglob("*") if file.is_file()]
            assert 0 == cli.invoke(app, arguments).exit_code
            before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}


def test_events_of_two_runs_are_not_mixed(run: Path, tmp_path: Path) -> None:
    """TensorBoard would show them as one; events of the same run are replaced."""
    other = write_run(tmp_path, Plan(run_id="other"))
    events = tmp_path / "events"
    export(run, "--to", "tensorboard", "-o", str(events))
    before = sorted(events.rglob("*tfevents*"))
    stale = before[0].with_name(before[0].name.replace("tfevents.", "tfevents.1"))
    stale.write_bytes(before[0].read_bytes())
    result = cli.invoke(app, ["export", str(other), "--to", "tensorboard", "-o", str(events)])
    assert (1, True) == (result.exit_code, f"such as --output {events}/other" in result.stderr)
    export(run, "--to", "tensorboard", "-o", str(events))
    assert before == sorted(events.rglob("*tfevents*"))


@pytest.mark.parametrize("form", ["parquet", "perfetto", "tensorboard"])
def test_what_is_no_text_needs_a_place(run: Path, form: str) -> None:
    """Standard output is for lines."""
    for options in ([], ["-o", "-"]):
        result = cli.invoke(app, ["export", str(run), "--to", form, *options])
        assert (2, True) == (result.exit_code, f"--to {form} needs --output" in result.stderr)


def test_only_otlp_json_closes_what_is_open(run: Path) -> None:
    """The others do not promise that each span has its parent."""
    result = cli.invoke(app, ["export", str(run), "--to", "jsonl", "--close-open"])
    assert (2, True) == (result.exit_code, "--to jsonl has no use for it" in result.stderr)


@pytest.mark.parametrize("form", ["parquet", "tensorboard"])
def test_a_file_where_a_directory_is_written(run: Path, tmp_path: Path, form: str) -> None:
    """It says what is wrong with the place, and leaves the file as it was."""
    (tmp_path / "file").write_text("mine")
    result = cli.invoke(app, ["export", str(run), "--to", form, "-o", str(tmp_path / "file")])
    expected = f"{tmp_path}/file is a file, and --to {form} writes a directory; give another --output"
    assert (1, f"otel-rl: {expected}\n") == (result.exit_code, result.stderr)
    assert "mine" == (tmp_path / "file").read_text()


@pytest.mark.parametrize("form", ["parquet", "perfetto", "tensorboard"])
def test_a_place_that_cannot_be_written_is_exit_code_1(run: Path, tmp_path: Path, form: str) -> None:
    """The message names it, and the reason."""
    (tmp_path / "file").write_text("")
    result = cli.invoke(app, ["export", str(run), "--to", form, "-o", str(tmp_path / "file" / "below")])
    assert (1, f"otel-rl: cannot write {tmp_path}/file/below: Not a directory\n") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(
    ("form", "package"), [("parquet", "duckdb"), ("perfetto", "perfetto"), ("tensorboard", "tensorboard")]
)
def test_a_missing_package_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str
) -> None:
    """With what installs it."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = cli.invoke(app, ["export", str(run), "--to", form, "-o", str(tmp_path / "out")])
    assert (1, True) == (result.exit_code, "pip install 'otel-rl[" in result.stderr)


# --- spans without a parent -------------------------------------------------------------------------------------------


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every reader take this process for dead."""
    monkeypatch.setattr("otel_rl.journal.identity.WriterIdentity.is_alive", lambda *_: False)


def leave_open(recording: Recording, number: int) -> Path:
    """Record a step up to the pause behind its first tool call, and keep the journal of that moment."""
    with otel_rl.step(number), otel_rl.stage("sample"):
        with otel_rl.stage("tool"):
            recording.tick(5)
        assert otel_rl.flush()
        return shutil.copytree(recording.root / RUN, recording.root / "then")


def export(path: Path, *options: str) -> tuple[list[str], str]:
    """Export a run; give its lines and what was said about it."""
    result = cli.invoke(app, ["export", str(path), *options])
    assert 0 == result.exit_code
    return result.stdout.splitlines(), result.stderr


def spans(texts: list[str]) -> list[dict[str, Any]]:
    """Read the spans of exported lines."""
    groups = [group for text in texts for group in json.loads(text).get("resourceSpans", ())]
    return [span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]]


def parentless(found: list[dict[str, Any]]) -> list[str]:
    """Name the spans whose parent is not among them."""
    known = {span["spanId"] for span in found}
    return [span["name"] for span in found if span.get("parentSpanId", next(iter(known))) not in known]


def times(span: dict[str, Any]) -> tuple[str, str]:
    """Read begin and end."""
    return span["startTimeUnixNano"], span["endTimeUnixNano"]


@pytest.mark.usefixtures("dead")
def test_a_killed_run_is_exported_as_it_was_journaled(recording: Recording) -> None:
    """Nothing is added; how many spans lack a parent is said."""
    path = leave_open(recording, 1)
    found, said = export(path)
    assert [line for line, _ in lines(open_run(path))] == found
    assert ["tool"] == parentless(spans(found))
    expected = "1 span hangs below 1 stage left open when the run died; --close-open adds them as spans"
    assert f"otel-rl: {expected}\n" == said


@pytest.mark.usefixtures("dead")
def test_close_open_gives_every_span_its_parent(recording: Recording) -> None:
    """The stages that were open end at the journal's last sign of life; all that was journaled is there unchanged."""
    path = leave_open(recording, 1)
    run = open_run(path)
    found, said = export(path, "--close-open")
    assert [line for line, _ in lines(run)] == found[:-1]
    assert [] == parentless(spans(found))
    assert f"otel-rl: added 3 spans for stages that never ended ({v.TRUNCATED})\n" == said
    added = {span["name"]: span for span in spans(found[-1:])}
    assert {v.LOOP, "rl.rank 0", v.SAMPLE} == set(added)
    assert {str(run.journals[0].last_ns)} == {span["endTimeUnixNano"] for span in added.values()}
    truncated = {"key": v.TRUNCATED, "value": {"boolValue": True}}
    iteration = {"key": v.ITERATION, "value": {"intValue": "1"}}
    loop = {"key": v.LOOP_NAME, "value": {"stringValue": "train"}}
    assert [iteration, loop, truncated] == added[v.LOOP]["attributes"]
    assert [truncated] == added[v.SAMPLE]["attributes"]
    (journaled,) = {json.dumps(group["resource"]) for group in json.loads(found[0])["resourceSpans"]}
    assert [journaled] == [json.dumps(group["resource"]) for group in json.loads(found[-1])["resourceSpans"]]


def test_a_run_that_goes_on_is_not_closed(recording: Recording) -> None:
    """Its stages will have ends of their own."""
    path = leave_open(recording, 1)
    found, said = export(path, "--close-open")
    assert [line for line, _ in lines(open_run(path))] == found
    assert "otel-rl: 1 span hangs below 1 stage still open, as the run goes on\n" == said


@pytest.mark.usefixtures("dead")
def test_roots_that_rank_0_did_not_journal_any_more(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks journal at different moments; the step and the set-up get a root around what the other rank knows."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stubbed.start()
    know_attempt(ATTEMPT, RUN)
    stubbed.tick(3)
    with otel_rl.step(1):
        stubbed.tick(5)
    path = leave_open(stubbed, 2)
    found, said = export(path)
    assert ["rl.rank 1", "rl.rank 1", "tool"] == sorted(parentless(spans(found)))
    assert "otel-rl: 2 spans hang below 2 parents missing from the journal" == said.splitlines()[1]
    found, said = export(path, "--close-open")
    assert [] == parentless(spans(found))
    assert f"otel-rl: added 5 spans for stages that never ended ({v.TRUNCATED})\n" == said
    roots = {(span["name"], *times(span)) for span in spans(found[-1:]) if "parentSpanId" not in span}
    setup, first, second = sorted(times(span) for span in spans(found) if span["name"] == "rl.rank 1")
    assert {(v.SETUP, *setup), (v.LOOP, *first), (v.LOOP, *second)} == roots

"""Tests of instrument() and uninstrument()."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import threading
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import opentelemetry.metrics._internal as metrics_api
import pytest
from opentelemetry import trace

import otel_rl
from otel_rl import entry, vocabulary
from otel_rl.flusher.thread import Flusher
from otel_rl.hooks import Attachment, Integration, StageHook
from otel_rl.integrations import OURS, choice
from otel_rl.journal.read import SpanView, open_run
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.trace.memory import tracing
from tests.fixtures import RUN, Recording


def threads() -> list[str]:
    """Name our threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("otel_rl")]


def integration(monkeypatch: pytest.MonkeyPatch, package: str, supports: str, name: str = "fake", **more: Any) -> None:
    """Register an integration, called ``fake`` where it is the only one."""
    module: Any = ModuleType(f"{name}_integration")
    module.INTEGRATION = Integration(name=name, package=package, supports=supports, **{"hooks": (), **more})
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    monkeypatch.setitem(OURS, name, f"{module.__name__}:INTEGRATION")


def test_a_second_call_does_nothing(recording: Recording) -> None:
    """One flusher, one set-up, one journal."""
    before = state.identity, tracing.phase, recording.flusher, threads()
    otel_rl.instrument()
    otel_rl.instrument([])
    assert before == (state.identity, tracing.phase, recording.flusher, threads())
    assert 1 == len(threads())


def test_recording_can_be_switched_on_again(stubbed: Recording) -> None:
    """Each time is a recording of its own; nothing is left between them."""
    for number in range(3):
        stubbed.start()
        with otel_rl.step(number):
            pass
        otel_rl.uninstrument()
        otel_rl.uninstrument()
        assert (False, 0, {}, None) == (state.on, len(state.queue), tracing.open, tracing.container)
    run = stubbed.run()
    assert 3 == len(run.journals) == sum(span.name == "rl.loop" for span in run.spans())


@pytest.mark.parametrize("begin", [otel_rl.instrument, entry.autoload])
def test_the_set_up_of_a_second_recording_begins_with_its_call(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, begin: Any
) -> None:
    """In a notebook: the run before it and the pause between them are none of it; who asks again changes nothing."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "")
    stubbed.start()
    with otel_rl.step(1):
        stubbed.tick(700)
    otel_rl.uninstrument()
    stubbed.tick(5000)
    monkeypatch.setenv("OTEL_RL_RUN_ID", "second")
    begin()
    stubbed.tick(30)
    otel_rl.instrument()
    stubbed.tick(4)
    with otel_rl.step(1):
        pass
    otel_rl.uninstrument()
    lengths = {span.name: (span.end_ns - span.start_ns) / 1e6 for span in stubbed.run("second").spans()}
    assert 34 == lengths["rl.setup"]


@pytest.mark.parametrize("variable", ["OTEL_RL_ENABLED", "OTEL_SDK_DISABLED"])
def test_switched_off_nothing_happens(stubbed: Recording, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """No patch, no thread, no file."""
    monkeypatch.setenv(variable, "false" if variable == "OTEL_RL_ENABLED" else "true")
    otel_rl.instrument()
    with otel_rl.step(1), otel_rl.stage("reward"):
        otel_rl.record("x", 1)
    assert (False, [], [], True) == (state.on, threads(), entry._parts.patches.applied, otel_rl.flush())
    assert not stubbed.root.exists()


def test_an_integration_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names that there are; by argument and by variable, which is named."""
    with pytest.raises(
        otel_rl.ConfigurationError,
        match=r"no integration is called 'trll'.*torch, .*trl, .*ray, verl, roll, .* and auto",
    ):
        otel_rl.instrument(["trl", "trll"])
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "trll")
    with pytest.raises(
        otel_rl.ConfigurationError,
        match=r"OTEL_RL_INTEGRATIONS.*'trll'.*torch, .*trl, .*ray, verl, roll, .* and auto",
    ):
        otel_rl.instrument()
    assert not state.on


@pytest.mark.parametrize("wrong", [5, [5], [["trl"]], b"trl", True])
def test_what_is_no_name_of_an_integration_is_refused(wrong: Any) -> None:
    """The message shows what one looks like."""
    with pytest.raises(TypeError, match=r'integrations are names, as in instrument\(\["trl"\]\)'):
        otel_rl.instrument(wrong)
    assert not state.on


def test_one_name_may_be_given_as_it_is(stubbed: Recording) -> None:
    """A string is one name, not its letters."""
    otel_rl.instrument("auto")
    assert state.on


def test_a_package_that_is_missing_is_refused_only_if_it_was_asked_for(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What finds itself absent is silent."""
    integration(monkeypatch, "surely-not-installed", ">=1")
    with pytest.raises(otel_rl.NotPossibleError, match="fake was asked for, but surely-not-installed is not installed"):
        otel_rl.instrument(["fake"])
    assert (False, []) == (state.on, threads())
    otel_rl.instrument(["auto"])
    assert state.on


def test_a_version_that_is_not_supported_is_named_and_left_alone(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for by name it is refused."""
    integration(monkeypatch, "pytest", "<1", hooks=(StageHook(target="pytest:fail", stage="x"),))
    with pytest.raises(
        otel_rl.NotPossibleError, match=r"fake was asked for, but pytest [\d.]+ is not supported; supports <1"
    ):
        otel_rl.instrument(["fake"])
    otel_rl.instrument(["auto"])
    assert "is not supported; supports <1; it is not instrumented" in caplog.text
    assert not [patch for patch in entry._parts.patches.applied if patch.owner is pytest]


def test_a_prerelease_counts_as_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nightly builds are what people train with."""
    integration(monkeypatch, "pytest", ">=2.6")
    monkeypatch.setattr("otel_rl.hooks.integration.version", lambda package: "2.9.0.dev20260101+cu130")
    (status,) = (status for status in choice.every_status() if status.name == "fake")
    assert "applies" == status.state


def test_every_integration_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked for is off, also when the settings cannot be read."""
    assert list(OURS) == [status.name for status in choice.every_status()]
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "torch")
    assert {"torch"} >= {status.name for status in choice.every_status() if status.state != "off"}
    monkeypatch.setenv("OTEL_RL_ENABLED", "perhaps")
    assert "off" not in {status.state for status in choice.every_status()}


def test_who_asks_for_trl_gets_its_loop() -> None:
    """Steps, data wait and evaluation are the trainer's, the optimizer's step accelerate's, the rest torch's."""
    for package in ("torch", "accelerate", "transformers", "trl"):
        pytest.importorskip(package)
    names = ["torch", "accelerate", "transformers", "transformers_generate", "trl"]
    assert names == [one.name for one in choice.wanted(("trl",))]
    assert names == [one.name for one in choice.wanted(("trl", "torch"))]
    assert names[:3] == [one.name for one in choice.wanted(("transformers",))]
    assert ["torch"] == [one.name for one in choice.wanted(("torch",))]


def test_what_is_needed_is_a_table_without_gaps() -> None:
    """Of integrations that there are, none of itself, and with what those need."""
    needs = {name: one.needs for name, path in OURS.items() if (one := choice.load(name, path)) is not None}
    assert set(OURS) == set(needs)
    for name, needed in needs.items():
        assert {name, *needed} <= set(OURS)
        assert {need for one in needed for need in needs[one]} <= set(needed) - {name}


def test_what_is_needed_and_cannot_be_is_said_and_the_rest_is_recorded(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody asked for it by name; what is not installed is not even said."""
    integration(monkeypatch, "pytest", "<1", name="old")
    integration(monkeypatch, "surely-not-installed", ">=1", name="gone")
    hooks = (StageHook(target="pytest:fail", stage="x"),)
    integration(monkeypatch, "pytest", ">=1", hooks=hooks, needs=("old", "gone"))
    stubbed.start("fake")
    applied = {patch.hook.target for patch in entry._parts.patches.applied}
    assert {"pytest:fail"} == applied - set(entry.PROVIDERS)
    number = version("pytest")
    assert [
        f"otel_rl: pytest {number} is not supported; supports <1; needed by fake; it is not instrumented: "
        "install a supported version"
    ] == [record.getMessage() for record in caplog.records]


def test_the_status_names_who_needs_an_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes of it; what was asked for by name is there for itself."""
    integration(monkeypatch, "pytest", ">=1", name="part")
    integration(monkeypatch, "surely-not-installed", ">=1", name="gone")
    integration(monkeypatch, "pytest", ">=1", needs=("part", "gone"))
    number = version("pytest")
    here = f"pytest {number} is instrumented (supported: >=1)"
    absent = "surely-not-installed is not installed (supported: >=1)"

    def statuses(names: str) -> list[tuple[str, str]]:
        monkeypatch.setenv("OTEL_RL_INTEGRATIONS", names)
        return [(status.state, status.detail) for status in choice.every_status()[-3:]]

    by_fake = [("applies", f"{here}; needed by fake"), ("absent", f"{absent}; needed by fake"), ("applies", here)]
    assert by_fake == statuses("fake")
    assert [("applies", here), *by_fake[1:]] == statuses("fake,part")
    assert [("applies", here), ("absent", absent), ("applies", here)] == statuses("auto,fake")


def test_a_variable_that_nobody_reads_is_said(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the nearest one that exists."""
    monkeypatch.setenv("OTEL_RL_RUNID", "x")
    monkeypatch.setenv("OTEL_RL_ZZZ", "x")
    stubbed.start()
    assert [
        "otel_rl: unknown setting OTEL_RL_RUNID is ignored; did you mean OTEL_RL_RUN_ID?",
        "otel_rl: unknown setting OTEL_RL_ZZZ is ignored",
    ] == [record.getMessage() for record in caplog.records]


def test_the_settings_reach_the_journal(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service, resource, length of texts."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=x")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5")
    stubbed.start()
    with otel_rl.step(1), otel_rl.stage("reward", text="123456789"):
        pass
    span = stubbed.spans()["rl.reward"]
    assert ("mine", "x", "12345") == (span.resource["service.name"], span.resource["team"], span.attributes["rl.text"])


def test_a_limit_for_texts_does_not_cut_what_is_found_by(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster sets it for prompts; resource, metrics, ids and the names of our vocabulary stay whole."""
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=researchers")
    stubbed.start()
    with otel_rl.step(1), otel_rl.stage("own stage"):
        with otel_rl.stage("reward", reward_function="correctness", prompt="What is the answer?") as stage:
            stage.set_attribute("rl.reward.function", "correctness")
        otel_rl.record("loss/policy", 0.5)
    run = stubbed.stop()
    (reward,) = [span for span in run.spans(None) if span.name == "rl.reward"]
    assert ("correctness", "What") == tuple(map(reward.attributes.get, ("rl.reward.function", "rl.prompt")))
    assert (RUN, "researchers") == tuple(map(reward.resource.get, (vocabulary.RUN_ID, "team")))
    labels = {tuple(point.attributes.values()) for point in run.points()}
    assert {("own stage",), ("correctness",), ("loss/policy",)} <= labels


def test_an_exit_leaves_the_journal_half_of_its_time(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the last numbers of a device took."""
    given: list[float] = []
    stop = Flusher.stop
    monkeypatch.setattr(Flusher, "stop", lambda flusher, limit_s, **_: given.append(limit_s) or stop(flusher, 60))
    monkeypatch.setattr(entry, "monotonic", itertools.count(0, 1000).__next__)
    with otel_rl.stage("last"):
        pass
    assert ("last", [30.0]) == (recording.spans()["last"].name, given)


@pytest.mark.parametrize("broken", ["entry.use_memory_reader", "hooks.install.Patches.attach", "entry._open_setup"])
def test_an_instrument_that_fails_leaves_nothing_on(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Wherever it fails. The same call fails in the same way again, and works once its cause is gone."""

    def look() -> tuple[Any, ...]:
        shared = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        providers = trace._TRACER_PROVIDER, metrics_api._METER_PROVIDER
        return pytest.fail, providers, threads(), set(shared), state.on, entry._parts.patches.applied[:]

    hooks, attachments = (StageHook(target="pytest:fail", stage="x"),), (Attachment("json", lambda _: tuple),)
    integration(monkeypatch, "pytest", ">=1", hooks=hooks, attachments=attachments)
    before = look()
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(f"otel_rl.{broken}", lambda *_, **__: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                otel_rl.instrument(["fake"])
        assert before == look()
    otel_rl.instrument(["fake"])
    applied = {patch.hook.target for patch in entry._parts.patches.applied}
    assert (True, {"pytest:fail"}) == (state.on, applied - set(entry.PROVIDERS))


def test_a_variable_of_others_is_said_in_one_line(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And recording goes on with the default."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_jaeger_remote")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team")
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "nosuch")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")
    monkeypatch.setenv("OTEL_RL_SIDECAR", "false")
    stubbed.start()
    sampler = "always_on, always_off or traceidratio, also with parentbased_ before it"
    assert [
        "otel_rl: OTEL_RESOURCE_ATTRIBUTES is ignored: it takes key=value pairs with commas between them; "
        "its default is used",
        f"otel_rl: OTEL_TRACES_SAMPLER is ignored: it takes {sampler}; its default is used",
        "otel_rl: OTEL_EXPORTER_OTLP_TIMEOUT is ignored: it takes milliseconds, a whole number above 0; "
        "its default is used",
    ] == [record.getMessage() for record in caplog.records]
    with otel_rl.step(1):
        pass
    assert "rl.loop" in stubbed.spans()


# --- autoload ---------------------------------------------------------------------------------------------------------


def test_a_process_that_did_not_ask_leaves_no_trace(stubbed: Recording) -> None:
    """Until it opens a stage: then it has a set-up like any other."""
    entry.autoload()
    assert (True, None, [], False) == (state.on, tracing.container, threads(), stubbed.root.exists())
    otel_rl.uninstrument()
    assert not stubbed.root.exists()
    entry.autoload()
    with otel_rl.stage("reward"):
        pass
    assert {"rl.setup", "rl.rank 0", "rl.reward"} == {span.name for span in stubbed.stop().spans()}


def test_asking_in_a_process_that_is_recorded_already_opens_its_set_up(stubbed: Recording) -> None:
    """``otel-rl run`` of a script that calls instrument() itself."""
    entry.autoload()
    otel_rl.instrument()
    assert state.on


def test_autoload_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bad setting is said, and the process is not recorded."""
    monkeypatch.setenv("OTEL_RL_ENABLED", "perhaps")
    entry.autoload()
    assert not state.on
    assert "this process is not recorded" in caplog.text


def test_autoload_says_what_is_wrong_with_the_integrations(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, without a traceback, and not as an error of ours."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "nonsense")
    entry.autoload()
    assert not state.on
    assert "no integration is called 'nonsense'" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.guarded
def test_a_working_directory_that_was_removed_is_survived(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes where temporary files go, and that is said."""
    monkeypatch.setattr("otel_rl.process.directories.fallback_root", lambda: tmp_path / "fallback")
    monkeypatch.setenv("OTEL_RL_DIR", "relative")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    stubbed.start()
    with otel_rl.step(1):
        pass
    otel_rl.uninstrument()
    assert f"this run is recorded in {tmp_path / 'fallback'}" in caplog.text
    assert "rl.loop" in {span.name for span in open_run(tmp_path / "fallback" / RUN).spans()}


# --- the end ----------------------------------------------------------------------------------------------------------


def test_uninstrument_inside_a_step_closes_it(recording: Recording) -> None:
    """What is open ends now; the block's own end does nothing more."""
    with otel_rl.step(1):
        recording.tick(5)
        with otel_rl.stage("reward"):
            otel_rl.uninstrument()
    run = recording.run()
    names = {"rl.setup", "rl.loop", "rl.rank 0", "rl.teardown", "rl.reward"}
    assert names == {span.name for span in run.spans()}
    assert [] == run.open_stages()
    assert [True] == [span.attributes.get(vocabulary.TRUNCATED) for span in run.spans(None) if span.name == "rl.reward"]


def test_a_step_that_goes_on_elsewhere_is_in_no_number(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread trains on while the recording ends: its step is truncated, and what it does later is not recorded."""
    inside, is_over = threading.Event(), threading.Event()

    def train() -> None:
        for number in (1, 2, 3):
            with otel_rl.step(number), otel_rl.stage("reward"):
                recording.tick(10)
                if number == 2:
                    inside.set()
                    assert is_over.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    assert inside.wait(60)
    run = recording.stop()
    is_over.set()
    thread.join()
    report = build_report(run, 10**18)
    cut = {(span.name, span.attributes.get(vocabulary.ITERATION)) for span in run.spans(None) if is_cut(span)}
    assert {("rl.rank 0", 2), ("rl.reward", None)} == cut
    for name in (vocabulary.STEP_TIME, vocabulary.ACTIVITY_TIME):
        assert [0.01] == [point.value for point in run.points(name)]
    assert {"productive": 0.02} == {
        str(point.attributes[vocabulary.GOODPUT_KIND]): point.value
        for point in run.last_points(vocabulary.GOODPUT_TIME)
    }
    assert 1 == report.steps.recorded


def is_cut(span: SpanView) -> bool:
    """Whether a span is truncated."""
    return span.attributes.get(vocabulary.TRUNCATED) is True


def test_the_loggers_of_the_host_are_untouched(stubbed: Recording) -> None:
    """Neither its root nor ours gets a handler or a level."""

    def seen() -> tuple[Any, ...]:
        loggers = (logging.getLogger(), logging.getLogger("otel_rl"))
        return tuple((logger.level, list(logger.handlers), logger.propagate) for logger in loggers)

    before = seen()
    stubbed.start()
    otel_rl.uninstrument()
    assert before == seen()


def test_an_instrumentor_of_opentelemetry_does_the_same(stubbed: Recording) -> None:
    """``opentelemetry-instrument`` finds us by an entry point."""
    from importlib.metadata import entry_points

    pytest.importorskip("opentelemetry.instrumentation.instrumentor")
    from otel_rl.instrumentor import OtelRlInstrumentor

    ours = [point for point in entry_points(group="opentelemetry_instrumentor") if point.name == "otel_rl"]
    assert ["otel_rl.instrumentor:OtelRlInstrumentor"] * len(ours) == [point.value for point in ours]
    instrumentor = OtelRlInstrumentor()
    assert () == tuple(instrumentor.instrumentation_dependencies())
    instrumentor.instrument(skip_dep_check=True)
    assert state.on
    instrumentor.uninstrument()
    assert not state.on


def test_a_run_that_has_a_name_is_a_folder_of_it(recording: Recording, tmp_path: Path) -> None:
    """And nothing else is left below the root."""
    with otel_rl.step(1):
        pass
    otel_rl.uninstrument()
    assert [RUN] == [path.name for path in (tmp_path / "runs").iterdir()]

"""What ``otel_rl.testing`` gives a test, and an integration that another package registers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import pytest

import otel_rl
from otel_rl import guard
from otel_rl.integrations import choice
from otel_rl.testing import Capture, capture, check_integration
from otel_rl.testing.fixtures import captured

__all__ = ["captured"]

FRAMEWORK = """
class Trainer:
    def reward(self, answers):
        return [len(answer) for answer in answers]
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A framework, and the package of the documentation that integrates it: both installed, neither imported."""
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text("utf-8")
    code = page.partition("<!-- example -->\n\n```python\n")[2].partition("```")[0]
    entry = page.partition("```toml\n")[2].partition("```")[0]
    files = {
        "myframework/__init__.py": "",
        "myframework/trainer.py": FRAMEWORK,
        "myframework-2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: myframework\nVersion: 2.1\n",
        "otel_rl_myframework.py": code,
        "otel_rl_myframework-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: otel-rl-myframework\nVersion: 1\n",
        "otel_rl_myframework-1.dist-info/entry_points.txt": ini(entry),
    }
    for name, text in files.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    invalidate_caches()
    yield tmp_path / "site"
    for name in ("myframework", "myframework.trainer", "otel_rl_myframework"):
        sys.modules.pop(name, None)


def ini(toml: str) -> str:
    """Return the entry points of a ``pyproject.toml`` as an installer writes them."""
    return toml.replace('[project.entry-points."otel_rl.integrations"]', "[otel_rl.integrations]").replace('"', "")


def train() -> list[int]:
    """Use the framework in a step."""
    from myframework.trainer import Trainer  # type: ignore[import-not-found,unused-ignore]

    with otel_rl.step(1):
        return list(Trainer().reward(["a", "bcd"]))


@pytest.mark.parametrize("name", ["myframework", "auto"])
def test_an_integration_of_another_package_records(example: Path, name: str) -> None:
    """By its entry point alone; nothing of it is imported before."""
    assert "otel_rl_myframework" not in sys.modules
    with capture(name) as found:
        assert [1, 3] == train()
    span = found.span("rl.reward")
    assert ("rl.rank 0", {}) == (span.parent, dict(found.errors))
    assert {"rl.batch_size": 2, "myframework.calls": 1}.items() <= span.attributes.items()


def test_its_memory_begins_anew_with_each_recording(example: Path) -> None:
    """The second one counts from 1 again."""
    for _ in range(2):
        with capture("myframework") as found:
            train()
            train()
        assert [1, 2] == [one.attributes["myframework.calls"] for one in found.spans if one.name == "rl.reward"]


def test_an_integration_of_another_package_has_a_status_and_keeps_the_contract(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the doctor's table after ours."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "myframework")
    last = choice.every_status()[-1]
    assert ("myframework", "applies", "myframework 2.1 is instrumented (supported: >=2.1,<3)") == last
    (integration,) = choice.wanted(("myframework",))
    assert find_spec("myframework") is not None
    check_integration(integration)


def integration_code(supports: str = ">=2", hook: str = "") -> str:
    """Write the module of an integration."""
    values = f"name='myframework', package='myframework', supports={supports!r}, hooks=({hook})"
    return f"from otel_rl.hooks import *\nINTEGRATION = Integration({values})\n"


@pytest.mark.guarded
@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "import gone",
        "INTEGRATION = 5",
        "OTHER = 1",
        integration_code(supports="two or so"),
        integration_code(hook="StageHook(target='json:dumps', stage='reward', attributes=(('rl.shape', [1]),)),"),
        integration_code(hook="CallbackHook(target='json:dumps', during=(Memory(), 'gone')),"),
    ],
)
@pytest.mark.parametrize("name", ["myframework", "auto"])
def test_an_integration_that_cannot_be_loaded_is_one_line_and_a_count(
    example: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: str, name: str
) -> None:
    """The program goes on, and what else is asked for is recorded."""
    (example / "otel_rl_myframework.py").write_text(code)
    with caplog.at_level(logging.WARNING):
        otel_rl.instrument([name, "torch"])
    what = "load the integration myframework (otel_rl_myframework:INTEGRATION)"
    lines = [record.getMessage() for record in caplog.records if "myframework" in record.getMessage()]
    assert [f"otel_rl could not {what}; training is not affected (further errors of this kind are counted)"] == lines
    assert {what} == set(guard.errors)
    assert "broken" == {one.name: one.state for one in choice.every_status()}["myframework"]


def test_a_name_of_ours_stays_ours(example: Path) -> None:
    """Whatever else is registered under it."""
    file = example / "otel_rl_myframework-1.dist-info" / "entry_points.txt"
    file.write_text("[otel_rl.integrations]\ntorch = otel_rl_myframework:INTEGRATION\n")
    assert ["torch"] == [one.name for one in choice.wanted(("torch",))]
    assert "otel_rl_myframework" not in sys.modules


def test_what_is_captured_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans with the names of their parents, the last points, and errors; settings are put back."""
    monkeypatch.setenv("OTEL_RL_INTEGRATIONS", "gone")
    with capture() as found:
        with otel_rl.step(3), pytest.raises(ValueError), otel_rl.stage("reward", batch_size=2):
            raise ValueError
        otel_rl.record("my.metric", 0.5)
        assert [] == found.spans
    reward = found.span("rl.reward")
    step = [(one.name, one.parent) for one in found.spans if one.trace_id == reward.trace_id]
    assert [("rl.loop", ""), ("rl.rank 0", "rl.loop"), ("rl.reward", "rl.rank 0")] == step
    assert (True, 2) == (reward.is_error, reward.attributes["rl.batch_size"])
    assert (0.5, None, {}) == (found.value("user.my.metric"), found.value("my.metric", x=1), dict(found.errors))
    with pytest.raises(LookupError, match=r"0 spans are called 'x'; there are: .*rl.loop"):
        found.span("x")
    assert ("gone", False) == (os.environ["OTEL_RL_INTEGRATIONS"], found.root.exists())


def test_two_captures_at_once_are_refused() -> None:
    """The inner one would end the outer one."""
    with capture(), pytest.raises(RuntimeError, match="is already being recorded"), capture():
        pass


def test_a_fixture_captures(captured: Capture) -> None:
    """The recording ends when its spans are wanted."""
    with otel_rl.step(1), otel_rl.stage("reward"):
        pass
    assert captured.stop().names().count("rl.reward") == 1

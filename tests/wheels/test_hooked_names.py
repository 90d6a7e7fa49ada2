"""What the integrations of engines hook exists in the published versions that they support."""

from __future__ import annotations

import functools
from typing import Final

import pytest

pytest.importorskip("remotezip")

import requests
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from remotezip import RemoteIOError

from otel_rl.hooks import Integration
from otel_rl.integrations import OURS, choice
from tests.wheels.names import defines
from tests.wheels.published import source

pytestmark = pytest.mark.vllm

VERSIONS: Final = {
    "vllm": """
        0.8.5 0.8.5.post1 0.9.0 0.9.0.1 0.9.1 0.9.2 0.10.0 0.10.1 0.10.1.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.13.0
        0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0
        0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0""",
    "sglang": """
        0.4.10 0.4.10.post1 0.4.10.post2 0.5.1 0.5.1.post1 0.5.1.post2 0.5.1.post3 0.5.2 0.5.3 0.5.3.post1 0.5.3.post2
        0.5.3.post3 0.5.4 0.5.4.post1 0.5.4.post2 0.5.4.post3 0.5.5 0.5.5.post1 0.5.5.post2 0.5.5.post3 0.5.6
        0.5.6.post1 0.5.6.post2 0.5.7 0.5.8 0.5.8.post1 0.5.9 0.5.10 0.5.10.post1 0.5.11 0.5.12 0.5.12.post1 0.5.13
        0.5.13.post1 0.5.14 0.5.15 0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23""",
    "transformers_generate": """
        4.56.0 4.56.1 4.56.2 4.57.0 4.57.1 4.57.2 4.57.3 4.57.4 4.57.5 4.57.6 5.0.0 5.1.0 5.2.0 5.3.0 5.4.0 5.5.0 5.5.1
        5.5.2 5.5.3 5.5.4 5.6.0 5.6.1 5.6.2 5.7.0 5.8.0 5.8.1 5.9.0 5.10.0 5.10.1 5.10.2 5.10.4 5.11.0 5.12.0 5.12.1
        5.13.0 5.13.1 5.14.0 5.14.1 5.15.0 5.15.1 5.16.0 5.16.1 5.17.0 5.18.0 5.19.0 5.20.0 5.20.1 5.20.2 5.21.0 5.21.1
        5.22.0 5.22.1 5.22.2 5.23.0""",
    "openai": "1.66.0 1.75.0 1.99.9 1.109.1 2.0.0 2.15.0 2.30.0 2.54.0 3.0.0 3.25.0 3.50.0 3.54.0",
    "rl_insight": "0.3.0",
}
"""By integration, the releases that are looked at, newest last: every final one of an engine, some of the client, which
has one every week."""
UNREACHABLE = (requests.RequestException, RemoteIOError)
"""What is raised where a release cannot be read: by the index, and by a request for a range of a wheel."""
CASES = [(name, version) for name, versions in VERSIONS.items() for version in versions.split()]


def integration(name: str) -> Integration:
    """Import an integration, which does not import what it hooks."""
    found = choice.load(name, OURS[name])
    assert found is not None
    return found


@functools.cache
def has(package: str, version: str, target: str) -> bool:
    """Say whether a release has what is hooked."""
    try:
        return defines(lambda module: source(package, version, module), target)
    except UNREACHABLE as error:
        pytest.skip(f"no package index: {type(error).__name__}")


@pytest.mark.parametrize(("name", "version"), CASES)
def test_what_is_hooked_exists(name: str, version: str) -> None:
    """Every row but those that need not."""
    found = integration(name)
    assert version in SpecifierSet(found.supports)
    wanted = [hook.target for hook in found.hooks if not hook.optional]
    assert [] == [target for target in wanted if not has(found.package, version, target)]


@pytest.mark.parametrize("name", VERSIONS)
def test_what_need_not_exist_does_somewhere(name: str) -> None:
    """A row for no version at all is a slip of the pen."""
    found = integration(name)
    wanted = [hook.target for hook in found.hooks if hook.optional]
    versions = VERSIONS[name].split()
    assert [] == [target for target in wanted if not any(has(found.package, v, target) for v in versions)]


@pytest.mark.parametrize("version", VERSIONS["sglang"].split())
def test_sglang_takes_the_trace_context_where_it_is_handed_over(version: str) -> None:
    """From 0.5.7 on, in the field that the integration fills, and where one of the two switches is on."""
    try:
        requests_, manager = (
            source("sglang", version, f"sglang.srt.managers.{module}") for module in ("io_struct", "tokenizer_manager")
        )
    except UNREACHABLE as error:
        pytest.skip(f"no package index: {type(error).__name__}")
    is_taken = Version(version) >= Version("0.5.7")
    assert is_taken == ("external_trace_header:" in requests_)
    assert not is_taken or "self.enable_trace" in manager or "self.server_args.enable_trace" in manager

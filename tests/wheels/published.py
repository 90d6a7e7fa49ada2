"""Single modules out of published wheels, by HTTP range requests: a wheel of vLLM is 400 MB, a module of it 20 kB."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import requests
from remotezip import RemoteZip

JSON = "application/vnd.pypi.simple.v1+json"
LINK = re.compile(r'<a [^>]*href="([^"]+)"[^>]*>([^<]+)</a>')
"""One file, of an index that knows the older form alone."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel_rl" / "wheels"
"""What a release holds never changes."""
LIMIT_S = 60


@functools.cache
def source(package: str, version: str, module: str) -> str:
    """Read a module of a release; empty where it has none.

    Raises:
        requests.RequestException, remotezip.RemoteIOError: it is not in the cache, and the index cannot be reached.
    """
    path = module.replace(".", "/")
    kept = CACHE / f"{package}-{version}" / f"{module}.py"
    if not kept.exists():
        with RemoteZip(_wheel(package, version), session=_session(), timeout=LIMIT_S) as wheel:
            found = {f"{path}.py", f"{path}/__init__.py"} & set(wheel.namelist())
            text = wheel.read(found.pop()).decode() if found else ""
        kept.parent.mkdir(parents=True, exist_ok=True)
        partly = kept.with_suffix(f".{os.getpid()}")
        partly.write_text(text)
        partly.replace(kept)
    return kept.read_text()


def _wheel(package: str, version: str) -> str:
    """Give the address of a release's wheel; one is like another, but for what is compiled."""
    name = re.compile(rf"{package.replace('-', '_')}-{re.escape(version)}(-\d\w*)?-[^-]+-[^-]+-[^-]+\.whl")
    page, files = _releases(package)
    wheels = sorted(file["filename"] for file in files if name.fullmatch(file["filename"]))
    assert wheels, f"{package} {version} has no wheel"
    best = next((wheel for wheel in wheels if "x86_64" in wheel), wheels[0])
    return next(urljoin(page, file["url"]) for file in files if file["filename"] == best)


@functools.cache
def _releases(package: str) -> tuple[str, list[dict[str, str]]]:
    accept = f"{JSON}, text/html;q=0.5"
    answer = _session().get(f"{_index()}/{package}/", headers={"Accept": accept}, timeout=LIMIT_S)
    answer.raise_for_status()
    if "json" in answer.headers.get("Content-Type", ""):
        return answer.url, answer.json()["files"]
    return answer.url, [{"url": unescape(url), "filename": name.strip()} for url, name in LINK.findall(answer.text)]


@functools.cache
def _session() -> requests.Session:
    session = requests.Session()
    session.verify = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE") or True
    return session


@functools.cache
def _index() -> str:
    """Ask pip which index it uses; its help names what its configuration, environment or default says."""
    command = [sys.executable, "-m", "pip", "install", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "1000"})
    found = re.search(r"--index.url <url>.*?\(default ([^)]*)\)", " ".join(text.stdout.split()))
    assert found is not None, "pip does not say which index it uses"
    return found[1].replace(" ", "").rstrip("/")

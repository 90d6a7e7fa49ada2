"""A certificate authority for one test, and certificates of it, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.backend.otlp import Certificates


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl here to make certificates")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self._openssl(
            *f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}".split(),
            *("-keyout", self.key, "-out", self.certificate),
        )

    def issue(self, name: str, subject: str) -> Certificates:
        """Make a certificate for what it is to be called by, e.g. ``DNS:gateway`` or ``IP:127.0.0.1``."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        self._openssl(
            *f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}".split(),
            *("-addext", f"subjectAltName={subject}", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-CA", self.certificate, "-CAkey", self.key, "-keyout", key, "-out", certificate),
        )
        return Certificates(self.certificate, certificate, key)

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, text=True)

"""What the job's driver tells all of its processes, by the runtime environment of the job: whose run they belong to.

Everybody on the cluster can read that, so only settings of recording and the address of the Collector go there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields

from otel_rl.config import LAUNCH, ON_FINDING, ON_FINDING_SECRET, Config
from otel_rl.hooks import Args, Kwargs
from otel_rl.integrations.ray.missing import AUTOLOAD
from otel_rl.process.identity import is_ray_worker
from otel_rl.process.state import state

ADDRESS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
OWN = frozenset(("OTEL_RL_PROCESS_KIND",))
"""Settings that are one process's."""
PASSWORD = re.compile("://.*@")
PATH = "PYTHONPATH"
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Where a submitted job finds its runtime environment; Ray refuses it if ``init`` sets one of its variables again."""


def announce(args: Args, kwargs: Kwargs, carrier: object) -> tuple[Args, Kwargs]:
    """Add run, attempt, directory and autoload folder to the environment of the job's processes."""
    if not state.identity.known or is_ray_worker():
        return args, kwargs
    given = kwargs.get("runtime_env") or getattr(kwargs.get("job_config"), "runtime_env", None) or {}
    theirs = dict(given.get("env_vars") or {})
    config = json.loads(os.environ.get(JOB) or "{}")
    submitted = (config.get("runtime_env") or {}).get("env_vars") or {}
    ours = announcement({**submitted, **theirs})
    for name in ours.keys() & (submitted.keys() - theirs.keys()):
        submitted[name] = ours.pop(name)
        os.environ[JOB] = json.dumps(config)
    return args, {**kwargs, "runtime_env": {**given, "env_vars": {**theirs, **ours}}}


def announcement(theirs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process of the job needs, beside those that the program gives it."""
    names = [row.metadata["variable"] for row in fields(Config)] + [LAUNCH, *ADDRESS]
    settings = {name: os.environ[name] for name in names if name in os.environ and name not in OWN}
    settings.pop(ON_FINDING_SECRET, None)
    if "://" in settings.get(ON_FINDING, ""):
        del settings[ON_FINDING]  # its path may be a secret, and Ray shows the environment of jobs
    path = theirs.get(PATH, f"${{{PATH}}}")  # Ray replaces it on each node
    return {
        **{name: value for name, value in settings.items() if name not in theirs and not PASSWORD.search(value)},
        "OTEL_RL_DIR": str(state.config.directory),
        "OTEL_RL_RUN_ID": state.identity.run_id,
        "OTEL_RL_ATTEMPT_ID": state.identity.attempt_id,
        PATH: path if path.split(os.pathsep)[0] == AUTOLOAD else os.pathsep.join((AUTOLOAD, path)),
    }

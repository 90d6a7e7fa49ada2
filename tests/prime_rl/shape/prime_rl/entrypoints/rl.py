"""The launcher."""

import os
from typing import Any


def rl_local(config: Any) -> Any:
    config.append({name: value for name, value in os.environ.items() if name.startswith("OTEL_RL_")})

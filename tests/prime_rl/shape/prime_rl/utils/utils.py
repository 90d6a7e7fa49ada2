"""Around the main function of each program."""

import asyncio
import functools
import sys
from typing import Any

import wandb


def clean_exit(func: Any) -> Any:
    """Finish W&B, and exit with 1 instead of raising: prime-rl logs the exception and prints no traceback."""
    if asyncio.iscoroutinefunction(func):

        @functools.wraps(func)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                returned = await func(*args, **kwargs)
                wandb.finish()
                return returned
            except Exception:  # noqa: BLE001  as theirs does
                wandb.finish(exit_code=1)
                sys.exit(1)

        return async_wrapper

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = func(*args, **kwargs)
            wandb.finish()
            return returned
        except Exception:  # noqa: BLE001  as theirs does
            wandb.finish(exit_code=1)
            sys.exit(1)

    return wrapper

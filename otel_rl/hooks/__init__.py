"""Replacing functions of other packages, exactly undone, and recording their calls: all that an integration needs."""

from otel_rl.hooks.arguments import Args, Kwargs
from otel_rl.hooks.block import BlockHook
from otel_rl.hooks.callbacks import CallbackHook, ReturnHook, StageHook
from otel_rl.hooks.collective import CollectiveHook
from otel_rl.hooks.generators import GeneratorCall, GeneratorHook, RequestHook, Watch
from otel_rl.hooks.hook import Hook
from otel_rl.hooks.integration import Attachment, Integration, Verified, installed_version
from otel_rl.hooks.remote import RemoteHook
from otel_rl.probes import deferred
from otel_rl.process.memory import Memory
from otel_rl.records import Deferred, PendingAttributes

__all__ = [
    "Args",
    "Attachment",
    "BlockHook",
    "CallbackHook",
    "CollectiveHook",
    "Deferred",
    "GeneratorCall",
    "GeneratorHook",
    "Hook",
    "Integration",
    "Kwargs",
    "Memory",
    "PendingAttributes",
    "RemoteHook",
    "RequestHook",
    "ReturnHook",
    "StageHook",
    "Verified",
    "Watch",
    "deferred",
    "installed_version",
]

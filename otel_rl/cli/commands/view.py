"""`otel-rl view`: the pages of runs, live, in a browser."""

from __future__ import annotations

import errno
import os
import re
import secrets
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_rl.cli.console import FAILED, NOT_FOUND, WRONG_USAGE, leave, stderr
from otel_rl.config import root
from otel_rl.journal.read import JournalNotFound
from otel_rl.runs.format import printable
from otel_rl.runs.locate import find_run, is_run

PORT: Final = 8790
TOKEN: Final = re.compile(r"[\w-]+", re.ASCII)
Where = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN|DIRECTORY",
        help="A run by its name or path, or a directory with runs. Without it: all runs of OTEL_RL_DIR.",
    ),
]


def view(
    where: Where = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"Without it: {PORT}, or a free one if it is taken.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Others than loopback need a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option("--token", help="What a browser has to know. Without it: made up where it is needed.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser; print the address only.")] = False,
) -> None:
    """Show runs in a browser: a list, and for each the page of `report --html`, which follows a run that goes on.

    Reads the files of the run and nothing else, so it takes nothing from the training but the time of a core, a
    twentieth at most. Ends with Ctrl+C.
    """
    from otel_rl.report.page.document import is_drawable

    if not is_drawable():
        leave("view needs Bokeh: pip install 'otel-rl[view]'", FAILED)
    from otel_rl.view.server import Server, Viewer, address_of, is_loopback

    if token is not None and not TOKEN.fullmatch(token):
        leave("--token takes letters, digits, - and _", WRONG_USAGE)
    directory, run = _found(where)
    viewer = Viewer(directory, run)
    token = token or ("" if is_loopback(host) else secrets.token_urlsafe(24))
    try:
        server = Server(host, PORT if port is None else port, viewer, token)
    except OSError as error:
        if port is not None or error.errno != errno.EADDRINUSE:
            hint = "; without --port a free one is taken" if error.errno == errno.EADDRINUSE else ""
            leave(f"cannot listen on {host}:{PORT if port is None else port}: {error.strerror}{hint}", FAILED)
        server = Server(host, 0, viewer, token)
    url = server.url("/" if run is None else address_of(viewer.key_of(run)))
    stderr().print(f"{printable(str(run or directory))} is shown at\n{url}\nCtrl+C ends it.", soft_wrap=True)
    if not no_browser and _has_window():
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        try:
            server.serve_forever()
        finally:
            viewer.close()


def _found(where: str | None) -> tuple[Path, Path | None]:
    """Return the directory of the runs that are listed, and the run that is opened at once."""
    if where is None:
        return root().absolute(), None
    try:
        path = find_run(where, root().absolute()).absolute()
    except JournalNotFound as error:
        path = Path(where).absolute()
        if not path.is_dir():
            leave(str(error), NOT_FOUND)
    if is_run(path) or path.is_file():
        return path.parent, path
    return path, None


def _has_window() -> bool:
    """Return whether a browser has a place to open; one in this terminal would be in the way."""
    return sys.platform == "darwin" or any(name in os.environ for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))

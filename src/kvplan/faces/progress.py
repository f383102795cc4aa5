"""A bar on standard error while something long goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(first: str) -> Iterator[Any]:
    """What `report(what, done, of)` says, while standard error is a terminal; `first` until then."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    with Progress(
        text, BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(first, total=None)

        def report(what: str, done: int, of: int) -> None:
            if done:
                bar.update(task, description=f"{done:,} of {of:,} {what}", completed=done, total=of)

        yield report

"""Fill the outputs of docs/lessons/*.md and docs/practice.md, and the table of topics there.

`python tools/lessons.py` rewrites them; `--check` exits 1 when one is stale (a test does the same). A block
that ends in a line `…` shows as many lines of the output as stand before it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from kvplan.drills.deck import decks
from kvplan.faces.cli import main as kvplan

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "practice.md", *sorted((DOCS / "lessons").glob("*.md"))]
BLOCK = re.compile(r"```console\n\$ kvplan ([^\n]*)\n(.*?)```", re.DOTALL)


def output_of(command: str) -> list[str]:
    """The lines that a `kvplan …` command prints to a pipe; raises where it fails."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            kvplan(shlex.split(command))
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"kvplan {command}: {err.getvalue()}") from None
    return [line.rstrip() for line in out.getvalue().rstrip().splitlines()]


def filled(text: str) -> str:
    """A page with the true output of every block, as many lines of it as the block shows."""

    def fill(block: re.Match[str]) -> str:
        lines, shown = output_of(block.group(1)), block.group(2).splitlines()
        if shown and shown[-1] == "…":
            lines = [*lines[: len(shown) - 1], "…"]
        body = "\n".join(lines)
        return f"```console\n$ kvplan {block.group(1)}\n{body}\n```"

    return re.sub(r"(?s)(<!-- topics:[^\n]*-->\n).*?(<!-- end -->)", table, BLOCK.sub(fill, text))


def table(marks: re.Match[str]) -> str:
    """The topics, each with its lesson."""
    rows = [f"| [{d.title}](lessons/{d.topic}.md) | {d.about} | `{d.topic}` |" for d in decks().values()]
    return "\n".join([marks[1].rstrip(), "| lesson | about | topic |", "|---|---|---|", *rows, marks[2]])


def main() -> int:
    """Rewrite or check every page."""
    stale = []
    for page in PAGES:
        text = page.read_text("utf-8")
        fresh = filled(text)
        if fresh != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(fresh, "utf-8")
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run python tools/lessons.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

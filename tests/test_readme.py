"""README.md cannot lie: its commands, its Python, its table and its tree are made again and compared."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_generated_parts_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "tools" / "readme.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_python_example_prints_what_its_comment_says() -> None:
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.group(1), {})  # noqa: S102
    assert printed.getvalue().strip() == re.findall(r"# (\d+)$", block.group(1), re.MULTILINE)[0]


def test_the_parts_stand_in_their_order() -> None:
    headings = ["## Predicted beside reported", "## The tree", "## What it does not do"]
    order = ["```console\n$ kvplan plan", "```python", *headings]
    places = [README.index(part) for part in order]
    assert places == sorted(places)

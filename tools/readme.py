"""Fill README.md's generated parts: outputs of its commands, the reported table, the tree.

`python tools/readme.py` rewrites the file; `--check` exits 1 when it is stale (a test does the same).
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import test_vllm_logs  # noqa: E402

README = ROOT / "README.md"
SHOWN = ("vllm-0029", "vllm-0032", "vllm-0034", "vllm-0035", "vllm-0037")


def output_of(command: str) -> str:
    """What a `kvplan ...` command prints when its output is no terminal."""
    words = [sys.executable, "-m", "kvplan", *shlex.split(command)[1:]]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "110", "TERM": "dumb"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)  # noqa: S603
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def with_outputs(text: str) -> str:
    """Every console block with its command's true output."""

    def fill(block: re.Match[str]) -> str:
        command = block.group(1)
        return f"```console\n$ {command}\n{output_of(command)}\n```"

    return re.sub(r"```console\n\$ (kvplan [^\n]*)\n.*?```", fill, text, flags=re.DOTALL)


def reported_table() -> str:
    """The figures of a few logs, with the logged pool put in, beside what the log says."""
    out = [
        "| model | ranks | vLLM | printed pool | tokens, printed | concurrency, printed |",
        "|---|---|---|---|---|---|",
    ]
    for row in (row for row in test_vllm_logs.LOGS if row["id"] in SHOWN):
        said = row["reported"]
        got = next(
            (
                found
                for found in test_vllm_logs.answers(row)
                if all(told == value for _, told, value in test_vllm_logs.figures(row, found))
            ),
            next(test_vllm_logs.answers(row)),
        )
        cells = (
            row["model"].rpartition("/")[2],
            row["ask"].get("tp", 1),
            row["ask"]["version"],
            f"{said['available_kv_gib']:.2f} GiB",
            f"{got.kv_tokens:,}, {said['kv_tokens']:,}",
            f"{got.max_concurrency:.2f}×, {said['max_concurrency_x']:.2f}×",
        )
        out.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(out)


def timed_table() -> str:
    """How far estimates lie from measurements, from docs/accuracy.md: rows in reach beside all of them."""
    page = (ROOT / "docs" / "accuracy.md").read_text("utf-8")
    every, reach = (_medians(part) for part in page.split("\n## ")[1].split("| rows in reach |"))
    lines = [
        "| measured | median error | mean | its 80 % interval holds | median of all rows |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {' | '.join(found)} | {every[name][0]} |" for name, found in reach.items()]
    return "\n".join(lines)


def _medians(part: str) -> dict[str, tuple[str, str, str]]:
    """(median, mean, coverage) by what is measured, of one table of the page."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "%" in line
    ]
    return {row[0]: (row[3], row[4], row[6]) for row in rows if len(row) == 7}


def tree() -> str:
    """The package's files, each with the first line of its docstring."""
    lines = ["```"]
    package = ROOT / "src" / "kvplan"
    for folder in [package, *sorted(p.parent for p in package.rglob("*/__init__.py"))]:
        if folder != package:
            lines.append(
                f"{folder.relative_to(package).as_posix() + '/':25}{caption(folder / '__init__.py')}"
            )
        for path in sorted(folder.glob("*.py")):
            if path.stem not in ("__init__", "__main__"):
                indent = "  " if folder != package else ""
                lines.append(f"{indent + path.name:25}{caption(path)}")
    return "\n".join([*lines, "```"])


def caption(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]


def filled(text: str) -> str:
    """README.md as it should read."""
    text = with_outputs(text)
    for name, make in (("reported", reported_table), ("timed", timed_table), ("tree", tree)):
        pattern = rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)"
        text = re.sub(
            pattern, lambda m, make=make: f"{m.group(1)}{make()}\n{m.group(2)}", text, flags=re.DOTALL
        )
    return text


def main() -> None:
    """Rewrite, or check."""
    text = README.read_text(encoding="utf-8")
    fresh = filled(text)
    if "--check" in sys.argv:
        raise SystemExit(0 if fresh == text else "README.md is stale: run python tools/readme.py")
    README.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Fill README.md's generated parts: outputs of its commands, the reported table, the tree.

`python tools/readme.py` rewrites the file; `--check` exits 1 when it is stale (a test does the same).
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import kvplan

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SHOWN = ("vllm-0045", "Llama-3.1-70B-Instruct", "Qwen2-7B-Instruct", "Qwen3-30B-A3B", "Qwen2.5-14B-Instruct")


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
    """Predicted beside reported for a few of the golden logs."""
    rows = [
        json.loads(line) for line in (ROOT / "tests/golden/vllm_cache.jsonl").read_text("utf-8").splitlines()
    ]
    out = [
        "| model | ranks | vLLM | predicted B/token | reported B/token | difference |",
        "|---|---|---|---|---|---|",
    ]
    seen = set()
    for row in rows:
        name = row["model"].rpartition("/")[2]
        if (name, row["tp"]) in seen or not any(s in (row["id"], name) for s in SHOWN):
            continue
        seen.add((name, row["tp"]))
        kv = kvplan.size(row["model"], tp=row["tp"], kv_cache_dtype=row["kv_cache_dtype"])["kv"]
        implied, ours = row["pool_gib"] * 2**30 / row["tokens"], kv["bytes_per_token"]
        cells = (
            name,
            row["tp"],
            row["version"],
            f"{ours:,}",
            f"{implied:,.0f}",
            f"{ours / implied - 1:+.2%}",
        )
        out.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(out)


def tree() -> str:
    """The package's files, each with the first line of its docstring."""
    lines = ["```"]
    package = ROOT / "src" / "kvplan"
    for folder in [package, *sorted(p.parent for p in package.glob("*/__init__.py"))]:
        if folder != package:
            lines.append(f"{folder.name + '/':22}{caption(folder / '__init__.py')}")
        for path in sorted(folder.glob("*.py")):
            if path.stem not in ("__init__", "__main__"):
                indent = "  " if folder != package else ""
                lines.append(f"{indent + path.name:22}{caption(path)}")
    return "\n".join([*lines, "```"])


def caption(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]


def filled(text: str) -> str:
    """README.md as it should read."""
    text = with_outputs(text)
    for name, make in (("reported", reported_table), ("tree", tree)):
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

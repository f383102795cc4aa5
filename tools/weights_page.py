"""Write docs/weights.md: logged weights beside predicted ones, the misses with their reasons."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from logged_weights import REASONS, REMARKS, compare  # noqa: E402

PAGE = ROOT / "docs" / "weights.md"


def page() -> str:
    """The page's text."""
    compared = compare()
    count = len(compared)
    agree = sum(one.agrees for one in compared)
    median = statistics.median(abs(one.error) for one in compared)
    lines = [
        "# Weights: predicted beside logged",
        "",
        "What an engine's log says the weights take on one rank, beside what kvplan predicts from the",
        "config, its quantisation and the split: the decoder's share, towers, the rotary table, kernel",
        "padding and the CUDA allocator's rounding (`engines/loaded.py`). Made by `tools/weights_page.py`;",
        "a test keeps it fresh.",
        "",
        "The records are vLLM's and SGLang's: one counts when it states the weights of a rank and its",
        "config is built in, and none of those is left out. llama.cpp's logs are not counted, though many",
        "print a model size: which ggml type each tensor of a mix such as Q4_K_M has stands in the GGUF file",
        "alone, so that its header gives those bytes (`kvplan size FILE.gguf`) and no formula over a config",
        "does. Of TensorRT-LLM no record states the weights.",
        "",
        "Quantisation is the record's own word, or what a published log of that checkpoint prints.",
        "",
        f"{agree} of {count} records ({agree / count:.1%}) agree within 2 %; median error {median:.2%}.",
        "",
        "| record | model | ranks | quantisation | version | logged GiB | predicted GiB | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        row = one.row
        ranks = f"tp {row['tp'] or 1}" + (f", pp {row['pp']}" if row["pp"] else "")
        cells = [
            row["id"],
            row["as_logged"] or row["model"],
            ranks,
            row["quantization"] or "16 bit",
            row["version"],
        ]
        figures = [f"{row['weights_gib']:.2f}", f"{one.predicted_gib:.2f}", f"{one.error:+.2%}"]
        lines.append(f"| {' | '.join(str(cell) for cell in [*cells, *figures])} |")
    lines += ["", "## Misses", ""]
    lines += [f"- {name}: {why}." for name, why in REASONS.items()]
    lines += ["", "## Agreements with a remark", ""]
    lines += [f"- {name}: {why}." for name, why in REMARKS.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite, or check."""
    fresh = page()
    if "--check" in sys.argv:
        stale = not PAGE.is_file() or PAGE.read_text("utf-8") != fresh
        raise SystemExit("docs/weights.md is stale: run python tools/weights_page.py" if stale else 0)
    PAGE.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()

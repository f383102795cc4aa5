"""Run `kvplan measure` on small models in the Python that has torch and transformers, and print it as JSON.

Usage: PYTHON ask_measure.py CONFIGS.json, a list of configs; kvplan is found through PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvplan.verbs.measure import measure


def main() -> None:
    """One line a config: rows of its cache, or the refusal."""
    folder = Path(sys.argv[1]).parent
    for number, config in enumerate(json.loads(Path(sys.argv[1]).read_text("utf-8"))):
        file = folder / f"model{number}.json"
        file.write_text(json.dumps(config), "utf-8")
        answer = measure(
            model=str(file), threads=1, size="1MiB", m="1,64", batch="1,3", context="40,600",
            prompt_tokens="16,32", rounds=1, steps=2,
        )  # fmt: skip
        kept = {name: answer[name] for name in ("cache", "decode", "prefill", "verdict")}
        print(json.dumps(kept), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

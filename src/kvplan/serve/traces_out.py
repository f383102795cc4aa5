"""A workload on disk in a trace's plain form, which `simulate` and `recommend` read; whole or not at all."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.serve.traces_table import polars
from kvplan.serve.workload import Workload

ENDINGS = (".jsonl", ".csv", ".parquet")


def check_target(path: str, field: str, endings: tuple[str, ...] = ENDINGS) -> None:
    """Refuse, before any work, a file that cannot be written. Raises BadInput."""
    target = Path(path)
    if target.suffix.lower() not in endings:
        raise BadInput(f"{field}: {shown(path)} has none of the endings {', '.join(endings)}; give one")
    if target.is_dir() or not target.parent.is_dir():
        raise BadInput(f"{field}: {shown(path)} is not in a folder that exists; make it first")
    if not os.access(target.parent, os.W_OK):
        raise BadInput(f"{field}: {shown(path)} cannot be written there; choose another folder")


def write_trace(path: str, workload: Workload) -> None:
    """One row a request, with prefix_block_hashes where prompts share any."""
    columns: dict[str, Any] = {
        "arrival_seconds": workload.arrival_seconds,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
    }
    start, ids = workload.prefix_start, workload.prefix_ids
    if start is not None and ids is not None:
        columns["prefix_block_hashes"] = [ids[a:b].tolist() for a, b in itertools.pairwise(start)]
    frame = polars().DataFrame(columns)
    target = Path(path)
    if target.suffix.lower() == ".csv" and "prefix_block_hashes" in columns:
        texts = [" ".join(str(i) for i in row) for row in columns["prefix_block_hashes"]]
        frame = frame.with_columns(polars().Series("prefix_block_hashes", texts))
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    writers = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}
    try:
        getattr(frame, writers[target.suffix.lower()])(beside)
        beside.replace(target)
    except OSError as error:
        raise BadInput(f"--out: {shown(path)} cannot be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def write_histogram(path: str, rows: list[tuple[int, float]]) -> None:
    """Lengths and their shares, as `--prompt-tokens histogram(FILE)` reads them."""
    text = "length,share\n" + "".join(f"{length},{share:.9g}\n" for length, share in rows)
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(target)
    except OSError as error:
        raise BadInput(f"--histograms: {shown(path)} cannot be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)

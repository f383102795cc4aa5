"""A table of requests on disk: CSV, JSONL or Parquet by its name, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from kvplan.errors import BadInput, shown
from kvplan.serve.outcome import Seen, table
from kvplan.serve.simulation import Outcome
from kvplan.serve.traces_table import polars
from kvplan.serve.workload import Workload

ENDINGS = (".parquet", ".csv", ".jsonl")


def check_path(path: str) -> None:
    """Refuse, before any work, a file that cannot be written. Raises BadInput."""
    target = Path(path)
    if target.suffix.lower() not in ENDINGS:
        raise BadInput(
            f"--requests-out: {shown(path)} has none of the endings {', '.join(ENDINGS)}; give one"
        )
    if target.is_dir() or not target.parent.is_dir():
        raise BadInput(f"--requests-out: {shown(path)} is not in a folder that exists; make it first")
    if not os.access(target.parent, os.W_OK):
        raise BadInput(f"--requests-out: {shown(path)} cannot be written there; choose another folder")


def write(path: str, workload: Workload, outcome: Outcome, found: Seen) -> None:
    """One row a request; nothing is left half-written."""
    frame = polars().DataFrame(table(workload, outcome, found)).fill_nan(None)
    target = Path(path)
    beside = target.with_name(f".{target.name}.part")
    try:
        {".parquet": frame.write_parquet, ".csv": frame.write_csv, ".jsonl": frame.write_ndjson}[
            target.suffix.lower()
        ](beside)
        beside.replace(target)
    except (OSError, polars().exceptions.PolarsError) as error:
        raise BadInput(f"--requests-out: {shown(path)} cannot be written: {error}") from None
    finally:
        beside.unlink(missing_ok=True)

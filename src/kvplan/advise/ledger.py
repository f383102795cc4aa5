"""What a search has found so far, kept in a Parquet file as it comes, so that it may be gone on with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown

_SECONDS = 2.0  # between writes
_COLUMNS = ("question", "stage", "family", "record")


class Ledger:
    """Records by (stage, family) of one question; without a path they are kept in memory alone.

    A file is written whole beside its place and then moved there, at most every two seconds and at the
    end, so that an interruption leaves the last whole state. Raises BadInput for a file that cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str] | None, question: str) -> None:
        if path is not None and (not isinstance(path, str | os.PathLike) or not str(path)):
            raise BadInput(f"--resume: {shown(path)} names no file; write one, such as search.parquet")
        self.path = None if path is None else Path(path)
        self.question = question
        self.rows: dict[tuple[str, str], str] = {}
        self.columns: dict[tuple[str, str], dict[str, Any]] = {}
        self.written = time.monotonic()
        if self.path is not None:
            self._begin(self.path)

    def _begin(self, path: Path) -> None:
        if path.is_dir():
            raise BadInput(f"--resume: {path} is a folder; name a file, such as search.parquet")
        if path.suffix.lower() != ".parquet":
            raise BadInput(f"--resume: {path} does not end in .parquet; name such a file")
        if not path.parent.is_dir():
            raise BadInput(f"--resume: {path.parent} is not there; make it first")
        try:  # now, not after an hour of work
            self._part(path).touch()
            self._part(path).unlink()
        except OSError as error:
            raise _unwritable(path, error) from None
        if not path.exists():
            return
        frame = _read(path)
        if len(frame) and set(frame["question"].unique()) != {self.question}:
            raise BadInput(
                f"--resume: {path} holds the search for another model, load, goals or version; "
                "name another file, or delete it"
            )
        for row in frame.iter_rows(named=True):
            key = row["stage"], row["family"]
            self.rows[key] = row["record"]
            self.columns[key] = {k: v for k, v in row.items() if k not in _COLUMNS}

    def get(self, stage: str, family: str) -> str | None:
        """The record of a family at a stage, None where there is none yet."""
        return self.rows.get((stage, family))

    def add(self, stage: str, family: str, record: str, **columns: Any) -> None:
        """Keep a record, with what people may want to read of it in columns of its own."""
        self.rows[stage, family] = record
        self.columns[stage, family] = columns
        if self.path is not None and time.monotonic() - self.written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Put everything into the file."""
        if self.path is None or not self.rows:
            return
        import polars as pl

        rows = [
            {
                "question": self.question,
                "stage": stage,
                "family": family,
                **self.columns[stage, family],
                "record": record,
            }
            for (stage, family), record in self.rows.items()
        ]
        part = self._part(self.path)
        try:
            pl.DataFrame(rows, infer_schema_length=None).write_parquet(part)
            part.replace(self.path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _unwritable(self.path, error) from None
        self.written = time.monotonic()

    def _part(self, path: Path) -> Path:
        """Where the next state is written, beside the file that it will replace."""
        return path.with_name(f".{path.name}.{os.getpid()}")


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"--resume: {path} cannot be written: {error.strerror or error}; name another file")


def _read(path: Path) -> Any:
    try:
        import polars as pl
    except ImportError:
        raise BadInput("--resume: needs polars; pip install 'kvplan[simulate]'") from None
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError):
        raise BadInput(f"--resume: {path} is no file of a search; name another, or delete it") from None
    if not set(_COLUMNS) <= set(frame.columns):
        raise BadInput(f"--resume: {path} is no file of a search; name another, or delete it")
    return frame

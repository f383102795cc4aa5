"""A file of rows, CSV, JSONL or Parquet, as columns; and the line on which a row of it stands."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown

_BLANK = re.compile(rb"(?m)^[ \t]*\r?\n")
_MAY_BE_BLANK = (b"\n\n", b"\n\r\n", b"\n ", b"\n\t")  # searched for faster than any pattern


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by their names in small letters, as a polars frame; `text` is the file, empty for Parquet.

    `head` lines that are not blank stand before the first row.
    """

    path: str
    frame: Any
    text: bytes
    head: int

    def where(self, row: int) -> str:
        """Where row `row` (from 0) stands: a line of the file, counted from 1, or a row of a Parquet file."""
        if not self.text:
            return f"{self.path} row {row + 1}"
        return f"{self.path} line {_line_of(self.text, row + self.head)}"


def polars() -> Any:
    """The library that reads tables. Raises BadInput that says how to install it."""
    try:
        import polars
    except ImportError:
        raise BadInput(
            "trace: reading one needs polars, not installed; pip install 'kvplan[simulate]'"
        ) from None
    return polars


def read_table(path: str | Path) -> Table:
    """Its columns, texts as they stand. Raises BadInput that names the file, and the line where it can."""
    data = read_bytes(path)
    if data[:4] == b"PAR1":
        return _named(Table(str(path), _parquet(str(path), data), b"", 0))
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    some = data[:1].isspace() or any(sign in data for sign in _MAY_BE_BLANK)
    dense = _BLANK.sub(b"", data) if some else data
    first = dense.lstrip()[:1]
    if not first:
        raise BadInput(f"{path}: the file is empty; give a trace with a row a request")
    if first == b"[":
        raise BadInput(f"{path}: it is one JSON list; write one object a line (JSONL), or CSV")
    if first == b"{":
        return _named(Table(str(path), _jsonl(str(path), data, dense), data, 0))
    return _named(Table(str(path), _csv(str(path), data, dense), data, 1))


def read_bytes(path: str | Path) -> bytes:
    """The file's bytes, unzipped, without a byte order mark; text is UTF-8. Raises BadInput that names it."""
    file = Path(path)
    try:
        if file.is_dir():
            raise BadInput(f"{path}: it is a directory; give a file in it")
        if not file.is_file():
            raise BadInput(f"{path}: there is no such file; check the path")
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise BadInput(f"{path}: it cannot be read ({error}); check the file") from None
    if data[:4] != b"PAR1":
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise BadInput(f"{path} line {line}: it is not UTF-8 text; save it as UTF-8") from None
    return data.removeprefix(b"\xef\xbb\xbf")


def _named(table: Table) -> Table:
    names = [name.strip().lower() for name in table.frame.columns]
    names = [re.sub(r"_duplicated_\d+$", "", name) for name in names]
    if table.text and all(re.fullmatch(r"[-+.:\d\s]*", name) for name in names):
        raise BadInput(f"{table.path} line 1: it names no columns; begin with a line of their names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{table.path}: column {shown(twice[0])} is there twice; keep one of them")
    frame = table.frame.rename(dict(zip(table.frame.columns, names, strict=True)))
    if not frame.height:
        raise BadInput(f"{table.path}: there is no row below the column names; give a row a request")
    return Table(table.path, frame, table.text, table.head)


def _parquet(path: str, data: bytes) -> Any:
    library = polars()
    try:
        return library.read_parquet(io.BytesIO(data))
    except (library.exceptions.PolarsError, OSError, ValueError) as error:
        raise BadInput(f"{path}: it is no readable Parquet file ({_brief(error)}); write it again") from None


def _csv(path: str, data: bytes, dense: bytes) -> Any:
    library = polars()
    header = dense.split(b"\n", 1)[0]
    comma = max(b",;\t", key=lambda sign: (header.count(bytes([sign])), sign == ord(",")))
    separator = chr(comma)
    try:
        frame = library.read_csv(dense, infer_schema=False, separator=separator)
    except library.exceptions.PolarsError as error:
        raise _csv_error(path, data, separator) or BadInput(
            f"{path}: it is no readable CSV ({_brief(error)}); write one row a line"
        ) from None
    return frame


def fields_of(line: str, separator: str = ",") -> list[str]:
    """The fields of one line of CSV, as they stand where its quoting is not to be made out."""
    try:
        return next(csv.reader([line.replace("\r", " ")], delimiter=separator))
    except csv.Error:
        return line.split(separator)


def _csv_error(path: str, data: bytes, separator: str) -> BadInput | None:
    """What is wrong with the first line that has not as many fields as there are columns, if one has."""
    columns = 0
    for number, line in _lines(data):
        if line.count('"') % 2:
            return BadInput(f"{path} line {number}: a quote is opened and not closed; close it")
        fields = len(fields_of(line, separator))
        columns = columns or fields
        if fields > columns:
            return BadInput(
                f"{path} line {number}: there are {fields} fields for {columns} columns; quote a field that "
                f"holds {shown(separator)}, or remove the row"
            )
    return None


def _jsonl(path: str, data: bytes, dense: bytes) -> Any:
    library = polars()
    try:
        return library.read_ndjson(dense, infer_schema_length=None)
    except (library.exceptions.PolarsError, ValueError):
        return library.DataFrame(_texts(path, data), infer_schema_length=None)


def _texts(path: str, data: bytes) -> dict[str, list[str | None]]:
    """Columns as texts, line by line: for rows whose kinds differ, and to find the line that is no object."""
    rows = []
    for number, line in _lines(data):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise BadInput(
                f"{path} line {number}: {shown(line)} is not JSON; write one object a line"
            ) from None
        if not isinstance(row, dict):
            raise BadInput(f"{path} line {number}: {shown(line)} is no object; write one object a line")
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_text(row.get(name)) for row in rows] for name in names}


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _lines(data: bytes) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1."""
    lines = data.decode("utf-8").split("\n")
    return [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]


def _line_of(data: bytes, index: int) -> int:
    """The number of the line that is the `index`-th (from 0) of those that are not blank."""
    return _lines(data)[index][0]


def _brief(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:120]

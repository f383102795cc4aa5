"""Traces: files that say when requests arrived and how long they were, read as a workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput, shown
from kvplan.serve.traces_prefix import hash_lists, prefixes_of
from kvplan.serve.traces_table import Table, polars, read_table
from kvplan.serve.workload import Workload, workload_of
from kvplan.units import counted

BLOCK_TOKENS = 512  # of one prefix hash, as in Mooncake's traces
MOST_TOKENS = 10**9
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind of trace names its columns (in small letters), and what its times count, in seconds.

    `zeros`: it has requests of no prompt or no output, which were cut short; they count as one token.
    `mark`: a column that tells it from another form.
    """

    name: str
    arrival: str
    prompt: str
    output: str
    unit: float = 1.0
    hashes: str | None = None
    session: str | None = None
    zeros: bool = False
    mark: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns without which it is not this form."""
        return (self.arrival, self.prompt, self.output, *([self.mark] if self.mark else []))


FORMS = (
    Form(
        "plain", "arrival_seconds", "prompt_tokens", "output_tokens",
        hashes="prefix_block_hashes", session="session_id",
    ),
    Form("Azure", "timestamp", "contexttokens", "generatedtokens", zeros=True),
    Form("Qwen Bailian", "timestamp", "input_length", "output_length", hashes="hash_ids", mark="chat_id"),
    Form("Mooncake", "timestamp", "input_length", "output_length", 1e-3, hashes="hash_ids"),
    Form("measured run", "arrival_time_ns", "input_toks", "output_toks", 1e-9, zeros=True),
    Form("measured run", "arrival_time", "input_toks", "output_toks", zeros=True),
    Form("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens", zeros=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """The first row that a column cannot be read at."""

    row: int
    column: str
    value: object
    need: str


def read_trace(path: str | Path, prefix_block_tokens: int = BLOCK_TOKENS) -> Workload:
    """The requests of a CSV, JSONL or Parquet file, in the order of their arrival, the first at 0 s.

    The form is known by the columns. A prefix hash stands for `prefix_block_tokens` tokens of the prompt.
    Raises BadInput for what cannot be read, with the line of the first bad row.
    """
    if prefix_block_tokens < 1:
        raise BadInput(
            f"--prefix-block-tokens: {shown(prefix_block_tokens)} is no block; give 1 token or more"
        )
    table = read_table(path)
    form = _form_of(table)
    notes = [f"read as a trace of the {form.name} form"] if form.name != "plain" else []
    arrival, when = _times(table, form)
    prompt, in_prompt = _tokens(table, form.prompt, form.zeros)
    output, in_output = _tokens(table, form.output, form.zeros)
    lists = _lists(table, form)
    _raise_first(table, [when, in_prompt, in_output, _too_many(form, lists, prompt, prefix_block_tokens)])
    for name, tokens in (("prompt", prompt), ("output", output)):
        if (tokens < 1).any():
            notes.append(f"{counted((tokens < 1).sum(), 'request')} without {name}, each counted as 1 token")
    order = _order(arrival, notes)
    prompt, output = np.maximum(prompt, 1)[order], np.maximum(output, 1)[order]
    more = _identity(table, form, lists, order, prompt + output, notes)
    notes += _unused(table, form)
    return workload_of(
        arrival[order] - arrival[order[0]],
        prompt,
        output,
        source=str(path),
        notes=tuple(notes),
        prefix_block_tokens=prefix_block_tokens,
        **more,
    )


def _form_of(table: Table) -> Form:
    columns = set(table.frame.columns)
    for form in FORMS:
        if columns.issuperset(form.needs):
            return form
    near = max(FORMS, key=lambda form: len(columns.intersection(form.needs)))
    lacks = [name for name in near.needs if name not in columns]
    nearest = f"the {near.name} form lacks {', '.join(lacks)}" if len(lacks) < len(near.needs) else ""
    raise BadInput(
        f"{table.path}: its columns {shown(', '.join(table.frame.columns), 200)} are those of no trace"
        f"{': ' if nearest else ''}{nearest}; name them arrival_seconds, prompt_tokens, output_tokens"
    )


def _numbers(column: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """Its values and whether each is a number; NaN and infinity are none."""
    library = polars()
    if column.dtype == library.String:
        column = column.str.strip_chars()
    if column.dtype != library.String and not column.dtype.is_numeric():
        return np.full(len(column), np.nan), np.zeros(len(column), bool)
    values = column.cast(library.Float64, strict=False).fill_null(float("nan")).to_numpy()
    return values, np.isfinite(values)


def _fault(column: Any, wrong: NDArray[np.bool_], need: str) -> Fault | None:
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    value = column[row]
    return Fault(row, column.name, value.to_list() if hasattr(value, "to_list") else value, need)


def _tokens(table: Table, name: str, zeros: bool) -> tuple[Longs, Fault | None]:
    column = table.frame[name]
    values, known = _numbers(column)
    least = 0 if zeros else 1
    good = known & (values >= least) & (values <= MOST_TOKENS) & (np.floor(values) == values)
    fault = _fault(column, ~good, f"a whole number of tokens from {least} to {MOST_TOKENS:,}")
    return np.where(good, values, 1).astype(np.int64), fault


def _times(table: Table, form: Form) -> tuple[Floats, Fault | None]:
    """Seconds, from wherever the trace counts; a clock's times and dates count from the first row's."""
    column = table.frame[form.arrival]
    library = polars()
    if column.dtype == library.String and column.str.contains(r"^\s*\d{4}-\d\d-\d\d").any():
        column = _clock(column)
    if column.dtype == library.Datetime:
        known = column.is_not_null().to_numpy()
        stamps = column.cast(library.Datetime("ns")).cast(library.Int64)
        seconds = (stamps - (stamps.min() or 0)).fill_null(0).to_numpy() / 1e9
        return seconds, _fault(table.frame[form.arrival], ~known, "a time such as 2023-11-16 18:15:46.68")
    values, known = _numbers(column)
    good = known & (values >= 0)
    return np.where(good, values, 0.0) * form.unit, _fault(column, ~good, "a time from 0")


def _clock(column: Any) -> Any:
    library = polars()
    text = column.str.strip_chars().str.replace("T", " ", literal=True).str.replace(r"[zZ]$|[+-]00:?00$", "")
    plain = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    if plain.null_count() == column.null_count():
        return plain
    zoned = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%#z", time_unit="ns", strict=False)
    if zoned.null_count() == len(column):
        return plain
    naive = zoned.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return library.select(library.coalesce(plain, naive)).to_series()


def _lists(table: Table, form: Form) -> Any:
    """The hashes of each row as lists, or None where the trace has none."""
    if form.hashes is None or form.hashes not in table.frame.columns:
        return None
    lists = hash_lists(table.frame[form.hashes])
    if lists is None:
        raise BadInput(f"{table.path}: {form.hashes} holds no lists of hashes; write such as [1, 2, 3]")
    return lists


def _too_many(form: Form, lists: Any, prompt: Longs, block: int) -> Fault | None:
    """The first row with more blocks than its prompt has, or with a hash that is null."""
    if lists is None:
        return None
    counts = lists.list.len().to_numpy()
    empty = lists.list.eval(polars().element().is_null()).list.any().to_numpy()
    if empty.any():
        return Fault(int(np.argmax(empty)), form.hashes or "", None, "a list of hashes without null")
    wrong = counts > -(-prompt // block)
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    need = (
        f"at most the blocks of {block} tokens in a prompt of {prompt[row]:,}: --prefix-block-tokens says "
        "how many a hash stands for"
    )
    return Fault(row, form.hashes or "", f"{counts[row]} hashes", need)


def _raise_first(table: Table, faults: list[Fault | None]) -> None:
    found = [fault for fault in faults if fault is not None]
    if not found:
        return
    first = min(found, key=lambda fault: fault.row)
    missing = first.value is None or first.value == ""
    said = f"{first.column} is missing" if missing else f"{first.column} is {shown(first.value)}"
    raise BadInput(f"{table.where(first.row)}: {said}; it must be {first.need}; correct the row or remove it")


def _order(arrival: Floats, notes: list[str]) -> Longs:
    late = int((np.diff(arrival) < 0).sum())
    if not late:
        return np.arange(len(arrival))
    notes.append(f"{counted(late, 'row')} out of order; the requests were sorted by arrival")
    return np.argsort(arrival, kind="stable")


def _identity(
    table: Table, form: Form, lists: Any, order: Longs, whole: Longs, notes: list[str]
) -> dict[str, Any]:
    """What the prompts share, as fields of Workload: hashes, else sessions."""
    session = table.frame[form.session] if form.session in table.frame.columns else None
    if lists is not None and lists.list.len().sum():
        if session is not None:
            notes.append(f"{form.session} not used: {form.hashes} say more")
        found = prefixes_of(lists.gather(order))
        if found.chained:
            notes.append(
                f"hashes after different beginnings: {found.chained:,}; only equal beginnings are shared"
            )
        return {"prefix_start": found.start, "prefix_ids": found.ids}
    if session is None or session.null_count() == len(session):
        return {}
    if session.dtype.is_nested() or session.dtype == polars().Binary:
        raise BadInput(
            f"{table.path}: {form.session} holds {session.dtype}; give each request a name or a number"
        )
    return _streams(session.gather(order), whole, notes)


def _streams(session: Any, whole: Longs, notes: list[str]) -> dict[str, Any]:
    """A session's text grows: each of its requests is the text so far."""
    library = polars()
    named = session.cast(library.String).cast(library.Categorical).to_physical()
    numbers = named.cast(library.Int64).fill_null(-1).to_numpy()
    own = numbers >= 0
    distinct, dense = np.unique(numbers[own], return_inverse=True)
    stream = np.full(len(numbers), -1, np.int64)
    stream[own] = dense
    by_session = np.argsort(stream, kind="stable")
    texts, lengths = stream[by_session], whole[by_session]
    shorter = (texts[1:] >= 0) & (texts[1:] == texts[:-1]) & (lengths[1:] < lengths[:-1])
    if shorter.any():
        notes.append(
            f"{counted(shorter.sum(), 'request')} shorter than the one before in its session, taken as the "
            "beginning of its text"
        )
    return {
        "stream": stream,
        "stream_tokens": np.where(own, whole, 0),
        "stream_parent": np.full(len(distinct), -1),
        "parent_tokens": np.zeros(len(distinct)),
    }


def _unused(table: Table, form: Form) -> list[str]:
    used = {*form.needs, form.hashes, form.session}
    rest = [name for name in table.frame.columns if name not in used]
    return [f"columns not used: {', '.join(rest[:12])}{' …' if len(rest) > 12 else ''}"] if rest else []

"""Traces are read as they were written; what cannot be read is named by its line."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pl = pytest.importorskip("polars")

from kvplan.errors import BadInput  # noqa: E402 - polars first
from kvplan.serve.servegen import read_clients, servegen  # noqa: E402
from kvplan.serve.traces import read_trace  # noqa: E402

DATA = Path(__file__).parent / "data" / "traces"
HEADER = "arrival_seconds,prompt_tokens,output_tokens\n"


def written(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(path: Path | str, **more: Any) -> str:
    with pytest.raises(BadInput) as caught:
        read_trace(path, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["azure_conv.csv", "azure_code.csv"])
def test_an_azure_trace_keeps_every_request_and_gap(name: str) -> None:
    with (DATA / name).open() as file:
        rows = list(csv.DictReader(file))
    w = read_trace(DATA / name)
    clock = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    assert w.prompt_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert w.output_tokens.tolist() == [int(row["GeneratedTokens"]) for row in rows]
    seconds = [(time - clock[0]).total_seconds() for time in clock]
    assert np.allclose(w.arrival_seconds, seconds, atol=2e-6)
    summary = w.summary()
    assert summary.requests_per_second == pytest.approx(len(rows) / seconds[-1], rel=1e-5)
    assert summary.prefix_hit_share is None


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"])
def test_a_mooncake_trace_keeps_its_blocks_and_what_they_share(name: str) -> None:
    rows = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    w = read_trace(DATA / name)
    assert w.arrival_seconds == pytest.approx([(r["timestamp"] - rows[0]["timestamp"]) / 1e3 for r in rows])
    seen: set[int] = set()
    hits = 0
    for row in rows:
        run = next((i for i, h in enumerate(row["hash_ids"]) if h not in seen), len(row["hash_ids"]))
        hits += min(run * 512, row["input_length"])
        seen.update(row["hash_ids"])
    assert w.summary().prefix_hit_share == pytest.approx(hits / sum(r["input_length"] for r in rows))
    assert w.prefix_start is not None
    assert w.prefix_ids is not None
    flat = [h for row in rows for h in row["hash_ids"]]
    assert np.diff(w.prefix_start).tolist() == [len(row["hash_ids"]) for row in rows]
    assert len(set(zip(flat, w.prefix_ids.tolist(), strict=True))) == len(set(flat)) == len(set(w.prefix_ids))


@pytest.mark.parametrize(
    ("head", "row", "unit"),
    [
        ("input_toks,output_toks,arrival_time_ns", "7,3,{}", 1e9),
        ("request_id,input_toks,output_toks,arrival_time,queued_ts", "a,7,3,{},9", 1.0),
        ("arrived_at,num_prefill_tokens,num_decode_tokens", "{},7,3", 1.0),
        ("timestamp,input_length,output_length", "{},7,3", 1e3),
        ("chat_id,timestamp,input_length,output_length", "1,{},7,3", 1.0),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "{},7,3", 1.0),
    ],
)
def test_every_form_is_known_by_its_columns_and_unit(
    tmp_path: Path, head: str, row: str, unit: float
) -> None:
    text = "\n".join([head, row.format(int(5 * unit)), row.format(int(7 * unit))])
    w = read_trace(written(tmp_path, text))
    assert w.arrival_seconds.tolist() == [0.0, 2.0]
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([7, 7], [3, 3])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,-5,5", "prompt_tokens is '-5'"),
        ("1,0,5", "prompt_tokens is '0'"),
        ("1,,5", "prompt_tokens is missing"),
        ("1,many,5", "prompt_tokens is 'many'"),
        ("1,5", "output_tokens is missing"),
        ("1,5,2.5", "output_tokens is '2.5'"),
        ("nan,5,5", "arrival_seconds is 'nan'"),
        ("-1,5,5", "arrival_seconds is '-1'"),
        ("soon,5,5", "arrival_seconds is 'soon'"),
        ("1,inf,5", "prompt_tokens is 'inf'"),
        ("1,5,5,9", "4 fields for 3 columns"),
        ('1,"5,5', "a quote is opened"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, said: str) -> None:
    error = refused(written(tmp_path, f"{HEADER}0,1,1\n\n0,1,1\n{row}\n2,x,x\n"))
    assert "t.csv line 5: " in error
    assert said in error


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{oops", "is not JSON"),
        ("[1]", "is no object"),
        ('{"arrival_seconds": true, "prompt_tokens": 1, "output_tokens": 1}', "arrival_seconds is 'true'"),
        ('{"arrival_seconds": 1, "prompt_tokens": NaN, "output_tokens": 1}', "prompt_tokens is 'NaN'"),
        ('{"arrival_seconds": 1, "prompt_tokens": [1], "output_tokens": 1}', "prompt_tokens is"),
        ('{"arrival_seconds": 1, "output_tokens": 1}', "prompt_tokens is missing"),
        ('{"arrival_seconds": 1, "prompt_tokens": 1, "output_tokens": "x"}', "output_tokens is 'x'"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, row: str, said: str) -> None:
    good = '{"arrival_seconds": 0, "prompt_tokens": 1, "output_tokens": 1}'
    error = refused(written(tmp_path, f"{good}\n\n{row}\n{good}\n", "t.jsonl"))
    assert "t.jsonl line 3: " in error
    assert said in error


def test_a_bad_row_of_parquet_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame(
        {"arrival_seconds": [0.0, 1.0], "prompt_tokens": [5, 0], "output_tokens": [1, 1]}
    ).write_parquet(path)
    assert "t.parquet row 2: prompt_tokens is 0" in refused(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (HEADER, "no row"),
        ("0,1,1\n1,2,2\n", "names no columns"),
        ("when,prompt_tokens,output_tokens\n0,1,1\n", "lacks arrival_seconds"),
        ("a,b\n1,2\n", "'a, b'"),
        (HEADER.replace("output", "Prompt") + "1,1,1\n", "there twice"),
        ("[{}]", "one JSON list"),
        (b"\xff\xfea\x00", "line 1: it is not UTF-8"),
        (b"\x1f\x8bno", "cannot be read"),
        (b"PAR1no", "Parquet"),
    ],
)
def test_a_file_that_is_no_trace_says_why(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in refused(written(tmp_path, text))


def test_a_path_that_is_no_file_says_so(tmp_path: Path) -> None:
    assert "is a directory" in refused(tmp_path)
    assert "no such file" in refused(tmp_path / "none.csv")


def test_letter_case_marks_line_ends_separators_and_zipping_do_not_matter(tmp_path: Path) -> None:
    plain = f"{HEADER}0,5,6\n1.5,7,8\n"
    forms = [
        plain.encode(),
        b"\xef\xbb\xbf" + plain.upper().encode(),
        plain.replace("\n", "\r\n").encode(),
        plain.replace("\n", "\r").encode(),
        plain.replace("\n", "\n \n").encode(),
        plain.replace(",", ";").encode(),
        plain.replace(",", "\t").encode(),
        gzip.compress(plain.encode()),
        b'{"arrival_seconds": 0, "prompt_tokens": 5, "Output_Tokens": 6.0}\r\n'
        b'{"arrival_seconds": "1.5", "prompt_tokens": "7", "Output_Tokens": 8}\n',
    ]
    for text in forms:
        w = read_trace(written(tmp_path, text))
        assert w.arrival_seconds.tolist() == [0.0, 1.5]
        assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([5, 7], [6, 8])


def test_parquet_is_read_like_text(tmp_path: Path) -> None:
    path = tmp_path / "anything"
    rows = [json.loads(line) for line in (DATA / "mooncake_synthetic.jsonl").read_text().splitlines()]
    pl.DataFrame(rows).write_parquet(path)
    one, other = read_trace(path), read_trace(DATA / "mooncake_synthetic.jsonl")
    for name in ("arrival_seconds", "prompt_tokens", "output_tokens", "prefix_start", "prefix_ids"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    w = read_trace(written(tmp_path, f"{HEADER}9,1,1\n7,2,1\n9,3,1\n7,4,1\n"))
    assert w.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert w.arrival_seconds.tolist() == [0, 0, 2, 2]
    assert any(note.startswith("2 rows out of order") for note in w.notes)


def test_an_azure_request_of_no_tokens_counts_as_one_and_is_noted(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.5+00:00,9,0\n2024-05-10T02:00:02+02:00,0,3\n"
    w = read_trace(written(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"))
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([9, 1], [1, 3])
    assert w.arrival_seconds.tolist() == [0.0, 1.5]
    assert "1 request without output, each counted as 1 token" in w.notes


def test_a_time_of_azure_that_is_none_is_named(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,9,1\n2024-13-10 00:00:00,9,1\n"
    assert "line 3: timestamp is '2024-13-10" in refused(written(tmp_path, text))


def test_columns_that_are_not_used_are_listed(tmp_path: Path) -> None:
    w = read_trace(written(tmp_path, HEADER.replace("\n", ",user,tier\n") + "0,1,1,a,b\n"))
    assert w.notes == ("columns not used: user, tier",)


@pytest.mark.parametrize("lists", [("7 8", "7 9"), ('"7,8"', '"[7, 9]"'), ('"[""a"", ""b""]"', '"a, c"')])
def test_hashes_in_csv_are_lists_of_any_spelling(tmp_path: Path, lists: tuple[str, str]) -> None:
    text = (
        HEADER.replace("\n", ",prefix_block_hashes\n") + f"0,600,1,{lists[0]}\n1,600,1,{lists[1]}\n2,5,1,\n"
    )
    w = read_trace(written(tmp_path, text))
    assert w.prefix_start is not None
    assert w.prefix_ids is not None
    assert w.prefix_start.tolist() == [0, 2, 4, 4]
    first, _, again, other = w.prefix_ids.tolist()
    assert first == again != other
    assert w.summary().prefix_hit_share == pytest.approx(512 / 1205)


def test_more_hashes_than_blocks_name_the_option(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER.replace("\n", ",prefix_block_hashes\n") + "0,600,1,7 8\n1,30,1,7 8\n")
    assert "--prefix-block-tokens" in (error := refused(path))
    assert "line 3: prefix_block_hashes is '2 hashes'" in error
    assert read_trace(path, prefix_block_tokens=16).prefix_block_tokens == 16


def test_an_equal_block_after_another_beginning_is_not_shared(tmp_path: Path) -> None:
    text = HEADER.replace("\n", ",prefix_block_hashes\n") + "0,1024,1,1 5\n1,1024,1,2 5\n2,1024,1,2 5\n"
    w = read_trace(written(tmp_path, text))
    assert w.prefix_ids is not None
    one, two, three, four, five, six = w.prefix_ids.tolist()
    assert (three, four) == (five, six)
    assert len({one, two, three, four}) == 4
    assert w.notes == ("hashes after different beginnings: 1; only equal beginnings are shared",)


def test_a_session_is_a_text_that_grows(tmp_path: Path) -> None:
    text = HEADER.replace("\n", ",session_id\n") + "0,10,5,a\n1,99,1,\n2,40,5,a\n3,10,5,b\n"
    w = read_trace(written(tmp_path, text))
    assert w.stream is not None
    assert w.stream_tokens is not None
    assert w.stream.tolist() == [0, -1, 0, 1]
    assert w.stream_tokens.tolist() == [15, 0, 45, 15]
    assert w.arrival_seconds.tolist() == [0, 1, 2, 3]
    assert w.summary().prefix_hit_share == pytest.approx(15 / 159)


def test_without_polars_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    assert "pip install 'kvplan[simulate]'" in refused(DATA / "azure_conv.csv")


def test_a_servegen_window_has_the_requests_that_were_counted() -> None:
    clients = read_clients(DATA / "servegen")
    assert [client.number for client in clients] == [0, 1, 4]
    counted = 0.0
    for client in (0, 4):
        with (DATA / "servegen" / f"chunk-{client}-trace.csv").open() as file:
            counted += sum(
                600 * float(row[1]) for row in csv.reader(file) if 136800 <= float(row[0]) < 140400
            )
    w = servegen(DATA / "servegen", start_seconds=136800, seconds=3600)
    assert len(w) == round(counted)
    assert w.arrival_seconds.min() >= 0
    assert w.arrival_seconds.max() < 3600
    assert "1 client without lengths left out" in w.notes[0]


def test_servegen_lengths_follow_the_clients_tables() -> None:
    tables = json.loads((DATA / "servegen" / "chunk-4-dataset.json").read_text())["129600"]
    shares = {
        int(k): float(v) for k, v in (p.split(":") for p in tables["input_tokens"].strip("{}").split(","))
    }
    w = servegen(DATA / "servegen", start_seconds=136800, seconds=3600)
    mean = sum(length * share for length, share in shares.items()) / sum(shares.values())
    assert w.prompt_tokens.mean() == pytest.approx(mean, rel=0.01)
    assert set(w.prompt_tokens.tolist()) <= set(shares)


def test_servegen_bursts_are_as_measured() -> None:
    bursty = servegen(DATA / "servegen", start_seconds=143400, seconds=600).summary().gap_variation
    even = servegen(DATA / "servegen", start_seconds=138600, seconds=600).summary().gap_variation
    assert bursty is not None
    assert even is not None
    assert bursty > 10
    assert even == pytest.approx(1.07, abs=0.05)


def test_servegen_draws_the_same_by_the_same_seed_and_keeps_a_window_in_a_wider_span() -> None:
    narrow = servegen(DATA / "servegen", start_seconds=137400, seconds=600, seed=5)
    again = servegen(DATA / "servegen", start_seconds=137400, seconds=600, seed=5)
    wide = servegen(DATA / "servegen", start_seconds=136800, seconds=1200, seed=5)
    assert narrow.arrival_seconds.tobytes() == again.arrival_seconds.tobytes()
    assert np.allclose(wide.clipped(600, 1200).arrival_seconds, narrow.arrival_seconds)
    other = servegen(DATA / "servegen", start_seconds=137400, seconds=600, seed=6)
    assert not np.array_equal(other.prompt_tokens[:100], narrow.prompt_tokens[:100])


def test_servegen_comes_at_the_rate_that_is_asked() -> None:
    folder, span = DATA / "servegen", {"start_seconds": 138000.0, "seconds": 1200.0}
    assert len(servegen(folder, requests_per_second=5, **span)) == pytest.approx(6000, abs=4)
    assert len(servegen(folder, rate_factor=0.5, **span)) == pytest.approx(
        len(servegen(folder, **span)) / 2, abs=4
    )


def test_servegen_says_where_its_clients_are_busy_and_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="busiest window starts at 148200 s"):
        servegen(DATA / "servegen", start_seconds=0, seconds=60)
    with pytest.raises(BadInput, match="no folder"):
        servegen(tmp_path / "none")
    with pytest.raises(BadInput, match=r"no chunk-0-trace\.csv"):
        servegen(tmp_path)
    (tmp_path / "chunk-3-trace.csv").write_text("0,1,1,Gamma,1,1\n600,x,1,Gamma,1,1\n")
    with pytest.raises(BadInput, match=r"chunk-3-trace\.csv line 2"):
        servegen(tmp_path)
    (tmp_path / "chunk-3-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    (tmp_path / "chunk-3-dataset.json").write_text(
        '{"0": {"input_tokens": "{f(): 1}", "output_tokens": "{1: 1}"}}'
    )
    with pytest.raises(BadInput, match="input_tokens is no table"):
        servegen(tmp_path, seconds=60)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("prompt_tokens", [b"1", b"2"], "row 1: prompt_tokens is b'1'"),
        ("output_tokens", [True, False], "row 1: output_tokens is True"),
        ("session_id", [[1], [2]], r"session_id holds List"),
        ("prefix_block_hashes", [[1, None], [2]], "row 1: prefix_block_hashes is missing"),
        ("prefix_block_hashes", [{"a": 1}, {"a": 2}], "holds no lists"),
    ],
)
def test_columns_of_parquet_of_another_kind_are_refused(
    tmp_path: Path, column: str, values: list[Any], said: str
) -> None:
    columns = {"arrival_seconds": [0, 1], "prompt_tokens": [1024, 2], "output_tokens": [1, 2]} | {
        column: values
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "t")
    assert said in refused(tmp_path / "t")

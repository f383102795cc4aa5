"""What a search has found is kept as it comes, and gone on with by the same question alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import kvplan
from kvplan.advise import ledger as module
from kvplan.advise.ledger import Ledger
from kvplan.errors import BadInput

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpu": "h100,l40s", "rate": 4, "requests": 60, "prompt_tokens": 400,
    "output_tokens": 40, "ttft_p99": "1s", "max_accelerators": 4,
}  # fmt: skip


def test_records_are_kept_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "search.parquet"
    first = Ledger(str(path), "q")
    first.add("screened", "a", '{"x": 1}', replicas=2)
    first.add("tried", "a", "[]", replicas=None)
    first.write()
    again = Ledger(path, "q")
    assert again.get("screened", "a") == '{"x": 1}'
    assert again.get("tried", "a") == "[]"
    assert again.get("tried", "b") is None
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Ledger(None, "q")
    kept.add("tried", "a", "[]")
    kept.write()
    assert kept.get("tried", "a") == "[]"
    assert list(tmp_path.iterdir()) == []


def test_what_comes_is_on_disk_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    path = tmp_path / "search.parquet"
    kept = Ledger(path, "q")
    kept.add("tried", "a", "[]")
    assert not path.exists()
    now[0] += 3
    kept.add("tried", "b", "[]")
    assert len(pl.read_parquet(path)) == 2


def test_a_write_that_fails_leaves_the_last_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "search.parquet"
    kept = Ledger(path, "q")
    kept.add("tried", "a", "[]")
    kept.write()
    before = path.read_bytes()
    kept.add("tried", "b", "[]")

    def full(frame: pl.DataFrame, part: Path) -> None:
        Path(part).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(BadInput, match=r"--resume: .* cannot be written: No space left on device"):
        kept.write()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_another_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.parquet"
    kept = Ledger(path, "q")
    kept.add("tried", "a", "[]")
    kept.write()
    with pytest.raises(BadInput, match="holds the search for another model, load, goals or version"):
        Ledger(path, "r")


def test_the_file_has_columns_that_people_read(tmp_path: Path) -> None:
    path = tmp_path / "search.parquet"
    kvplan.recommend(**BASE, resume=str(path))
    frame = pl.read_parquet(path)
    assert set(frame["stage"].unique()) == {"screened", "tried", "played"}
    tried = frame.filter((pl.col("stage") == "tried") & pl.col("ttft_seconds").is_not_null())
    assert len(tried)
    assert {"family", "accelerators", "replicas", "tpot_seconds", "output_tokens_per_second"} <= set(
        frame.columns
    )
    assert all(json.loads(record) is not None for record in frame["record"])


class Interrupted(Exception):
    """Stands for a machine that goes away."""


def jobs_done(monkeypatch: pytest.MonkeyPatch, after: int | None = None) -> list[str]:
    """What is added to ledgers from now on; the search is interrupted after so many."""
    done: list[str] = []
    add = Ledger.add

    def added(self: Ledger, stage: str, family: str, record: str, **columns: Any) -> None:
        add(self, stage, family, record, **columns)
        done.append(f"{stage} {family}")
        if len(done) == after:
            self.write()
            raise Interrupted

    monkeypatch.setattr(Ledger, "add", added)
    return done


@pytest.mark.parametrize("after", [5, 13, 17])
def test_an_interrupted_search_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    path = tmp_path / "search.parquet"
    whole = json.dumps(kvplan.recommend(**BASE))
    with monkeypatch.context() as patch:
        first = jobs_done(patch, after)
        with pytest.raises(Interrupted):
            kvplan.recommend(**BASE, resume=str(path))
    rest = jobs_done(monkeypatch)
    assert json.dumps(kvplan.recommend(**BASE, resume=str(path))) == whole
    assert not set(first) & set(rest)
    assert len(first) == after
    assert rest


def test_a_finished_search_does_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "search.parquet"
    whole = json.dumps(kvplan.recommend(**BASE, resume=str(path)))
    done = jobs_done(monkeypatch)
    assert json.dumps(kvplan.recommend(**BASE, resume=str(path))) == whole
    assert done == []


def test_other_prices_and_more_accelerators_go_on_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "search.parquet"
    kvplan.recommend(**BASE, resume=str(path))
    wider = {**BASE, "gpu": "h100,l40s,a100-80-sxm", "price": "l40s=9"}
    fresh = json.dumps(kvplan.recommend(**wider))
    done = jobs_done(monkeypatch)
    assert json.dumps(kvplan.recommend(**wider, resume=str(path))) == fresh
    assert not any(name.startswith("screened h100") for name in done)
    assert any(name.startswith("screened a100") for name in done)


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    kvplan.recommend(**BASE, report=lambda what, done, of: told.append((what, done, of)))
    assert told[0][0].startswith("screened")
    assert told[-1][0] == "simulated"
    assert told[-1][1] == told[-1][2]
    assert all(done <= of for _, done, of in told)


def test_the_same_question_has_one_digest_in_every_process(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import kvplan\nfrom kvplan.advise.ledger import Ledger\n"
        "init = Ledger.__init__\n"
        "def told(self, path, question):\n    print(question)\n    init(self, path, question)\n"
        f"Ledger.__init__ = told\nkvplan.recommend(**{BASE!r})\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(kvplan.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1

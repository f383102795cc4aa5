"""What the facts say reaches users: it speaks of published sources and of the project alone."""

from __future__ import annotations

import re

import pytest

from kvplan.facts.store import ROOT

WORDS = re.compile(r"device machine|\brecall\b|excerpt|\bsession\b|\bsandbox\b|\breviewer\b", re.IGNORECASE)
FILES = sorted(
    p for p in ROOT.rglob("*") if p.suffix in (".toml", ".json", ".jsonl") and "models" not in p.parts
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_fact_speaks_of_how_it_was_gathered(path: object) -> None:
    assert WORDS.findall(path.read_text("utf-8")) == []  # type: ignore[attr-defined]

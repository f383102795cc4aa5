"""Weights that engines logged agree with those predicted from a config, its quantisation and the split."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from logged_weights import REASONS, Compared, compare

COMPARED = compare()


@pytest.mark.parametrize("one", COMPARED, ids=lambda one: f"{one.row['id']}-{one.row['as_logged']}")
def test_a_logged_weight_figure_is_within_two_percent_or_has_its_reason(one: Compared) -> None:
    assert one.agrees != (one.row["id"] in REASONS), f"{one.predicted_gib:.3f} GiB, {one.error:+.2%}"


def test_nearly_all_agree_and_the_median_error_is_a_fraction_of_a_percent() -> None:
    assert sum(one.agrees for one in COMPARED) / len(COMPARED) >= 0.85
    assert statistics.median(abs(one.error) for one in COMPARED) < 0.001


def test_the_page_that_shows_them_is_fresh() -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "tools" / "weights_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

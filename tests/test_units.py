"""Sizes and times mean what they say: GiB is 2^30, GB is 10^9."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import BadInput
from kvplan.units import bytes_text, decimal_text, parse_bytes, parse_seconds, seconds_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1073741824", 2**30), ("1GiB", 2**30), ("1 GB", 10**9), ("74.5GiB", 79_993_765_888),
        ("0.5MiB", 2**19), ("80gb", 80 * 10**9), ("1_000", 1000), ("1e9", 10**9), ("2TiB", 2**41), ("0", 0),
    ],
)  # fmt: skip
def test_a_size_is_read_in_the_unit_it_states(text: str, value: int) -> None:
    assert parse_bytes(text, "--gpu-memory") == value


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "1.2.3GB", "80 gibibytes", "nan", "inf", "1e99GB", "9" * 400]
)
def test_a_text_that_is_no_size_is_an_error_that_names_the_flag(text: str) -> None:
    with pytest.raises(BadInput, match="--gpu-memory"):
        parse_bytes(text, "--gpu-memory")


@pytest.mark.parametrize(
    ("text", "value"), [("0.5s", 0.5), ("30ms", 0.03), ("24h", 86400), ("150us", 150e-6)]
)
def test_a_time_is_read_in_the_unit_it_states(text: str, value: float) -> None:
    assert parse_seconds(text, "--ttft-p99") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "5", "ms", "-3ms", "1 fortnight"])
def test_a_time_without_its_unit_is_an_error(text: str) -> None:
    with pytest.raises(BadInput, match="--ttft-p99"):
        parse_seconds(text, "--ttft-p99")


@given(st.integers(0, 2**59))
def test_a_printed_size_reads_back_to_within_its_last_digit(value: int) -> None:
    assert parse_bytes(bytes_text(value), "x") == pytest.approx(value, rel=0.006, abs=1)


@given(st.integers(0, 2**20).map(lambda n: n * 2**20))
def test_whole_mebibytes_below_one_gibibyte_print_exactly(value: int) -> None:
    if value < 2**30:
        assert parse_bytes(bytes_text(value), "x") == value


def test_numbers_read_well() -> None:
    assert bytes_text(512 * 2**20) == "512 MiB"
    assert bytes_text(1.5 * 2**30) == "1.50 GiB"
    assert bytes_text(1023.999 * 2**20) == "1 GiB"
    assert decimal_text(70_553_706_496, "") == "70.55 G"
    assert seconds_text(0.0121) == "12.10 ms"


@pytest.mark.parametrize("text", ["5m", "5min", "300s", "5 m"])
def test_minutes_are_read_as_prometheus_and_as_people_write_them(text: str) -> None:
    assert parse_seconds(text, "--step") == 300
    assert parse_seconds("2w", "--since") == 14 * 86400


@pytest.mark.parametrize("text", ["1e999s", "1e308w", "²s", "5M", "5mo"])
def test_a_time_without_end_or_in_other_digits_is_an_error(text: str) -> None:
    with pytest.raises(BadInput, match="--step"):
        parse_seconds(text, "--step")


@given(st.floats(1e-6, 1e9))
def test_a_printed_time_reads_back_to_within_its_last_digit(value: float) -> None:
    assert parse_seconds(seconds_text(value), "x") == pytest.approx(value, rel=0.051, abs=1e-7)

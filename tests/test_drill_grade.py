"""Answers to practice questions as people type them: right in any form, and slips told by their name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvplan
from kvplan.drills.deck import decks
from kvplan.drills.draw import Draw
from kvplan.drills.grade import grade
from kvplan.drills.quantities import QUANTITIES
from kvplan.drills.question import Question
from kvplan.drills.typed import readings
from kvplan.figure import Figure
from kvplan.verbs.drill_build import built

KIB, MIB, GIB = 2**10, 2**20, 2**30


def named(name: str, seed: int = 0, **wanted: Any) -> Question:
    """A question of the first deck, drawn until it is about what is wanted."""
    (template,) = [t for t in decks()["first-numbers"].templates if t.name == name]
    for place in range(100):
        found = built(template, Draw(seed, place))
        if all(found.given[key] == value for key, value in wanted.items()):
            return found
    raise AssertionError(name)


def number(value: float, quantity: str = "bytes", tolerance: float = 0.05, **slips: float) -> Question:
    kind = QUANTITIES[quantity]
    return Question("t", "n", "number", "?", value, Figure(value), kind, tolerance, slips=slips)


# ---------------------------------------------------------------- Llama-2-70B, in every form
ANSWERS = tomllib.loads((Path(__file__).parent / "data" / "typed_answers.toml").read_text("utf-8"))


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_llama_2_70b_are_in_a_deck(name: str) -> None:
    assert named(name).value == pytest.approx(ANSWERS[name]["answer"])


@pytest.mark.parametrize(
    ("name", "typed"), [(name, typed) for name, row in ANSWERS.items() for typed in row["forms"]]
)
def test_a_right_answer_is_right_in_every_form(name: str, typed: str) -> None:
    assert grade(named(name), typed).status == "right", typed


@pytest.mark.parametrize(
    ("name", "typed", "slip"),
    [
        ("batch-8-bit", "37.25 GiB", "gb_for_gib"),
        ("batch-8-bit", "20 GiB", "keys_only"),
        ("batch-8-bit", "80 GiB", "sixteen_bit"),
        ("batch-8-bit", "320 GiB", "query_heads"),
        ("batch-8-bit", "640 MiB", "one_sequence"),
        ("token", "160 KiB", "keys_only"),
        ("token", "2.5 MiB", "query_heads"),
        ("token", "4 KiB", "one_layer"),
        ("token", "320 MiB", "thousand"),
        ("token", "320 bytes", "thousand"),
        ("prompt", "320 MiB", "keys_only"),
        ("prompt", "640 KiB", "thousand"),
        ("prompt", "640 B", "million"),
        ("prompt", "680 MiB", "the_whole"),
        ("output", "680 MiB", "the_whole"),
        ("output", "640 MiB", "the_rest"),
        ("share", "94%", "the_rest"),
        ("share", "0.06%", "percent"),
        ("how-much-grouped", "1/8", "inverse"),
        ("how-much-grouped", "64", "query_heads"),
    ],
)
def test_a_slip_is_told_by_its_name(name: str, typed: str, slip: str) -> None:
    found = grade(named(name), typed)
    assert found.status == "slip"
    assert slip in found.slips, found


@pytest.mark.parametrize(
    ("value", "typed", "unit"),
    [
        (40 * GIB, "40GB", "GiB"),
        (40 * GIB, "40 gb", "GiB"),
        (640 * MIB, "640 MB", "MiB"),
        (320 * KIB, "320 kB", "KiB"),
        (2 * 1024 * GIB, "2 TB", "TiB"),
    ],
)
def test_a_decimal_unit_for_the_binary_one_is_right_with_a_word_about_it(
    value: float, typed: str, unit: str
) -> None:
    found = grade(number(value), typed)
    assert (found.status, found.slips) == ("right", ("gb_for_gib",))
    assert f"taken as {unit}; 1 {unit} is 2^" in found.says


def test_a_decimal_size_that_is_another_figure_stays_wrong() -> None:
    assert grade(number(40 * GIB), "36 GB").status == "wrong"
    assert grade(number(40 * GIB), "20 GB").status == "wrong"
    assert grade(number(40 * GIB), "42.9 GB").slips == ()
    found = grade(number(40 * GIB, one_lever=39.3e9), "39.3 GB")
    assert (found.status, "one_lever" in found.slips) == ("slip", True)


def test_a_bare_number_below_one_is_a_share_where_that_is_nearer() -> None:
    q = number(0.0097, "share", 0.1, the_rest=0.9903)
    rest, right = grade(q, "0.9903"), grade(q, "0.97")
    assert (rest.status, rest.slips[0]) == ("slip", "the_rest")
    assert "taken as 0.99" in rest.says
    assert (right.status, right.says) == ("right", "taken as %: write the unit")
    assert grade(q, "0.0097").status == "right"
    assert grade(q, "0.97 %").status == "right"


def test_a_ranks_share_and_the_whole_are_told_apart() -> None:
    q = named("a-rank", tp=8)
    assert q.answer_text == "40 KiB"
    assert "all_ranks" in grade(q, "320 KiB").slips
    assert "keys_only" in grade(q, "20 KiB").slips


def test_why_gqa_shrinks_the_cache_is_answered_by_letter_or_by_words() -> None:
    q = named("why-grouped")
    letter = "abcd"[int(q.value)]
    for typed in (
        letter,
        letter.upper(),
        f"{letter})",
        f"({letter})",
        f"{letter}.",
        f"option {letter}",
        str(int(q.value) + 1),
        q.choices[int(q.value)],
        "8 query heads share one",
        "one key and one value for each kv head",
    ):
        assert grade(q, typed).status == "right", typed
    wrong = next(c for c in "abcd" if c != letter)
    assert grade(q, wrong).status == "wrong"
    assert grade(q, f"choice {letter} please").status == "right"
    for typed in (
        "e",
        "ab",
        "9",
        "0",
        "fewer bananas",
        "",
        "cache",
        "-1",
        "fewer heads",
        "fewer keys",
        "narrower",
    ):
        assert grade(q, typed).status == "unread", typed


def test_what_8_bit_shows_is_that_bytes_of_a_value_multiply() -> None:
    q = named("what-8-bit-shows")
    assert "twice the tokens" in q.choices[int(q.value)]
    assert grade(q, "proportion to the bytes").status == "right"


# ---------------------------------------------------------------- true and false
@pytest.mark.parametrize(
    "typed",
    ["true", "True", "TRUE.", "t", "T", "yes", "y", "right", "it is true", "correct!", "1", "✓", "not false"],
)
def test_yes_in_many_words_is_true(typed: str) -> None:
    q = Question("t", "n", "truth", "?", 1.0, Figure(1))
    assert grade(q, typed).status == "right"
    assert grade(Question("t", "n", "truth", "?", 0.0, Figure(0)), typed).status == "wrong"


@pytest.mark.parametrize(
    "typed", ["false", "f", "No", "n", "wrong", "that's false", "not true", "untrue", "0", "nope", "✗"]
)
def test_no_in_many_words_is_false(typed: str) -> None:
    assert grade(Question("t", "n", "truth", "?", 0.0, Figure(0)), typed).status == "right"


@pytest.mark.parametrize(
    "typed",
    [
        "",
        " ",
        "maybe",
        "42",
        "tr ue",
        "🤷",
        "t" * 300,
        "true or false",
        "true/false",
        "-1",
        "1/2",
        "yes and no",
    ],
)
def test_what_is_neither_yes_nor_no_is_asked_again(typed: str) -> None:
    assert grade(Question("t", "n", "truth", "?", 1.0, Figure(1)), typed).status == "unread"


# ---------------------------------------------------------------- other quantities
@pytest.mark.parametrize(
    ("quantity", "value", "typed"),
    [
        ("seconds", 0.02, "20ms"),
        ("seconds", 0.02, "0.02 s"),
        ("seconds", 0.02, "20"),
        ("seconds", 0.02, "0.02"),
        ("seconds", 0.02, "20 milliseconds"),
        ("seconds", 0.02, "20000 µs"),
        ("seconds", 0.02, "20,000 us"),
        ("seconds", 0.02, "1/50 s"),
        ("seconds", 90, "1.5 min"),
        ("count", 482_944, "480k"),
        ("count", 482_944, "0.48M"),
        ("count", 482_944, "half a million"),
        ("count", 131_072, "128k tokens"),
        ("count", 131_072, "2^17"),
        ("count", 131_072, "131 072"),
        ("count", 1500, "1.5k"),
        ("count", 1500, "1,500 sequences"),
        ("count", 12, "twelve"),
        ("rate", 879, "879 tok/s"),
        ("rate", 879, "about 900 tokens per second"),
        ("rate", 879, "0.9k t/s"),
        ("rate", 879, "53k/min"),
        ("intensity", 295, "295 FLOP/B"),
        ("intensity", 295, "~300 flops per byte"),
        ("flops", 3.5e13, "35 TFLOP"),
        ("flops", 3.5e13, "35e12"),
        ("flops", 3.5e13, "35 trillion"),
        ("flops", 3.5e13, "35"),
        ("ratio", 0.25, "a quarter"),
        ("share", 0.5, "half"),
        ("ratio", 0.125, "an eighth"),
        ("share", 0.125, "about an eighth"),
        ("share", 0.6, "12 ms / 20 ms"),
        ("bytes", 40e9, "37.25 GiB"),
        ("bytes", 40e9, "40GB"),
    ],
)
def test_every_quantity_is_read_in_its_units(quantity: str, value: float, typed: str) -> None:
    assert grade(number(value, quantity), typed).status == "right", typed


@pytest.mark.parametrize(
    ("quantity", "value", "typed", "slip"),
    [
        ("seconds", 0.02, "20 s", "thousand"),
        ("seconds", 0.02, "20 µs", "thousand"),
        ("seconds", 0.02, "160 ms", "bits_for_bytes"),
        ("bytes", 40 * GIB, "320 GiB", "bits_for_bytes"),
        ("bytes", 40 * GIB, "40 TiB", "thousand"),
        ("bytes", 40 * GIB, "20 GiB", "halved"),
        ("count", 48, "96", "doubled"),
        ("share", 0.06, "0.0006", "percent"),
        ("flops", 3.5e13, "17.5 TFLOP", "halved"),
        ("intensity", 295, "148", "halved"),
    ],
)
def test_slips_of_any_question_of_a_quantity_have_names_too(
    quantity: str, value: float, typed: str, slip: str
) -> None:
    assert slip in grade(number(value, quantity), typed).slips


def test_an_exact_answer_is_exact() -> None:
    q = number(5, "count", 0.0)
    assert [grade(q, typed).status for typed in ("5", "5.0", "five", "5 steps")] == ["right"] * 4
    assert grade(q, "4").status == "wrong"
    assert grade(q, "5.2").status == "wrong"


def test_a_tolerance_ends_where_it_says() -> None:
    q = number(100 * GIB)
    assert [grade(q, f"{x} GiB").status for x in (96, 104)] == ["right", "right"]
    assert [grade(q, f"{x} GiB").status for x in (88, 112)] == ["wrong", "wrong"]
    assert grade(q, "88 GiB").says.endswith("% too little")


def test_both_a_slip_and_the_wrong_unit_are_named() -> None:
    found = grade(number(80 * GIB, keys_only=40 * GIB), "40 GB")
    assert found.slips[0] == "keys_only"
    assert "GiB" in found.says


def test_a_number_without_a_unit_is_taken_with_a_word_about_it() -> None:
    found = grade(number(40 * GIB), "40")
    assert (found.status, found.says) == ("right", "taken as GiB: write the unit")


@pytest.mark.parametrize(
    "typed",
    [
        "",
        " ",
        "?",
        "!!",
        "GiB",
        "nan",
        "inf",
        "1e999 GiB",
        "-",
        "+",
        "1/0 GiB",
        "40 to 43 GiB",
        "40ms",
        "40 apples",
        "9" * 500,
        "4 0",
        "\x00",
        "\x1b[2J",
        "💥",
        "10^999999",
        "--",
        "40 GiB 50 GiB",
        "{0}",
        "%s",
        "[bold]",
        "0x28 GiB",
        "40 of 80 GiB",
        "80 GiB / 2 GiB",
        "40 GiB, 50 GiB",
    ],
)
def test_what_is_no_size_is_asked_again_in_one_line(typed: str) -> None:
    found = grade(number(40 * GIB), typed)
    assert found.status == "unread"
    assert found.says
    assert "\n" not in found.says
    assert len(found.says) < 200


@pytest.mark.parametrize("typed", ["-40 GiB", "0", "\u202e04", "1e290 GiB", "0.0000001 B", "-1e-9"])
def test_a_number_that_cannot_be_is_wrong(typed: str) -> None:
    assert grade(number(40 * GIB), typed).status in ("wrong", "slip")


@settings(max_examples=400)
@given(st.text(max_size=60), st.sampled_from(sorted(QUANTITIES)))
def test_no_text_breaks_the_grading(typed: str, quantity: str) -> None:
    assert grade(number(40, quantity), typed).status in ("right", "slip", "wrong", "unread")
    for kind in ("truth", "choice"):
        q = Question("t", "n", kind, "?", 0.0, Figure(1), choices=("one thing", "another thing"))
        assert grade(q, typed).status in ("right", "wrong", "unread")


@settings(max_examples=200)
@given(
    st.floats(0.02, 900),
    st.sampled_from(["B", "KiB", "MiB", "GiB", "KB", "MB", "GB", "TB"]),
    st.integers(0, 3),
)
def test_a_number_and_a_unit_are_read_as_they_are_written(value: float, unit: str, form: int) -> None:
    power = "BKMGT".index(unit[0])
    size = value * (1024.0 if "i" in unit else 1000.0) ** power
    text = f"{value:.9g}" if "e" not in f"{value:.9g}" else f"{value:.9f}"
    typed = [f"{text} {unit}", f"{text}{unit}", f"~{text}{unit.lower()}", f"about {text} {unit.upper()}"][
        form
    ]
    found = readings(typed, QUANTITIES["bytes"])
    assert not isinstance(found, str), typed
    assert found[0].value == pytest.approx(size, rel=1e-6)


def test_an_answer_is_graded_from_python() -> None:
    drawn = kvplan.drill("first-numbers", count=3, seed=1)
    verdict = drawn.grade(1, drawn["questions"][0]["answer_text"])
    assert verdict["status"] == "right"
    with pytest.raises(kvplan.KvplanError, match="number"):
        drawn.grade(4, "x")
    with pytest.raises(kvplan.KvplanError, match="typed"):
        drawn.grade(1, 5)  # type: ignore[arg-type]

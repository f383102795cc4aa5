"""Ten thousand practice questions: each has one right answer, which arithmetic by hand confirms."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

import drill_oracle as oracle
import kvplan
from kvplan.drills.deck import decks
from kvplan.drills.grade import grade
from kvplan.drills.quantities import QUANTITIES

COUNT = 10_000
KNOWN = {*oracle.NUMBERS, *oracle.CLAIMS, *oracle.TRUTHS, *oracle.WORDS, *oracle.OPTIONS}
# What a draw holds that a text says in other words: a name, a unit, a flag of one rank.
UNSAID = {
    "model",
    "dtype",
    "other",
    "gpu",
    "other_gpu",
    "scheme",
    "claim",
    "claimed",
    "options",
    "state",
    "cut",
}
UNSAID |= {"accelerator_bytes", "weight_bytes", "overhead_bytes", "pool_bytes", "second", "third", "times"}
NOT_SAID = {("tp", 1), ("batch", 1)}  # one rank, one sequence: what is meant where nothing is said
UNSAID_OF = {  # what does not change the answer
    "first-numbers/prompt": ("output",),
    "prefill-and-decode/prompt": ("output",),
    "memory-budget/tokens": ("length",),
    "engines/vllm-tokens": ("length",),
    "engines/vllm-blocks": ("length",),
    "engines/vllm-block-bytes": ("length", "pool"),
}


@pytest.fixture(scope="module")
def drawn() -> Any:
    return kvplan.drill(count=COUNT, seed=7)


def key(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['name']}"


def is_confirmed(row: dict[str, Any]) -> bool:
    """Whether the answer is the one that arithmetic on config fields gives."""
    name, given, answer = key(row), row["given"], row["answer"]
    if name in oracle.NUMBERS:
        value = float(oracle.NUMBERS[name](given))
        whole = abs(value - answer) <= 1 and row["quantity"] == "count" and value > 1000  # a floor of floats
        return whole or abs(value - answer) <= 1e-6 * abs(answer)
    if name in oracle.CLAIMS:
        right = float(oracle.CLAIMS[name](given))
        return bool(answer == (abs(given["claimed"] / right - 1) < 1e-6))
    if name in oracle.TRUTHS:
        return bool(answer == oracle.TRUTHS[name](given))
    chosen = row["choices"]["abcd".index(answer)]
    if name in oracle.WORDS:
        return oracle.WORDS[name] in chosen and sum(oracle.WORDS[name] in c for c in row["choices"]) == 1
    least = min(oracle.OPTIONS[name](given))
    sizes = sorted(float(x) for x in given["options"])
    return float(least) == sizes[0] < sizes[1] and given["options"]["abcd".index(answer)] == sizes[0]


def test_every_question_of_every_deck_has_an_oracle() -> None:
    templates = [f"{deck.topic}/{t.name}" for deck in decks().values() for t in deck.templates]
    assert len(templates) == len(set(templates))
    assert set(templates) == KNOWN


def test_ten_thousand_answers_are_those_of_an_independent_computation(drawn: Any) -> None:
    rows = drawn["questions"]
    wrong = [(row["text"], row["answer_text"], row["given"]) for row in rows if not is_confirmed(row)]
    assert len(rows) == COUNT
    assert wrong == []


def test_every_topic_and_every_question_of_it_is_reached(drawn: Any) -> None:
    reached = Counter(key(row) for row in drawn["questions"])
    assert set(reached) == KNOWN
    by_topic = Counter(row["topic"] for row in drawn["questions"])
    most_drawn = [count for topic, count in by_topic.items() if topic != "first-numbers"]
    assert min(most_drawn) > COUNT / 40


def test_no_two_texts_are_alike(drawn: Any) -> None:
    texts = Counter(row["text"] for row in drawn["questions"])
    assert [text for text, count in texts.items() if count > 1] == []


def test_no_two_texts_of_other_seeds_are_alike_for_different_answers(drawn: Any) -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    others = kvplan.drill(count=1500, seed=8)["questions"]
    for row in [*drawn["questions"], *others]:
        chosen = row["choices"]["abcd".index(row["answer"])] if row["choices"] else None
        said = (row["kind"], chosen or row["answer"])
        assert seen.setdefault(row["text"], said) == said, row["text"]


def test_answers_are_of_sensible_size(drawn: Any) -> None:
    for row in drawn["questions"]:
        if row["kind"] == "number":
            kind = QUANTITIES[row["quantity"]]
            assert kind.least <= row["answer"] <= kind.most, row["text"]
    times = [row["answer"] for row in drawn["questions"] if row["unit"] == "s"]
    assert 1e-4 < min(times) < max(times) < 60


def test_every_number_that_was_drawn_stands_in_the_text(drawn: Any) -> None:
    for row in drawn["questions"]:
        text = row["text"].replace(",", "")
        for name, value in row["given"].items():
            unsaid = name in UNSAID or name in UNSAID_OF.get(key(row), ())
            if unsaid or not isinstance(value, int) or (name, value) in NOT_SAID:
                continue
            assert re.search(rf"(?<![\d.]){value}(?!\d)", text), (name, value, row["text"])


def test_a_slip_is_never_as_near_as_the_tolerance(drawn: Any) -> None:
    for row in drawn["questions"]:
        for name, wrong in row["slips"].items():
            assert abs(wrong / row["answer"] - 1) > row["tolerance"], (name, row["text"])


def test_every_question_accepts_its_own_answer_and_names_its_slips(drawn: Any) -> None:
    for q in drawn.questions[:3000]:
        assert grade(q, q.answer_text).status == "right", q.text
        for name, wrong in q.slips.items():
            found = grade(q, repr(wrong) + (" " + q.quantity.unit if q.quantity.name == "bytes" else ""))
            assert found.status == "slip", (q.text, name, wrong, found)
            assert name in found.slips or len(found.slips) > 1, (q.text, name, found)


def test_one_thing_is_spoken_of_as_one(drawn: Any) -> None:
    things = r"(?<![\d.,])1 (prompt|request|sequence|token|rank|step|block|layer)"
    things += r"(s| of [\d,]+ tokens are)\b|\bdo 1 "
    assert [row["text"] for row in drawn["questions"] if re.search(things, row["text"])] == []


def test_the_hint_of_a_choice_is_a_thought_that_names_no_choice(drawn: Any) -> None:
    for q in drawn.questions:
        if q.kind == "choice":
            assert q.hint
            assert " = " not in q.hint
            assert not any(choice in q.hint for choice in q.choices)


def test_hints_give_no_numbers_away_and_solutions_end_in_the_answer(drawn: Any) -> None:
    for q in drawn.questions[:2000]:
        assert q.hint
        assert q.solution
        if q.kind == "number" and q.quantity.name == "bytes":
            assert q.solution.endswith(f"that is {q.answer_text}"), q.solution

"""An explanation must be true: reading it aloud gives the number it explains."""

from __future__ import annotations

import functools
import math
import operator
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvplan
from kvplan.cost.cache import head_bytes_per_token, kv_heads_on_rank, layer_bytes_per_token
from kvplan.facts.catalogue import entries
from kvplan.figure import (
    Figure,
    Source,
    Trust,
    ceiling,
    formula,
    least,
    most,
    named,
    sourced,
    total,
    value_of,
    whole,
)
from kvplan.verbs.answer import Answer

READ = {
    "least": min,
    "most": max,
    "whole": math.floor,
    "ceiling": lambda a, b: int(-(-a // b)),
    "power": pow,
    "same": lambda x: x,
}
STATED = Source(Trust.STATED, "drawn")


def read_aloud(figure: Figure) -> Any:
    """Evaluate the printed formula with every named part's exact value put in."""
    text = figure.expression(lambda part: f"({part.value!r})")
    text = text.replace("×", "*").replace("÷", "/").replace("−", "-")
    return eval(re.sub(r"(?<=\d),(?=\d{3})", "", text), READ)


def assert_all_true(figure: Figure) -> int:
    """Check every formula below a figure; returns how many there were."""
    formulas = [f for f in figure.walk() if f.parts and f.name]
    for f in formulas:
        said = read_aloud(f)
        assert said == f.value or math.isclose(said, f.value, rel_tol=1e-12), f.explain()
    return len(formulas)


def numbers_without_a_figure(tree: dict[str, Any], figures: dict[str, Figure], path: str = "") -> set[str]:
    """Paths of numbers in a document that no figure explains, lists apart."""
    found: set[str] = set()
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= numbers_without_a_figure(value, figures, f"{path}{key}.")
        elif type(value) in (int, float) and f"{path}{key}" not in figures:
            found.add(f"{path}{key}")
    return found


leaves = st.integers(1, 99).map(lambda n: Figure(n, "", f"x{n}", STATED)) | st.integers(1, 99)
trees = st.recursive(
    leaves,
    lambda below: st.tuples(st.sampled_from("+-*/m<wc"), below, below).map(lambda t: combine(*t)),
    max_leaves=12,
)


def combine(operation: str, a: Any, b: Any) -> Any:
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a // (b * b + 1),
        "m": lambda: most(a, b),
        "<": lambda: least(a, b),
        "w": lambda: whole(a / (b * b + 1)),
        "c": lambda: ceiling(a, b * b + 1),
    }[operation]()


@given(trees)
def test_any_expression_reads_back_to_its_value(tree: Any) -> None:
    if isinstance(tree, Figure):
        figure = named("answer", "", tree)
        assert read_aloud(figure) == figure.value


@given(*[st.integers(1, 10**6)] * 4)
def test_a_formula_gives_the_same_answer_with_figures_and_with_numbers(
    a: int, b: int, c: int, d: int
) -> None:
    figures = [sourced(n, v, "", STATED) for n, v in zip("abcd", (a, b, c, d), strict=True)]

    def one_layer(kv_heads: Any, key_width: Any, value_width: Any, value_bytes: Any) -> Any:
        return layer_bytes_per_token(kv_heads, head_bytes_per_token(key_width, value_width, value_bytes))

    assert value_of(one_layer(*figures)) == one_layer(a, b, c, d)


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_every_explanation_of_every_built_in_model_is_true(entry: Any) -> None:
    answer = kvplan.size(entry.id, tokens=5000, batch=3)
    figures = answer.figures()
    checked = sum(assert_all_true(figure) for figure in figures.values())
    assert checked >= (8 if answer["kv"]["bytes_per_sequence"] else 2)
    for path, figure in figures.items():
        assert functools.reduce(operator.getitem, path.split("."), answer) == figure.value
    assert numbers_without_a_figure(answer, figures) == set()


def test_every_explanation_of_a_plan_is_true() -> None:
    for model, tp in (
        ("llama-3.1-70b", 4),
        ("deepseek-v3", 8),
        ("gemma-3-27b", 2),
        ("qwen3-next-80b-a3b", 2),
        ("deepseek-v3.2", 8),
        ("deepseek-ai/DeepSeek-V4-Flash", 8),
        ("minimax-m3", 4),
        ("llama-4-scout-17b-16e-instruct", 8),
    ):
        answer = kvplan.plan(model, gpu="h200", tp=tp)
        assert sum(assert_all_true(figure) for figure in answer.figures().values()) > 40


def test_every_number_of_a_latency_part_has_a_figure() -> None:
    for model in ("llama-3.1-8b", "deepseek-v3", "qwen3-next-80b-a3b"):
        answer = kvplan.plan(model, gpu="h200", tp=8)
        missing = numbers_without_a_figure({"latency": answer["latency"]}, answer.figures())
        assert missing == set()


def test_a_table_is_explained_by_its_name() -> None:
    found = kvplan.size("gemma-3-27b").find("layer_kinds")
    assert [(figure.name, figure.value) for figure in found] == [("sliding", 52), ("full", 10)]


def test_an_explanation_names_formula_numbers_and_sources() -> None:
    text = kvplan.size("llama-3.1-8b").explain("bytes_per_token")
    assert "full_layers × full_bytes_per_token" in text
    assert "32 × 4,096" in text
    assert "[stated: meta-llama__Meta-Llama-3.1-8B.json num_key_value_heads]" in text


def test_the_weakest_input_is_the_least_trusted_one() -> None:
    sure = sourced("a", 2, "", Source(Trust.MEASURED, "log"))
    guess = sourced("b", 3, "", Source(Trust.ASSUMED, "no profile"))
    assert [f.name for f in (sure * guess + sure).weakest()] == ["b"]


def test_a_formula_names_its_result_and_quotes_its_docstring() -> None:
    @formula("B")
    def twice(x: Any) -> Any:
        """Two of them."""
        return 2 * x

    assert twice(4) == 8
    assert (
        "twice = 8 B\n  = 2 × x\n  = 2 × 4\n  (Two of them.)" in twice(sourced("x", 4, "B", STATED)).explain()
    )


def test_a_name_that_is_no_figure_is_an_error_that_suggests_one() -> None:
    with pytest.raises(kvplan.KvplanError, match="did you mean bytes_per_token"):
        kvplan.size("llama-3.1-8b").explain("bytes_per_tokn")


def test_the_sum_of_nothing_is_zero() -> None:
    assert total([]) == 0


def test_heads_are_repeated_when_ranks_outnumber_them() -> None:
    assert [kv_heads_on_rank(8, tp) for tp in (1, 2, 8, 16)] == [8, 4, 1, 1]


def test_an_answer_is_the_contract_document_itself() -> None:
    answer = kvplan.size("llama-3.1-8b")
    assert isinstance(answer, Answer)
    assert type(answer["kv"]["bytes_per_token"]) is int

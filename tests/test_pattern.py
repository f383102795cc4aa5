"""Patterns out of a config match what `re` matches, and take no longer for being wicked."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.model.pattern import NotUnderstood, understand

NAMES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.12.mlp.gate_up_proj",
    "lm_head",
    "a",
    "",
    "vision_tower.x",
]
PATTERNS = [
    ".*self_attn.*",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    "vision_tower.*",
    r"model\.layers\.\d+\.mlp",
    "^lm_head$",
    r"model\.layers\.[0-9]{1,2}\.(?:mlp|self_attn)\..*_proj$",
    r"model\.layers\.([1-9]|1[0-5])\..*",
    "[^a]",
    "a?b*",
    "(a|b)+",
    ".*?q_proj",
    "",
    "[]a]",
    "(ab|)*lm",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_matches_what_re_matches(pattern: str, name: str) -> None:
    assert understand(pattern).match(name) is (re.match(pattern, name) is not None)


_PARTS = st.sampled_from(["a", "b", ".", "[ab]", r"\d", "(a|b)", "(?:ab)", "1"])
_COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "*?"])


@given(st.lists(st.tuples(_PARTS, _COUNTS), max_size=5), st.booleans(), st.text(alphabet="ab1", max_size=7))
def test_any_pattern_of_its_parts_matches_what_re_matches(
    parts: list[tuple[str, str]], ends: bool, name: str
) -> None:
    text = "".join(part + count for part, count in parts) + ("$" if ends else "")
    assert understand(text).match(name) is (re.match(text, name) is not None)


@pytest.mark.parametrize(
    "pattern", ["(.*)*(.*)*(.*)*zzz", "(a|a)*" * 20 + "b", ".*" * 200 + "z", "(.|.)" * 60 + "!"]
)
def test_a_wicked_pattern_is_answered_at_once(pattern: str) -> None:
    began = time.perf_counter()
    understand(pattern).match("a" * 100)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[a",
        "*a",
        "a**",
        "(?!a)b",
        r"(a)\1",
        "a{9999}",
        "x" * 2000,
        "(" * 100,
        "a{2,1}",
        "a{0}",
        "\\",
        "((.{60}){60}){60}",
    ],
)
def test_what_is_not_read_says_so(pattern: str) -> None:
    with pytest.raises(NotUnderstood):
        understand(pattern)

"""Every verb that people would rather see than read draws itself, offline, to a file that is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput
from kvplan.faces import draw, picture

ANSWERS: dict[str, Any] = {
    "size": lambda: kvplan.size("gemma-3-27b", tokens=4096),
    "timeline": lambda: kvplan.timeline("qwen3-next-80b-a3b", prompt_tokens=64, output_tokens=32),
    "plan": lambda: kvplan.plan("deepseek-v3", gpu="h200", tp=8),
}
OPENINGS = {".svg": b"<svg", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>"}


@pytest.mark.parametrize("ending", OPENINGS)
@pytest.mark.parametrize("verb", ANSWERS)
def test_a_picture_is_written_in_the_format_its_name_asks_for(tmp_path: Path, verb: str, ending: str) -> None:
    path = tmp_path / f"picture{ending}"
    draw.draw(str(path), verb, ANSWERS[verb]())
    assert path.read_bytes().lstrip().startswith(OPENINGS[ending])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_page_holds_its_library_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    path = tmp_path / "picture.html"
    draw.draw(str(path), "size", ANSWERS["size"]())
    text = path.read_text("utf-8")
    assert "vegaEmbed" in text
    assert "<script src=" not in text


def test_the_growth_picture_shows_what_size_says() -> None:
    rows = kvplan.size("gemma-3-27b", tokens=4096).series()["growth"]
    held = sum(row["bytes"] for row in rows if row["x"] == 4096)
    assert held == kvplan.size("gemma-3-27b", tokens=4096)["kv"]["bytes_per_sequence"]
    assert {row["kind"] for row in rows} == {"sliding", "full"}


def test_the_memory_picture_shows_the_whole_device() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="h100")
    parts = answer.series()["memory"]
    assert sum(row["bytes"] for row in parts) == answer["fit"]["memory"]["accelerator_bytes"]


def test_a_chart_is_an_altair_object_for_notebooks() -> None:
    spec = draw.charts_of("timeline", ANSWERS["timeline"]())[0].to_dict()
    assert spec["mark"]["type"] == "area"


@pytest.mark.parametrize(
    ("name", "says"),
    [("picture.pdf", "ends in none of"), ("no-such-folder/picture.svg", "is not there"), ("p", "ends")],
)
def test_a_picture_that_cannot_be_drawn_is_refused_before_any_work(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        picture.check_plot(name)


def test_a_folder_in_the_pictures_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "picture.svg").mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        picture.check_plot(str(tmp_path / "picture.svg"))

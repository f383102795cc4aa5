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


def chart(verb: str, answer: Any, number: int = 0) -> dict[str, Any]:
    """One chart of an answer as Vega-Lite, its data beside it."""
    spec: dict[str, Any] = draw.charts_of(verb, answer)[number].to_dict()
    return spec


def subtitle(spec: dict[str, Any]) -> list[str]:
    """The lines under a chart's title."""
    lines: list[str] = spec.get("layer", [spec])[0]["title"]["subtitle"]
    return lines


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


def test_the_growth_picture_bends_where_a_window_fills_and_a_state_is_there_from_the_first_token() -> None:
    rows = kvplan.size("gemma-3-27b", tokens=100_000).series()["growth"]
    sliding = [(row["x"], row["bytes"]) for row in rows if row["kind"] == "sliding"]
    assert next(x for x, held in sliding if held == sliding[-1][1]) == 1024
    states = [r for r in kvplan.size("qwen3-next-80b-a3b").series()["growth"] if r["kind"] == "state"]
    assert [(row["x"], row["bytes"] > 0) for row in states[:2]] == [(0, False), (1, True)]


def test_growth_is_drawn_straight_and_to_its_last_length() -> None:
    spec = chart("size", kvplan.size("llama-3.1-8b", tokens=1000))
    assert spec["mark"]["interpolate"] == "linear"
    assert spec["data"]["values"][-1]["x"] == 1000
    assert spec["encoding"]["x"]["scale"]["nice"] is False


def runs_of(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """What ran, from which step to before which."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["run"], []).append(row)
    return [(run[0]["kind"], run[0]["x"], run[-1]["x"]) for run in found.values()]


def test_a_timeline_of_one_step_is_drawn_one_step_wide() -> None:
    rows = kvplan.timeline("llama-3.1-8b", output_tokens=0).series()["steps"]
    assert runs_of(rows) == [("prefill", 0, 1)]
    assert {row["bytes"] for row in rows} == {256 * 2**20}


def test_every_run_is_as_wide_as_its_steps_however_long_the_timeline() -> None:
    rows = kvplan.timeline("llama-3.1-8b", output_tokens=100_000).series()["steps"]
    assert runs_of(rows) == [("prefill", 0, 1), ("decode", 1, 100_001)]
    assert len(rows) < 1000
    late = kvplan.timeline("llama-3.1-8b", prompt_tokens=9, output_tokens=20_000, arrivals=[3, 10_000])
    assert runs_of(late.series()["steps"]) == [
        ("idle", 0, 3),
        ("prefill", 3, 4),
        ("decode", 4, 10_000),
        ("mixed", 10_000, 10_001),
        ("decode", 10_001, 30_001),
    ]


def test_the_memory_picture_shows_the_whole_device() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="h100")
    parts = answer.series()["memory"]
    assert sum(row["bytes"] for row in parts) == answer["fit"]["memory"]["accelerator_bytes"]


def test_a_bar_that_does_not_fit_runs_past_a_rule_at_the_device_s_memory() -> None:
    answer = kvplan.plan("llama-3.1-70b", gpu="h100")
    device = answer["fit"]["memory"]["accelerator_bytes"]
    bar, rule, label = chart("plan", answer)["layer"]
    assert sum(row["GiB"] for row in bar["data"]["values"]) > device / 2**30
    assert rule["mark"]["type"] == "rule"
    assert rule["data"]["values"] == [{"GiB": device / 2**30}]
    assert label["encoding"]["text"]["value"] == "79.18 GiB of the device: does not fit"


def test_memory_that_is_not_known_is_not_drawn() -> None:
    answer = kvplan.fit("llama-3.1-8b", kv_cache_memory_bytes=4 * 2**30)
    assert [row["part"] for row in chart("fit", answer)["data"]["values"]] == ["weights", "KV cache"]


def test_the_cache_is_full_at_the_batch_that_the_pool_holds_and_not_at_a_power_of_two() -> None:
    answer = kvplan.plan("deepseek-v3", gpu="h200", tp=8)
    each = kvplan.size("deepseek-v3", tokens=2048 + 256, tp=8)["kv"]["bytes_total"]
    full = answer["fit"]["memory"]["kv_pool_bytes"] // each
    assert full not in (256, 512)
    _, rule, label = chart("plan", answer, 2)["layer"]
    assert rule["data"]["values"] == [{"batch": full}]
    assert label["encoding"]["text"]["value"] == f"the cache holds {full}"


def test_marks_of_the_curve_stand_in_rows_above_it_and_no_rule_crosses_a_label() -> None:
    answer = kvplan.latency("llama-3.1-8b", gpu="h100", concurrency=64)
    batches = answer["batches"]
    wanted = sorted(batches[k] for k in ("capacity_batch", "weights_compute_bound_batch"))
    for number in range(2):
        _, low_rule, low, high_rule, high = chart("latency", answer, number)["layer"]
        assert [rule["data"]["values"][0]["batch"] for rule in (low_rule, high_rule)] == wanted
        assert high["encoding"]["y"]["value"] < low["encoding"]["y"]["value"] < 0
        assert [label["mark"]["align"] for label in (low, high)] == ["right", "right"]


def test_a_cache_that_holds_nothing_or_more_than_is_drawn_says_so() -> None:
    rows = [{"batch": b, "compute_seconds": 1e-3, "memory_seconds": 1e-3, "fits": False} for b in (1, 2)]
    assert picture.decode_over_batch(rows, "").to_dict()["layer"][2]["encoding"]["text"]["value"] == (
        "the cache holds none"
    )
    drawn = picture.decode_over_batch([row | {"fits": True} for row in rows], "").to_dict()
    assert drawn["mark"]["type"] == "line"


def test_every_picture_says_of_which_model_accelerators_and_load() -> None:
    plan = kvplan.plan("deepseek-v3", gpu="h200", tp=8, batch=4)
    deployed = f"deepseek-ai/DeepSeek-V3 on 8 × H200 SXM 141GB, vllm {plan['fit']['engine']['version']}"
    said = [subtitle(chart("plan", plan, i)) for i in range(4)]
    assert [lines[0] for lines in said] == [deployed] * 4
    assert said[2][1] == "2,048 prompt + 256 output tokens a sequence"
    assert said[3][1] == "2,048 prompt + 256 output tokens a sequence, batch 4"
    steps = kvplan.timeline("llama-3.1-8b", prompt_tokens=64, output_tokens=32, batch=3, tp=2)
    assert subtitle(chart("timeline", steps)) == [
        "meta-llama/Meta-Llama-3.1-8B, bfloat16 cache, one rank of 2",
        "3 × (64 prompt + 32 output tokens)",
    ]
    assert "google/gemma-3-27b-it" in subtitle(chart("size", ANSWERS["size"]()))[0]


def test_a_phase_has_one_colour_in_every_chart() -> None:
    found: dict[str, set[str]] = {}
    late = kvplan.timeline("llama-3.1-8b", prompt_tokens=9, output_tokens=9, arrivals=[1, 5])
    for spec in (
        chart("timeline", ANSWERS["timeline"]()),
        chart("timeline", late),
        chart("plan", ANSWERS["plan"](), 3)["layer"][1],
    ):
        scale = spec["encoding"]["color"]["scale"]
        for phase, colour in zip(scale["domain"], scale["range"], strict=True):
            found.setdefault(phase, set()).add(colour)
    assert set(found) == {"prefill", "decode", "mixed", "idle"}
    assert all(len(colours) == 1 for colours in found.values())
    assert len(set.union(*found.values())) == 4


def test_an_axis_names_its_quantity_and_its_unit() -> None:
    plan = ANSWERS["plan"]()
    titles = [chart("plan", plan, 1)["encoding"]["y"]["title"]]
    titles += [chart("plan", plan, i)["layer"][0]["encoding"]["y"]["title"] for i in (2, 3)]
    assert titles == ["cache held, GiB", "time of a step, at least, ms", "rate of one rank, at most, TFLOP/s"]


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


@pytest.mark.parametrize("folder", [".", "n" * 300, "/proc"])
@pytest.mark.parametrize("name", ["n" * 300 + ".png", "a\0b.svg"])
def test_a_name_that_no_file_can_have_is_one_line(folder: str, name: str) -> None:
    with pytest.raises(BadInput, match="--plot: ") as error:
        picture.check_plot(f"{folder}/{name}")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_a_folder_that_takes_no_file_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"cannot write '/proc/picture\.svg' \(.*\); name another file"):
        picture.check_plot("/proc/picture.svg")


def test_checking_leaves_nothing_behind_and_the_longest_name_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 251 + ".svg")
    assert picture.check_plot(str(path)) == path
    assert list(tmp_path.iterdir()) == []
    draw.draw(str(path), "timeline", ANSWERS["timeline"]())
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_that_keeps_no_cache_has_no_picture_of_it() -> None:
    model = "granite-embedding-125m-english"
    with pytest.raises(BadInput, match="keeps no cache"):
        draw.charts_of("size", kvplan.size(model))
    answer = kvplan.plan(model, gpu="h100", engine="transformers", prompt_tokens=8, output_tokens=8)
    assert len(draw.charts_of("plan", answer)) == 3

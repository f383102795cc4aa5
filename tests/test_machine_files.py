"""Files that `measure` keeps, as accelerators: other formats are said, damage is one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvplan
from kvplan.cost.reached import rows_factor
from kvplan.cost.step import Step
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.facts.reached import Reached
from kvplan.figure import Source, Trust
from kvplan.measured.machine import accelerator_of, read_machine
from kvplan.model.locate import load_model
from kvplan.verbs import measured_model

DOCS = Path(__file__).parents[1] / "docs" / "measured"
KEPT = ("llama-100m.json", "llama-100m-float32.json")
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def damaged(**changes: Any) -> Any:
    document = json.loads((DOCS / "llama-100m.json").read_text("utf-8"))
    for path, value in changes.items():
        part, _, name = path.partition("__")
        document[part] = {**document[part], name: value} if name else value
    return document


ODD = {
    "no machine": ([], "has no machine in it"),
    "no rate": (damaged(machine__bytes_per_second=0), "bytes_per_second 0 is not a positive number"),
    "endless rate": (damaged(machine__bytes_per_second=1e999), "is not a positive number"),
    "words for a rate": (damaged(machine__bytes_per_second="fast"), "'fast' is not a positive number"),
    "no peaks": (damaged(machine__peak_flops_per_second={}), "peak_flops_per_second is missing"),
    "a negative peak": (damaged(machine__peak_flops_per_second={"bfloat16": -1}), "bfloat16 -1"),
    "memory": (damaged(machine__memory_bytes="much"), "memory_bytes 'much' is not a number of bytes"),
    "platform": (damaged(machine__platform="tpu"), "platform 'tpu' is not cpu or cuda"),
    "no share": (damaged(calibration__cache_memory=None), "cache_memory None"),
    "overlap": (damaged(calibration__overlap=99), "calibration.overlap 99 is not between 1 and 8"),
    "spreads": (damaged(calibration__spreads={"decode": 3}), "spreads.decode is not an object"),
    "endless memory": (damaged(machine__memory_bytes=10**400), "machine.memory_bytes 1000"),
    "a rate of 400 digits": (damaged(machine__bytes_per_second=10**400), "machine.bytes_per_second 1000"),
    "a peak of 400 digits": (
        damaged(machine__peak_flops_per_second={"bfloat16": 10**400}),
        "machine.peak_flops_per_second.bfloat16 1000",
    ),
    "a step of an age": (
        damaged(calibration__step_seconds=1e308),
        "calibration.step_seconds 1e+308 is not between 1e-12 and 3600",
    ),
    "a factor without end": (
        damaged(calibration__rows=[{"m": 1, "factor": 1e308}]),
        "calibration.rows[0].factor 1e+308 is not between 1e-06 and 1e+06",
    ),
    "a share above all": (damaged(calibration__cache_memory=2), "calibration.cache_memory 2 is not between"),
    "no calibration but a word": (damaged(calibration=""), "calibration '' is not an object"),
    "a number for a calibration": (damaged(calibration=0), "calibration 0 is not an object"),
    "a list for a calibration": (damaged(calibration=[]), "calibration [] is not an object"),
    "an empty calibration": (damaged(calibration={}), "calibration.product_compute None is not"),
    "words for rows": (damaged(calibration__rows="garbage"), "calibration.rows 'garbage' is not a list"),
    "a word for spreads": (damaged(calibration__spreads="x"), "calibration.spreads 'x' is not an object"),
    "a format that is none": (damaged(model__dtype="fp3"), "model.dtype 'fp3' is not one of float32"),
    "a word for a model": (damaged(model="x"), "model 'x' is not an object"),
    "a word for products": (damaged(products="x"), "products 'x' is not a list"),
    "a product that is none": (damaged(products=[3]), "products[0] 3 is not an object"),
    "neither": (damaged(calibration=None, from_machine=None), "neither calibration nor from_machine"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("command", ["latency", "simulate"])
def test_an_odd_machine_file_is_one_line(
    name: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document, says = ODD[name]
    monkeypatch.chdir(tmp_path)
    Path("here.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(SystemExit) as stopped:
        main([command, "llama-3.1-8b", "--gpu", "here.json"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert "--gpu" in said
    assert said.count("\n") == 1


def test_words_of_a_machine_file_are_one_printable_line(tmp_path: Path) -> None:
    document = damaged(
        machine__name="a\nmachine\x1b[31m", machine__date="to\r\nday", calibration__words="so\x07\u2028it was"
    )
    machine = accelerator_of(document)
    assert (machine.name, machine.sources) == ("a machine [31m", ("measured to day",))
    assert machine.reached is not None
    assert machine.reached.source.where == "measured to day on a machine [31m: so it was"


def asked_of_kept(gpu: Any, **changed: Any) -> dict[str, Any]:
    """A decode step of 8 × 512 of the model that the kept files are of."""
    config = str(DOCS / "llama-100m-config.json")
    words = {"engine": "transformers", "batch": 8, "prompt_tokens": 512, "output_tokens": 2, **changed}
    return kvplan.latency(config, gpu=str(gpu), **words)


def width(answer: dict[str, Any]) -> float:
    """How many times its short end the long end of a decode step's interval is."""
    return float(answer["decode"]["high_seconds"] / answer["decode"]["low_seconds"])


@pytest.mark.parametrize(
    ("kept", "was", "asked"),
    [
        ("llama-100m-float32.json", "float32", "bfloat16"),
        ("llama-100m-float32.json", "float32", "float16"),
        ("llama-100m.json", "bfloat16", "float32"),
        ("llama-100m.json", "bfloat16", "float16"),
    ],
)
def test_a_calibration_in_another_format_is_said_and_its_spread_is_not_stated(
    kept: str, was: str, asked: str
) -> None:
    own, other = (asked_of_kept(DOCS / kept, dtype=dtype) for dtype in (was, asked))
    assert not any("was calibrated" in note for note in own["notes"])
    assert width(own) < 1.1
    assert width(other) > 2
    says = f"--gpu: the machine was calibrated in {was} and weights are {asked}: "
    [note] = [note for note in other["notes"] if note.startswith(says)]
    assert "intervals are those of machines that were not calibrated" in note
    assert not any("kept apart" in line for line in other["basis"])
    assert (f"all is as in {was}" if asked == "float16" else f"products are as timed in {asked}") in note


def test_a_simulation_says_that_the_calibration_is_of_another_format() -> None:
    words = {"engine": "transformers", "batch": 2, "requests": 2, "prompt_tokens": 64, "output_tokens": 4}
    config, gpu = (str(DOCS / name) for name in ("llama-100m-config.json", "llama-100m-float32.json"))
    assert (
        "calibrated in float32 and weights are bfloat16"
        in kvplan.simulate(config, gpu=gpu, **words)["notes"][0]
    )
    again = kvplan.simulate(config, gpu=gpu, dtype="float32", **words)
    assert not any("calibrated" in note for note in again["notes"])


def test_products_of_the_asked_format_are_taken_where_they_were_timed() -> None:
    machine = read_machine(str(DOCS / "llama-100m-float32.json"))
    reached = machine.reached
    assert reached is not None
    assert reached.dtype == "float32"
    other, untimed = reached.of("bfloat16"), reached.of("float16")
    document = json.loads((DOCS / "llama-100m-float32.json").read_text("utf-8"))
    mine = [row for row in document["products"] if row["dtype"] == "bfloat16"]
    assert other.product_memory == pytest.approx(
        mine[0]["weight_bytes_per_second"] / machine.bytes_per_second
    )
    assert (other.cache_memory, other.layer_seconds) == (reached.cache_memory, reached.layer_seconds)
    assert (untimed.product_memory, untimed.rows) == (reached.product_memory, reached.rows)
    assert (other.spreads, untimed.spreads) == ({}, {})
    assert other.source.trust is untimed.source.trust is Trust.ASSUMED


def test_rates_alone_are_those_of_products_in_the_asked_format(tmp_path: Path) -> None:
    document = damaged(calibration=None, model=None)
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(document), "utf-8")
    assert not any("--gpu" in note for note in asked_of_kept(file, dtype="float32")["notes"])
    [note] = [note for note in asked_of_kept(file, dtype="float16")["notes"] if "--gpu" in note]
    assert note == "--gpu: products were timed in bfloat16 and weights are float16: taken to reach as much"


def test_a_calibration_that_names_no_format_is_not_taken_for_the_asked_one(tmp_path: Path) -> None:
    file = tmp_path / "nameless.json"
    file.write_text(json.dumps(damaged(model=None)), "utf-8")
    answer = asked_of_kept(file)
    assert "calibrated in a format that the file does not name" in answer["notes"][0]
    assert width(answer) > 2


def test_a_machine_file_that_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--gpu: .* cannot be read"):
        read_machine(str(tmp_path / "none.json"))
    for junk in (b"\xff\xfe\x00", b"{", b"[" * 100_000):
        (tmp_path / "junk.json").write_bytes(junk)
        with pytest.raises(BadInput, match="is not JSON"):
            read_machine(str(tmp_path / "junk.json"))


@pytest.mark.parametrize("kept", KEPT, ids=["16 bit", "32 bit"])
def test_the_kept_calibration_gives_the_kept_estimates_again(kept: str) -> None:
    """The page's estimates follow from the file's own shares through the product's clock."""
    document = json.loads((DOCS / kept).read_text("utf-8"))
    machine = accelerator_of(document)
    assert machine.reached is not None
    dtype = document["model"]["dtype"]
    config = json.loads((DOCS / "llama-100m-config.json").read_text("utf-8"))
    model = load_model({**config, "torch_dtype": dtype})
    timed = measured_model.clock_with(model, dtype, machine, machine.reached)
    for row in (*document["decode"], *document["prefill"]):
        step = measured_model.step_of(row)
        assert float(timed.seconds(step)) == pytest.approx(row["predicted_seconds"], rel=1e-9)
        assert float(timed.floor(step)) == pytest.approx(row["lower_bound_seconds"], rel=1e-9)


def test_a_product_takes_as_many_times_its_shares_as_products_of_its_rows_were_timed_to() -> None:
    timed = Reached(
        1.0,
        0.5,
        1.0,
        0.5,
        1.0,
        Source(Trust.MEASURED, "here"),
        "",
        rows=((1, 0.9), (2, 1.6), (8, 1.2), (64, 1.0)),
    )
    rows = [0.5, 1, 2, 4, 8, 64, 1000]
    assert [rows_factor(timed, m) for m in rows] == pytest.approx([0.9, 0.9, 1.6, 1.4, 1.2, 1.0, 1.0])
    assert rows_factor(timed, np.array(rows, float)) == pytest.approx([rows_factor(timed, m) for m in rows])
    machine = read_machine(str(DOCS / "llama-100m.json"))
    clocks = [
        measured_model.clock_with(load_model(LLAMA), "float32", machine, reached)
        for reached in (replace(timed, rows=()), timed)
    ]
    for sequences, factor in ((2, 1.6), (4, 1.4)):
        plain, known = (
            {part.name: (part.kind, part.seconds) for part in clock.timed(Step(sequences, 100))}
            for clock in clocks
        )
        for name, (kind, seconds) in plain.items():
            times = factor if kind == "matmul" else 1
            assert known[name][1] == pytest.approx(times * seconds)

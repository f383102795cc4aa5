"""`measure`: rates come out as they are, calibrations find what was put in, odd input is one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import kvplan
from fake_torch import Machine, ran
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.measured import arrays, model_run, rates
from kvplan.measured.calibrate import calibrated, checkerboard, spread
from kvplan.measured.machine import accelerator_of
from kvplan.verbs import measure as verb
from kvplan.verbs import measured_model
from kvplan.verbs.measure import shortened

DOCS = Path(__file__).parents[1] / "docs" / "measured"
KEPT = (("llama-100m.json", 2), ("llama-100m-float32.json", 4))
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
TRUTH = {
    "product_compute": 0.7, "product_memory": 0.3, "prompt_compute": 0.4, "cache_memory": 0.05,
    "layer_seconds": 3e-5, "sequence_seconds": 8e-6,
}  # fmt: skip


def test_rates_of_a_machine_are_those_it_has() -> None:
    machine = Machine(rate=2e10, peak=3e11)
    memory = rates.bandwidth(machine, machine.timer(), [1 << 20, 1 << 24], 2)
    assert rates.best_bandwidth(memory) == pytest.approx(2e10, rel=1e-6)
    products = rates.products(machine, machine.timer(), ("bfloat16",), (1, 4096))
    assert products[0]["weight_bytes_per_second"] == pytest.approx(1e10, rel=0.1)
    assert products[1]["flops_per_second"] == pytest.approx(3e11, rel=0.02)


def test_memory_that_does_not_suffice_is_one_line() -> None:
    machine = Machine(room=1000)
    with pytest.raises(BadInput, match="--size: no memory for two arrays of 1 MiB"):
        rates.bandwidth(machine, machine.timer(), [1 << 20])
    with pytest.raises(BadInput, match="--dtypes: products in float32 cannot be timed here"):
        rates.products(machine, machine.timer(), ("float32",))


def test_a_calibration_finds_the_numbers_that_made_the_times() -> None:
    points = [(a, b, c) for a in (1, 3, 9) for b in (1, 5) for c in (2, 7)]

    def predict(values: Any) -> list[float]:
        return [a / values["share"] + b * values["layer_seconds"] + c * 1e-3 for a, b, c in points]

    truth = predict({"share": 0.25, "layer_seconds": 0.5})
    found = calibrated({"share": 0.9, "layer_seconds": 0.01}, predict, truth)
    assert found["share"] == pytest.approx(0.25, rel=0.05)
    assert found["layer_seconds"] == pytest.approx(0.5, rel=0.05)


def test_a_share_is_never_more_than_all() -> None:
    found = calibrated({"share": 0.5}, lambda v: [1 / v["share"]], [0.5])
    assert found["share"] == pytest.approx(1.0)


def test_half_of_a_grid_is_kept_apart() -> None:
    board = checkerboard(4, 5)
    assert sum(map(sum, board)) == 10
    assert all(a != b for row in board for a, b in itertools.pairwise(row))
    assert spread([1.0] * 4) is None
    assert spread([0.8, 0.9, 1.0, 1.1, 1.2]) == {
        "low": pytest.approx(0.84),
        "high": pytest.approx(1.16),
        "rows": 5,
    }


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine in place of this one; no library is loaded."""
    machine = Machine()
    monkeypatch.setattr(verb, "arrays_of", lambda device, threads: machine)
    monkeypatch.setattr(verb, "timer", lambda threads, wait: machine.timer())
    monkeypatch.setattr(verb, "device_words", lambda arrays: "a machine of paper")
    monkeypatch.setattr(verb, "memory_of", lambda arrays: (1 << 34, 1 << 34))
    monkeypatch.setattr(model_run, "libraries", lambda: (None, None))
    return machine


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(LLAMA), "utf-8")
    return str(file)


def obeying(monkeypatch: pytest.MonkeyPatch, truth: dict[str, float], bytes_off: int = 0) -> None:
    """Let the model take what these numbers say on the paper machine."""

    def run(asked: Any, clock: Any, tell: Any) -> Any:
        model = verb.load_model(asked.config)
        document = {
            "machine": {
                "platform": "cpu", "bytes_per_second": 1e10, "peak_flops_per_second": {asked.dtype: 1e11}
            },
            "calibration": {**truth, "step_seconds": 1e-9, "overlap": 1.0},
        }  # fmt: skip
        machine = accelerator_of(document)
        assert machine.reached is not None
        timed = measured_model.clock_with(model, asked.dtype, machine, machine.reached)

        def seconds(row: dict[str, Any]) -> float:
            return float(timed.seconds(measured_model.step_of(row)))

        each = 4 * 2 * 2 * 64 * 2  # layers, keys and values, heads, width, bytes
        return ran(seconds, lambda b, c: b * c * each + bytes_off, asked)

    monkeypatch.setattr(model_run, "run", run)


def test_a_model_calibrates_the_machine_and_steps_kept_apart_are_met(
    here: Machine, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    obeying(monkeypatch, TRUTH)
    answer = kvplan.measure(model=config, rounds=1)
    verdict = answer["verdict"]
    assert verdict["cache_agrees"]
    assert verdict["decode"]["points"] == 10
    assert verdict["decode"]["worst_relative_error"] < 0.05
    assert verdict["decode"]["above_floor"]
    assert answer["calibration"]["cache_memory"] == pytest.approx(TRUTH["cache_memory"], rel=0.2)
    assert answer["machine"]["bytes_per_second"] == pytest.approx(1e10, rel=1e-6)


def test_a_cache_of_other_bytes_disagrees_and_check_says_so(
    here: Machine, config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    obeying(monkeypatch, TRUTH, bytes_off=2)
    with pytest.raises(SystemExit) as stopped:
        main(["measure", "--model", config, "--rounds", "1", "--check"])
    assert stopped.value.code == 1
    assert "20 of 20 shapes hold other bytes than predicted" in capsys.readouterr().out


def test_what_is_kept_is_an_accelerator(
    here: Machine, config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    obeying(monkeypatch, TRUTH)
    kept = tmp_path / "here.json"
    with pytest.raises(SystemExit) as stopped:
        main(["measure", "--model", config, "--rounds", "1", "--save", str(kept), "--json"])
    assert stopped.value.code == 0
    document = json.loads(kept.read_text("utf-8"))
    assert document["calibration"]["dtype"] == document["from_machine"]["dtype"] == "bfloat16"
    answer = kvplan.latency(
        config, gpu=str(kept), engine="transformers", batch=8, prompt_tokens=256, output_tokens=2
    )
    row = next(r for r in document["decode"] if (r["batch"], r["context"]) == (8, 256))
    assert answer["decode"]["step_seconds"] == pytest.approx(row["predicted_seconds"], rel=0.02)
    assert answer["decode"]["lower_bound_seconds"] == pytest.approx(row["lower_bound_seconds"], rel=0.02)
    assert answer["basis"][0].startswith("estimates: measured ")
    assert "step_seconds" in answer.explain("decode")
    run = kvplan.simulate(
        config, gpu=str(kept), engine="transformers", concurrency=4, requests=8, prompt_tokens=64,
        output_tokens=16,
    )  # fmt: skip
    assert run["completed"] == 8


def test_without_a_model_the_rates_alone_are_an_accelerator(
    here: Machine, config: str, tmp_path: Path
) -> None:
    answer = kvplan.measure(rounds=1)
    kept = tmp_path / "rates.json"
    kept.write_text(json.dumps(answer), "utf-8")
    found = kvplan.latency(config, gpu=str(kept), batch=2, prompt_tokens=64, output_tokens=8)
    assert found["decode"]["step_seconds"] > found["decode"]["lower_bound_seconds"]
    assert any("no model was run" in line for line in found["basis"])
    assert answer.explain("bytes_per_second").endswith("torch 9.9]")


BAD = {
    "device": ({"device": "tpu"}, "--device: 'tpu' is not cpu or cuda"),
    "dtypes": ({"dtypes": "fp3"}, "--dtypes: 'fp3' is not known"),
    "no size": ({"size": "0"}, "--size: 0 is outside"),
    "size": ({"size": "much"}, "--size: 'much' is not a size"),
    "m": ({"m": "0"}, "--m: 0 is outside"),
    "batch": ({"batch": "two"}, "--batch: 'two' is not a whole number"),
    "batches": ({"batch": ","}, "--batch: '' is not a whole number"),
    "context": ({"context": "-1"}, "--context"),
    "prompts": ({"prompt_tokens": "1.5"}, "--prompt-tokens: '1.5' is not a whole number"),
    "rounds": ({"rounds": 0}, "--rounds: 0 is outside"),
    "steps": ({"steps": True}, "--steps: True is not a whole number"),
    "threads": ({"threads": 0}, "--threads: 0 is outside"),
    "layers": ({"layers": 2}, "--layers: shortens a model; give --model too"),
    "model": ({"model": "no-such-model-here"}, "MODEL: "),
    "layers of model": ({"model": LLAMA, "layers": 2}, "--model"),
}


@pytest.mark.parametrize("name", BAD)
def test_odd_input_is_one_line(name: str) -> None:
    words, says = BAD[name]
    with pytest.raises(BadInput if name != "model" else kvplan.KvplanError) as refused:
        kvplan.measure(**words)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_dtype_that_is_not_run_is_refused(config: str) -> None:
    with pytest.raises(BadInput, match="--dtype: 'fp8' cannot be run here"):
        kvplan.measure(model=config, dtype="fp8")


def test_a_sequence_longer_than_the_model_is_refused(config: str) -> None:
    for words in ({"context": "4096"}, {"prompt_tokens": "5000"}):
        with pytest.raises(BadInput, match="is beyond the 4,096 tokens of small"):
            kvplan.measure(model=config, **words)


def test_without_torch_numpy_times_what_it_can_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "torch_or_none", lambda: None)
    answer = kvplan.measure(size="1MiB", m="1,2", rounds=1)
    assert answer["machine"]["library"].startswith("numpy ")
    assert list(answer["machine"]["peak_flops_per_second"]) == ["float32"]
    assert answer["notes"] == ["torch is not installed: numpy times memory and float32 alone"]
    for words in ({"device": "cuda"}, {"threads": 2}):
        with pytest.raises(BadInput, match="torch is not installed"):
            kvplan.measure(**words)
    with pytest.raises(BadInput, match="has no products in bfloat16"):
        kvplan.measure(dtypes="bfloat16", size="1MiB")


def test_a_model_without_transformers_is_refused_before_anything_is_timed(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(model_run.importlib, "import_module", gone)
    monkeypatch.setattr(arrays, "torch_or_none", lambda: None)
    monkeypatch.setattr(rates, "bandwidth", lambda *_: pytest.fail("timed"))
    with pytest.raises(BadInput, match="pip install 'kvplan\\[measure\\]'"):
        kvplan.measure(model=config)


def test_a_model_that_memory_does_not_hold_is_refused(
    here: Machine, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "memory_of", lambda arrays: (1 << 20, 1 << 20))
    with pytest.raises(BadInput, match="give fewer --layers"):
        kvplan.measure(model=config)


def test_a_config_is_cut_to_its_first_layers() -> None:
    raw = {"num_hidden_layers": 4, "layer_types": ["a", "b", "c", "d"], "eos_token_id": [1, 2], "head_dim": 4}
    assert shortened(raw, 2) == {**raw, "num_hidden_layers": 2, "layer_types": ["a", "b"]}
    assert shortened({"text_config": raw}, 1)["text_config"]["layer_types"] == ["a"]
    for layers in (0, 5):
        with pytest.raises(BadInput, match="--layers"):
            shortened(raw, layers)
    with pytest.raises(BadInput, match="does not say how many layers"):
        shortened({}, 1)


def refused_early(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exit code of `measure` with these arguments; nothing may be timed."""

    def timed(**_: Any) -> Any:
        raise AssertionError("timed")

    monkeypatch.setattr(kvplan, "measure", timed)
    with pytest.raises(SystemExit) as stopped:
        main(["measure", *arguments])
    return stopped.value.code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--save", "none/x/y.json"], "--save: the folder 'none/x' is not there"),
        (["--save", "x.txt"], "--save: 'x.txt' does not end in .json"),
        (["--save", "folder.json"], "--save: 'folder.json' is a folder"),
        (["--save", "x" * 300 + ".json"], "cannot be written: File name too long"),
        (["--plot", "none/x.svg"], "--plot: the folder 'none' is not there"),
        (["--plot", "x.svg"], "--plot: draws the steps of a model; give --model"),
    ],
)
def test_a_file_that_cannot_be_kept_is_refused_before_anything_is_timed(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    assert refused_early(arguments, monkeypatch) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["folder.json"]


@pytest.mark.parametrize(
    ("with_model", "says"),
    [
        (True, "--check: all decode steps were fitted on, so none was tested"),
        (False, "--check: no model was run, so nothing was tested; give --model"),
    ],
)
def test_check_does_not_pass_where_nothing_was_tested(
    with_model: bool,
    says: str,
    here: Machine,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    obeying(monkeypatch, TRUTH)
    arguments = ["--model", config, "--batch", "1", "--context", "128"] if with_model else []
    with pytest.raises(SystemExit) as stopped:
        main(["measure", *arguments, "--rounds", "1", "--check"])
    assert stopped.value.code == 1
    assert says in capsys.readouterr().err


def test_check_passes_where_all_that_was_kept_apart_agrees(
    here: Machine, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    obeying(monkeypatch, TRUTH)
    with pytest.raises(SystemExit) as stopped:
        main(["measure", "--model", config, "--rounds", "1", "--check"])
    assert stopped.value.code == 0


def test_the_page_says_what_was_measured() -> None:
    import importlib.util

    file = DOCS.parents[1] / "tools" / "measured.py"
    spec = importlib.util.spec_from_file_location("measured_page", file)
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = page.PAGE.read_text("utf-8")
    assert page.filled(text) == text


@pytest.mark.parametrize(("kept", "value_bytes"), KEPT, ids=["16 bit", "32 bit"])
def test_the_measured_decode_step_is_above_the_floor_and_within_a_quarter_of_the_estimate(
    kept: str, value_bytes: int
) -> None:
    document = json.loads((DOCS / kept).read_text("utf-8"))
    assert 90e6 < document["model"]["weight_bytes"] / value_bytes < 120e6
    apart = [row for row in document["decode"] if not row["fitted"]]
    assert len(apart) >= 10
    assert all(row["seconds"] > row["lower_bound_seconds"] for row in document["decode"])
    assert all(abs(row["predicted_seconds"] / row["seconds"] - 1) <= 0.25 for row in apart)
    assert all(row["agrees"] for row in document["cache"])

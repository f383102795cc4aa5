"""The command line answers, or says in one line what is wrong and exits 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.faces.cli import main


class Ran:
    """What one command did."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run


def test_json_is_one_document_equal_to_what_python_returns(run: Any) -> None:
    ran = run("size", "llama-3.1-8b", "--tokens", "4096", "--json")
    assert ran.status == 0
    assert json.loads(ran.out) == kvplan.size("llama-3.1-8b", tokens=4096)
    assert ran.err == ""


def test_a_plan_in_json_has_every_part_of_the_contract(run: Any) -> None:
    document = json.loads(run("plan", "llama-3.1-8b", "--gpu", "h100", "--json").out)
    assert {"size", "fit", "latency", "limits", "levers", "launch"} <= set(document)


def test_a_report_ends_with_what_it_rests_on(run: Any) -> None:
    ran = run("plan", "llama-3.1-8b", "--gpu", "h100")
    assert ran.out.splitlines()[-1].startswith("  ")
    assert "rests on (weakest inputs, assumed):" in ran.out


def test_explain_alone_explains_everything_and_with_a_name_one_figure(run: Any) -> None:
    everything = run("size", "llama-3.1-8b", "--explain").out
    one = run("size", "llama-3.1-8b", "--explain", "bytes_per_token").out
    assert "mha_bytes_per_token = " in everything
    assert one.startswith("bytes_per_token = 131,072 B/token\n")
    assert "mha_bytes_per_token" not in one


def test_check_turns_does_not_fit_into_exit_status_1(run: Any) -> None:
    assert run("plan", "llama-3.1-405b", "--gpu", "h100", "--check").status == 1
    assert run("plan", "llama-3.1-405b", "--gpu", "h100").status == 0
    assert run("plan", "llama-3.1-8b", "--gpu", "h100", "--check").status == 0


def test_the_lists_name_sources(run: Any) -> None:
    assert len(json.loads(run("models", "--json").out)) == 263
    cards = json.loads(run("accelerators", "--json").out)
    assert len(cards) == 65
    assert all(card["sources"] for card in cards)
    assert "llama" in run("models", "llama").out.lower()


BAD_WORDS = [
    (("size",), "MODEL"),
    (("size", "no-such-model"), "no-such-model"),
    (("size", "llama-3.1-8b", "--tp", "3"), "use one of 1, 2, 4, 8, 16, 32"),
    (("size", "llama-3.1-8b", "--tp", "0"), "--tp: 0"),
    (("size", "llama-3.1-8b", "--tp", "x"), "'x'"),
    (("size", "llama-3.1-8b", "--tokens", "-5"), "--tokens: -5"),
    (("size", "llama-3.1-8b", "--tokens", "99999999999999999999"), "--tokens"),
    (("size", "llama-3.1-8b", "--batch", "1.5"), "'1.5'"),
    (("size", "llama-3.1-8b", "--kv-cache-dtype", "fp9"), "is not a known number format; did you mean fp8"),
    (("size", "llama-3.1-8b", "--kv-cache-dtype", "q8_1"), "cannot hold kv"),
    (("size", "llama-3.1-8b", "--no-such-flag"), "--no-such-flag"),
    (("size", "llama-3.1-8b", "--explain", "nonsense"), "no figure is called"),
    (("size", "llama-3.1-8b", "--explain", "--json"), "--explain"),
    (("plan", "llama-3.1-8b"), "--gpu"),
    (("plan", "llama-3.1-8b", "--gpu", "h10000"), "did you mean"),
    (("plan", "llama-3.1-8b", "--gpu", "tpu-v5e"), "--gpu-memory"),
    (("plan", "llama-3.1-8b", "--gpu", "h100", "--gpu-memory", "lots"), "'lots' is not a size"),
    (("plan", "llama-3.1-8b", "--gpu", "h100", "--gpu-memory-utilization", "1.7"), "1.7 is not a share"),
    (("plan", "llama-3.1-8b", "--gpu", "h100", "--gpu-memory-utilization", "nan"), "not a share"),
    (("plan", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "0"), "--max-model-len: 0"),
    (("plan", "state-spaces/mamba-2.8b-hf", "--gpu", "h100", "--engine", "sglang"), "--context-length"),
    (("frobnicate",), "frobnicate"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"), BAD_WORDS[1:], ids=lambda w: " ".join(w) if isinstance(w, tuple) else ""
)
def test_bad_words_are_one_line_and_exit_status_2(run: Any, words: tuple[str, ...], says: str) -> None:
    ran = run(*words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert says in ran.err


BAD_CONFIGS = {
    "truncated": ('{"model_type": "llama", "num_hidden', "is not JSON"),
    "no object": ("[1, 2]", "not a config's object"),
    "negative layers": ('{"model_type": "llama", "num_hidden_layers": -3}', "num_hidden_layers: -3"),
    "layers in quotes": ('{"model_type": "llama", "num_hidden_layers": "32"}', "num_hidden_layers: '32'"),
    "no layers": ('{"num_attention_heads": 8, "hidden_size": 512}', "num_hidden_layers: missing"),
    "NaN": ('{"model_type": "llama", "hidden_size": NaN}', "hidden_size: nan"),
    "infinity": ('{"model_type": "llama", "num_attention_heads": Infinity}', "num_attention_heads: inf"),
    "billions of layers": ('{"model_type": "llama", "num_hidden_layers": 1000000000}', "num_hidden_layers"),
    "contradiction": (
        '{"model_type": "llama", "num_hidden_layers": 32, "n_layer": 24}',
        "contradicts n_layer: 24",
    ),
    "heads": (
        '{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}',
        "does not divide",
    ),
    "no head width": (
        '{"num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 0, "vocab_size": 9}',
        "hidden_size: missing",
    ),
    "nested bomb": ('{"a":' * 60_000 + "1" + "}" * 60_000, "nested too deep"),
    "model type": ('{"model_type": 7}', "model_type: 7"),
    "bytes": ("\udcff\udcfe", "UTF-8"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_config_is_one_line_that_names_the_field_and_the_file(
    run: Any, tmp_path: Path, name: str
) -> None:
    text, says = BAD_CONFIGS[name]
    path = tmp_path / "given.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    ran = run("size", str(path))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert "given.json" in ran.err


def test_a_two_gigabyte_file_is_refused_unread(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(2 * 2**30)
    assert "huge.json has 2 GiB" in run("size", str(path)).err


def test_a_folder_without_a_config_is_one_line(run: Any, tmp_path: Path) -> None:
    assert "no config.json in the folder" in run("size", str(tmp_path)).err


def test_a_config_under_any_name_and_a_folder_read_alike(
    run: Any, tmp_path: Path, llama8b: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama8b))
    (tmp_path / "other-name.txt").write_text(json.dumps(llama8b))
    by_folder = json.loads(run("size", str(tmp_path), "--json").out)
    by_name = json.loads(run("size", str(tmp_path / "other-name.txt"), "--json").out)
    assert by_folder["kv"] == by_name["kv"]
    assert by_name["model"]["id"] == "other-name"


def test_an_unknown_model_type_is_read_with_a_note_on_standard_error(
    run: Any, tmp_path: Path, llama8b: dict[str, Any]
) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps({**llama8b, "model_type": "brand_new"}))
    ran = run("size", str(path), "--json")
    assert json.loads(ran.out)["kv"]["bytes_per_token"] == 131_072
    assert ran.err.startswith("kvplan: note: model_type brand_new")


def test_the_version_is_the_packages(run: Any) -> None:
    assert run("--version").out == f"kvplan {kvplan.__version__}\n"

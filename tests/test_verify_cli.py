"""`kvplan verify`: wrong flags are found, disagreements explained, secrets kept out; its ways out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput
from kvplan.verbs.answer import Answer
from verifying import RUNS, disagreeing, verified
from written_logs import vllm_log

LLAMA = RUNS / "vllm/vmx_llama_b32_len1000.log"
CONFIG = RUNS / "vllm/vmx_llama_b32_len1000.config.json"
GEMMA = RUNS / "llama_cpp/gemma270m_ctx8192_par4.log"
SOURCE = Path(kvplan.__file__).parents[1]
TEXT = LLAMA.read_text("utf-8")


def run(*words: str, given: bytes | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "110"}
    command = [sys.executable, "-m", "kvplan", "verify", *words]
    done = subprocess.run(command, input=given, capture_output=True, env=env, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def row(answer: Answer, name: str) -> dict[str, Any]:
    return next(row for row in answer["checks"] if row["name"] == name)


WRONG: list[tuple[dict[str, Any], str, Any, Any]] = [
    ({"tp": 2}, "tp", 2, 1),
    ({"tp": 3}, "tp", 3, 1),
    ({"block_size": 64}, "block_size", 64, 32),
    ({"max_num_seqs": 32}, "max_num_seqs", 32, 64),
    ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "fp8", "bfloat16"),
    ({"max_model_len": 2048}, "max_model_len", 2048, 1000),
    ({"engine_version": "0.11"}, "engine_version", "0.11", "0.32.0"),
    ({"enable_prefix_caching": False}, "enable_prefix_caching", False, True),
    ({"quantization": "fp8"}, "quantization", "fp8", "none"),
    ({"command": "vllm serve some/model --block-size 128"}, "block_size", 128, 32),
]


@pytest.mark.parametrize(
    ("words", "name", "ours", "theirs"), WRONG, ids=[next(iter(w[0])) + w[1] for w in WRONG]
)
def test_a_wrong_flag_is_found(words: dict[str, Any], name: str, ours: Any, theirs: Any) -> None:
    answer = kvplan.verify(CONFIG, log=LLAMA, **words)
    named = [r for r in answer["checks"] if r["name"] == name]
    found = next(r for r in named if r["basis"] == "as stated")
    assert (found["predicted"], found["reported"], found["agrees"]) == (ours, theirs, False)
    assert not answer["agrees"]
    flag = f"--{name.replace('_', '-')}"
    assert any(change["flag"] == flag and change["value"] == theirs for change in answer["changes"])
    others = [r for r in disagreeing(answer) if r[0] != name]
    if others and name != "engine_version":
        assert any("with the log's own" in why["says"] for why in answer["explanations"])


def test_flags_that_are_those_of_the_log_agree() -> None:
    words = {"tp": 1, "block_size": 32, "max_model_len": 1000, "engine_version": "0.32", "dtype": "bfloat16"}
    answer = kvplan.verify(CONFIG, log=LLAMA, **words)
    assert answer["agrees"]
    assert {r["name"] for r in answer["checks"] if r["basis"] == "as stated"} == {*words}
    assert kvplan.verify(CONFIG, log=LLAMA, command="vllm serve x --block-size 32 --max-model-len 1000")[
        "agrees"
    ]


def test_a_wrong_flag_of_llama_cpp_is_found() -> None:
    answer = kvplan.verify(log=GEMMA, cache_type_k="q8_0", swa_full=True)
    found = {
        r["name"]: (r["predicted"], r["reported"]) for r in answer["checks"] if r["basis"] == "as stated"
    }
    assert found == {"cache_type_k": ("q8_0", "f16")}
    assert any(r[0].startswith("swa.") for r in disagreeing(answer))
    assert kvplan.verify(log=GEMMA, ctx_size=4096)["agrees"] is False


def test_what_the_log_does_not_show_is_taken_as_it_is_stated() -> None:
    shown = "\n".join(
        line for line in TEXT.splitlines() if "non-default args" not in line and "LLM engine (v" not in line
    )
    answer = verified(shown, CONFIG, block_size=32, max_model_len=1000, gpu="cpu", dtype="bfloat16")
    assert any("the log does not show" in note and "--block-size" in note for note in answer["notes"])
    assert row(answer, "kv_tokens")["agrees"]


PLAIN = {"version": "0.11.0", "model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192}


def made(pool: float, tokens: int, **row: Any) -> str:
    times = {"max_concurrency_tokens": 8192, "max_concurrency_x": round(tokens / 8192, 2)}
    said = {"available_kv_gib": pool, "kv_tokens": tokens, **times, **row.pop("reported", {})}
    return vllm_log({**PLAIN, **row, "reported": said}).text


@pytest.mark.parametrize(
    ("pool", "tokens", "says"),
    [
        (16.0, 262144, "with --kv-cache-dtype fp8 every figure is as printed"),
        (16.0, 524288, "with --tp 4 every figure is as printed"),
        (16.0, 127104, "with a drafter of one layer"),
        (16.0, 99008, "by the log a token takes 173,520 B of the pool, by the plan 131,072 B"),
    ],
)
def test_a_capacity_that_disagrees_is_explained(pool: float, tokens: int, says: str) -> None:
    answer = verified(made(pool, tokens), gpu="h100")
    assert not row(answer, "kv_tokens")["agrees"]
    assert any(says in why["says"] for why in answer["explanations"]), answer["explanations"]


def test_the_rules_of_another_version_explain_a_log_that_states_none() -> None:
    text = made(16.0, 131072, block_size=32)
    lines = [
        line for line in text.splitlines() if "API server version" not in line and "LLM engine (v" not in line
    ]
    answer = verified("\n".join(lines), "meta-llama/Llama-3.1-8B-Instruct", gpu="h100")
    assert row(answer, "kv_tokens")["agrees"]
    assert any(
        "the log states no version: the rules of" in note or "newest" in note for note in answer["notes"]
    )


def test_a_pool_that_disagrees_is_explained_part_by_part_and_its_parts_go_into_the_plan() -> None:
    parts = {"gpu_total_gib": 79.18, "weights_gib": 14.99, "non_torch_gib": 0.13, "activation_peak_gib": 12.2}
    answer = verified(made(43.94, 359936, reported=parts), gpu="h100", gpu_memory="79.18GiB")
    assert not row(answer, "activation_bytes")["agrees"]
    assert not row(answer, "kv_pool_bytes")["agrees"]
    assert row(answer, "kv_tokens")["agrees"]
    says = " ".join(why["says"] for why in answer["explanations"])
    assert "the profiled peak +" in says
    assert "--activation-memory 12.20GiB" in says
    assert ": agrees" in says
    assert {change["flag"] for change in answer["changes"]} & {"--weights-memory", "--activation-memory"}


def test_capacity_from_the_measured_pool_is_told_apart_from_the_plan_alone() -> None:
    answer = verified(made(50.0, 409600), gpu="h100")
    by = {(r["name"], r["basis"]) for r in answer["checks"]}
    assert {
        ("kv_tokens", "the log's pool"),
        ("kv_tokens_from_flags", "flags alone"),
        ("kv_pool_bytes", "flags alone"),
    } <= by
    assert row(answer, "kv_tokens")["tolerance"] < 1e-3
    assert row(answer, "kv_tokens_from_flags")["tolerance"] > row(answer, "kv_tokens")["tolerance"]


SECRETS = ("hf_AbCdEfGhIjKlMnOpQrStUv", "sk-proj-0123456789abcdefghij", "s3cr3t-pass", "tok-9f8e7d6c5b")


def test_no_secret_of_a_log_reaches_an_output(tmp_path: Path) -> None:
    more = (
        f"'api_key': ['{SECRETS[1]}'], 'hf_token': '{SECRETS[0]}', "
        f"'kv_transfer_config': {{'url': 'redis://user:{SECRETS[2]}@cache:6379?token={SECRETS[3]}'}}, "
    )
    text = TEXT.replace("non-default args: {", f"non-default args: {{{more}", 1)
    text += f"ValueError: 401 Client Error for url: https://x:{SECRETS[2]}@hub.example/api?token={SECRETS[3]}"
    text += f" {SECRETS[0]}\n"
    text = text.replace("Application startup complete", "EngineCore failed to start")
    log = tmp_path / "vllm.log"
    log.write_text(text)
    outputs = [run("--log", str(log), str(CONFIG), *kind) for kind in ([], ["--json"], ["--markdown"])]
    outputs += [run("--log", str(log)), run("--log", str(log), str(CONFIG), "--explain")]
    saved = tmp_path / "saved.json"
    run("--log", str(log), str(CONFIG), "--save", str(saved))
    every = "".join(done.stdout + done.stderr for done in outputs) + saved.read_text()
    assert len(every) > 4000
    for secret in SECRETS:
        assert secret not in every


def test_the_command_reports_and_leaves_with_its_status() -> None:
    done = run("--log", str(LLAMA), str(CONFIG), "--check")
    assert done.returncode == 0
    assert "every figure agrees" in done.stdout
    assert "kv_tokens" in done.stdout
    done = run("--log", "-", str(CONFIG), "--tp", "2", "--check", given=TEXT.encode())
    assert done.returncode == 1
    assert "DISAGREES" in done.stdout
    assert "standard input" in done.stdout
    assert run("--log", str(LLAMA), str(CONFIG), "--tp", "2").returncode == 0


def test_the_document_is_the_contracts() -> None:
    done = run("--log", str(GEMMA), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["agrees"] is True
    keys = {"name", "predicted", "reported", "relative_error", "tolerance", "agrees", "note"}
    assert all(keys <= set(check) for check in document["checks"])
    assert document == kvplan.verify(log=GEMMA)
    assert document["prediction"]["capacity"]["kv_tokens"] == 8192


def test_markdown_is_a_table_and_escapes_what_would_break_it() -> None:
    done = run("--log", str(LLAMA), str(CONFIG), "--markdown", "--kv-cache-dtype", "fp8")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("### vllm 0.32.0")
    table = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert any("DISAGREES" in line for line in table)
    assert "**Change in the plan**" in done.stdout


BAD: list[tuple[list[str], str]] = [
    ([], "--log"),
    (["--log", "missing.log"], "missing.log"),
    (["--log", str(LLAMA)], "MODEL"),
    (["--log", str(LLAMA), "llama-3.1-8b", "--engine", "sglang"], "--engine"),
    (["--log", str(LLAMA), "llama-3.1-8b", "--command", "llama-server -m x.gguf"], "--command"),
    (["--log", str(LLAMA), str(CONFIG), "--json", "--markdown"], "--markdown"),
    (["--log", str(LLAMA), str(CONFIG), "--tp", "zero"], "--tp"),
    (["--log", str(LLAMA), str(CONFIG), "--gpu", "nosuchcard"], "--gpu"),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=[" ".join(words)[-30:] for words, _ in BAD])
def test_bad_input_is_one_line(words: list[str], named: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("kvplan: note:")]
    assert len(errors) == 1
    assert named in errors[0]
    assert done.stdout == ""


def test_sources_are_given_one_at_a_time() -> None:
    with pytest.raises(BadInput, match="--log"):
        kvplan.verify("llama-3.1-8b")


def test_an_open_file_of_text_is_read() -> None:
    assert kvplan.verify(CONFIG, log=io.StringIO(TEXT))["agrees"]


def test_figures_behind_a_prediction_are_explained() -> None:
    done = run("--log", str(LLAMA), str(CONFIG), "--explain", "kv_tokens")
    assert done.returncode == 0
    assert "kv_tokens" in done.stdout

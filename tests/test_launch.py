"""What `plan` prints to start a deployment reads back to it, and says what the engine will print."""

from __future__ import annotations

import functools
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import kvplan
from kvplan.engines.command import read_command
from kvplan.engines.command_words import statements
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.facts import launching, store
from kvplan.facts.engine_versions import ENGINES, versions_of
from kvplan.verbs.yaml_text import yaml as written

MODELS = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "gemma-3-27b",
    "deepseek-v2-lite",
    "qwen3-next-80b-a3b",
    "gpt-oss-20b",
)
GPU = "b300"  # every one of them fits on one
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "vllm": [
        {},
        {"tp": 2, "kv_cache_dtype": "fp8", "max_model_len": 4096, "gpu_memory_utilization": 0.8765432},
        {"tp": 2, "pp": 2, "enforce_eager": True, "enable_prefix_caching": False, "max_num_seqs": 33},
        {"tp": 2, "quantization": "fp8", "max_num_batched_tokens": 3000, "async_scheduling": False},
        {"tp": 4, "dtype": "float16", "num_gpu_blocks_override": 7777, "max_model_len": 2048},
        {"tp": 2, "engine_version": "0.10.2", "disable_hybrid_kv_cache_manager": True, "max_model_len": 3072},
        {"tp": 4, "engine_version": "0.8.5", "swap_space": 8.0, "max_model_len": 2048},
        {"tp": 2, "VLLM_PP_LAYER_PARTITION": "12,12,12,12", "max_model_len": 2048},
        {"tp": 2, "hf_overrides": {"max_position_embeddings": 16384}},
        {"max_model_len": -1, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"tp": 2, "limit_mm_per_prompt": {"image": 0}, "enable_lora": True, "max_lora_rank": 64},
    ],
    "sglang": [
        {},
        {"tp": 2, "kv_cache_dtype": "fp8", "context_length": 4096, "mem_fraction_static": 0.7123456},
        {"tp": 2, "chunked_prefill_size": 2048, "max_running_requests": 48, "page_size": 64},
        {"tp": 4, "disable_radix_cache": True, "disable_cuda_graph": True, "max_total_tokens": 100_000},
        {"tp": 2, "engine_version": "0.5.17", "cuda_graph_max_bs": 64, "enable_mixed_chunk": False},
        {"tp": 4, "attention_dp": 2, "context_length": 8192},
    ],
    "tensorrt-llm": [
        {},
        {"tp": 2, "kv_cache_dtype": "fp8", "tokens_per_block": 64, "free_gpu_memory_fraction": 0.8123456},
        {"tp": 4, "max_seq_len": 4096, "max_batch_size": 64, "max_num_tokens": 4096, "max_tokens": 99_999},
        {"tp": 2, "max_seq_len": 8192, "max_attention_window": [1024, 8192], "enable_chunked_prefill": True},
        {"tp": 2, "engine_version": "1.0", "enable_chunked_prefill": True, "max_seq_len": 4096},
        {"tp": 2, "enable_attention_dp": True, "max_seq_len": 4096},
    ],
    "llama.cpp": [
        {"ctx_size": 8192},
        {"ctx_size": 8192, "parallel": 3, "kv_cache_dtype": "q8_0"},
        {"ctx_size": 4096, "parallel": 2, "kv_unified": True, "swa_full": True, "ubatch_size": 256},
        {"ctx_size": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"},
        {"ctx_size": 4096, "n_gpu_layers": 12, "no_kv_offload": True},
        {"ctx_size": 4096, "engine_version": "b6000", "flash_attn": "on", "parallel": 2},
        {"ctx_size": 4096, "tp": 2, "tensor_split": "3,1"},
    ],
}  # fmt: skip
GRID = [(e, m, i) for e, rows in SETTINGS.items() for m in MODELS for i in range(len(rows))]
UNSAID = ("engine_version", "gpu_memory")  # no engine's command line has them
# Where a checkpoint's own key stands in the YAML under another name than kvplan's.
FROM_FILE = {"dtype": "kv_cache_dtype"}


def asked(engine: str, model: str, index: int) -> dict[str, Any]:
    """The words of one case; a setting is left out where the model has no use for it."""
    words = dict(SETTINGS[engine][index])
    if "VLLM_PP_LAYER_PARTITION" in words:
        words |= {"pp": 4, "tp": 1} if model in ("qwen3-30b-a3b", "qwen3-next-80b-a3b") else {}
        if "pp" not in words:
            del words["VLLM_PP_LAYER_PARTITION"]
    return words


@functools.cache
def planned(engine: str, model: str, index: int) -> dict[str, Any]:
    """The plan of one case."""
    return kvplan.plan(model, gpu=GPU, engine=engine, **asked(engine, model, index))


def settings_in(files: dict[str, str]) -> dict[str, Any]:
    """What the engine's own file says, under kvplan's names."""
    found: dict[str, Any] = {}
    for text in files.values():
        for name, value in yaml.safe_load(text).items():
            inner = value if isinstance(value, dict) else {name: value}
            cache = name == "kv_cache_config"
            found |= {FROM_FILE.get(key, key) if cache else key: v for key, v in inner.items()}
    return found


@pytest.mark.parametrize(("engine", "model", "index"), GRID, ids=str)
def test_a_launch_reads_back_to_the_same_figures(engine: str, model: str, index: int) -> None:
    words, said = asked(engine, model, index), planned(engine, model, index)
    if said["fit"]["capacity"]["kv_tokens"] is None:  # the engine stops with these settings
        assert (said["launch"], said["expected"]) == ("", [])
        return
    assert said["launch"], said["limits"]
    kept = {name: words[name] for name in UNSAID if name in words}
    kept |= {"tp": words["tp"]} if engine == "llama.cpp" and "tp" in words else {}
    if engine == "llama.cpp":  # the file that MODEL.gguf stands for is not there
        kept["model"] = model
    read = kvplan.plan(gpu=GPU, command=said["launch"], **settings_in(said["launch_files"]), **kept)
    for part in ("memory", "capacity"):
        assert read["fit"][part] == said["fit"][part], said["launch"]
    assert read["expected"] == said["expected"]
    assert read["launch"] == said["launch"]


@pytest.mark.parametrize(("engine", "model", "index"), GRID, ids=str)
def test_the_lines_to_expect_hold_the_predicted_figures(engine: str, model: str, index: int) -> None:
    answer = planned(engine, model, index)
    capacity = answer["fit"]["capacity"]
    text = "\n".join(answer["expected"])
    if not answer["launch"]:
        assert text == ""
        return
    if engine == "llama.cpp":
        for group in capacity["groups"]:
            assert f"{group['cells']:6d} cells" in text
            assert f"{group['k_bytes'] / 2**20:7.2f} MiB" in text
        return
    wanted = {"vllm": f"{capacity['kv_tokens']:,} tokens", "sglang": f"={capacity['kv_tokens']},"}
    assert wanted.get(engine, f"({capacity['kv_tokens']})") in text
    if engine == "vllm":
        assert f"{capacity['max_concurrency']:.2f}x" in text


def test_expected_lines_have_the_form_that_logs_have() -> None:
    """As real logs print them: shared forms, found by their fixed parts."""
    at_once = r"Maximum concurrency for [\d,]+ tokens per request: [\d.]+x"
    forms = {
        "0.33": rf"GPU KV cache size: [\d,]+ tokens, {at_once}",
        "0.20": rf"GPU KV cache size: [\d,]+ tokens\n{at_once}",
        "0.6": rf"blocks: \d+, # CPU blocks:\n{at_once}",
    }
    for version, form in forms.items():
        answer = kvplan.plan("llama-3.1-8b", gpu="h100", engine_version=version)
        assert re.search(form, "\n".join(answer["expected"])), answer["expected"]
    cached = kvplan.plan("llama-3.1-8b", gpu="h100", engine="sglang")["expected"]
    assert re.fullmatch(r"#tokens: \d+, K size: [\d.]+ GB, V size: [\d.]+ GB", cached[0])
    latent = kvplan.plan("deepseek-v2-lite", gpu="h100", engine="sglang")["expected"]
    assert not any("K size" in line for line in latent)


def test_a_length_that_does_not_fit_is_launched_and_expected_with_one_that_does() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="rtx4090")
    longest = answer["fit"]["capacity"]["estimated_max_model_len"]
    again = kvplan.plan(gpu="rtx4090", command=answer["launch"])
    assert again["fit"]["capacity"]["fits"]
    assert any(f"for {longest:,} tokens per request: 1.00x" in line for line in answer["expected"])
    assert again["expected"] == answer["expected"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
@pytest.mark.parametrize("name", ["plain", "with blank", "it's", 'a "b" c', "-dash", "ünï", "a;b&c|d", "#x"])
def test_odd_paths_survive_a_shell(engine: str, name: str, tmp_path: Path, llama8b: dict[str, Any]) -> None:
    folder = tmp_path / name
    folder.mkdir()
    served = str(folder)
    if engine == "llama.cpp":
        served = str(folder / "x y.gguf")
        (folder / "x y.gguf").write_bytes(b"")
        from kvplan.verbs.launch import launch_of

        d = deployed("llama-3.1-8b", engine)
        line = launch_of(d, served, "auto", None).command
    else:
        import json

        (folder / "config.json").write_text(json.dumps(llama8b), "utf-8")
        line = kvplan.plan(folder, gpu="h100", engine=engine)["launch"]
        again = kvplan.plan(gpu="h100", command=line)
        assert again["launch"] == line
    assert served in shlex.split(line)
    assert read_command(line).model == served
    assert statements(line) == [shlex.split(line)]


def deployed(model: str, engine: str, **words: Any) -> Any:
    """A deployment on one H100."""
    from kvplan.verbs.described import described

    return described(model, {"gpu": "h100", "engine": engine, **words}, {})[0]


def test_a_relative_path_that_looks_like_an_option_is_no_option() -> None:
    from kvplan.verbs.launch import launch_of

    line = launch_of(deployed("llama-3.1-8b", "vllm"), "-weights", "auto", None).command
    assert line == "vllm serve ./-weights"


def test_settings_that_a_version_lacks_are_left_out_and_named() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="h100", engine_version="0.9.2", async_scheduling=True)
    assert answer["launch"] == "vllm serve meta-llama/Meta-Llama-3.1-8B"
    assert any("vllm 0.9.2 takes no --async-scheduling" in note for note in answer["notes"])
    newer = kvplan.plan("llama-3.1-8b", gpu="h100", engine_version="0.10.0", async_scheduling=True)
    assert "--async-scheduling" in newer["launch"]


def test_what_a_version_takes_elsewhere_is_said_there() -> None:
    older = kvplan.plan("llama-3.1-8b", gpu="h100", engine_version="0.12", attention_backend="FLASHINFER")
    assert older["launch"].startswith("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve")
    newer = kvplan.plan("llama-3.1-8b", gpu="h100", engine_version="0.13", attention_backend="FLASHINFER")
    assert "--attention-backend FLASHINFER" in newer["launch"]
    rope = kvplan.plan("llama-3.1-8b", gpu="h100", rope_theta=1e6)["launch"]
    assert "--hf-overrides '{\"rope_theta\": 1000000.0}'" in rope
    graphs = kvplan.plan("llama-3.1-8b", gpu="h100", engine="sglang", cuda_graph_max_bs=64)["launch"]
    assert graphs.endswith("--cuda-graph-max-bs-decode 64")
    ahead = kvplan.plan("llama-3.1-8b", gpu="h100", engine="tensorrt-llm", enable_chunked_prefill=True)
    assert ahead["launch"].endswith("--enable_chunked_prefill")
    assert ahead["launch_files"] == {}


def test_builds_that_keep_layers_on_the_host_are_told_to_move_them() -> None:
    words: dict[str, Any] = {"gpu": "h100", "engine": "llama.cpp", "ctx_size": 4096}
    assert "--n-gpu-layers 999" in kvplan.plan("llama-3.1-8b", engine_version="b6000", **words)["launch"]
    assert "n-gpu-layers" not in kvplan.plan("llama-3.1-8b", engine_version="b8000", **words)["launch"]


def test_tensorrt_llms_file_repeats_the_flag_that_its_table_would_hide() -> None:
    answer = kvplan.plan(
        "llama-3.1-8b", gpu="h100", engine="tensorrt-llm", free_gpu_memory_fraction=0.8, tokens_per_block=64,
        capacity_scheduler_policy="max_utilization",
    )  # fmt: skip
    assert "--kv_cache_free_gpu_memory_fraction 0.8 --extra_llm_api_options trtllm.yaml" in answer["launch"]
    assert yaml.safe_load(answer["launch_files"]["trtllm.yaml"]) == {
        "kv_cache_config": {"tokens_per_block": 64, "free_gpu_memory_fraction": 0.8},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
    }


def test_a_launcher_that_is_no_command_of_llama_cpps_has_no_launch() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="h100", engine="llama.cpp", launcher="ollama", ctx_size=4096)
    assert answer["launch"] == ""
    with pytest.raises(BadInput, match="ollama is not started by a command of its own"):
        kvplan.plan(
            "llama-3.1-8b", gpu="h100", engine="llama.cpp", launcher="ollama", ctx_size=4096,
            launch_as="command",
        )  # fmt: skip


def test_bytes_given_to_the_cache_are_given_again() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-cache-memory-bytes 20G"
    answer = kvplan.plan(gpu="h100", command=line)
    assert answer["launch"].endswith(f"--kv-cache-memory-bytes {20 * 2**30}")
    assert not any("Available KV cache memory" in line for line in answer["expected"])


def test_more_ranks_than_a_machine_has_are_said_to_need_joining() -> None:
    notes = kvplan.plan("deepseek-v3", gpu="h100", tp=16)["notes"]
    assert any("16 ranks of one server are more than the 8 of a machine" in note for note in notes)


def test_replicas_that_an_engine_does_not_deal_to_are_said() -> None:
    notes = kvplan.plan("llama-3.1-8b", gpu="h100", engine="tensorrt-llm", dp=2)["notes"]
    assert any("start the command 2 times" in note for note in notes)


def test_every_setting_named_for_a_launch_is_one_that_commands_know() -> None:
    grammar = store.toml("engines/commands.toml")["engine"]
    known = set(store.toml("engines/flags.toml"))
    for engine in ENGINES[:-1]:
        table = launching.how(engine)
        named = {
            *table.get("since", {}),
            *table.get("gone", {}),
            *table.get("config", {}),
            *table.get("no_flag", []),
        }
        assert named - {"kv_cache_dtype", "dtype"} <= set(grammar[engine]["flags"]) | known | {
            "context_parallel_size"
        }
        assert set(table.get("since", {}).values()) <= {*versions_of(engine), "b5913", "b7406"}
        assert str(table["source"])


_TEXT = st.text(max_size=30) | st.sampled_from(
    ["", "no", "Yes", "null", "~", "1e3", "0x1f", "1:30", "2026-01-01", "a: b", "- x", "#c", "%a", "@b", "`",
     "a\nb\n", "  lead\nline\n", "tail \nline\n", "\u2028", "\x85", "\ufeff", "{a}", "[b]", "a #b", "'", '"',
     "\\", "\t", "=", "<<", ".inf", "---", "...", "a\n\n\nb\n", "# a\nb\n", "\U0001f600\n\U0001f600\n"]
)  # fmt: skip
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400)
@given(st.dictionaries(_TEXT, _DATA, min_size=1, max_size=4))
def test_what_is_written_as_yaml_reads_back(data: dict[str, Any]) -> None:
    assert yaml.safe_load(written(data)) == data


def test_a_script_says_all_and_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "start.sh"
    words = ["plan", "llama-3.1-8b", "--gpu", "h100", "--engine", "tensorrt-llm", "--kv-cache-dtype", "fp8"]
    run([*words, "--launch", str(file)])
    text = file.read_text("utf-8")
    assert text.startswith("#!/bin/sh\n")
    assert file.stat().st_mode & 0o111
    answer = kvplan.plan("llama-3.1-8b", gpu="h100", engine="tensorrt-llm", kv_cache_dtype="fp8")
    for line in answer["expected"]:
        assert f"#   {line}\n" in text
    assert answer["launch_files"]["trtllm.yaml"] in text
    assert read_command(text).engine == "tensorrt-llm"
    assert text.rstrip().endswith(answer["launch"])


def run(words: list[str]) -> None:
    """The command line, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", "0.33"), ("vllm", "0.20"), ("vllm", "0.10.2"), ("vllm", "0.8.5"), ("vllm", "0.6.6"),
     ("sglang", "0.5.23"), ("tensorrt-llm", "1.3"), ("llama.cpp", "b10809")],
)  # fmt: skip
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_what_reads_logs_finds_the_expected_lines_to_agree(engine: str, version: str, model: str) -> None:
    from kvplan.verbs.verify import verify

    words: dict[str, Any] = {"gpu": "h100", "engine": engine, "engine_version": version}
    if (engine, model, version) == ("vllm", "gpt-oss-20b", "0.6.6"):
        return  # not of that time
    answer = kvplan.plan(model, **words)
    checked = verify(model, log=io.StringIO("\n".join(answer["expected"])), **words)
    wrong = [check for check in checked["checks"] if not check["agrees"]]
    assert wrong == []
    assert checked["checks"]

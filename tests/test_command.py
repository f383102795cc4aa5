"""Launch commands as people paste them, hostile ones too: read, never run, nothing dropped in silence."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.command import Command, read_command, version_of
from kvplan.engines.command_flags import grammar_of
from kvplan.engines.command_words import statements
from kvplan.errors import BadInput, KvplanError
from kvplan.facts import store

L = "meta-llama/Llama-3.1-8B-Instruct"
# A command, and what must be read of it: engine, version, model, setup, flags.
READ: list[tuple[str, str, str | None, str | None, dict[str, Any], dict[str, Any]]] = [
    (f"vllm serve {L}", "vllm", None, L, {}, {}),
    (f"vllm serve {L} -tp 4 --max-model-len 32k", "vllm", None, L, {"tp": 4}, {"max_model_len": 32000}),
    (f"vllm serve {L} --max-model-len 32K", "vllm", None, L, {}, {"max_model_len": 32768}),
    (f"vllm serve {L} --max-model-len=auto", "vllm", None, L, {}, {"max_model_len": -1}),
    (
        f"vllm serve {L} \\\n  --tensor-parallel-size 2 \\\n  "
        "--gpu-memory-utilization 0.95 \\\n  --enforce-eager",
        "vllm", None, L, {"tp": 2}, {"gpu_memory_utilization": 0.95, "enforce_eager": True},
    ),
    (
        f"vllm serve {L}\n  --tensor-parallel-size 2\n  --no-enable-prefix-caching",
        "vllm", None, L, {"tp": 2}, {"enable_prefix_caching": False},
    ),
    (
        f"CUDA_VISIBLE_DEVICES=0,1 VLLM_USE_V1=1 sudo -E nohup vllm serve {L} -tp=2 > log.txt 2>&1 &",
        "vllm", None, L, {"tp": 2}, {"VLLM_USE_V1": "1"},
    ),
    (
        f"python3 -m vllm.entrypoints.openai.api_server --model {L} "
        "--host 0.0.0.0 --port 8000 --max_model_len 8192",
        "vllm", None, L, {}, {"max_model_len": 8192},
    ),
    (
        f"/opt/venv/bin/python -u -m vllm.entrypoints.openai.api_server --model={L} "
        "--dtype half --max-num-seqs=64",
        "vllm", None, L, {"dtype": "half"}, {"max_num_seqs": 64},
    ),
    (
        "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface "
        "--env \"HUGGING_FACE_HUB_TOKEN=$TOKEN\" -p 8000:8000 --ipc=host vllm/vllm-openai:v0.11.0 "
        f"--model {L} --max-num-batched-tokens 16384",
        "vllm", "0.11.0", L, {}, {"max_num_batched_tokens": 16384},
    ),
    (
        f"docker run -it --rm -p8000:8000 -eVLLM_ATTENTION_BACKEND=FLASHINFER "
        f"vllm/vllm-openai:latest {L} -dp 2 -ep",
        "vllm", None, L, {"dp": 2}, {"attention_backend": "FLASHINFER", "enable_expert_parallel": True},
    ),
    (
        f"podman run --device nvidia.com/gpu=all --entrypoint vllm "
        f"docker.io/vllm/vllm-openai:v0.10.1.1 serve {L}",
        "vllm", "0.10.1.1", L, {}, {},
    ),
    (
        f"docker run --gpus all --entrypoint bash vllm/vllm-openai:v0.9.2-x86 "
        f"-c 'pip install x && vllm serve {L}'",
        "vllm", "0.9.2", L, {}, {},
    ),
    (
        f"vllm serve {L} --speculative-config '{{\"method\": \"eagle3\", \"model\": \"x/y\", "
        "\"num_speculative_tokens\": 3}'",
        "vllm", None, L, {},
        {"speculative_config": {"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}},
    ),
    (
        f"vllm serve {L} --hf-overrides '{{\"rope_scaling\": {{\"factor\": 4.0}}}}' -O3 --kv-cache-dtype fp8",
        "vllm", None, L, {"kv_cache_dtype": "fp8"},
        {"hf_overrides": {"rope_scaling": {"factor": 4.0}}, "compilation_config": {"mode": 3}},
    ),
    (
        f"vllm serve {L} --compilation-config.mode 3 --compilation-config.cudagraph_mode FULL "
        "--speculative-config.method ngram",
        "vllm", None, L, {},
        {
            "compilation_config": {"mode": 3, "cudagraph_mode": "FULL"},
            "speculative_config": {"method": "ngram"},
        },
    ),
    (
        f"vllm serve {L} --speculative-model x/y --num-speculative-tokens 5",
        "vllm", None, L, {}, {"speculative_config": {"model": "x/y", "num_speculative_tokens": 5}},
    ),
    (
        f"vllm serve {L} --limit-mm-per-prompt image=2,video=1 --quantization awq --swap-space 8",
        "vllm", None, L, {"quantization": "awq"},
        {"limit_mm_per_prompt": {"image": 2, "video": 1}, "swap_space": 8.0},
    ),
    (
        f"vllm serve {L} --kv-cache-memory-bytes 20G --block-size 32 --num-gpu-blocks-override 512",
        "vllm", None, L, {},
        {"kv_cache_memory_bytes": 20 * 2**30, "block_size": 32, "num_gpu_blocks_override": 512},
    ),
    (f"vllm serve {L} --tensor-parallel 8", "vllm", None, L, {"tp": 8}, {}),
    (f"export X=1; cd /srv && vllm serve {L} -pp 2 | tee out.log", "vllm", None, L, {"pp": 2}, {}),
    (f"$ vllm serve {L} -dcp 2  # two ranks share a context", "vllm", None, L, {"dcp": 2}, {}),
    (f"vllm serve —tensor-parallel-size 2 “{L}”", "vllm", None, L, {"tp": 2}, {}),
    (f"uv run --with vllm vllm serve {L}", "vllm", None, L, {}, {}),
    (
        f"timeout 3600 vllm serve {L} --seed 1 --trust-remote-code --served-model-name a b",
        "vllm", None, L, {}, {},
    ),
    (
        f"python -m sglang.launch_server --model-path {L} --tp 4 --dp 4 --enable-dp-attention "
        "--mem-fraction-static 0.85",
        "sglang", None, L, {"tp": 4, "attention_dp": 4},
        {"enable_dp_attention": True, "mem_fraction_static": 0.85},
    ),
    (
        f"python3 -m sglang.launch_server --model {L} --tp-size 8 --context-length 131072 --page-size 64 "
        "--disable-radix-cache --chunked-prefill-size -1 --kv-cache-dtype fp8_e5m2",
        "sglang", None, L, {"tp": 8, "kv_cache_dtype": "fp8_e5m2"},
        {"context_length": 131072, "page_size": 64, "disable_radix_cache": True, "chunked_prefill_size": -1},
    ),
    (
        f"docker run --gpus all --shm-size 32g -p 30000:30000 lmsysorg/sglang:v0.5.3rc0-cu126 "
        f"python3 -m sglang.launch_server --model-path {L} --dp 2",
        "sglang", "0.5.3", L, {"dp": 2}, {},
    ),
    (
        f"docker run lmsysorg/sglang:v0.4.6.post5-cu124 python3 -m sglang.launch_server --model-path {L} "
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4",
        "sglang", "0.4.6.post5", L, {},
        {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
        },
    ),
    (
        f"sglang serve --model-path {L} --cuda-graph-bs 1 2 4",
        "sglang", None, L, {}, {"cuda_graph_bs": [1, 2, 4]},
    ),
    (
        f"SGLANG_MAMBA_SSM_DTYPE=bfloat16 python -m sglang.launch_server --model-path {L}",
        "sglang", None, L, {}, {"mamba_ssm_dtype": "bfloat16"},
    ),
    (
        f"trtllm-serve {L} --tp_size 4 --max_batch_size 64 --kv_cache_free_gpu_memory_fraction 0.85",
        "tensorrt-llm", None, L, {"tp": 4}, {"max_batch_size": 64, "free_gpu_memory_fraction": 0.85},
    ),
    (
        f"mpirun -n 8 --allow-run-as-root trtllm-llmapi-launch "
        f"trtllm-serve serve {L} --ep_size 8 --max_seq_len 4096",
        "tensorrt-llm", None, L, {"ep": 8}, {"max_seq_len": 4096},
    ),
    (
        f"docker run --rm -it --gpus all nvcr.io/nvidia/tensorrt-llm/release:1.2.1 "
        f"trtllm-serve {L} --max_num_tokens 8192",
        "tensorrt-llm", "1.2.1", L, {}, {"max_num_tokens": 8192},
    ),
    (
        "./build/bin/llama-server -m models/q4.gguf -c 32768 -ngl 99 -np 4 -ctk q8_0 -ctv q8_0 -fa on",
        "llama.cpp", None, "models/q4.gguf", {},
        {
            "ctx_size": 32768, "n_gpu_layers": 99, "parallel": 4,
            "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on",
        },
    ),
    (
        "llama-server -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M -fa --swa-full "
        "--no-kv-unified --n-cpu-moe 20 -nkvo",
        "llama.cpp", None, "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", {},
        {"flash_attn": "on", "swa_full": True, "kv_unified": False, "n_cpu_moe": 20, "kv_offload": False},
    ),
    (
        "docker run -v /m:/m --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda-b5427 "
        "-m /m/a.gguf -ub 1024 -b 2048",
        "llama.cpp", "b5427", "/m/a.gguf", {}, {"ubatch_size": 1024, "batch_size": 2048},
    ),
    (
        "llama-cli.exe --model C:/m/a.gguf --ctx-size 0 --gpu-layers all --temp 0.7 -p 'hello -c 5'",
        "llama.cpp", None, "C:/m/a.gguf", {}, {"ctx_size": 0, "n_gpu_layers": "all"},
    ),
    (
        "python -m llama_cpp.server --model a.gguf --n_ctx 4096 --n_gpu_layers -1",
        "llama.cpp", None, "a.gguf", {}, {"ctx_size": 4096, "n_gpu_layers": -1, "launcher": "library"},
    ),
    (
        'OLLAMA_CONTEXT_LENGTH=16384 OLLAMA_KV_CACHE_TYPE=q8_0 ollama run llama3.1:8b "why is the sky blue"',
        "llama.cpp", None, "llama3.1:8b", {},
        {"ctx_size": 16384, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "launcher": "ollama"},
    ),
    (
        "export OLLAMA_NUM_PARALLEL=2\nexport OLLAMA_FLASH_ATTENTION=1\nollama serve",
        "llama.cpp", None, None, {}, {"parallel": 2, "flash_attn": "on", "launcher": "ollama"},
    ),
    (
        "docker run -d --gpus=all -e OLLAMA_NUM_PARALLEL=4 -v ollama:/root/.ollama -p 11434:11434 "
        "--name ollama ollama/ollama:0.12.3",
        "llama.cpp", None, None, {}, {"parallel": 4, "launcher": "ollama"},
    ),
    (
        f"bash -lc \"CUDA_VISIBLE_DEVICES=0 vllm serve {L} -q fp8\"",
        "vllm", None, L, {"quantization": "fp8"}, {},
    ),
    (f"vllm serve {L} `\n  --max-num-seqs 8", "vllm", None, L, {}, {"max_num_seqs": 8}),
    (f"vllm serve -- {L}", "vllm", None, L, {}, {}),
    (
        f"python /src/vllm/entrypoints/openai/api_server.py --model {L} --pipeline-parallel-size 2",
        "vllm", None, L, {"pp": 2}, {},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "engine", "version", "model", "setup", "flags"), READ, ids=lambda x: str(x)[:40]
)
def test_a_pasted_command_is_read(
    text: str,
    engine: str,
    version: str | None,
    model: str | None,
    setup: dict[str, Any],
    flags: dict[str, Any],
) -> None:
    found = read_command(text)
    assert (found.engine, found.version, found.model) == (engine, version, model)
    assert found.setup == setup
    assert found.flags == flags
    assert found.unknown == ()


def test_there_are_many_of_them() -> None:
    assert len(READ) >= 40


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        (f"vllm serve {L} --frobnicate 7 --max-num-seqs 2", ("--frobnicate 7",)),
        (f"vllm serve {L} --frobnicate=7", ("--frobnicate=7",)),
        (f"vllm serve {L} --frobnicate --enforce-eager", ("--frobnicate",)),
        (f"vllm serve {L} extra", ("extra",)),
        (f"vllm serve {L} -zz -1", ("-zz -1",)),
        ("llama-server -m a.gguf --tensor-parallel-size 2", ("--tensor-parallel-size 2",)),
        (f"trtllm-serve {L} --max_batch 4", ("--max_batch 4",)),
        (f"python -m sglang.launch_server --model-path {L} --no-such-thing", ("--no-such-thing",)),
    ],
)
def test_what_is_not_known_is_listed(text: str, unknown: tuple[str, ...]) -> None:
    assert read_command(text).unknown == unknown


def test_known_flags_that_do_not_matter_are_listed_apart() -> None:
    found = read_command(f"vllm serve {L} --host 0.0.0.0 --port 80 --api-key k --trust-remote-code --seed 3")
    assert found.ignored == ("--host", "--port", "--api-key", "--trust-remote-code", "--seed")
    assert not found.flags
    assert not found.unknown


def test_a_file_of_settings_is_named_and_not_read() -> None:
    found = read_command(f"trtllm-serve {L} --extra_llm_api_options /etc/passwd")
    assert any("/etc/passwd" in note and "not read" in note for note in found.notes)
    assert "--config" in read_command(f"vllm serve {L} --config c.yaml").notes[0]


def test_variables_and_substitutions_stay_unexpanded() -> None:
    found = read_command(f"LEN=5 vllm serve {L} --max-model-len $LEN --max-num-seqs $(nproc) --port ${{P}}")
    assert found.flags == {}
    assert found.unknown == ("--max-model-len $LEN", "--max-num-seqs $(nproc)")
    assert sum("not expanded" in note for note in found.notes) == 2
    named = read_command("vllm serve $MODEL -tp 2")
    assert named.model is None
    assert any("$MODEL" in note for note in named.notes)


def test_nothing_is_run(tmp_path: Any) -> None:
    mark = tmp_path / "mark"
    read_command(f"vllm serve {L} --max-num-seqs $(touch {mark}) `touch {mark}`; touch {mark}")
    read_command(f"bash -c 'touch {mark}; vllm serve {L}'")
    assert not mark.exists()


def test_later_flags_win_and_json_is_merged() -> None:
    found = read_command(
        f"vllm serve {L} --max-num-seqs 2 --max-num-seqs 4 -sc.method ngram -sc '{{\"a\": 1}}'"
    )
    assert found.flags == {"max_num_seqs": 4, "speculative_config": {"method": "ngram", "a": 1}}


def test_flags_win_over_the_environment() -> None:
    found = read_command("OLLAMA_NUM_PARALLEL=2 LLAMA_ARG_CTX_SIZE=1 llama-server -m a.gguf -c 9 -np 3")
    assert found.flags == {"ctx_size": 9, "parallel": 3}


@pytest.mark.parametrize(
    ("image", "engine", "version"),
    [
        ("vllm/vllm-openai:v0.11.0", "vllm", "0.11.0"),
        ("vllm/vllm-openai:v0.8.5.post1", "vllm", "0.8.5.post1"),
        ("vllm/vllm-openai", "vllm", None),
        ("registry:5000/vllm/vllm-openai", "vllm", None),
        ("registry:5000/vllm/vllm-openai:v0.9.1@sha256:abc", "vllm", "0.9.1"),
        ("nvcr.io/nvidia/vllm:25.09-py3", "vllm", None),
        ("lmsysorg/sglang:latest", "sglang", None),
        ("lmsysorg/sglang:v0.5.10.post1-cu129-amd64", "sglang", "0.5.10.post1"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.1.0rc5", "tensorrt-llm", "1.1.0"),
        ("ghcr.io/ggml-org/llama.cpp:full-cuda-b6123", "llama.cpp", "b6123"),
        ("ghcr.io/ggml-org/llama.cpp:server", "llama.cpp", None),
        ("rocm/vllm:rocm6.4.1_vllm_v0.9.1_20250702", "vllm", "0.9.1"),
    ],
)
def test_an_images_tag_states_the_version(image: str, engine: str, version: str | None) -> None:
    found, note = version_of(image, engine)
    assert found == version
    assert note or found


HOSTILE = [
    ("", "empty"),
    ("   \n\t ", "empty"),
    ("ls -la", "starts no engine"),
    ("rm -rf / --no-preserve-root", "starts no engine"),
    ("vllm bench serve", "starts no engine"),
    ("pip install vllm", "starts no engine"),
    (f"vllm serve '{L}", "never closed"),
    (f'vllm serve "{L}', "never closed"),
    ("vllm serve $(cat", "never closed"),
    ("vllm serve m --max-model-len", "--max-model-len"),
    ("vllm serve m --max-model-len --port 1", "--max-model-len"),
    ("vllm serve m --max-model-len lots", "--max-model-len"),
    ("vllm serve m -tp two", "-tp"),
    ("vllm serve m -tp " + "9" * 400, "-tp"),
    ("vllm serve m --max-model-len " + "9" * 400, "--max-model-len"),
    ("vllm serve m --gpu-memory-utilization nan", "--gpu-memory-utilization"),
    ("vllm serve m --gpu-memory-utilization 1e999", "--gpu-memory-utilization"),
    ("vllm serve m --speculative-config {method:eagle}", "is it quoted"),
    ("vllm serve m --speculative-config '[1]'", "not a JSON object"),
    ("vllm serve m --speculative-config '" + "[" * 20000 + "'", "--speculative-config"),
    ("vllm serve m --enforce-eager=maybe", "--enforce-eager"),
    ("llama-server -m a.gguf -c 4k", "-c"),
    ("llama-server -m", "-m"),
    ("docker run --gpus all", "no image"),
    ("docker run --gpus", "--gpus"),
    ("docker run", "no image"),
    ("docker run ubuntu:22.04 ls", "starts no engine"),
    ("docker run lmsysorg/sglang:latest nvidia-smi", "given nothing"),
    ("bash -c " * 9 + "x", "starts no engine"),
    ("x" * 70000, "characters"),
    ("vllm serve \0", "NUL"),
    ("sudo", "starts no engine"),
    ("python -m", "starts no engine"),
    ("A=1 B=2", "starts no engine"),
    (";;&&|", "starts no engine"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE, ids=lambda x: str(x)[:24])
def test_what_cannot_be_read_is_one_line(text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_command(text)
    said = str(caught.value)
    assert words in said
    assert "\n" not in said
    assert len(said) < 400


def test_shells_in_shells_end() -> None:
    text = f"vllm serve {L}"
    for _ in range(8):
        text = "bash -c '" + text.replace("'", "'\\''") + "'"
    with pytest.raises(BadInput, match="nested"):
        read_command(text)


def test_long_text_is_read_quickly() -> None:
    started = time.perf_counter()
    read_command("vllm serve m " + "--unknown-flag 1 " * 3000)
    statements("`" * 2 + "$(" * 10 + "x" * 50000 + ")" * 10)
    assert time.perf_counter() - started < 5


def parsed(text: str) -> Command | None:
    try:
        return read_command(text)
    except KvplanError:
        return None


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    parsed(text)
    parsed(f"vllm serve m {text}")


WORDS = st.sampled_from(
    [
        "--max-model-len",
        "-tp",
        "4",
        "{}",
        "'",
        "-c",
        "$(x)",
        "--",
        "-",
        "=",
        "--=",
        "-O",
        "-O3",
        "--no-",
        "--x.y",
        "é",
    ]
)


@given(
    st.lists(WORDS, max_size=12),
    st.sampled_from(["vllm serve", "llama-server", "docker run", "bash -c", "env"]),
)
def test_any_words_are_read_or_refused(words: list[str], program: str) -> None:
    parsed(f"{program} {' '.join(words)}")


def test_every_relevant_flag_is_typed_and_none_is_ignored_too() -> None:
    kinds = {"int", "human", "length", "float", "str", "json", "layers", "bool", "onoff", "list", "numbers"}
    for engine in store.toml("engines/commands.toml")["engine"]:
        grammar = grammar_of(engine)
        assert set(grammar.types.values()) <= kinds
        assert not set(grammar.types) & (grammar.switches | grammar.values | grammar.lists)
        assert not (grammar.switches & grammar.values) | (grammar.switches & grammar.lists)
        for target in grammar.aliases.values():
            assert target.split(".")[0] in {*grammar.types, *grammar.model, *grammar.files}

"""Logs of several servers, and failures without end: told apart, bounded, and the same answer."""
# ruff: noqa: E501  lines of logs

from __future__ import annotations

import re
import time

import pytest

from failed_logs import ERROR, MADE, cuda, vllm
from kvplan.errors import BadInput
from kvplan.observe.observed import Failure
from kvplan.observe.read import observe_log
from verifying import observed, stream, verified


def server(name: str, length: int, pids: tuple[int, int, int], tokens: int, pool: str) -> list[str]:
    api, engine, worker = pids
    lines = f"""(APIServer pid={api}) INFO 03-04 10:00:01 [api_server.py:1896] vLLM API server version 0.11.0
(APIServer pid={api}) INFO 03-04 10:00:02 [utils.py:328] non-default args: {{'model': '{name}', 'max_model_len': {length}}}
(EngineCore_DP0 pid={engine}) INFO 03-04 10:00:04 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='{name}', dtype=torch.bfloat16, max_seq_len={length}, tensor_parallel_size=1, quantization=None, device_config=cuda
(Worker_TP0 pid={worker}) INFO 03-04 10:00:15 [gpu_worker.py:298] Available KV cache memory: {pool} GiB
(EngineCore_DP0 pid={engine}) INFO 03-04 10:00:16 [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens
(EngineCore_DP0 pid={engine}) INFO 03-04 10:00:16 [kv_cache_utils.py:1091] Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x
(APIServer pid={api}) INFO:     Application startup complete."""
    return lines.splitlines()


LLAMA = server("meta-llama/Llama-3.1-8B-Instruct", 8192, (1, 77, 800), 359936, "43.94")
QWEN = server("Qwen/Qwen3-8B", 16384, (9, 177, 900), 364080, "50.0")
MIXED = [line for both in zip(LLAMA, QWEN, strict=True) for line in both]


def test_two_servers_whose_lines_take_turns_are_refused_with_their_pids() -> None:
    with pytest.raises(BadInput) as caught:
        verified("\n".join(MIXED), gpu="h100")
    said = str(caught.value)
    assert "(EngineCore_DP0 pid=77) and (EngineCore_DP0 pid=177) take turns" in said
    assert "Worker_TP0 pid=800 and 900" in said
    assert "grep -E 'pid=(77|" in said
    assert "\n" not in said


def test_what_the_refusal_says_picks_one_server() -> None:
    kept = [line for line in MIXED if re.search(r"pid=(77|800)[ ,)]", line)]
    answer = verified("\n".join(kept))
    assert answer["agrees"], answer["checks"]
    assert answer["observed"]["figures"]["kv_tokens"] == 359936


def test_a_restart_is_no_second_server() -> None:
    again = [line.replace("pid=77)", "pid=78)").replace("pid=800)", "pid=801)") for line in LLAMA]
    answer = verified("\n".join(LLAMA + again))
    assert answer["agrees"]
    assert "2 start-ups in the log" in answer["notes"][0]
    failed = [*LLAMA[:4], f"{ERROR}EngineCore failed to start.", *again]
    assert observed("\n".join(failed)).failure is None


def test_engines_and_ranks_of_one_server_are_no_second_one() -> None:
    other = [line.replace("DP0 pid=77", "DP1 pid=78").replace("TP0 pid=800", "TP1 pid=801") for line in LLAMA]
    lines = [line for both in zip(LLAMA, other, strict=True) for line in both]
    assert observed("\n".join(lines)).figures["kv_tokens"].value == 359936


def test_workers_that_are_named_by_their_pid_alone_are_ranks() -> None:
    lines = [line.replace("Worker_TP0 pid=800", "VllmWorkerProcess pid=800") for line in LLAMA]
    worker = lines[3]
    lines[3:4] = [worker, worker.replace("800", "801"), worker, worker.replace("800", "801")]
    assert observed("\n".join(lines)).ranks == 2


OOM = f"{ERROR}torch.OutOfMemoryError: {cuda('1.96 GiB')}"


def failure(text: str) -> Failure:
    found = observed(text).failure
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 30, 60, 1000])
def test_a_failure_that_repeats_is_told_as_the_first_of_them(count: int) -> None:
    once, often = failure(vllm() + OOM), failure(vllm() + OOM * count)
    assert (once.kind, once.line, once.when, once.phase) == (often.kind, often.line, often.when, often.phase)
    assert once.figures == often.figures
    read, _ = observe_log(stream(vllm() + OOM * count))
    assert (read.lines, read.startup.last_line) == (3 + count, 3 + count)


def test_of_errors_without_end_the_last_is_told() -> None:
    many = "".join(f"{ERROR}ValueError: try {i} failed\n" for i in range(5000))
    end = f"{ERROR}TypeError: the last of them\n(APIServer pid=1) RuntimeError: Engine core initialization failed\n"
    found = failure(vllm() + many + end)
    assert (found.kind, found.text, found.line) == ("other", "TypeError: the last of them", 5004)


def test_a_failure_after_many_that_were_recovered_from_is_told() -> None:
    started = f"{MADE}INFO:     Application startup complete.\n"
    early = vllm() + OOM * 500 + vllm().replace("pid=77", "pid=78") + started
    assert observed(early).failure is None
    warned = vllm() + f"{ERROR}ValueError: not yet\n" * 500 + started
    found = failure(warned + OOM * 500)
    assert (found.kind, found.when, found.line) == ("out_of_memory", "running", 508)


def test_a_start_after_failures_without_end_is_read() -> None:
    answer = verified(vllm() + OOM * 500 + "\n".join(LLAMA), gpu="h100")
    assert answer["failure"] is None
    assert answer["observed"]["figures"]["kv_tokens"] == 359936


def test_failures_without_end_take_a_bounded_time() -> None:
    text = (vllm() + OOM * 40_000).encode()
    began = time.process_time()
    observe_log(stream(text))
    assert time.process_time() - began < 2.5  # each on its own would take twice that


def test_an_error_of_no_engine_is_no_start_up() -> None:
    with pytest.raises(BadInput, match="has no line that vLLM"):
        verified("RuntimeError: CUDA error: out of memory\n")

"""Logs of any size and shape: constant memory, a bounded time, a clear word, the same figures."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvplan
from kvplan.errors import BadInput, KvplanError
from kvplan.observe.read import observe_log
from kvplan.observe.source import BLOCK
from verifying import RUNS, observed, stream, verified

LOG = RUNS / "vllm/vmx_gemma3.log"
CONFIG = RUNS / "vllm/vmx_gemma3.config.json"
LLAMA = RUNS / "llama_cpp/gemma270m_ctx4096.log"
TEXT = LOG.read_text("utf-8")
LINES = TEXT.splitlines()
TOKENS = 83055
_MIB = 2**20


def figures_of(text: str | bytes) -> dict[str, float]:
    return {name: said.value for name, said in observed(text).figures.items()}


WANTED = figures_of(TEXT)
LLAMA_TEXT = LLAMA.read_text("utf-8")
LLAMA_WANTED = figures_of(LLAMA_TEXT)


def each(text: str, make: Callable[[str], str]) -> str:
    return "\n".join(make(line) for line in text.splitlines()) + "\n"


def docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-03-04T10:00:00.123456789Z"})


def coloured(line: str) -> str:
    return f"\x1b[36m{line[: len(line) // 2]}\x1b[0m\x1b[1m{line[len(line) // 2 :]}\x1b[K\x1b[0m"


PREFIXES: dict[str, Callable[[str], str]] = {
    "docker json": docker,
    "docker logs -t": lambda line: f"2026-03-04T10:00:00.123456789Z {line}",
    "kubernetes CRI": lambda line: f"2026-03-04T10:00:00.123456789Z stderr F {line}",
    "kubectl --prefix": lambda line: f"[pod/vllm-7d9f-x2x/vllm] {line}",
    "compose": lambda line: f"vllm-1  | {line}",
    "compose in colour": lambda line: f"\x1b[36mvllm-1  | \x1b[0m{line}",
    "journald": lambda line: f"Mar 04 10:00:00 host vllm[4242]: {line}",
    "journald json": lambda line: json.dumps({"MESSAGE": line, "_PID": "4242"}),
    "a timestamp": lambda line: f"2026-03-04 10:00:00,123 {line}",
    "colours": coloured,
    "carriage returns": lambda line: f"{line}\r",
    "a progress bar before it": lambda line: f"Loading: 12%|#   | 1/8 [00:01<00:07]\r{line}",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=list(PREFIXES))
def test_what_stands_in_front_of_a_line_does_not_matter(prefix: Callable[[str], str]) -> None:
    assert figures_of(each(TEXT, prefix)) == WANTED
    assert figures_of(each(LLAMA_TEXT, prefix)) == LLAMA_WANTED


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_other_encodings_are_read(codec: str) -> None:
    assert figures_of(TEXT.encode(codec)) == WANTED


def noise(seed: int) -> bytes:
    """Bytes of every kind, NULs, halves of sequences and ends of lines among them."""
    draw = random.Random(seed)  # noqa: S311
    return draw.randbytes(20_000) + b"\0" * 999 + b"\xc3\x28\xff\xfe" * 99 + b"\n"


@pytest.mark.parametrize("seed", range(5))
def test_binary_around_and_between_the_lines_does_not_matter(seed: int) -> None:
    parts = [line.encode() + b"\n" + (noise(seed + i) if i % 5 == 0 else b"") for i, line in enumerate(LINES)]
    assert figures_of(noise(seed) + b"".join(parts) + noise(seed + 1)) == WANTED


def said(work: Callable[[], object]) -> str:
    """What is said where it cannot be done; nothing where it can."""
    try:
        work()
    except KvplanError as error:
        return str(error)
    return ""


@given(st.binary(max_size=3000))
def test_any_bytes_give_an_answer_or_one_line(garbage: bytes) -> None:
    assert "\n" not in said(lambda: observe_log(stream(garbage)))


@given(st.lists(st.sampled_from([*TEXT.splitlines(), *LLAMA_TEXT.splitlines()]), max_size=60), st.randoms())
def test_any_lines_in_any_order_give_an_answer_or_one_line(rows: list[str], draw: random.Random) -> None:
    cut = [row[: draw.randint(0, len(row))] if draw.random() < 0.3 else row for row in rows]
    assert "\n" not in said(lambda: verified("\n".join(cut), CONFIG))


@pytest.mark.parametrize("share", [n / 20 for n in range(1, 20)])
def test_a_log_that_ends_in_the_middle_says_so_or_agrees(share: float) -> None:
    for text in (TEXT, LLAMA_TEXT):
        cut = text[: int(len(text) * share)]
        model = CONFIG if text is TEXT else None
        error = said(lambda cut=cut, model=model: verified(cut, model))  # type: ignore[misc]
        assert "\n" not in error
        if error:
            continue
        answer = verified(cut, model)
        assert [row["name"] for row in answer["checks"] if not row["agrees"]] == []
        if text is TEXT and "KV cache size" not in cut:
            assert "the log ends before the engine has sized its cache" in answer["notes"]


def test_a_log_of_several_starts_takes_the_last_complete_one() -> None:
    other = (RUNS / "vllm/vmx_gemma3_26.log").read_text("utf-8")
    for text in (other + TEXT, other + TEXT + "\n".join(other.splitlines()[:12])):
        answer = verified(text, CONFIG)
        assert answer["agrees"]
        assert next(row for row in answer["checks"] if row["name"] == "kv_tokens")["reported"] == TOKENS
        assert any("start-ups in the log: the last complete one is taken" in note for note in answer["notes"])
    assert any("a later start-up" in note for note in answer["notes"])


def test_two_programs_interleaved_are_told_apart_by_their_names() -> None:
    other = (RUNS / "vllm/vmx_llama_b128.log").read_text("utf-8").splitlines()
    mixed = []
    for i, line in enumerate(TEXT.splitlines()):
        mixed += [f"b-1  | {row}" for row in other[i : i + 1]] + [f"a-1  | {line}"]
    mixed += [f"b-1  | {row}" for row in other[len(TEXT.splitlines()) :]]
    text = "\n".join(mixed)
    read, o = observe_log(stream(text))
    assert any("several programs in the log (a-1, b-1)" in note for note in read.notes)
    assert o.figures["kv_tokens"].value in (TOKENS, figures_of("\n".join(other))["kv_tokens"])


# ruff: noqa: E501  lines of logs
RANKS = """(EngineCore_DP0 pid=70) INFO 03-04 10:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='meta-llama/Llama-3.1-70B-Instruct', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=4, quantization=None, device_config=cuda
(Worker_TP0 pid=81) (Worker_TP1 pid=82) INFO 03-04 10:00:09 [gpu_model_runner.py:2653] Model loading took 32.8894 GiB and 9.1 seconds
(Worker_TP3 pid=84) INFO 03-04 10:00:09 [gpu_model_runner.py:2653] Model loading took 32.8894 GiB and 9.0 seconds
(Worker_TP2 pid=83) INFO 03-04 10:00:09 [gpu_worker.py:298] Available KV cache memory: 37.52 GiB
(Worker_TP0 pid=81) INFO 03-04 10:00:09 [gpu_worker.py:298] Available KV cache memory: 37.11 GiB
(Worker_TP3 pid=84) INFO 03-04 10:00:09 [gpu_worker.py:298] Available KV cache memory: 37.52 GiB
(Worker_TP1 pid=82) INFO 03-04 10:00:09 [gpu_worker.py:298] Available KV cache memory: 37.52 GiB
(EngineCore_DP0 pid=70) INFO 03-04 10:00:10 [kv_cache_utils.py:1087] GPU KV cache size: 486,400 tokens
(EngineCore_DP0 pid=70) INFO 03-04 10:00:10 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 59.38x
"""


def test_of_several_ranks_the_emptiest_pool_decides() -> None:
    answer = verified(RANKS)
    assert answer["agrees"], answer["checks"]
    assert answer["observed"]["figures"]["kv_pool_bytes"] == round(37.11 * 2**30)
    assert any(
        "4 ranks, 1.1% apart: the smallest pool, 37.11 GiB, decides" in note for note in answer["notes"]
    )


def test_a_line_of_50_mb_is_cut() -> None:
    text = TEXT.encode() + b"x" * (50 * _MIB) + b" Available KV cache memory: 99.99 GiB\n" + TEXT.encode()
    read, o = observe_log(io.BytesIO(text))
    assert {name: said.value for name, said in o.figures.items()} == WANTED
    assert any("longer than 256 KiB" in note for note in read.notes)


class Endless:
    """A stream that is made as it is read, with the words of engines' lines in one block of sixteen."""

    def __init__(self, size: int) -> None:
        plain = b"(APIServer pid=1) INFO: 10.0.0.1:5000 - POST /v1/completions HTTP/1.1 200 OK, GPU cache usage 12.1%\n"
        block = (plain * (BLOCK // len(plain) + 1))[:BLOCK]
        words = b"(EngineCore_DP0 pid=9) INFO not a figure: KV cache size: unknown tokens\n" * 40
        self.blocks = [block] * 15 + [words + block[len(words) :]]
        self.left, self.count, self.head = size, 0, TEXT.encode()

    def read(self, _size: int = -1) -> bytes:
        if self.head:
            found, self.head = self.head, b""
            return found
        if self.left <= 0:
            return b""
        self.left -= BLOCK
        self.count += 1
        return self.blocks[self.count % 16]


def test_a_long_log_is_read_in_constant_memory_and_reasonable_time() -> None:
    resource = pytest.importorskip("resource")
    verified(TEXT, CONFIG)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    answer = kvplan.verify(CONFIG, log=Endless(50 * _MIB))
    assert answer["agrees"]
    assert time.monotonic() - began < 30
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 40 * _MIB


CHILD = """
import resource, sys
import kvplan
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
answer = kvplan.verify(sys.argv[2], log="-")
print(answer["agrees"], answer["source"]["lines"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits its address space")
def test_a_pipe_of_200_mb_is_read_under_a_limit_on_memory() -> None:
    source = Path(kvplan.__file__).parents[1]
    command = [sys.executable, "-c", CHILD, str(600 * _MIB), str(CONFIG)]
    env = {**os.environ, "PYTHONPATH": str(source)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdin is not None
        for block in blocks(200 * _MIB):
            child.stdin.write(block)
        child.stdin.close()
        assert child.stdout is not None
        said = child.stdout.read().decode().split()
        assert child.wait(60) == 0
    assert said[0] == "True"
    assert int(said[1]) > 1_000_000


def blocks(size: int) -> Iterator[bytes]:
    endless = Endless(size)
    while block := endless.read():
        yield block


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello\nworld\n", "has no line that vLLM"),
        (gzip.compress(TEXT.encode()), "zcat"),
        (b"\x28\xb5\x2f\xfd" + b"\0" * 99, "zstd"),
        (b"PK\x03\x04" + b"\0" * 99, "zip"),
    ],
    ids=["empty", "something else", "gzip", "zstd", "zip"],
)
def test_what_is_no_log_is_said_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "some.log"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=words) as caught:
        kvplan.verify(log=file)
    assert "\n" not in str(caught.value)
    assert "some.log" in str(caught.value)


def test_a_folder_or_a_missing_file_is_said_to_be_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.log", "\0", 7):
        with pytest.raises(BadInput):
            kvplan.verify(log=path)


def test_text_that_never_ends_a_line_is_read() -> None:
    with pytest.raises(BadInput, match="has no line"):
        kvplan.verify(log=io.StringIO("x" * 3_000_000))


def test_a_dry_run_of_llama_cpp_is_left_out() -> None:
    made = [line for line in LLAMA_TEXT.splitlines() if "llama_context:" in line or "llama_kv_cache" in line]
    zero = "\n".join(re.sub(r"[\d.]+ MiB", "0.00 MiB", line) for line in made)
    head, tail = LLAMA_TEXT.split("llama_context: constructing", 1)
    o = observed(head + zero + "\nllama_context: constructing" + tail)
    assert {n: s.value for n, s in o.figures.items() if n in ("k_bytes", "v_bytes", "cache_bytes")} == {
        n: LLAMA_WANTED[n] for n in ("k_bytes", "v_bytes", "cache_bytes")
    }
    assert any("dry run" in note for note in o.notes)

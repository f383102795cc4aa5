"""Make a tiny GGUF file of an architecture, or load a file in llama.cpp and let it log.

    PYTHON ask_llama_cpp.py grow SPEC.json FILE.gguf     (needs xllamacpp, gguf and numpy)
    PYTHON ask_llama_cpp.py load FILE.gguf FLAGS         (the log goes to standard error and output)
    PYTHON ask_llama_cpp.py serve FILE.gguf FLAGS … PORT    (until it is ended)

Growing starts with metadata alone: llama.cpp names the tensor it misses or the shape it wants, and the file
gets it, until llama.cpp has all. Weights are zeros. What it logs of its caches comes before any graph.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import xllamacpp

_C = ctypes.CDLL(None)
_C.setvbuf(
    ctypes.c_void_p.in_dll(_C, "stdout"), None, 2, 0
)  # unbuffered: nothing is lost where a graph fails
_MISSING = re.compile(r"tensor '([^']+)' not found")
_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected \[? *([\d, ]+)")
_TYPES = {
    name.removeprefix("GGML_TYPE_").lower(): getattr(xllamacpp.ggml_type, name)
    for name in dir(xllamacpp.ggml_type)
    if name.startswith("GGML_TYPE_")
}


def load(file: str, flags: dict[str, Any]) -> Any:
    """A server of that file under llama.cpp's own parameter names; raises where it refuses."""
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.verbosity, params.warmup, params.ui, params.fit_params = 4, False, False, False
    params.port = 20000 + os.getpid() % 20000
    for name, value in flags.items():
        if name.startswith("cache_type"):
            value = _TYPES[value]
        if name == "flash_attn_type":
            value = getattr(xllamacpp.llama_flash_attn_type, value)
        setattr(params, name, value)
    return xllamacpp.Server(params)


def write(spec: dict[str, Any], tensors: dict[str, list[int]], file: str) -> None:
    """A GGUF file of the spec's metadata, a vocabulary of its size and tensors of zeros."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(file, spec["arch"])
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in spec["metadata"].items():
        adders.get(type(value), writer.add_array)(key, value)
    size = spec["vocab"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(size - 3))])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3, *[1] * (size - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(tuple(reversed(shape)), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def complaint(file: str, log: Path) -> str:
    """What llama.cpp logs when it refuses a file; empty when it takes it."""
    saved = [os.dup(1), os.dup(2)]
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    text, refused = "", False
    try:
        kept = load(file, {"n_ctx": 256, "n_parallel": 1})
        os._exit(0 if kept else 1)  # taken; a server's end is not waited for
    except RuntimeError:
        refused = True
    for _ in range(200 if refused else 0):
        _C.fflush(None)
        text = log.read_text(encoding="utf-8", errors="replace")
        if "exiting due to" in text:
            break
        time.sleep(0.005)
    os.dup2(saved[0], 1)
    os.dup2(saved[1], 2)
    for number in (out, *saved):
        os.close(number)
    return text


def grow(spec: dict[str, Any], file: str) -> None:
    """Write the file again and again with what llama.cpp asks for; ends when it asks for nothing more."""
    tensors: dict[str, list[int]] = {}
    shapes: dict[str, list[int]] = {}
    log = Path(file).with_suffix(".log")
    for _ in range(2000):
        write(spec, tensors, file)
        text = complaint(file, log)
        if missing := _MISSING.search(text):
            name = missing[1]
            tensors[name] = shapes.get(re.sub(r"blk\.\d+", "blk", name), [1])
        elif wrong := _SHAPE.search(text):
            name, shape = wrong[1], [int(n) for n in re.findall(r"\d+", wrong[2])]
            while len(shape) > 1 and shape[-1] == 1:
                shape.pop()
            if tensors[name] == shape:
                break
            tensors[name] = shapes[re.sub(r"blk\.\d+", "blk", name)] = shape
        else:
            break
    print(text[-2000:])  # noqa: T201
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1] == "grow":
        grow(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), sys.argv[3])
    try:
        given = json.loads(sys.argv[3])
        if sys.argv[1] == "serve":
            given["port"] = int(sys.argv[-1])
            given |= dict.fromkeys(("endpoint_metrics", "endpoint_slots", "endpoint_props"), True)
        server = load(sys.argv[2], given)
        time.sleep(1e9 if sys.argv[1] == "serve" else 0.1)
    except RuntimeError as refusal:
        print("REFUSED", refusal, flush=True)  # noqa: T201
    _C.fflush(None)
    os._exit(0)

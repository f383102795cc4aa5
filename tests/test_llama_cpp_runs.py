"""Complete logs of llama.cpp's server, read line by line and reproduced exactly.

Also the reader of such logs that the live test uses.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from conftest import lines
from kvplan.engines.engine import Setup
from kvplan.engines.llama_cpp import capacity
from kvplan.engines.llama_cpp_placement import output_bytes, placement
from kvplan.model.gguf_model import model_of
from kvplan.model.tensors import TensorList

ROWS = lines("llama_cpp_runs.jsonl")
MIB = 2**20
_KEY = re.compile(r"kv +\d+: +(\S+) (\S+) += (.+)")
_SET = re.compile(r"llama_context: +(n_ctx|n_ctx_seq|n_seq_max|n_batch|n_ubatch|kv_unified) += (\w+)$")
_CACHE = re.compile(
    r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+)/ *(\d+) seqs\), "
    r"K \((\w+)\): +([\d.]+) MiB, V \((\w+)\): +([\d.]+) MiB"
)
_STATE = re.compile(
    r"llama_memory_recurrent: size = +([\d.]+) MiB .*R \(f32\): +([\d.]+) MiB, S \(f32\): +([\d.]+)"
)
_COMPRESSOR = re.compile(r"state = (\d+) x (\d+), streams = (\d+), rs_seq = (\d+), layers = (\d+), size")
_OUTPUT = re.compile(r"output buffer size = +([\d.]+) MiB")
_COMPUTE = re.compile(r"(\w+) compute buffer size = +([\d.]+) MiB")


def metadata_of(log: list[str]) -> dict[str, object]:
    """The GGUF keys that the loader prints, numbers and short lists of numbers as such."""
    found: dict[str, object] = {}
    for line in log:
        match = _KEY.search(line)
        if match:
            key, kind, text = match.groups()
            if kind == "str":
                found[key] = text
            elif "..." not in text:
                found[key] = json.loads(text)
    vocab = next((int(m.group(1)) for line in log if (m := re.search(r"n_vocab += (\d+)", line))), None)
    if vocab is not None:
        found.setdefault(f"{found['general.architecture']}.vocab_size", vocab)
    return found


def caches_in(log: list[str]) -> dict[str, Any]:
    """What the last context of a log prints: its sizes, caches and buffers in MiB, as printed.

    With --fit a model is loaded without memory first, so every block stands twice; the last one counts.
    """
    starts = [i for i, line in enumerate(log) if re.search(r"llama_context: +n_seq_max +=", line)]
    block = log[starts[-1] :]
    found: dict[str, Any] = {"caches": [], "state": None, "compute": {}}
    compressors = 0
    for line in block:
        if match := _SET.search(line):
            value = match.group(2)
            found[match.group(1)] = int(value) if value.isdigit() else value
        elif match := _CACHE.search(line):
            found["caches"].append(
                {"mib": match[1], "cells": int(match[2]), "layers": int(match[3]), "streams": int(match[5])}
                | {"k_mib": match[7], "v_mib": match[9]}
            )
        elif match := _STATE.search(line):
            found["state"] = {"mib": match[1]}
        elif match := _COMPRESSOR.search(line):  # keys and scores, in float32
            rows, width, streams, copies, layers = map(int, match.groups())
            compressors += 2 * 4 * rows * width * streams * (1 + copies) * layers
            found["state"] = {"mib": printed(compressors)}
        elif match := _OUTPUT.search(line):
            found["output_mib"] = match[1]
        elif match := _COMPUTE.search(line):
            found["compute"][match[1]] = float(match[2])
    return found


def printed(size: int) -> str:
    """Bytes as llama.cpp prints MiB: a 32-bit float with two decimals."""
    return f"{size / MIB:.2f}"


def predicted_as_logged(model: Any, flags: dict[str, Any]) -> dict[str, Any]:
    """The same figures as `caches_in` gives, predicted."""
    found = capacity(model, Setup("llama.cpp", "", flags=flags), None)
    groups = [
        {
            "mib": printed((g.k_bytes or 0) + (g.v_bytes or 0)),
            "cells": g.cells,
            "layers": g.layers,
            "streams": g.streams,
            "k_mib": printed(g.k_bytes or 0),
            "v_mib": printed(g.v_bytes or 0),
        }
        for g in found.groups
    ]
    state = None if found.state_bytes is None else {"mib": printed(found.state_bytes)}
    made = {name: found.settings[name][0] for name in ("n_ctx_seq", "n_seq_max", "n_ubatch")}
    output = printed(output_bytes(model, made["n_seq_max"]))
    return {"caches": groups, "state": state, "n_ctx": found.kv_tokens, "output_mib": output, **made}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_complete_log_is_reproduced(row: dict[str, Any]) -> None:
    model = model_of(TensorList((), ("log",), metadata_of(row["log"])))
    logged = caches_in(row["log"])
    found = predicted_as_logged(model, row["flags"])
    assert found == {key: logged[key] for key in found}


def test_the_logs_cover_windows_latents_states_and_streams() -> None:
    logged = [caches_in(row["log"]) for row in ROWS]
    assert any(len(one["caches"]) == 2 for one in logged)
    assert any(one["state"] for one in logged)
    assert any(cache["v_mib"] == "0.00" for one in logged for cache in one["caches"])
    assert any(cache["streams"] > 1 for one in logged for cache in one["caches"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_compute_buffer_lies_in_its_interval(row: dict[str, Any]) -> None:
    model = model_of(TensorList((), ("log",), metadata_of(row["log"])))
    host = placement(model, Setup("llama.cpp", "", flags=row["flags"]), [])[0]
    logged = caches_in(row["log"])["compute"]["CPU"] * MIB
    assert host.compute.low <= logged <= host.compute.high
    assert "compute buffer" in host.compute.source.where

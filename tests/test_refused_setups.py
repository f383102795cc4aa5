"""What an engine would not start is refused in one line; what it turns off by itself is said."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput

L = "meta-llama/Llama-3.1-8B-Instruct"
WINDOWS = "openai/gpt-oss-20b"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tp": 4, "dcp": 3}, "--dcp: 3 does not divide --tp 4"),
    ({"tp": 2, "dcp": 2}, "--dcp: 2 needs --tp above the model's 8 KV heads, and it is 2"),
    ({"tp": 16, "dcp": 4}, "--dcp: 4 is more than --tp 16 ÷ 8 KV heads; give at most 2"),
    ({"pp": 64}, "--pp: 64 stages for 32 layers"),
    ({"pp": 64, "engine": "sglang"}, "--pp: 64 stages for 32 layers"),
    ({"block_size": 7}, "--block-size: 7; vllm's GPU kernels take multiples of 16"),
    ({"block_size": 48, "engine_version": "0.10.2"}, "--block-size: 48; vllm 0.10.2 takes 1, 8, 16"),
    ({"gpu_memory": 0}, "--gpu-memory: 0 is outside"),
    ({"gpu_memory": "0GB"}, "--gpu-memory: 0 is outside"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[str(g) for g, _ in REFUSED])
def test_a_setup_that_the_engine_refuses_is_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        kvplan.fit(L, gpu="H100", **given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (L, {"tp": 16, "dcp": 2}),
        ("deepseek-ai/DeepSeek-V3", {"tp": 8, "dcp": 8}),
        (L, {"block_size": 48}),
        (L, {"pp": 32}),
    ],
)
def test_a_setup_that_the_engine_takes_is_taken(model: str, given: dict[str, Any]) -> None:
    assert kvplan.fit(model, gpu="B200", **given)["capacity"]["fits"]


CONNECTORS = [
    ("LMCacheConnectorV1", "0.32.0", False),
    ("NixlConnector", "0.32.0", True),
    ("NixlConnector", "0.20.0", False),
    ("MoRIIOConnector", "0.29.0", False),
    ("MoRIIOConnector", "0.30.0", True),
]


@pytest.mark.parametrize(("name", "version", "able"), CONNECTORS)
def test_a_connector_that_cannot_do_with_the_hybrid_manager_turns_it_off(
    name: str, version: str, able: bool
) -> None:
    given = {"kv_connector": name, "kv_role": "kv_both"}
    found = kvplan.fit(WINDOWS, gpu="H100", engine_version=version, kv_transfer_config=given)
    alone = kvplan.fit(WINDOWS, gpu="H100", engine_version=version, disable_hybrid_kv_cache_manager=not able)
    assert found["capacity"]["kv_tokens"] == alone["capacity"]["kv_tokens"]
    assert any(name in note for note in found["notes"]) is not able


def test_a_multi_connector_is_as_able_as_its_least_able_one() -> None:
    inner = [{"kv_connector": "NixlConnector"}, {"kv_connector": "LMCacheConnectorV1"}]
    given = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": inner}}
    notes = kvplan.fit(WINDOWS, gpu="H100", kv_transfer_config=given)["notes"]
    assert any("LMCacheConnectorV1 does not support it" in note for note in notes)


def test_the_flag_wins_over_a_connector_since_it_is_asked_first() -> None:
    given: dict[str, Any] = {"kv_connector": "LMCacheConnectorV1"}
    on = kvplan.fit(WINDOWS, gpu="H100", kv_transfer_config=given, disable_hybrid_kv_cache_manager=False)
    assert on["capacity"] == kvplan.fit(WINDOWS, gpu="H100")["capacity"]


def test_what_follows_the_command_is_said_to_be_left_out() -> None:
    notes = kvplan.fit(gpu="H100", command=f"vllm serve {L} --port 80 && rm -rf cache | tee log")["notes"]
    assert "what follows the engine's command is left out: 'rm -rf cache'" in notes
    assert "what follows the engine's command is left out: 'tee log'" in notes

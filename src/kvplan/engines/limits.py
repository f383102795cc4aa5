"""vLLM's limits of one step, as the memory profile needs them: tokens and running sequences.

The defaults by device and version are vllm_defaults'; before V1 a prompt was one step of its own.
"""

from __future__ import annotations

from kvplan.engines.engine import Setup
from kvplan.engines.reserve import Limits
from kvplan.engines.vllm_defaults import GIVEN, settings_of
from kvplan.engines.vllm_version import rules_of
from kvplan.facts import store
from kvplan.facts.engine_versions import entry_for
from kvplan.figure import Source, Trust
from kvplan.model.model import Model


def limits_of(model: Model, setup: Setup) -> Limits:
    """max_num_batched_tokens and max_num_seqs of a server, each with where it comes from."""
    settings = settings_of(model, setup, rules_of(setup.version))
    sources = settings.sources
    tokens, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    cut = entry_for(store.toml("engines/reserve.toml")["vllm"]["cut_prompts_above"], setup.version)
    if settings.max_model_len <= cut["value"] and sources["max_num_batched_tokens"] != GIVEN:
        tokens = max(tokens, settings.max_model_len)
    return {
        "max_num_batched_tokens": (tokens, _source("max_num_batched_tokens", sources)),
        "max_num_seqs": (seqs, _source("max_num_seqs", sources)),
    }


def _source(name: str, sources: dict[str, str]) -> Source:
    where = sources.get(name, "")
    if where == GIVEN:
        return Source(Trust.STATED, f"--{name.replace('_', '-')}")
    return Source(Trust.ENGINE_RULE, f"vLLM default: {where}")

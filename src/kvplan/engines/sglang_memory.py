"""SGLang's budget: the share of the device for weights and cache, and what that leaves for the cache.

SGLang 0.5.23 arg_groups/memory_hook.py, mem_cache/kv_cache_configurator.py _profile_available_bytes;
earlier versions in facts/engines/sglang.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.engines.sglang_rules import FACTS, memory_rules, rules_of
from kvplan.engines.sglang_setup import MIB, attention_ranks, is_latent, memory_tier, share, whole
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, least, most, named, value_of
from kvplan.figure import whole as floor
from kvplan.model.model import Model

_RULE = "SGLang 0.5.23 arg_groups/memory_hook.py"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Defaults by the device's memory: tokens of a prefill step, and the largest decode graph."""

    chunked_prefill_size: int
    cuda_graph_max_bs: int
    source: str


@formula("MiB", _RULE)
def activation_mib(tokens: Number, least_tokens: Number, mib_per_token: Number) -> Number:
    """Set aside for activations: a fixed rate per token of a prefill step."""
    return most(tokens, least_tokens) * mib_per_token


@formula("MiB", _RULE)
def ranks_mib(tp: Number, pp: Number, mib_per_8_ranks: Number) -> Number:
    """Set aside for collectives, by how many ranks take part."""
    return tp * pp / 8 * mib_per_8_ranks


@formula("B", "SGLang 0.5.23 mem_cache/kv_cache_configurator.py _profile_available_bytes")
def pool_bytes(
    free_after_weights: Number, pre_load_free: Number, fraction: Number, mm_reserve: Number = 0
) -> Number:
    """What is free once weights are loaded, less the share of what was free before that is not static.

    Bytes, the least over all ranks; never negative: SGLang refuses to start then.
    """
    return most(0, floor(free_after_weights - pre_load_free * (1 - fraction) - mm_reserve))


def mm_reserve_bytes(model: Model, setup: Setup) -> int:
    """Set aside for a multimodal model's embedding cache (SGLang 0.5.20 and later)."""
    return int(rules_of(setup.version)["mm_reserve_bytes"]) if model.tower_parameters else 0


def sizes_of(setup: Setup) -> Sizes:
    """Prefill step and largest decode graph: flags, else by the device's memory."""
    row, source = memory_tier(setup)
    chunk = setup.flags.get("chunked_prefill_size")
    graphs = whole(setup.flags, "cuda_graph_max_bs") or whole(setup.flags, "cuda_graph_max_bs_decode")
    if graphs is None:
        graphs = int(row["graphs_tp4"] if setup.tp >= 4 else row["graphs"])
        asked = whole(setup.flags, "max_running_requests")
        if asked is not None and rules_of(setup.version)["graph_sizes"] == "prefill":
            graphs = min(graphs, asked)
    return Sizes(int(row["chunk"]) if chunk is None else int(chunk), graphs, source)


def mem_fraction_static(
    model: Model,
    setup: Setup,
    leaf: Leaf = bare,
    *,
    device_mib: float | None = None,
    vision: tuple[int, int] | None = None,
) -> Any:
    """The share of the device for weights and cache: `--mem-fraction-static`, else the version's default.

    `device_mib` is what nvidia-smi shows as the device's total; `vision` is the layers and width of a
    vision tower, where there is one. Never below 0: SGLang refuses to start then.
    """
    if setup.flags.get("mem_fraction_static") is not None:
        given = share(setup.flags, "mem_fraction_static", 0.9, 1.0)
        return leaf("mem_fraction_static", given, "", Source(Trust.STATED, "--mem-fraction-static"))
    mib = device_mib or setup.device_mib or (setup.memory_bytes or 0) / MIB
    return not_negative(_default_share(model, setup, leaf, mib, vision)) if mib else None


def not_negative(x: Any) -> Any:
    """The figure itself, or 0 where it would be less."""
    return x if value_of(x) >= 0 else most(0, x)


def _default_share(model: Model, setup: Setup, leaf: Leaf, mib: float, vision: tuple[int, int] | None) -> Any:
    """The version's default share; below 0 where what is kept back is more than the device."""
    rules = memory_rules(setup.version)
    if rules_of(setup.version)["fraction"] == "table":
        value = _by_table(setup, rules, mib)
        where = Source(Trust.ENGINE_RULE, f"SGLang {rules['source']}")
        return leaf("mem_fraction_static", value, "", where)
    if rules_of(setup.version)["fraction"] == "tiers":
        value = round((mib - _by_tier(setup, rules)) / mib, 3) * vision_factor(model, vision)
        return leaf("mem_fraction_static", value, "", Source(Trust.ENGINE_RULE, f"SGLang {rules['source']}"))
    total = leaf("device_mib", mib, "MiB", Source(Trust.STATED, "the device's total memory"))
    left = (total - reserved_mib(model, setup, leaf, mib)) / total
    found = _rounded(left)
    factor = vision_factor(model, vision)
    if factor != 1:
        why = Source(Trust.ENGINE_RULE, f"{_RULE} adjust_mem_fraction_for_vlm")
        found = found * leaf("vision_factor", factor, "", why)
    return named("mem_fraction_static", "", found)


def _rounded(x: Any) -> Any:
    """Rounded to three decimals, as SGLang does; a figure keeps its parts."""
    return floor(x * 1000 + 0.5) / 1000


def _by_tier(setup: Setup, rules: dict[str, Any]) -> float:
    """MiB kept back by the device's memory and the ranks alone (0.4.9 to 0.5.1)."""
    row, _ = memory_tier(setup)
    found = float(row["reserved_gib"] + row["rank_gib"] * setup.tp * setup.pp) * 1024 + _draft_mib(setup)
    dp = attention_ranks(setup) > 1 or setup.flags.get("enable_dp_attention")
    return found + float(rules["dp_attention_mib"]) if dp else found


def _by_table(setup: Setup, rules: dict[str, Any], mib: float) -> float:
    table = store.toml(FACTS)["reserve"]
    ranks = setup.tp * setup.pp
    value = float(rules["fraction"])
    if mib <= 81920:
        value = next(float(share) for least_ranks, share in rules["fractions"] if ranks >= least_ranks)
    if mib > table["large_device_mib"]:
        gained = value + table["large_device_gain_mib"] * (1 - value) / mib
        value = min(gained, (mib - table["large_device_keep_mib"]) / mib)
    return value


def reserved_mib(model: Model, setup: Setup, leaf: Leaf, mib: float) -> Any:
    """MiB kept out of the static share: activations, ranks, graphs, and a floor on larger devices."""
    table, rules, sizes = store.toml(FACTS)["reserve"], rules_of(setup.version), sizes_of(setup)
    where = Source(Trust.ENGINE_RULE, f"SGLang {table['source']}")

    def rule(name: str, unit: str = "MiB") -> Any:
        return leaf(name, table[name], unit, where)

    tokens = sizes.chunked_prefill_size
    tokens = tokens if tokens > 0 else int(whole(setup.flags, "max_prefill_tokens") or 16384)
    chunk = leaf("chunked_prefill_size", tokens, "token", Source(Trust.ENGINE_RULE, sizes.source))
    activations = activation_mib(chunk, rule("least_tokens", "token"), rule("mib_per_token"))
    ranks = ranks_mib(setup.tp, setup.pp, rule("mib_per_8_ranks"))
    graphs = leaf("graphs_mib", graphs_mib(model, setup, sizes), "MiB", where)
    found = rule("constant_mib") + activations + ranks + graphs
    if mib > table["floor_above_mib"]:
        found = most(found, rule("floor_mib"))
    if setup.flags.get("moe_a2a_backend") == "deepep" or setup.flags.get("enable_deepep_moe"):
        found = found + rule("deepep_mib")
    extra = _draft_mib(setup)
    if extra:
        found = found + leaf("draft_mib", extra, "MiB", rules.source("draft_reserve_mib"))
    return named("reserved_mib", "MiB", found)


def _draft_mib(setup: Setup) -> int:
    """Set aside for drafters (before 0.5.14; later ones are measured with the weights)."""
    rules = rules_of(setup.version)
    algorithm = str(setup.flags.get("speculative_algorithm") or "").upper()
    if not algorithm or algorithm == "NGRAM":
        return 0
    return int(rules["standalone_reserve_mib" if algorithm == "STANDALONE" else "draft_reserve_mib"])


def graphs_mib(model: Model, setup: Setup, sizes: Sizes) -> float:
    """Set aside for CUDA graphs: decode sizes, DP attention, and prefill sizes where they are captured."""
    table, rules, flags = store.toml(FACTS)["reserve"], rules_of(setup.version), setup.flags
    largest, dp = sizes.cuda_graph_max_bs, attention_ranks(setup)
    off = bool(flags.get("disable_cuda_graph"))
    found = 0.0
    if not off or rules["graph_sizes"] != "prefill":
        found += largest * table["mib_per_graph"]
    if dp > 1 or flags.get("enable_dp_attention"):
        found += largest * dp * table["mib_per_graph_dp"]
        if largest > table["large_graphs"]:
            found += largest * dp * table["mib_per_graph_dp_large"]
    prefill_off = off or flags.get("disable_piecewise_cuda_graph") or flags.get("disable_prefill_cuda_graph")
    if rules["graph_sizes"] != "prefill" or prefill_off:
        return found
    if is_latent(model):
        return float(found + table["mla_prefill_graphs_mib"])
    return float(found + prefill_graphs(largest_prefill(setup, sizes)) * table["mib_per_prefill_graph"])


def largest_prefill(setup: Setup, sizes: Sizes) -> int:
    """Tokens of the largest captured prefill: a whole step, or the cap on tokens."""
    cap = whole(setup.flags, "max_total_tokens")
    largest = max(sizes.chunked_prefill_size, 0)
    return min(largest, cap) if cap is not None else largest


def prefill_graphs(largest: int) -> int:
    """How many prefill sizes are captured up to `largest` tokens."""
    rows = store.toml(FACTS)["reserve"]["prefill_graphs"]
    ends = [(first, min(last or largest, largest), step) for first, last, step in rows]
    return sum(max(0, (end - first) // step + 1) for first, end, step in ends)


def vision_factor(model: Model, vision: tuple[int, int] | None) -> float:
    """What a vision tower takes off the share: more for one larger than ViT-L/14."""
    if vision is None and not model.tower_parameters:
        return 1.0
    table = store.toml(FACTS)["reserve"]
    layers, hidden = vision or (table["vision_layers"], table["vision_hidden"])
    ratio = layers * hidden**2 / (table["vision_layers"] * table["vision_hidden"] ** 2)
    factor = 1.0 - table["vision_step"] * (ratio - 1.0)
    return float(table["vision_factor"]) * float(
        least(most(factor, table["vision_low"]), table["vision_high"])
    )

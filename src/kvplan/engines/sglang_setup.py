"""An SGLang server as started: flags read, defaults filled in, ranks and pages settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.engines.sglang_rules import FACTS, Rules, defaults, memory_rules, rules_of, version_key
from kvplan.errors import BadInput, NotServed, shown
from kvplan.facts import store
from kvplan.facts.formats import find_format
from kvplan.figure import Source, Trust
from kvplan.model.model import Attention, Model

DRAFTERS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP", "MTP")
OWN_CACHE_DRAFTERS = ("DFLASH", "DSPARK")
MIB = 2**20


@dataclass(slots=True)
class Started:
    """What sizes the pools: ranks, page, stored format, drafts, and the settings that were filled in."""

    setup: Setup
    rules: Rules
    attn_tp: int
    attn_dp: int
    page: int
    format: Mapping[str, Any]
    format_name: str
    context: int | None
    algorithm: str
    draft_tokens: int
    requests: int | None
    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def flag(self, name: str) -> Any:
        """A flag as given, or None."""
        return self.setup.flags.get(name)

    def rule(self, name: str) -> Source:
        """Where a version's rule was read."""
        return self.rules.source(name)

    @property
    def drafts(self) -> bool:
        """Whether a drafter predicts ahead."""
        return bool(self.algorithm)


def started(model: Model, setup: Setup) -> Started:
    """The server that `setup` starts; raises BadInput for flags that contradict each other."""
    flags, rules = setup.flags, rules_of(setup.version)
    _check_served(model, rules)
    attn_dp = attention_ranks(setup)
    if attn_dp > 1 and setup.tp % attn_dp:
        raise BadInput(f"--attention-dp: {attn_dp} does not divide --tp {setup.tp}; use a divisor")
    algorithm = str(
        flags.get("speculative_algorithm") or (setup.drafter or {}).get("algorithm") or ""
    ).upper()
    if not algorithm and setup.drafter:
        algorithm = "EAGLE"
    name, fmt = stored_format(model, setup)
    run = Started(
        setup, rules, setup.tp // attn_dp, attn_dp, 1, fmt, name, None, algorithm, 0, None,
    )  # fmt: skip
    run.settings["kv_cache_dtype"] = (name, format_source(model, setup))
    _drafting(run)
    run.requests = whole(flags, "max_running_requests")
    if run.requests is None and run.drafts:
        run.requests = int(defaults()["draft_requests"])
        run.settings["max_running_requests"] = (run.requests, _default("draft_requests"))
    if run.requests is None and compressed(model) and since(run, "0.5.23"):
        run.requests = int(defaults()["compressed_requests"])
        run.settings["max_running_requests"] = (run.requests, _default("compressed_requests"))
    run.context = whole(flags, "context_length") or model.max_context
    if not flags.get("context_length") and run.context:
        run.settings["context_length"] = (run.context, model.origin("max_context").where)
    run.page = page_size(model, run)
    return run


def _check_served(model: Model, rules: Rules) -> None:
    table = store.toml(FACTS)["serves"]
    states = any(layer.states for layer in model.layers)
    for kind, what, has in (
        ("states", "states", states),
        ("compressed", "compressed slots", compressed(model)),
    ):
        if has and version_key(rules.version) < version_key(table[kind]):
            raise NotServed(
                f"SGLang {rules.version} has no pool for the {what} of {model.model_type}; "
                f"{table[kind]} is the first version that serves it"
            )


def attention_ranks(setup: Setup) -> int:
    """How many groups attention is split into with DP attention; 1 without it."""
    if setup.attention_dp > 1:
        return setup.attention_dp
    given = whole(setup.flags, "attn_dp_size")
    if given:
        return given
    return setup.dp if setup.flags.get("enable_dp_attention") and setup.dp > 1 else 1


def whole(flags: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    """A flag as a whole number of at least `least`; None when it is not given."""
    value = flags.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name}: {shown(value)} cannot be used; give a whole number of at least {least}")
    return value


def share(flags: Mapping[str, Any], name: str, default: float, most: float = 1e6) -> float:
    """A flag as a positive number of at most `most`, else the default."""
    value = flags.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise BadInput(f"{name}: {shown(value)} cannot be used; give a number above 0, at most {most:g}")
    return float(value)


def _default(name: str) -> str:
    return f"SGLang {defaults()['source']}: {name}"


def _drafting(run: Started) -> None:
    if not run.drafts:
        return
    given = whole(run.setup.flags, "speculative_num_draft_tokens")
    steps = whole(run.setup.flags, "speculative_num_steps")
    if given is not None:
        run.draft_tokens = given
        return
    run.draft_tokens = steps + 1 if steps else int(defaults()["draft_tokens"])
    run.settings["speculative_num_draft_tokens"] = (run.draft_tokens, _default("draft_tokens"))


def stored_format(model: Model, setup: Setup) -> tuple[str, Mapping[str, Any]]:
    """The cache's format under SGLang's names, and how its bytes are counted."""
    formats = store.toml(FACTS)["formats"]
    name = setup.kv_cache_dtype.lower()
    if name == "auto":
        name = _auto_format(model, setup)
    if name in ("fp4_e2m1", "nvfp4", "fp4_mx_block16", "fp4"):
        return name, formats["fp4"]
    if name == "mxfp8":
        return name, formats["mxfp8"]
    found = find_format(name, "--kv-cache-dtype").name
    if found not in formats:
        raise BadInput(
            f"--kv-cache-dtype: SGLang has no {name} cache; "
            "use auto, bf16, fp8_e4m3, fp8_e5m2, mxfp8 or nvfp4"
        )
    return name, formats[found]


def _auto_format(model: Model, setup: Setup) -> str:
    if _checkpoint_fp8(model):
        return "fp8_e4m3"
    if sparse_latent(model) and setup.arch in ("sm100", "sm103", "sm120", "sm121"):
        return "fp8_e4m3"
    if compressed(model):
        return "fp8_e4m3"
    return setup.dtype if setup.dtype in ("bfloat16", "float16") else "bfloat16"


def _checkpoint_fp8(model: Model) -> bool:
    """Whether a ModelOpt checkpoint asks for an fp8 cache."""
    q = model.quantization or {}
    inner = q.get("quantization")
    table = inner if isinstance(inner, Mapping) else q
    algo = table.get("kv_cache_quant_algo")
    if isinstance(algo, str) and algo.upper() == "FP8":
        return True
    scheme = q.get("kv_cache_scheme")
    modelopt = str(q.get("quant_method", "modelopt")).startswith("modelopt")
    return (
        modelopt
        and isinstance(scheme, Mapping)
        and scheme.get("type") == "float"
        and scheme.get("num_bits") == 8
    )


def format_source(model: Model, setup: Setup) -> str:
    """Why the cache has its format."""
    if setup.kv_cache_dtype.lower() != "auto":
        return f"--kv-cache-dtype {setup.kv_cache_dtype}"
    if _checkpoint_fp8(model):
        return "SGLang 0.5.23 mem_cache/kv_cache_dtype.py: the checkpoint's kv_cache_quant_algo FP8"
    if sparse_latent(model) or compressed(model):
        return "SGLang 0.5.23 arg_groups/overrides.py _dsa_kv_cache_dtype_default: by device"
    return "SGLang 0.5.23 mem_cache/kv_cache_dtype.py: the model's dtype"


def attentions(model: Model) -> list[Attention]:
    """Every distinct attention of the decoder, in order."""
    return [a for _, layer in model.grouped() for a in layer.attentions]


def is_latent(model: Model) -> bool:
    """Whether the cache holds MLA latents."""
    return any(a.latent is not None for a in attentions(model))


def sparse_latent(model: Model) -> bool:
    """Whether an indexer picks which latents are read (DSA)."""
    return any(a.latent is not None and a.index_width for a in attentions(model))


def compressed(model: Model) -> bool:
    """Whether several tokens share one compressed slot (DeepSeek-V4)."""
    return any(a.kind == "compressed" for a in attentions(model))


def page_size(model: Model, run: Started) -> int:
    """Tokens of a page: given, or what the model and the attention backend ask for."""
    pages = store.toml(FACTS)["pages"]
    given = whole(run.setup.flags, "page_size")
    asked, why = _model_page(model, run, given)
    page = asked or given or int(defaults()["page_size"])
    why = why or ("--page-size" if given else _default("page_size"))
    for name, backend in _backends(model, run):
        table = pages.get(backend)
        if not isinstance(table, Mapping) or "allowed" not in table or not _applies(table, model, run):
            continue
        if page not in table["allowed"]:
            page, why = int(table["forced"]), f"SGLang {pages['source']}: {name} {backend}"
    if given and page != given:
        run.notes.append(f"page size {given} is changed to {page}: {why}")
    if page != given:
        run.settings["page_size"] = (page, why)
    return page


def _model_page(model: Model, run: Started, given: int | None) -> tuple[int, str]:
    table = store.toml(FACTS)["pages"]["models"]
    if compressed(model):
        return int(table["compressed"]), "SGLang 0.5.23 arg_groups/model_overrides/deepseek_v4.py"
    if sparse_latent(model) and run.setup.platform != "cpu":
        stride = max(a.index_stride for a in attentions(model))
        return int(table["sparse_latent"]) * stride, "SGLang 0.5.23 arg_groups/model_overrides/deepseek_v2.py"
    if model.model_type in table and given is None:
        return int(table[model.model_type]), "SGLang 0.5.23 arg_groups/model_overrides"
    return 0, ""


def _backends(model: Model, run: Started) -> list[tuple[str, str]]:
    """Attention backends in use: those of flags, else the default of a Blackwell data-centre device."""
    names = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")
    stated = [(name, str(run.flag(name))) for name in names if run.flag(name)]
    if stated or run.setup.arch not in ("sm100", "sm103") or compressed(model):
        return stated
    if is_latent(model):
        page = run.rules["mla_page_sm100"]
        usual = model.model_type in ("deepseek_v3", "kimi_k2") and not sparse_latent(model)
        return [("default", "trtllm_mla")] if usual and page > 1 else []
    if run.rules["mha_page_sm100"] == 1 or (whole(run.setup.flags, "speculative_eagle_topk") or 1) > 1:
        return []
    if any(layer.states for layer in model.layers) and not _hybrid_pages(model, run):
        return []
    uneven = any(a.value_width != a.key_width for a in attentions(model))
    return [("default", "fa4" if uneven else "trtllm_mha")]


def _hybrid_pages(model: Model, run: Started) -> bool:
    """Whether a hybrid model runs on trtllm_mha: its states are kept so that pages may be larger than 1."""
    types = store.toml(FACTS)["pages"]["hybrid_types"]
    extra = model.model_type in store.toml(FACTS)["states_per_request"]["extra_buffer_types"]
    strategy = run.flag("mamba_radix_cache_strategy")
    buffered = str(strategy).startswith("extra_buffer") if strategy else extra and since(run, "0.5.17")
    return model.model_type in types and bool(buffered or run.flag("disable_radix_cache") or run.drafts)


def _applies(table: Mapping[str, Any], model: Model, run: Started) -> bool:
    if table.get("not_latent") and is_latent(model):
        return False
    return "only" not in table or run.setup.arch in table["only"]


def chunked_prefill_size(run: Started) -> int:
    """Tokens of one prefill step: the flag, else by the device's memory; 0 or less when it is off."""
    value = run.flag("chunked_prefill_size")
    if value is not None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(f"chunked_prefill_size: {shown(value)} cannot be used; give a whole number")
        return value
    row, source = memory_tier(run.setup)
    run.settings["chunked_prefill_size"] = (int(row["chunk"]), source)
    return int(row["chunk"])


def memory_tier(setup: Setup) -> tuple[Mapping[str, Any], str]:
    """The row of defaults for the device's memory, and where it stands."""
    rules = memory_rules(setup.version)
    mib = (setup.memory_bytes or 80 * 2**30) / MIB
    row = next(r for r in rules["tiers"] if mib < r.get("below", float("inf")))
    return row, f"SGLang {rules['source']}, {mib:,.0f} MiB"


def since(run: Started, version: str) -> bool:
    """Whether the version is at least that one."""
    return version_key(run.rules.version) >= version_key(version)


def stated(where: str) -> Source:
    """A source read from the command line."""
    return Source(Trust.STATED, where)

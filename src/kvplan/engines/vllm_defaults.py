"""What vLLM takes when a flag is not given: by version, platform, device and model.

Each setting comes with its source. vLLM engine/arg_utils.py, config/vllm.py, platforms/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.engines.vllm_connector import connector_notes, overrules, turns_hybrid_off
from kvplan.engines.vllm_version import Rules, row_for, table_of
from kvplan.errors import BadInput, shown
from kvplan.model.model import Model

GIVEN = "given"


@dataclass
class Settings:
    """The settings that planning reads, each with where it came from in `sources`."""

    max_model_len: int = 0
    auto_fit: bool = False
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    block_size: int = 0
    prefix_caching: bool = False
    chunked_prefill: bool = True
    async_scheduling: bool = False
    in_flight_tokens: int = 0
    hybrid_manager: bool = False
    state_mode: str = "none"
    state_block_size: int = 0
    state_page_padded: int | None = None
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def fill(self, name: str, value: Any, source: str) -> None:
        """Take a value for a setting and remember why."""
        setattr(self, name, value)
        self.sources[name] = source


def whole_flag(flags: Mapping[str, Any], name: str, at_least: int = 1) -> int | None:
    """A whole number the user gave, or None; BadInput for anything else."""
    value = flags.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        flag = f"--{name.replace('_', '-')}"
        raise BadInput(f"{flag}: {shown(value)}; give a whole number of at least {at_least}")
    return value


def on_flag(flags: Mapping[str, Any], name: str) -> bool | None:
    """A switch the user gave: --name, --no-name, or None."""
    for key, yes in ((name, True), (f"no_{name}", False)):
        if flags.get(key) is not None:
            return bool(flags[key]) is yes
    return None


def settings_of(model: Model, setup: Setup, rules: Rules) -> Settings:
    """Everything but the block size, which needs the specs."""
    s = Settings()
    _length(s, model, setup, rules)
    if setup.platform == "cpu" and has_states(model) and not setup.flags.get("mamba_ssm_cache_dtype"):
        s.notes.append(
            "on a CPU with AVX-512 BF16 vllm keeps recurrent states in float32, which is not assumed"
        )
    latent = is_latent(model, rules)
    _caching(s, model, setup, rules, latent)
    _batch(s, setup, rules, latent)
    _async(s, setup, rules)
    _hybrid(s, model, setup, rules)
    return s


def is_latent(model: Model, rules: Rules) -> bool:
    """Whether vLLM caches latent vectors for this model."""
    if not rules.mla or model.model_type in table_of("model")["latent_as_full"]:
        return False
    attentions = (a for _, layer in model.grouped() for a in layer.attentions)
    return any(a.latent is not None or a.kind == "compressed" for a in attentions)


def is_hybrid(model: Model) -> bool:
    """Whether attention and recurrent states stand beside each other."""
    kinds = [(bool(layer.states), layer.holds_tokens) for _, layer in model.grouped()]
    return any(states for states, _ in kinds) and any(holds for _, holds in kinds)


def has_states(model: Model) -> bool:
    """Whether any layer keeps a recurrent state."""
    return any(layer.states for _, layer in model.grouped())


def _length(s: Settings, model: Model, setup: Setup, rules: Rules) -> None:
    given = setup.flags.get("max_model_len")
    if given in (-1, "auto"):
        if not rules.auto_fit:
            raise BadInput(
                f"--max-model-len: auto came with vllm 0.14.0 and {setup.version} has it not; give a number"
            )
        s.auto_fit, given = True, None
    length = whole_flag({"max_model_len": given}, "max_model_len")
    if length is not None:
        s.fill("max_model_len", length, GIVEN)
    elif model.trained_context and rules.trained_context:
        s.fill("max_model_len", model.trained_context, rules.source("trained_context"))
    elif model.max_context:
        s.fill("max_model_len", model.max_context, model.origin("max_context").where)
    else:
        s.fill("max_model_len", 2048, "vLLM 0.32.0 config/model.py: no length in the config")
    allowed = str(setup.flags.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")) not in ("0", "False")
    if length and model.max_context and length > model.max_context and not allowed:
        s.notes.append(
            f"max_model_len {length:,} is above the config's {model.max_context:,}: vllm refuses it "
            "unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )


def _caching(s: Settings, model: Model, setup: Setup, rules: Rules, latent: bool) -> None:
    flags = setup.flags
    caching = on_flag(flags, "enable_prefix_caching")
    if caching is not None:
        s.fill("prefix_caching", caching, GIVEN)
    elif has_states(model):
        on = rules.states_prefix_caching and is_hybrid(model)
        s.fill("prefix_caching", on, rules.source("states_prefix_caching"))
    else:
        s.fill("prefix_caching", rules.prefix_caching, rules.source("prefix_caching"))
    chunked = on_flag(flags, "enable_chunked_prefill")
    s.fill("chunked_prefill", chunked is not False, GIVEN if chunked is not None else "vLLM V1: on")
    if setup.platform == "cpu" and latent:
        why = "vLLM 0.32.0 platforms/cpu.py: latent attention runs without"
        s.fill("prefix_caching", False, why)
        s.fill("chunked_prefill", False, why)
    _state_mode(s, model, flags, rules)


def compressed(model: Model) -> bool:
    """Whether the model keeps compressed slots (DeepSeek-V4)."""
    return any(a.kind == "compressed" for _, layer in model.grouped() for a in layer.attentions)


def _state_mode(s: Settings, model: Model, flags: Mapping[str, Any], rules: Rules) -> None:
    if not has_states(model) or not s.prefix_caching:
        s.fill("state_mode", "none", "prefix caching is off" if has_states(model) else "no states")
        return
    able = model.model_type in table_of("model")["chunked_states"]
    mode = {"chunked": "chunked" if able else "none", "all": "all" if able else "align"}
    found = mode.get(rules.state_mode, "none" if rules.state_mode == "off" else rules.state_mode)
    given = flags.get("mamba_cache_mode")
    if given in ("all", "align") and rules.state_mode in ("all", "align"):
        s.fill("state_mode", given if able or given == "align" else "align", GIVEN)
    else:
        s.fill("state_mode", found, rules.source("state_mode"))
    if found == "none":
        s.fill("prefix_caching", False, rules.source("state_mode"))


def _batch(s: Settings, setup: Setup, rules: Rules, latent: bool) -> None:
    flags = setup.flags
    tokens, seqs = whole_flag(flags, "max_num_batched_tokens"), whole_flag(flags, "max_num_seqs")
    row = batch_row(setup, rules)
    ranks = setup.tp * setup.pp if row.get("times_ranks") else 1
    context = "llm" if flags.get("usage_context") == "llm" else "server"
    default_seqs = row.get(f"max_num_seqs_{context}", row["max_num_seqs"])
    double = 2 if flags.get("performance_mode") == "throughput" else 1
    s.fill("max_num_seqs", seqs or default_seqs * ranks * double, GIVEN if seqs else row["source"])
    if tokens:
        s.fill("max_num_batched_tokens", tokens, GIVEN)
    else:
        found = row[context] * ranks * double
        if not s.chunked_prefill:
            found = max(found, s.max_model_len)
        s.fill("max_num_batched_tokens", min(found, s.max_num_seqs * s.max_model_len), row["source"])
        if not seqs:
            s.max_num_seqs = min(s.max_num_seqs, s.max_num_batched_tokens)
    if setup.platform == "cpu" and latent and not s.chunked_prefill:
        why = "vLLM 0.32.0 platforms/cpu.py: latent attention prefills whole prompts"
        s.fill("max_num_batched_tokens", max(s.max_model_len, 2048), why)


def batch_row(setup: Setup, rules: Rules) -> dict[str, Any]:
    """The row of scheduler defaults for the device; without a known memory that of a small one."""
    memory = setup.memory_bytes or 0
    rows = [r for r in table_of("batch") if memory >= r["at_least_bytes"]]
    row = row_for(rows, rules.version, platform=setup.platform, arch=setup.arch)
    if row is None:
        raise BadInput(f"--platform: {shown(setup.platform)}; use cuda, rocm, xpu or cpu")
    return row


def _async(s: Settings, setup: Setup, rules: Rules) -> None:
    given = on_flag(setup.flags, "async_scheduling")
    if setup.platform == "cpu":
        s.fill("async_scheduling", False, "vLLM 0.32.0 platforms/cpu.py: not on CPU")
    elif given is not None:
        s.fill("async_scheduling", given, GIVEN)
    else:
        method = (setup.drafter or {}).get("method")
        unsupported = method in ("ngram", "medusa", "mlp_speculator", "suffix", "custom_class")
        runs = setup.pp == 1 or rules.batches_with_async == "pp + 1"
        on = rules.async_default == "on" and not unsupported and runs
        s.fill("async_scheduling", on, rules.source("async_default"))
    batches = setup.pp
    if s.async_scheduling:
        batches = setup.pp + 1 if rules.batches_with_async == "pp + 1" else max(2, setup.pp)
    if rules.in_flight == "one_batch":
        batches = 1
    s.fill("in_flight_tokens", batches * s.max_num_batched_tokens, rules.source("in_flight"))


def _hybrid(s: Settings, model: Model, setup: Setup, rules: Rules) -> None:
    off = on_flag(setup.flags, "disable_hybrid_kv_cache_manager")
    chunked = any(a.kind == "chunked" for _, layer in model.grouped() for a in layer.attentions)
    allowed = setup.flags.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE")
    connector = turns_hybrid_off(setup) if rules.hybrid_manager else None
    s.notes += connector_notes(setup)
    if not rules.hybrid_manager:
        s.fill("hybrid_manager", False, rules.source("hybrid_manager"))
    elif connector and (off is None or overrules(setup.version)):
        s.fill("hybrid_manager", False, connector)
        if len({layer.kinds for _, layer in model.grouped()}) > 1:
            s.notes.append(f"the hybrid manager is off: {connector}")
    elif off is not None:
        s.fill("hybrid_manager", not off, GIVEN)
    elif chunked and not (rules.chunked_hybrid if allowed is None else str(allowed) not in ("0", "False")):
        s.fill("hybrid_manager", False, rules.source("chunked_hybrid"))
    else:
        s.fill("hybrid_manager", True, rules.source("hybrid_manager"))


def block_size_row(setup: Setup, rules: Rules, **where: Any) -> dict[str, Any]:
    """The row of facts that says the block size when none is given, or whatever is given (`forced`)."""
    row = row_for(table_of("block_size"), rules.version, platform=setup.platform, arch=setup.arch, **where)
    if row is None:
        raise BadInput(f"--platform: {shown(setup.platform)}; use cuda, rocm, xpu or cpu")
    return row

"""Recurrent states as vLLM keeps them: shapes and dtypes of one rank, and blocks a request holds.

vLLM 0.32.0 model_executor/layers/mamba/mamba_utils.py and mamba/abstract.py.
"""

from __future__ import annotations

from kvplan.engines.vllm_dtypes import VALUE_BYTES, dtype_named
from kvplan.engines.vllm_specs import MAMBA, Spec, Tensor
from kvplan.engines.vllm_version import Rules, row_for, table_of
from kvplan.errors import BadInput, NotServed
from kvplan.figure import Source, Trust
from kvplan.model.model import Model, State

SERVED = ("mamba1", "mamba2", "gated_delta_net", "kda", "short_conv", "lightning")


def state_dtypes(
    model: Model, state: State, dtype: str, flags: dict[str, str], version: str
) -> tuple[str, str]:
    """The dtypes of the convolution's tail and of the recurrent state."""
    tail = flags.get("mamba_cache_dtype", "auto")
    tail = dtype_named(dtype if tail == "auto" else tail)
    given = flags.get("mamba_ssm_cache_dtype", "auto")
    if state.mixer == "lightning":
        return tail, tail
    if given != "auto":
        return tail, dtype_named(given)
    row = row_for(table_of("state_dtype"), version, mixer=state.mixer, outer_type=model.outer_type)
    if row is None:
        return tail, tail
    named = (model.state_dtype or row.get("otherwise", "")) if row["value"] == "config" else row["value"]
    return tail, dtype_named(named) if named and named != "auto" else tail


def tensors_of(state: State, tp: int, dtypes: tuple[str, str], drafted: int) -> tuple[Tensor, ...]:
    """What one layer's state is on one rank; a drafter of `drafted` tokens widens the tail."""
    if state.mixer not in SERVED:
        raise NotServed(f"MODEL: vllm does not serve models with {state.mixer} layers")
    tail, recurrent = dtypes
    groups = state.groups + (tp - state.groups if state.groups % tp else 0) if state.groups else 0
    channels = state.channels + groups * state.group_channels
    found = []
    if channels and state.columns:
        columns = state.columns + (0 if state.mixer == "mamba1" else drafted)
        found.append(Tensor((columns, _divided(channels, tp)), tail, VALUE_BYTES[tail]))
    if state.values:
        found.append(Tensor((_divided(state.values, tp),), recurrent, VALUE_BYTES[recurrent]))
    return tuple(found)


def _divided(values: int, tp: int) -> int:
    if values % tp:
        raise BadInput(f"--tensor-parallel-size: {tp} does not divide a state of {values} values")
    return values // tp


def request_blocks(state: State, mode: str, drafted: int, rules: Rules) -> int:
    """Blocks of a state that one request holds; 0: one per state block of tokens."""
    if rules.state_blocks == "one":
        return 1
    if rules.state_blocks == "by_length" or mode in ("all", "chunked"):
        return 0
    if mode == "align":
        return 2 + drafted + (state.mixer in rules.checkpoint_mixers)
    return 1 + drafted


def state_spec(
    state: State, tensors: tuple[Tensor, ...], block_size: int, page_padded: int | None, blocks: int
) -> Spec:
    """The spec of one layer's state."""
    page = sum(t.values * t.value_bytes for t in tensors)
    origins = dict(state.origins)
    origins["state"] = _shape_source(state)
    return Spec(
        kind=MAMBA,
        block_size=block_size,
        page_padded=page_padded if page_padded != page else None,
        tensors=tensors,
        request_blocks=blocks,
        role=state.mixer,
        dcp_sharded=False,
        origins=origins,
    )


def _shape_source(state: State) -> Source:
    trust = max((s.trust for s in state.origins.values()), default=Trust.STATED)
    keys = ", ".join(s.where.split(" ")[-1] for s in state.origins.values())
    return Source(trust, f"{state.mixer} from {keys or 'hidden_size'}: vLLM 0.32.0 mamba_utils.py")

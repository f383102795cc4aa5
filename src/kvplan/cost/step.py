"""One step of an engine as counted work: floating-point operations and bytes of every operation.

Everything here holds for numbers, figures and numpy arrays alike, so that one function answers one
case, explains itself, or sweeps a million. Least counts (what no engine can leave out) and expected
ones (experts spread evenly, activations moved) stand side by side; the floor uses the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost import pairs
from kvplan.cost.operations import Attend, Exchange, Experts, Matmul, Operations, Pointwise, Recur
from kvplan.cost.work import distinct_experts
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, most, named

ACTIVATION_BYTES = 2
_NARROW = ("fp8", "fp4", "int8")  # activations are quantised in a pass of their own


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of one replica carries.

    `decoding` sequences, `positions` new tokens of each (1, or 1 + drafts to verify) over `context`
    tokens; `prompts` chunks of `chunk` tokens over `depth` cached ones, `finishing` of which end their
    prompt (only those need logits).
    """

    decoding: Any = 0
    context: Any = 0
    positions: Any = 1
    prompts: Any = 0
    chunk: Any = 0
    depth: Any = 0
    finishing: Any | None = None

    @property
    def tokens(self) -> Any:
        """New tokens that pass the layers."""
        return self.decoding * self.positions + self.prompts * self.chunk

    @property
    def sequences(self) -> Any:
        """Rows that pass the output head."""
        ending = self.prompts if self.finishing is None else self.finishing
        return self.decoding * self.positions + ending

    def floating(self) -> Step:
        """The same step with arrays of whole numbers as floats: products of counts pass 2⁶³."""
        held = ((name, getattr(self, name)) for name in self.__slots__)
        whole = {name: x.astype(float) for name, x in held if hasattr(x, "dtype") and x.dtype.kind in "iu"}
        return replace(self, **whole) if whole else self


@dataclass(slots=True)  # not frozen: a case makes hundreds, and freezing doubles what one costs
class Item:
    """One operation of a step on one rank; amounts are those of a single layer.

    `kind` and `format` choose its kernel, `compute` its peak. `pad_flops` are what one more
    unit of padding adds; `depth` the steps of the reduction that one tile walks; `moved` the values
    that a pass of its own reads and writes; `tiles` the heads of sequences attended
    apart; `rows` those of a product, or of each expert's. `least_flops` and `least_bytes` are what the
    floor counts, `expected_bytes` the same where experts are spread evenly.
    """

    name: str
    kind: str
    format: str
    compute: str
    layers: int
    flops: Any = 0
    bytes: Any = 0
    least_flops: Any = 0
    least_bytes: Any = 0
    expected_bytes: Any | None = None
    pad_flops: Any = 0
    depth: Any = 0
    moved: Any = 0
    tiles: Any = 0
    rows: Any = 0
    ranks: int = 1

    @property
    def expected(self) -> Any:
        """Bytes of weights and cache that a step is expected to read or write."""
        return self.least_bytes if self.expected_bytes is None else self.expected_bytes


_SHAPE = Source(Trust.STATED, "the model's shapes, split over ranks (cost/operations.py)")


@formula("FLOP")
def product_flops(outputs: Number, inputs: Number, rows: Number) -> Number:
    """Every weight is multiplied and added once for each row."""
    return 2 * outputs * inputs * rows


@formula("B")
def product_bytes(weight_bytes: Number, rows: Number, outputs: Number, inputs: Number) -> Number:
    """The matrix once, every row read and written in 16 bit."""
    return weight_bytes + ACTIVATION_BYTES * rows * (outputs + inputs)


@formula("FLOP")
def scored_flops(heads: Number, widths: Number, counted: Number) -> Number:
    """Scores and weighted values: two operations per value of key and of value, per head and pair."""
    return 2 * heads * widths * counted


@formula("token")
def share(amount: Number, groups: Number) -> Number:
    """What one of `groups` attention groups has of it, evenly dealt."""
    return amount / groups


@formula("expert", "expectation under uniform routing; skewed routing touches fewer")
def touched_experts(experts: Number, per_token: Number, tokens: Number, ep: Number) -> Number:
    """How many of the experts on one rank a step's tokens reach."""
    return distinct_experts(experts, per_token, tokens) / ep


def _given(leaf: Leaf, owner: str, what: str, value: float, unit: str) -> Any:
    """An operation's own shape as an input; its name is made only where it is read."""
    return value if leaf is bare else leaf(f"{owner}_{what}", value, unit, _SHAPE)


def items_of(ops: Operations, step: Step, leaf: Leaf = bare) -> list[Item]:
    """Every operation of that step, in the order of the layers; one layer's amounts."""
    step = step.floating()
    found = [_matmul(m, ops, step, leaf) for m in ops.matmuls]
    found += [_experts(e, step, leaf) for e in ops.experts]
    for a in ops.attends:
        found += _attends(a, ops, step, leaf)
    found += [_recur(r, ops, step, leaf) for r in ops.recurs]
    found += [_pointwise(p, step, leaf) for p in ops.pointwise]
    return found + [_exchange(e, ops, step, leaf) for e in ops.exchanges]


def _matmul(m: Matmul, ops: Operations, step: Step, leaf: Leaf) -> Item:
    rows = step.sequences if m.rows_of == "sequences" else step.tokens
    if m.rows_of == "group" and ops.ranks.attention_dp > 1:
        rows = share(rows, ops.ranks.attention_dp)
    outputs: Any = m.outputs
    inputs: Any = m.inputs
    weight: Any = m.weight_bytes
    if leaf is not bare:
        outputs = _given(leaf, m.name, "outputs", m.outputs, "value")
        inputs = _given(leaf, m.name, "inputs", m.inputs, "value")
        weight = _given(leaf, m.name, "bytes", m.weight_bytes, "B")
    flops = named(f"{m.name}_flops", "FLOP", product_flops(outputs, inputs, rows))
    return Item(
        m.name,
        "matmul",
        m.format,
        m.compute,
        m.layers,
        flops=flops,
        bytes=product_bytes(weight, rows, outputs, inputs),
        least_flops=flops,
        least_bytes=weight,
        depth=m.inputs,
        moved=rows * m.inputs if m.compute in _NARROW else 0,
        rows=rows,
    )


def _experts(e: Experts, step: Step, leaf: Leaf) -> Item:
    tokens = step.tokens
    parameters = leaf("expert_parameters", e.parameters, "value", _SHAPE)
    weight = leaf("expert_bytes", e.weight_bytes, "B", _SHAPE)
    per_token = leaf("experts_per_token", e.per_token, "expert", _SHAPE)
    experts = leaf("experts", e.experts, "expert", _SHAPE)
    ep = leaf("ep", e.ep, "rank", _SHAPE) if e.ep > 1 else 1
    touched = touched_experts(experts, per_token, tokens, ep)
    rows = named("expert_rows", "row", tokens * per_token / ep)
    flops = named("expert_flops", "FLOP", 2 * parameters * rows)
    return Item(
        e.name,
        "experts",
        e.format,
        e.compute,
        e.layers,
        flops=flops,
        bytes=touched * weight + ACTIVATION_BYTES * rows * (2 * e.hidden + e.parameters / e.hidden),
        least_flops=flops,
        least_bytes=weight * per_token / ep,
        expected_bytes=touched * weight,
        pad_flops=2 * e.parameters * touched,
        moved=tokens * e.per_token * e.hidden,
        rows=rows / most(1, touched),
    )


def _attends(a: Attend, ops: Operations, step: Step, leaf: Leaf) -> list[Item]:
    dp, found = ops.ranks.attention_dp, []
    if is_some(step.decoding):
        found.append(_decoding(a, step, share(step.decoding, dp) if dp > 1 else step.decoding, leaf))
    if is_some(step.prompts):
        found.append(_prompting(a, step, share(step.prompts, dp) if dp > 1 else step.prompts, leaf))
    return found


def is_some(x: Any) -> bool:
    """Whether there is any of it: an array may hold some."""
    return bool(getattr(x, "shape", None)) or bool(x)


def _decoding(a: Attend, step: Step, sequences: Any, leaf: Leaf) -> Item:
    at, latent = a.attention, a.attention.latent
    read = pairs.read_slots(at, a.name, step.context, leaf)
    each = at.key_width + (at.value_width or at.key_width)
    each = 2 * latent.kv_rank + latent.rope_width if latent else each
    heads = _given(leaf, a.name, "heads", a.query_heads, "head")
    widths = _given(leaf, a.name, "widths", each, "value")
    slot = _given(leaf, a.name, "slot_bytes", a.slot_bytes, "B")
    queries = sequences * step.positions
    flops = queries * scored_flops(heads, widths, read)
    cache = sequences * read * slot
    held = cache if a.least_slot_bytes == a.slot_bytes else sequences * read * a.least_slot_bytes
    if at.index_width:
        scored = pairs.scored_slots(at, a.name, step.context, leaf)
        flops = flops + queries * 2 * (at.index_heads or 1) * at.index_width * scored
        cache = cache + sequences * scored * a.index_bytes
        held = held + sequences * scored * a.least_index_bytes
    name = f"{a.name}_attention_decode"
    flops = named(f"{name}_flops", "FLOP", flops)
    return Item(
        name,
        "mla_decode" if latent else "attention_decode",
        a.format,
        a.compute,
        a.layers,
        flops=flops,
        bytes=cache + queries * ACTIVATION_BYTES * a.query_heads * each,
        least_flops=flops,
        least_bytes=named(f"{name}_bytes", "B", held),
        depth=read,
        tiles=sequences * (1 if latent else a.kv_heads),
    )


def _prompting(a: Attend, step: Step, prompts: Any, leaf: Leaf) -> Item:
    at, latent = a.attention, a.attention.latent
    end = step.depth + step.chunk
    counted = pairs.prompt_pairs(at, a.name, end, leaf) - pairs.prompt_pairs(at, a.name, step.depth, leaf)
    each = at.key_width + (at.value_width or at.key_width)
    each = latent.nope_width + latent.rope_width + latent.value_width if latent else each
    heads = _given(leaf, a.name, "heads", a.query_heads, "head")
    widths = _given(leaf, a.name, "prefill_widths", each, "value")
    flops = prompts * scored_flops(heads, widths, counted)
    kept = pairs.kept_slots(at, a.name, end, bare)
    if at.index_width:
        scored = pairs.scored_pairs(at, a.name, end, leaf) - pairs.scored_pairs(at, a.name, step.depth, leaf)
        flops = flops + prompts * 2 * (at.index_heads or 1) * at.index_width * scored
    name = f"{a.name}_attention_prefill"
    flops = named(f"{name}_flops", "FLOP", flops)
    left = prompts * kept * a.least_slot_bytes
    if at.index_width:
        left = left + prompts * pairs.index_slots(at, a.name, end, bare) * a.least_index_bytes
    return Item(
        name,
        "mla_prefill" if latent else "attention_prefill",
        a.format,
        a.compute,
        a.layers,
        flops=flops,
        bytes=prompts * (kept * a.slot_bytes + ACTIVATION_BYTES * step.chunk * a.query_heads * each),
        least_flops=flops,
        least_bytes=named(f"{name}_bytes", "B", left),
        pad_flops=prompts * 4 * a.query_heads * counted,
        depth=kept,
    )


def _recur(r: Recur, ops: Operations, step: Step, leaf: Leaf) -> Item:
    sequences = (step.decoding + step.prompts) / ops.ranks.attention_dp
    values = _given(leaf, r.name, "values", r.values, "value")
    moved = named(f"{r.name}_bytes", "B", 2 * sequences * values * r.value_bytes)
    rows = step.tokens / ops.ranks.attention_dp
    return Item(
        r.name,
        "state_decode",
        "gdn",
        "bf16",
        r.layers,
        flops=4 * rows * values,
        bytes=moved,
        least_bytes=moved,
    )


def _pointwise(p: Pointwise, step: Step, leaf: Leaf) -> Item:
    each = leaf("pointwise_token_bytes", p.token_bytes, "B/token", _SHAPE)
    return Item(p.name, "pointwise", "bfloat16", "bf16", p.layers, bytes=each * step.tokens)


def _exchange(e: Exchange, ops: Operations, step: Step, leaf: Leaf) -> Item:
    tokens = step.tokens
    if e.name == "attention_all_reduce" and ops.ranks.attention_dp > 1:
        tokens = share(tokens, ops.ranks.attention_dp)
    each = _given(leaf, e.name, "token_bytes", e.token_bytes, "B/token")
    return Item(e.name, e.kind, "bfloat16", "bf16", e.layers, bytes=tokens * each, ranks=e.ranks)

"""What kvplan knows of a model: layers, what each holds for a sequence, and its weights.

Shapes are of the whole model; splitting over ranks is arithmetic, done in `cost/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplan.figure import Source, Trust
from kvplan.model.tensors import TensorList

Origins = Mapping[str, Source]
UNKNOWN = Source(Trust.STATED, "nothing of this kind in the config")


@dataclass(frozen=True, slots=True)
class Weight:
    """One matrix (or vector, `inputs` 1), its copies and how engines treat it.

    `part` says what it belongs to (attention, feed_forward, expert, shared_expert, router, state,
    indexer, embedding, head, norm, position, other); `split` how tensor parallelism divides it
    (column, row, kv, expert, vocab, none); `active` is how many copies one token uses.
    """

    name: str
    part: str
    outputs: int
    inputs: int = 1
    bias: bool = False
    copies: int = 1
    active: int | None = None
    split: str = "none"

    @property
    def parameters(self) -> int:
        """Stored values, all copies."""
        return self.copies * self.one

    @property
    def active_parameters(self) -> int:
        """Values that one token uses."""
        return (self.copies if self.active is None else self.active) * self.one

    @property
    def one(self) -> int:
        """Values of one copy."""
        return self.outputs * (self.inputs + self.bias)


@dataclass(frozen=True, slots=True)
class Latent:
    """The compressed attention of MLA: ranks and widths, in values."""

    kv_rank: int
    rope_width: int
    nope_width: int
    value_width: int
    q_rank: int | None


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of one layer and what it keeps per token.

    kind: full, sliding, chunked, latent, compressed, cross, encoder. `window` (tokens) bounds what
    sliding and chunked attention keep. `stride`: one slot per so many tokens (compressed). `holds`
    is False where the layer reads another layer's cache. `index_width` values of index key are
    kept once per `index_stride` tokens for sparse attention; a query then reads at most `attended`
    tokens (slots, when compressed), in blocks of `attended_block`.
    """

    kind: str
    query_heads: int
    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    stride: int = 1
    holds: bool = True
    index_width: int = 0
    index_heads: int = 0
    index_stride: int = 1
    attended: int | None = None
    attended_block: int = 1
    latent: Latent | None = None
    origins: Origins = field(default_factory=dict, compare=False)

    @property
    def surely_attended(self) -> int | None:
        """What a query reads at least once there is a choice: its last block may hold one token."""
        return None if self.attended is None else self.attended - self.attended_block + 1

    def origin(self, quantity: str) -> Source:
        """Where a quantity of this attention was read."""
        return self.origins.get(quantity, UNKNOWN)


@dataclass(frozen=True, slots=True)
class State:
    """Memory that does not grow with tokens: a recurrent state and its convolution's tail.

    The tail is `columns` times (`channels` + `groups` × `group_channels`) values of 16 bits; the
    state `values` values of float32. `heads` is what tensor parallelism divides.
    """

    kind: str  # recurrent | convolution
    mixer: str
    channels: int
    columns: int
    values: int
    heads: int
    groups: int = 0
    group_channels: int = 0
    origins: Origins = field(default_factory=dict, compare=False)

    def origin(self, quantity: str) -> Source:
        """Where a quantity of this state was read."""
        return self.origins.get(quantity, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: what it keeps for a sequence, and its weights."""

    attentions: tuple[Attention, ...] = ()
    states: tuple[State, ...] = ()
    weights: tuple[Weight, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the layer is, in the words of the contract's `layer_kinds`."""
        kinds = tuple(a.kind if a.holds else "shared" for a in self.attentions)
        return (*kinds, *(s.kind for s in self.states)) or ("none",)

    @property
    def holds_tokens(self) -> bool:
        """Whether it keeps keys and values of its own for the text's tokens."""
        return any(a.holds and a.kind not in ("cross", "encoder") for a in self.attentions)


@dataclass(frozen=True, slots=True)
class Model:
    """A model's text decoder, read from a config, a GGUF file or a folder.

    `tower_values`: values of one patch alive at once in the vision tower's widest layer, None without one.
    `tower_parameters` and `mtp_parameters` stand beside the decoder (None: not known); `tensors` is
    what the weight files' headers list, where there are any. `stated_window` is the window that the
    config states whatever its layers do (`window_off`: and switches off); `rotary` whether a table of
    sines gives positions to attention; `state_dtype` and
    `state_chunk` what it states of recurrent states; `trained_context` the length before LongRoPE
    stretched it; `outer_type` the config's own model type, which may wrap the decoder's. `alike` has the
    distinct layers, each with how many there are.
    """

    id: str
    model_type: str
    file: str
    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    hidden: int
    vocab: int
    max_context: int | None
    dtype: str
    quantization: Mapping[str, object] | None
    other_parameters: int | None
    origins: Origins = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = ()
    confidence: str = ""
    mtp_layers: int = 0
    tower_parameters: int | None = None
    tower_values: int | None = None
    mtp_parameters: int | None = None
    tensors: TensorList | None = field(default=None, compare=False)
    stated_window: int | None = None
    window_off: bool = False
    rotary: bool = True
    state_dtype: str = ""
    state_chunk: int | None = None
    trained_context: int | None = None
    outer_type: str = ""
    alike: tuple[tuple[int, Layer], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        counts = Counter(map(id, self.layers))  # the reader builds each distinct layer once
        alike = tuple((counts[key], layer) for key, layer in {id(x): x for x in self.layers}.items())
        object.__setattr__(self, "alike", alike)

    def origin(self, quantity: str) -> Source:
        """Where a quantity of the whole model was read."""
        return self.origins.get(quantity, UNKNOWN)

    def grouped(self) -> list[tuple[int, Layer]]:
        """Distinct layers in order of appearance, each with how many there are."""
        return list(self.alike)

    @property
    def parameters(self) -> int:
        """Every value of the text decoder, tied embeddings once."""
        per_layer = sum(n * w.parameters for n, layer in self.grouped() for w in layer.weights)
        return per_layer + sum(w.parameters for w in self.weights)

    @property
    def active_parameters(self) -> int:
        """The values one token uses: experts per token instead of all experts."""
        per_layer = sum(n * w.active_parameters for n, layer in self.grouped() for w in layer.weights)
        return per_layer + sum(w.active_parameters for w in self.weights)

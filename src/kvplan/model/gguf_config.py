"""From a GGUF file's metadata to the config that `kvplan.model.read.read_config` understands.

Layers, heads and windows are those that llama.cpp gives the model (src/llama-model.cpp load_hparams and
src/models/*.cpp at 0c1e57098): a file's geometry is what it states, nothing is filled in from a class's
defaults. Which keys an architecture has is data: facts/gguf_archs.toml.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from kvplan.errors import BadConfig, BadInput, shown
from kvplan.facts import store
from kvplan.model.tensors import Skipped, TensorList

MAX_LAYERS = 4096
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_WORDS = {
    "full": "full_attention",
    "sliding": "sliding_attention",
    "chunked": "chunked_attention",
    "linear": "linear_attention",
}

Entry = dict[str, Any]


def config_of(found: TensorList) -> dict[str, Any]:
    """The config of a GGUF file's language model, under the keys the same model has on the Hub.

    Raises BadInput for a file without a language model, BadConfig for metadata that cannot be used.
    """
    metadata = Metadata(found.metadata, found.files[0] if found.files else "the file")
    entry = entry_of(metadata)
    config: dict[str, Any] = {}
    for key, spelling in {**store.toml("gguf_archs.toml")["keys"], **entry.get("keys", {})}.items():
        _put(config, key, metadata.reckon(spelling))
    layers = _layers(config, metadata)
    _heads(config, metadata, layers)
    blocks = _blocks(found)
    words = _layer_words(config, metadata, entry, layers, blocks)
    _name(config, metadata, entry, words)
    if entry.get("latent"):
        _latent(config, metadata)
    _rest(config, metadata, entry, layers, blocks)
    if entry.get("values_from_keys"):
        _values_from_keys(config, words, blocks)
    _flags(config, found, blocks)
    config |= entry.get("set", {})
    return config


def entry_of(metadata: Metadata) -> Entry:
    """What is known of the file's architecture; BadInput where it holds no language model."""
    table = store.toml("gguf_archs.toml")
    why = table["refused"].get(metadata.arch)
    kind = metadata.values.get("general.type", "model")
    if why is None and kind in ("adapter", "mmproj", "imatrix"):
        why = f"of the type {kind}; give the model's own file"
    if why is None and metadata.arch not in table["arch"] and metadata.recurrent_keys():
        why = "not known here, and it keeps a state; give the model's config.json"
    if why is not None:
        raise BadInput(f"general.architecture: {shown(metadata.arch)} in {metadata.file} is {why}")
    return _entry(metadata.arch)


def spellings_of(metadata: Metadata) -> dict[str, str]:
    """The GGUF keys that a config's keys were made from, with the architecture before them."""
    table = store.toml("gguf_archs.toml")
    keys = table["keys"] | table["computed"] | _entry(metadata.arch).get("keys", {})
    if metadata.get("attention.key_length") is None:
        keys |= {"head_dim": "embedding_length ÷ attention.head_count"}
    return {key: f"{metadata.arch}.{spelling}" for key, spelling in keys.items()}


@functools.cache
def _entry(arch: str) -> Entry:
    entry: Entry = store.toml("gguf_archs.toml")["arch"].get(arch, {"model_type": arch, "window": None})
    if "like" in entry:
        entry = {**_entry(entry["like"]), **entry}
    return entry


class Metadata:
    """A GGUF file's key-value pairs, read under the architecture's prefix and checked."""

    def __init__(self, values: Mapping[str, object], file: str) -> None:
        self.values = values
        self.file = file
        arch = values.get("general.architecture")
        if not isinstance(arch, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", arch):
            raise BadConfig(f"general.architecture: {shown(arch)} in {file}; expected a name; is it a model?")
        self.arch = arch

    def recurrent_keys(self) -> bool:
        """Whether the file states anything of a state or of latent attention."""
        marks = ("ssm.", "kda.", "wkv.", "shortconv.", "attention.kv_lora_rank", "attention.recurrent_layers")
        return any(key.removeprefix(f"{self.arch}.").startswith(marks) for key in self.values)

    def get(self, key: str) -> object:
        """The value under ARCHITECTURE.key, or None."""
        return self.values.get(f"{self.arch}.{key}")

    def wrong(self, key: str, value: object, expected: str) -> BadConfig:
        """The error for a value that cannot be used."""
        return BadConfig(f"{self.arch}.{key}: {shown(value)} in {self.file}; {expected}; is it damaged?")

    def number(self, key: str) -> int | None:
        """A whole number, or None when the file has none; a list is no number."""
        value = self.get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < 2**48:
            raise self.wrong(key, value, "expected a whole number")
        return value

    def need(self, key: str) -> int:
        """As `number`, but absence is an error."""
        found = self.number(key)
        if found is None:
            raise BadConfig(f"{self.arch}.{key}: missing in {self.file}; is it a language model's file?")
        return found

    def numbers(self, key: str) -> int | list[int] | None:
        """A whole number or one for each layer; a list of equal ones is one number."""
        value = self.get(key)
        if not isinstance(value, list):
            return self.number(key)
        if not value or any(type(v) not in (int, bool) or not 0 <= v < 2**48 for v in value):
            raise self.wrong(key, value, "expected whole numbers")
        whole = [int(v) for v in value]
        return whole[0] if len(set(whole)) == 1 else whole

    def reckon(self, spelling: str) -> int | list[int] | None:
        """The number a spelling stands for: a key, one of several (`a, b`), or a quotient (`a / b`)."""
        if "," in spelling:
            return next((n for k in spelling.split(", ") if (n := self.numbers(k)) is not None), None)
        if " / " not in spelling:
            return self.numbers(spelling)
        above, below = spelling.split(" / ")
        value, divisor = self.number(above), self.number(below)
        if value is None or divisor is None:
            return None
        if not divisor or value % divisor:
            raise self.wrong(above, value, f"expected a multiple of {below}, which is {divisor}")
        return value // divisor


def _put(config: dict[str, Any], key: str, value: object) -> None:
    outer, _, inner = key.rpartition(".")
    (config.setdefault(outer, {}) if outer else config)[inner] = value


def _layers(config: dict[str, Any], metadata: Metadata) -> int:
    """Decoder layers: llama.cpp counts next-token-prediction layers among the blocks."""
    blocks, following = metadata.need("block_count"), metadata.number("nextn_predict_layers") or 0
    if not following < blocks <= MAX_LAYERS:
        raise metadata.wrong("block_count", blocks, f"expected {following + 1} to {MAX_LAYERS}")
    config["num_hidden_layers"] = blocks - following
    config["num_nextn_predict_layers"] = following
    return blocks - following


def _heads(config: dict[str, Any], metadata: Metadata, layers: int) -> None:
    """Heads and their widths; absent widths are embedding_length ÷ heads, as llama.cpp has it."""
    heads = _filled(metadata, "attention.head_count", layers)
    if heads is None:
        return
    kv_heads = _filled(metadata, "attention.head_count_kv", layers)
    config["num_attention_heads"] = heads
    config["num_key_value_heads"] = heads if kv_heads is None else kv_heads
    first = heads[0] if isinstance(heads, list) else heads
    even = metadata.need("embedding_length") // first
    width = metadata.number("attention.key_length") or even
    value_width = metadata.number("attention.value_length") or even
    config["head_dim"] = metadata.number("attention.key_length_swa") or width
    config["global_head_dim"] = width  # Gemma 4: of the layers without a window
    if value_width != width:
        config["v_head_dim"] = value_width


def _filled(metadata: Metadata, key: str, layers: int) -> int | list[int] | None:
    """Heads of each layer, or one number; a layer without attention has the most that another has."""
    stated, raw = metadata.numbers(key), metadata.get(key)
    if isinstance(raw, list) and len(raw) < layers:
        raise metadata.wrong(key, f"{len(raw)} entries", f"one for each of {layers} layers is needed")
    if not isinstance(stated, list):
        return stated or None
    filled = [value or max(stated) for value in stated[:layers]]
    return filled if len(set(filled)) > 1 else filled[0] or None


def _blocks(found: TensorList) -> dict[int, set[str]]:
    """The tensors of each block, by their names within it."""
    blocks: dict[int, set[str]] = {}
    for tensor in found.tensors:
        match = _BLOCK.fullmatch(tensor.name)
        if match:
            blocks.setdefault(int(match.group(1)), set()).add(match.group(2))
    return blocks


def _layer_words(
    config: dict[str, Any], metadata: Metadata, entry: Entry, layers: int, blocks: dict[int, set[str]]
) -> list[str]:
    """What each layer is, in kvplan's words; stated under the key that the model type reads."""
    words = _windows(config, metadata, entry, layers)
    for i, recurrent in enumerate(_recurrent(metadata, entry, layers)):
        words[i] = "linear" if recurrent else words[i]
    if entry.get("block_configs"):
        config["block_configs"] = _block_configs(metadata, layers)
    if entry.get("one_part"):
        words = _one_part(config, metadata, words, blocks)
    key = entry.get("layers_key", "layer_types")
    if key:
        names = _WORDS | entry.get("words", {})
        config[key] = [names[word] for word in words]
    return words


def _recurrent(metadata: Metadata, entry: Entry, layers: int) -> list[bool]:
    """Which layers keep a state and no keys or values."""
    rule = entry.get("recurrent")
    if rule == "kv_zero":
        stated = metadata.numbers("attention.head_count_kv")
        listed = stated if isinstance(stated, list) else [stated or 0] * layers
        return [listed[i] == 0 for i in range(layers)]
    if rule == "interval":
        listed_layers = metadata.get("attention.recurrent_layers")
        if isinstance(listed_layers, list):
            return _yes_or_no(metadata, "attention.recurrent_layers", listed_layers, layers)
        interval = metadata.number("full_attention_interval") or int(entry["interval"])
        return [(i + 1) % interval != 0 for i in range(layers)]
    return [False] * layers


def _yes_or_no(metadata: Metadata, key: str, listed: list[Any], layers: int) -> list[bool]:
    if len(listed) < layers or any(type(v) not in (int, bool) for v in listed):
        raise metadata.wrong(key, listed, f"expected true or false for each of {layers} layers")
    return [bool(v) for v in listed[:layers]]


def _windows(config: dict[str, Any], metadata: Metadata, entry: Entry, layers: int) -> list[str]:
    """Which layers slide, and the window in tokens; null where llama.cpp gives the model none."""
    stated = metadata.number("attention.sliding_window")
    pattern = metadata.get("attention.sliding_window_pattern")
    window = entry.get("window", {"off": True})
    if window is None:  # not known: only a file that says which layers slide is believed
        window = {"pattern": 0} if isinstance(pattern, list) else {"off": True}
    size = stated if stated is not None else window.get("default", window.get("size"))
    off = window.get("off") or layers != window.get("only_layers", layers)
    kind = str(window.get("kind", "sliding"))
    config["attention_chunk_size" if kind == "chunked" else "sliding_window"] = None
    if not size or off:
        return ["full"] * layers
    config["attention_chunk_size" if kind == "chunked" else "sliding_window"] = window.get("size", size)
    if isinstance(pattern, list):
        slides = _yes_or_no(metadata, "attention.sliding_window_pattern", pattern, layers)
    else:
        period = metadata.number("attention.sliding_window_pattern")
        period = int(window["pattern"]) if period is None else period
        at = 0 if window.get("dense_first") else period - 1
        slides = [period == 0 or i % period != at for i in range(layers)]
    return [kind if slide else "full" for slide in slides]


def _one_part(
    config: dict[str, Any], metadata: Metadata, words: list[str], blocks: dict[int, set[str]]
) -> list[str]:
    """Nemotron-H: a layer with a feed-forward width is that and nothing else, with or without experts."""
    widths = metadata.numbers("feed_forward_length")
    listed = widths if isinstance(widths, list) else [widths or 0] * len(words)
    if len(listed) < len(words):
        raise metadata.wrong("feed_forward_length", f"{len(listed)} entries", f"{len(words)} are needed")
    experts = bool(metadata.number("expert_count"))
    found = []
    for i, word in enumerate(words):
        sparse = "ffn_gate_inp.weight" in blocks[i] if i in blocks else experts
        found.append(("sparse" if sparse else "dense") if listed[i] else word)
    config["intermediate_size"] = max(listed)
    return found


def _block_configs(metadata: Metadata, layers: int) -> list[dict[str, Any]]:
    """Llama-Nemotron: each layer's query heads per KV head and feed-forward width, either may be absent."""
    hidden = metadata.need("embedding_length")
    if not hidden:
        raise metadata.wrong("embedding_length", hidden, "expected the width of the model")
    columns = []
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        stated = metadata.numbers(key)
        column = stated if isinstance(stated, list) else [stated or 0] * layers
        if len(column) < layers:
            raise metadata.wrong(key, f"{len(column)} entries", f"one for each of {layers} layers is needed")
        columns.append(column)
    blocks = []
    for heads, kv_heads, width in zip(*columns, strict=False):
        attention: dict[str, Any] = {"n_heads_in_group": heads // kv_heads} if kv_heads else {"no_op": True}
        if heads and not kv_heads:
            attention = {"replace_with_linear": True}
        wide: dict[str, Any] = {"ffn_mult": width * 3 / (2 * hidden)} if width else {"no_op": True}
        blocks.append({"attention": attention, "ffn": wide})
    return blocks[:layers]


def _name(config: dict[str, Any], metadata: Metadata, entry: Entry, words: list[str]) -> None:
    """The model type: another one where the file has experts, or windows."""
    name = entry["model_type"]
    if metadata.number("expert_count"):
        name = entry.get("expert_type", name)
    if "sliding" in words:
        name = entry.get("window_type", name)
    config["model_type"] = name
    config["num_experts"] = config["num_experts"] or 0


def _latent(config: dict[str, Any], metadata: Metadata) -> None:
    """Compressed attention. A file without the *_mla widths is of the older kind, whose keys and values
    llama.cpp keeps in full for every head."""
    key_width = metadata.number("attention.key_length_mla")
    value_width = metadata.number("attention.value_length_mla")
    config["use_mla"] = bool(key_width and value_width)
    config["kv_lora_rank"] = metadata.need("attention.kv_lora_rank")
    config["q_lora_rank"] = metadata.number("attention.q_lora_rank")
    rope = metadata.number("rope.dimension_count") or 0
    key_width = key_width or int(config["head_dim"])
    if rope > key_width:
        raise metadata.wrong("rope.dimension_count", rope, f"expected at most the key's width, {key_width}")
    config["qk_rope_head_dim"], config["qk_nope_head_dim"] = rope, key_width - rope
    config["v_head_dim"] = value_width or config.get("v_head_dim", config["head_dim"])


def _rest(
    config: dict[str, Any], metadata: Metadata, entry: Entry, layers: int, blocks: dict[int, set[str]]
) -> None:
    """Vocabulary, which layers have experts or indexers, and which hold no cache of their own."""
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    counted = (
        tokens.length if isinstance(tokens, Skipped) else len(tokens) if isinstance(tokens, list) else None
    )
    config["vocab_size"] = metadata.number("vocab_size") or counted
    if "holds" in entry:
        config["num_kv_shared_layers"] = max(0, layers - int(entry["holds"]))
    if entry.get("indexers"):
        types = metadata.get("attention.indexer.types")
        if isinstance(types, list):
            own = _yes_or_no(metadata, "attention.indexer.types", types, layers)
            config["indexer_types"] = ["full" if one else "shared" for one in own]
    sparse = [i for i in range(layers) if "ffn_gate_inp.weight" in blocks.get(i, ())]
    if entry.get("sparse_period") and sparse:
        config["expert_layer_offset"] = sparse[0]
        config["expert_layer_period"] = sparse[1] - sparse[0] if len(sparse) > 1 else layers


def _values_from_keys(config: dict[str, Any], words: list[str], blocks: dict[int, set[str]]) -> None:
    """Gemma 4: full layers whose value projection is not in the file share it with the keys."""
    full = [i for i, word in enumerate(words) if word == "full" and i in blocks]
    config["attention_k_eq_v"] = bool(full) and all("attn_v.weight" not in blocks[i] for i in full)
    if config["attention_k_eq_v"]:
        heads = config["num_key_value_heads"]
        config["num_global_key_value_heads"] = heads[full[0]] if isinstance(heads, list) else heads


def _flags(config: dict[str, Any], found: TensorList, blocks: dict[int, set[str]]) -> None:
    """Biases, query norms and the tied head, told by the tensors that are there."""
    if not found.tensors:
        return
    names = set().union(*blocks.values()) if blocks else set()
    for flag, tensors in store.toml("gguf_archs.toml")["flags"].items():
        config[flag] = not names.isdisjoint(tensors)
    tied = all(tensor.name != "output.weight" for tensor in found.tensors)
    config["tie_word_embeddings"] = config["tie_embedding"] = tied

"""GGUF metadata read as a model, compared with the same models' configs from the Hub.

The metadata is what llama.cpp's conversion scripts write for the model named.
"""

import pytest

from kvplan.errors import BadConfig, BadInput
from kvplan.facts import store
from kvplan.model.gguf_config import config_of
from kvplan.model.gguf_model import model_of
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from kvplan.model.read import read_config
from kvplan.model.tensors import Skipped, Tensor, TensorList

A = "attention."


def found(arch: str, metadata: dict, tensors: tuple[str, ...] = ()) -> TensorList:
    values = {"general.architecture": arch} | {f"{arch}.{k}": v for k, v in metadata.items()}
    if "vocab" in metadata:
        values["tokenizer.ggml.tokens"] = Skipped("string", metadata["vocab"])
    return TensorList(tuple(Tensor(n, "F16", (1,), 2) for n in tensors), ("m.gguf",), values)


def read(arch: str, metadata: dict, tensors: tuple[str, ...] = ()) -> Model:
    return read_config(config_of(found(arch, metadata, tensors)), "m.gguf")


def geometry(model: Model) -> list:
    """What each layer keeps: the whole of what cache arithmetic reads."""
    return [
        (
            [
                (a.kind, a.kv_heads, a.key_width, a.value_width, a.window, a.holds, a.index_width)
                for a in layer.attentions
            ],
            [(s.kind, s.channels, s.columns, s.values, s.groups, s.group_channels) for s in layer.states],
        )
        for layer in model.layers
    ]


def dims(layers, hidden, ff, heads, kv=None, width=None, context=None, vocab=None, **more) -> dict:
    """The keys nearly every file has."""
    stated = {
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": ff,
        A + "head_count": heads,
        A + "head_count_kv": kv,
        A + "key_length": width,
        A + "value_length": width,
        "context_length": context,
        "vocab": vocab,
    }
    return {k: v for k, v in stated.items() if v is not None} | more


def ssm(conv, state, inner, rank, groups=None) -> dict:
    stated = {
        "conv_kernel": conv,
        "state_size": state,
        "inner_size": inner,
        "time_step_rank": rank,
        "group_count": groups,
    }
    return {f"ssm.{k}": v for k, v in stated.items() if v is not None}


def moe(count, used, width=None, shared=None, shared_width=None, dense=None) -> dict:
    stated = {
        "expert_count": count,
        "expert_used_count": used,
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared_width,
        "leading_dense_block_count": dense,
    }
    return {k: v for k, v in stated.items() if v is not None}


def mla(heads, kv_rank, q_rank, nope, rope, value) -> dict:
    return {
        A + "head_count_kv": 1,
        A + "kv_lora_rank": kv_rank,
        A + "q_lora_rank": q_rank,
        A + "key_length": kv_rank + rope,
        A + "value_length": kv_rank,
        A + "key_length_mla": nope + rope,
        A + "value_length_mla": value,
        "rope.dimension_count": rope,
    }


def every(period: int, layers: int, value: int) -> list[int]:
    """`value` for the last layer of each period, else 0."""
    return [value if i % period == period - 1 else 0 for i in range(layers)]


def nemotron(pattern: str, ff: int, kv: int) -> dict:
    """The lists that say what each layer is: feed-forward widths and KV heads."""
    return {
        "block_count": len(pattern),
        "feed_forward_length": [ff if c in "-E" else 0 for c in pattern],
        A + "head_count_kv": [kv if c == "*" else 0 for c in pattern],
    }


NEXT = {"full_attention_interval": 4}
NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
V3 = moe(256, 8, 2048, 1, None, 3) | mla(128, 512, 1536, 128, 64, 128)
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", dims(32, 4096, 14336, 32, 8, 128, 131072, 128256)),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama", dims(16, 2048, 8192, 32, 8, 64, 131072, 128256)),
    "mistralai/Mistral-7B-Instruct-v0.3": ("llama", dims(32, 4096, 14336, 32, 8, None, 32768, 32768)),
    "mistralai/Mixtral-8x7B-v0.1": ("llama", dims(32, 4096, 14336, 32, 8, None, 32768, 32000) | moe(8, 2)),
    "Qwen/Qwen1.5-0.5B": ("qwen2", dims(24, 1024, 2816, 16, 16, None, 32768, 151936)),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        "qwen2moe",
        dims(24, 2048, 5632, 16, 16, None, 32768, 151936) | moe(60, 4, 1408, None, 5632),
    ),
    "Qwen/Qwen3-0.6B": ("qwen3", dims(28, 1024, 3072, 16, 8, 128, 40960, 151936)),
    "Qwen/Qwen3-235B-A22B": (
        "qwen3moe",
        dims(94, 4096, 12288, 64, 4, 128, 40960, 151936) | moe(128, 8, 1536),
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        "qwen3next",
        dims(48, 2048, 5120, 16, 2, 256, 262144, 151936)
        | moe(512, 10, 512, None, 512)
        | ssm(4, 128, 4096, 32, 16)
        | NEXT,
    ),
    "Qwen/Qwen3.5-122B-A10B": (
        "qwen35moe",
        dims(49, 3072, None, 32, 2, 256, 262144, 248320, nextn_predict_layers=1)
        | moe(256, 8, 1024, None, 1024)
        | ssm(4, 128, 8192, 64, 16)
        | NEXT,
    ),
    "nvidia/Qwen3.6-27B-NVFP4": (
        "qwen35",
        dims(64, 5120, 17408, 24, 4, 256, 262144, 248320) | ssm(4, 128, 6144, 48, 16) | NEXT,
    ),
    "google/gemma-2b": ("gemma", dims(18, 2048, 16384, 8, 1, 256, 8192, 256000)),
    "google/gemma-2-27b-it": (
        "gemma2",
        dims(46, 4608, 36864, 32, 16, 128, 8192, 256000) | {A + "sliding_window": 4096},
    ),
    "google/gemma-3-12b-it": (
        "gemma3",
        dims(48, 3840, 15360, 16, 8, 256, 131072, 262208) | {A + "sliding_window": 1024},
    ),
    "google/gemma-3n-E4B-it": (
        "gemma3n",
        dims(35, 2048, [16384] * 35, 8, 2, 256, 32768, 262400)
        | {A + "sliding_window": 512, A + "sliding_window_pattern": [i % 5 != 4 for i in range(35)]}
        | {A + "shared_kv_layers": 15, "embedding_length_per_layer_input": 256, "altup.num_inputs": 4},
    ),
    "google/gemma-4-26B-A4B": (
        "gemma4",
        dims(30, 2816, 2112, 16, [8 if i % 6 != 5 else 2 for i in range(30)], 512, 262144, 262144)
        | {A + "key_length_swa": 256, A + "value_length_swa": 256, A + "sliding_window": 1024}
        | {A + "sliding_window_pattern": [i % 6 != 5 for i in range(30)], A + "shared_kv_layers": 0}
        | {"embedding_length_per_layer_input": 0}
        | moe(128, 8, 704),
    ),
    "microsoft/Phi-3-medium-128k-instruct": (
        "phi3",
        dims(40, 5120, 17920, 40, 10, None, 131072, 32064) | {A + "sliding_window": 131072},
    ),
    "deepseek-ai/DeepSeek-V2": (
        "deepseek2",
        dims(60, 5120, 12288, 128, 1, None, 163840, 102400)
        | moe(160, 6, 1536, 2, None, 1)
        | mla(128, 512, 1536, 128, 64, 128),
    ),
    "deepseek-ai/DeepSeek-V3": ("deepseek2", dims(61, 7168, 18432, 128, 1, None, 163840, 129280) | V3),
    "deepseek-ai/DeepSeek-V3.2": (
        "deepseek32",
        dims(62, 7168, 18432, 128, 1, None, 163840, 129280, nextn_predict_layers=1)
        | V3
        | {A + "indexer.head_count": 64, A + "indexer.key_length": 128, A + "indexer.top_k": 2048},
    ),
    "openai/gpt-oss-120b": (
        "gpt-oss",
        dims(36, 2880, 2880, 64, 8, 64, 131072, 201088) | moe(128, 4, 2880) | {A + "sliding_window": 128},
    ),
    "zai-org/GLM-4.5": (
        "glm4moe",
        dims(93, 5120, 12288, 96, 8, 128, 131072, 151552, nextn_predict_layers=1)
        | moe(160, 8, 1536, 1, None, 3),
    ),
    "CohereLabs/aya-23-8B": ("command-r", dims(32, 4096, 14336, 32, 8, None, 8192, 256000)),
    "CohereLabs/c4ai-command-r7b-12-2024": (
        "cohere2",
        dims(32, 4096, 14336, 32, 8, 128, 132096, 256000) | {A + "sliding_window": 4096},
    ),
    "tiiuae/falcon-7b": ("falcon", dims(32, 4544, 18176, 71, 1, None, 2048, 65024)),
    "tiiuae/falcon-11B": ("falcon", dims(60, 4096, 16384, 32, 8, None, 8192, 65024)),
    "tiiuae/Falcon-H1-7B-Instruct": (
        "falcon-h1",
        dims(44, 3072, 12288, 12, 2, 128, 262144, 130048) | ssm(4, 256, 3072, 24, 1),
    ),
    "state-spaces/mamba-2.8b-hf": (
        "mamba",
        dims(64, 2560, 0, 0, None, None, 1048576, 50280) | ssm(4, 16, 5120, 160),
    ),
    "mistralai/Mamba-Codestral-7B-v0.1": (
        "mamba2",
        dims(64, 4096, 0, 0, None, None, 1048576, 32768) | ssm(4, 128, 8192, 128, 8),
    ),
    "ai21labs/AI21-Jamba-1.5-Mini": (
        "jamba",
        dims(32, 4096, 14336, 32, [8 if i % 8 == 4 else 0 for i in range(32)], None, 262144, 65536)
        | ssm(4, 16, 8192, 256)
        | moe(16, 2),
        tuple(f"blk.{i}.ffn_gate_inp.weight" for i in range(1, 32, 2)),
    ),
    "ibm-granite/granite-3.3-8b-instruct": ("granite", dims(40, 4096, 12800, 32, 8, None, 131072, 49159)),
    "ibm-granite/granite-4.0-h-small": (
        "granitehybrid",
        dims(40, 4096, 768, 32, [8 if i in (5, 15, 25, 35) else 0 for i in range(40)], None, 1048576, 100352)
        | ssm(4, 128, 8192, 128, 1)
        | moe(72, 10, None, None, 1536),
    ),
    "LiquidAI/LFM2-2.6B": (
        "lfm2",
        dims(
            30,
            2048,
            10752,
            32,
            [8 if i in (2, 5, 9, 13, 17, 21, 24, 27) else 0 for i in range(30)],
            None,
            128000,
            65536,
        )
        | {"shortconv.l_cache": 3},
    ),
    "stabilityai/stablelm-2-zephyr-1_6b": ("stablelm", dims(24, 2048, 5632, 32, 32, None, 4096, 100352)),
    "allenai/OLMo-2-1124-13B": ("olmo2", dims(40, 5120, 13824, 40, 40, None, 4096, 100352)),
    "allenai/Olmo-3.1-32B-Instruct": (
        "olmo2",
        dims(64, 5120, 27648, 40, 8, None, 65536, 100278) | {A + "sliding_window": 4096},
    ),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": ("exaone4", dims(30, 2048, 4096, 32, 8, 64, 65536, 102400)),
    "LGAI-EXAONE/EXAONE-4.0-32B": (
        "exaone4",
        dims(64, 5120, 27392, 40, 8, 128, 131072, 102400)
        | {A + "sliding_window": 4096, A + "sliding_window_pattern": 4},
    ),
    "bigscience/bloom-7b1": ("bloom", dims(30, 4096, 16384, 32, 32, None, 2048, 250880)),
    "openai-community/gpt2": ("gpt2", dims(12, 768, 3072, 12, None, None, 1024, 50257)),
    "EleutherAI/gpt-neox-20b": ("gptneox", dims(44, 6144, 24576, 64, None, None, 2048, 50432)),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (
        "llama4",
        dims(48, 5120, 16384, 40, 8, 128, 10485760, 202048, interleave_moe_layer_step=1) | moe(16, 1, 8192),
    ),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (
        "llama4",
        dims(48, 5120, 16384, 40, 8, 128, 1048576, 202048, interleave_moe_layer_step=2) | moe(128, 1, 8192),
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (
        "kimi-linear",
        dims(27, 2304, 9216, 32, None, None, 1048576, 163840)
        | moe(256, 8, 1024, 1, None, 1)
        | mla(32, 512, 0, 128, 64, 128)
        | {A + "head_count_kv": [1 if i in (3, 7, 11, 15, 19, 23, 26) else 0 for i in range(27)]}
        | {"kda.head_dim": 128, "ssm.conv_kernel": 4},
    ),
    "nvidia/Nemotron-H-8B-Base-8K": (
        "nemotron_h",
        dims(52, 4096, 0, 32, 8, 128, 8192, 131072)
        | ssm(4, 128, 8192, 128, 8)
        | nemotron("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 21504, 8),
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        "nemotron_h_moe",
        dims(52, 2688, 0, 32, 2, 128, 262144, 131072)
        | ssm(4, 128, 4096, 64, 8)
        | moe(128, 6, 1856, 1, 3712)
        | nemotron(NANO, 1856, 2),
        tuple(f"blk.{i}.ffn_gate_inp.weight" for i, c in enumerate(NANO) if c == "E"),
    ),
    "MiniMaxAI/MiniMax-M2.5": (
        "minimax-m2",
        dims(62, 3072, 1536, 48, 8, 128, 196608, 200064) | moe(256, 8, 1536),
    ),
}


@pytest.mark.parametrize(
    ("id", "arch", "metadata", "tensors"),
    [(k, *v, ()) if len(v) == 2 else (k, *v) for k, v in MODELS.items()],
)
def test_a_gguf_file_describes_the_same_cache_as_the_models_config(id, arch, metadata, tensors):
    model, published = read(arch, metadata, tensors), load_model(id)
    assert geometry(model) == geometry(published)
    assert (model.hidden, model.vocab) == (published.hidden, published.vocab)


UNEQUAL = {
    "tiiuae/falcon-7b": "one norm a layer, which its GGUF metadata does not say",
    "tiiuae/falcon-11B": "one norm a layer, which its GGUF metadata does not say",
}


@pytest.mark.parametrize("id", MODELS)
def test_a_gguf_file_describes_the_same_parameters_as_the_models_config(id):
    arch, metadata, *rest = MODELS[id]
    published = load_model(id)
    weights = [w for layer in published.layers for w in layer.weights]
    tensors = ["token_embd.weight", *(rest[0] if rest else ())]
    tensors += ["output.weight"] if any(w.part == "head" for w in published.weights) else []
    tensors += ["blk.0.attn_q.bias"] if any(w.name == "q_proj" and w.bias for w in weights) else []
    tensors += ["blk.0.ffn_up.bias"] if any(w.name == "up_proj" and w.bias for w in weights) else []
    tensors += ["blk.0.attn_q_norm.weight"] if any(w.name in ("qk_norm", "q_norm") for w in weights) else []
    tensors += [f"blk.{i}.attn_v.weight" for i in range(30) if i % 6 != 5]
    tensors += [f"blk.{i}.attn_k.weight" for i in range(30)]
    model = read(arch, metadata, tuple(tensors))
    assert (model.parameters == published.parameters) == (id not in UNEQUAL)
    assert model.parameters == pytest.approx(published.parameters, rel=1e-4)


def test_windows_that_llama_cpp_does_not_use_are_not_planned():
    """Phi-3 (deliberately), StarCoder2 and Mistral v0.1 have full attention in llama.cpp."""
    window = {A + "sliding_window": 2047}
    for arch in ("phi3", "starcoder2", "llama", "qwen2"):
        model = read(arch, dims(32, 3072, 8192, 32, 32, None, 4096, 32064) | window)
        assert {a.kind for layer in model.layers for a in layer.attentions} == {"full"}


def test_exaone_4_has_windows_only_at_64_layers():
    window = {A + "sliding_window": 4096}
    small = read("exaone4", dims(30, 2048, 4096, 32, 8, 64, 65536, 102400) | window)
    large = read("exaone4", dims(64, 5120, 27392, 40, 8, 128, 131072, 102400))
    assert {a.kind for layer in small.layers for a in layer.attentions} == {"full"}
    assert [layer.attentions[0].window for layer in large.layers[:5]] == [4096, 4096, 4096, None, 4096]


def test_llama_4_is_chunked_unless_the_file_states_no_window():
    base = dims(48, 5120, 16384, 40, 8, 128, 262144, 202048) | moe(16, 1, 8192)
    assert read("llama4", base).layers[0].attentions[0].window == 8192
    assert read("llama4", base | {A + "sliding_window": 0}).layers[0].attentions[0].kind == "full"


def test_gemma_2_has_its_window_even_where_an_old_file_states_none():
    layers = read("gemma2", dims(26, 2304, 9216, 8, 4, 256, 8192, 256000)).layers
    assert [a.attentions[0].window for a in layers[:4]] == [4096, None, 4096, None]


def test_gemma_3_without_a_window_is_full_everywhere():
    assert set(config_of(found("gemma3", dims(26, 1152, 6912, 4, 1, 256, 32768)))["layer_types"]) == {
        "full_attention"
    }


def test_an_older_deepseek_file_without_mla_widths_keeps_keys_and_values_of_every_head():
    old = dims(61, 7168, 18432, 128, 128, 192, 163840, 129280) | V3
    old |= {A + "value_length": 128, A + "head_count_kv": 128}
    del old[A + "key_length_mla"], old[A + "value_length_mla"]
    (attention,) = read("deepseek2", old | {A + "key_length": 192}).layers[5].attentions
    assert (attention.kind, attention.kv_heads, attention.key_width, attention.value_width) == (
        "full",
        128,
        192,
        128,
    )


def test_minicpm_3_keeps_full_heads_whose_values_are_narrower_than_keys():
    model = read(
        "minicpm3",
        dims(62, 2560, 6400, 40, 40, None, 32768, 73448)
        | {A + "q_lora_rank": 768, A + "kv_lora_rank": 256, A + "key_length": 96, "rope.dimension_count": 32},
    )
    (attention,) = model.layers[0].attentions
    assert (attention.kind, attention.kv_heads, attention.key_width, attention.value_width) == (
        "full",
        40,
        96,
        64,
    )


def test_a_context_is_the_trained_length_whatever_the_rope_scaling():
    stated = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32768,
    }
    assert read("qwen2", dims(28, 3584, 18944, 28, 4, None, 131072, 152064) | stated).max_context == 131072


@pytest.mark.parametrize(("arch", "hidden", "head"), [("rwkv6", 2560, 64), ("rwkv7", 768, 64)])
def test_rwkv_keeps_a_matrix_per_head_and_two_tokens(arch, hidden, head):
    model = read(arch, dims(12, hidden, 4 * hidden, 0, None, None, 1048576, 65536) | {"wkv.head_size": head})
    (state,) = model.layers[0].states
    assert (state.values, state.channels * state.columns) == (hidden * head, 2 * hidden)


def test_glm_dsa_says_which_layers_have_an_indexer():
    own = [i % 4 == 0 for i in range(78)]
    model = read(
        "glm-dsa",
        dims(79, 6144, 12288, 64, 1, None, 202752, 154880, nextn_predict_layers=1)
        | moe(256, 8, 2048, 1, None, 3)
        | mla(64, 512, 2048, 192, 64, 256)
        | {A + "indexer.head_count": 32, A + "indexer.key_length": 128, A + "indexer.types": own},
    )
    assert [bool(layer.attentions[0].index_width) for layer in model.layers] == own
    assert model.mtp_layers == 1


def test_llama_nemotron_layers_differ_as_its_lists_say():
    heads, kv, ff = [64, 64, 64, 0], [8, 4, 0, 0], [28672, 14336, 0, 28672]
    model = read("deci", dims(4, 8192, ff, heads, kv, 128, 131072, 128256))
    assert [
        [(a.query_heads, a.kv_heads, a.key_width) for a in layer.attentions] for layer in model.layers
    ] == [
        [(64, 8, 128)],
        [(64, 4, 128)],
        [],
        [],
    ]
    widths = [[w.outputs for w in layer.weights if w.name == "up_proj"] for layer in model.layers]
    assert widths == [[28672], [14336], [], [28672]]


def test_kv_heads_may_differ_from_layer_to_layer():
    kv = [8, 4, 2, 1]
    model = read("mimo2", dims(4, 4096, 1024, 32, kv, 192, 32768, 1000) | {A + "value_length": 128})
    assert [(a.kv_heads, a.key_width, a.value_width) for layer in model.layers for a in layer.attentions] == [
        (n, 192, 128) for n in kv
    ]


def test_an_architecture_not_known_here_is_read_by_its_keys_and_says_so():
    pattern = [True, False] * 2
    model = read(
        "brandnew",
        dims(4, 256, 512, 8, 2, 32, 4096, 100)
        | {A + "sliding_window": 64, A + "sliding_window_pattern": pattern},
    )
    assert [a.window for layer in model.layers for a in layer.attentions] == [64, None, 64, None]
    assert "brandnew" in model.notes[0]


@pytest.mark.parametrize("arch", sorted(store.toml("gguf_archs.toml")["refused"]))
def test_a_file_without_a_readable_language_model_is_refused_with_the_reason(arch):
    with pytest.raises(BadInput, match=r"general\.architecture") as error:
        read(arch, dims(4, 256, 512, 8, 2, 32, 4096, 100))
    assert "\n" not in str(error.value)


def test_an_unknown_architecture_with_a_state_is_refused_rather_than_guessed():
    with pytest.raises(BadInput, match="keeps a state"):
        read("brandnew", dims(4, 256, 512, 8, 2, 32, 4096, 100) | ssm(4, 16, 512, 16))


def test_a_projector_or_an_adapter_is_refused():
    values = {"general.architecture": "llama", "general.type": "adapter"}
    with pytest.raises(BadInput, match="adapter"):
        config_of(TensorList((), ("a.gguf",), values))


@pytest.mark.parametrize("arch", sorted(store.toml("gguf_archs.toml")["arch"]))
def test_every_architecture_of_the_table_becomes_a_model(arch):
    base = dims(8, 256, 512, 8, [0, 2] * 4, 32, 4096, 100)
    base |= ssm(4, 16, 512, 16, 2) | {"shortconv.l_cache": 3, "wkv.head_size": 32, "kda.head_dim": 16}
    base |= mla(8, 64, 32, 32, 16, 32) | {
        A + "head_count_kv": [0, 2] * 4 if arch != "kimi-linear" else [0, 1] * 4
    }
    base |= {A + "indexer.head_count": 2, A + "indexer.key_length": 16, A + "sliding_window": 64}
    base |= {"embedding_length_per_layer_input": 16, "altup.num_inputs": 2, "interleave_moe_layer_step": 1}
    model = read(arch, base)
    assert len(model.layers) == 8
    assert all(layer.attentions or layer.states or layer.weights for layer in model.layers)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"block_count": None}, "block_count"),
        ({"block_count": 0}, "block_count"),
        ({"block_count": 10**9}, "block_count"),
        ({"block_count": "32"}, "block_count"),
        ({"block_count": -1}, "block_count"),
        ({"nextn_predict_layers": 32}, "block_count"),
        ({"embedding_length": None}, "embedding_length"),
        ({A + "head_count": [8, 8]}, "head_count"),
        ({A + "head_count_kv": ["a"] * 32}, "head_count_kv"),
        ({A + "head_count_kv": 2.5}, "head_count_kv"),
        ({A + "key_length": True}, "key_length"),
        ({A + "head_count_kv": Skipped("u32", 5000)}, "head_count_kv"),
    ],
)
def test_metadata_that_cannot_be_used_is_named(change, named):
    with pytest.raises(BadConfig, match=named) as error:
        read("llama", dims(32, 256, 512, 8, 2, 32, 4096, 100) | change)
    assert "m.gguf" in str(error.value)


def test_a_file_that_names_no_architecture_is_refused():
    with pytest.raises(BadConfig, match=r"general\.architecture"):
        config_of(TensorList((), ("m.gguf",), {}))


def test_a_models_figures_name_the_metadata_they_were_read_from():
    metadata = dims(26, 2304, 9216, 8, 4, 256, 8192, 256000) | {A + "sliding_window": 4096}
    model = model_of(found("gemma2", metadata))
    assert model.origin("layers").where == "m.gguf gemma2.block_count"
    sliding, full = (layer.attentions[0] for layer in model.layers[:2])
    assert sliding.origin("window").where == "m.gguf gemma2.attention.sliding_window"
    assert full.origin("kv_heads").where == "m.gguf gemma2.attention.head_count_kv"
    assert full.origin("key_width").where == "m.gguf gemma2.attention.key_length"
    assert [n for n, _ in model.grouped()] == [13, 13]


def test_a_width_that_a_file_does_not_state_names_what_it_was_made_from():
    model = model_of(found("llama", dims(2, 256, 512, 8, 2, None, 4096, 100)))
    assert (
        "embedding_length ÷ attention.head_count" in model.layers[0].attentions[0].origin("key_width").where
    )

"""What starts a deployment: the engine's own command with only the settings that are not its defaults.

Beside the command: variables of the environment, a file where the engine wants one, and what it will print.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Setup
from kvplan.facts import launching
from kvplan.units import bytes_text
from kvplan.verbs.deploy import KNOWN_VENDORS
from kvplan.verbs.launch_words import Spelled, no_place, spelled
from kvplan.verbs.yaml_text import yaml

# Quantisations that the engines make of a 16-bit checkpoint while they load it.
_WHILE_LOADING = ("none", "fp8", "bitsandbytes", "nf4", "experts_int8", "ptpc_fp8", "torchao", "mxfp8")


@dataclass(frozen=True, slots=True)
class Launch:
    """How one server of a deployment is started.

    `program`, `served` and `options` make the command; `dealt` are the options that ask for replicas;
    `files` are named as the command names them; `image` is None where none is known; `expected` are the
    lines to look for in the log; `notes` a sentence each.
    """

    program: tuple[str, ...]
    served: str
    options: tuple[str, ...] = ()
    dealt: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    image: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """One line for a shell; empty where nothing starts the engine."""
        if not self.program:
            return ""
        given = "".join(f"{name}={shlex.quote(value)} " for name, value in self.environment.items())
        return f"{given}{shlex.join((*self.program, self.served, *self.options))}"

    def alone(self) -> tuple[str, ...]:
        """The options of one replica."""
        if not self.dealt:
            return self.options
        at = self.options.index(self.dealt[0])
        return self.options[:at] + self.options[at + len(self.dealt) :]


def launch_of(d: Deployment, served: str, dtype: str, quantization: str | None) -> Launch:
    """The launch of `served`, a model's id or path, as this engine and version take it."""
    setup, table = d.setup, launching.how(d.setup.engine)
    if not table["program"] or setup.flags.get("launcher"):
        return Launch((), served)
    if setup.engine == "llama.cpp" and not served.endswith(".gguf"):
        served = "MODEL.gguf"
    ranks, dealt = _ranks(setup)
    found = spelled(setup, _settings(d, dtype, quantization))
    longest = d.model.max_context
    if setup.engine == "vllm" and longest is not None and d.max_model_len > longest:
        found.environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    options, files = [*ranks, *found.words], {}
    if found.config:
        files = {table["file"]: yaml(found.config)}
        options += [table["file_option"], table["file"]]
    return Launch(
        program=tuple(table["program"]),
        served=f"./{served}" if served.startswith("-") else served,
        options=tuple(options),
        dealt=tuple(dealt),
        environment=found.environment,
        files=files,
        image=_image(d),
        notes=tuple(_notes(d, found)),
    )


def _image(d: Deployment) -> str | None:
    """The engine's image; none for makers whose devices only stand in for others."""
    if d.accelerator is not None and d.accelerator.vendor not in KNOWN_VENDORS:
        return None
    return launching.image_of(d.setup.engine, d.setup.platform, d.setup.version, d.setup.arch)


def launch_command(d: Deployment, served: str, dtype: str, quantization: str | None) -> str:
    """The command line for `served`; empty where the engine is a library."""
    return launch_of(d, served, dtype, quantization).command


def launch_notes(d: Deployment, quantization: str | None) -> list[str]:
    """What the command cannot say by itself."""
    return [*_weights_notes(d, quantization), *launch_of(d, "MODEL", "auto", quantization).notes]


def _weights_notes(d: Deployment, quantization: str | None) -> list[str]:
    if quantization is None or quantization.lower() == "none":
        return []
    if d.setup.engine == "tensorrt-llm":
        return ["trtllm-serve takes a checkpoint that is quantised already; the launch names none"]
    if d.setup.engine == "llama.cpp":
        return []
    if quantization.lower() in _WHILE_LOADING:
        return _loads_wide(d, quantization)
    own = d.model.quantization or {}
    if own.get("quant_method"):
        return [f"--quantization {quantization} needs a checkpoint quantised so; serve one in place of this"]
    return []


def _loads_wide(d: Deployment, quantization: str) -> list[str]:
    """A word where the checkpoint's own 16 bits, which are loaded first, may not fit."""
    wide = d.model.parameters * 2 / (d.tp * d.setup.pp)
    if d.memory_bytes is None or wide < d.memory_bytes:
        return []
    return [
        f"--quantization {quantization} of a 16-bit checkpoint: versions that load all of it before they "
        f"quantise need {bytes_text(wide)} a rank; serve a checkpoint that is quantised already"
    ]


def _ranks(setup: Setup) -> tuple[list[str], list[str]]:
    """How the model is divided, in the engine's own flags; and those of them that ask for replicas."""
    spelt, apart = launching.how(setup.engine)["ranks"], _apart(setup)
    dp = setup.attention_dp if apart else setup.dp
    counts = {"tp": setup.tp, "pp": setup.pp, "dp": dp, "ep": setup.ep}
    words: list[str] = []
    dealt: list[str] = []
    for rank, count in counts.items():
        if rank in spelt and count > 1:
            pair = [spelt[rank], str(count)]
            words += pair
            dealt = pair if rank == "dp" and not apart else dealt
    if setup.engine == "vllm" and setup.ep > 1 and not setup.flags.get("enable_expert_parallel"):
        words.append("--enable-expert-parallel")
    if apart and not setup.flags.get("enable_dp_attention"):
        words.append("--enable-dp-attention")
    if "dcp" in spelt and setup.dcp > 1:
        words += [spelt["dcp"], str(setup.dcp)]
    return words, dealt


def _apart(setup: Setup) -> bool:
    """Whether SGLang's --dp-size divides attention, not requests."""
    return setup.engine == "sglang" and setup.attention_dp > 1


def _settings(d: Deployment, dtype: str, quantization: str | None) -> dict[str, Any]:
    """Every setting to be said, under the engine's own names: flags given, formats, what was measured."""
    setup, table = d.setup, launching.how(d.setup.engine)
    found = dict(setup.flags)
    if setup.engine == "vllm" and "kv_pool_bytes" in d.measured:
        found["kv_cache_memory_bytes"] = d.measured["kv_pool_bytes"][0]
    for name, entry in table.get("always_before", {}).items():
        if name not in found and launching.before(setup.version, entry["before"]):
            found[name] = entry["value"]
    stored = _cache_dtype(setup)
    if stored != "auto":
        found = {**dict.fromkeys(table.get("cache_flags", ["kv_cache_dtype"]), stored), **found}
    if setup.engine == "tensorrt-llm" and setup.attention_dp > 1:
        found["enable_attention_dp"] = True
    given = {"dtype": dtype if dtype != "auto" else None, "quantization": quantization}
    for name, value in given.items():
        takes = name in table["named"] or name in table.get("config", {})
        if takes and value not in (None, "none"):
            found[name] = value
    return found


def _cache_dtype(setup: Setup) -> str:
    """The cache's format under the name that this version knows."""
    table, name = launching.how(setup.engine), setup.kv_cache_dtype.lower()
    for version, names in table.get("cache_dtypes_before", {}).items():
        if name in names and launching.before(setup.version, version):
            return str(names[name])
    return str(table.get("cache_dtypes", {}).get(name, setup.kv_cache_dtype))


def _notes(d: Deployment, found: Spelled) -> list[str]:
    """What the user has to know to start it."""
    setup = d.setup
    notes = no_place(setup, found.left_out)
    spelt = launching.how(setup.engine)["ranks"]
    if setup.dp > 1 and ("dp" not in spelt or _apart(setup)):
        notes.append(f"{setup.engine} serves one replica: start the command {setup.dp} times behind a router")
    if setup.engine == "vllm" and setup.attention_dp > 1:
        notes.append("--attention-dp: vLLM's tensor ranks attend together; the launch does not divide them")
    if setup.engine == "vllm" and 1 < setup.ep < setup.tp * setup.dp:
        ranks = setup.tp * setup.dp
        notes.append(f"--enable-expert-parallel shares experts among all {ranks} ranks, not {setup.ep}")
    node = launching.accelerators_of_a_machine(d.accelerator.key if d.accelerator else None)
    if devices_of(d) > node:
        notes.append(f"{devices_of(d)} ranks of one server are more than the {node} of a machine: {_join(d)}")
    return notes


def _join(d: Deployment) -> str:
    """How machines are joined, by engine."""
    words = {
        "vllm": "start a Ray cluster first, or give --nnodes and --node-rank on each",
        "sglang": "give --nnodes, --node-rank and --dist-init-addr on each",
        "tensorrt-llm": "start it with mpirun or srun through trtllm-llmapi-launch",
    }
    return words.get(d.setup.engine, "llama.cpp's --rpc joins them")


def devices_of(d: Deployment) -> int:
    """Accelerators of one server: ranks of every kind, replicas among them only where they share experts."""
    ranks = d.setup.tp * d.setup.pp
    return ranks if independent(d) else ranks * d.setup.dp


def independent(d: Deployment) -> bool:
    """Whether replicas know nothing of one another: vLLM's share the experts, if there are any."""
    experts = any(w.part == "expert" for _, layer in d.model.grouped() for w in layer.weights)
    return d.setup.engine != "vllm" or not experts

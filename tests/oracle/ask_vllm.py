"""Start vLLM's own engine core on one config and print what it settles on, as one JSON line.

Run by the Python in which vLLM is installed: ask_vllm.py FOLDER FLAGS, the folder holding a
config.json of a small model, the flags a JSON object of engine arguments.
"""

import json
import os
import sys

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_CPU_CI_ENV="1",
    OMP_NUM_THREADS="2",
)


def main(folder: str, flags: str) -> None:
    """The core's answer, or the refusal's words."""
    from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]
    from vllm.usage.usage_lib import UsageContext  # type: ignore[import-not-found]
    from vllm.v1.engine.core import EngineCore  # type: ignore[import-not-found]
    from vllm.v1.executor.abstract import Executor  # type: ignore[import-not-found]

    given = {
        "model": folder,
        "tokenizer": folder,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "enforce_eager": True,
        **json.loads(flags),
    }
    config = EngineArgs(**given).create_engine_config(UsageContext.OPENAI_API_SERVER)
    try:
        core = EngineCore(config, Executor.get_class(config), False)
    except ValueError as refusal:
        print("ANSWER", json.dumps({"refusal": str(refusal)}))  # noqa: T201
        return
    cache, groups = config.cache_config, core.scheduler.kv_cache_config.kv_cache_groups
    answer = {
        "num_blocks": cache.num_gpu_blocks,
        "block_tokens": min(g.kv_cache_spec.block_size for g in groups),
        "kv_tokens": cache.kv_cache_size_tokens,
        "max_concurrency": cache.kv_cache_max_concurrency,
        "groups": [len(g.layer_names) for g in groups],
    }
    print("ANSWER", json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

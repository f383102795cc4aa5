"""The module of each engine that compares its figures."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from kvplan.engines.deployment import Deployment
from kvplan.verbs import verify_llama_cpp, verify_sglang, verify_tensorrt_llm, verify_vllm
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared

_MODULES: dict[str, ModuleType] = {
    "vllm": verify_vllm,
    "sglang": verify_sglang,
    "tensorrt-llm": verify_tensorrt_llm,
    "llama.cpp": verify_llama_cpp,
}


def compared(case: Case) -> Compared:
    """Every figure of the case beside its prediction."""
    found: Compared = _MODULES[case.observed.engine].compared(case)
    return found


def trial_of(case: Case) -> Callable[..., Deployment | None]:
    """Makes the deployment with something changed, or None where it cannot be planned for."""
    module = _MODULES[case.observed.engine]

    def made(**changed: object) -> Deployment | None:
        found: Deployment | None = module.trial(case, **changed)
        return found

    return made


def agrees_with(case: Case) -> Callable[[Deployment], bool]:
    """Tells whether a deployment's capacity prints as the case's did."""
    found: Callable[[Deployment], bool] = _MODULES[case.observed.engine].agrees_with(case)
    return found

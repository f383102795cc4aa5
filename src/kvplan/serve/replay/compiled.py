"""Compiles the functions of this package, and keeps what it compiled between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from kvplan.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, made at its first call and cached on disk.

    Raises BadInput where numba is not installed.
    """
    return _made(function, inner=True)


def entry(function: F) -> F:
    """The same, to be called from Python; the others are called by compiled functions alone."""
    return _made(function, inner=False)


def _made(function: F, *, inner: bool) -> F:
    try:
        import numba
    except ImportError:
        raise BadInput("simulate: needs numba; pip install 'kvplan[simulate]'") from None
    options = {"no_cpython_wrapper": inner, "no_cfunc_wrapper": True, "_nrt": False}
    return cast(F, numba.njit(cache=True, error_model="numpy", **options)(function))

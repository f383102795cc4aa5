"""Compiles the functions of this package, and keeps what it compiled between runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from kvplan.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, to be called by other compiled ones.

    Raises BadInput where numba is not installed.
    """
    return cast(F, _njit()(**_LEAN, no_cpython_wrapper=True)(function))


def entry(function: F) -> F:
    """The same, to be called from Python; kept on disk with all that it calls until a file here changes.

    Where there is no place to write, it is compiled in every process.
    """
    try:
        made = _njit()(**_LEAN, cache=True)(function)
    except RuntimeError:
        return cast(F, _njit()(**_LEAN)(function))
    with contextlib.suppress(AttributeError):  # numba looks at the function's own file alone
        made._cache._cache_file._source_stamp = _stamp()
    return cast(F, made)


# No wrappers for C, no reference counts (no function makes an array), no exception for a division by 0: that
# is a third of the time that compiling takes otherwise.
_LEAN: dict[str, Any] = {"no_cfunc_wrapper": True, "_nrt": False, "error_model": "numpy"}


def _njit() -> Any:
    try:
        import numba
    except ImportError:
        raise BadInput("simulate: needs numba; pip install 'kvplan[simulate]'") from None
    return numba.njit


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """What changes when a file of this package does."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)

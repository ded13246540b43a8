"""Runs work in the background; asking the engine takes as long as planning does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_background(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Future[Result]:
    """Start ``function`` in a thread; the future's ``result()`` waits, and raises its errors."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args, **kwargs)
    finally:
        pool.shutdown(wait=False)

"""Work that goes on while something else is done: asking the engine takes as long as planning."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_background(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Future[Result]:
    """Start ``function`` in a thread; ``result()`` of what is returned waits for it.

    What the function raises is raised there.
    """
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args, **kwargs)
    finally:
        pool.shutdown(wait=False)

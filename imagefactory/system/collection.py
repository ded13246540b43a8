"""Python's garbage collector, which is in the way now and then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for cycles meanwhile.

    For work that makes very many objects that form none; and for work that may reach the end of
    the stack, where the finalizers of whatever is collected would fail.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

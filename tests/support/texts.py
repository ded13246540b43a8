"""Any text, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


def any_text(*, min_size: int = 0, max_size: int | None = None) -> SearchStrategy[str]:
    """Any text that can be encoded, as ``st.text()``.

    That asks a codec about every character that there is, for a second and a half in a fresh clone.
    """
    every = st.characters(exclude_categories=["Cs"])
    return st.text(every, min_size=min_size, max_size=max_size)

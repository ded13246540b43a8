"""What ``imagefactory verify`` refuses before anything is run."""

from __future__ import annotations

import pytest
from support.program import Run, run

__all__ = ["run"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("vllm:a --from images", "both TAG and --from are given"),
        ("vllm:a --select flavor=gb10", "both TAG and --select are given"),
        ("vllm:a --gpu --level serve", "both --gpu and --level serve are given"),
        ("vllm:a --receipt --select flavor=gb10", "takes no --select"),
    ],
)
def test_options_that_exclude_each_other_are_refused(run: Run, words: str, says: str) -> None:
    done = run("verify", *words.split())
    assert (done.code, says in done.err) == (2, True), done.err

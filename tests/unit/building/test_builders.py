"""Cache refs: one for each target, always a valid tag."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.building import builders
from imagefactory.errors import InputError

TARGETS = st.sets(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    min_size=1,
    max_size=20,
)


@given(TARGETS)
def test_no_two_targets_ever_write_one_cache_ref(targets: set[str]) -> None:
    refs = [builders.cache_ref("ghcr.io/me/cache", target) for target in targets]
    assert len(set(refs)) == len(targets)
    assert all(
        re.fullmatch(r"ghcr\.io/me/cache:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", ref) for ref in refs
    )


def test_the_ref_of_a_target_is_its_name_and_stays_so() -> None:
    assert (
        builders.cache_ref("127.0.0.1:5000/c", "gb10-vllm0-33-0")
        == "127.0.0.1:5000/c:cache-gb10-vllm0-33-0"
    )


@pytest.mark.parametrize(
    "repository",
    [
        "ghcr.io/me/cache:latest",
        f"me/cache@sha256:{'0' * 64}",
        "https://ghcr.io/me/cache",
        "u:pw@ghcr.io/me/cache",
        "a b",
        "",
        "GHCR.io/Me/cache",
    ],
)
def test_what_is_not_a_repository_is_refused(repository: str) -> None:
    with pytest.raises(InputError) as caught:
        builders.cache_ref(repository, "x")
    assert caught.value.problems[0].code == "reference-wrong"
    assert "pw" not in str(caught.value)

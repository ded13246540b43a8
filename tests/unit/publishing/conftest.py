"""For the tests of publishing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.called_registry import called_registry
from support.registry import FakeRegistry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with called_registry() as made:
        yield made

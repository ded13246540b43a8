"""For all unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stamina

from imagefactory import redaction


@pytest.fixture(autouse=True, scope="session")
def retries_do_not_wait() -> Iterator[None]:
    with stamina.set_testing(True, attempts=3, cap=True):
        yield


@pytest.fixture(autouse=True)
def secrets_of_a_test_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets", [])

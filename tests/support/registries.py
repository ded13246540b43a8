"""A registry of a test's own, a client of it, and accounts; tests import the fixtures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stamina

from imagefactory.errors import SetupError
from imagefactory.system.registry import Registries
from support.registry import FakeRegistry, fake_registry

LAYERS = {"sha256:1": 100, "sha256:2": 200}


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    """A registry; nothing waits before it asks again."""
    with fake_registry() as made, stamina.set_testing(True, attempts=3):
        yield made


@pytest.fixture
def ask(tmp_path: Path) -> Registries:
    """A client whose Docker configuration is a folder of the test's."""
    return Registries(tmp_path)


def login(folder: Path, **settings: object) -> None:
    (folder / "config.json").write_text(json.dumps(settings))


def basic(account: str) -> str:
    return base64.b64encode(account.encode()).decode()


def refused(work: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(SetupError) as caught:
        work()
    (problem,) = caught.value.problems
    return problem.code, problem.what

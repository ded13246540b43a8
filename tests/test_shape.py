"""What the modules may know of each other."""

from __future__ import annotations

import sys

import pytest

from imagefactory import shell

OUTSIDE = "requests", "urllib3", "imagefactory.shell", "imagefactory.engine", "imagefactory.ui"
PURE = [
    "matrix",
    "locking.model",
    "locking.groups",
    "locking.requirements",
    "locking.store",
    "locking.targets",
    "patching.model",
    "patching.catalog",
    "patching.placing",
    "render",
    "plan",
    "wheelplan",
    "receipt",
    "anatomy",
    "verify.model",
]


def known_to(module: str) -> set[str]:
    """What a fresh interpreter has loaded of the network, the engine and the terminal once it knows ``module``."""
    program = f"import imagefactory.{module}, sys; print(*sorted({set(OUTSIDE)!r} & set(sys.modules)))"
    done = shell.run([sys.executable, "-c", program], quiet=True)
    assert done.ok, done.err
    return set(done.out.split())


@pytest.mark.parametrize("module", PURE)
def test_a_pure_station_knows_nothing_of_the_network_the_engine_or_the_terminal(module: str) -> None:
    assert known_to(module) == set()


def test_a_station_that_asks_an_index_is_seen_to() -> None:
    assert {"requests", "imagefactory.shell"} <= known_to("locking.resolve")

"""What the modules may know of each other."""

from __future__ import annotations

import sys

import pytest

from imagefactory.commands import COMMANDS
from imagefactory.system import shell

OUTSIDE = (
    "requests",
    "urllib3",
    "imagefactory.system.shell",
    "imagefactory.system.engine",
    "imagefactory.system.ui",
)
#: What takes a tenth of a second and more to load.
HEAVY = "requests", "numpy", "python_on_whales", "pypi_simple"
PURE = [
    "matrix.matrix",
    "locking.lock",
    "locking.requirements",
    "locking.store",
    "locking.tags",
    "patching.patch",
    "patching.catalog",
    "patching.settle",
    "planning.layers",
    "planning.render",
    "planning.cell_plan",
    "planning.context",
    "planning.image_config",
    "planning.wheel_plan",
    "verifying.receipt",
    "verifying.tiny_model",
    "inspecting.anatomy",
]


def known_to(module: str, wanted: tuple[str, ...] = OUTSIDE) -> set[str]:
    """Which of ``wanted`` a fresh interpreter has loaded once it knows ``module``."""
    program = (
        f"import imagefactory.{module}, sys; print(*sorted({set(wanted)!r} & set(sys.modules)))"
    )
    done = shell.run([sys.executable, "-c", program], quiet=True)
    assert done.ok, done.err
    return set(done.out.split())


@pytest.mark.parametrize("module", PURE)
def test_a_pure_station_knows_nothing_of_the_network_the_engine_or_the_terminal(
    module: str,
) -> None:
    assert known_to(module) == set()


def test_a_station_that_asks_an_index_is_seen_to() -> None:
    assert {"requests", "imagefactory.system.shell"} <= known_to("locking.resolve")


def test_a_build_that_finds_nothing_to_do_loads_nothing_that_only_work_needs() -> None:
    assert known_to("commands.build", HEAVY) == set()
    assert {"requests", "numpy"} <= known_to("commands.verify", HEAVY)


def test_the_program_loads_no_command_before_it_is_asked_for() -> None:
    loaded = tuple(f"imagefactory.commands.{name}" for name in COMMANDS)
    assert known_to("cli", loaded) == set()
    assert known_to("commands.plan", loaded) == {"imagefactory.commands.plan"}

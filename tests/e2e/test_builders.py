"""Several builders, each the BuildKit of another machine; one of them is lost while it builds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import builder_of
from machines import Machine, Machines, program_path

from imagefactory.system.engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.large]  # each image passes through this machine
CELLS = 3
OWN = "imagefactory/test-builders"
SELECT = ("--select", "flavor=more-*", "--no-verify")


@pytest.fixture
def cells(project: Path, engine: Engine) -> Iterator[Path]:
    """A project with cells that differ in a variable, so that none of them is built yet."""
    file = project / "matrix.yaml"
    text = file.read_text().replace("repository: imagefactory/vllm", f"repository: {OWN}")
    flavors = [
        f"  more-{n}:\n    extends: cpu\n    summary: a cell of a test\n    env: {{MORE: '{n}'}}\n"
        for n in range(CELLS)
    ]
    row = "  - {{flavor: more-{}, platform: linux/amd64, python: '3.11', channel: cpu, {}}}\n"
    pins = 'torch: "2.13.0", vllm: "0.32.0"'
    text = text.replace("flavors:\n", "flavors:\n" + "".join(flavors), 1)
    rows = "".join(row.format(n, pins) for n in range(CELLS))
    file.write_text(text.replace("include:\n", "include:\n" + rows, 1))
    yield project
    for name in engine.names(OWN):
        engine.untag(name)


@pytest.fixture
def builders(machines: Machines, engine: Engine, tmp_path: Path) -> Iterator[list[str]]:
    """A builder on each of two other machines."""
    one, two = map(engine_of, machines.all)
    with (
        builder_of(engine, one, tmp_path / "one.sock") as first,
        builder_of(engine, two, tmp_path / "two.sock") as second,
    ):
        yield [first, second]


def engine_of(machine: Machine) -> Engine:
    client = shutil.which("docker", path=program_path())
    assert client
    return Engine(binary=client, host=machine.socket)


def test_cells_are_spread_over_builders_and_those_of_a_lost_one_go_to_the_other(
    cpu_image: str, engine: Engine, cells: Path, builders: list[str], machines: Machines
) -> None:
    argv = ["build", "--matrix", *SELECT, "--builder", ",".join(builders), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "imagefactory", *argv],
        cwd=cells,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, begun = [], []
    for line in process.stderr or ():
        said.append(line)
        if found := re.match(r"(\S+) builds ", line):
            begun.append(found[1])
            if len(begun) == CELLS:  # each has built one cell, but for what the other begins now
                machines[builders.index(begun[-1])].process.kill()
    out = process.communicate()[0]
    assert process.returncode == 0, "".join(said)
    first, second, lost, last = begun
    assert {first, second} == set(builders)
    assert {lost, last} == set(builders)
    assert f"builder {lost} is lost" in "".join(said)
    by = {row["cell"]: row["result"]["builder"] for row in json.loads(out)}
    assert sorted(by.values()) == sorted([first, second, last])
    tags = {tag for tag in engine.names(OWN) if "torch" in tag}
    assert len(tags) == CELLS

"""The record of a night: what is in it, and what is wrong with a file that is none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.nights import JOB, NOW, World
from support.recorded import cell, failure, night

from imagefactory import redaction
from imagefactory.errors import Problem, SetupError
from imagefactory.nightly import nightly, observing, record
from imagefactory.nightly.record import CellState, Image, Record
from imagefactory.nightly.values import Broken, Night, Row

LOG = "line\n" * 3000 + "ERROR: exit code: 1"
PROBLEM = Problem(code="build-failed", what="exit code 1", fix="look", detail=LOG)
NIGHT = Night(
    began=NOW,
    project=Path("/home/me/sparks"),
    cells=(
        Row(cell="a", state="pushed"),
        Row(cell="b", state="build failed"),
        Row(cell="all cells", state="stopped"),
    ),
    broken=(
        Broken(where="b", step="build", problems=(PROBLEM,), environment=True),
        Broken(where="vllm/mine on vllm 0.34.0", step="port", problems=(PROBLEM,)),
    ),
    left=("c",),
)


def test_it_has_what_became_of_each_cell_and_why() -> None:
    seconds = {"build a": 60.0, "verify a": 2.0, "build b": 7.0, "promote nightly": 9.0}
    images = {name: Image(size=5, versions={"vllm": "0.34.0"}) for name in ("a", "b", "c", "d")}
    ended = NOW + timedelta(minutes=3)
    made = record.of(NIGHT, ended=ended, version="1", seconds=seconds, images=images)
    assert [(one.name, one.state, one.seconds, one.size) for one in made.cells] == [
        ("a", "pushed", 62.0, 5),
        ("b", "failed", 7.0, 5),
        ("c", "left", None, 5),
        ("d", "stopped", None, 5),  # of a night that could plan nothing, no cell has a row
    ]
    (own,), (other,) = made.cells[1].failures, made.failures
    assert (own.step, own.code, own.environment) == ("build", "build-failed", True)
    assert (len(own.excerpt), own.excerpt[-4:]) == (6000, "e: 1")
    assert (other.where, other.step) == ("vllm/mine on vllm 0.34.0", "port")


def test_what_is_unknown_is_none_and_no_zero() -> None:
    made = record.of(NIGHT, ended=NOW, version="1").cells[0]
    assert (made.size, made.seconds, made.digest, made.build_key) == (None,) * 4


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = night(3, cell(), cell("b", "failed", failures=(failure(where="b"),), size=None))
    path = record.write(tmp_path / "records", made, Path("/project"))
    assert path.name == "20251126T021700Z.json"
    assert record.read(path) == made


def test_a_record_has_no_secrets_no_path_of_the_project_and_no_broken_characters(
    tmp_path: Path,
) -> None:
    redaction.remember("hunter2-token")
    what = "/project/matrix.yaml:3: hunter2-token in \udcff"
    path = record.write(tmp_path, night(0, failures=(failure(what=what),)), Path("/project"))
    found = record.read(path)
    assert isinstance(found, Record)
    assert found.failures[0].what == "matrix.yaml:3: *** in ?"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"format": 1', '"format": 2', "has format 2, and this version of imagefactory reads"),
        ('"format": 1', '"format": 2, "state": "odd"', "has format 2"),
        ('"size": 12100000000', '"size": -1', "cells.0.size: Input should be greater than"),
        ('"size": 12100000000', f'"size": {10**400}', "cells.0.size: Input should be less than"),
        ('"seconds": 1500.0', '"seconds": NaN', "cells.0.seconds"),
        ('"began": "2025', '"began": "9999', "began: Input should be less than"),
        ('"ended": "2025', '"ended": "0001', "ended: Input should be greater than"),
        ('"state": "pushed"', '"state": "odd"', "cells.0.state"),
        ('"cells": [', '"cells": ', "Invalid JSON"),
        ('"began"', '"begun"', "began: Field required"),
        ("02:17:00Z", "02:17:00", "timezone"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_problem(
    old: str, new: str, what: str, tmp_path: Path
) -> None:
    path = record.write(tmp_path, night(0, cell()), Path("/project"))
    text = path.read_text()
    if old not in text:
        pytest.fail(f"{old} is not in a record")
    path.write_text(text.replace(old, new))
    found = record.read(path)
    assert isinstance(found, Problem)
    assert (found.code, found.where) == ("record-unreadable", str(path))
    assert what in found.what


def test_a_file_that_is_no_file_is_a_problem_too(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        assert isinstance(record.read(path), Problem)


@pytest.mark.programs
def test_each_night_leaves_its_record_with_the_time_of_its_steps(tmp_path: Path) -> None:
    world = World(folder=tmp_path).start()
    world.fails["build", "gb10-0.34.0"] = SetupError(Problem(code="disk", what="full"))
    folder = nightly.folder_of(world.workspace)

    def publish(night: Night) -> None:
        observing.keep(world.workspace, night, folder)

    nightly.run(world.workspace, JOB, world.stations, publish)
    del world.fails["build", "gb10-0.34.0"]
    job = replace(JOB, now=NOW + timedelta(days=1))
    nightly.run(world.workspace, job, world.stations, publish)
    publish(Night(began=NOW + timedelta(days=2), project=world.project, quiet=True))
    found = [record.read(path) for path in sorted((folder / "records").iterdir())]
    first, second, third = (one for one in found if isinstance(one, Record))
    assert [(one.state, one.seconds is None) for one in first.cells] == [
        (CellState.PUSHED, False),
        (CellState.FAILED, False),
    ]
    assert first.cells[1].failures[0].code == "disk"
    assert [one.state for one in second.cells] == [CellState.UNCHANGED, CellState.PUSHED]
    assert second.cells[0].seconds is None
    assert (third.state, third.cells) == ("nothing new", ())

"""Several builders: which one gets which cells, and what happens if one of them is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.building import fleet, homes, sites
from imagefactory.building.fleet import Queue, spread
from imagefactory.errors import SetupError, fail
from imagefactory.system.engine import Engine

CELLS = [f"c{number}" for number in range(8)]


def queue(builders: Sequence[str], homes: Mapping[str, str] | None = None) -> Queue:
    return Queue(waiting=list(CELLS), homes=homes or {}, alive=list(builders))


def answers(_: str) -> None:
    """Every builder does."""


def dead(*names: str) -> Callable[[str], None]:
    def answers(builder: str) -> None:
        if builder in names:
            raise fail(SetupError, "no-builder", f"no builder {builder} answers", fix="start it")

    return answers


class Bakes:
    """Bakes on builders; note what ran where, and fail what is ``bad`` for its reason."""

    def __init__(self, bad: Mapping[tuple[str, str], str] | None = None) -> None:
        self.bad, self.calls = bad or {}, list[tuple[str, tuple[str, ...]]]()

    def __call__(self, builder: str, cells: Sequence[str]) -> dict[str, str]:
        self.calls.append((builder, tuple(cells)))
        return {c: self.bad[builder, c] for c in cells if (builder, c) in self.bad}

    def cells_of(self, builder: str) -> set[str]:
        return {cell for name, cells in self.calls if name == builder for cell in cells}


def run(queue: Queue, bakes: fleet.Bake, alive: Callable[[str], object]) -> dict[str, str]:
    return spread(queue, bakes, alive, threading.Event())


@pytest.mark.parametrize(
    ("homes", "taken"),
    [
        ({}, ["c0", "c1"]),
        ({"c5": "a", "c6": "a"}, ["c5"]),
        (dict.fromkeys(CELLS[:6], "b"), ["c6"]),
        (dict.fromkeys(CELLS, "b"), ["c7", "c6"]),
        (dict.fromkeys(CELLS, "gone"), ["c0", "c1"]),
    ],
    ids=["first", "own", "free", "of-others", "of-none"],
)
def test_a_builder_takes_what_it_has_cached_then_what_none_has_then_what_others_have(
    homes: dict[str, str], taken: list[str]
) -> None:
    assert queue("ab", homes).take("a") == taken


def test_every_cell_is_baked_once_and_no_builder_is_idle_while_cells_wait() -> None:
    both = threading.Barrier(2, timeout=20)  # broken unless both builders bake at the same time
    bakes = Bakes()

    def bake(builder: str, cells: Sequence[str]) -> dict[str, str]:
        if "c0" in cells or "c2" in cells:
            both.wait()
        return bakes(builder, cells)

    assert run(queue("ab"), bake, answers) == {}
    assert sorted(cell for _, cells in bakes.calls for cell in cells) == CELLS


@pytest.mark.parametrize(
    ("said", "alive"),
    [
        ("exit code: 1", dead("a")),
        ("rpc error: code = Unavailable desc = error reading from server: EOF", answers),
    ],
    ids=["gone", "connection-lost"],
)
def test_what_a_lost_builder_did_not_finish_is_baked_by_another(
    said: str, alive: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    bakes, began = Bakes({("a", "c1"): said}), threading.Event()

    def bake(builder: str, cells: Sequence[str]) -> dict[str, str]:
        if builder == "a":
            began.set()
        assert began.wait(20)  # or b might take the cell of a first
        return bakes(builder, cells)

    assert run(queue("ab", {**dict.fromkeys(CELLS, "b"), "c1": "a"}), bake, alive) == {}
    assert bakes.cells_of("a") == {"c1"}
    assert bakes.cells_of("b") == {*CELLS}
    assert "builder a is lost" in capsys.readouterr().err


def test_a_cell_that_fails_on_a_builder_that_answers_is_not_baked_again() -> None:
    bakes = Bakes({(builder, "c1"): "exit code: 1" for builder in "ab"})
    assert run(queue("ab"), bakes, answers) == {}
    assert sorted(cell for _, cells in bakes.calls for cell in cells) == CELLS


def test_cells_that_no_builder_is_left_for_are_reported_with_the_reasons() -> None:
    bakes = Bakes({(builder, cell): "EOF" for builder in "ab" for cell in CELLS[1:]})
    left = run(queue("ab", {"c0": "a"}), bakes, dead("a", "b"))
    assert sorted(left) == CELLS[1:]
    assert all(
        "a: no builder a answers; b: no" in w or "b: no builder b answers; a: no" in w
        for w in left.values()
    )


def test_an_error_of_a_bake_ends_the_other_builders() -> None:
    interrupted = threading.Event()

    def bake(builder: str, _: Sequence[str]) -> dict[str, str]:
        if builder == "b":
            raise ValueError("a bug")
        interrupted.wait(20)
        return {}

    with pytest.raises(ValueError, match="a bug"):
        spread(queue("ab"), bake, answers, interrupted)
    assert interrupted.is_set()


def test_where_an_image_was_built_last_is_kept(tmp_path: Path) -> None:
    homes.add(tmp_path, ["r:1", "r:2"], "a")
    homes.add(tmp_path, ["r:2"], "b")
    assert homes.read(tmp_path) == {"r:1": "a", "r:2": "b"}
    (tmp_path / "builders.json").write_text('["r:1"')
    assert homes.read(tmp_path) == {}


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    return FakeDocker(tmp_path)


@pytest.fixture
def engine(docker: FakeDocker) -> Engine:
    return Engine(binary=str(docker.program))


NODE = "Name: {0}\nDriver: remote\nNodes:\nPlatforms: {1}\n"


@pytest.mark.programs
def test_one_of_several_builders_that_does_not_answer_is_left_out(
    engine: Engine, docker: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    docker.answer("buildx inspect --bootstrap a", out=NODE.format("a", "linux/amd64"))
    docker.answer("buildx inspect --bootstrap b", err="ERROR: connection refused", code=1)
    docker.answer("buildx inspect --bootstrap c", out=NODE.format("c", "linux/arm64"))
    docker.answer("buildx ls", out='{"Name": "a"}\n{"Name": "b"}\n{"Name": "c"}\n')
    site = sites.find(engine, ["a", "b", "c", "a"])
    assert [one.builder_name for one in site.each()] == ["a", "c"]
    assert site.platforms == ("linux/amd64", "linux/arm64")
    assert "the builder b does not answer" in capsys.readouterr().err


@pytest.mark.programs
@pytest.mark.parametrize("names", [["a", "typo"], ["b"]])
def test_a_builder_that_does_not_exist_is_an_error_and_so_is_none_that_answers(
    engine: Engine, docker: FakeDocker, names: list[str]
) -> None:
    docker.answer("buildx inspect --bootstrap a", out=NODE.format("a", "linux/amd64"))
    docker.answer("buildx inspect", err="ERROR: not found", code=1)
    docker.answer("buildx ls", out='{"Name": "a"}\n{"Name": "b"}\n')
    with pytest.raises(SetupError) as caught:
        sites.find(engine, names)
    assert [problem.code for problem in caught.value.problems] == ["no-builder"]

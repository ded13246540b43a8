"""The command line of a night: exit codes, report, JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.nights import World
from support.program import Run, runner

from imagefactory.errors import Problem, SetupError
from imagefactory.matrix import matrix
from imagefactory.nightly import stations


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path).start()


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.folder / "state"))
    monkeypatch.setattr(stations, "real", lambda _: world.stations)
    return runner(monkeypatch, capsys, world.project, command="nightly")


@pytest.mark.programs
def test_the_report_is_printed_written_and_kept(world: World, run: Run) -> None:
    done = run("--to", "127.0.0.1:1/me/vllm", "--report", "report.md")
    assert done.code == 0
    assert done.out.startswith("# Night of ")
    assert (world.project / "report.md").read_text() == done.out
    (kept,) = (world.folder / "state").rglob("report.md")
    assert kept.read_text() == done.out


@pytest.mark.programs
def test_json_has_the_state_the_cells_and_what_broke(world: World, run: Run) -> None:
    problem = Problem(code="registry-failed", what="cut off")
    world.fails["push", "gb10-0.34.0"] = SetupError(problem)
    done = run("--to", "127.0.0.1:1/me/vllm", "--json")
    found = json.loads(done.out)
    assert (done.code, found["exit_code"], found["state"]) == (3, 3, "broken")
    assert [row["state"] for row in found["cells"]] == ["pushed", "push failed"]
    assert found["broken"][0]["problems"][0]["code"] == "registry-failed"


def test_a_dry_run_shows_what_is_new_and_changes_nothing(world: World, run: Run) -> None:
    assert run("--dry-run").out == "vllm 0.33.0 -> 0.34.0\n"
    assert json.loads(run("--dry-run", "--json").out)["news"] == ["vllm 0.33.0 -> 0.34.0"]
    assert run("--dry-run", "--report", "out/report.md").code == 0
    assert not (world.project / "out").exists()
    assert {*world.calls} == {"detect"}
    assert not (world.folder / "state/imagefactory/nightly").exists()


@pytest.mark.parametrize(
    "argv", [("--to", "no repository"), ("--max-cells", "-1"), ("--max-minutes", "soon")]
)
def test_wrong_options_are_refused_before_anything_is_done(
    argv: tuple[str, ...], world: World, run: Run
) -> None:
    assert run(*argv).code == 2
    assert world.calls == []


@pytest.mark.programs
def test_the_folder_of_the_report_is_made(world: World, run: Run) -> None:
    assert run("--no-push", "--report", "out/report.md").code == 0
    assert (world.project / "out/report.md").read_text().startswith("# Night of ")


@pytest.mark.parametrize("report", [".", "matrix.yaml/report.md"])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_done(
    report: str, world: World, run: Run
) -> None:
    done = run("--no-push", "--report", report)
    assert (done.code, "[system-refused]" in done.err) == (3, True)
    assert world.calls == []


@pytest.mark.parametrize(
    ("repository", "code"),
    [
        ("imagefactory/vllm", 2),
        ("vllm", 2),
        ("docker.io/me/vllm", 0),
        ("localhost/vllm", 0),
        ("spark:5000/vllm", 0),
    ],
)
@pytest.mark.programs
def test_images_that_have_no_registry_to_go_to_are_not_made(
    repository: str, code: int, world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, load = iter([SimpleNamespace(repository=repository)]), matrix.load
    monkeypatch.setattr(matrix, "load", lambda path: next(first, None) or load(path))
    done = run()
    assert (done.code, "[nightly-registry]" in done.err) == (code, code == 2)
    assert bool(world.calls) == (code == 0)
    assert run("--no-push").code == 0

"""Whole nights with recorded stations: what is done, what is not, and what the report says."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.nights import JOB, NOW, Killed, World

from imagefactory import redaction
from imagefactory.errors import CheckFailedError, InputError, Problem, SetupError, fail
from imagefactory.nightly import branch, nightly
from imagefactory.nightly.report import markdown
from imagefactory.nightly.values import Broken, Night, State
from imagefactory.system import files, locks

pytestmark = pytest.mark.programs

GOLDEN = Path(__file__).parent / "golden"
HUNK = "vllm/config.py:12: upstream and the patch changed the same lines\n    <<<<<<< patch"
LOG = "#9 12.3 error: no space left on device\n#9 ERROR: exit code: 1"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path).start()


def assert_report(night: Night, world: World, kind: str) -> None:
    """Compare a report with the golden file of its kind."""
    assert shown(night, world) == (GOLDEN / f"{kind}.md").read_text()


def failure(code: str, cell: str, what: str, detail: str = "") -> CheckFailedError:
    return CheckFailedError(Problem(code=code, where=cell, what=what, detail=detail))


def test_a_new_release_is_taken_over_and_gets_the_tag(world: World) -> None:
    night = world.night()
    assert_report(night, world, "taken-over")
    assert (night.state, night.exit_code) == (State.GREEN, 0)
    assert world.registry["nightly"] == "sha256:0.34.0"
    kept = nightly.folder_of(world.workspace) / "tree"
    assert (kept / "matrix.yaml").read_text() == "0.33.0\n0.34.0\n"
    assert (world.project / "matrix.yaml").read_text() == "0.33.0\n"


def test_a_night_without_anything_new_only_looks(world: World) -> None:
    world.upstream = "0.33.0"
    world.night()
    world.calls.clear()
    night = world.night(replace(JOB, now=NOW + timedelta(days=1)))
    assert world.calls == ["detect"]
    assert_report(night, world, "quiet")
    assert (night.state, night.exit_code) == (State.QUIET, 0)


def test_a_port_that_needs_hands_stops_only_its_cell_and_shows_the_hunk(world: World) -> None:
    world.hunk, world.registry["nightly"] = HUNK, "sha256:old"
    night = world.night()
    assert_report(night, world, "patch-conflict")
    assert night.exit_code == 1
    assert [call for call in world.calls if "gb10" in call] == [
        "build gb10-0.33.0",
        "verify gb10-0.33.0",
        "push gb10-0.33.0",
    ]
    assert world.registry["nightly"] == "sha256:old"
    world.hunk = ""  # somebody ported it: the next night does the rest, and nothing twice
    world.calls.clear()
    assert world.night(replace(JOB, now=NOW + timedelta(days=1))).state is State.GREEN
    assert world.registry["nightly"] == "sha256:0.34.0"
    assert "build gb10-0.33.0" not in world.calls


def test_a_row_that_cannot_be_locked_is_reported_and_the_others_go_on(world: World) -> None:
    world.refused = {"0.34.0"}
    night = world.night()
    assert_report(night, world, "lock-fails")
    assert night.exit_code == 1
    assert world.registry == {"0.33.0": "sha256:0.33.0", "nightly": "sha256:0.33.0"}
    world.refused = set()
    assert world.night(replace(JOB, now=NOW + timedelta(days=1))).state is State.GREEN
    assert world.registry["nightly"] == "sha256:0.34.0"


@pytest.mark.parametrize(
    ("step", "kind", "error", "code"),
    [
        ("build", "build-fails", failure("build-failed", "gb10-0.34.0", "exit code 1", LOG), 1),
        ("verify", "verify-fails", failure("check-failed", "gb10-0.34.0", "torch: no CUDA"), 1),
        ("push", "registry-dies", fail(SetupError, "registry-failed", "cut off in a layer"), 3),
    ],
)
def test_what_fails_in_a_cell_keeps_the_tag_where_it_was(
    step: str, kind: str, error: CheckFailedError, code: int, world: World
) -> None:
    world.registry["nightly"] = "sha256:old"
    world.fails[step, "gb10-0.34.0"] = error
    night = world.night()
    assert_report(night, world, kind)
    assert night.exit_code == code
    assert world.registry == {"0.33.0": "sha256:0.33.0", "nightly": "sha256:old"}
    del world.fails[step, "gb10-0.34.0"]
    world.calls.clear()
    assert world.night().exit_code == 0  # the next night repairs it, without doing more
    assert world.registry["nightly"] == "sha256:0.34.0"
    assert "build gb10-0.33.0" not in world.calls


def test_a_failed_lock_leaves_the_files_of_the_last_night(world: World) -> None:
    world.fails["take", ""] = fail(SetupError, "index-failed", "the index does not answer")
    night = world.night()
    assert night.exit_code == 3
    assert night.changed == ()
    assert world.registry["nightly"] == "sha256:0.33.0"


def test_cells_beyond_the_budget_are_left_for_the_next_night(world: World) -> None:
    job = replace(JOB, max_cells=1)
    night = world.night(job)
    assert_report(night, world, "budget")
    assert (night.state, night.exit_code, night.left) == (State.LEFT, 0, ("gb10-0.34.0",))
    assert "nightly" not in world.registry
    again = world.night(job)
    assert (again.state, again.left) == (State.GREEN, ())
    assert world.registry["nightly"] == "sha256:0.34.0"


def test_what_broke_last_night_does_not_use_up_the_budget_of_others(world: World) -> None:
    world.fails["build", "gb10-0.33.0"] = failure("build-failed", "gb10-0.33.0", "exit code 1")
    job = replace(JOB, max_cells=1)
    assert world.night(job).left == ("gb10-0.34.0",)
    assert world.night(job).left == ("gb10-0.33.0",)


def test_no_build_begins_once_the_time_is_up(world: World) -> None:
    assert world.night(replace(JOB, max_minutes=0)).left == ("gb10-0.33.0", "gb10-0.34.0")
    assert world.built == {}


def test_no_secret_is_in_the_report_or_the_journal(world: World) -> None:
    redaction.remember("hunter2-token")
    what = "https://me:hunter2-token@host/simple does not answer"
    world.fails["build", "gb10-0.33.0"] = failure("build-failed", "gb10-0.33.0", what, what)
    text = markdown(world.night())
    # the next night is like this one, and is killed at its last event
    world.kill_at, world.upstream = 2 * world.events, "0.35.0"
    with pytest.raises(Killed):
        world.night()
    kept = (nightly.folder_of(world.workspace) / "journal.json").read_text()
    for one in (text, kept):
        assert "does not answer" in one
        assert "hunter2-token" not in one


def test_a_name_that_is_no_utf8_keeps_no_night_from_its_end(world: World) -> None:
    name = os.fsdecode(b"patches/vllm/\xff/patch.yaml")
    world.fails["build", "gb10-0.33.0"] = failure("build-failed", "gb10-0.33.0", name, name)
    night = world.night()
    assert [one.where for one in night.broken] == ["gb10-0.33.0"]
    assert "patches/vllm/?/patch.yaml" in markdown(night)
    markdown(night).encode()


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": {"detect": {"of": "another version"}}},
        {"began": "2026-11-22T02:17:00"},  # without a time zone
    ],
)
def test_a_journal_that_this_version_does_not_understand_is_begun_again(
    damage: dict[str, object], world: World
) -> None:
    world.kill_at = 8
    with pytest.raises(Killed):
        world.night()
    path = nightly.folder_of(world.workspace) / "journal.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    world.kill_at = None
    assert world.night().state is State.GREEN


def test_an_error_names_the_files_of_the_project_and_not_those_of_the_night(world: World) -> None:
    copy = nightly.folder_of(world.workspace) / "tree"
    problem = Problem(code="matrix-syntax", where=f"{copy}/matrix.yaml:3", what=f"see {copy}/a")
    world.fails["detect", ""] = InputError(problem)
    with pytest.raises(InputError) as caught:
        world.night()
    (shown,) = caught.value.problems
    assert (shown.where, shown.what) == ("matrix.yaml:3", "see a")


def test_a_full_disk_in_a_step_is_reported_with_what_to_do(world: World) -> None:
    world.fails["take", ""] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "wheels.lock.part")
    night = world.night()
    (problem,) = (problem for one in night.broken for problem in one.problems)
    assert (night.exit_code, problem.code) == (3, "disk-full")
    assert problem.what == "wheels.lock.part: No space left on device"
    assert "imagefactory prune" in markdown(night)


def test_without_a_push_no_tag_moves(world: World) -> None:
    night = world.night(replace(JOB, push=False))
    assert night.state is State.GREEN
    assert {row.state for row in night.cells} == {"verified"}
    assert world.registry == {}


def test_an_outage_is_never_a_quiet_night(world: World) -> None:
    world.upstream = "0.33.0"
    world.night()
    problem = Problem(code="upstream-unknown", what="vllm: the index does not answer")
    world.outage = (Broken(where="upstream", step="detect", problems=(problem,), environment=True),)
    night = world.night()
    assert (night.state, night.exit_code) == (State.BROKEN, 3)
    world.outage = ()
    assert world.night().exit_code == 0


def test_a_second_run_at_the_same_time_is_refused(world: World) -> None:
    folder = nightly.folder_of(world.workspace)
    folder.mkdir(parents=True)
    with locks.claimed(folder / "lock", "a test"), pytest.raises(SetupError) as caught:
        world.night()
    assert [problem.code for problem in caught.value.problems] == ["already-running"]
    assert world.calls == []
    assert world.night().exit_code == 0


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The world, to be set, in which every file that is written is an event, before and after."""
    worlds: list[World] = []
    write = files.write_text

    def counted(path: Path, text: str) -> None:
        worlds[-1].event()
        write(path, text)
        worlds[-1].event()

    monkeypatch.setattr(files, "write_text", counted)
    return worlds


def test_a_night_killed_at_any_point_ends_as_an_undisturbed_one(
    tmp_path: Path, current: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "head", lambda _: "")  # without git: test_branch kills that, too

    def world_killed_at(number: int | None) -> World:
        folder = tmp_path / str(number)
        folder.mkdir()
        current.append(World(folder=folder, kill_at=number).start())
        return current[-1]

    undisturbed = world_killed_at(None)
    report = shown(undisturbed.night(), undisturbed)
    assert undisturbed.events > 40
    for number in range(1, undisturbed.events + 1):
        world = world_killed_at(number)
        with pytest.raises(Killed):
            world.night()
        assert {*world.registry.values()} <= world.verified
        assert shown(world.night(), world) == report
        assert world.registry == undisturbed.registry
        assert len(world.calls) <= len(undisturbed.calls) + 1  # the step that was cut off


def test_a_disk_that_is_full_at_any_point_is_reported_and_the_next_night_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "head", lambda _: "")
    write, left = files.write_text, [1000]

    def write_while_there_is_space(path: Path, text: str) -> None:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        write(path, text)

    monkeypatch.setattr(files, "write_text", write_while_there_is_space)
    undisturbed = world_in(tmp_path / "undisturbed")
    undisturbed.night()
    writes = 1000 - left[0]
    assert writes > 10
    for number in range(writes):
        world = world_in(tmp_path / str(number))
        left[0] = number
        with pytest.raises(OSError, match="No space left"):  # which the program reports, exit 3
            world.night()
        assert {*world.registry.values()} <= world.verified
        left[0] = 1000
        assert world.night(replace(JOB, now=NOW + timedelta(days=1))).state is State.GREEN
        assert world.registry == undisturbed.registry


def world_in(folder: Path) -> World:
    folder.mkdir()
    return World(folder=folder).start()


def shown(night: Night, world: World) -> str:
    """The report, without the folders of the test."""
    return markdown(night).replace(str(nightly.folder_of(world.workspace)), "NIGHT")

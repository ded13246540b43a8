"""The git branch of a night: what is on it, and that nobody's checkout changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.nights import JOB, Killed, World

from imagefactory.errors import InputError, SetupError
from imagefactory.nightly import branch, nightly
from imagefactory.nightly.nightly import UNCOMMITTED, folder_of
from imagefactory.nightly.values import State
from imagefactory.system import shell
from imagefactory.system.shell import Completed

pytestmark = pytest.mark.programs

#: What git does that changes something.
CHANGING = ("add", "commit", "merge", "update-ref", "checkout")
CHANGED = ["matrix.yaml", "nightly-report.md", "patches/vllm/mine/0.34.0.diff", "wheels.lock"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path).start(git=True)


def refused(world: World) -> list[str]:
    with pytest.raises(InputError) as caught:
        world.night()
    assert world.calls == []
    return [problem.code for problem in caught.value.problems]


def test_the_branch_has_the_row_the_lock_the_ported_patch_and_the_report(world: World) -> None:
    night = world.night()
    assert night.kept == "All of it is on the branch `nightly`."
    assert world.git("diff", "--name-only", "main", "nightly").splitlines() == CHANGED
    assert world.git("show", "nightly:matrix.yaml") == "0.33.0\n0.34.0"
    assert world.git("show", "nightly:nightly-report.md").startswith("# Night of 2026-11-22: green")
    assert world.git("log", "-1", "--format=%an %s", "nightly") == "me Night of 2026-11-22: green"


def test_the_checkout_and_its_branch_stay_as_they_are(world: World) -> None:
    before = world.git("rev-parse", "HEAD")
    world.night()
    assert world.git("status", "--porcelain", "--branch") == "## main"
    assert world.git("rev-parse", "HEAD") == before
    assert world.git("worktree", "list", "--porcelain").count("worktree ") == 1
    assert not (folder_of(world.workspace) / "tree").exists()


def test_a_project_in_a_folder_of_its_repository_is_worked_on_there(tmp_path: Path) -> None:
    world = World(folder=tmp_path).start(git=True)
    inner = world.project / "images"
    inner.mkdir()
    for name in ("matrix.yaml", "wheels.lock"):
        world.git("mv", name, f"images/{name}")
    world.commit("move")
    moved = branch._moved(world.workspace, inner)
    tree = branch.open_tree(moved, tmp_path / "tree", "nightly", lambda make: make())
    tree.workspace.matrix.write_text("0.34.0\n")
    assert tree.changed() == ("matrix.yaml",)
    tree.keep("# A night\n")
    assert world.git("show", "nightly:images/matrix.yaml") == "0.34.0"
    tree.restore()
    assert tree.workspace.matrix.read_text() == "0.33.0\n"


def test_the_next_night_goes_on_from_the_branch(world: World) -> None:
    world.night()
    tip = world.git("rev-parse", "nightly")
    assert world.night().state is State.QUIET
    assert world.git("rev-parse", "nightly") == tip


def test_what_a_person_committed_since_is_merged(world: World) -> None:
    world.night()
    (world.project / "README").write_text("mine")
    world.commit("read me")
    world.upstream = "0.35.0"
    (world.project / "patches").mkdir()
    assert world.night().exit_code == 0
    assert world.git("show", "nightly:README") == "mine"
    assert world.git("show", "nightly:matrix.yaml") == "0.33.0\n0.34.0\n0.35.0"


def test_a_branch_that_conflicts_with_what_a_person_committed_is_refused(world: World) -> None:
    world.night()
    world.calls.clear()
    (world.project / "matrix.yaml").write_text("0.33.0\n0.33.1\n")
    world.commit("mine")
    tip = world.git("rev-parse", "nightly")
    assert refused(world) == ["nightly-diverged"]
    assert world.git("rev-parse", "nightly") == tip


def test_what_conflicts_at_the_origin_is_removed_there(world: World) -> None:
    world.night()
    world.git("update-ref", "refs/remotes/origin/nightly", "nightly")
    world.git("branch", "-q", "-D", "nightly")
    (world.project / "matrix.yaml").write_text("0.33.0\n0.33.1\n")
    world.commit("mine")
    with pytest.raises(InputError, match="the branch origin/nightly conflicts") as caught:
        world.night()
    assert "git push origin --delete nightly" in caught.value.problems[0].fix


def test_a_branch_that_is_checked_out_is_refused(world: World) -> None:
    world.git("checkout", "-q", "-b", "nightly")
    assert refused(world) == ["nightly-branch"]


@pytest.mark.parametrize("branch", ["nights/of/me", "nights", "@{-1}"])
def test_a_branch_that_git_could_not_make_is_refused_before_hours_are_spent(
    branch: str, world: World
) -> None:
    world.git("branch", "nights/of")
    world.git("checkout", "-q", "-b", "other")
    with pytest.raises(InputError) as caught:
        world.night(replace(JOB, branch=branch))
    assert [problem.code for problem in caught.value.problems] == ["nightly-branch"]
    assert world.calls == []
    assert world.night(replace(JOB, branch="nights/on")).state is State.GREEN


@pytest.mark.parametrize(
    ("option", "fix"), [("--cached", "git add"), ("--force", "imagefactory lock, then git add")]
)
def test_a_lock_that_is_in_no_commit_is_refused(option: str, fix: str, world: World) -> None:
    world.git("rm", "-q", option, "wheels.lock")
    world.git("commit", "-q", "-m", "no lock")
    with pytest.raises(InputError) as caught:
        world.night()
    (problem,) = caught.value.problems
    assert problem.code == "nightly-uncommitted"
    assert problem.fix == f"{fix} wheels.lock, and commit it"


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    world = World(folder=tmp_path).start()
    world.git("init", "-q", "--template=")
    assert refused(world) == ["nightly-uncommitted"]


def test_a_repository_that_git_does_not_open_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(SetupError, match="dubious ownership") as caught:
        world.night()
    assert [problem.code for problem in caught.value.problems] == ["git-failed"]
    assert world.calls == []


def test_changes_that_are_in_no_commit_are_named_in_the_report(world: World) -> None:
    (world.project / "matrix.yaml").write_text("0.31.0\n")
    assert world.night().notes == (UNCOMMITTED,)
    assert world.git("show", "nightly:matrix.yaml") == "0.33.0\n0.34.0"


def test_a_killed_night_whose_work_tree_a_new_clone_does_not_know_begins_again(
    world: World,
) -> None:
    world.kill_at = 12
    with pytest.raises(Killed):
        world.night()
    shutil.rmtree(world.project / ".git" / "worktrees")
    assert world.night().state is State.GREEN
    assert world.git("diff", "--name-only", "main", "nightly").splitlines() == CHANGED


def test_a_killed_night_of_another_matrix_is_not_continued(world: World) -> None:
    (world.project / "other.yaml").write_text("0.32.0\n")
    world.commit("two matrices")
    world.kill_at = 12
    with pytest.raises(Killed):
        world.night()
    own = world.workspace
    other = replace(own, matrix=own.project / "other.yaml")
    night = nightly.run(other, JOB, world.stations, lambda _: None)
    assert [row.cell for row in night.cells] == ["gb10-0.32.0", "gb10-0.34.0"]


def test_a_night_killed_around_a_change_by_git_ends_with_the_same_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[World] = []
    run = shell.run

    def killed_after(argv: list[str], *, quiet: bool) -> Completed:
        done = run(argv, quiet=quiet)
        if {*CHANGING} & {*argv}:
            worlds[-1].git_calls += 1
            if worlds[-1].git_calls == worlds[-1].kill_at_git:
                raise Killed
        return done

    def world_killed_at(number: int) -> World:
        folder = tmp_path / str(number)
        folder.mkdir()
        worlds.append(World(folder=folder, kill_at_git=number).start(git=True))
        return worlds[-1]

    monkeypatch.setattr(shell, "run", killed_after)
    undisturbed = world_killed_at(0)
    undisturbed.night()
    tree = undisturbed.git("rev-parse", "nightly^{tree}")
    assert undisturbed.git_calls > 5
    for number in range(1, undisturbed.git_calls + 1):
        world = world_killed_at(number)
        with pytest.raises(Killed):
            world.night()
        assert world.night().exit_code == 0
        assert world.git("rev-parse", "nightly^{tree}") == tree
        assert world.git("rev-list", "--count", "nightly") == "2"
        assert len(world.calls) <= len(undisturbed.calls) + 1

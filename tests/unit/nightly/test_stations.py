"""The stations of a night: what they ask the others, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machine import settings
from support.nights import JOB
from support.plans import all_planned
from support.promoting import image, receipt_of, repository
from support.registry import FakeRegistry, fake_registry
from support.releases import using, write_patch
from support.watched import write

from imagefactory import opening, pipeline, workflows
from imagefactory.building.building import BuildResult
from imagefactory.errors import CheckFailedError, Problem, SetupError
from imagefactory.nightly import stations
from imagefactory.nightly.values import Done, Need
from imagefactory.patching import catalog, sources
from imagefactory.patching.check import Checked
from imagefactory.patching.status import step_for
from imagefactory.planning.decision import Action, Decision
from imagefactory.publishing.moving import Repository
from imagefactory.publishing.publishing import Delivery
from imagefactory.settings import Settings
from imagefactory.verifying.receipt import Outcome
from imagefactory.verifying.receipt_store import ReceiptStore
from imagefactory.workspace import Workspace

__all__ = ["using"]


@pytest.fixture
def workspace(tmp_path: Path, using: Settings) -> Workspace:
    write_patch(tmp_path)
    return Workspace(matrix=tmp_path / "matrix.yaml", project=tmp_path, settings=using)


def on_release(monkeypatch: pytest.MonkeyPatch, workspace: Workspace, version: str) -> None:
    """Let the cells a, which is built, and b, which is unchanged, be of that release."""
    decisions = [
        SimpleNamespace(plan=SimpleNamespace(cell=SimpleNamespace(name=name)), action=action)
        for name, action in (("a", Action.BUILD), ("b", Action.SKIP))
    ]
    monkeypatch.setattr(stations, "_planned", lambda _: (decisions, []))

    def check(_: Workspace, names: list[str]) -> tuple[Checked, ...]:
        assert names == ["a"]
        patch = catalog.load(*workspace.patches)["vllm/one"]
        tree = sources.fetch("vllm", version, workspace.settings)
        rows = opening.bench(workspace, [patch]).series(tree, [step_for(patch, tree)])
        stopping = [row for row in rows if row.state.stops_build]
        problems = tuple(Problem(code=f"patch-{r.state}", what=r.reason) for r in stopping)
        return (Checked(cell="a", rows=tuple(rows), problems=problems),)

    monkeypatch.setattr(workflows, "check_patches", check)


@pytest.mark.programs
def test_a_patch_that_drifted_is_ported_and_one_that_works_is_left_alone(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_release(monkeypatch, workspace, "0.20.0")
    assert stations.port_drifted(workspace) == Done()
    on_release(monkeypatch, workspace, "0.22.0")
    done = stations.port_drifted(workspace)
    (line,) = done.lines
    assert line == "vllm/one on 0.22.0: merged, added 0.22.diff to patches/vllm/one/patch.yaml"
    assert (done.broken, done.stops) == ((), ())
    assert stations.port_drifted(workspace) == Done()


@pytest.mark.programs
def test_a_conflict_stops_the_cell_with_the_hunk_in_every_night_until_it_is_resolved(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_release(monkeypatch, workspace, "0.24.0")
    done = stations.port_drifted(workspace)
    assert done.stops == ("a",)
    (broken,) = done.broken
    assert (broken.where, broken.step) == ("vllm/one on vllm 0.24.0", "port")
    assert "conflict (made for 0.20.0, on 0.24.0)" in broken.problems[0].what
    assert "pkg/x.py" in broken.problems[0].detail
    assert "patched" in broken.problems[0].detail
    again = stations.port_drifted(workspace)
    assert again.stops == ("a",)
    assert again.broken[0].problems[-1].code == "port-open"


def test_without_sources_the_build_checks_the_patches(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_release(monkeypatch, workspace, "0.24.0")

    def no_sources(*_: object) -> None:
        raise SetupError(Problem(code="sources", what="no index has them"))

    monkeypatch.setattr(workflows, "check_patches", no_sources)
    done = stations.port_drifted(workspace)
    assert done.lines == ("patches of a are checked by its build: no index has them",)
    assert done.stops == ()


MOVING = """
moving_tags:
  nightly: {when: {flavor: gb10}}
  "nightly-{flavor}": {}
  "latest-{flavor}": {}
  "stable-{flavor}": {level: gpu}
  by-hand: {}
  "also-{flavor}": {nightly: true, when: {flavor: cpu}}
"""


def test_a_tag_that_nights_move_is_for_the_newest_vllm_that_may_have_it(tmp_path: Path) -> None:
    declared = write(tmp_path, more=MOVING)
    newest = next(cell.name for cell in declared.cells if cell.vllm == "0.29.0")
    cpu = next(cell.name for cell in declared.cells if cell.flavor.name == "cpu")
    assert dict(stations.nightly_tags(declared)) == {
        "nightly": newest,
        "nightly-gb10": newest,
        "nightly-cpu": cpu,
        "latest-gb10": newest,
        "latest-cpu": cpu,
        "also-cpu": cpu,
    }
    held = MOVING.replace('"latest-{flavor}": {}', '"latest-{flavor}": {nightly: false}')
    found = dict(stations.nightly_tags(write(tmp_path, more=held)))
    assert [tag for tag in found if tag.startswith("latest")] == []


def test_only_nightly_goes_to_a_version_before_its_release(tmp_path: Path) -> None:
    newest = (
        ('"0.22.0", "0.29.0"', '"0.22.0", "0.29.0rc1"'),
        ('vllm: "0.29.0"', 'vllm: "0.29.0rc1"'),
    )
    declared = write(tmp_path, *newest, more=MOVING)
    vllm = {cell.name: cell.vllm for cell in declared.cells}
    found = {tag: vllm[name] for tag, name in stations.nightly_tags(declared)}
    assert (found["nightly-gb10"], found["latest-gb10"]) == ("0.29.0rc1", "0.22.0")


def test_a_tag_that_was_taken_back_stays_and_the_night_says_how_to_give_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: str) -> None:
        def promote(*_: object, **how: bool) -> None:
            assert how == {"unattended": True}
            raise CheckFailedError(Problem(code=code, what="it is back", fix="promote it"))

        monkeypatch.setattr(workflows, "promote", promote)

    refuse("promote-taken-back")
    line = stations.promote(_workspace(tmp_path), "a", "nightly", job=JOB)
    assert line == "`nightly` stays where it was: it is back; promote it"
    refuse("promote-failed-verify")
    with pytest.raises(CheckFailedError):
        stations.promote(_workspace(tmp_path), "a", "nightly", job=JOB)


def test_a_cell_needs_what_neither_the_engine_nor_the_registry_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    plans = all_planned()[:3]
    actions = (Action.BUILD, Action.SKIP, Action.BUILD)
    decisions = [
        Decision(plan=plan, action=action, reason="")
        for plan, action in zip(plans, actions, strict=True)
    ]
    monkeypatch.setattr(stations, "_planned", lambda _: (decisions, []))
    monkeypatch.setattr(stations, "_is_published", lambda plan, _: plan is plans[2])
    monkeypatch.setattr(workflows, "repository_of", lambda *_: "a repository")
    found = stations.targets(_workspace(tmp_path), job=JOB)
    assert [one.need for one in found.cells] == [Need.BUILD, Need.VERIFY, Need.NOTHING]
    offline = stations.targets(_workspace(tmp_path), job=replace(JOB, push=False))
    assert [one.need for one in offline.cells] == [Need.BUILD, Need.VERIFY, Need.BUILD]


def test_a_push_that_ended_early_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = SetupError(Problem(code="registry-failed", what="cut off"))
    monkeypatch.setattr(pipeline, "push", lambda *_: Delivery(pushed=(), error=error))
    with pytest.raises(SetupError):
        stations.push(_workspace(tmp_path), "a", to=None)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as found:
        yield found


def published(registry: FakeRegistry, folder: Path, *names: str, passed: bool) -> bool:
    """Whether a plan counts as published whose image has these tags besides its immutable one."""
    plan = all_planned()[0]
    digest = image(registry, plan.labels, *names)
    outcome = Outcome.PASS if passed else Outcome.FAIL
    ReceiptStore(folder=folder / "receipts").save(receipt_of(digest, plan.labels, outcome))
    found: Repository = repository(registry, folder)
    return stations._is_published(plan, found)


def test_a_cell_is_done_if_the_registry_has_it_verified_under_all_its_tags(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own = [tag.rpartition(":")[2] for tag in all_planned()[0].cell.tags]
    assert not stations._is_published(all_planned()[0], repository(registry, tmp_path))
    assert not published(registry, tmp_path, passed=True)  # its own tags are missing
    assert published(registry, tmp_path, *own, passed=True)
    assert not published(registry, tmp_path, *own, passed=False)


def test_a_failed_build_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    result = BuildResult(cell="a", ok=False, seconds=1, log=log, error="exit 1", reproduce="again")
    built = SimpleNamespace(error=CheckFailedError(result.problem), results={"a": result})
    monkeypatch.setattr(pipeline, "build", lambda *_, **__: built)
    with pytest.raises(CheckFailedError) as caught:
        stations.build(_workspace(tmp_path), "a")
    (problem,) = caught.value.problems
    assert problem.detail.splitlines() == [f"line {number}" for number in range(80, 100)]


def test_an_image_that_failed_or_vanished_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = all_planned()[0]
    record = receipt_of("sha256:1", plan.labels, Outcome.FAIL)
    actions: list[Action] = [Action.SKIP]
    planned: Any = SimpleNamespace(decisions=[SimpleNamespace(action=actions[0])])
    monkeypatch.setattr(pipeline, "plan", lambda *_, **__: planned)
    monkeypatch.setattr(pipeline, "verify_new", lambda *_: (record,))
    with pytest.raises(CheckFailedError):
        stations.verify(_workspace(tmp_path), "a")
    monkeypatch.setattr(pipeline, "verify_new", lambda *_: ())
    assert stations.verify(_workspace(tmp_path), "a") == "verified before"
    planned.decisions[0].action = Action.BUILD
    with pytest.raises(SetupError):
        stations.verify(_workspace(tmp_path), "a")


def _workspace(folder: Path) -> Workspace:
    using = settings(folder, "http://127.0.0.1:1/simple")
    return Workspace(matrix=folder / "matrix.yaml", project=folder, settings=using)

"""The commands about tags, on a small project and a fake registry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import projects
from support.machine import settings
from support.promoting import NEEDED, NOW, PATH, labels, receipt_of, verified
from support.registry import FakeRegistry
from typer.testing import CliRunner

from imagefactory import opening, workflows
from imagefactory.commands import history, promote, prune, rollback
from imagefactory.errors import FactoryError, InputError
from imagefactory.publishing import tags, vouching
from imagefactory.system import ui
from imagefactory.workspace import Workspace

OLD, NEW = labels("aaaaaaaa", vllm="0.10.0", day="2026-11-01"), labels("bbbbbbbb")
Run = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project with moving tags, on a machine without an engine."""
    path = projects.write(tmp_path)
    path.write_text(path.read_text() + "moving_tags: {nightly: {}}\n")
    monkeypatch.setattr(opening, "connect_if_any", lambda _: None)
    monkeypatch.setattr(workflows, "_needed", lambda _: NEEDED)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return Workspace(matrix=path, project=tmp_path, settings=settings(tmp_path))


@pytest.fixture
def run(registry: FakeRegistry, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; its JSON, its text, or the error that it raises."""
    monkeypatch.setattr(ui, "_results", [])

    def run(module: Any, *argv: str) -> Any:
        monkeypatch.setattr(module, "workspace_of", lambda _: workspace)
        repository = f"{registry.address}/{PATH}"
        done = CliRunner().invoke(module.app, [*argv, "--repository", repository])
        if isinstance(done.exception, FactoryError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return ui._results.pop() if "--json" in argv else done.output

    return run


def test_a_cell_is_promoted_by_the_image_that_its_plan_names(
    registry: FakeRegistry, workspace: Workspace, run: Run
) -> None:
    plan = workflows.check(workspace, [])[0]
    digest = registry.put(PATH, tags.of_plan(plan), {"sha256:1": 1}, labels=plan.labels)
    opening.receipts(workspace).save(receipt_of(digest, plan.labels))
    done = run(promote, plan.cell.name, "nightly", "--json")
    assert (done["digest"], done["image"]) == (digest, tags.of_plan(plan))
    assert registry.tags(PATH)["nightly"] == digest


def test_an_image_that_the_matrix_does_not_describe_is_promoted_and_gone_back_to(
    registry: FakeRegistry, workspace: Workspace, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (verified(registry, workspace.settings.state, own) for own in (OLD, NEW))
    for wanted in (str(tags.of_labels(OLD)), f"{registry.address}/{PATH}@{new}"):
        run(promote, wanted, "nightly")
    assert "it was sha256:" in run(rollback, "nightly", "--to", "1")
    assert registry.tags(PATH)["nightly"] == old
    rows = run(history, "nightly", "--json", "--last", "2")
    assert [(row["digest"], row["state"]) for row in rows] == [(old, "current"), (new, "past")]
    assert json.dumps(rows)
    shown = run(history, "nightly")
    assert "rollback by" in shown
    assert str(tags.of_labels(OLD)) in shown


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("ghcr.io/others/vllm:1", "reference-elsewhere"),  # --repository is another one
        ("sha256:12ab", "reference-wrong"),  # a reference of its own to Docker
    ],
)
def test_a_tag_is_moved_in_no_other_repository_than_the_one_that_is_named(
    wanted: str, code: str, run: Run
) -> None:
    with pytest.raises(InputError) as caught:
        run(promote, wanted, "nightly")
    assert [one.code for one in caught.value.problems] == [code]


def test_a_user_without_a_name_moves_a_tag(
    registry: FakeRegistry, workspace: Workspace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    verified(registry, workspace.settings.state, OLD)
    run(promote, str(tags.of_labels(OLD)), "nightly")
    assert "promote by 4000000000@" in run(history, "nightly")


def test_registry_images_are_removed_only_after_a_plan_and_a_yes(
    registry: FakeRegistry, workspace: Workspace, run: Run
) -> None:
    old = verified(registry, workspace.settings.state, OLD)
    verified(registry, workspace.settings.state, NEW)
    registry.put(PATH, "mine", {})
    before = registry.tags(PATH)
    for argv in (["--dry-run"], []):
        shown = run(prune, "--registry", "--keep", "1", *argv)
        assert old[:19] in shown.partition("kept")[0]
        assert registry.tags(PATH) == before
    assert run(prune, "--registry", "--keep", "1", "--yes", "--json")["removed"] is True
    assert {*before} - {*registry.tags(PATH)} == {str(tags.of_labels(OLD))}


def test_an_image_that_a_file_pins_stays_and_a_file_that_cannot_be_read_keeps_all(
    registry: FakeRegistry, workspace: Workspace, run: Run, tmp_path: Path
) -> None:
    newest = labels("cccccccc", day="2026-11-21")
    old, new, _ = (verified(registry, workspace.settings.state, one) for one in (OLD, NEW, newest))
    elsewhere, before = tmp_path / "deploy", registry.tags(PATH)
    elsewhere.mkdir()
    (tmp_path / "cluster.yaml").write_text(f"image: ghcr.io/me/vllm@{old}\n")
    (elsewhere / "pod.yaml").write_text(f"image: me/vllm:{tags.of_labels(NEW)}\n")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/broken.yaml").write_bytes(b"\xff")
    argv = ["--registry", "--keep", "1", "--yes", "--json"]
    with pytest.raises(InputError, match=r"broken.yaml: cannot be read"):
        run(prune, *argv)
    assert registry.tags(PATH) == before
    (tmp_path / "recipes/broken.yaml").unlink()
    kept = run(prune, *argv, "--pinned-by", str(elsewhere))["kept"]
    why = {row["digest"]: row["why"].rpartition("/")[2] for row in kept}
    assert (why[old], why[new]) == ("cluster.yaml pins it", "pod.yaml pins it")
    assert registry.tags(PATH) == before
    run(prune, *argv)
    assert {*before} - {*registry.tags(PATH)} == {str(tags.of_labels(NEW))}


@pytest.mark.parametrize(
    "argv",
    [
        ["--registry"],
        ["--keep", "3"],
        ["--registry", "--keep", "3", "--all"],
        ["--pinned-by", "x"],
        [],
    ],
)
def test_options_that_do_not_belong_together_are_refused(run: Run, argv: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        run(prune, *argv)
    assert caught.value.problems[0].code == "usage"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nightly", ("own/x", "nightly")),
        ("sha256:" + "1" * 64, ("own/x", "sha256:" + "1" * 64)),
        ("ghcr.io/me/x:1", ("ghcr.io/me/x", "1")),
        ("h:5000/me/x:1@sha256:" + "1" * 64, ("h:5000/me/x", "sha256:" + "1" * 64)),
        ("ghcr.io/me/x", None),
        ("https://ghcr.io/me/x:1", None),
        ("../x", None),
    ],
)
def test_what_names_an_image_is_a_tag_a_digest_or_a_reference(
    text: str, found: tuple[str, str] | None
) -> None:
    if found:
        assert vouching.reference_of(text, "own/x") == found
        return
    with pytest.raises(InputError):
        vouching.reference_of(text, "own/x")


def test_a_wrong_repository_is_refused(workspace: Workspace) -> None:
    with pytest.raises(InputError) as caught:
        workflows.rollback(workspace, "nightly", None, "ghcr.io/me/x:tag", NOW)
    assert caught.value.problems[0].where == "--repository"

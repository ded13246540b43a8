"""``imagefactory build`` as a user sees it; the pipeline is a stand-in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.machine import settings
from support.matrices import write as write_matrix
from support.plans import inputs_with
from support.plans import planned as plan_of
from support.program import Run, run

from imagefactory import pipeline
from imagefactory.building.building import BuildResult
from imagefactory.locking.lock import Lock
from imagefactory.planning.decision import Action, Decision
from imagefactory.results import Built, Planned
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt

__all__ = ["run"]


def test_the_command_that_verifies_a_folder_of_images_names_it_and_the_matrix(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_with(Lock(created="", tools=(), resolutions=()), settings(tmp_path))
    planned = Planned(inputs=inputs, bases={}, decisions=(), images=None, site=None)
    done = BuildResult(cell="one", ok=True, seconds=1, log=tmp_path / "log", error="", reproduce="")
    built = Built(planned=planned, stopped={}, results={"one": done}, receipts=())
    monkeypatch.setattr(pipeline, "build", lambda *_, **__: built)
    file = write_matrix(tmp_path)
    words = ("build", "--matrix", str(file), "--select", "flavor=gb10", "--output", "my images")
    shown = run(*words, cwd=tmp_path).err.partition("not verified yet: ")[2]
    assert shlex.split(shown) == [
        *("imagefactory", "verify", "--from", "my images"),
        *("--select", "flavor=gb10", "--file", str(file)),
    ]
    plain = run("build", "--matrix", "--output", "images", cwd=tmp_path)
    assert plain.err == "not verified yet: imagefactory verify --from images\n"


def test_json_has_the_checks_that_failed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of()
    failed = CheckResult(name="torch", outcome=Outcome.FAIL, required=True, detail="no", seconds=0)
    receipt = Receipt(
        digest="sha256:0",
        tag=plan.cell.tag,
        cell=plan.cell.name,
        build_key=plan.build_key,
        verified_at="now",
        checks=(failed,),
    )
    inputs = inputs_with(Lock(created="", tools=(), resolutions=()), settings(tmp_path))
    decisions = (Decision(plan=plan, action=Action.SKIP, reason=""),)
    planned = Planned(inputs=inputs, bases={}, decisions=decisions, images=None, site=None)
    built = Built(planned=planned, stopped={}, results={}, receipts=(receipt,))
    monkeypatch.setattr(pipeline, "build", lambda *_, **__: built)
    write_matrix(tmp_path)
    done = run("build", "--matrix", "--json", cwd=tmp_path)
    (row,) = json.loads(done.out)
    assert done.code == 1
    assert [one["outcome"] for one in row["receipt"]["checks"]] == ["fail"]
    assert (row["result"], row["stopped"]) == (None, [])

"""``imagefactory audit`` as a user sees it, and what it stops: wheels that cannot work together."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.elf_files import Elf
from support.index import serve, unpacker, wheel
from support.machine import settings
from support.matrices import write as write_matrix
from support.plans import inputs_with, locked_bases
from support.plans import planned as plan_of
from support.program import Run, runner

from imagefactory import opening, pipeline, workspace
from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit
from imagefactory.building import sites
from imagefactory.building.building import BuildResult
from imagefactory.errors import CheckFailedError, Problem
from imagefactory.locking import bases
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell
from imagefactory.planning import planning
from imagefactory.planning.decision import Action, Decision
from imagefactory.planning.planning import Inputs
from imagefactory.results import Planned, Watcher
from imagefactory.workspace import Workspace

EXTENSION = Elf(
    needed=["libc10.so"], imports=["_ZN3c104goneEv", "_ZN3c104hereEv"], gpu=["sm_120f", "sm_90a"]
)


@pytest.fixture
def project(tmp_path: Path, own_uv_cache: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with one cell, whose vLLM was built for another torch."""
    files = tmp_path / "files"
    members = {"vllm/_C.abi3.so": EXTENSION.build()}
    wheel(files, "vllm", "0.22.1", files=members)
    version = "__version__ = '2.11.0+cu130'\ncuda = '13.0'\n"
    library = Elf(exports=["_ZN3c104hereEv"]).build()
    members = {"torch/version.py": version.encode(), "torch/lib/libc10.so": library}
    wheel(files, "torch", "2.11.0", files=members)
    unpacker(files, "0.13.8")
    path = write_matrix(tmp_path)
    text = path.read_text().replace("[vllm/one]", "[]")
    text = text.replace(', "0.33.0"', "").replace(', "2.14.0"', "")
    path.write_text(text[: text.index("include:")])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(bases, "_locked", locked_bases)  # Debian's archive takes seconds
    with serve(files, tmp_path / "www") as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield tmp_path


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys, project)


@pytest.mark.programs
def test_a_lock_is_written_and_says_which_cells_cannot_work(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("lock", "--json")
    found = json.loads(done.out)
    assert (done.code, found["written"]) == (1, True)
    assert [row["state"] for row in found["audits"]] == ["bad"]
    assert [row["code"] for row in found["errors"]] == ["audit-symbols"]
    done = run("lock")
    assert done.code == 1
    assert "_C of vllm 0.22.1 does not load with torch 2.11.0+cu130: 1 symbol is" in done.err
    assert "_ZN3c104goneEv (_C)" in done.err
    assert "_ZN3c104hereEv" not in done.err
    assert run("lock", "--no-audit").code == 0
    done = run("audit")
    assert done.code == 1
    assert "bad     audit-symbols" in done.out
    assert "_C         family   sm_120f (1)" in done.out
    (row,) = json.loads(run("audit", "gb10-*", "--json").out)
    assert (row["state"], row["gpu"]) == ("bad", "sm_121")
    assert row["extensions"][0]["targets"] == {"sm_120f": 1, "sm_90a": 1}
    assert run("audit", "no-such-cell").code == 2
    assert not list((project / "cache").rglob("*.whl"))  # its parts were read
    recalled = [*(project / "cache").rglob("*")]
    done = run("plan")
    assert done.code == 1
    assert re.search(r"gb10\S+ +blocked +\w{12} +bad +audit-symbols: _C of vllm 0.22.1", done.out)
    (row,) = json.loads(run("plan", "--json").out)
    assert (row["action"], row["audit"]["state"]) == ("blocked", "bad")
    assert [one["code"] for one in row["audit"]["problems"]] == ["audit-symbols"]
    done = run("plan", "--check")
    assert (done.code, done.out) == (1, "")
    assert "error: matrix.yaml:27: _C of vllm 0.22.1 does not load" in done.err
    monkeypatch.setattr(opening, "connect", lambda *_: None)
    dry = ("build", "--matrix", "--dry-run")
    assert [run(*dry).code, run(*dry, "--no-audit").code] == [1, 0]
    (row,) = json.loads(run(*dry, "--no-audit", "--json").out)
    assert (row["action"], row["audit"]["state"]) == ("build", "not audited")
    assert [*(project / "cache").rglob("*")] == recalled
    inputs = opening.read(workspace.find(project / "matrix.yaml", os.environ))
    shutil.rmtree(project / "cache")
    assert run("lock").code == 0  # nothing has changed, and an audit would take its time
    done = run("plan")
    assert (done.code, "build   " in done.out, "not audited" in done.out) == (0, True, True)
    assert json.loads(run("plan", "--json").out)[0]["audit"] == {
        "state": "not audited",
        "problems": [],
    }
    done = run("plan", "--check", "--json")
    assert (done.code, [*json.loads(done.out)["audits"].values()]) == (0, ["not audited"])
    auditing.audit_cells(inputs.matrix.cells, inputs, before_build=True)
    kept = sorted(path.name for path in (project / "cache" / "imagefactory").rglob("*.whl"))
    assert kept == ["torch-2.11.0-py3-none-any.whl", "vllm-0.22.1-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("before", "skip", "given", "baked"),
    [
        (True, False, ["other"], ["other"]),  # refused at once
        (False, False, ["one", "other"], ["other"]),  # found while layers are made
        (False, True, ["one", "other"], ["one", "other"]),
    ],
)
def test_a_build_leaves_out_cells_whose_wheels_cannot_work_together(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: bool,
    skip: bool,
    given: list[str],
    baked: list[str],
) -> None:
    plans = [replace(plan_of(), cell=replace(plan_of().cell, name=one)) for one in ("one", "other")]
    wrong = Problem(code="audit-symbols", what="does not load")
    unknown = Problem(code="not-audited", what="other is not audited: no network")
    audits = (Audit(cell="one", problems=(wrong,)), Audit(cell="other", unknown=unknown))

    def audit(cells: list[Cell], _: Inputs, *, unless_long: Container[str] = (), **__: bool) -> Any:
        names = {cell.name for cell in cells}
        return [one for one in audits if one.cell in names and (before or not unless_long)]

    inputs = inputs_with(Lock(created="", tools=(), resolutions=()), settings(tmp_path))
    decisions = tuple(Decision(plan=one, action=Action.BUILD, reason="") for one in plans)
    planned = Planned(inputs=inputs, bases={}, decisions=decisions, images=None, site=None)
    answers: tuple[tuple[ModuleType, str, object], ...] = (
        (opening, "connect", None),
        (opening, "read", inputs),
        (planning, "split", ([], ())),
        (sites, "find", SimpleNamespace()),
        (pipeline, "make_wheels", (inputs, ())),
        (pipeline, "plan_cells", planned),
        (pipeline, "_blocked_by_patches", {}),
    )
    for module, name, answer in answers:
        monkeypatch.setattr(module, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(auditing, "audit_cells", audit)
    seen: dict[str, list[str]] = {}

    def bake(*args: Any) -> dict[str, BuildResult]:
        seen["given"] = [one.cell.name for one in args[1]]
        stopped = args[-1]()
        seen["baked"] = [name for name in seen["given"] if name not in stopped]
        return {}

    monkeypatch.setattr(pipeline, "bake", bake)
    place = Workspace(
        matrix=tmp_path / "matrix.yaml", project=tmp_path, settings=settings(tmp_path)
    )
    built = pipeline.build(place, [], Watcher(), skip_audit=skip, skip_verify=True)
    assert seen == {"given": given, "baked": baked}
    assert built.stopped == ({} if skip else {"one": (wrong,)})
    assert isinstance(built.error, CheckFailedError) is not skip
    assert ("warning: other is not audited" in capsys.readouterr().err) is not skip

"""One bake for all cells: who is blamed for a failure, and who goes on."""

from __future__ import annotations

import json
import stat
import sys
import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.machine import DOWN, settings
from support.plans import STACK, planned

from imagefactory.building import bakefile, building, disk, homes, layouts
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.contexts import Contexts
from imagefactory.building.loopback import Loopback
from imagefactory.building.sites import Site
from imagefactory.building.stack import stack
from imagefactory.building.stack.stack import Stack
from imagefactory.errors import SetupError, fail
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.system.engine import Builder, Engine
from imagefactory.system.platforms import Platform

pytestmark = pytest.mark.programs

FAKE = """\
#!{python} -IS
import json, pathlib, sys
here = pathlib.Path(__file__).parent
words = sys.argv[sys.argv.index("--file") + 3:]
names = words
before = sys.argv[1:sys.argv.index("--file")]
for file, row in ("calls", names), ("before", before):
    with (here / file).open("a") as rows:
        rows.write(json.dumps(row) + "\\n")
bad = json.loads((here / "bad").read_text())
for name in names:
    error = "exit code: 1" if name in bad else "context canceled" if set(names) & set(bad) else ""
    target = bad.get(name) or name
    vertex = {"digest": name, "name": f"[{target} layer 1/1] RUN x", "error": error}
    print(json.dumps({"vertexes": [{**vertex, "started": "t", "completed": "t"}]}))
sys.exit(1 if set(names) & set(bad) else 0)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A fake docker whose bake fails for chosen cells, as the real engine does not on demand."""
    program = tmp_path / "docker"
    program.write_text(FAKE.replace("{python}", sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    made = Engine(binary=str(program))
    made.data_root = "/elsewhere"  # an engine on another machine: its disk is not judged
    return made


def run(
    tmp_path: Path, engine: Engine, bad: dict[str, str]
) -> tuple[dict[str, building.BuildResult], list[list[str]]]:
    (tmp_path / "bad").write_text(json.dumps(bad))
    made = planned()
    plans = [replace(made, cell=replace(made.cell, name=name)) for name in "abc"]
    results = building.bake(engine, plans, tmp_path / "bake.json", tmp_path / "logs")
    return {result.cell: result for result in results}, rows(tmp_path / "calls")


def rows(file: Path) -> list[list[str]]:
    """What the fake docker noted in ``file``."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_all_cells_are_one_bake(tmp_path: Path, engine: Engine) -> None:
    results, calls = run(tmp_path, engine, {})
    assert calls == [["a", "b", "c"]]
    assert all(result.ok for result in results.values())


def test_the_failure_of_one_cell_stops_no_other(tmp_path: Path, engine: Engine) -> None:
    results, calls = run(tmp_path, engine, {"b": ""})
    assert calls == [["a", "b", "c"], ["a", "c"]]
    assert [results[name].ok for name in "abc"] == [True, False, True]
    assert "exit code: 1" in results["b"].error
    assert results["b"].reproduce.endswith("--progress=plain b")
    assert "exit code: 1" in results["b"].log.read_text()


def test_the_failure_of_a_shared_base_is_the_failure_of_every_cell_on_it(
    tmp_path: Path, engine: Engine
) -> None:
    results, _ = run(tmp_path, engine, {"b": "builder-trixie-amd64"})
    assert not any(result.ok for result in results.values())


def test_a_base_that_was_half_sent_is_sent_again_and_the_build_goes_on(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "Resend", once(lambda: (tmp_path / "bad").write_text("{}")))
    results, calls = run(tmp_path, engine, {"a": ""})
    assert calls == [["a", "b", "c"], ["a", "b", "c"]]
    assert all(result.ok for result in results.values())


def once(act: Callable[[], object]) -> type:
    """A stand-in for Resend that helps whatever the error is."""

    class Helps:
        def __init__(self, file: Path, _: object) -> None:
            assert file.name == "bake.json"

        def helps(self, errors: Iterable[str]) -> bool:
            assert "exit code: 1" in next(iter(errors))
            act()
            return True

        def end(self) -> None:
            pass

    return Helps


def built(
    tmp_path: Path,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    options: BakeOptions,
    stopped: Callable[[], Container[str]] = tuple,
) -> list[building.BuildResult]:
    """Build three cells: the bake of the second fails, and the layers of the third."""
    (tmp_path / "bad").write_text('{"b": ""}')
    monkeypatch.setattr(bakefile, "write_cells", lambda *_: tmp_path / "bake.json")

    def make(plan: CellPlan, *_: object, **__: object) -> Stack:
        if plan.cell.name == "c":
            raise fail(SetupError, "wheel-gone", "not found on any index", where="w.whl")
        return STACK

    monkeypatch.setattr(stack, "make", make)
    contexts = Contexts(
        folder=tmp_path / "contexts",
        templates=(ROOT / "templates",),
        unpackers=(),
        settings=settings(tmp_path, DOWN),
    )
    made = planned()
    plans = [replace(made, cell=replace(made.cell, name=name)) for name in "abc"]
    monkeypatch.setattr(Site, "platform", made.cell.platform)
    return building.build(plans, {}, site, contexts, options, tmp_path / "logs", stopped)


def test_a_cell_whose_layers_cannot_be_made_stops_no_other(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = built(tmp_path, Site(engine=engine), monkeypatch, BakeOptions())
    assert [(result.cell, result.ok) for result in results] == [
        *(("a", True), ("b", False), ("c", False))
    ]
    assert rows(tmp_path / "calls") == [["a", "b"], ["a"]]
    assert results[2].error == "not found on any index"
    assert "not found on any index" in results[2].log.read_text()


def test_a_cell_that_is_stopped_while_layers_are_made_is_not_baked(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=30)
    stacks = building._stacks

    def make(*args: Any) -> object:
        both.wait()
        return stacks(*args)

    def stopped() -> set[str]:
        both.wait()  # at the same time
        return {"a"}

    monkeypatch.setattr(building, "_stacks", make)
    results = built(tmp_path, Site(engine=engine), monkeypatch, BakeOptions(), stopped)
    assert [(result.cell, result.ok) for result in results] == [("b", False), ("c", False)]
    assert rows(tmp_path / "calls") == [["b"]]


def test_nothing_is_baked_if_what_judges_the_cells_fails(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> set[str]:
        raise fail(SetupError, "audit-unreadable", "gone", where="w.whl")

    with pytest.raises(SetupError, match="gone"):
        built(tmp_path, Site(engine=engine), monkeypatch, BakeOptions(), stopped)
    assert not (tmp_path / "calls").exists()


def test_what_cannot_fit_the_disk_is_refused_before_layers_are_made(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free", lambda _: disk.GIB)
    with pytest.raises(SetupError) as caught:
        built(tmp_path, Site(engine=engine), monkeypatch, BakeOptions())
    assert caught.value.problems[0].code == "disk-full"
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_build_into_a_folder_finishes_the_layouts_of_images_that_were_built(
    named: bool, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Path] = []
    monkeypatch.setattr(layouts, "finish", lambda layout, _: finished.append(layout))
    far = Builder(name="far", driver="docker-container", platforms=(Platform.ARM64,))
    site = Site(engine=engine, builders=(far,) if named else ())
    built(tmp_path, site, monkeypatch, BakeOptions(output=tmp_path / "out"))
    assert finished == [tmp_path / "out" / "a"]
    words = rows(tmp_path / "before")
    assert len(words) == 2
    assert all(("--builder" in one) == named for one in words)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize(("shares", "named"), [(True, False), (True, True), (False, False)])
def test_only_an_engine_on_this_machine_gets_layers_from_a_registry_on_it(
    shares: bool, named: bool, store: bool, tmp_path: Path, engine: Engine
) -> None:
    engine.shares_loopback, engine.has_containerd_store = shares, store
    far = Builder(name="far", driver="remote", platforms=(Platform.ARM64,))
    site = Site(engine=engine, builders=(far,) if named else ())
    for output in (None, tmp_path / "out"):
        options, reached = BakeOptions(output=output), shares and not named
        with building._serving(site, options, tmp_path / "layouts") as found:
            assert (found.loopback is not None) == (reached and (store or output is not None))
            if found.loopback:
                assert found.loopback.output == (output or tmp_path / "layouts")


@pytest.mark.parametrize("lost", [True, False])
def test_an_engine_that_cannot_reach_the_registry_writes_the_folder_itself(
    lost: bool, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.shares_loopback = True
    monkeypatch.setattr(Loopback, "is_lost", lambda *_: lost)
    monkeypatch.setattr(layouts, "finish", lambda *_: None)
    options = BakeOptions(output=tmp_path / "out")
    a, b, _ = built(tmp_path, Site(engine=engine), monkeypatch, options)
    assert (a.ok, b.ok) == (True, False)
    assert rows(tmp_path / "calls") == [["a", "b"], ["a"]] * (2 if lost else 1)


@pytest.mark.parametrize("answer", [True, False])
def test_cells_are_spread_over_builders_and_the_state_folder_has_who_built_them(
    answer: bool, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Builder(name="far", driver="remote", platforms=(Platform.ARM64,))
    site = Site(engine=engine, builders=(far, replace(far, name="near")))
    if answer:  # the fake docker knows no builders
        monkeypatch.setattr(Engine, "builder", lambda *_: far)
    a, b, _ = built(tmp_path, site, monkeypatch, BakeOptions())
    assert (a.ok, b.ok) == (True, False)
    assert homes.read(tmp_path) == {planned().cell.tag: a.builder}
    assert a.builder in ("far", "near")
    assert ("exit code: 1" in b.error) == answer
    assert ("no builder is left" in b.error) != answer
    named = [one[one.index("--builder") + 1] for one in rows(tmp_path / "before")]
    assert a.builder in named

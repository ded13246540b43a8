"""One bake for all cells: who is blamed for a failure, and who goes on."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.machine import DOWN, settings
from support.plans import planned

from imagefactory.building import bakefile, building, disk, layouts
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.contexts import Contexts
from imagefactory.building.sites import Site
from imagefactory.errors import SetupError
from imagefactory.system.engine import Builder, Engine
from imagefactory.system.platforms import Platform

FAKE = """\
#!{python} -IS
import json, pathlib, sys
here = pathlib.Path(__file__).parent
if "bake" not in sys.argv:
    with (here / "others").open("a") as others:
        others.write(json.dumps(sys.argv[1:]) + "\\n")
    print((here / "du").read_text() if "du" in sys.argv else "")
    sys.exit(0)
words = sys.argv[sys.argv.index("--file") + 3:]
names = words[:words.index("--set")] if "--set" in words else words
before = sys.argv[1:sys.argv.index("--file")]
for file, row in ("calls", names), ("overrides", words[len(names):]), ("before", before):
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


def test_what_cannot_fit_the_disk_is_refused_before_anything_runs(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free", lambda _: disk.GIB)
    with pytest.raises(SetupError) as caught:
        run(tmp_path, engine, {})
    assert caught.value.problems[0].code == "disk-full"
    assert not (tmp_path / "calls").exists()


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
    results, _ = run(tmp_path, engine, {"b": "base-trixie-arm64"})
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
        def __init__(self, file: Path) -> None:
            assert file.name == "bake.json"

        def helps(self, errors: Iterable[str]) -> bool:
            assert "exit code: 1" in next(iter(errors))
            act()
            return True

    return Helps


CACHE = """\
ID:\t\tstage-a
Size:\t\t2GB
Reclaimable:\ttrue
Description:\tmount / from exec /bin/sh -c python3 -m factory.layer small

ID:\t\tstage-b
Size:\t\t2GB
Reclaimable:\tfalse
Description:\tmount / from exec /bin/sh -c python3 -m factory.layer used

ID:\t\tpatched-is-based-on-this
Size:\t\t2GB
Reclaimable:\ttrue
Description:\tmount / from exec /bin/sh -c python3 -m factory.layer vllm

ID:\t\tcopy
Size:\t\t2GB
Reclaimable:\ttrue
Description:\t[image 1/9] COPY --link --from=layer-small /out/root/ /
"""


def into_a_folder(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> list[building.BuildResult]:
    """Build two cells, of which the second fails, into the folder ``out``."""
    (tmp_path / "bad").write_text('{"b": ""}')
    (tmp_path / "du").write_text(CACHE)
    monkeypatch.setattr(bakefile, "write_cells", lambda *_: tmp_path / "bake.json")
    contexts = Contexts(
        folder=tmp_path / "contexts",
        templates=(ROOT / "templates",),
        unpackers=(),
        settings=settings(tmp_path, DOWN),
    )
    made = planned()
    plans = [replace(made, cell=replace(made.cell, name=name)) for name in "ab"]
    monkeypatch.setattr(Site, "platform", made.cell.platform)
    options = BakeOptions(output=tmp_path / "out")
    return building.build(plans, {}, site, contexts, options, tmp_path / "logs")


def test_a_build_into_a_folder_drops_the_stages_before_it_exports(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Path] = []
    monkeypatch.setattr(layouts, "finish", lambda layout, _: finished.append(layout))
    results = into_a_folder(tmp_path, Site(engine=engine), monkeypatch)
    assert [(result.cell, result.ok) for result in results] == [("a", True), ("b", False)]
    assert rows(tmp_path / "calls") == [["a", "b"], ["a"], ["a"]]
    assert rows(tmp_path / "overrides")[1:] == [["--set", "a.output=type=cacheonly"], []]
    removed = [words[-1] for words in rows(tmp_path / "others") if "prune" in words]
    assert removed == ['id="^(stage-a)$"']
    assert finished == [tmp_path / "out" / "a"]
    assert results[0].log.read_text() != ""


def test_a_build_into_a_folder_runs_and_exports_on_the_builder_that_was_named(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Path] = []
    monkeypatch.setattr(layouts, "finish", lambda layout, _: finished.append(layout))
    far = Builder(name="far", driver="docker-container", platforms=(Platform.ARM64,))
    results = into_a_folder(tmp_path, Site(engine=engine, builder=far), monkeypatch)
    assert [(result.cell, result.ok) for result in results] == [("a", True), ("b", False)]
    before = rows(tmp_path / "before")
    assert len(before) == 3
    assert all(words[words.index("--builder") + 1] == "far" for words in before)
    assert rows(tmp_path / "overrides")[1:] == [["--set", "a.output=type=cacheonly"], []]
    assert not (tmp_path / "others").exists()  # the engine's own cache is none of its business
    assert finished == [tmp_path / "out" / "a"]

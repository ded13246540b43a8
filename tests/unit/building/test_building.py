"""One bake for all cells: who is blamed for a failure, and who goes on."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from support.plans import planned

from imagefactory.building import building, disk
from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine

FAKE = """\
#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
names = sys.argv[sys.argv.index("--file") + 3:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(names) + "\\n")
bad = json.loads((here / "bad").read_text())
for name in names:
    error = "exit code: 1" if name in bad else "context canceled" if set(names) & set(bad) else ""
    target = bad.get(name) or name
    print(json.dumps({"vertexes": [{"digest": name, "name": f"[{target} layer 1/1] RUN x", "started": "t",
                                    "completed": "t", "error": error}]}))
sys.exit(1 if set(names) & set(bad) else 0)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A fake docker whose bake fails for chosen cells, as the real engine does not on demand."""
    program = tmp_path / "docker"
    program.write_text(FAKE)
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
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    return {result.cell: result for result in results}, calls


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

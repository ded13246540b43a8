"""A copy of the project for benchmarks, with its own image names and a patch that can change."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from measure import REPOSITORY, ROOT, clock, must
from rivals import CHANGED
from ruamel.yaml import YAML

from imagefactory import opening, workspace
from imagefactory.building import bakefile, building
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.stack import stack
from imagefactory.locking import locking
from imagefactory.matrix.cell import Cell
from imagefactory.planning import planning
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.planning import Bases, Inputs
from imagefactory.settings import Settings
from imagefactory.system.engine import Engine
from imagefactory.workspace import Workspace

_PATCH = "vllm/bench-line"
_YAML = """summary: Adds a module with one line
purpose: The benchmark changes this line and measures the cost.
symptom: the module is missing
evidence: [benchmarks/images.py]
remove_when: never; it exists only while the benchmark runs
stage: installed
variants:
  - versions: ">=0"
    diff: 0.diff
findings: Only needed by the benchmark.
proof:
  run: proof.py
  kind: static
"""
_PROOF = f'''"""Checks that the module exists."""

import pathlib
import sys

exists = pathlib.Path(sys.argv[1], "{CHANGED}").is_file()
print("the module exists" if exists else "the module is missing")
sys.exit(0 if exists else 1)
'''


@dataclass(frozen=True)
class Project:
    """The copy, in ``folder``; its builds share all caches of the real project but the contexts."""

    folder: Path
    environ: dict[str, str]

    @cached_property
    def settings(self) -> Settings:
        """The settings of commands that run in the copy."""
        return self.workspace.settings

    @cached_property
    def workspace(self) -> Workspace:
        """The copy as a workspace."""
        return workspace.find(self.folder / "project" / "matrix.yaml", self.environ)

    @property
    def inputs(self) -> Inputs:
        """The current matrix, lock and patches of the copy."""
        return opening.read(self.workspace)

    def change(self, number: int) -> None:
        """Write the patch so that its line says ``number``."""
        diff = (
            f"diff --git a/{CHANGED} b/{CHANGED}\nnew file mode 100644\n"
            f"--- /dev/null\n+++ b/{CHANGED}\n"
        )
        target = self.workspace.own_patches / _PATCH / "0.diff"
        target.write_text(f"{diff}@@ -0,0 +1 @@\n+LINE = {number}\n", encoding="utf-8")

    def build(self, cells: Iterable[Cell], *words: str) -> float:
        """The wall-clock seconds of ``imagefactory build`` for ``cells``, without verification.

        ``words`` are further options.
        """
        selects = [word for cell in cells for word in ("--select", cell.name)]
        command = [sys.executable, "-m", "imagefactory", "build", "--no-verify"]
        argv = [*command, "--matrix", str(self.workspace.matrix), *selects, *words]
        return clock(lambda: must(argv, env=self.environ, cwd=ROOT))

    def plan(self, cells: Iterable[Cell], engine: Engine) -> tuple[list[CellPlan], Bases]:
        """Plan ``cells`` on the bases in the lock."""
        wanted, inputs = list(cells), self.inputs
        found = planning.bases(wanted, [engine.platform], inputs.lock)
        return list(planning.plan(wanted, found, inputs)), found

    def bakefile(
        self,
        plans: list[CellPlan],
        found: Bases,
        engine: Engine,
        name: str,
        options: BakeOptions | None = None,
    ) -> Path:
        """Write the bake file of ``plans``, as ``imagefactory render`` does."""
        contexts = opening.contexts(self.workspace, self.inputs, self.folder / name)
        own = building.of_platform(found, engine.platform)
        layouts = contexts.folder / stack.LAYOUTS
        stacks = {one.cell.name: stack.make(one, layouts, self.settings) for one in plans}
        return bakefile.write_cells(contexts, plans, own, stacks, options or BakeOptions())

    def layers(self, plan: CellPlan) -> float:
        """The wall-clock seconds of making the layers of ``plan`` anew; its wheels are there."""
        folder = self.folder / "anew"
        try:
            return clock(
                lambda: stack.make(plan, folder / "layouts", self.settings, kept=folder / "layers")
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self) -> None:
        """Remove layers and wheels; what belongs to bases stays."""
        cache = self.settings.cache
        made = [path for path in (cache / stack.LAYERS).glob("*") if path.is_dir()]
        for path in [*made, cache / "wheelhouse"]:
            if not path.name.startswith("base-"):
                shutil.rmtree(path, ignore_errors=True)

    def lock(self, cells: Iterable[Cell]) -> None:
        """Lock the requests of ``cells`` that the copy's lock lacks."""
        inputs = self.inputs
        new, _ = locking.update(
            inputs.lock, list(cells), self.settings, toolchains=inputs.matrix.toolchains
        )
        opening.write_lock(self.workspace, new)


def copy(folder: Path, flavors: Iterable[str]) -> Project:
    """A copy of the project in ``folder``, with the benchmark's patch in ``flavors``."""
    target = folder / "project"
    for name in ("templates", "patches", "scripts"):
        shutil.copytree(ROOT / name, target / name)
    shutil.copy2(ROOT / "wheels.lock", target)
    yaml = YAML()
    matrix = yaml.load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    matrix["repository"] = REPOSITORY
    for flavor in set(flavors):
        matrix["flavors"][flavor].setdefault("patches", []).append(_PATCH)
    with (target / "matrix.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(matrix, file)
    entry = target / "patches" / _PATCH
    entry.mkdir(parents=True)
    (entry / "patch.yaml").write_text(_YAML, encoding="utf-8")
    (entry / "proof.py").write_text(_PROOF, encoding="utf-8")
    # contexts are not shared, as the same cell may be being built; everything else is
    real = workspace.find(ROOT / "matrix.yaml", os.environ).settings.cache
    real.mkdir(parents=True, exist_ok=True)
    cache = folder / "cache" / "imagefactory"
    cache.mkdir(parents=True)
    for name in ("metadata", "proofs", "sources", "toolchains", "vllm-settings"):
        (real / name).mkdir(exist_ok=True)
        (cache / name).symlink_to(real / name)
    project = Project(folder, {**os.environ, "XDG_CACHE_HOME": str(cache.parent)})
    project.change(1)
    return project

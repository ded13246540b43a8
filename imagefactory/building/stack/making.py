"""Makes the layers of one plan, as far as they are not kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.building import blob, tarball
from imagefactory.building.blob import Blob
from imagefactory.building.stack import belt, compilers, trim, wheels
from imagefactory.building.stack.belt import Layer
from imagefactory.building.tree import Tree
from imagefactory.inbuild.layer import SITE
from imagefactory.locking.lock import Wheel
from imagefactory.locking.wheelhouse import Collection
from imagefactory.planning import context
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.image_config import CUDA_HOME
from imagefactory.system import locks, ui
from imagefactory.system.archive import EPOCH
from imagefactory.system.background import in_background

Step = AbstractContextManager[None]
#: A tree, and a record of what was done to it.
Made = tuple[Tree, Any]
#: Called with the layers made so far, from the bottom up, whenever there is one more.
Growing = Callable[[Sequence[Blob]], None]
#: Left out of what patches are applied to: no diff changes libraries, and no proof reads them.
_LIBRARY = ".so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """The layers above a base.

    Attributes:
        layers: what each is for and its blob, from the bottom up.
        sources: the files of the wheels that patches change, without libraries.
        report: see belt.py.
    """

    layers: tuple[tuple[str, Blob], ...]
    sources: Blob
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What layers are kept by: a hash of everything that decides their content."""

    install: Mapping[str, str]
    belt: str
    compilers: str
    sources: str

    @classmethod
    def make(cls, plan: CellPlan) -> Keys:
        """The keys of the layers of ``plan``."""
        home = CUDA_HOME if plan.toolchain else None

        def key(*parts: object) -> str:
            return context.key_of([context.stacker(), plan.cell.python, home, *parts])

        lists = context.layers_of(plan.resolution)
        install = {one.name: key("install", [w.sha256 for w in one.wheels]) for one in lists}
        torch = plan.resolution.wheel("torch")
        compilers = [wheel.sha256 for wheel in plan.toolchain.wheels] if plan.toolchain else []
        return cls(
            install=install,
            belt=key("belt", torch.sha256 if torch else None, list(install.values())),
            compilers=key("compilers", compilers, list(install.values())),
            sources=key("sources", install[lists[-1].name]),
        )

    def all(self) -> set[str]:
        """All of them."""
        return {*self.install.values(), self.belt, self.compilers, self.sources}


class Maker:
    """Makes the layers of ``plan``; a tree is read only if a layer that needs it is not kept.

    ``folder`` keeps them, ``files`` has the wheels, which are open as long as ``opened``.
    """

    def __init__(self, plan: CellPlan, folder: Path, files: Collection, opened: ExitStack) -> None:
        self._plan, self._folder, self._files, self._opened = plan, folder, files, opened
        self._python = plan.cell.python
        self._site = SITE.format(python=self._python)
        self._home = CUDA_HOME if plan.toolchain else None
        self._lists = {one.name: one.wheels for one in context.layers_of(plan.resolution)}
        self._keys = Keys.make(plan)
        self._locks = {name: threading.Lock() for name in self._lists}
        self._trees: dict[str, Layer] = {}

    def make(self, growing: Growing | None) -> Above:
        """Make what is missing, from the bottom up.

        Each layer is made by several threads. If somebody waits for the lowest, fewer are made at
        a time, since all would be ready at the end otherwise.
        """
        missing = [key for key in self._wheels if not blob.find(self._folder / key)]
        wanted = [wheel for key in missing for wheel in self._wheels[key]]
        found: list[tuple[str, Blob]] = []

        def add(purpose: str, made: Blob) -> None:
            found.append((purpose, made))
            tell([one for _, one in found])

        def tell(made: Sequence[Blob]) -> None:
            if missing and growing:
                growing(made)

        at_once = max(1, (os.cpu_count() or 1) // (2 if growing else 1))
        with ThreadPoolExecutor(at_once) as pool, _step(missing, wanted):
            self._files.fetch(wanted)
            tell([])
            # in a thread of its own, as it waits for the wheels of all layers
            compilers = in_background(self._compilers)
            made = pool.map(self._installed, self._lists)
            if bottom := compilers.result():
                add("compilers", bottom)
            for name, layer in zip(self._lists, made, strict=True):
                add(name, layer)
            sources = pool.submit(self._sources)
            torch, report = self._belt()
        if report.pop("restored"):
            found.append(("torch, where it had been replaced", torch))
        return Above(layers=tuple(found), sources=sources.result(), report=report)

    @property
    def _wheels(self) -> dict[str, tuple[Wheel, ...]]:
        """What the layers are made from, by their keys."""
        found = {self._keys.install[name]: wheels for name, wheels in self._lists.items()}
        if self._plan.toolchain:
            found[self._keys.compilers] = self._plan.toolchain.wheels
        return found

    def _installed(self, name: str) -> Blob:
        def make() -> Made:
            layer = self._layer(name)
            return layer.tree, layer.dropped

        return self._kept(self._keys.install[name], f"layer {name}", make)[0]

    def _layer(self, name: str) -> Layer:
        """The files of an install layer, read once."""
        with self._locks[name]:
            if name not in self._trees:
                tree = self._install(self._lists[name])
                dropped = trim.trim(tree, self._site, self._home)
                self._trees[name] = Layer(name=name, tree=tree, dropped=dropped)
            return self._trees[name]

    def _install(self, found: Sequence[Wheel]) -> Tree:
        self._files.fetch(found)
        paths = [self._files.path(wheel) for wheel in found]
        return wheels.install_all(paths, self._python, self._opened)

    def _all(self) -> list[Layer]:
        return [self._layer(name) for name in self._lists]

    def _belt(self) -> tuple[Blob, dict[str, Any]]:
        torch = self._plan.resolution.wheel("torch")
        only = [torch] if torch else []

        def make() -> Made:
            version = self._plan.resolution.torch.version
            fresh = self._install(only)
            tree, report = belt.make(fresh, self._all(), self._site, version)
            return tree, {**report, "restored": len(tree.entries)}

        made, report = self._kept(self._keys.belt, "torch's layer", make)
        return made, dict(report)

    def _compilers(self) -> Blob | None:
        toolchain = self._plan.toolchain
        if toolchain is None:
            return None

        def make() -> Made:
            tree = self._install(toolchain.wheels)
            layers = [layer.tree for layer in self._all()]
            return compilers.make(tree, self._site, CUDA_HOME, layers), None

        return self._kept(self._keys.compilers, "the layer of compilers", make)[0]

    def _sources(self) -> Blob:
        name = list(self._lists)[-1]  # the one that patches change

        def make() -> Made:
            tree = Tree()
            for path, entry in self._layer(name).tree:
                if not path.endswith(_LIBRARY):
                    tree.put(path, entry)
            return tree, None

        return self._kept(self._keys.sources, "the sources", make)[0]

    def _kept(self, key: str, what: str, make: Callable[[], Made]) -> tuple[Blob, Any]:
        """The blob and the record of ``key``, made if it is not kept."""
        folder = self._folder / key
        with locks.held(self._folder / f"{key}.lock", what):
            found = blob.find(folder)
            if found is None:
                tree, record = make()
                found = blob.store(folder, tarball.blocks(tree, EPOCH), record), record
            return found


def _step(missing: Sequence[str], wanted: Sequence[Wheel]) -> Step:
    if not missing:
        return nullcontext()
    size = ui.size(sum(wheel.size for wheel in wanted))
    return ui.step(f"making {len(missing)} layers from {len(wanted)} wheels, {size}")

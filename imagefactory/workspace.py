"""Walks the pure stations for a matrix: cells, their resolutions, their series, their plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import uv

from imagefactory.building import bakefile, bases, builders
from imagefactory.errors import FactoryError, InputError, Problem, SetupError, fail
from imagefactory.locking import store
from imagefactory.locking.lock import Lock, LockedToolchain, Resolution
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Base, Cell, request_of
from imagefactory.matrix.select import select
from imagefactory.patching import catalog, check, cuda_home, sources
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import Patch, Step
from imagefactory.planning import cell_plan, vllm_settings, wheel_plan
from imagefactory.planning.cell_plan import LABEL, BaseImage, CellPlan
from imagefactory.settings import Settings
from imagefactory.system import ui
from imagefactory.system.engine import Builder, Engine, ImageInfo
from imagefactory.system.platforms import Platform
from imagefactory.wheels import wheels

#: Bases by (name, platform).
Found = dict[tuple[str, Platform], BaseImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the plan: a cell, what is to be done, and why."""

    plan: CellPlan
    action: str
    reason: str

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        cell = self.plan.cell
        return {
            "cell": cell.name,
            "platform": cell.platform,
            "pins": cell.pins,
            "tags": list(cell.tags),
            "build_key": self.plan.build_key,
            "action": self.action,
            "reason": self.reason,
        }


class Workspace:
    """A matrix file with the lock, patches and templates beside it."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file = file
        self.settings = settings
        self.templates = settings.project / "templates"
        self.lock_file = settings.project / "wheels.lock"
        self.contexts = settings.cache / "build"
        self.known_bases = settings.state / "bases.json"

    @cached_property
    def matrix(self) -> matrix.Matrix:
        """The matrix. Raises InputError with all of its problems."""
        return matrix.load(self.file)

    @cached_property
    def lock(self) -> Lock:
        """The lock. Raises InputError if there is none or it cannot be read."""
        return store.read(self.lock_file)

    @property
    def lock_if_any(self) -> Lock | None:
        """The lock; None if there is no file."""
        return self.lock if self.lock_file.exists() else None

    @cached_property
    def _uv_version(self) -> str:
        return version("uv")

    def bench(self, patches: Iterable[Patch], *, fresh: bool = False) -> Bench:
        """Where ``patches`` are measured; with the first toolchain of the matrix, if a proof
        compiles for a GPU.

        Raises SetupError if that is locked and cannot be had.
        """
        cuda = None
        if any(patch.proof.kind == "nvcc" for patch in patches):
            declared = self.matrix.toolchains[:1]
            locked = cuda_home.of_this_machine(self.lock, declared[0].name) if declared else None
            cuda = cuda_home.prepare(locked, self.settings) if locked else None
        return Bench(self.settings, cuda=cuda, fresh=fresh)

    def try_series(self, series: Sequence[tuple[Cell, Sequence[Step]]]) -> list[check.Checked]:
        """The patches of each cell, tried on upstream's sources.

        Raises SetupError if no place has the sources.
        """
        bench = self.bench(step.patch for _, steps in series for step in steps)
        return [
            check.check(cell, steps, bench, self.lock_if_any, self.settings)
            for cell, steps in series
        ]

    def cells(self, expressions: Sequence[str]) -> tuple[Cell, ...]:
        """The cells that ``--select`` names, all of them without one."""
        return select(self.matrix.cells, expressions)

    def plans(self, cells: Sequence[Cell], found: Found) -> list[CellPlan]:
        """Plan ``cells``. Raises InputError with the problems of all of them at once."""
        patches = catalog.load(self.settings.project / "patches")
        problems: list[Problem] = []
        plans = []
        for cell in cells:
            try:
                plans.append(self._plan(cell, patches, found))
            except FactoryError as error:
                problems += error.problems
        problems += self._dead_settings(plans)
        if problems:
            raise InputError(dict.fromkeys(problems))
        return plans

    def _dead_settings(self, plans: Sequence[CellPlan]) -> Iterator[Problem]:
        """What flavors set that the vLLM of a cell would ignore.

        Asks for sources only where something is set.
        """
        judged: dict[tuple[str, str], vllm_settings.Knobs | None] = {}
        for one in plans:
            if not vllm_settings.asked(one.cell):
                continue
            key = one.cell.flavor.name, one.cell.vllm
            if key not in judged:
                judged[key] = self._knobs(one.cell)
            found = judged[key]
            if found is not None:
                yield from vllm_settings.dead(one.cell, found, one.series)

    def _knobs(self, cell: Cell) -> vllm_settings.Knobs | None:
        """The knobs of a cell's vLLM, kept by the hash of its sources.

        None if no place has them.
        """
        try:
            tree = sources.of_cell("vllm", cell, self.lock_if_any, self.settings)
        except SetupError as error:
            ui.warn(
                f"settings are not held against vLLM {cell.axes['vllm']}: {error.problems[0].what}"
            )
            return None
        kept = self.settings.cache / "knobs" / f"{tree.sha256}.json"
        try:
            told = json.loads(kept.read_text(encoding="utf-8"))
            return vllm_settings.Knobs(
                variables=frozenset(told["variables"]), options=frozenset(told["options"])
            )
        except (OSError, ValueError, KeyError):
            found = vllm_settings.read(tree.root)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(
            json.dumps({"variables": sorted(found.variables), "options": sorted(found.options)}),
            encoding="utf-8",
        )
        return found

    def _plan(self, cell: Cell, patches: catalog.Catalog, found: Found) -> CellPlan:
        resolution = self.lock.find(request_of(cell))
        if resolution is None:
            raise InputError(
                Problem(
                    code="lock-uncovered",
                    where=str(cell.locations["vllm"]),
                    what=f"wheels.lock has no resolution for {cell.name}",
                    fix="imagefactory lock",
                )
            )
        series = catalog.series(patches, cell)
        return cell_plan.compose(
            cell,
            self._with_wheel(cell, resolution, series),
            series,
            found[cell.flavor.base.name, cell.platform],
            templates=self.templates,
            uv_version=self._uv_version,
            toolchain=self._toolchain(cell),
        )

    def wheel(
        self, cell: Cell, trial: wheel_plan.Trial | None = None
    ) -> wheel_plan.WheelPlan | None:
        """The wheel that is to be made for ``cell``; None if it takes all from indexes.

        Raises InputError.
        """
        resolution = self.lock.find(request_of(cell))
        if resolution is None or cell.flavor.build is None:
            return None
        series = catalog.series(catalog.load(self.settings.project / "patches"), cell)
        return self._wheel(cell, resolution, series, trial)

    def _wheel(
        self,
        cell: Cell,
        resolution: Resolution,
        series: Sequence[Step],
        trial: wheel_plan.Trial | None = None,
    ) -> wheel_plan.WheelPlan | None:
        return wheel_plan.compose(
            cell,
            resolution,
            series,
            self.lock,
            templates=self.templates,
            uv_version=self._uv_version,
            trial=trial,
        )

    def _with_wheel(self, cell: Cell, resolution: Resolution, series: Sequence[Step]) -> Resolution:
        """``resolution`` with the cell's own wheel of vLLM.

        Raises InputError if that was not made of these inputs.
        """
        wanted = self._wheel(cell, resolution, series)
        if wanted is None:
            return resolution
        built = self.lock.built_for(wanted.key)
        if built is None:
            what = (
                f"the wheel of vLLM {cell.axes['vllm']} that {cell.name} asks for was "
                "not made of these patches yet"
            )
            fix = f"imagefactory wheel --select {cell.name}"
            raise fail(
                InputError, "wheel-not-made", what, where=str(cell.locations["vllm"]), fix=fix
            )
        return resolution.with_built(built)

    def make_wheels(
        self,
        cells: Sequence[Cell],
        engine: Engine,
        *,
        there: Builder | None = None,
        again: bool = False,
    ) -> list[wheels.Made]:
        """The wheels of ``cells``, made where they are not here; the lock's file learns of them.

        ``there`` is a builder other than the engine's own. Raises CheckFailedError if one cannot be
        made, or comes out as other bytes than are locked; SetupError if it has to be compiled on
        another platform.
        """
        made: dict[str, wheels.Made] = {}
        for cell in cells:
            wanted = self.wheel(cell)
            if wanted is not None and wanted.key not in made:
                kept = None if again else wheels.kept(wanted, self.lock, self.settings)
                made[wanted.key] = kept or wheels.make(
                    wanted, self.lock, self._place(cell, engine, there), again=again
                )
                self._keep_built(made.values())
        return list(made.values())

    def _keep_built(self, made: Iterable[wheels.Made]) -> None:
        """Write wheels into the lock, each as soon as it is made: compiling one may take hours."""
        try:
            wanted = {one.key for cell in self.matrix.cells if (one := self.wheel(cell))}
        except (
            FactoryError
        ):  # something is wrong with another cell: not the moment to forget anything
            wanted = {built.key for built in self.lock.built}
        new = wheels.with_built(self.lock, list(made), wanted)
        if new != self.lock:
            store.write(self.lock_file, new)
            del self.lock

    def try_units(
        self,
        cell: Cell,
        engine: Engine,
        trial: wheel_plan.Trial,
        *,
        there: Builder | None = None,
    ) -> wheels.Tried:
        """Compile units of the cell's vLLM for a look at them; no wheel is made of it.

        Raises InputError if the cell compiles nothing; otherwise as ``make_wheels``.
        """
        wanted = self.wheel(cell, trial)
        if wanted is None or not wanted.compiles:
            what, fix = (
                f"{cell.name} compiles nothing",
                "select a cell whose flavor has `binaries: compiled`",
            )
            raise fail(
                InputError, "compiles-nothing", what, where=str(cell.flavor.location), fix=fix
            )
        return wheels.attempt(wanted, self._place(cell, engine, there))

    def _place(self, cell: Cell, engine: Engine, there: Builder | None) -> wheels.Place:
        native = there.platform if there else engine.platform
        build = cell.flavor.build
        if build and build.compiles and there and cell.platform in there.platforms:
            native = cell.platform
        if build and build.compiles and native != cell.platform:
            what = (
                f"{cell.name} is compiled on {cell.platform}, and this builder's "
                f"platform is {native}"
            )
            fix = (
                "name one that has it: --builder NAME (docs/builders.md), or run this "
                f"on a {cell.platform} machine"
            )
            raise fail(SetupError, "builder-platform", what, where=str(build.location), fix=fix)
        base = self.ensure([cell], engine, native=native)[cell.flavor.base.name, native]
        return wheels.Place(
            folder=self.contexts,
            builder=base,
            engine=engine,
            settings=self.settings,
            uv=Path(uv.find_uv_bin()),
            templates=self.templates,
            on=there.name if there else None,
            elsewhere=self.images_for(there, [base], engine),
        )

    def images_for(
        self, there: Builder | None, found: Iterable[BaseImage], engine: Engine
    ) -> dict[str, str] | None:
        """What a builder elsewhere gets in place of the engine's own images.

        None if it sees them.
        """
        if there is None or not there.is_elsewhere:
            return None
        images = {base.swap.removeprefix(builders.SWAPPED) for base in found if base.swap}
        return {
            image: builders.layout(engine, image, self.settings.cache) for image in sorted(images)
        }

    def _toolchain(self, cell: Cell) -> LockedToolchain | None:
        """The compilers that the cell's flavor carries.

        Raises InputError if the lock does not have them.
        """
        name = cell.flavor.toolchain
        if name is None:
            return None
        locked, declared = (
            self.lock.toolchain(name, cell.platform),
            {t.name: t for t in self.matrix.toolchains}[name],
        )
        if locked is None or not locked.answers(declared, cell.platform):
            fix = f"add {cell.platform} to its `platforms`, or run imagefactory lock"
            what = f"wheels.lock has no {name} for {cell.platform}, which {cell.name} carries"
            raise InputError(
                Problem(code="lock-uncovered", where=str(declared.location), what=what, fix=fix)
            )
        return locked

    def look(self, cells: Sequence[Cell], engine: Engine | None) -> Found:
        """The bases of ``cells`` as they are, nothing made or pulled."""
        return self._looked(
            {(cell.flavor.base.name, cell.platform): cell.flavor.base for cell in cells}, engine
        )

    def _looked(self, wanted: Mapping[tuple[str, Platform], Base], engine: Engine | None) -> Found:
        def one(place: tuple[str, Platform]) -> BaseImage:
            base = wanted[place]
            return (
                bases.look(engine, base, place[1], self.known_bases)
                if engine
                else bases.unresolved(base, place[1])
            )

        with ThreadPoolExecutor(4) as pool:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))

    def look_everywhere(self, cells: Sequence[Cell], engine: Engine | None) -> Found:
        """Like ``look``, and for the platform on which build stages run as well."""
        native = engine.platform if engine else cells[0].platform
        return self._looked(
            {(c.flavor.base.name, p): c.flavor.base for c in cells for p in (c.platform, native)},
            engine,
        )

    def ensure(
        self, cells: Sequence[Cell], engine: Engine, *, native: Platform | None = None
    ) -> Found:
        """The bases of ``cells`` for their platforms and for the build platform, made where they
        are missing.

        ``native`` is the build platform, the engine's own if it is not said.
        """
        platforms = (native or engine.platform,)
        wanted = {
            (c.flavor.base.name, p): c.flavor.base for c in cells for p in (c.platform, *platforms)
        }
        return {
            (name, platform): bases.ensure(
                engine, base, platform, known=self.known_bases, project=self.settings.project
            )
            for (name, platform), base in wanted.items()
        }

    def write_bake(
        self,
        folder: Path,
        plans: Sequence[CellPlan],
        found: Found,
        native: Platform,
        *,
        uncached: bakefile.Uncached = "none",
        elsewhere: Mapping[str, str] | None = None,
        cache: str | None = None,
    ) -> Path:
        """Write what Buildx reads below ``folder``; returns the bake file.

        ``native`` is the build platform.
        """
        return bakefile.write(
            folder,
            plans,
            build_bases={
                name: base for (name, platform), base in found.items() if platform == native
            },
            settings=self.settings,
            uv=Path(uv.find_uv_bin()),
            templates=self.templates,
            uncached=uncached,
            elsewhere=elsewhere,
            cache=cache,
        )


def decide(plans: Sequence[CellPlan], there: Mapping[str, ImageInfo] | None) -> list[Row]:
    """What is to be done for each plan.

    ``there`` are the engine's images, None if no engine answers.
    """
    return [Row(plan=plan, **_decision(plan, there)) for plan in plans]


def _decision(plan: CellPlan, there: Mapping[str, ImageInfo] | None) -> dict[str, str]:
    if there is None:
        return {"action": "build", "reason": "no engine answers, so nothing is known to be built"}
    if plan.base.origin == "unresolved":
        return {"action": "build", "reason": f"base {plan.base.base.image} is not here yet"}
    image = there.get(plan.cell.tag)
    if image is None:
        return {"action": "build", "reason": f"no image {plan.cell.tag}"}
    had = image.labels.get(f"{LABEL}.build-key", "")
    if had != plan.build_key:
        return {
            "action": "build",
            "reason": f"build key was {had[:12] or 'none'}, is {plan.build_key[:12]}",
        }
    return {"action": "skip", "reason": "unchanged since it was built"}

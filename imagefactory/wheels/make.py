"""Makes one wheel of vLLM from its sources in the builder, and keeps it by its hash."""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.building import bakefile
from imagefactory.building.bakefile import BakeOptions, WheelBake
from imagefactory.building.contexts import Contexts, link, write_files
from imagefactory.building.progress import Progress
from imagefactory.building.sites import Site
from imagefactory.building.timings import Timings, Took
from imagefactory.building.view import View
from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import WHEELHOUSE, BuiltWheel, Lock, Wheel
from imagefactory.locking.tags import BUILT
from imagefactory.planning.cell_plan import BaseImage
from imagefactory.planning.wheel_plan import Part, WheelPlan
from imagefactory.settings import Settings
from imagefactory.system import archive, ui

#: Lines of a build's output that say why it failed.
_ERROR = re.compile(
    r"patch \S+: (?:conflict|broken)|\bE: |\bE(?:rror|RROR)\b|[a-z]Error\b|\berror:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A wheel of one key: where it is, and what its patches were found to be."""

    built: BuiltWheel
    path: Path
    fresh: bool
    patches: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, object]:
        """The wheel as plain JSON values."""
        return {
            "key": self.built.key,
            "platform": self.built.platform,
            "wheel": str(self.path),
            "sha256": self.built.wheel.sha256,
            "built": self.fresh,
            "patches": {patch["name"]: patch["state"] for patch in self.patches},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What a wheel is made with.

    Attributes:
        contexts: where its build context is written.
        site: the engine and builder that make it.
        base: the base that the builder's stages run on.
    """

    contexts: Contexts
    site: Site
    base: BaseImage

    @property
    def settings(self) -> Settings:
        """Where indexes, wheelhouse and logs are."""
        return self.contexts.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Units that were compiled on trial: a row for each, and for each patch in their sources."""

    units: tuple[dict[str, Any], ...]
    patches: tuple[dict[str, Any], ...]


def compile_units(plan: WheelPlan, workshop: Workshop) -> Tried:
    """Compile the units of a trial.

    Raises CheckFailedError if a patch does not hold, or vLLM's CMake files do not configure.
    """
    with tempfile.TemporaryDirectory(prefix="imagefactory-wheel-") as name:
        folder = Path(name)
        _bake(plan, workshop, folder, "tried", again=False)
        units, patches = (
            json.loads((folder / file).read_text("utf-8"))
            for file in ("report.json", "changed.json")
        )
        return Tried(units=tuple(units), patches=tuple(patches))


def made_before(plan: WheelPlan, lock: Lock, settings: Settings) -> Made | None:
    """The wheel of ``plan`` if it is locked and in the wheelhouse; else None."""
    built = lock.built_for(plan.key)
    if built is None:
        return None
    path = wheelhouse.place(built.wheel.sha256, built.wheel.filename, settings)
    if not path.is_file():
        return None
    patches = json.loads((path.parent / "patches.json").read_text(encoding="utf-8"))
    return Made(built=built, path=path, fresh=False, patches=tuple(patches))


def make(plan: WheelPlan, lock: Lock, workshop: Workshop, *, again: bool = False) -> Made:
    """Make a wheel and keep it; ``again`` does so from nothing, whatever is locked.

    Raises CheckFailedError if a patch does not hold, the build fails, or other bytes come out than
    are locked.
    """
    locked = None if again else lock.built_for(plan.key)
    with tempfile.TemporaryDirectory(prefix="imagefactory-wheel-") as name:
        _bake(plan, workshop, Path(name), "wheel", again=again)
        (file,) = Path(name).glob("*.whl")
        built = _described(plan, file)
        if locked and locked.wheel.sha256 != built.wheel.sha256:
            what = (
                f"{file.name} is {built.wheel.sha256}, the lock says "
                f"{locked.wheel.sha256} for the same inputs"
            )
            raise fail(
                CheckFailedError,
                "wheel-differs",
                what,
                fix="imagefactory wheel --again writes the new one",
            )
        path = wheelhouse.place(built.wheel.sha256, file.name, workshop.settings)
        patches = json.loads((Path(name) / "patches.json").read_text(encoding="utf-8"))
        wheelhouse.keep(path, file, Path(name) / "patches.json")
        return Made(built=built, path=path, fresh=True, patches=tuple(patches))


def _described(plan: WheelPlan, file: Path) -> BuiltWheel:
    wheel = Wheel(
        name=BUILT,
        version=plan.version,
        filename=file.name,
        sha256=wheelhouse.sha_of(file),
        size=file.stat().st_size,
        index=WHEELHOUSE,
    )
    return BuiltWheel(
        key=plan.key, platform=plan.platform, replaces=plan.official.sha256, wheel=wheel
    )


def _bake(plan: WheelPlan, workshop: Workshop, folder: Path, stage: str, *, again: bool) -> None:
    """Build ``stage`` and unpack its files into ``folder``."""
    contexts, settings = workshop.contexts, workshop.settings
    context = contexts.folder / f"wheel-{plan.key[:12]}"
    write_files(context, plan.files)
    (context / "files").mkdir()
    official = wheelhouse.from_index(plan.official, settings)
    link(official, context / "files" / plan.official.filename)
    for part in plan.parts:
        _put(part, context / "files" / part.file, settings)
    wheel = WheelBake(
        context=context, archive=folder / "made.tar", stage=stage, builder=workshop.base
    )
    options = BakeOptions(
        uncached="cells" if again else "none",
        substitutes=workshop.site.substitutes([workshop.base], settings.cache),
    )
    file = bakefile.write_wheel(contexts, wheel, options)
    with ui.step(f"making a wheel of vllm {plan.version} for {plan.platform}"):
        _run(plan, workshop, file, stage)
    with tarfile.open(wheel.archive) as tar:
        archive.unpack(tar, folder)


def _put(part: Part, target: Path, settings: Settings) -> None:
    if isinstance(part.origin, Path):
        archive.pack(part.origin, target)
    elif isinstance(part.origin, Wheel):
        link(wheelhouse.from_index(part.origin, settings), target)
    else:
        link(wheelhouse.fetch(part.origin.url, part.sha256, part.origin.filename, settings), target)


def _run(plan: WheelPlan, workshop: Workshop, file: Path, target: str) -> None:
    engine, builder = workshop.site.engine, workshop.site.builder_name
    progress, said = Progress(targets=(target,)), list[str]()
    kind = f"{target} {plan.platform}{' compiled' if plan.compiles else ''}"
    timings = Timings(workshop.settings.state)
    log = workshop.settings.logs / f"wheel-{plan.key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", encoding="utf-8") as kept,
        View(progress, timings=timings, kinds={target: kind}) as view,
    ):

        def read(line: str) -> None:
            for event in progress.feed(line):
                said.append(event.text)
                kept.write(event.text + "\n")
                view.feed(event)

        code = engine.bake(file, [target], on_line=read, builder=builder)
    tally = progress.tallies[target]
    if code == 0 and tally.seconds is not None:
        timings.add([Took(what=kind, warm=tally.warm, seconds=tally.seconds)])
    if code:
        lines = [line for text in said for line in text.splitlines()] + progress.stray
        errors = [line.strip() for line in lines if _ERROR.search(line)] or lines[-3:]
        shown = " / ".join(dict.fromkeys(errors[:4]))
        what = f"the wheel of vllm {plan.version} was not made: {shown}"
        command = engine.bake_command(file, [target], builder=builder)
        fix = f"see {log}; reproduce: {command}"
        raise fail(CheckFailedError, "wheel-failed", what, fix=fix)

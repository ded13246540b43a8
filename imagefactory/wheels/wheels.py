"""The wheel station: makes the wheels that cells ask for, keeps them by their hash.

And says so in the lock.
"""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imagefactory.building import bakefile
from imagefactory.building.progress import Progress
from imagefactory.building.timings import Timings, Took
from imagefactory.building.view import View
from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import WHEELHOUSE, BuiltWheel, Lock, Wheel
from imagefactory.locking.tags import BUILT
from imagefactory.planning.cell_plan import BaseImage
from imagefactory.planning.wheel_plan import Part, WheelPlan
from imagefactory.settings import Settings
from imagefactory.system import archive, shell, ui
from imagefactory.system.engine import Engine

#: Lines of a build's output that tell why it ended.
_TELLING = re.compile(
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
class Place:
    """Where wheels are made: build contexts, the builder's base, the engine, and what goes into the
    builder.

    ``on`` is a buildx builder, the engine's own if it is None; ``elsewhere`` is what it gets in
    place of images that only the engine sees.
    """

    folder: Path
    builder: BaseImage
    engine: Engine
    settings: Settings
    uv: Path
    templates: Path
    on: str | None = None
    elsewhere: Mapping[str, str] | None = None


def with_built(lock: Lock, made: Sequence[Made], wanted: Collection[str]) -> Lock:
    """``lock`` with these wheels.

    And of those that it had the ones whose keys are still ``wanted``.
    """
    new = {one.built.key: one.built for one in made}
    kept = {built.key: built for built in lock.built if built.key in wanted}
    return replace(lock, built=tuple(sorted({**kept, **new}.values(), key=lambda built: built.key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of units that were compiled for a look at them.

    And of the patches that they have in them.
    """

    units: tuple[dict[str, Any], ...]
    patches: tuple[dict[str, Any], ...]


def attempt(plan: WheelPlan, place: Place) -> Tried:
    """Compile the units of a trial.

    Raises CheckFailedError if a patch does not hold, or vLLM's CMake files do not configure.
    """
    with tempfile.TemporaryDirectory(prefix="imagefactory-wheel-") as name:
        folder = Path(name)
        _bake(plan, place, folder, "tried", again=False)
        units, patches = (
            json.loads((folder / file).read_text("utf-8"))
            for file in ("report.json", "changed.json")
        )
        return Tried(units=tuple(units), patches=tuple(patches))


def kept(plan: WheelPlan, lock: Lock, settings: Settings) -> Made | None:
    """The wheel of ``plan`` if it is locked and in the wheelhouse; else None."""
    built = lock.built_for(plan.key)
    if built is None:
        return None
    path = wheelhouse.place(built.wheel.sha256, built.wheel.filename, settings)
    if not path.is_file():
        return None
    patches = json.loads((path.parent / "patches.json").read_text(encoding="utf-8"))
    return Made(built=built, path=path, fresh=False, patches=tuple(patches))


def make(plan: WheelPlan, lock: Lock, place: Place, *, again: bool = False) -> Made:
    """Make a wheel and keep it; ``again`` does so from nothing, whatever is locked.

    Raises CheckFailedError if a patch does not hold, the build fails, or other bytes come out than
    are locked.
    """
    locked = None if again else lock.built_for(plan.key)
    with tempfile.TemporaryDirectory(prefix="imagefactory-wheel-") as name:
        _bake(plan, place, Path(name), "wheel", again=again)
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
        path = wheelhouse.place(built.wheel.sha256, file.name, place.settings)
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


def _bake(plan: WheelPlan, place: Place, folder: Path, target: str, *, again: bool) -> None:
    """Make the stage ``target`` and unpack what is in it into ``folder``."""
    context = place.folder / f"wheel-{plan.key[:12]}"
    bakefile.write_files(context, plan.files)
    (context / "files").mkdir()
    bakefile.link(
        wheelhouse.from_index(plan.official, place.settings),
        context / "files" / plan.official.filename,
    )
    for part in plan.parts:
        _put(part, context / "files" / part.file, place.settings)
    path = bakefile.write_wheel(
        place.folder,
        context,
        folder / "made.tar",
        place.builder,
        settings=place.settings,
        uv=place.uv,
        templates=place.templates,
        uncached=again,
        target=target,
        elsewhere=place.elsewhere,
    )
    with ui.step(f"making a wheel of vllm {plan.version} for {plan.platform}"):
        _run(plan, place, path, target)
    with tarfile.open(folder / "made.tar") as tar:
        archive.unpack(tar, folder)


def _put(part: Part, target: Path, settings: Settings) -> None:
    if isinstance(part.origin, Path):
        archive.pack(part.origin, target)
    elif isinstance(part.origin, Wheel):
        bakefile.link(wheelhouse.from_index(part.origin, settings), target)
    else:
        bakefile.link(
            wheelhouse.fetch(part.origin.url, part.sha256, part.origin.filename, settings), target
        )


def _run(plan: WheelPlan, place: Place, file: Path, target: str) -> None:
    on = ["--builder", place.on] if place.on else []
    argv = [*place.engine.docker, "buildx", "bake", *on, "--file", str(file)]
    progress, said = Progress(targets=(target,)), []
    kind = f"{target} {plan.platform}{' compiled' if plan.compiles else ''}"
    timings = Timings(place.settings.state)
    log = place.settings.logs / f"wheel-{plan.key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {**place.engine.environment, "BUILDX_NO_DEFAULT_LOAD": "1"}
    with (
        shell.stream([*argv, "--progress=rawjson", target], env=env) as process,
        log.open("w", encoding="utf-8") as kept,
        View(progress, timings=timings, kinds={target: kind}) as view,
    ):
        for line in process.stdout or ():
            for event in progress.feed(line):
                said.append(event.text)
                kept.write(event.text + "\n")
                view.feed(event)
        code = process.wait()
    tally = progress.tallies[target]
    if code == 0 and tally.seconds is not None:
        timings.add([Took(what=kind, warm=tally.warm, seconds=tally.seconds)])
    if code:
        lines = [line for text in said for line in text.splitlines()] + progress.stray
        telling = [line.strip() for line in lines if _TELLING.search(line)] or lines[-3:]
        what = f"the wheel of vllm {plan.version} was not made: " + " / ".join(
            dict.fromkeys(telling[:4])
        )
        fix = f"see {log}; reproduce: {shell.show([*argv, '--progress=plain', target])}"
        raise fail(CheckFailedError, "wheel-failed", what, fix=fix)

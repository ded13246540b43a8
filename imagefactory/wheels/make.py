"""Builds a wheel from source in the builder, and stores it by its hash."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.building import bakefile
from imagefactory.building.bakefile import BakeOptions, WheelBake
from imagefactory.building.contexts import Contexts, write_files
from imagefactory.building.live_view import View
from imagefactory.building.progress import Progress
from imagefactory.building.resend import Resend
from imagefactory.building.sites import Site
from imagefactory.building.timings import Timings, Took
from imagefactory.errors import CheckFailedError, FactoryError, fail
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import WHEELHOUSE, BuiltWheel, Lock, Wheel
from imagefactory.planning.cell_plan import BaseImage
from imagefactory.planning.context import key_of
from imagefactory.planning.wheel_plan import Part, WheelPlan
from imagefactory.settings import Settings
from imagefactory.system import archive, locks, temporary, ui
from imagefactory.system.files import link
from imagefactory.wheels import required

#: What the build of vLLM's wheel says of its patches.
_PATCHES = "patches.json"
#: Lines of a build's output that say why it failed.
_ERROR = re.compile(
    r"patch \S+: (?:conflict|broken)|\bE: |\bE(?:rror|RROR)\b|[a-z]Error\b|\berror:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A wheel: its file, whether it was built just now, and the states of its patches."""

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
class BuildEnv:
    """What a wheel is built with.

    Attributes:
        contexts: where its build context is written.
        site: the engine and builder that build it.
        base: the base that the builder's stages run on.
    """

    contexts: Contexts
    site: Site
    base: BaseImage

    @property
    def settings(self) -> Settings:
        """Indexes, and the folders of wheelhouse and logs."""
        return self.contexts.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The result of a trial: a row for each compiled unit, and for each patch in their sources."""

    units: tuple[dict[str, Any], ...]
    patches: tuple[dict[str, Any], ...]


def compile_units(plan: WheelPlan, env: BuildEnv) -> Tried:
    """Compile the units of a trial.

    Raises CheckFailedError if a patch fails, or CMake cannot configure vLLM.
    """
    with temporary.folder(prefix="imagefactory-wheel-") as folder:
        _bake(plan, env, folder, "tried", again=False)
        units, patches = (
            json.loads((folder / file).read_text("utf-8"))
            for file in ("report.json", "changed.json")
        )
        return Tried(units=tuple(units), patches=tuple(patches))


def find_made(plan: WheelPlan, lock: Lock, settings: Settings) -> Made | None:
    """The wheel of ``plan`` if it is locked and in the wheelhouse; else None."""
    built = lock.built_for(plan.key)
    if built is None:
        return None
    path = wheelhouse.path_of(built.wheel.sha256, built.wheel.filename, settings)
    if not path.is_file():
        return None
    return Made(built=built, path=path, fresh=False, patches=_patches(path.parent))


def make(plan: WheelPlan, lock: Lock, env: BuildEnv, *, again: bool = False) -> Made:
    """Build a wheel and store it; ``again`` builds without cache, whatever the lock has.

    Raises CheckFailedError if a patch fails, the build fails, or the result differs from the
    locked wheel.
    """
    locked = None if again else lock.built_for(plan.key)
    with temporary.folder(prefix="imagefactory-wheel-") as folder:
        _bake(plan, env, folder, "wheel", again=again)
        (file,) = folder.glob("*.whl")
        official = wheelhouse.from_index(plan.official, env.settings) if plan.official else None
        required.check(plan, file, official)
        _check_files(plan, file, env.settings)
        built = _built_wheel(plan, file)
        if locked and locked.wheel.sha256 != built.wheel.sha256:
            what = (
                f"{file.name} has sha256 {built.wheel.sha256}, but the lock has "
                f"{locked.wheel.sha256} for the same inputs"
            )
            fix = "to lock the new one: imagefactory wheel --again"
            raise fail(CheckFailedError, "wheel-differs", what, fix=fix)
        path = wheelhouse.path_of(built.wheel.sha256, file.name, env.settings)
        wheelhouse.store(path, file, *folder.glob(_PATCHES))
        return Made(built=built, path=path, fresh=True, patches=_patches(folder))


def _check_files(plan: WheelPlan, made: Path, settings: Settings) -> None:
    """Compare the files of an extra with those of all wheels that the image needs as well."""
    beside = plan.beside.wheels if plan.beside else ()
    with wheelhouse.Collection(settings) as files:
        files.fetch(beside)
        required.check_files(plan, made, files.path)


def _patches(folder: Path) -> tuple[dict[str, Any], ...]:
    """The states of the patches in a wheel; an extra has none."""
    file = folder / _PATCHES
    return tuple(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else ()


def _built_wheel(plan: WheelPlan, file: Path) -> BuiltWheel:
    wheel = Wheel(
        name=plan.name,
        version=plan.version or file.name.split("-")[1],
        filename=file.name,
        sha256=wheelhouse.sha_of(file),
        size=file.stat().st_size,
        index=WHEELHOUSE,
    )
    torch = plan.beside.wheel("torch") if plan.beside else None
    return BuiltWheel(
        key=plan.key,
        platform=plan.platform,
        replaces=plan.official.sha256 if plan.official else None,
        beside=torch.sha256 if torch else None,
        wheel=wheel,
    )


def _bake(plan: WheelPlan, env: BuildEnv, folder: Path, stage: str, *, again: bool) -> None:
    """Build ``stage`` and unpack its files into ``folder``."""
    context = env.contexts.folder / _context_name(plan)
    context.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(context.with_suffix(".lock"), context.name):
        _bake_in(context, plan, env, folder, stage, again=again)


def _context_name(plan: WheelPlan) -> str:
    """The folder of its build context, of which BuildKit keeps a copy.

    That of an extra has torch in it, gigabytes, so it stays the same for other sources.
    """
    if not plan.wheels:
        return f"wheel-{plan.key[:12]}"
    hashes = [wheel.sha256 for kind in plan.wheels.values() for wheel in kind]
    return f"wheel-{plan.name}-{key_of(hashes)[:12]}"


def _bake_in(
    context: Path, plan: WheelPlan, env: BuildEnv, folder: Path, stage: str, *, again: bool
) -> None:
    contexts, settings = env.contexts, env.settings
    write_files(context, plan.files)
    (context / "files").mkdir()
    if plan.official:
        official = wheelhouse.from_index(plan.official, settings)
        link(official, context / "files" / plan.official.filename)
    _add_wheels(plan.wheels, context / "wheels", settings)
    for part in plan.parts:
        _add_part(part, context / "files" / part.file, settings)
    wheel = WheelBake(
        context=context,
        archive=folder / "made.tar",
        stage=stage,
        builder=env.base,
        compiles=plan.compiles,
    )
    options = BakeOptions(uncached="cells" if again else "none")
    file = bakefile.write_wheel(contexts, wheel, options)
    with ui.step(f"building a wheel of {plan.title} for {plan.platform}"):
        _run(plan, env, file, stage)
    with tarfile.open(wheel.archive) as tar:
        archive.unpack(tar, folder)


def _add_part(part: Part, target: Path, settings: Settings) -> None:
    if isinstance(part.origin, Path):
        archive.pack(part.origin, target)
    elif isinstance(part.origin, Wheel):
        link(wheelhouse.from_index(part.origin, settings), target)
    else:
        link(wheelhouse.fetch(part.origin.url, part.sha256, part.origin.filename, settings), target)


def _add_wheels(wheels: Mapping[str, Sequence[Wheel]], folder: Path, settings: Settings) -> None:
    """Link wheels into folders of their own: the steps that install them have no network."""
    with wheelhouse.Collection(settings) as files:
        files.fetch(wheel for kind in wheels.values() for wheel in kind)
        for kind, members in wheels.items():
            (folder / kind).mkdir(parents=True)
            for wheel in members:
                link(files.path(wheel), folder / kind / wheel.filename)


def _run(plan: WheelPlan, env: BuildEnv, file: Path, target: str) -> None:
    resend = Resend(file)
    while lines := _once(plan, env, file, target):
        if not resend.helps(lines):
            raise _failure(plan, env, file, target, lines)


def _once(plan: WheelPlan, env: BuildEnv, file: Path, target: str) -> list[str]:
    """Bake ``target`` once; returns what it wrote if it failed."""
    engine, builder = env.site.engine, env.site.builder_name
    progress, output = Progress(targets=(target,)), list[str]()
    kind = f"{target} {plan.platform}{' compiled' if plan.compiles else ''}"
    timings = Timings(env.settings.state)
    path = _log(plan, env)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("w", encoding="utf-8") as log,
        View(progress, timings=timings, kinds={target: kind}) as view,
    ):

        def read(line: str) -> None:
            for event in progress.feed(line):
                output.append(event.text)
                log.write(event.text + "\n")
                view.feed(event)

        secrets = bakefile.secrets(env.settings)
        code = engine.bake(file, [target], on_line=read, builder=builder, secrets=secrets)
    tally = progress.tallies[target]
    if code == 0 and tally.seconds is not None:
        timings.add([Took(what=kind, warm=tally.warm, seconds=tally.seconds)])
    if not code:
        return []
    return [line for text in output for line in text.splitlines()] + progress.stray or ["no output"]


def _log(plan: WheelPlan, env: BuildEnv) -> Path:
    return env.settings.logs / f"wheel-{plan.key[:12]}.log"


def _failure(
    plan: WheelPlan, env: BuildEnv, file: Path, target: str, lines: list[str]
) -> FactoryError:
    errors = [line.strip() for line in lines if _ERROR.search(line)] or lines[-3:]
    summary = " / ".join(dict.fromkeys(errors[:4]))
    what = f"building the wheel of {plan.title} failed: {summary}"
    command = env.site.engine.bake_command(file, [target], builder=env.site.builder_name)
    fix = f"see {_log(plan, env)}; reproduce: {command}"
    return fail(CheckFailedError, "wheel-failed", what, fix=fix)

"""The wheel station: makes the wheels that cells ask for, keeps them by their hash, and says so in the lock."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imagefactory import bakefile, shell, ui
from imagefactory.archive import unpack
from imagefactory.engine import Engine
from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking import wheelhouse
from imagefactory.locking.model import WHEELHOUSE, BuiltWheel, Lock, Wheel
from imagefactory.plan import BaseImage
from imagefactory.settings import Settings
from imagefactory.wheelplan import WheelPlan

#: Lines of a build's output that tell why it ended.
_TELLING = re.compile(r"patch \S+: (?:conflict|broken)|\bE(?:rror|RROR)\b|[a-z]Error\b")


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
    """Where wheels are made: build contexts, the builder, the engine, and what goes into the builder."""

    folder: Path
    builder: BaseImage
    engine: Engine
    settings: Settings
    uv: Path
    templates: Path


def ensure(plan: WheelPlan, lock: Lock, place: Place, *, again: bool = False) -> Made:
    """A wheel, from the wheelhouse or made now; ``again`` makes it in any case, whatever is locked.

    Raises CheckFailedError if a patch does not hold, the build fails, or other bytes come out than are locked.
    """
    kept = None if again else _kept(plan, lock, place.settings)
    return kept or _make(plan, None if again else lock.built_for(plan.key), place, again=again)


def with_built(lock: Lock, made: Sequence[Made]) -> Lock:
    """``lock`` with these wheels; one of an older key for the same place goes."""
    new = [one.built for one in made]
    places = {built.replaces for built in new}
    kept = [built for built in lock.built if built.replaces not in places]
    return replace(lock, built=tuple(sorted([*kept, *new], key=lambda built: built.key)))


def _kept(plan: WheelPlan, lock: Lock, settings: Settings) -> Made | None:
    built = lock.built_for(plan.key)
    if built is None:
        return None
    path = wheelhouse.place(built.wheel.sha256, built.wheel.filename, settings)
    if not path.is_file():
        return None
    patches = json.loads((path.parent / "patches.json").read_text(encoding="utf-8"))
    return Made(built=built, path=path, fresh=False, patches=tuple(patches))


def _make(plan: WheelPlan, locked: BuiltWheel | None, place: Place, *, again: bool) -> Made:
    with tempfile.TemporaryDirectory(prefix="imagefactory-wheel-") as name:
        archive = Path(name) / "wheel.tar"
        with ui.step(f"making a wheel of {plan.source.name} {plan.source.version} for {plan.platform}"):
            _bake(plan, place, archive, again=again)
        with tarfile.open(archive) as tar:
            unpack(tar, Path(name))
        (file,) = Path(name).glob("*.whl")
        built = _described(plan, file)
        if locked and locked.wheel.sha256 != built.wheel.sha256:
            what = f"{file.name} is {built.wheel.sha256}, the lock says {locked.wheel.sha256} for the same inputs"
            raise fail(CheckFailedError, "wheel-differs", what, fix="imagefactory wheel --again writes the new one")
        path = wheelhouse.place(built.wheel.sha256, file.name, place.settings)
        patches = json.loads((Path(name) / "patches.json").read_text(encoding="utf-8"))
        wheelhouse.keep(path, file, Path(name) / "patches.json")
        return Made(built=built, path=path, fresh=True, patches=tuple(patches))


def _described(plan: WheelPlan, file: Path) -> BuiltWheel:
    with file.open("rb") as stream:
        sha = hashlib.file_digest(stream, "sha256").hexdigest()
    wheel = Wheel(
        name=plan.source.name,
        version=plan.source.version,
        filename=file.name,
        sha256=sha,
        size=file.stat().st_size,
        index=WHEELHOUSE,
    )
    return BuiltWheel(key=plan.key, platform=plan.platform, replaces=plan.official.sha256, wheel=wheel)


def _bake(plan: WheelPlan, place: Place, archive: Path, *, again: bool) -> None:
    context = place.folder / f"wheel-{plan.key[:12]}"
    bakefile.write_files(context, plan.files)
    official = wheelhouse.from_index(plan.official, place.settings)
    sdist = wheelhouse.fetch(plan.source.url, plan.source.sha256, plan.source.filename, place.settings)
    (context / "files").mkdir()
    for file in (official, sdist):
        bakefile.link(file, context / "files" / file.name)
    path = bakefile.write_wheel(
        place.folder,
        context,
        archive,
        place.builder,
        settings=place.settings,
        uv=place.uv,
        templates=place.templates,
        uncached=again,
    )
    done = shell.run(
        [*place.engine.docker, "buildx", "bake", "--file", str(path), "--progress=plain", "wheel"],
        env={**place.engine.environment, "BUILDX_NO_DEFAULT_LOAD": "1"},
        join=True,
    )
    if not done.ok:
        said = [line for line in done.out.splitlines() if _TELLING.search(line)] or done.out.splitlines()[-3:]
        what = f"the wheel of {plan.source.name} {plan.source.version} was not made: " + " / ".join(said[:4])
        raise fail(CheckFailedError, "wheel-failed", what, fix=f"reproduce: {shell.show(done.argv)}")

"""Whether a wheel that was built is what was asked for, and requires what the lock has."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name

from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking import closure
from imagefactory.locking.lock import Resolution, Wheel
from imagefactory.locking.locked_sources import LockedRef
from imagefactory.locking.refs import normal
from imagefactory.planning.wheel_plan import WheelPlan

#: Files that a message names.
NAMED = 3
#: Where a wheel may have files of site-packages, too.
_SCHEME = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")


def check(plan: WheelPlan, made: Path, official: Path | None) -> None:
    """Check the wheel of a ref, or of an extra, by its metadata; that of a release needs no check.

    Raises CheckFailedError for a requirement that the lock does not answer, and for an extra that
    is another project.
    """
    if plan.ref and official:
        _of_ref(plan.ref, made, official)
    if plan.beside:
        _of_extra(plan, made, plan.beside)


def _of_ref(ref: LockedRef, made: Path, official: Path) -> None:
    """Compare the wheel of a ref with the official one, and with what is locked for the ref.

    The lock was resolved for the official wheel, and the ref's own files were compared with those
    of its base; but only the ref's setup says what its wheel requires.
    """
    new = _requires(made) - _requires(official) - {*ref.requires}
    if new:
        what = (
            f"{made.name} requires {', '.join(sorted(new))}, which neither the wheel of "
            f"{ref.base} nor {ref.name} does in requirements/cuda.txt"
        )
        fix = "name a newer `base`, whose wheel requires it, or an older ref"
        raise fail(CheckFailedError, "ref-requires", what, fix=fix)


def _of_extra(plan: WheelPlan, made: Path, beside: Resolution) -> None:
    where, found = str(plan.where), canonicalize_name(made.name.partition("-")[0])
    if found != plan.name:
        what = f"the source of the extra {plan.name} builds {made.name}, a wheel of {found}"
        fix = f"call the extra {found}, or name another `folder` or `setup`"
        raise fail(CheckFailedError, "extra-name", what, where=where, fix=fix)
    lacks = closure.unmet(made.name, sorted(_requires(made)), beside)
    if lacks:
        fix = "add that to the flavor's requirements, and run imagefactory lock"
        raise fail(CheckFailedError, "extra-requires", "; ".join(lacks), where=where, fix=fix)


def check_files(plan: WheelPlan, made: Path, files: Callable[[Wheel], Path]) -> None:
    """Compare the files of an extra with those of the wheels beside it, which are in ``files``.

    In an image one of the two would replace the other without a word, so it raises
    CheckFailedError for a file that another wheel has with another content.
    """
    if plan.beside is None:
        return
    own = _files(made)
    clashes = [
        f"{path} ({wheel.name})"
        for wheel in plan.beside.wheels
        for path, content in _files(files(wheel)).items()
        if own.get(path, content) != content
    ]
    if clashes:
        more = f" and {len(clashes) - NAMED} more" if len(clashes) > NAMED else ""
        what = (
            f"{made.name} has files that other wheels of the cell have, too, with another "
            f"content: {', '.join(clashes[:NAMED])}{more}"
        )
        fix = "leave them out in its setup, for example by a `setup` of your own"
        raise fail(CheckFailedError, "extra-files", what, where=str(plan.where), fix=fix)


def _files(wheel: Path) -> dict[str, tuple[int, int]]:
    """What a wheel installs into site-packages: path -> checksum and size of the file."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            _SCHEME.sub("", one.filename): (one.CRC, one.file_size)
            for one in archive.infolist()
            if not one.is_dir()
        }


def _requires(wheel: Path) -> set[str]:
    """The requirements of a wheel, in a normal form; those of extras are left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    lines = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    return {normal(line) for line in lines if "extra ==" not in line}

"""Whether the wheel of a git ref requires what the lock was resolved for."""

from __future__ import annotations

import zipfile
from email.parser import HeaderParser
from pathlib import Path

from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking.refs import normal
from imagefactory.planning.wheel_plan import WheelPlan


def check(plan: WheelPlan, made: Path, official: Path) -> None:
    """Compare the wheel of a ref with the official one, and with what is locked for the ref.

    The lock was resolved for the official wheel, and the ref's own files were compared with those
    of its base; but only the ref's setup says what its wheel requires. Raises CheckFailedError for
    a requirement that neither knows.
    """
    if plan.ref is None:
        return
    new = _requires(made) - _requires(official) - {*plan.ref.requires}
    if new:
        what = (
            f"{made.name} requires {', '.join(sorted(new))}, which neither the wheel of "
            f"{plan.ref.base} nor {plan.ref.name} does in requirements/cuda.txt"
        )
        fix = "name a newer `base`, whose wheel requires it, or an older ref"
        raise fail(CheckFailedError, "ref-requires", what, fix=fix)


def _requires(wheel: Path) -> set[str]:
    """The requirements of a wheel, in a normal form; those of extras are left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    lines = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    return {normal(line) for line in lines if "extra ==" not in line}

"""What an image is made of, each part by package URL and SHA-256. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from imagefactory.locking.lock import Deb, Wheel
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.layers import is_extra

PYPI = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A wheel, a Debian package or a base image; ``purl`` is its package URL."""

    name: str
    version: str
    purl: str
    sha256: str


def of(plan: CellPlan) -> Iterator[Material]:
    """The wheels, the compilers and the base of an image, each once."""
    wheels = [*plan.resolution.wheels, *(plan.toolchain.wheels if plan.toolchain else ())]
    for wheel in {one.sha256: one for one in wheels}.values():
        yield of_wheel(wheel)
    locked = plan.base.locked
    for deb in {one.sha256: one for one in locked.debs}.values():
        yield _of_deb(deb, locked.suite)
    if locked.digest:
        yield _of_image(locked.image.partition("@")[0], locked.digest)


def of_wheel(wheel: Wheel) -> Material:
    """A wheel, with its index unless that is PyPI or a folder of somebody's.

    An extra is of no index: a project of the same name on PyPI may be another one.
    """
    where, kind = {"file_name": wheel.filename}, "generic" if is_extra(wheel) else "pypi"
    if wheel.has_address:
        where["download_url"] = wheel.index
    elif wheel.index.startswith("http") and wheel.index != PYPI:
        where["repository_url"] = wheel.index
    return Material(
        name=wheel.name,
        version=wheel.version,
        purl=_purl(f"{kind}/{wheel.name}", wheel.version, where),
        sha256=wheel.sha256,
    )


def _of_deb(deb: Deb, suite: str | None) -> Material:
    where = {"arch": deb.arch, **({"distro": suite} if suite else {})}
    purl = _purl(f"deb/debian/{deb.name}", deb.version, where)
    return Material(name=deb.name, version=deb.version, purl=purl, sha256=deb.sha256)


def _of_image(name: str, digest: str) -> Material:
    purl = _purl(
        f"oci/{name.rpartition('/')[2].partition(':')[0]}", digest, {"repository_url": name}
    )
    return Material(name=name, version=digest, purl=purl, sha256=digest.partition(":")[2])


def _purl(kind: str, version: str, qualifiers: dict[str, str]) -> str:
    rest = "&".join(f"{name}={quote(qualifiers[name], safe='')}" for name in sorted(qualifiers))
    return f"pkg:{kind}@{quote(version, safe='')}" + (f"?{rest}" if rest else "")

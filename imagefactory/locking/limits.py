"""What the policies of the matrix allow the resolver, as constraints. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.locking.lock import Resolution
from imagefactory.matrix.cell import Request
from imagefactory.matrix.policies import Follow, Policies


def constraints(
    request: Request, old: Resolution | None, policies: Policies, today: date
) -> tuple[str, ...]:
    """The constraints of a resolution, sorted: holds in force, and how far packages may move.

    ``old`` is what is locked for exactly ``request``; without it nothing moves, so that only holds
    count. What the matrix pins or overrides is decided there.
    """
    required = [Requirement(text) for text in request.requirements]
    decided = {canonicalize_name(one.name) for one in required if one.url or _is_pin(one)}
    decided |= {canonicalize_name(one.package) for one in request.overrides}
    found = {
        f"{name}{hold.to}"
        for name, hold in policies.holds.items()
        if name not in decided and hold.is_in_force(today)
    }
    if old:
        found |= {line for line in _lines(old, policies) if Requirement(line).name not in decided}
    return tuple(sorted(found))


def _is_pin(requirement: Requirement) -> bool:
    return any(one.operator in ("==", "===") for one in requirement.specifier)


def _lines(old: Resolution, policies: Policies) -> Iterator[str]:
    for wheel in old.wheels:
        version = Version(wheel.version)
        epoch = f"{version.epoch}!" if version.epoch else ""
        follow = policies.followed((wheel.name,))
        if follow is Follow.PATCH:
            yield f"{wheel.name}=={epoch}{version.major}.{version.minor}.*"
        elif follow is Follow.MINOR:
            yield f"{wheel.name}=={epoch}{version.major}.*"

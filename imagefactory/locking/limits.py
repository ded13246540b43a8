"""What the policies of the matrix allow the resolver, as constraints. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.locking.lock import Wheel
from imagefactory.matrix.cell import Override
from imagefactory.matrix.policies import Follow, Policies


def constraints(
    requirements: Iterable[str],
    overrides: Iterable[Override],
    locked: Iterable[Wheel],
    policies: Policies,
    today: date,
) -> tuple[str, ...]:
    """The constraints of a resolution, sorted: holds in force, and how far packages may move.

    ``locked`` are the wheels for exactly the same request; without any nothing moves, so that only
    holds count. What the matrix pins or overrides is decided there.
    """
    required = [Requirement(text) for text in requirements]
    decided = {canonicalize_name(one.name) for one in required if one.url or _is_pin(one)}
    decided |= {canonicalize_name(one.package) for one in overrides}
    found = [(name, hold.to) for name, hold in policies.holds.items() if hold.is_in_force(today)]
    found += [(wheel.name, _limit(wheel, policies)) for wheel in locked if not wheel.has_address]
    rows = {f"{name}{limit}" for name, limit in found if limit and name not in decided}
    return tuple(sorted(rows))


def allows(
    name: str, current: str | None, policies: Policies, today: date
) -> Callable[[Version], bool]:
    """Whether policies allow a version of ``name``, which has the version ``current`` now."""
    hold, follow = policies.held((name,), today), policies.followed((name,))

    def allowed(version: Version) -> bool:
        moves = current is None or follow.allows(Version(current), version)
        return moves and (hold is None or hold.accepts(version))

    return allowed


def _is_pin(requirement: Requirement) -> bool:
    return any(one.operator in ("==", "===") for one in requirement.specifier)


def _limit(wheel: Wheel, policies: Policies) -> str:
    """How far a package may move; empty if that is not limited."""
    version, follow = Version(wheel.version), policies.followed((wheel.name,))
    epoch = f"{version.epoch}!" if version.epoch else ""
    if follow is Follow.PATCH:
        return f"=={epoch}{version.major}.{version.minor}.*"
    return f"=={epoch}{version.major}.*" if follow is Follow.MINOR else ""

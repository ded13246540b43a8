"""What contradicts itself in a lock whose values are valid, one by one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagefactory.locking.lock import Lock, LockedToolchain, Resolution, Wheel

#: A value of the lock: names of attributes and positions in lists.
Loc = tuple[str | int, ...]


def of_lock(lock: Lock) -> Iterator[tuple[str, Loc]]:
    """What contradicts itself in a lock whose values are valid, and where."""
    yield from _in_sets(lock)
    for number, unpacker in enumerate(lock.unpackers):
        if not _is_named(unpacker.wheel):
            loc = ("unpackers", number, "wheel", "filename")
            yield f"{unpacker.wheel.filename} is not a file of {unpacker.wheel.name}", loc
    for number, built in enumerate(lock.built):
        if bool(built.replaces) == bool(built.beside):
            yield "a built wheel either replaces another one, or is beside torch", ("built", number)


def _in_sets(lock: Lock) -> Iterator[tuple[str, Loc]]:
    sets: list[tuple[str, Sequence[Resolution | LockedToolchain]]] = [
        ("resolutions", lock.resolutions),
        ("toolchains", lock.toolchains),
    ]
    for key, parts in sets:
        for number, part in enumerate(parts):
            seen = set()
            if not part.wheels:
                yield f"{part.name} has no wheels", (key, number)
            for index, wheel in enumerate(part.wheels):
                loc: Loc = (key, number, "wheels", index, "filename")
                if not _is_named(wheel):
                    yield f"{wheel.filename} is not a file of {wheel.name} {wheel.version}", loc
                if wheel.name in seen:
                    yield f"{part.name} has two wheels of {wheel.name}", loc
                seen.add(wheel.name)


def _is_named(wheel: Wheel) -> bool:
    """Whether the file name of a wheel has its name and version."""
    parts = wheel.filename.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6) or canonicalize_name(parts[0]) != wheel.name:
        return False
    version = parts[1].replace("_", "-")
    try:  # most are equal, and comparing versions is slow
        return version == wheel.version or Version(version) == Version(wheel.version)
    except InvalidVersion:
        return False

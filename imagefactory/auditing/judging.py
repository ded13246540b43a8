"""Judges a subject by what was read of its wheels. Knows neither files nor the network."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from imagefactory.auditing import platform_libraries
from imagefactory.auditing.elf import Library, hashed
from imagefactory.auditing.gpu_code import GpuCode, Way
from imagefactory.auditing.platform_libraries import parsed
from imagefactory.auditing.reading import Member
from imagefactory.auditing.subject import COMPILED, TORCH, Content, Subject, for_other_pythons
from imagefactory.errors import Problem
from imagefactory.locking import tags, torch_build
from imagefactory.locking.lock import Resolution, Wheel
from imagefactory.matrix.cell import Request
from imagefactory.planning.layers import is_extra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Extensions that every model needs; upstream compiles others for single GPUs only.
_REQUIRED = re.compile(r"_(moe_)?C(_stable_libtorch)?")
_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)")
_OF_TORCH = ("libtorch", "libc10")
_MACHINES = {"EM_AARCH64": "aarch64", "EM_X86_64": "x86_64"}
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """An extension of a judged wheel, with its GPU code; ``way`` is None for a CPU image."""

    wheel: str
    path: str
    gpu: GpuCode
    way: Way | None

    @property
    def name(self) -> str:
        """The module, such as ``_moe_C``."""
        return module(self.path)

    def targets(self, capability: int) -> list[str]:
        """The code that matters for a GPU: for its generation, else PTX, else all that there is."""
        found = self.gpu.targets
        near = [f"{t} ({n})" for t, n in found.items() if _sm(t) // 10 == capability // 10]
        ptx = [target for target in found if target.startswith("compute_")]
        shown = near or ptx or list(found)
        return [*shown, f"{self.gpu.damaged} unreadable"] if self.gpu.damaged else shown


def _sm(target: str) -> int:
    return int(target.partition("_")[2].rstrip("af"))


def module(path: str) -> str:
    """The name of the module in an extension's file, with its project if that is another one."""
    name = path.rpartition("/")[2].partition(".")[0]
    return f"{path.split('/')[-2]}/{name}" if _is_extra(path) else name


def extensions(subject: Subject, content: Content) -> Iterator[Extension]:
    """The extensions of the judged wheels."""
    for wheel, member, library in _judged(subject, content):
        way = library.gpu.way(subject.capability) if subject.capability else None
        shown = f"{wheel.name} {wheel.version}"
        yield Extension(wheel=shown, path=member.installed, gpu=library.gpu, way=way)


def _judged(subject: Subject, content: Content) -> Iterator[tuple[Wheel, Member, Library]]:
    for wheel in subject.judged:
        for member in content.extensions(wheel, subject.resolution.python):
            if member in content.libraries:
                yield wheel, member, content.libraries[member]


def problems(subject: Subject, content: Content) -> Iterator[Problem]:
    """What is wrong with the wheels of a subject."""
    resolution = subject.resolution
    wrong = torch_build.check(resolution.torch, resolution.channel, where=subject.where)
    if wrong:
        yield wrong
    yield from _tags(subject)
    yield from _extensions_missing(subject, content)
    yield from _pythons(subject, content)
    yield from _machines(subject, content)
    yield from _missing_libraries(subject, content)
    yield from _missing_symbols(subject, content)
    yield from _floors(subject, content)
    if subject.capability:
        yield from _gpus(subject, content, subject.capability)


def _problem(subject: Subject, code: str, what: str, fix: str, detail: str = "") -> Problem:
    return Problem(code=code, where=subject.where, what=what, fix=fix, detail=detail)


def _tags(subject: Subject) -> Iterator[Problem]:
    """Wheels whose names say that they are for another target."""
    found = subject.resolution
    request = Request(
        platform=found.platform,
        python=found.python,
        glibc=found.glibc,
        channel=found.channel,
        requirements=found.requirements,
        overrides=(),
    )
    accepted = frozenset(tags.target_tags(request))
    for wheel in (*subject.judged, *_torch(found)):
        if parse_wheel_filename(wheel.filename)[3].isdisjoint(accepted):
            target = f"Python {found.python} on {found.platform} with glibc {found.glibc}"
            what = f"{wheel.filename} is not for {target}"
            fix = f"take a wheel of {wheel.name} for this target, or change the base"
            yield _problem(subject, "audit-tags", what, fix)


def _extensions_missing(subject: Subject, content: Content) -> Iterator[Problem]:
    """Wheels that were built without the extensions that they are of no use without."""
    for wheel in (*subject.judged, *_torch(subject.resolution)):
        below = f"{COMPILED.get(wheel.name, '')}/"
        libraries = content.members.get(wheel.sha256, ())
        if wheel.name in COMPILED and not any(m.installed.startswith(below) for m in libraries):
            of = f"{wheel.name} {wheel.version}"
            what = f"{of} has no compiled extensions: there is no shared library below {below} in "
            fix = f"take a wheel of {wheel.name} that has them"
            fix += "" if wheel.name == TORCH else ", or compile it (`build`)"
            yield _problem(subject, "audit-extensions", what + wheel.filename, fix)


def _pythons(subject: Subject, content: Content) -> Iterator[Problem]:
    """Extensions that the wheel has for other versions of Python only."""
    for wheel, name, versions in _for_others(subject, content):
        if not _is_extra(name):
            what = f"{wheel.name} {wheel.version} has {name} for Python {', '.join(versions)} only"
            fix = f"choose a base with Python {versions[-1]}, or another version of {wheel.name}"
            yield _problem(subject, "audit-python", what, fix)


def notes(subject: Subject, content: Content) -> Iterator[str]:
    """What a person should know, and that stops nothing."""
    for wheel, name, versions in _for_others(subject, content):
        if _is_extra(name):
            yield f"{wheel.name} {wheel.version} has {name} for Python {', '.join(versions)} only"


def _for_others(subject: Subject, content: Content) -> Iterator[tuple[Wheel, str, list[str]]]:
    for wheel in subject.judged:
        members = content.members.get(wheel.sha256, ())
        for name, versions in for_other_pythons(members, subject.resolution.python):
            yield wheel, name, versions


def _is_extra(path: str) -> bool:
    """Whether an extension is of another project, which vLLM does without where it is missing."""
    return "/third_party/" in path


def _machines(subject: Subject, content: Content) -> Iterator[Problem]:
    machine = subject.resolution.platform.machine
    for member, library in content.libraries.items():
        if (found := _MACHINES.get(library.machine, library.machine)) != machine:
            what = f"{member.path} of {member.wheel.filename} is for {found}, not {machine}"
            fix = f"take {member.wheel.name} from another index; the wheel's name is wrong"
            yield _problem(subject, "audit-machine", what, fix)


def _missing_libraries(subject: Subject, content: Content) -> Iterator[Problem]:
    users: dict[tuple[Wheel, str], list[str]] = defaultdict(list)
    for member, library in content.libraries.items():
        for name in library.needed:
            if not _is_found(name, member, library, subject, content):
                users[member.wheel, name].append(member.name)
    for (wheel, name), names in users.items():
        of = f"{wheel.name} {wheel.version}"
        if other := content.elsewhere(name):
            what = f"{of} needs {name}, which {other.wheel.name} has at {other.installed}"
            what += ", where the dynamic linker does not look for it"
        else:
            what = f"{of} needs {name}, which no locked wheel and no package of the base has"
        fix = _cure_of_library(name, wheel, subject, content)
        yield _problem(subject, "audit-library", what, fix, f"needed by {', '.join(names)}")


def _is_found(
    name: str, user: Member, library: Library, subject: Subject, content: Content
) -> bool:
    if platform_libraries.is_of_driver(name) or content.find(name, user, library):
        return True
    found = platform_libraries.is_of_base(name, subject.base)
    if found is None:  # an image may have any library, but not those that wheels have
        stem = name.partition(".so")[0]
        return not stem.startswith(_OF_TORCH) and content.same_stem(stem) is None
    return found


def _cure_of_library(name: str, wheel: Wheel, subject: Subject, content: Content) -> str:
    """What to do about a missing library: another CUDA, another torch, or a package."""
    resolution = subject.resolution
    stem = name.partition(".so")[0]
    if stem in {"libtorch_cuda", "libc10_cuda"}:
        return (
            f"torch {resolution.torch.version} is a CPU build: take torch from an index that has "
            "CUDA builds for this platform, such as "
            f"https://download.pytorch.org/whl/{resolution.channel}"
        )
    if one := content.same_stem(stem):
        return (
            f"{wheel.name} {wheel.version} is built for another CUDA than these wheels: "
            f"{one.wheel.name} {one.wheel.version} has {one.name}; choose a {wheel.name} built "
            f"for {resolution.channel}, by its version, by `indexes` or by the URL of its wheel"
        )
    return f"add the wheel or the Debian package that has {name}, or another {wheel.name}"


def _missing_symbols(subject: Subject, content: Content) -> Iterator[Problem]:
    missing: dict[Wheel, dict[str, list[str]]] = {}
    for wheel, member, library in _judged(subject, content):
        for symbol in undefined(member, library, content):
            missing.setdefault(wheel, {}).setdefault(symbol, []).append(module(member.path))
    torch = subject.resolution.torch.version
    for wheel, symbols in missing.items():
        modules = sorted({name for names in symbols.values() for name in names})
        do = "does" if len(modules) == 1 else "do"
        are = "1 symbol is" if len(symbols) == 1 else f"{len(symbols)} symbols are"
        what = (
            f"{', '.join(modules)} of {wheel.name} {wheel.version} {do} not load with torch "
            f"{torch}: {are} defined nowhere"
        )
        rows = [f"{name} ({', '.join(users)})" for name, users in sorted(symbols.items())]
        more = f"\nand {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
        detail = "\n".join(rows[:_LISTED]) + more
        fix = _cure_of_symbols(wheel, torch)
        yield _problem(subject, "audit-symbols", what, fix, detail)


def _cure_of_symbols(wheel: Wheel, torch: str) -> str:
    pinned = [Requirement(text) for text in wheel.requires or ()]
    wanted = [str(one) for one in pinned if canonicalize_name(one.name) == TORCH]
    release = torch.partition("+")[0]
    other = f"choose a {wheel.name} that is built for torch {release}"
    if wanted and not pinned_to(wanted[0], release):
        return f"pin {wanted[0]}, which {wheel.name} {wheel.version} requires; or {other}"
    return f"{other}, or another torch"


def pinned_to(requirement: str, release: str) -> bool:
    """Whether a requirement accepts a release."""
    return Requirement(requirement).specifier.contains(release, prereleases=True)


def undefined(member: Member, library: Library, content: Content) -> list[str]:
    """The symbols that nothing defines of what is loaded with an extension."""
    loaded = [member, *content.closure(member)]
    known = {one.name: content.libraries[one] for one in loaded if one in content.libraries}
    wrong, wanted = [], []
    for one in library.imports:
        owner = known.get(one.file)
        if owner and one.version not in owner.defines:
            wrong.append(one.name)
        elif owner or (not one.version and platform_libraries.is_judged(one.name)):
            wanted.append(one.name)
    if not wanted:
        return wrong
    import numpy as np  # noqa: PLC0415 - takes 100 ms

    names, found = hashed(wanted), np.zeros(len(wanted), dtype=bool)
    for one_library in known.values():
        found |= _has(_exports(one_library.exports), names)
    left = [name for name, ok in zip(wanted, found.tolist(), strict=True) if not ok]
    return wrong + [name for name in left if not _is_unread(name, loaded, content)]


def _is_unread(symbol: str, loaded: Iterable[Member], content: Content) -> bool:
    """Whether a symbol is of a CUDA library that is loaded, and too large to be read."""
    stem = platform_libraries.cuda_library(symbol)
    return any(one.stem == stem and one in content.unread for one in loaded)


def _exports(raw: bytes) -> NDArray[np.uint64]:
    import numpy as np  # noqa: PLC0415 - as above

    return np.frombuffer(raw, "<u8")


def _has(exports: NDArray[np.uint64], names: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of ``names`` are among ``exports``, which are sorted."""
    places = exports.searchsorted(names)
    inside = places < len(exports)
    inside[inside] = exports[places[inside]] == names[inside]
    found: NDArray[np.bool_] = inside
    return found


def _floors(subject: Subject, content: Content) -> Iterator[Problem]:
    """Versions of glibc and libstdc++ that are newer than those of the base."""
    newest: dict[tuple[Wheel, str], tuple[tuple[int, ...], str]] = {}
    for member, library in content.libraries.items():
        for text in (text for names in library.versions.values() for text in names):
            found = _VERSION.fullmatch(text)
            if found:
                key = member.wheel, found[1]
                mine = parsed(found[2]), member.name
                newest[key] = max(newest.get(key, mine), mine)
    for (wheel, family), (version, name) in newest.items():
        has = platform_libraries.newest(family, subject.resolution.glibc, subject.base)
        if has is not None and version > has:
            what = (
                f"{wheel.name} {wheel.version} needs {family} {_text(version)} ({name}), and the "
                f"base has {_text(has)}"
            )
            fix = f"choose a newer base, or an older {wheel.name}"
            yield _problem(subject, f"audit-{family.lower()}", what, fix)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _gpus(subject: Subject, content: Content, capability: int) -> Iterator[Problem]:
    """Extensions that every model needs, without code that the GPU runs."""
    for wheel, member, library in _judged(subject, content):
        needs_gpu = _REQUIRED.fullmatch(module(member.path))
        if needs_gpu and library.gpu.targets and library.gpu.way(capability) is Way.NONE:
            has = ", ".join(library.gpu.targets)
            what = (
                f"{member.name} of {wheel.name} {wheel.version} has no code that a GPU of "
                f"sm_{capability} runs: {has}"
            )
            fix = f"choose a {wheel.name} that is built for it, or compile it (`build`)"
            yield _problem(subject, "audit-gpu", what, fix)
    yield from _gpus_of_extras(subject, content, capability)


def _gpus_of_extras(subject: Subject, content: Content, capability: int) -> Iterator[Problem]:
    """Extras with GPU code, none of which the GPU runs: they were built for this very cell."""
    for extra in filter(is_extra, subject.judged):
        rows = [library.gpu for wheel, _, library in _judged(subject, content) if wheel is extra]
        targets = sorted({target for gpu in rows for target in gpu.targets})
        if targets and all(gpu.way(capability) is Way.NONE for gpu in rows):
            what = (
                f"{extra.name} {extra.version} has no code that a GPU of sm_{capability} runs: "
                f"{', '.join(targets)}"
            )
            fix = "leave the GPUs to TORCH_CUDA_ARCH_LIST: its setup may name others (`-arch`)"
            yield _problem(subject, "audit-gpu", what, fix)


def _torch(resolution: Resolution) -> Iterable[Wheel]:
    found = resolution.wheel(TORCH)
    return [found] if found else []


def as_dict(extension: Extension) -> Mapping[str, object]:
    """An extension as plain JSON values."""
    return {
        "wheel": extension.wheel,
        "path": extension.path,
        "gpu": extension.way,
        "targets": dict(extension.gpu.targets),
        "damaged": extension.gpu.damaged,
    }

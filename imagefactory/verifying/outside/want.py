"""What a file of an image has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from imagefactory.verifying.outside.tree import Entry

#: Judges the text of a file: what is wrong with it, empty if nothing is.
Reading = Callable[[bytes], str]
ROOT = "0:0"
FILE, PROGRAM, FOLDER, LINK = 0o644, 0o755, 0o755, 0o777


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What one path has to be.

    Attributes:
        origin: where it comes from, such as ``wheel numpy``.
        kind: file, folder or link.
        modes: the modes that it may have; links have none that matters.
        hashes: the SHA-256 that a file may have; empty if its text is judged instead.
        size: bytes of a file; None if it is not known.
        links: the targets that a link may have.
        reading: judges the text of a file.
        required: whether it has to be there.
        entry: exactly what it has to be, for a file of a base.
        member: path inside the wheel that it comes from, empty for other files.
        wheel: hash of that wheel.
    """

    origin: str
    kind: str = "file"
    modes: tuple[int, ...] = (FILE,)
    hashes: frozenset[str] = frozenset()
    size: int | None = None
    links: tuple[str, ...] = ()
    reading: Reading | None = None
    required: bool = True
    entry: Entry | None = None
    member: str = ""
    wheel: str = ""


@dataclass(slots=True, kw_only=True)
class Wants:
    """What the whole image has to be.

    Attributes:
        paths: what each path has to be; one may have more than one source, and is one of them.
        folders: folders that may be there.
        absent: paths that may not be there, with the reason.
        together: groups of paths that are all there or all missing, by name.
    """

    paths: dict[str, list[Want]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    together: dict[str, list[str]] = field(default_factory=dict)

    def add(self, path: str, want: Want) -> None:
        """One more thing that ``path`` may be."""
        self.paths.setdefault(path, []).append(want)
        self.allow(path.rpartition("/")[0])

    def replace(self, path: str, want: Want) -> None:
        """The only thing that ``path`` may be: a layer above replaces it."""
        self.paths.pop(path, None)
        self.absent.pop(path, None)
        self.add(path, want)

    def allow(self, folder: str) -> None:
        """``folder`` and all above it may be there."""
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]


def differences(entry: Entry, wants: Iterable[Want], text: bytes | None) -> list[str]:
    """How ``entry`` differs from that of ``wants`` which it is most like; empty if it is one."""
    found = [_differences(entry, want, text) for want in wants]
    return min(found, key=len, default=[])


def _differences(entry: Entry, want: Want, text: bytes | None) -> list[str]:
    if want.entry is not None:
        return [] if entry == want.entry else _changes(entry, want.entry)
    if entry.kind != want.kind:
        return [f"is a {entry.kind}, not a {want.kind}"]
    faults = []
    if entry.kind == "link" and entry.link not in want.links:
        faults.append(f"is a link to {entry.link}, not to {' or '.join(want.links)}")
    if entry.kind == "file":
        faults += _content(entry, want, text)
    if entry.kind != "link" and entry.mode not in want.modes:
        faults.append(
            f"has the mode {entry.mode:o}, not {' or '.join(f'{m:o}' for m in want.modes)}"
        )
    if entry.owner != ROOT:
        faults.append(f"belongs to {entry.owner}")
    if entry.attributes:
        faults.append(f"has the attributes {entry.attributes}")
    return faults


def _content(entry: Entry, want: Want, text: bytes | None) -> list[str]:
    if want.reading is not None:
        if text is None:
            return ["is too large to be read"]
        said = want.reading(text)
        return [said] if said else []
    if entry.sha256 in want.hashes:
        return []
    if want.size is None or want.size == entry.size:
        return [f"has other content (sha256 {entry.sha256[:12]})"]
    return [f"has other content: {entry.size} bytes, not {want.size}"]


def _changes(entry: Entry, wanted: Entry) -> list[str]:
    """How a file of the base differs."""
    if entry.kind != wanted.kind:
        return [f"is a {entry.kind}, not a {wanted.kind}"]
    faults = []
    if entry.sha256 != wanted.sha256:
        more = f": {entry.size} bytes, not {wanted.size}" if entry.size != wanted.size else ""
        faults.append(f"has other content{more}")
    for name in ("mode", "owner", "link", "attributes"):
        now, was = getattr(entry, name), getattr(wanted, name)
        if now != was:
            shown = [f"{value:o}" if isinstance(value, int) else str(value) for value in (now, was)]
            faults.append(f"{name} is {shown[0] or 'none'}, not {shown[1] or 'none'}")
    return faults

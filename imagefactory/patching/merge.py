"""Three-way merge of a patch: (old pristine, old patched, new pristine) becomes new patched, file
by file.

Git does the merging, and reads and writes the diffs; what is here finds files that moved and puts
trees together.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unidiff.patch import PatchedFile, PatchSet

from imagefactory.errors import CheckFailedError, fail
from imagefactory.inbuild import overlay
from imagefactory.system import shell

#: Share of distinct lines that two files must have in common for one to be the other, moved: by
#: name, or by content.
SAME_NAME, ANY_NAME = 0.3, 0.6
MARKERS = ("<<<<<<< ", "||||||| ", ">>>>>>> ")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFile:
    """One file of a merged patch.

    Attributes:
        old: its path in the old release.
        new: its path in the new one.
        text: what it becomes; None if the patch removes it.
        conflicts: places where both sides changed the same lines; they hold conflict markers.
    """

    old: str
    new: str
    text: bytes | None
    conflicts: int


def merge(diff: Path, old: Path, new: Path, labels: tuple[str, str]) -> tuple[MergedFile, ...]:
    """Carry ``diff``, which applies to the tree ``old``, to the tree ``new``; neither is changed.

    ``labels`` name the two releases in conflict markers. Raises CheckFailedError if the diff does
    not apply to ``old``.
    """
    with tempfile.TemporaryDirectory(prefix="imagefactory-merge-") as name:
        patched = Path(name) / "patched"
        copy_files(old, patched, overlay.touched(diff))
        done = overlay.git_apply(patched, diff)
        if done.returncode != 0:
            what = (
                f"{diff.name} does not apply to {labels[0]} any more: "
                f"{done.stderr.strip().splitlines()[-1]}"
            )
            raise fail(
                CheckFailedError, "port-base", what, where=str(diff), fix="mend the variant first"
            )
        files = PatchSet(diff.read_text(encoding="utf-8"))
        return tuple(_merged(file, old, patched, new, Path(name), labels) for file in files)


def copy_files(root: Path, target: Path, names: list[str]) -> None:
    """Copies of the files ``names`` of a tree, those that are there."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, target / name)


def _merged(
    file: PatchedFile, old: Path, patched: Path, new: Path, scratch: Path, labels: tuple[str, str]
) -> MergedFile:
    path = file.path
    base = (old / path).read_bytes() if (old / path).is_file() else b""
    theirs = patched / path
    place = path if not base else locate(path, base.decode("utf-8", "replace"), new)
    if (
        place is None
    ):  # upstream removed the file: what the patch wants of it is for a person to say
        whole = theirs.read_bytes() if theirs.is_file() else b""
        text = f"<<<<<<< {labels[1]}: no such file\n=======\n".encode() + whole + b">>>>>>> patch\n"
        return MergedFile(old=path, new=path, text=text, conflicts=1)
    ours = new / place
    if not base and not ours.is_file():
        return MergedFile(old=path, new=place, text=theirs.read_bytes(), conflicts=0)
    if not theirs.is_file():
        same = ours.read_bytes() == base
        return MergedFile(
            old=path,
            new=place,
            text=None if same else ours.read_bytes(),
            conflicts=0 if same else 1,
        )
    text, conflicts = _merge_file(
        ours.read_bytes() if ours.is_file() else b"", base, theirs, scratch, labels
    )
    return MergedFile(old=path, new=place, text=text, conflicts=conflicts)


def _merge_file(
    ours: bytes, base: bytes, theirs: Path, scratch: Path, labels: tuple[str, str]
) -> tuple[bytes, int]:
    current, common = scratch / "ours", scratch / "base"
    current.write_bytes(ours)
    common.write_bytes(base)
    names = ("-L", labels[1], "-L", labels[0], "-L", "patch")
    done = shell.run(
        ["git", "merge-file", "--diff3", "--quiet", *names, str(current), str(common), str(theirs)],
        quiet=True,
    )
    if (
        done.code < 0 or done.code > 127
    ):  # git tells the number of conflicts, up to 127, and failures above
        raise fail(
            CheckFailedError,
            "port-merge",
            f"git merge-file: {done.err.strip()}",
            fix="see git's message",
        )
    return current.read_bytes(), done.code


def locate(path: str, text: str, root: Path) -> str | None:
    """Where the file ``path`` with ``text`` is in the tree ``root``: there, moved, or None.

    A move is told by content: most lines of the one are lines of the other; files of the same name
        are looked at first.
    """
    if (root / path).is_file():
        return path
    lines = _lines(text)
    for pattern, enough in ((Path(path).name, SAME_NAME), (f"*{Path(path).suffix}", ANY_NAME)):
        ranked = sorted(
            ((_likeness(lines, found), str(found)) for found in root.rglob(pattern)), reverse=True
        )
        if ranked and ranked[0][0] >= enough:
            return str(Path(ranked[0][1]).relative_to(root))
    return None


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


def _likeness(lines: set[str], path: Path) -> float:
    other = _lines(path.read_text(encoding="utf-8", errors="replace"))
    return len(lines & other) / max(len(lines | other), 1)


def diff_of(pristine: Path, changed: Path, names: list[str]) -> str:
    """The unified diff from ``pristine`` to ``changed`` in the files ``names``.

    Empty if none differs.
    """
    with tempfile.TemporaryDirectory(prefix="imagefactory-diff-") as name:
        for side, root in (("a", pristine), ("b", changed)):
            copy_files(root, Path(name) / side, names)
        done = shell.run(
            [
                "git",
                "diff",
                "--no-index",
                "--no-color",
                "--no-renames",
                "--no-prefix",
                "--no-ext-diff",
                "a",
                "b",
            ],
            cwd=Path(name),
            quiet=True,
        )
    # the ids of blobs say nothing about sources that are in no repository; of a new file, git names
    # one side twice
    lines = [line for line in done.out.splitlines(keepends=True) if not line.startswith("index ")]
    return re.sub(
        r"^diff --git [ab]/(.+) [ab]/\1$",
        r"diff --git a/\1 b/\1",
        "".join(lines),
        flags=re.MULTILINE,
    )


def changed_files(pristine: Path, tree: Path) -> list[str]:
    """The files that differ between two trees, by content; hidden files are nobody's sources."""
    names = {
        path.relative_to(root)
        for root in (pristine, tree)
        for path in root.rglob("*")
        if path.is_file()
    }
    visible = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    return sorted(str(name) for name in visible if _bytes(pristine / name) != _bytes(tree / name))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def leftover_markers(root: Path, names: list[str]) -> Iterator[str]:
    """``file:line`` of every conflict marker that is still in the files ``names``."""
    for name in names:
        text = (
            (root / name).read_text(encoding="utf-8", errors="replace")
            if (root / name).is_file()
            else ""
        )
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith(MARKERS):
                yield f"{root / name}:{number}"

"""Three-way merge of a patch, file by file: old pristine, old patched, new pristine.

Git merges, and reads and writes diffs; this module finds moved files and assembles the trees.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unidiff.patch import PatchedFile, PatchSet

from imagefactory.errors import CheckFailedError, fail
from imagefactory.inbuild import overlay
from imagefactory.system import shell, temporary

#: Share of distinct lines that two files must have in common for one to be the other, moved: if
#: they have the same name, and if they do not.
SAME_NAME, ANY_NAME = 0.3, 0.6
MARKERS = ("<<<<<<< ", "||||||| ", ">>>>>>> ")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFile:
    """One file of a merged patch.

    Attributes:
        old: its path in the old release.
        new: its path in the new one.
        text: what it becomes; None if the patch removes it.
        conflicts: number of conflicts, each with markers in ``text``.
        base: its text in the old release; empty if the patch creates it.
        patched: ``base`` with the patch; empty if the patch removes the file.
    """

    old: str
    new: str
    text: bytes | None
    conflicts: int
    base: bytes = b""
    patched: bytes = b""


def merge(diff: Path, old: Path, new: Path, labels: tuple[str, str]) -> tuple[MergedFile, ...]:
    """Merge ``diff``, which applies to the tree ``old``, into ``new``; neither tree is changed.

    ``labels`` name the two releases in conflict markers. Raises CheckFailedError if the diff does
    not apply to ``old``.
    """
    with temporary.folder(prefix="imagefactory-merge-") as folder:
        patched = folder / "patched"
        copy_files(old, patched, overlay.touched(diff))
        done = overlay.git_apply(patched, diff)
        if done.returncode != 0:
            what = (
                f"{diff.name} does not apply to {labels[0]}: {done.stderr.strip().splitlines()[-1]}"
            )
            raise fail(
                CheckFailedError, "port-base", what, where=str(diff), fix="fix the variant first"
            )
        files = PatchSet(diff.read_text(encoding="utf-8"))
        return tuple(_merged(file, old, patched, new, folder, labels) for file in files)


def copy_files(root: Path, target: Path, names: list[str]) -> None:
    """Copy those of the files ``names`` that exist from the tree ``root`` to ``target``."""
    target.mkdir()
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
    moved_to = path if not base else locate(path, base.decode("utf-8", "replace"), new)
    if moved_to is None:  # upstream removed the file: the author has to decide
        whole = theirs.read_bytes() if theirs.is_file() else b""
        text = f"<<<<<<< {labels[1]}: no such file\n=======\n".encode() + whole + b">>>>>>> patch\n"
        return MergedFile(old=path, new=path, text=text, conflicts=1)
    ours = new / moved_to
    if not base and not ours.is_file():
        return MergedFile(old=path, new=moved_to, text=theirs.read_bytes(), conflicts=0)
    if not theirs.is_file():
        same = ours.read_bytes() == base
        return MergedFile(
            old=path,
            new=moved_to,
            text=None if same else ours.read_bytes(),
            conflicts=0 if same else 1,
        )
    text, conflicts = _merge_file(
        ours.read_bytes() if ours.is_file() else b"", base, theirs, scratch, labels
    )
    return MergedFile(
        old=path,
        new=moved_to,
        text=text,
        conflicts=conflicts,
        base=base,
        patched=theirs.read_bytes(),
    )


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
    if not 0 <= done.code <= 127:  # up to 127 it is the number of conflicts, above it is an error
        raise fail(
            CheckFailedError,
            "port-merge",
            f"git merge-file: {done.err.strip()}",
            fix="see git's message",
        )
    return current.read_bytes(), done.code


def locate(path: str, text: str, root: Path) -> str | None:
    """The path in the tree ``root`` of the file ``path`` with the content ``text``; None if gone.

    A moved file is recognized by the share of lines in common; files with the same name are tried
    first.
    """
    if (root / path).is_file():
        return path
    lines = _lines(text)
    for pattern, threshold in ((Path(path).name, SAME_NAME), (f"*{Path(path).suffix}", ANY_NAME)):
        ranked = sorted(
            ((_similarity(lines, found), str(found)) for found in root.rglob(pattern)), reverse=True
        )
        if ranked and ranked[0][0] >= threshold:
            return str(Path(ranked[0][1]).relative_to(root))
    return None


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


def _similarity(lines: set[str], path: Path) -> float:
    other = _lines(path.read_text(encoding="utf-8", errors="replace"))
    return len(lines & other) / max(len(lines | other), 1)


def diff_of(pristine: Path, changed: Path, names: list[str]) -> str:
    """The unified diff from ``pristine`` to ``changed`` of the files ``names``; may be empty."""
    with temporary.folder(prefix="imagefactory-diff-") as folder:
        for side, root in (("a", pristine), ("b", changed)):
            copy_files(root, folder / side, names)
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
            cwd=folder,
            quiet=True,
        )
    # blob ids mean nothing outside a repository; for a new file, git prints one prefix twice
    lines = [line for line in done.out.splitlines(keepends=True) if not line.startswith("index ")]
    return re.sub(
        r"^diff --git [ab]/(.+) [ab]/\1$",
        r"diff --git a/\1 b/\1",
        "".join(lines),
        flags=re.MULTILINE,
    )


def changed_files(pristine: Path, tree: Path) -> list[str]:
    """The files whose content differs between two trees; hidden files are ignored."""
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
    """``file:line`` of each conflict marker that is left in the files ``names``."""
    for name in names:
        text = (
            (root / name).read_text(encoding="utf-8", errors="replace")
            if (root / name).is_file()
            else ""
        )
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith(MARKERS):
                yield f"{root / name}:{number}"

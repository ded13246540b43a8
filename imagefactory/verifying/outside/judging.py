"""Compares the files of an image with what they have to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from imagefactory.verifying.outside.judged import Finding
from imagefactory.verifying.outside.tree import Entry, Layer
from imagefactory.verifying.outside.want import FOLDER, ROOT, Want, Wants, differences

#: Whether a file of a wheel, whose RECORD has another hash, is that of the wheel after all.
Confirm = Callable[[Want, Entry], bool]
_HOOKS = ("sitecustomize.py", "usercustomize.py")
_PRELOAD = "etc/ld.so.preload"


def judge(tree: Layer, wants: Wants, confirm: Confirm) -> tuple[list[Finding], list[Finding]]:
    """What differs or is missing, and what nothing explains."""
    changed = list(_changed(tree, wants, confirm))
    extra = list(_extra(tree, wants))
    return changed, extra


def _changed(tree: Layer, wants: Wants, confirm: Confirm) -> Iterator[Finding]:
    optional = _optional(tree, wants)
    for path in sorted(wants.paths):
        options = wants.paths[path]
        entry = tree.entries.get(path)
        if entry is None:
            if path not in optional and any(want.required for want in options):
                yield Finding(path=path, what="is missing", origin=options[0].origin)
            continue
        faults = differences(entry, options, tree.texts.get(path))
        if faults and not (
            len(faults) == 1
            and "content" in faults[0]
            and any(confirm(want, entry) for want in options if want.member)
        ):
            yield Finding(path=path, what=", ".join(faults), origin=options[0].origin)


def _optional(tree: Layer, wants: Wants) -> set[str]:
    """Paths in folders of tests that are gone as a whole."""
    found: set[str] = set()
    for paths in wants.together.values():
        if not any(path in tree.entries for path in paths):
            found |= set(paths)
    return found


def _extra(tree: Layer, wants: Wants) -> Iterator[Finding]:
    unexplained = [
        path
        for path, entry in tree.entries.items()
        if path not in wants.paths and not _is_plain_folder(path, entry, wants)
    ]
    tops = Counter(_top(path, wants) for path in unexplained)
    for path in sorted(tops):
        entry = tree.entries.get(path)
        if path in wants.absent:
            yield Finding(path=path, what=wants.absent[path])
        elif path in wants.folders and entry is not None:
            yield Finding(path=path, what=_folder_fault(entry))
        else:
            inside = f" with {tops[path]} entries" if tops[path] > 1 else ""
            yield Finding(path=path, what=f"is explained by nothing{inside}{_danger(path)}")


def _is_plain_folder(path: str, entry: Entry, wants: Wants) -> bool:
    return path in wants.folders and entry.kind == "folder" and not _folder_fault(entry)


def _folder_fault(entry: Entry) -> str:
    if entry.kind != "folder":
        return f"is a {entry.kind}, not a folder"
    plain = (entry.mode, entry.owner, entry.attributes) == (FOLDER, ROOT, "")
    return "" if plain else f"has the mode {entry.mode:o} and belongs to {entry.owner}"


def _top(path: str, wants: Wants) -> str:
    """The outermost folder above ``path`` that nothing explains; ``path`` if there is none."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        above = "/".join(parts[:depth])
        if above not in wants.folders and above not in wants.paths:
            return above
    return path


def _danger(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.endswith(".pth") or name in _HOOKS:
        return ", and runs whenever Python starts"
    if path == _PRELOAD:
        return ", and is loaded into every program"
    return ""

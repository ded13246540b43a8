"""Conflicts that a merge leaves: resolved only if the patch does nothing but add lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagefactory.patching import rebase
from imagefactory.patching.merge import MergedFile
from imagefactory.patching.resolve_conflicts import Side, resolve

CONFLICT = b"<<<<<<< new\n%s||||||| old\n%s=======\n%s>>>>>>> patch\n"


@pytest.mark.parametrize(
    ("ours", "base", "theirs", "after"),
    [
        (b"O\n", b"B\n", b"B\nown\n", b"O\nown\n"),
        # upstream removed the lines around the patch's: they would end up anywhere
        (b"", b"B\n", b"B\nown\n", None),
        (b"", b"if B:\n  C\n", b"if B:\n  C\n\n  own\n", None),
        # but a paragraph of its own needs none of them
        (b"", b"B\n", b"B\n\nown\n", b"\nown\n"),
        (b"", b"if B:\n  C\n\n", b"if B:\n  C\n\nif own:\n  do\n\n", b"\nif own:\n  do\n\n"),
        (b"return x\n", b"B\nC\n", b"B\nown\nC\n", None),
        # a closing parenthesis that upstream's change has as well is the patch's own, too
        (b"B\nlog(\n)\n", b"B\n", b"B\nown(\n)\n", b"B\nlog(\n)\nown(\n)\n"),
        (b"list\nlog(\n)\n", b"plain\n", b"list\nown(\n)\n", b"list\nlog(\n)\nown(\n)\n"),
        # upstream has the patch's change, next to one of its own
        (b"O\nown\n", b"B\n", b"B\nown\n", b"O\nown\n"),
        (b"list\nmore\n", b"plain\n", b"list\n", b"list\nmore\n"),
        # upstream has a part of it: no two statements may become one, or one two
        (b"O\nown\n", b"B\n", b"B\nown\nand own\n", None),
        # lines from different places do not belong together
        (b"O\nP\n", b"B\nC\n", b"one\nB\nC\ntwo\n", None),
        (b"list\nmore\n", b"plain\n", b"list\n\nown\n", b"list\nmore\n\nown\n"),
        (b"list\nmore\n)\n", b"plain\n", b"list\nown\n)\n", b"list\nmore\n)\nown\n)\n"),
        (b"list\nm\nlast\n", b"plain\n", b"list\nown\nlast\n", b"list\nm\nlast\nown\n"),
        (b"(\nlist\nm\n", b"plain\n", b"(\nlist\nown\n", b"(\nlist\nm\nown\n"),
        (b"B\nO\n", b"B\nC\n", b"own\n", None),
        # upstream has the patch's line, and still the one that the patch removes
        (b"B\nlist\n", b"B\n", b"list\nown\n", None),
        (b"O\n", b"B\n", b"own\n", None),
        (b"O\n", b"B\n", b"B\n", None),
    ],
)
def test_a_conflict_is_resolved_only_if_the_patch_just_adds_lines(
    ours: bytes, base: bytes, theirs: bytes, after: bytes | None
) -> None:
    text = b"x\n" + CONFLICT % (ours, base, theirs) + b"y\n"
    assert resolve(text, Side.AFTER) == (None if after is None else b"x\n" + after + b"y\n")


@pytest.mark.parametrize("ours", [b"O\n", b""])
def test_a_file_whose_conflicts_are_resolved_has_none(ours: bytes) -> None:
    text = CONFLICT % (ours, b"B\n", b"B\nown\n")
    file = MergedFile(old="x", new="x", text=text, conflicts=1)
    found = rebase._resolved(file, Side.AFTER)
    assert found == (replace(file, text=ours + b"own\n", conflicts=0) if ours else None)
    whole = replace(file, conflicts=0)
    assert rebase._resolved(whole, Side.AFTER) is whole
    assert rebase._resolved(replace(file, text=None), Side.AFTER) is None

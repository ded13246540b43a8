"""Moving tags: names such as ``nightly`` that are given to one image after the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import Problem
from imagefactory.matrix import axes as all_axes
from imagefactory.matrix.axes import PLACEHOLDER
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.expand import matches
from imagefactory.matrix.schema import MatrixFile, MovingTagEntry
from imagefactory.system import reference
from imagefactory.system.yamlfile import Location, Positions

#: Characters; the names that record each move are longer, and a tag has 128 at most.
LONGEST = 90
#: What a tag asks of an image unless it names a level: that it passed.
VERIFIED = "verified"
#: Tags that a night moves unless the matrix says otherwise. NIGHTLY also goes to pre-releases.
NIGHTLY, LATEST = "nightly", "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingTag:
    """A declared moving tag.

    Attributes:
        template: the tag, with ``{axis}`` placeholders.
        when: axis -> the values of images that may have it; empty for all images.
        level: what a receipt must show before an image gets it.
        nightly: whether a night moves it.
        location: where it is declared.
    """

    template: str
    when: Mapping[str, str | list[str]]
    level: str
    nightly: bool = False
    location: Location

    def of(self, axes: Mapping[str, str]) -> str | None:
        """The tag for an image with these axes; None if such an image cannot have it."""
        named = PLACEHOLDER.findall(self.template)
        if not matches(self.when, axes) or not all(axis in axes for axis in named):
            return None
        # as in the tags of cells: no tag has the + of a version
        return PLACEHOLDER.sub(lambda found: axes[found[1]].replace("+", "-"), self.template)


def declared(file: MatrixFile, positions: Positions) -> tuple[MovingTag, ...]:
    """The moving tags of ``file``, in its order."""
    return tuple(
        MovingTag(
            template=template,
            when=entry.when,
            level=entry.level,
            nightly=_is_nightly(template, entry),
            location=positions.locate(("moving_tags", template), "moving_tags"),
        )
        for template, entry in file.moving_tags.items()
    )


def is_named(tag: str, *names: str) -> bool:
    """Whether a tag is one of ``names``, or begins with one and a dash."""
    return any(tag == name or tag.startswith(f"{name}-") for name in names)


def _is_nightly(template: str, entry: MovingTagEntry) -> bool:
    if entry.nightly is not None:
        return entry.nightly
    return entry.level == VERIFIED and is_named(template, NIGHTLY, LATEST)


def problems(file: MatrixFile, cells: Sequence[Cell], positions: Positions) -> Iterator[Problem]:
    """Report moving tags that are none, or that are the tag of a cell."""
    known = all_axes.names(file)
    owners = {tag.rpartition(":")[2]: cell for cell in cells for tag in cell.tags}
    for one in declared(file, positions):
        where, named = str(one.location), PLACEHOLDER.findall(one.template)
        if one.nightly and one.level != VERIFIED:
            what = (
                f"a night cannot move {one.template}: it verifies no image on a {one.level.upper()}"
            )
            fix = "remove `nightly`, and use `imagefactory promote`, or remove `level`"
            yield Problem(code="matrix-night-level", where=where, what=what, fix=fix)
        for axis in (axis for axis in named if axis not in known):
            what, fix = f"there is no axis {axis!r}", f"write one of {', '.join(known)}"
            yield Problem(code="matrix-unknown-axis", where=where, what=what, fix=fix)
        if not all(axis in known for axis in named):
            continue
        made = dict.fromkeys(filter(None, (one.of(cell.named) for cell in cells)))
        for tag in made or [PLACEHOLDER.sub("0", one.template)]:
            if not reference.is_tag(tag) or len(tag) > LONGEST:
                what = f"{tag[:LONGEST]!r} is not a tag"
                fix = f"use up to {LONGEST} letters, digits and . _ -"
                yield Problem(code="matrix-bad-tag", where=where, what=what, fix=fix)
            elif tag in owners:
                what = f"{tag} is also a tag of {owners[tag].name}, which every push moves"
                fix = "choose another name, or remove it from `tags`"
                yield Problem(code="matrix-same-tag", where=where, what=what, fix=fix)

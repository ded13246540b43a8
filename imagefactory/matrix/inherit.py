"""``extends``: a base or flavor that takes what it does not set itself from another. Pure.

Works on the parsed file before it is validated, so that every rule sees complete entries and every
problem has the line of the entry that causes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory.errors import Problem
from imagefactory.matrix.axes import PLACEHOLDER
from imagefactory.system.yamlfile import Loc, Positions

#: The sections whose entries may extend each other.
SECTIONS = ("bases", "flavors")
#: The keys of a base of which it has one: an own one replaces whichever is inherited.
ORIGINS = {"suite", "image", "bootstrap"}
#: The keys that add to what is inherited; all others replace it.
ADDS = ("packages", "env", "extras", "indexes", "patches", "requirements")


def apply(data: Any, positions: Positions) -> list[Problem]:
    """Complete all entries of ``data`` that extend another; returns what is wrong with `extends`.

    What is malformed otherwise is left alone: validation reports it.
    """
    problems: list[Problem] = []
    for section in SECTIONS:
        entries = data.get(section) if isinstance(data, dict) else None
        if isinstance(entries, dict):
            problems += _Section(section, entries, positions).complete()
    return problems


class _Section:
    """The entries of one section, completed parents first."""

    def __init__(self, name: str, entries: dict[str, Any], positions: Positions) -> None:
        self.name, self.entries, self.positions = name, entries, positions
        self.problems: list[Problem] = []
        self.done: set[str] = set()

    def complete(self) -> list[Problem]:
        for name in self.entries:
            self._complete(name, ())
        return self.problems

    def _complete(self, name: str, children: Sequence[str]) -> None:
        """Complete the entry ``name``, which ``children`` extend, the first one directly."""
        if name in self.done:
            return
        entry = self.entries[name]
        parent = entry.get("extends") if isinstance(entry, dict) else None
        if name in children:
            circle = " -> ".join([*reversed(children[: children.index(name) + 1]), name])
            what, fix = f"{self.name} extend each other: {circle}", "remove one `extends`"
            self._report("extends-cycle", name, what, fix)
        elif parent is not None and parent not in self.entries:
            others = ", ".join(other for other in self.entries if other != name)
            what = f"{name!r} extends {parent!r}, which is not in `{self.name}`"
            fix = f"write one of {others}" if others else "remove `extends`"
            self._report("unknown-parent", name, what, fix)
        elif parent is not None:
            self._complete(parent, (name, *children))
            if not self.problems and isinstance(self.entries[parent], dict):
                self._merge((self.name, parent), entry, (self.name, name))
        self.done.add(name)

    def _report(self, code: str, name: str, what: str, fix: str) -> None:
        where = str(self.positions.locate((self.name, name, "extends")))
        self.problems.append(Problem(code=f"matrix-{code}", where=where, what=what, fix=fix))

    def _merge(self, above: Loc, entry: dict[str, Any], loc: Loc) -> None:
        parent: dict[str, Any] = self.entries[str(above[1])]
        skipped = {"extends"} | (ORIGINS if ORIGINS & entry.keys() else set())
        for key, value in parent.items():
            if key in skipped:
                continue
            if key not in entry:
                entry[key] = value.copy() if isinstance(value, (dict, list)) else value
                self.positions.inherit((*above, key), (*loc, key))
            elif key in ADDS and isinstance(value, dict) and isinstance(entry[key], dict):
                self._add_items(value, (*above, key), entry[key], (*loc, key))
            elif key in ADDS and isinstance(value, list) and isinstance(entry[key], list):
                entry[key] = self._joined(value, (*above, key), entry[key], (*loc, key))

    def _add_items(
        self, inherited: dict[str, Any], above: Loc, own: dict[str, Any], loc: Loc
    ) -> None:
        for key, value in inherited.items():
            if key not in own:
                own[key] = value
                self.positions.inherit((*above, key), (*loc, key))

    def _joined(self, inherited: list[Any], above: Loc, own: list[Any], loc: Loc) -> list[Any]:
        """Both lists; an own requirement of a package replaces the inherited ones of it."""
        mine = {subject(item) for item in own}
        kept = [number for number, item in enumerate(inherited) if subject(item) not in mine]
        for number in reversed(range(len(own))):
            self.positions.move((*loc, number), (*loc, number + len(kept)))
        for target, number in enumerate(kept):
            self.positions.inherit((*above, number), (*loc, target))
        return [*(inherited[number] for number in kept), *own]


def subject(item: Any) -> Any:
    """What an item of a list is about: the package of a requirement, else the item itself."""
    try:
        return canonicalize_name(Requirement(PLACEHOLDER.sub("1", item)).name)
    except (InvalidRequirement, TypeError):
        return str(item)

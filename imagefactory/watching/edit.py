"""Writes candidates into the text of a matrix. Pure.

Only the values that change are replaced, at the positions that the YAML reader gives: comments,
quotes and the author's alignment stay as they are, which no YAML writer would promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from imagefactory.errors import CheckFailedError, fail
from imagefactory.matrix.expand import matches
from imagefactory.watching.candidates import Candidate

#: Text to replace: from, to, and what to write there.
Change = tuple[int, int, str]
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class _Tree:
    """The text of a file, and the nodes in it."""

    text: str
    root: yaml.Node

    def section(self, name: str) -> yaml.Node | None:
        return _value(self.root, name)

    def of(self, node: yaml.Node) -> str:
        return self.text[node.start_mark.index : _end(node)]


def apply(text: str, chosen: Iterable[Candidate]) -> str:
    """``text`` with all of ``chosen``. Raises CheckFailedError for a row that is not in it."""
    # a row that is going to be replaced may be the one that a new row is a copy of
    for candidate in sorted(chosen, key=lambda one: one.replaces):
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        tree = _Tree(text, root or yaml.ScalarNode("", ""))
        changes = list(_row(tree, candidate))
        if not changes:
            what = f"the row for {candidate.changes} is written in an unusual way"
            fix = "write the new values yourself"
            raise fail(CheckFailedError, "row-not-found", what, where=candidate.row.where, fix=fix)
        text = _applied(text, [*changes, *_conditions(tree, candidate)])
    return text


def _applied(text: str, changes: Iterable[Change]) -> str:
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _row(tree: _Tree, candidate: Candidate) -> Iterator[Change]:
    section = tree.section(candidate.row.section)
    if isinstance(section, yaml.MappingNode):  # axes
        yield from _list_item(tree, _value(section, candidate.row.lead), candidate)
    for entry in section.value if isinstance(section, yaml.SequenceNode) else ():
        found = list(
            _zipped(tree, entry, candidate)
            if candidate.row.section == "zip"
            else _included(tree, entry, candidate)
        )
        if found:
            yield from found
            return


def _list_item(tree: _Tree, column: yaml.Node | None, candidate: Candidate) -> Iterator[Change]:
    """The change of one list of ``axes``."""
    lead = candidate.row.lead
    for item in column.value if isinstance(column, yaml.SequenceNode) else ():
        if item.value == candidate.row.values[lead]:
            yield _item(tree, column, item, candidate.version, candidate)
            return


def _zipped(tree: _Tree, group: yaml.Node, candidate: Candidate) -> Iterator[Change]:
    """The change of each column, if ``group`` has the row."""
    columns = {
        key.value: node.value
        for key, node in (group.value if isinstance(group, yaml.MappingNode) else ())
        if isinstance(node, yaml.SequenceNode)
    }
    old = {axis: value for axis, value in candidate.row.values.items() if axis in columns}
    new = {**old, **candidate.values}
    if candidate.row.lead not in columns or not candidate.values.keys() <= columns.keys():
        return
    for number in range(min(map(len, columns.values()))):
        if all(columns[axis][number].value == value for axis, value in old.items()):
            for axis in columns:
                if candidate.replaces and axis not in candidate.values:
                    continue
                node = _value(group, axis)
                yield _item(tree, node, columns[axis][number], new[axis], candidate)
            return


def _item(
    tree: _Tree, column: yaml.Node | None, item: yaml.Node, value: str, candidate: Candidate
) -> Change:
    """A new value for ``item``, or one after it."""
    if candidate.replaces:
        return item.start_mark.index, _end(item), _written(item, value)
    new = _written(item, value)
    if isinstance(column, yaml.SequenceNode) and column.flow_style:
        return _end(item), _end(item), f", {new}"
    line = _line_end(tree.text, _end(item))
    return line, line, f"\n{_indent(tree.text, item)}- {new}"


def _included(tree: _Tree, entry: yaml.Node, candidate: Candidate) -> Iterator[Change]:
    """The change of an ``include`` row, if ``entry`` is it."""
    if not isinstance(entry, yaml.MappingNode):
        return
    nodes = {key.value: node for key, node in entry.value}
    old = candidate.row.values
    if {axis: node.value for axis, node in nodes.items()} != old:
        return
    changes = [
        (nodes[axis].start_mark.index, _end(nodes[axis]), _written(nodes[axis], value))
        for axis, value in candidate.values.items()
    ]
    if candidate.replaces:
        yield from changes
        return
    start, end = entry.start_mark.index, _end(entry)
    copy = _applied(tree.text[start:end], [(a - start, b - start, new) for a, b, new in changes])
    line = _line_end(tree.text, end)
    yield line, line, f"\n{_indent(tree.text, entry)}- {copy}"


def _conditions(tree: _Tree, candidate: Candidate) -> Iterator[Change]:
    """What names the old values in conditions: they go with a row that is replaced.

    A new row is named beside the old one where a package is left out; requirements that replace
    upstream's are for a release, and a new one may not need them.
    """
    for section in ("overrides", "exclude"):
        node = tree.section(section)
        for entry in node.value if isinstance(node, yaml.SequenceNode) else ():
            when = _value(entry, "when")
            if not isinstance(when, yaml.MappingNode):
                continue
            texts = {key.value: _texts(value) for key, value in when.value}
            if not any(matches(texts, cell.axes) for cell in candidate.row.cells):
                continue
            if not candidate.replaces and _value(entry, "drop") is None:
                continue
            for key, value in when.value:
                if key.value in candidate.values:
                    old, new = candidate.row.values[key.value], candidate.values[key.value]
                    yield from _condition(tree, value, old, new, candidate)


def _condition(
    tree: _Tree, node: yaml.Node, old: str, new: str, candidate: Candidate
) -> Iterator[Change]:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if any(item.value == new for item in items):
        return
    for item in (one for one in items if one.value == old):
        start, end, text = item.start_mark.index, _end(item), _written(item, new)
        if candidate.replaces:
            yield start, end, text
        elif item is node:
            yield start, end, f"[{tree.of(item)}, {text}]"
        else:
            yield _item(tree, node, item, new, candidate)


def _texts(node: yaml.Node) -> str | list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [item.value for item in node.value]
    return str(node.value)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    rows: Sequence[tuple[yaml.Node, yaml.Node]] = (
        node.value if isinstance(node, yaml.MappingNode) else ()
    )
    return next((value for name, value in rows if name.value == key), None)


def _end(node: yaml.Node) -> int:
    """Where the text of ``node`` ends; PyYAML has a block end after the comments that follow."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _written(old: yaml.Node, value: str) -> str:
    """``value`` in the quotes of the one that it replaces; without any only if it is no number."""
    quote = getattr(old, "style", None) or ""
    if quote not in ("'", '"'):
        quote = "" if _PLAIN.fullmatch(value) or value.count(".") > 1 else '"'
    return f"{quote}{value}{quote}"


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _indent(text: str, node: yaml.Node) -> str:
    """What is before the hyphen of an item of a block list."""
    line = text[text.rfind("\n", 0, node.start_mark.index) + 1 : node.start_mark.index]
    return " " * (len(line) - len(line.lstrip(" ")) if line.lstrip(" ") else len(line))

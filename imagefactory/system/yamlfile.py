"""Reads a YAML file into a pydantic class, and reports all errors at once, each with its line.

PyYAML's node tree is used instead of its loader: the tree keeps positions, while the loader would
silently keep the last of two equal keys and read ``2.10`` as 2.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from imagefactory.errors import InputError, Problem, fail
from imagefactory.system import files, schemas

#: The largest file that is read, in bytes.
LARGEST = 300_000
#: The most values that a file may have once its aliases are written out, and the longest of them.
MOST_VALUES = 50_000
LONGEST = 4000
#: Problems of keys and types that are reported at once; beyond that the file is another one.
MOST_PROBLEMS = 100
#: Nesting at which libyaml's recursion is far from the end of the stack.
_DEEPEST = 1000
_COMPACT = re.compile(r"(?:[-?][ \t]+){100}")
#: PyYAML's own parser takes seconds for more characters than this.
_SMALL = 100_000
#: A date that a key may ask for; everything else wants it in quotes.
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")

Loc = tuple[str | int, ...]
Schema = TypeVar("Schema", bound="Strict")
_NOT_STRINGS = {
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:bool": "a boolean",
    "tag:yaml.org,2002:null": "null",
    "tag:yaml.org,2002:timestamp": "a date",
}


class Strict(BaseModel):
    """A mapping in a YAML file; unknown keys and values of the wrong type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a value is written: file, line (from 1) and section, such as ``zip``."""

    file: str
    line: int
    section: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Positions:
    """The line, and the text as written, of every value in a file.

    ``inherited`` has the values that the file does not repeat, with where each is written. Only
    ``put`` changes ``lines``.
    """

    file: str
    lines: dict[Loc, int] = field(default_factory=dict)
    raw: dict[Loc, str] = field(default_factory=dict)
    inherited: dict[Loc, Loc] = field(default_factory=dict)
    _children: dict[Loc, list[Loc]] = field(default_factory=dict)

    def put(self, loc: Loc, line: int) -> None:
        """Note the line of the value at ``loc``."""
        if loc and loc not in self.lines:
            self._children.setdefault(loc[:-1], []).append(loc)
        self.lines[loc] = line

    def line(self, loc: Loc) -> int:
        """Line of the value at ``loc``, or of the innermost value that encloses it."""
        for end in range(len(loc), -1, -1):
            if loc[:end] in self.lines:
                return self.lines[loc[:end]]
        return 1

    def move(self, loc: Loc, target: Loc) -> None:
        """Make the positions at and below ``loc`` available at ``target`` as well."""
        for old in self._below(loc):
            new = (*target, *old[len(loc) :])
            self.put(new, self.lines[old])
            self.raw.pop(new, None)
            if old in self.raw:
                self.raw[new] = self.raw[old]
            self.inherited.pop(new, None)
            if old in self.inherited:
                self.inherited[new] = self.inherited[old]

    def inherit(self, loc: Loc, target: Loc) -> None:
        """Let the value at ``target`` have the positions of the one at ``loc``."""
        self.move(loc, target)
        for old in self._below(loc):
            self.inherited[*target, *old[len(loc) :]] = self.inherited.get(old, old)

    def _below(self, loc: Loc) -> list[Loc]:
        """The values at and below ``loc``."""
        found = [loc] if loc in self.lines else []
        for parent in found:  # grows meanwhile
            found += self._children.get(parent, ())
        return found

    def locate(self, loc: Loc, section: str = "") -> Location:
        """The position as a Location."""
        return Location(file=self.file, line=self.line(loc), section=section)


def read(
    path: Path, schema: type[Schema], *, prefix: str, shown: str = ""
) -> tuple[Schema, Positions]:
    """Read the file as ``schema``, with the positions of its values.

    ``prefix`` starts the codes of its problems, such as ``matrix``; ``shown`` is the file's name
    in messages, if not ``path``. Raises InputError with every problem of syntax, keys and types.
    """
    parsed, positions, problems = examine(path, schema, prefix=prefix, shown=shown)
    if parsed is None or problems:
        raise InputError(in_file_order(problems))
    return parsed, positions


def examine(
    path: Path,
    schema: type[Schema],
    *,
    prefix: str,
    shown: str = "",
    prepare: Callable[[Any, Positions], list[Problem]] | None = None,
) -> tuple[Schema | None, Positions, list[Problem]]:
    """Like ``read``, but return problems of keys and types, for callers with more rules to check.

    ``prepare`` may change the plain data before it is validated. If every mistake can be repaired
    (a number for a string, an extra key), the parsed file is returned along with the problems;
    otherwise None. Raises InputError if the file is not YAML or ``prepare`` reports problems.
    """
    positions = Positions(shown or str(path))
    problems: list[Problem] = []
    try:
        data = _plain(_compose(path, positions, prefix), (), positions, problems, prefix)
    except RecursionError:
        what = "nested too deeply, or an anchor contains itself"
        fix = "write the values out, without such nesting"
        raise fail(
            InputError, f"{prefix}-syntax", what, where=f"{positions.file}:1", fix=fix
        ) from None
    unprepared = prepare(data, positions) if prepare else []
    if unprepared:
        raise InputError(in_file_order(problems + unprepared))
    for _ in range(2):  # the value of a repaired key may have mistakes of its own
        try:
            return schema.model_validate(data), positions, problems
        except ValidationError as error:
            found = _located(error, positions)[:MOST_PROBLEMS]
        # a mistake in an inherited value is reported where it is written
        own = [(loc, detail) for loc, detail in found if loc not in positions.inherited]
        new = [_explain(detail, loc, positions, schema, prefix) for loc, detail in own]
        problems += [problem for problem in new if problem not in problems]
        for loc, detail in found:
            _repair(data, loc, detail["type"], positions, schema)
    return None, positions, problems


def _located(error: ValidationError, positions: Positions) -> list[tuple[Loc, Any]]:
    """The errors by position; pydantic's one error per member of a union is reduced to one."""
    found: dict[Loc, Any] = {}
    for detail in error.errors():
        loc: Loc = ()
        for part in detail["loc"]:  # parts that are not in the file name members of a union
            loc = (*loc, part) if (*loc, part) in positions.lines else loc
        if detail["type"] == "missing":
            loc = (*loc, detail["loc"][-1])
        found.setdefault(loc, detail)
    inner = {loc[:end] for loc in found for end in range(len(loc))}
    return [(loc, detail) for loc, detail in found.items() if loc not in inner]


def _repair(data: Any, loc: Loc, kind: str, positions: Positions, schema: type[BaseModel]) -> None:
    """Correct ``data`` at ``loc`` if the intent is clear, so that one mistake causes one error."""
    for part in loc[:-1]:
        data = data[part]
    if kind == "extra_forbidden":
        value = data.pop(loc[-1])
        key = schemas.closest(str(loc[-1]), schemas.keys_at(schema, loc[:-1]))
        if key and key not in data:
            data[key] = value
            positions.move(loc, (*loc[:-1], key))
    elif kind == "string_type" and loc in positions.raw:
        data[loc[-1]] = positions.raw[loc]


def in_file_order(problems: list[Problem]) -> list[Problem]:
    """Sort problems by their line."""
    return sorted(problems, key=lambda one: int((one.where or ":0").rpartition(":")[2]))


def _parse(text: str) -> yaml.Node | None:
    """Parse with libyaml if PyYAML has it, which is ten times as fast.

    For errors PyYAML's own parser runs again, as its messages are better. Raises RecursionError
    for what is nested so deeply that libyaml would overflow the stack.
    """
    if _COMPACT.search(text) or _flow_depth(text) > _DEEPEST:
        raise RecursionError
    try:
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        if len(text) > _SMALL:
            raise
        return yaml.compose(text, Loader=yaml.SafeLoader)


def _flow_depth(text: str) -> int:
    """An upper bound of the nesting of ``[`` and ``{``: those in strings count as well."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def _compose(path: Path, positions: Positions, prefix: str) -> yaml.Node:
    try:
        root = _parse(files.read_text(path, LARGEST))
    except FileNotFoundError:
        what, fix = f"there is no file {path}", "run in the project's folder, or name the file"
        raise fail(InputError, f"{prefix}-missing", what, fix=fix) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        what, where = f"the file is not UTF-8 (byte {error.start})", f"{positions.file}:{line}"
        fix = "save it as UTF-8"
        raise fail(InputError, f"{prefix}-encoding", what, where=where, fix=fix) from None
    except OSError as error:
        what, fix = f"it cannot be read: {error.strerror}", "name a readable file"
        where = f"{positions.file}:1"
        raise fail(InputError, f"{prefix}-missing", what, where=where, fix=fix) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not valid YAML: {error.problem or error.context}"
        where = f"{positions.file}:{mark.line + 1 if mark else 1}"
        raise fail(InputError, f"{prefix}-syntax", what, where=where, fix="fix the line") from None
    except yaml.YAMLError as error:
        what, where = f"not valid YAML: {_one_line(error)}", f"{positions.file}:1"
        raise fail(InputError, f"{prefix}-syntax", what, where=where, fix="fix the file") from None
    if not isinstance(root, yaml.MappingNode):
        what = f"the file {'is empty' if root is None else 'has no keys'}, where KEY: VALUE is due"
        where, fix = f"{positions.file}:1", "write its keys; docs/ has an example"
        raise fail(InputError, f"{prefix}-empty", what, where=where, fix=fix)
    return root


def _plain(
    node: yaml.Node, loc: Loc, positions: Positions, problems: list[Problem], prefix: str
) -> Any:
    if loc not in positions.lines:
        positions.put(loc, node.start_mark.line + 1)
    if len(positions.lines) > MOST_VALUES:
        what = f"more than {MOST_VALUES} values, those that aliases repeat included"
        where, fix = f"{positions.file}:{node.start_mark.line + 1}", "use fewer, or no aliases"
        raise fail(InputError, f"{prefix}-syntax", what, where=where, fix=fix)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, loc, positions, problems, prefix)
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*loc, i), positions, problems, prefix)
            for i, item in enumerate(node.value)
        ]
    positions.raw[loc] = node.value
    where = f"{positions.file}:{positions.line(loc)}"
    problems += _unfit(node.value, where, prefix)
    found = _scalar(node)
    if found is None:
        problems.append(_not_a_string(node.value, _NOT_STRINGS[node.tag], where, prefix))
        return node.value
    return found


def _scalar(node: yaml.Node) -> str | int | bool | date | None:
    """The value of a scalar; None if YAML reads a kind that no key of ours has."""
    kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), str(node.value)
    if kind == "int" and text.isdecimal() and len(text) < 10:
        return int(text)
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind == "timestamp" and _DAY.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:  # such as the 31st of February: only who wants a date can object
            return text
    return None if node.tag in _NOT_STRINGS else text


def _mapping(
    node: yaml.MappingNode, loc: Loc, positions: Positions, problems: list[Problem], prefix: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in found:
            where = f"{positions.file}:{line}"
            what = f"duplicate key {key!r}, first set on line {positions.line((*loc, key))}"
            fix = "keep one of them"
            duplicate = Problem(code=f"{prefix}-duplicate-key", where=where, what=what, fix=fix)
            problems.append(duplicate)
            continue
        problems += _unfit(key, f"{positions.file}:{line}", prefix)
        positions.put((*loc, key), line)
        found[key] = _plain(value_node, (*loc, key), positions, problems, prefix)
    return found


def _unfit(text: str, where: str, prefix: str) -> list[Problem]:
    """The problem with characters or the length of ``text``, if there is one.

    What is invisible or reverses the reading direction has no meaning in any value, and would end
    up in labels, names and on terminals.
    """
    if len(text) > LONGEST:
        what, fix = f"a value of {len(text)} characters", f"write at most {LONGEST}"
        return [Problem(code=f"{prefix}-too-long", where=where, what=what, fix=fix)]
    bad = next(filter(_is_invisible, _UNUSUAL.findall(text)), None)
    if bad is None:
        return []
    what, fix = f"the character U+{ord(bad):04X} is not printable", "remove it"
    return [Problem(code=f"{prefix}-character", where=where, what=what, fix=fix)]


#: Characters that are neither ASCII nor white space of every text.
_UNUSUAL = re.compile(r"[^\n\t -~]")


def _is_invisible(char: str) -> bool:
    # emoji and some scripts need the joiners
    if char.isprintable() or char in "\u200c\u200d":
        return False
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _not_a_string(raw: str, kind: str, where: str, prefix: str) -> Problem:
    return Problem(
        code=f"{prefix}-not-text",
        where=where,
        what=f"expected a string, but YAML reads {raw or 'an empty value'} as {kind}",
        fix=f'write "{raw}" in quotes' if raw else "write a value",
    )


def _explain(
    detail: Any, loc: Loc, positions: Positions, schema: type[BaseModel], prefix: str
) -> Problem:
    where = f"{positions.file}:{positions.line(loc)}"
    path = ".".join(str(part) for part in loc) or "the file"
    kind = detail["type"]
    if kind == "extra_forbidden":
        what = f"there is no key {path!r}"
        fix = schemas.instead_of(str(loc[-1]), schemas.keys_at(schema, loc[:-1]))
        return Problem(code=f"{prefix}-unknown-key", where=where, what=what, fix=fix)
    if kind == "missing":
        what, fix = f"{path!r} is missing", f"add {loc[-1]!r} here"
        return Problem(code=f"{prefix}-missing-key", where=where, what=what, fix=fix)
    if kind == "string_type" and loc in positions.raw:
        kind = "a date" if isinstance(detail["input"], date) else "a number or boolean"
        return _not_a_string(positions.raw[loc], kind, where, prefix)
    written = positions.raw.get(loc)
    message, fix = schemas.wanted(detail, schemas.keys_at(schema, loc))
    what = f"{path!r}{message}" + (f" (it is {written!r})" if written else "")
    return Problem(code=f"{prefix}-wrong-value", where=where, what=what, fix=fix)

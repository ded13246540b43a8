"""Reads a YAML file into a pydantic model; every error has its line, and all errors are shown at
once.

PyYAML's node tree is used rather than its loader: it keeps positions, and the loader would keep the
last of two equal keys and read ``2.10`` as 2.1 without a word.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from imagefactory.errors import InputError, Problem

Loc = tuple[str | int, ...]
Model = TypeVar("Model", bound="Strict")
_PLAIN = {
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:bool": "a truth value",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:timestamp": "a date",
}


class Strict(BaseModel):
    """A mapping of a YAML file: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a value was written.

    File, line (1-based) and the section, such as ``zip`` or ``defaults``.
    """

    file: str
    line: int
    section: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Positions:
    """Where every value of a file stands."""

    file: str
    lines: dict[Loc, int] = field(default_factory=dict)
    raw: dict[Loc, str] = field(default_factory=dict)

    def line(self, loc: Loc) -> int:
        """Line of the value at ``loc``, or of the nearest value around it."""
        for end in range(len(loc), -1, -1):
            if loc[:end] in self.lines:
                return self.lines[loc[:end]]
        return 1

    def rename(self, loc: Loc, key: str) -> None:
        """Lets the places at and below ``loc`` be found by ``key`` too."""
        for old in [old for old in self.lines if old[: len(loc)] == loc]:
            new = (*loc[:-1], key, *old[len(loc) :])
            self.lines[new] = self.lines[old]
            if old in self.raw:
                self.raw[new] = self.raw[old]

    def locate(self, loc: Loc, section: str = "") -> Location:
        """The position as a Location."""
        return Location(file=self.file, line=self.line(loc), section=section)


def read(
    path: Path, model: type[Model], *, prefix: str, shown: str = ""
) -> tuple[Model, Positions]:
    """The file as ``model``, and its positions.

    ``prefix`` begins the codes of its problems, such as ``matrix``; ``shown`` is how a person is
    told the file's name.

    Raises InputError with every problem of syntax, keys and types.
    """
    parsed, positions, problems = examine(path, model, prefix=prefix, shown=shown)
    if parsed is None or problems:
        raise InputError(in_file_order(problems))
    return parsed, positions


def examine(
    path: Path, model: type[Model], *, prefix: str, shown: str = ""
) -> tuple[Model | None, Positions, list[Problem]]:
    """Like ``read``, but problems of keys and types are returned, for a caller that has more rules
    to check.

    Where the problems leave no doubt what was meant (a number for a text, a key too many), there is
    a model as well.

    Raises InputError if the file is not YAML.
    """
    positions = Positions(shown or str(path))
    problems: list[Problem] = []
    try:
        data = _plain(_compose(path, positions, prefix), (), positions, problems, prefix)
    except RecursionError:
        what, fix = (
            "nested too deeply, or an anchor holds itself",
            "write the values out, without such nesting",
        )
        raise InputError(
            Problem(code=f"{prefix}-syntax", where=positions.file, what=what, fix=fix)
        ) from None
    for _ in range(2):  # a key that is mended may hold mistakes of its own
        try:
            return model.model_validate(data), positions, problems
        except ValidationError as error:
            found = _located(error, positions)
        known = _known_keys(model)
        told = [_explain(detail, loc, positions, known, prefix) for loc, detail in found]
        problems += [problem for problem in told if problem not in problems]
        for loc, detail in found:
            _mend(data, loc, detail["type"], positions, known)
    return None, positions, problems


def _located(error: ValidationError, positions: Positions) -> list[tuple[Loc, Any]]:
    """The errors with their places in the file.

    One a place, though pydantic tells one for each kind of a union.
    """
    found: dict[Loc, Any] = {}
    for detail in error.errors():
        loc: Loc = ()
        for part in detail["loc"]:  # the parts that are not in the file name kinds of a union
            loc = (*loc, part) if (*loc, part) in positions.lines else loc
        if detail["type"] == "missing":
            loc = (*loc, detail["loc"][-1])
        found.setdefault(loc, detail)
    inner = {loc[:end] for loc in found for end in range(len(loc))}
    return [(loc, detail) for loc, detail in found.items() if loc not in inner]


def _mend(data: Any, loc: Loc, kind: str, positions: Positions, known: set[str]) -> None:
    """Reads ``data`` at ``loc`` as it was meant, if that is plain.

    So that one mistake is not told as many.
    """
    for part in loc[:-1]:
        data = data[part]
    if kind == "extra_forbidden":
        value, meant = data.pop(loc[-1]), _meant(loc, known)
        if meant and meant not in data:
            data[meant] = value
            positions.rename(loc, meant)
    elif kind == "string_type" and loc in positions.raw:
        data[loc[-1]] = positions.raw[loc]


def in_file_order(problems: list[Problem]) -> list[Problem]:
    def line(problem: Problem) -> int:
        return int((problem.where or ":0").rpartition(":")[2])

    return sorted(problems, key=line)


def _parse(text: str) -> yaml.Node | None:
    """libyaml where PyYAML has it, ten times as fast.

    PyYAML's own parser tells better what is wrong with a file.
    """
    try:
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.compose(text, Loader=yaml.SafeLoader)


def _compose(path: Path, positions: Positions, prefix: str) -> yaml.Node:
    try:
        root = _parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = "run in the project's folder, or name the file"
        raise InputError(
            Problem(code=f"{prefix}-missing", what=f"there is no file {path}", fix=fix)
        ) from None
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 (byte {error.start})"
        fix = "save it as UTF-8"
        raise InputError(
            Problem(code=f"{prefix}-encoding", where=positions.file, what=what, fix=fix)
        ) from None
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise InputError(
            Problem(code=f"{prefix}-missing", what=what, fix="name a readable file")
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{positions.file}:{mark.line + 1 if mark else 1}"
        what = f"not YAML: {error.problem or error.context}"
        raise InputError(
            Problem(code=f"{prefix}-syntax", where=where, what=what, fix="mend the line")
        ) from None
    except yaml.YAMLError as error:
        raise InputError(
            Problem(
                code=f"{prefix}-syntax",
                where=positions.file,
                what=f"not YAML: {error}",
                fix="mend the file",
            )
        ) from None
    if root is None:
        raise InputError(
            Problem(
                code=f"{prefix}-empty",
                where=f"{positions.file}:1",
                what="the file is empty",
                fix="see docs/",
            )
        )
    return root


def _plain(
    node: yaml.Node, loc: Loc, positions: Positions, problems: list[Problem], prefix: str
) -> Any:
    positions.lines.setdefault(loc, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, loc, positions, problems, prefix)
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*loc, i), positions, problems, prefix)
            for i, item in enumerate(node.value)
        ]
    positions.raw[loc] = node.value
    if node.tag == "tag:yaml.org,2002:int" and node.value.isdecimal() and len(node.value) < 10:
        return int(node.value)
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() in ("true", "yes", "on")
    if node.tag in _PLAIN:
        problems.append(
            _not_text(
                node.value, _PLAIN[node.tag], f"{positions.file}:{positions.line(loc)}", prefix
            )
        )
    return node.value


def _mapping(
    node: yaml.MappingNode, loc: Loc, positions: Positions, problems: list[Problem], prefix: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in found:
            what = f"{key!r} stands twice, first on line {positions.line((*loc, key))}"
            where = f"{positions.file}:{line}"
            problems.append(
                Problem(
                    code=f"{prefix}-duplicate-key", where=where, what=what, fix="keep one of them"
                )
            )
            continue
        positions.lines[*loc, key] = line
        found[key] = _plain(value_node, (*loc, key), positions, problems, prefix)
    return found


def _not_text(raw: str, kind: str, where: str, prefix: str) -> Problem:
    shown = raw or "(nothing)"
    return Problem(
        code=f"{prefix}-not-text",
        where=where,
        what=f"YAML reads {shown} as {kind}, and a text is meant here",
        fix=f'write "{raw}" in quotes' if raw else "write a value",
    )


def _known_keys(model: type[BaseModel]) -> set[str]:
    keys: set[str] = set()
    schema = model.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        keys |= set(part.get("properties", {}))
    return keys


def _meant(loc: Loc, known: set[str]) -> str | None:
    return next(iter(difflib.get_close_matches(str(loc[-1]), sorted(known), n=1)), None)


def _explain(detail: Any, loc: Loc, positions: Positions, known: set[str], prefix: str) -> Problem:
    where = f"{positions.file}:{positions.line(loc)}"
    path = ".".join(str(part) for part in loc) or "the file"
    kind = detail["type"]
    if kind == "extra_forbidden":
        meant = _meant(loc, known)
        fix = f"write {meant!r}" if meant else "remove it; docs/matrix.md lists what there is"
        return Problem(
            code=f"{prefix}-unknown-key", where=where, what=f"there is no key {path!r}", fix=fix
        )
    if kind == "missing":
        what = f"{path!r} is missing"
        return Problem(
            code=f"{prefix}-missing-key", where=where, what=what, fix=f"add {loc[-1]!r} here"
        )
    if kind == "string_type" and loc in positions.raw:
        return _not_text(positions.raw[loc], "a number or truth value", where, prefix)
    given = positions.raw.get(loc)
    what = f"{path!r}: {detail['msg'].removeprefix('Value error, ')}" + (
        f" (it is {given!r})" if given else ""
    )
    return Problem(
        code=f"{prefix}-wrong-value", where=where, what=what, fix="write a value of that kind"
    )

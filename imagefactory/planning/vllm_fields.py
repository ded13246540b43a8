"""The keys that options of JSON may have in a vLLM release, read from its own sources.

``--compilation-config``, ``--speculative-config`` and others are read into configuration classes,
which refuse keys that are not their fields.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.planning import vllm_choices

#: Path of an option or of a key below it -> its keys, each with its values if these are a list.
Fields = Mapping[str, Mapping[str, tuple[str, ...]]]
#: Nesting of configuration classes.
_DEEPEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A key that a release does not have, or a value that it does not take, inside an option.

    ``path`` is the option with the keys down to it; ``value`` is None if the key is wrong, and
    ``allowed`` lists what could be there instead.
    """

    path: str
    value: str | None
    allowed: tuple[str, ...]


def read(root: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """The keys of all options of JSON in the sources in ``root``."""
    engine = root / "vllm/engine/arg_utils.py"
    if not engine.is_file():
        return {}
    own = ast.parse(engine.read_text(encoding="utf-8"))
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((root / "vllm/config").glob("*.py"))
    ]
    classes = {
        node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    }
    named = dict(vllm_choices.literals([own, *trees]))
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for node in own.body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            for name, annotation in _annotated(node):
                wanted = _class_of(name, annotation, classes)
                if wanted:
                    option = f"--{name.replace('_', '-')}"
                    found |= _below(option, wanted, classes, named)
    return found


def _below(
    path: str, name: str, classes: Mapping[str, ast.ClassDef], named: Mapping[str, ast.expr]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """The keys of the class ``name``, which is read from what is at ``path``, and those below."""
    found: dict[str, dict[str, tuple[str, ...]]] = {path: {}}
    if path.count(".") > _DEEPEST:
        return {}
    for key, annotation in _all_fields(name, classes):
        found[path][key] = tuple(sorted(vllm_choices.values_of(annotation, named) or ()))
        inner = _class_of("", annotation, classes)
        if inner and inner != name:
            found |= _below(f"{path}.{key}", inner, classes, named)
    return found


def _all_fields(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, ast.expr]]:
    """The fields of a class and of the classes that it extends."""
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != name:
            yield from _all_fields(base.id, classes)
    yield from _annotated(classes[name])


def _annotated(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id, part.annotation


def _class_of(name: str, annotation: ast.expr, classes: Mapping[str, ast.ClassDef]) -> str:
    """The configuration class that a value of the type becomes; empty if it is another type.

    Options that are plain dictionaries, such as ``speculative_config``, become the class of
    their name.
    """
    text = ast.unparse(annotation).removesuffix(" | None")
    if text in classes and not _is_enumeration(classes[text]):
        return text
    camel = "".join(word.capitalize() for word in name.split("_"))
    return camel if text == "dict[str, Any]" and camel in classes else ""


def _is_enumeration(node: ast.ClassDef) -> bool:
    return any("Enum" in ast.unparse(base) for base in node.bases)


def wrong(option: str, text: str, fields: Fields) -> Iterator[Wrong]:
    """What is wrong in ``text``, the value of ``option``, such as ``--compilation-config.mode``.

    An option that has no keys in ``fields`` takes any.
    """
    *above, key = option.split(".")
    parent = ".".join(above)
    if parent in fields and key not in fields[parent]:
        yield Wrong(path=option, value=None, allowed=tuple(fields[parent]))
        return
    if option not in fields:
        yield from _wrong_value(option, text, fields.get(parent, {}).get(key, ()))
        return
    try:
        data = json.loads(text)
    except ValueError:
        data = text
    if not isinstance(data, dict):
        yield Wrong(path=option, value=text, allowed=("an object in JSON",))
        return
    yield from _wrong_in(option, data, fields)


def _wrong_in(path: str, data: Mapping[str, Any], fields: Fields) -> Iterator[Wrong]:
    for key, value in data.items():
        here = f"{path}.{key}"
        if key not in fields[path]:
            yield Wrong(path=here, value=None, allowed=tuple(fields[path]))
        elif here in fields and isinstance(value, dict):
            yield from _wrong_in(here, value, fields)
        elif isinstance(value, str):
            yield from _wrong_value(here, value, fields[path][key])


def _wrong_value(path: str, value: str, allowed: tuple[str, ...]) -> Iterator[Wrong]:
    if allowed and value not in allowed:
        yield Wrong(path=path, value=value, allowed=allowed)

"""The variables and options that a release of vLLM supports, read from its own sources.

A release silently ignores variables that it does not know; four popular ones were removed in 0.24
and 0.29.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import SetupError
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell
from imagefactory.patching import sources
from imagefactory.patching.sources import SourceTree
from imagefactory.planning import vllm_choices, vllm_fields, vllm_models, vllm_short
from imagefactory.settings import Settings
from imagefactory.system import ui

#: Other variables belong to other programs (torch, CUDA, the container runtime).
PREFIX = "VLLM_"
_OPTION = re.compile(r"""["'](--[a-z][a-z0-9-]*)["']""")
_READ = re.compile(
    r"""(?:environ(?:\.get|\.pop|\.setdefault)?|getenv)\s*[(\[]\s*["'](VLLM_[A-Z0-9_]+)["']"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """The variables and options of one release.

    ``choices`` has the values of the options for which the release lists them, ``fields`` the keys
    of those of JSON, ``short`` the long options for short ones, and ``architectures`` those of the
    models that it has; it is empty if that is unknown.
    """

    variables: frozenset[str]
    options: frozenset[str]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: vllm_fields.Fields = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    architectures: frozenset[str] = frozenset()

    def knows(self, setting: str) -> bool:
        """Whether the release supports ``setting``: a variable, or an option with any value."""
        if setting.startswith(PREFIX):
            return setting in self.variables
        name = option_name(setting)
        return name in self.options or (
            name.startswith("--no-") and f"--{name[5:]}" in self.options
        )


def of_cell(cell: Cell, lock: Lock | None, settings: Settings) -> VllmSettings | None:
    """The settings of the cell's vLLM; None, with a warning, if its sources are not available."""
    try:
        tree = sources.of_cell("vllm", cell, lock, settings)
    except SetupError as error:
        ui.warn(f"settings not checked against vLLM {cell.vllm}: {error.problems[0].what}")
        return None
    return of_tree(tree, settings)


def of_tree(tree: SourceTree, settings: Settings) -> VllmSettings:
    """The settings of the release with these sources, cached by the hash of the sources."""
    cached = settings.cache / "vllm-settings" / f"{tree.sha256}.json"
    try:
        data = json.loads(cached.read_text(encoding="utf-8"))
        return VllmSettings(
            variables=frozenset(data["variables"]),
            options=frozenset(data["options"]),
            choices={name: tuple(values) for name, values in data["choices"].items()},
            fields={
                path: {key: tuple(values) for key, values in keys.items()}
                for path, keys in data["fields"].items()
            },
            short={**data["short"]},
            architectures=frozenset(data["architectures"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = read(tree.root)
    data = {
        "variables": sorted(found.variables),
        "options": sorted(found.options),
        "choices": found.choices,
        "fields": found.fields,
        "short": found.short,
        "architectures": sorted(found.architectures),
    }
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_text(json.dumps(data), encoding="utf-8")
    return found


def read(root: Path) -> VllmSettings:
    """Read the settings of the release whose sources are in ``root``."""
    variables = set(_declared_variables(root / "vllm" / "envs.py"))
    for path in sorted((root / "vllm").rglob("*.py")):
        variables |= set(_READ.findall(path.read_text(encoding="utf-8", errors="replace")))
    options: set[str] = set()
    for path in (
        root / "vllm/engine/arg_utils.py",
        *sorted((root / "vllm/entrypoints").rglob("cli_args.py")),
    ):
        if path.is_file():
            options |= set(_options(path.read_text(encoding="utf-8")))
    return VllmSettings(
        variables=frozenset(variables),
        options=frozenset(options),
        choices=vllm_choices.read(root),
        fields=vllm_fields.read(root),
        short=vllm_short.read(root),
        architectures=vllm_models.read(root),
    )


def _declared_variables(path: Path) -> Iterator[str]:
    """The keys of ``environment_variables``, the table of vLLM's variables."""
    if not path.is_file():
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if "environment_variables" in names:
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))


def _options(text: str) -> Iterator[str]:
    """Options written as literals, and those derived from the fields of an ``...Args`` class."""
    yield from _OPTION.findall(text)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
            fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
            yield from (
                f"--{field.id.replace('_', '-')}" for field in fields if isinstance(field, ast.Name)
            )


def option_name(argument: str) -> str:
    """The option that an argument sets: ``--a_b=1`` and ``--a-b.c`` both set ``--a-b``."""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")

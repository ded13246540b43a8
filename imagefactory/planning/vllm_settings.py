"""The variables and options that a release of vLLM supports, read from its own sources.

A release silently ignores variables that it does not know; four popular ones were removed in 0.24
and 0.29.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import Problem, SetupError
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell
from imagefactory.patching import sources
from imagefactory.patching.patch import Step
from imagefactory.planning import vllm_choices
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
    """The variables and long options of one release.

    ``choices`` has the values of the options for which the release lists them.
    """

    variables: frozenset[str]
    options: frozenset[str]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def knows(self, setting: str) -> bool:
        """Whether the release supports ``setting``: a variable, or an option with any value."""
        if setting.startswith(PREFIX):
            return setting in self.variables
        name = option_name(setting)
        return name in self.options or (
            name.startswith("--no-") and f"--{name[5:]}" in self.options
        )


def of_cell(cell: Cell, lock: Lock, settings: Settings) -> VllmSettings | None:
    """The settings of the cell's vLLM; None, with a warning, if its sources are not available.

    Results are cached by the hash of the sources.
    """
    try:
        tree = sources.of_cell("vllm", cell, lock, settings)
    except SetupError as error:
        ui.warn(f"settings not checked against vLLM {cell.vllm}: {error.problems[0].what}")
        return None
    cached = settings.cache / "vllm-settings" / f"{tree.sha256}.json"
    try:
        data = json.loads(cached.read_text(encoding="utf-8"))
        return VllmSettings(
            variables=frozenset(data["variables"]),
            options=frozenset(data["options"]),
            choices={name: tuple(values) for name, values in data["choices"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = read(tree.root)
    data = {
        "variables": sorted(found.variables),
        "options": sorted(found.options),
        "choices": found.choices,
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


def settings_of(cell: Cell) -> list[str]:
    """The settings of a cell's flavor that vLLM itself must support."""
    options = [text for text in cell.flavor.serve_args if text.startswith("--")]
    return [*(name for name in cell.flavor.env if name.startswith(PREFIX)), *options]


def unknown_settings(cell: Cell, known: VllmSettings, series: Sequence[Step]) -> Iterator[Problem]:
    """A problem for each setting that the cell's vLLM would ignore or reject.

    Settings that the patches of ``series`` add are known too.
    """
    flavor, release = cell.flavor, f"vLLM {cell.vllm}"
    added = _added(series)
    for setting in settings_of(cell):
        name = setting if setting.startswith(PREFIX) else option_name(setting)
        if known.knows(setting) or name in added:
            continue
        if name.startswith("--"):
            what = f"{release} does not know {name} of flavor {flavor.name} and would not start"
        else:
            what = f"{release} does not know {name} of flavor {flavor.name} and would ignore it"
        names = sorted(known.variables | known.options)
        similar = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        fix = "remove it, or add a flavor for the releases that support it"
        fix = f"{release} has {similar[0]}" if similar else fix
        where = str(flavor.where("serve_args" if name.startswith("--") else "env", setting))
        yield Problem(code="setting-dead", where=where, what=what, fix=fix)
    yield from _wrong_values(cell, known, added)


def _wrong_values(cell: Cell, known: VllmSettings, added: frozenset[str]) -> Iterator[Problem]:
    """A problem for each option with a value that the cell's vLLM would not take."""
    for name, value in vllm_choices.given(cell.flavor.serve_args):
        choices = known.choices.get(name, ())
        # some options take `Deep-GEMM` for `deep_gemm`
        if not choices or {_plain(value)} & {*map(_plain, choices)} or value in added:
            continue
        similar = difflib.get_close_matches(value, choices, n=1, cutoff=0.6)
        yield Problem(
            code="setting-value",
            where=str(cell.flavor.where("serve_args", value)),
            what=(
                f"vLLM {cell.vllm} does not take {value!r} for {name} of flavor "
                f"{cell.flavor.name} and would not start"
            ),
            fix=f"write {similar[0]}" if similar else f"write one of {', '.join(choices)}",
        )


def _plain(value: str) -> str:
    return value.lower().replace("-", "_")


def _added(series: Sequence[Step]) -> frozenset[str]:
    texts = [step.variant.diff.read_text(encoding="utf-8") for step in series if step.variant]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("+")]
    found = {
        name
        for line in lines
        for name in (
            *_OPTION.findall(line),
            *re.findall(r"VLLM_[A-Z0-9_]+", line),
            *re.findall(r"""["']([\w-]+)["']""", line),  # perhaps a value of an option
        )
    }
    return frozenset(found)

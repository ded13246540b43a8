"""The settings that a release of vLLM knows: variables and options, read from its own sources.

A release silently ignores a variable that it does not know; four that people rely on were removed
in 0.24 and 0.29.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import Problem, SetupError
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell
from imagefactory.patching import sources
from imagefactory.patching.patch import Step
from imagefactory.settings import Settings
from imagefactory.system import ui

#: Variables of other programs (torch, CUDA, the container runtime) are not vLLM's to know.
OURS = "VLLM_"
_OPTION = re.compile(r"""["'](--[a-z][a-z0-9-]*)["']""")
_READ = re.compile(
    r"""(?:environ(?:\.get|\.pop|\.setdefault)?|getenv)\s*[(\[]\s*["'](VLLM_[A-Z0-9_]+)["']"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """The variables and long options of one release."""

    variables: frozenset[str]
    options: frozenset[str]

    def knows(self, setting: str) -> bool:
        """Whether the release takes ``setting``.

        A variable or an option as it is written on the command line.
        """
        if setting.startswith(OURS):
            return setting in self.variables
        name = option_name(setting)
        return name in self.options or (
            name.startswith("--no-") and f"--{name[5:]}" in self.options
        )


def of_cell(cell: Cell, lock: Lock, settings: Settings) -> VllmSettings | None:
    """What the vLLM of ``cell`` knows; None, with a warning, if no index has its sources.

    Results are cached by the hash of the sources.
    """
    try:
        tree = sources.of_cell("vllm", cell, lock, settings)
    except SetupError as error:
        ui.warn(f"settings are not checked against vLLM {cell.vllm}: {error.problems[0].what}")
        return None
    cached = settings.cache / "vllm-settings" / f"{tree.sha256}.json"
    try:
        data = json.loads(cached.read_text(encoding="utf-8"))
        return VllmSettings(
            variables=frozenset(data["variables"]), options=frozenset(data["options"])
        )
    except (OSError, ValueError, KeyError):
        found = read(tree.root)
    data = {"variables": sorted(found.variables), "options": sorted(found.options)}
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_text(json.dumps(data), encoding="utf-8")
    return found


def read(root: Path) -> VllmSettings:
    """The settings of the release whose sources are at ``root``."""
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
    return VllmSettings(variables=frozenset(variables), options=frozenset(options))


def _declared_variables(path: Path) -> Iterator[str]:
    """The keys of ``environment_variables``, the table that vLLM looks its variables up in."""
    if not path.is_file():
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(
            isinstance(target, ast.Name) and target.id == "environment_variables"
            for target in targets
        ):
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))


def _options(text: str) -> Iterator[str]:
    """Options that are written out.

    And those that are made from the fields of an ``...Args`` class.
    """
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


def asked(cell: Cell) -> list[str]:
    """The settings of a cell's flavor that vLLM itself must know."""
    options = [text for text in cell.flavor.serve_args if text.startswith("--")]
    return [*(name for name in cell.flavor.env if name.startswith(OURS)), *options]


def unknown_settings(cell: Cell, known: VllmSettings, series: Sequence[Step]) -> Iterator[Problem]:
    """A problem for each setting that the cell's vLLM would ignore or refuse.

    What the series adds counts as known.
    """
    added = _added(series)
    for setting in asked(cell):
        name = setting if setting.startswith(OURS) else option_name(setting)
        if known.knows(setting) or name in added:
            continue
        near = difflib.get_close_matches(
            name, sorted(known.variables | known.options), n=1, cutoff=0.8
        )
        release = f"vLLM {cell.axes['vllm']}"
        what = (
            f"flavor {cell.flavor.name} sets {name}, which {release} does not know: "
            "it would be ignored"
        )
        if name.startswith("--"):
            what = (
                f"flavor {cell.flavor.name} passes {name}, which {release} does not "
                "take: it would not start"
            )
        fix = (
            f"{release} has {near[0]}"
            if near
            else "take it out, or make a flavor for the releases that know it"
        )
        where = str(cell.flavor.setting_locations.get(setting, cell.flavor.location))
        yield Problem(code="setting-dead", where=where, what=what, fix=fix)


def _added(series: Sequence[Step]) -> frozenset[str]:
    texts = [step.variant.diff.read_text(encoding="utf-8") for step in series if step.variant]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("+")]
    found = {
        name
        for line in lines
        for name in (*_OPTION.findall(line), *re.findall(r"VLLM_[A-Z0-9_]+", line))
    }
    return frozenset(found)

"""Judges the configuration of an image: environment, entrypoint, user and whatever else runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagefactory.planning import image_config
from imagefactory.planning.cell_plan import CellPlan

#: Times are in nanoseconds.
_SECOND = 10**9
#: What every image of the factory has; docs/images.md has it too.
FIXED: Mapping[str, Any] = {
    "Entrypoint": ["/opt/imagefactory/entrypoint"],
    "Cmd": ["serve"],
    "WorkingDir": image_config.WORKING_FOLDER,
    "ExposedPorts": {"8888/tcp": {}},
    "Healthcheck": {
        "Test": ["CMD", "/opt/imagefactory/entrypoint", "healthcheck"],
        "Interval": 30 * _SECOND,
        "Timeout": 10 * _SECOND,
        "Retries": 3,
        "StartPeriod": 1800 * _SECOND,
        "StartInterval": 15 * _SECOND,
    },
}
#: What BuildKit always sets; it means something on Windows only.
_MEANINGLESS = "ArgsEscaped"
_JUDGED = frozenset({*FIXED, "Env", "Labels", _MEANINGLESS})


def faults(config: Mapping[str, Any], plan: CellPlan, base: Mapping[str, Any]) -> list[str]:
    """How ``config``, that of an image, differs from what ``plan`` makes of ``base``.

    ``base`` is the configuration of the base.
    """
    found = config.get("config") or {}
    said = [
        f"{name} {_contrast(found.get(name), value)}"
        for name, value in FIXED.items()
        if found.get(name) != value
    ]
    said += [
        f"{name} is {value!r}, which no image of the factory sets"
        for name, value in sorted(found.items())
        if name not in _JUDGED and value
    ]
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != plan.cell.platform:
        said.append(f"the platform is {platform}, not {plan.cell.platform}")
    said += _variables(found.get("Env") or (), plan, base)
    before = (base.get("config") or {}).get("Labels") or {}
    wanted = {**before, **plan.labels}
    labels = found.get("Labels") or {}
    said += [
        f"the label {name} {_contrast(labels.get(name), wanted.get(name))}"
        for name in sorted({*labels, *wanted})
        if labels.get(name) != wanted.get(name)
    ]
    return said


def _variables(env: Any, plan: CellPlan, base: Mapping[str, Any]) -> Iterator[str]:
    pairs = [str(row).partition("=") for row in env]
    names = [name for name, _, _ in pairs]
    yield from (f"{name} is set twice" for name in sorted({n for n in names if names.count(n) > 1}))
    before = (base.get("config") or {}).get("Env") or ()
    wanted = {name: value for name, _, value in (str(row).partition("=") for row in before)}
    wanted |= image_config.environment(plan.cell, plan.toolchain, plan.base.locked)
    found = {name: value for name, _, value in pairs}
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            yield f"the variable {name} {_contrast(found.get(name), wanted.get(name))}"


def _contrast(found: object, wanted: object) -> str:
    if wanted is None:
        return f"is {found!r}, and should not be set"
    return f"is {'not set' if found is None else repr(found)}, not {wanted!r}"

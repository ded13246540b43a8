"""Explains where every value of a cell is set. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.utils import canonicalize_name

from imagefactory.matrix.cell import Cell
from imagefactory.system.yamlfile import Location


def explain(cell: Cell) -> list[tuple[str, str, str, str]]:
    """Rows of (what, value, ``file:line``, section), axes first."""
    rows = [
        (axis, value, str(cell.locations[axis]), cell.locations[axis].section)
        for axis, value in (cell.axes if _is_locked(cell) else cell.named).items()
    ]
    rows += [(what, value, str(where), where.section) for what, value, where in _ref(cell)]
    rows += [("tag", tag, "", "tags") for tag in cell.tags]
    declared = [*_base(cell), *_flavor(cell)]
    rows += [(what, value, str(where), where.section) for what, value, where in declared]
    for override in cell.overrides:
        text = f"drop {override.requirement}" if override.drop else override.requirement
        rows.append(("override", f"{text}: {override.reason}", str(override.location), "overrides"))
    for accepted in cell.driver_overrides:
        text = f"driver {accepted.driver}: {accepted.reason}"
        rows.append(("override", text, str(accepted.location), "overrides"))
    return rows


def _is_locked(cell: Cell) -> bool:
    """Whether the version of its vLLM is known: that of a git ref is in the lock."""
    return cell.ref is None or bool(cell.ref.commit)


def _ref(cell: Cell) -> Iterator[tuple[str, str, Location]]:
    """The git ref of the cell's vLLM, its commit, and where its binaries are from."""
    ref = cell.ref
    if ref is None:
        return
    yield "ref", str(ref), ref.location
    yield "commit", ref.commit or "not locked", ref.location
    yield "binaries", f"vllm {ref.base}", ref.location


def _base(cell: Cell) -> Iterator[tuple[str, str, Location]]:
    """What the cell's base declares, each with where it is set."""
    flavor, base = cell.flavor, cell.flavor.base
    yield "base", f"{base.name} ({base.image})", flavor.where("base")
    for package in base.packages:
        yield "package", package, base.locations["packages", package]
    if base.cuda_home:
        yield "cuda_home", base.cuda_home, base.locations["cuda_home", ""]
    if base.path:
        yield "path", ":".join(base.path), base.locations["path", ""]


def _flavor(cell: Cell) -> Iterator[tuple[str, str, Location]]:
    """What the cell's flavor declares, each with where it is set."""
    flavor = cell.flavor
    for template, text in zip(flavor.requirements, cell.requirements, strict=True):
        yield "requirement", text, flavor.where("requirements", template)
    for package in sorted(flavor.indexes):
        index = next(one for one in cell.indexes if one.package == canonicalize_name(package))
        text = f"{package} from {index.name} ({index.url})"
        yield "index", text, flavor.where("indexes", package)
    for patch in flavor.patches:
        yield "patch", patch, flavor.where("patches", patch)
    for name, value in sorted(flavor.env.items()):
        yield "env", f"{name}={value}", flavor.where("env", name)
    for argument in flavor.serve_args:
        yield "serve", argument, flavor.where("serve_args", argument)
    for extra in flavor.extras:
        inside = f" ({extra.folder})" if extra.folder else ""
        yield "extra", f"{extra.name} from {extra.source}{inside}", extra.location
    if flavor.toolchain:
        yield "toolchain", flavor.toolchain, flavor.where("toolchain")
    if flavor.driver:
        yield "driver", flavor.driver, flavor.where("driver")

"""Checks recipes against releases of vLLM: that of each cell of a matrix, or any."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagefactory.errors import Problem
from imagefactory.patching import catalog, sources
from imagefactory.patching.catalog import Catalog
from imagefactory.planning import vllm_problems, vllm_settings
from imagefactory.planning.planning import Inputs
from imagefactory.planning.vllm_settings import VllmSettings
from imagefactory.recipes import rules
from imagefactory.recipes.recipe import Recipe, Setup, contains, hardware_of
from imagefactory.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A recipe, checked against one release on one number of nodes.

    ``target`` is the cell, or ``vLLM X``.
    """

    recipe: str
    target: str
    nodes: int
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "recipe": self.recipe,
            "target": self.target,
            "nodes": self.nodes,
            "problems": [problem.as_dict() for problem in self.problems],
        }


def against_cells(
    recipes: Sequence[Recipe], inputs: Inputs, *, only: str = ""
) -> Iterator[Checked]:
    """Check each recipe against the cells that it is for, if their sources are available.

    ``only`` is the name of a cell, to leave out the others.
    """
    for cell in (one for one in inputs.matrix.cells if only in ("", one.name)):
        wanted = [recipe for recipe in recipes if recipe.is_for(cell)]
        known = vllm_settings.of_cell(cell, inputs.lock, inputs.settings) if wanted else None
        if known is None:
            continue
        steps = catalog.series(inputs.patches, cell)
        added = vllm_problems.added_by(step.variant for step in steps)
        for recipe in wanted:
            missing = [
                _missing(recipe, name, f"the flavor {cell.flavor.name} does not have it")
                for name in recipe.patches
                if name not in cell.flavor.patches
            ]
            for nodes in recipe.nodes:
                found = _problems(
                    recipe, nodes, cell.vllm, known, added, hardware=hardware_of(cell)
                )
                yield Checked(
                    recipe=recipe.name,
                    target=cell.name,
                    nodes=nodes,
                    problems=(*missing, *found),
                )


def against_releases(
    recipes: Sequence[Recipe],
    releases: Sequence[str],
    patches: Catalog,
    settings: Settings,
) -> Iterator[Checked]:
    """Check each recipe against those of ``releases`` that it is for, with the patches it names.

    Raises SetupError if the sources of a release are not available.
    """
    for release in releases:
        wanted = [recipe for recipe in recipes if contains(recipe.vllm, release)]
        if not wanted:
            continue
        known = vllm_settings.of_tree(sources.fetch("vllm", release, settings), settings)
        for recipe in wanted:
            own = {name: catalog.find(patches, name) for name in recipe.patches}
            missing = [
                _missing(recipe, name, f"it has no diff for vLLM {release}")
                for name, patch in own.items()
                if not patch.variant(release) and not patch.exemption(release)
            ]
            added = vllm_problems.added_by(patch.variant(release) for patch in own.values())
            for nodes in recipe.nodes:
                found = [
                    problem
                    for hardware in recipe.hardware
                    for problem in _problems(
                        recipe, nodes, release, known, added, hardware=hardware
                    )
                ]
                yield Checked(
                    recipe=recipe.name,
                    target=f"vLLM {release}",
                    nodes=nodes,
                    problems=(*missing, *dict.fromkeys(found)),
                )


def _problems(
    recipe: Recipe,
    nodes: int,
    release: str,
    known: VllmSettings,
    added: frozenset[str],
    *,
    hardware: str,
) -> Iterator[Problem]:
    setup = recipe.on(release, nodes)
    found = vllm_problems.judge(
        setup.arguments, setup.env, known, added, release=release, of=f"recipe {recipe.name}"
    )
    for one in found:
        where = setup.where(one.setting)
        yield Problem(code=one.code, where=where, what=one.what, fix=one.fix)
    yield from _architecture(setup, known, added)
    yield from rules.broken(setup, hardware=hardware)


def _architecture(setup: Setup, known: VllmSettings, added: frozenset[str]) -> Iterator[Problem]:
    """A problem if the release does not have the model, unless another implementation is chosen."""
    recipe = setup.recipe
    wanted = recipe.architecture
    if not wanted or setup.text("model-impl") not in ("", "auto", "vllm"):
        return
    if known.architectures and wanted not in known.architectures | added:
        what = f"vLLM {setup.release} has no {wanted}, the architecture of recipe {recipe.name}"
        similar = difflib.get_close_matches(wanted, known.architectures, n=1, cutoff=0.85)
        has = f"; it has {similar[0]}" if similar else ""
        fix = f"leave this release out of `vllm`, or serve with another one{has}"
        where = recipe.places["", "architecture"]
        yield Problem(code="recipe-architecture", where=where, what=what, fix=fix)


def _missing(recipe: Recipe, name: str, why: str) -> Problem:
    return Problem(
        code="recipe-patch",
        where=recipe.places["", "patches"],
        what=f"recipe {recipe.name} needs the patch {name}: {why}",
        fix=f"add {name} to the patches of a flavor, or leave these releases out of `vllm`",
    )

"""The ``imagefactory recipe`` commands that show and check recipes: list, show, check."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imagefactory import opening, stock
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError, InputError, fail
from imagefactory.patching import catalog, sources
from imagefactory.recipes import checking, recipes
from imagefactory.recipes.checking import Checked
from imagefactory.recipes.recipe import Recipe, Setup, contains
from imagefactory.system import ui
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)
STOCK = stock.ROOT / "recipes"
Name = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe, or the path of its file.")]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", metavar="N", min=1, help="Number of nodes; by default the fewest."),
]


@app.command("list", epilog="Example: imagefactory recipe list --json")
def list_command(file: File = HERE, json: Json = False) -> None:
    """List the recipes that come with imagefactory, and the project's own."""
    found = recipes.load(workspace_of(file).recipes, STOCK)
    if json:
        ui.emit_json([_head(recipe) for recipe in found])
        return
    rows = [
        [
            ui.styled(recipe.name, "bold"),
            str(recipe.vllm),
            ",".join(map(str, recipe.nodes)),
            "stock" if recipe.is_stock else "project",
            recipe.summary,
        ]
        for recipe in found
    ]
    ui.table("recipes", ["recipe", "vllm", "nodes", "origin", "summary"], rows)


@app.command("show", epilog="Example: imagefactory recipe show qwen3.6-35b-a3b-nvfp4 --vllm 0.33.0")
def show_command(
    name: Name,
    file: File = HERE,
    vllm: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Show its settings for this release.")
    ] = None,
    nodes: Nodes = None,
    json: Json = False,
) -> None:
    """Show a recipe, and the arguments and variables that it gives to a release of vLLM.

    Without --vllm they are those of each cell of the matrix that it is for.
    """
    workspace = workspace_of(file)
    recipe = recipes.find(name, workspace.recipes, STOCK)
    _check_range(recipe, vllm, nodes)
    setups = [
        recipe.on(release, nodes or min(recipe.nodes))
        for release in ([vllm] if vllm else _releases_of(workspace, recipe))
    ]
    if json:
        ui.emit_json({**_head(recipe), **_more(recipe), "on": [_settings(one) for one in setups]})
        return
    rows = [[key.replace("_", " "), _text(value)] for key, value in _head(recipe).items()]
    ui.table(recipe.name, ["", ""], rows[1:])
    for use, parameters in recipe.sampling.items():
        ui.line(f"sampling for {use}: {_text(parameters)}")
    for one in setups:
        ui.line(f"\nvLLM {one.release}, {one.nodes} node{'s' if one.nodes > 1 else ''}:")
        for variable, value in one.env.items():
            ui.line(f"  {variable}={shlex.quote(value)}")
        ui.line(f"  vllm serve {recipe.model} {shlex.join(one.arguments)}")
    for rule, reason in recipe.accepts.items():
        ui.line(f"\nit breaks the rule {rule}: {reason}")
    for note in recipe.notes:
        ui.line(f"\n{note.text} ({note.source})")


def _check_range(recipe: Recipe, vllm: str | None, nodes: int | None) -> None:
    """Raise InputError for a release or a number of nodes that the recipe is not for."""
    if vllm and not contains(recipe.vllm, vllm):
        what = f"recipe {recipe.name} is for vLLM {recipe.vllm}, not {vllm}"
        fix = "name a release: --vllm 0.33.0"
        raise fail(InputError, "recipe-range", what, where=recipe.shown, fix=fix)
    if nodes is not None and nodes not in recipe.nodes:
        what = f"recipe {recipe.name} is for {', '.join(map(str, recipe.nodes))} nodes, not {nodes}"
        raise fail(InputError, "recipe-nodes", what, where=recipe.shown)


@app.command("check", epilog="Example: imagefactory recipe check --vllm '>=0.22'")
def check_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help="Recipes; by default all.")
    ] = None,
    file: File = HERE,
    vllm: Annotated[
        str | None,
        typer.Option(
            help="Releases of vLLM, as a version or a PEP 440 specifier, without a matrix."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check recipes against the vLLM of each cell that they are for, by its sources.

    Options, variables, values, keys inside JSON, and the names of parsers must be known to the
    release, and the rules for GB10 kept. Exits with 1 if one is not.
    """
    workspace = workspace_of(file)
    found = _chosen(workspace, names)
    if vllm:
        checked = _against_releases(workspace, found, vllm)
    else:
        checked = list(checking.against_cells(found, opening.read(workspace)))
    if json:
        ui.emit_json([one.as_dict() for one in checked])
    else:
        _table(found, checked)
    problems = dict.fromkeys(problem for one in checked for problem in one.problems)
    if problems:
        raise CheckFailedError(problems)


def _chosen(workspace: Workspace, names: Sequence[str] | None) -> list[Recipe]:
    if not names:
        return list(recipes.load(workspace.recipes, STOCK))
    return [recipes.find(name, workspace.recipes, STOCK) for name in names]


def _against_releases(workspace: Workspace, found: list[Recipe], text: str) -> list[Checked]:
    try:
        wanted = SpecifierSet(f"=={text}" if text[:1].isdigit() else text)
    except InvalidSpecifier:
        what, fix = f"--vllm {text}: no version or range", "write 0.33.0 or '>=0.22'"
        raise fail(InputError, "recipe-range", what, fix=fix) from None
    releases = sources.releases("vllm", wanted, workspace.settings)
    patches = catalog.load(*workspace.patches)
    return list(checking.against_releases(found, releases, patches, workspace.settings))


def _releases_of(workspace: Workspace, recipe: Recipe) -> list[str]:
    """The releases of the matrix's cells that the recipe is for, if there is a matrix."""
    if not workspace.matrix.exists():
        return []
    cells = opening.declared(workspace).cells
    return list(dict.fromkeys(cell.vllm for cell in cells if recipe.is_for(cell)))


def _table(found: Sequence[Recipe], checked: Sequence[Checked]) -> None:
    rows: list[list[ui.Part]] = []
    for recipe in found:
        own = [one for one in checked if one.recipe == recipe.name]
        bad = [one for one in own if one.problems]
        state = ui.styled("fail", "bold red") if bad else ui.styled("pass", "green")
        state = state if own else ui.styled("-", "dim")
        targets = list(dict.fromkeys(one.target for one in bad or own))
        noun = "release" if own and own[0].target.startswith("vLLM ") else "cell"
        count = f"{len(targets)} {noun}{'s' if len(targets) > 1 else ''}"
        shown = ", ".join(targets) if bad else count if own else f"none is {recipe.vllm}"
        rows.append([recipe.name, state, shown])
    ui.table("recipes", ["recipe", "", "checked against"], rows)


def _head(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "model": recipe.model,
        "revision": recipe.revision or None,
        "architecture": recipe.architecture or None,
        "weights": recipe.weights,
        "weights_gib": recipe.weights_gib,
        "context": recipe.context,
        "hardware": list(recipe.hardware),
        "vllm": str(recipe.vllm),
        "nodes": list(recipe.nodes),
        "patches": list(recipe.patches),
        "file": recipe.shown,
    }


def _more(recipe: Recipe) -> dict[str, Any]:
    return {
        "sampling": recipe.sampling,
        "accepts": recipe.accepts,
        "notes": [{"text": note.text, "source": note.source} for note in recipe.notes],
    }


def _settings(setup: Setup) -> dict[str, Any]:
    return {
        "vllm": setup.release,
        "nodes": setup.nodes,
        "arguments": list(setup.arguments),
        "env": setup.env,
    }


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "-")

"""The ``imagefactory recipe`` commands that start what recipes say: run, export."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from imagefactory import opening
from imagefactory.commands.options import (
    HERE,
    File,
    Json,
    Repository,
    check_images,
    workspace_of,
)
from imagefactory.commands.recipe_check import STOCK, Name, Nodes
from imagefactory.errors import CheckFailedError, InputError, fail
from imagefactory.launching import compose, docker, documents, kubernetes, quadlet
from imagefactory.launching.launching import USER, Launch, check_cache
from imagefactory.matrix.cell import Cell
from imagefactory.patching import catalog
from imagefactory.planning.cell_plan import LABEL
from imagefactory.recipes import checking, foreign, recipes, starting
from imagefactory.recipes.recipe import Recipe, Setup, hardware_of
from imagefactory.recipes.starting import Wishes
from imagefactory.system import files, platforms, ui
from imagefactory.system.engine import Engine
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)
Image = Annotated[
    str | None, typer.Option("--image", metavar="REF", help="An image in the engine.")
]
CellName = Annotated[
    str | None,
    typer.Option(
        "--cell",
        metavar="CELL",
        help="A cell by name or glob; by default the newest for this machine.",
    ),
]
ContainerName = Annotated[
    str, typer.Option("--name", help="The container's name; by default the recipe's.")
]
PortNumber = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the host.")]
Address = Annotated[
    str, typer.Option("--address", help="Where the host publishes it: 0.0.0.0 is the network.")
]
CacheFolder = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="VOLUME|DIR",
        help="Where models and compiled kernels are kept: a named volume, or a folder.",
    ),
]
RunAs = Annotated[
    str,
    typer.Option(
        "--user",
        metavar="UID[:GID]",
        help="Run as this user and not as whom the recipe says, else root; needs --cache DIR.",
    ),
]
ModelFolder = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Serve this folder instead of downloading."),
]


class Form(StrEnum):
    """What a recipe is exported to."""

    SPARKRUN = "sparkrun"
    SPARK_VLLM_DOCKER = "spark-vllm-docker"
    COMPOSE = "compose"
    QUADLET = "quadlet"
    KUBERNETES = "kubernetes"


_LAUNCHED: Mapping[Form, Callable[[Launch], str]] = {
    Form.COMPOSE: compose.text,
    Form.QUADLET: quadlet.text,
    Form.KUBERNETES: kubernetes.text,
}
_WRITTEN: Mapping[Form, Callable[[Setup, str], dict[str, Any]]] = {
    Form.SPARKRUN: foreign.sparkrun,
    Form.SPARK_VLLM_DOCKER: foreign.spark_vllm_docker,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The image that serves a recipe.

    ``image`` names it by digest if the engine has it; ``note`` says how far that can be relied on.
    """

    setup: Setup
    image: str
    is_here: bool
    hardware: str
    note: str


@app.command(
    "run", epilog="Example: imagefactory recipe run nemotron-3-nano-30b-nvfp4 --port 8000 --print"
)
def run_command(
    name: Name,
    file: File = HERE,
    image: Image = None,
    cell: CellName = None,
    container: ContainerName = "",
    port: PortNumber = 8000,
    address: Address = "127.0.0.1",
    cache: CacheFolder = starting.VOLUME,
    model: ModelFolder = None,
    user: RunAs = "",
    restart: Annotated[
        bool, typer.Option("--restart", help="Start it again when it ends or the host boots.")
    ] = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the command and start nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Start a container that serves a recipe, or print the command that does.

    The recipe is checked against the image's vLLM first. Models, and kernels that are compiled at
    run time, are kept in a volume. HF_TOKEN is passed on by name and written nowhere.
    """
    workspace = workspace_of(file)
    target = _target(workspace, recipes.find(name, workspace.recipes, STOCK), 1, image, cell)
    wishes = Wishes(
        name=container,
        address=address,
        port=port,
        cache=_source(cache),
        model=_folder(model),
        restart=restart,
        user=_user(user),
    )
    launch = starting.launch(target.setup, target.image, target.hardware, wishes)
    check_cache(launch)
    started = None
    if not only_print:
        if not target.is_here:
            what, fix = f"the engine has no image {target.image}", "imagefactory build, or --print"
            raise fail(InputError, "recipe-image", what, fix=fix)
        started = opening.connect(workspace).start_service(docker.arguments(launch))
    if json:
        shown = {"name": launch.name, "command": docker.words(launch), "started": started}
        ui.emit_json(shown)
    elif started:
        ui.line(launch.name)
        ui.say(f"it will answer at http://{address}:{port}/v1; docker logs -f {launch.name}")
    else:
        ui.line(docker.text(launch).rstrip("\n"))
    if target.note:
        ui.warn(target.note)


@app.command(
    "export",
    epilog="Example: imagefactory recipe export qwen3-0.6b --to compose -r ghcr.io/me/vllm",
)
def export_command(
    name: Name,
    to: Annotated[Form, typer.Option("--to", help="What the file is for.")],
    file: File = HERE,
    image: Image = None,
    cell: CellName = None,
    repository: Repository = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")
    ] = None,
    nodes: Nodes = None,
    container: ContainerName = "",
    port: PortNumber = 8000,
    address: Address = "127.0.0.1",
    cache: CacheFolder = starting.VOLUME,
    user: RunAs = "",
) -> None:
    """Write a recipe for another program, with the image named by its digest.

    The digest is that of the image in the engine; --repository names where it was pushed to. A
    warning says so if there is no such image, or no receipt of a verification that passed.
    """
    workspace = workspace_of(file)
    recipe = recipes.find(name, workspace.recipes, STOCK)
    count = nodes or min(recipe.nodes)
    if to in _LAUNCHED and count > 1:
        what = f"{to} starts one container, and this is for {count} nodes"
        fix = "imagefactory cluster show writes one for each node"
        raise fail(InputError, "recipe-nodes", what, fix=fix)
    target = _target(workspace, recipe, count, image, cell, repository)
    if to in _LAUNCHED:
        wishes = Wishes(
            name=container,
            address=address,
            port=port,
            cache=_source(cache),
            user=_user(user),
        )
        launch = starting.launch(target.setup, target.image, target.hardware, wishes)
        if to is not Form.KUBERNETES:  # it lets a group write to what is claimed
            check_cache(launch)
        text = _LAUNCHED[to](launch)
    else:
        text = documents.dump(_WRITTEN[to](target.setup, target.image))
    if output:
        files.write_text(output, text)
        ui.line(str(output))
    else:
        ui.line(text.rstrip("\n"))
    if target.note:
        ui.warn(target.note)


def _target(
    workspace: Workspace,
    recipe: Recipe,
    nodes: int,
    image: str | None,
    cell: str | None,
    repository: str | None = None,
) -> Target:
    """The image to serve ``recipe`` with, checked. Raises CheckFailedError, InputError."""
    if nodes not in recipe.nodes:
        what = f"recipe {recipe.name} is for {', '.join(map(str, recipe.nodes))} nodes, not {nodes}"
        fix = "imagefactory cluster serves one model on several"
        raise fail(InputError, "recipe-nodes", what, where=recipe.shown, fix=fix)
    engine = opening.connect_if_any(workspace)
    if image:
        check_images(image)
        return _of_image(workspace, recipe, nodes, image, engine, repository)
    found = _cell(workspace, recipe, cell)
    checked = checking.against_cells([recipe], opening.read(workspace), only=found.name)
    problems = [p for one in checked if one.nodes == nodes for p in one.problems]
    if problems:
        raise CheckFailedError(dict.fromkeys(problems))
    pinned, is_here, note = _pinned(workspace, engine, found.tag, repository)
    return Target(
        setup=recipe.on(found.vllm, nodes),
        image=pinned,
        is_here=is_here,
        hardware=hardware_of(found),
        note=note,
    )


def _of_image(
    workspace: Workspace,
    recipe: Recipe,
    nodes: int,
    image: str,
    engine: Engine | None,
    repository: str | None,
) -> Target:
    info = engine.find_images([image]).get(image) if engine else None
    release = info.labels.get(f"{LABEL}.pin.vllm") if info else None
    if info is None or release is None:
        what = f"{image} is not in the engine" if info is None else f"{image} has no label for vLLM"
        fix = "name an image that imagefactory built, or a cell: --cell"
        raise fail(InputError, "recipe-image", what, fix=fix)
    patches = catalog.load(*workspace.patches)
    checked = checking.against_releases([recipe], [release], patches, workspace.settings)
    problems = [p for one in checked if one.nodes == nodes for p in one.problems]
    if problems:
        raise CheckFailedError(dict.fromkeys(problems))
    pinned, is_here, note = _pinned(workspace, engine, image, repository)
    hardware = "cpu" if info.env.get("IMAGEFACTORY_CHANNEL") == "cpu" else "gb10"
    return Target(
        setup=recipe.on(release, nodes),
        image=pinned,
        is_here=is_here,
        hardware=hardware,
        note=note,
    )


def _cell(workspace: Workspace, recipe: Recipe, pattern: str | None) -> Cell:
    """The newest cell that the recipe is for, of this machine's platform if there is one."""
    cells = [one for one in opening.declared(workspace).cells if recipe.is_for(one)]
    wanted = [one for one in cells if fnmatchcase(one.name, pattern or "*")]
    if not wanted:
        names = ", ".join(one.name for one in cells) or "none"
        what = f"no cell{f' {pattern}' if pattern else ''} is for recipe {recipe.name}"
        raise fail(InputError, "recipe-cell", what, where=recipe.shown, fix=f"it is for: {names}")
    own = [one for one in wanted if one.platform == platforms.here()]
    return max(own or wanted, key=_release)


def _release(cell: Cell) -> tuple[int, ...]:
    return tuple(int(part) for part in cell.vllm.split(".") if part.isdecimal())


def _pinned(
    workspace: Workspace, engine: Engine | None, tag: str, repository: str | None
) -> tuple[str, bool, str]:
    """The image by digest, whether the engine has it, and what a user should know of it."""
    info = engine.find_images([tag]).get(tag) if engine else None
    own, _, version = tag.rpartition(":")
    name = repository or own
    if info is None:
        whole = f"{name}:{version}"
        return whole, False, f"{whole} is not pinned to a digest: no engine here has the image"
    receipt = opening.receipts(workspace).load(info.digest)
    note = "" if receipt and receipt.passed else f"{tag} has not passed imagefactory verify here"
    return f"{name}@{info.digest}", True, note


def _source(cache: str) -> str:
    """A named volume, or the absolute path of a folder."""
    is_path = "/" in cache or cache.startswith((".", "~"))
    return str(Path(cache).expanduser().absolute()) if is_path else cache


def _user(text: str) -> str:
    if text and not re.fullmatch(USER, text):
        what, fix = (
            f"{text!r} is no user by number",
            "write UID or UID:GID: --user $(id -u):$(id -g)",
        )
        raise fail(InputError, "recipe-user", what, fix=fix)
    return text


def _folder(model: Path | None) -> str:
    if model is None:
        return ""
    if not (model / "config.json").is_file():
        what = f"{model} has no config.json"
        raise fail(InputError, "recipe-model", what, fix="name the folder of a model")
    return str(model.absolute())

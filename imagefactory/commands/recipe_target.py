"""Options of the commands that start servers: which image serves a recipe; it is checked first."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands.options import check_images
from imagefactory.errors import CheckFailedError, InputError, fail
from imagefactory.launching.launching import USER, Launch
from imagefactory.matrix.cell import Cell
from imagefactory.patching import catalog
from imagefactory.planning.cell_plan import LABEL
from imagefactory.recipes import checking
from imagefactory.recipes.recipe import Recipe, Setup, hardware_of
from imagefactory.system import files, platforms, shell
from imagefactory.system.engine import Engine
from imagefactory.tuning.files import LARGEST
from imagefactory.workspace import Workspace

#: The folder beside the matrix with what `imagefactory tune` found.
TUNINGS = "tunings"
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
        help="Run as this user instead of the recipe's, by default root; needs --cache DIR.",
    ),
]
ModelFolder = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Serve this folder instead of downloading."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An image to serve with.

    Attributes:
        image: it, by digest if the engine has it.
        is_here: whether the engine has it.
        release: its vLLM.
        hardware: what it runs on.
        cell: the cell that it is of, unless the user named an image.
        note: how far the image can be relied on.
    """

    image: str
    is_here: bool
    release: str
    hardware: str
    cell: Cell | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Chosen):
    """The image that serves a recipe, and the recipe's settings for it."""

    setup: Setup


def target_of(
    workspace: Workspace,
    recipe: Recipe,
    nodes: int,
    image: str | None,
    cell: str | None,
    repository: str | None = None,
) -> Target:
    """The image to serve ``recipe`` with, checked. Raises CheckFailedError, InputError."""
    if nodes not in recipe.nodes:
        numbers = " or ".join(map(str, recipe.nodes))
        noun = "node" if numbers == "1" else "nodes"
        what = f"recipe {recipe.name} is for {numbers} {noun}, not {nodes}"
        fix = "imagefactory cluster serves one model on several"
        raise fail(InputError, "recipe-nodes", what, where=recipe.shown, fix=fix)
    found = choose(workspace, image, cell, recipe, repository)
    if found.cell:
        inputs = opening.read(workspace)
        checked = checking.against_cells([recipe], inputs, only=found.cell.name)
    else:
        patches = catalog.load(*workspace.patches)
        checked = checking.against_releases([recipe], [found.release], patches, workspace.settings)
    problems = [p for one in checked if one.nodes == nodes for p in one.problems]
    if problems:
        raise CheckFailedError(dict.fromkeys(problems))
    return Target(
        setup=recipe.on(found.release, nodes),
        image=found.image,
        is_here=found.is_here,
        release=found.release,
        hardware=found.hardware,
        cell=found.cell,
        note=found.note,
    )


def choose(
    workspace: Workspace,
    image: str | None,
    cell: str | None,
    recipe: Recipe | None = None,
    repository: str | None = None,
) -> Chosen:
    """``image``, or that of a cell that ``recipe`` is for; without a recipe, of one with a GPU.

    Raises InputError if there is none.
    """
    engine = opening.connect_if_any(workspace)
    if image is not None:  # an empty one is a variable of the shell that was not set
        check_images(image)
        return _of_image(workspace, image, engine, repository)
    found = _cell(workspace, recipe, cell, engine)
    pinned, is_here, note = _pinned(workspace, engine, found.tag, repository)
    return Chosen(
        image=pinned,
        is_here=is_here,
        release=found.vllm,
        hardware=hardware_of(found),
        cell=found,
        note=note,
    )


def _of_image(
    workspace: Workspace, image: str, engine: Engine | None, repository: str | None
) -> Chosen:
    info = engine.find_images([image]).get(image) if engine else None
    release = info.labels.get(f"{LABEL}.pin.vllm") if info else None
    if info is None or release is None:
        what = f"{image} is not in the engine" if info is None else f"{image} has no label for vLLM"
        fix = "name an image that imagefactory built, or a cell: --cell"
        raise fail(InputError, "recipe-image", what, fix=fix)
    pinned, is_here, note = _pinned(workspace, engine, image, repository)
    return Chosen(
        image=pinned,
        is_here=is_here,
        release=release,
        hardware="cpu" if info.env.get("IMAGEFACTORY_CHANNEL") == "cpu" else "gb10",
        cell=None,
        note=note,
    )


def _cell(
    workspace: Workspace, recipe: Recipe | None, pattern: str | None, engine: Engine | None
) -> Cell:
    """The newest cell, of this machine's platform and with an image here if there is one."""
    cells = [
        one
        for one in opening.declared(workspace).cells
        if (recipe.is_for(one) if recipe else hardware_of(one) == "gb10")
    ]
    wanted = [one for one in cells if fnmatchcase(one.name, "*" if pattern is None else pattern)]
    if not wanted:
        names = ", ".join(one.name for one in cells) or "none"
        name, given = (
            f"recipe {recipe.name}" if recipe else "a GPU",
            f" {pattern or repr(pattern)}" if pattern is not None else "",
        )
        where, what = recipe.shown if recipe else None, f"no cell{given} is for {name}"
        raise fail(InputError, "recipe-cell", what, where=where, fix=f"it is for: {names}")
    own = [one for one in wanted if one.platform == platforms.here()] or wanted
    there = engine.find_images([one.tag for one in own]) if engine else {}
    return max([one for one in own if one.tag in there] or own, key=_release)


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


def check_folder(launch: Launch) -> None:
    """Raise InputError for a user's cache that is not there: Docker would make it for root."""
    for mount in launch.mounts:
        if launch.user and not mount.is_volume and not Path(mount.source).exists():
            what = f"there is no folder {mount.source}: Docker would make it for root, and user "
            what += f"{launch.user} could not write there"
            fix = shell.show(["mkdir", "-p", mount.source])
            raise fail(InputError, "launch-cache", what, fix=fix)


def must_be_here(workspace: Workspace, target: Chosen) -> None:
    """Raise InputError if the engine does not have the image, SetupError if there is none."""
    if not target.is_here:
        opening.connect(workspace)
        what = f"the engine has no image {target.image}"
        fix = f"imagefactory build --matrix --select {target.cell.name if target.cell else '...'}"
        raise fail(InputError, "recipe-image", what, fix=fix)


def tunings_of(workspace: Workspace) -> str:
    """The project's folder of tuned kernels, as an absolute path; empty if there are none."""
    folder = workspace.project / TUNINGS
    return str(folder) if any(folder.glob("*.json")) else ""


def files_of_tunings(folder: Path) -> dict[str, str]:
    """The files of tuned kernels in a folder, by name. Raises InputError."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.name] = files.read_text(path, LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            what, fix = f"{path} cannot be read: {error}", "restore it, or remove it"
            raise fail(InputError, "tuning-unreadable", what, fix=fix) from None
    return found


def source_of(cache: str) -> str:
    """A named volume, or the absolute path of a folder."""
    is_path = "/" in cache or cache.startswith((".", "~"))
    return str(path_of(cache).absolute()) if is_path else cache


def path_of(text: str) -> Path:
    """The path that ``text`` names; the home of a user that there is not is a plain name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises an error for such


def user_of(text: str) -> str:
    """A user by number. Raises InputError for what is none."""
    if text and not re.fullmatch(USER, text):
        what, fix = (
            f"{text!r} is no user by number",
            "write UID or UID:GID: --user $(id -u):$(id -g)",
        )
        raise fail(InputError, "recipe-user", what, fix=fix)
    return text


def folder_of(model: Path | None) -> str:
    """The absolute path of a model's folder; empty if there is none. Raises InputError."""
    if model is None:
        return ""
    if not (model / "config.json").is_file():
        what = f"{model} has no config.json"
        raise fail(InputError, "recipe-model", what, fix="name the folder of a model")
    return str(model.absolute())

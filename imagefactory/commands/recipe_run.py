"""The ``imagefactory recipe`` commands that start what recipes say: run, export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from imagefactory import opening, pipeline
from imagefactory.commands.options import HERE, File, Json, Repository, workspace_of
from imagefactory.commands.recipe_check import STOCK, Name, Nodes
from imagefactory.commands.recipe_target import (
    Address,
    CacheFolder,
    CellName,
    ContainerName,
    Image,
    ModelFolder,
    PortNumber,
    RunAs,
    check_folder,
    files_of_tunings,
    folder_of,
    must_be_here,
    source_of,
    target_of,
    tunings_of,
    user_of,
)
from imagefactory.errors import InputError, fail
from imagefactory.launching import compose, docker, documents, kubernetes, quadlet
from imagefactory.launching.launching import Launch, check_cache
from imagefactory.recipes import foreign, recipes, starting
from imagefactory.recipes.recipe import Setup
from imagefactory.recipes.starting import Wishes
from imagefactory.system import files, reference, ui

app = typer.Typer(add_completion=False)


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
#: What a user has to do for tuned kernels where a file cannot mount them.
_TUNINGS: Mapping[Form, Callable[[str], str]] = {
    Form.SPARKRUN: foreign.sparkrun_tunings,
    Form.SPARK_VLLM_DOCKER: foreign.spark_vllm_docker_tunings,
}


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
    run time, are kept in a volume. HF_TOKEN is passed on by name and written nowhere. Tuned kernels
    in the folder tunings beside the matrix are used.
    """
    workspace = workspace_of(file)
    target = target_of(workspace, recipes.find(name, workspace.recipes, STOCK), 1, image, cell)
    wishes = Wishes(
        name=container,
        address=address,
        port=port,
        cache=source_of(cache),
        model=folder_of(model),
        tunings=tunings_of(workspace),
        restart=restart,
        user=user_of(user),
    )
    launch = starting.launch(target.setup, target.image, target.hardware, wishes)
    check_cache(launch)
    started = None
    if not only_print:
        must_be_here(workspace, target)
        check_folder(launch)
        started = opening.connect(workspace).start_service(docker.arguments(launch))
    if json:
        shown = {"name": launch.name, "command": docker.words(launch), "started": started}
        ui.emit_json(shown)
    elif started:
        ui.line(launch.name)
        ui.say(f"it will answer at http://{launch.ports[0].place}/v1; docker logs -f {launch.name}")
        if model is None and starting.TOKEN not in os.environ:
            ui.say(
                f"{starting.TOKEN} is not set: models that ask for an account cannot be downloaded"
            )
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
    model: ModelFolder = None,
    user: RunAs = "",
) -> None:
    """Write a recipe for another program, with the image named by its digest.

    The digest is that of the image in the engine; --repository names where it was pushed to. A
    warning says so if there is no such image, or no receipt of a verification that passed. Tuned
    kernels in the folder tunings beside the matrix are mounted, or it says how.
    """
    if repository is not None:
        pipeline.check_repository(repository, "--repository")
    workspace = workspace_of(file)
    recipe = recipes.find(name, workspace.recipes, STOCK)
    count = nodes or min(recipe.nodes)
    if to in _LAUNCHED and count > 1:
        what = f"{to} starts one container, and this is for {count} nodes"
        fix = "imagefactory cluster show writes one for each node"
        raise fail(InputError, "recipe-nodes", what, fix=fix)
    target = target_of(workspace, recipe, count, image, cell, repository)
    tunings = tunings_of(workspace) if starting.takes_tunings(target.setup, target.hardware) else ""
    remarks = [_TUNINGS[to](tunings)] if tunings and to in _WRITTEN else []
    if to in _LAUNCHED:
        wishes = Wishes(
            name=container,
            address=address,
            port=port,
            cache=source_of(cache),
            model=folder_of(model),
            tunings=tunings,
            tuned=files_of_tunings(Path(tunings)) if tunings and to is Form.KUBERNETES else {},
            user=user_of(user),
        )
        launch = starting.launch(target.setup, target.image, target.hardware, wishes)
        if to is not Form.KUBERNETES:  # it lets a group write to what is claimed
            check_cache(launch)
        text = _LAUNCHED[to](launch)
    else:
        text = documents.dump(_WRITTEN[to](target.setup, target.image), remarks=remarks)
    if output:
        files.write_text(output, text)
        ui.line(str(output))
    else:
        ui.line(text.rstrip("\n"))
    for note in (*remarks, target.note):
        if note:
            ui.warn(note)
    if (
        to in (Form.QUADLET, Form.KUBERNETES)
        and reference.parse(target.image).host == reference.HUB
    ):
        what = f"{to} does not see Docker's images, and looks for this one at {reference.HUB}"
        ui.warn(f"{what}: name where it was pushed to with --repository")

"""The command ``imagefactory tune``: tunes fused-MoE kernels, and checks the files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.commands.recipe_check import STOCK
from imagefactory.commands.recipe_target import (
    TUNINGS,
    CacheFolder,
    CellName,
    Chosen,
    Image,
    choose,
    folder_of,
    must_be_here,
    path_of,
    source_of,
    target_of,
)
from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.launching import docker
from imagefactory.patching import sources
from imagefactory.recipes import recipes, starting
from imagefactory.recipes.recipe import hardware_of
from imagefactory.system import files as written
from imagefactory.system import ui
from imagefactory.tuning import files, jobs, release, tuning
from imagefactory.tuning.files import GB10
from imagefactory.tuning.jobs import Wanted
from imagefactory.tuning.release import Release
from imagefactory.tuning.tuning import Tuned
from imagefactory.verifying import leftovers
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("tune", epilog="Example: imagefactory tune qwen3-coder-next-fp8 --batch-size 1,2,4,8")
def tune_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE|FILE...", help="A recipe; with --check, files."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check files, by default those in tunings; needs no GPU."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="ORG/NAME|DIR", help="A model instead of a recipe's."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="E,N,H,K",
            help="No model: E experts of size N on each GPU, hidden size H, K of them a token.",
        ),
    ] = None,
    block: Annotated[
        str | None, typer.Option("--block", metavar="N,K", help="With --shape: blocks of scales.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="fp8_w8a8, auto (BF16), ...; the recipe's else.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="GPUs that share the experts of the model.")
    ] = None,
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="M,...", help="Numbers of tokens to tune for.")
    ] = "",
    image: Image = None,
    cell: CellName = None,
    cache: CacheFolder = starting.VOLUME,
    vllm: Annotated[
        str | None, typer.Option(metavar="VERSION", help="With --check: this release only.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="With --check: the GPU in the files' names.")
    ] = GB10,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the command and start nothing.")
    ] = False,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Tune vLLM's fused-MoE kernel on this machine's GPU, with the image's own benchmark_moe.py.

    The file goes into the folder tunings beside the matrix, where recipe run finds it. It takes
    hours; batch sizes that the file has already are kept, so they can be tuned in several nights.
    Only the model's config is read.
    """
    workspace = workspace_of(file)
    sizes = jobs.numbers("--batch-size", batch_size) if batch_size else ()
    if check:
        _check(workspace, names or [], vllm, device, sizes, json=json)
        return
    if len(names or []) + (model is not None) + (shape is not None) != 1:
        what = "tune one thing: a recipe, --model or --shape"
        raise fail(InputError, "tune-what", what, fix="imagefactory tune --help")
    wanted, target = _wanted(workspace, names, model, image, cell)
    known = _release(workspace, target)
    job = jobs.job(wanted, known, shape=shape, block=block, dtype=dtype, tp=tp, batch_sizes=sizes)
    if target.hardware != "gb10":
        what = "it is an image for CPUs, and the kernel is for GPUs"
        raise fail(InputError, "tune-image", what, where=target.image, fix="name a gb10 --image")
    if only_print:
        launch = tuning.launch(
            job, known, target.image, cache=source_of(cache), name="imagefactory-tune"
        )
        if json:
            ui.emit_json({"command": docker.words(launch)})
        else:
            ui.line(docker.text(launch).rstrip("\n"))
        return
    must_be_here(workspace, target)
    written.check_target(workspace.project / TUNINGS / "any.json")
    engine = opening.connect(workspace)
    leftovers.sweep(engine, workspace.settings.cache)
    for one in tuning.tune(engine, job, known, target.image, cache=source_of(cache)):
        if isinstance(one, Tuned):
            _keep(workspace, one, json=json)
        else:
            ui.say(one)


def _wanted(
    workspace: Workspace,
    names: list[str] | None,
    model: str | None,
    image: str | None,
    cell: str | None,
) -> tuple[Wanted, Chosen]:
    if names:
        recipe = recipes.find(names[0], workspace.recipes, STOCK)
        target = target_of(workspace, recipe, min(recipe.nodes), image, cell)
        return jobs.of_recipe(target.setup), target
    chosen = choose(workspace, image, cell)
    if model and os.sep in model and path_of(model).is_dir():
        return Wanted(folder=folder_of(path_of(model))), chosen
    return Wanted(model=model or ""), chosen


def _release(workspace: Workspace, target: Chosen) -> Release:
    settings = workspace.settings
    if target.cell:
        lock = opening.read_lock(workspace)
        return release.read(sources.of_cell("vllm", target.cell, lock, settings))
    return release.read(sources.fetch("vllm", target.release, settings))


def _keep(workspace: Workspace, one: Tuned, *, json: bool) -> None:
    path = workspace.project / TUNINGS / one.name
    content = one.content
    if path.exists():
        content = _with_earlier(path, content)
    written.write_text(path, content.decode())
    if json:
        ui.emit_json({"file": str(path), "device": one.device})
    else:
        ui.line(str(path))
    ui.say("vLLM finds it; commit it, and imagefactory recipe run uses it")
    if one.device != GB10:
        ui.warn(f"it is for {one.device}: a GB10 does not use it")


def _with_earlier(path: Path, content: bytes) -> bytes:
    """``content`` with the batch sizes of the file at ``path``; that is set aside if it is damaged.

    What took hours on a GPU is kept in any case.
    """
    try:
        return tuning.merged(written.read(path, files.LARGEST + 1), content)
    except (ValueError, OSError) as error:
        aside = next(
            free
            for number in itertools.count(1)
            if not (free := path.with_name(f"{path.name}.damaged-{number}")).exists()
        )
        path.rename(aside)
        ui.warn(f"{path} was no file of tuned kernels ({error}), and is {aside.name} now")
        return content


def _check(
    workspace: Workspace,
    names: list[str],
    vllm: str | None,
    device: str,
    sizes: tuple[int, ...],
    *,
    json: bool,
) -> None:
    paths = [Path(name) for name in names] or sorted((workspace.project / TUNINGS).glob("*.json"))
    if not paths:
        what, fix = f"there are no files in {workspace.project / TUNINGS}", "name some"
        raise fail(InputError, "tune-no-files", what, fix=fix)
    rows: list[tuple[str, str, list[Problem]]] = []
    for known in _releases(workspace, vllm):
        for path in paths:
            try:
                content = written.read(path, files.LARGEST + 1)
            except OSError as error:
                what = f"{path} cannot be read: {error.strerror}"
                raise fail(InputError, "tuning-unreadable", what) from None
            found = files.check(
                path.name, content, known, device=device, batch_sizes=sizes, where=str(path)
            )
            rows.append((str(path), known.version, found))
    if json:
        ui.emit_json(
            [
                {"file": path, "vllm": version, "problems": [one.as_dict() for one in found]}
                for path, version, found in rows
            ]
        )
    else:
        shown: list[list[ui.Part]] = [
            [Path(path).name, version, _state(found)] for path, version, found in rows
        ]
        ui.table("", ["file", "vllm", ""], shown)
    problems = dict.fromkeys(one for _, _, found in rows for one in found)
    if problems:
        raise CheckFailedError(problems)


def _state(found: list[Problem]) -> ui.Part:
    return ui.styled("fail", "bold red") if found else ui.styled("pass", "green")


def _releases(workspace: Workspace, vllm: str | None) -> list[Release]:
    """The release that is given, or those of the matrix's cells with a GPU."""
    if vllm:
        return [release.read(sources.fetch("vllm", vllm, workspace.settings))]
    cells = {
        cell.vllm: cell for cell in opening.declared(workspace).cells if hardware_of(cell) == "gb10"
    }
    if not cells:
        what = "no cell of the matrix is for a GB10, so no vLLM says what it takes"
        fix = "add --vllm VERSION"
        raise fail(InputError, "tune-no-release", what, where=str(workspace.matrix), fix=fix)
    lock = opening.read_lock(workspace)
    trees = [sources.of_cell("vllm", cell, lock, workspace.settings) for cell in cells.values()]
    return [release.read(tree) for tree in trees]

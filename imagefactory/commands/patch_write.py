"""The ``imagefactory patch`` commands that write patches: port, continue, new, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.patching import catalog, importing, port, worktree
from imagefactory.patching.importing import Imported
from imagefactory.patching.patch import Patch
from imagefactory.patching.port import Ported
from imagefactory.system import ui

app = typer.Typer(add_completion=False)
On = Annotated[str, typer.Option("--on", metavar="VERSION", help="The release to write it for.")]


@app.command("port", epilog="Example: imagefactory patch port --all --to latest")
def port_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A patch, unless --all is given.")
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="VERSION", help="The release, or `latest`.")
    ] = "latest",
    every: Annotated[bool, typer.Option("--all", help="Port every patch that has a diff.")] = False,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Port a patch to another release by three-way merge; its proof decides whether it works.

    Exits with 1 if the port has to be finished by hand.
    """
    workspace = workspace_of(file)
    found = catalog.load(*workspace.patches)
    if every == bool(name):
        what, fix = "no patch to port", "give either a patch's name or --all"
        raise fail(InputError, "port-what", what, fix=fix)
    wanted = (
        [patch for patch in found.values() if patch.variants]
        if every
        else [catalog.find(found, name or "")]
    )
    projects = list(dict.fromkeys(patch.project for patch in wanted))
    targets = port.targets(projects, to, workspace.settings)
    wanted = [patch for patch in wanted if patch.project in targets]
    bench = opening.bench(workspace, wanted)
    done = []
    for patch in wanted:
        version = targets[patch.project]
        with ui.step(f"porting {patch.name} to {version}"):
            done.append(port.port(patch, version, workspace.own_patches, bench, workspace.settings))
    _show(done, json=json)


def _show(done: list[Ported], *, json: bool) -> None:
    if json:
        ui.emit_json([one.as_dict() for one in done])
    else:
        colour = {True: "green", False: "bold red"}
        rows: list[list[ui.Part]] = [
            [o.patch, o.version, ui.styled(o.outcome, colour[o.done]), o.base, o.did] for o in done
        ]
        ui.table("port", ["patch", "to", "outcome", "from", "details"], rows)
    left = [one for one in done if not one.done]
    if left:
        fix = "see docs/patches.md"
        raise CheckFailedError(
            Problem(
                code="port-unfinished",
                what=f"{one.patch} on {one.version}: {one.did}",
                fix=fix,
                detail=one.detail,
            )
            for one in left
        )


@app.command("continue", epilog="Example: imagefactory patch continue vllm/mtp-exclusion")
def continue_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A patch; by default all with open work trees."),
    ] = None,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Finish patches that were edited in a work tree: prove them and write them to patches/."""
    workspace = workspace_of(file)
    works = [work for work in worktree.unfinished(workspace.settings) if name in (None, work.patch)]
    if not works:
        what = f"{name} has no open work tree" if name else "there is no open work tree"
        fix = "open one with imagefactory patch port or imagefactory patch new"
        raise fail(InputError, "port-none", what, fix=fix)
    found = catalog.load(*workspace.patches)
    patches: list[Patch | None] = [found.get(work.patch) for work in works]
    bench = opening.bench(workspace, [patch for patch in patches if patch])
    done = [
        port.finish(work, patch, workspace.own_patches, bench, workspace.settings)
        for work, patch in zip(works, patches, strict=True)
    ]
    _show(done, json=json)


@app.command("new", epilog="Example: imagefactory patch new vllm/my-fix --on 0.33.0")
def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="PROJECT/NAME, such as vllm/my-fix.")],
    on: On = "latest",
    tree: Annotated[
        Path | None,
        typer.Option("--tree", metavar="DIR", help="A copy of the release that is already edited."),
    ] = None,
    file: File = HERE,
) -> None:
    """Start a patch from an edited tree, or open a work tree to edit."""
    workspace = workspace_of(file)
    folder = workspace.own_patches
    catalog.load(*workspace.patches)
    if tree is not None:
        port.from_tree(name, on, tree, folder, workspace.settings)
        ui.say(
            f"wrote the draft patches/{name}: add its proof and description, then remove `draft`"
        )
        return
    work = port.begin_new(name, on, folder, workspace.settings)
    ui.line(str(work.tree))
    ui.say(f"edit this tree, then run: imagefactory patch continue {name}")


@app.command("import", epilog="Example: imagefactory patch import vllm#38909 --unproven")
def import_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PR|COMMIT|FILE|DIR",
            help="A pull request (URL, vllm#38909, OWNER/REPO#7), a commit (URL, vllm@SHA), the "
            "URL of a diff, a file (a diff, or git format-patch), or a folder of them.",
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", help="PROJECT/NAME of the patch.")] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="VERSION", help="The release; by default the newest that it applies to."
        ),
    ] = None,
    unproven: Annotated[
        bool,
        typer.Option("--unproven", help="Flavors may list it without a proof: it has to apply."),
    ] = False,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Import a diff from anywhere as the draft of a patch, or as an unproven patch.

    Files that no image contains, such as tests/ and docs/, are left out and named.
    """
    workspace = workspace_of(file)
    done = importing.import_diffs(
        what, workspace.own_patches, workspace.settings, name=name, on=on, unproven=unproven
    )
    if json:
        tree = str(done.work.tree) if done.work else ""
        ui.emit_json({**done.as_dict(), "unproven": unproven, "work_tree": tree})
    elif not done.work:
        kind = "unproven patch" if unproven else "draft"
        ui.say(f"wrote the {kind} patches/{done.patch}, which applies to {done.version}")
    _warn_of_rest(done)
    if done.work:
        raise fail(
            CheckFailedError,
            "import-unfinished",
            f"the diff applies to no release; most of it applies to {done.version}",
            fix=f"edit {done.work.tree}, then: imagefactory patch continue {done.patch}",
        )


def _warn_of_rest(done: Imported) -> None:
    """Name all that was not imported."""
    if done.skipped:
        ui.warn(f"left out, because no image contains it: {', '.join(done.skipped)}")
    if done.empty:
        ui.warn(f"left out, because it has no lines: {', '.join(done.empty)}")
    for left in done.left:
        ui.warn(f"{left} is not a diff and was not imported: review it by hand")
    for one in done.fetches:
        ui.warn(f"a script fetches another diff: imagefactory patch import {one}")

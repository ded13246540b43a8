"""The ``verify`` command: runs images and checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import pipeline, workflows
from imagefactory.commands import tables
from imagefactory.commands.options import (
    HERE,
    File,
    Json,
    Select,
    check_images,
    workspace_of,
)
from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.reporting import markdown
from imagefactory.results import Watcher
from imagefactory.system import files, ui
from imagefactory.verifying import junit, receipt
from imagefactory.verifying.receipt import Level, Receipt
from imagefactory.verifying.receipt_store import Found
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)
EXAMPLE = (
    "Example: imagefactory verify imagefactory/vllm:cpu-vllm0.32.0 --models moe,hybrid "
    "--junit report.xml"
)


@app.command("verify", epilog=EXAMPLE)
def verify_command(
    tags: Annotated[
        list[str] | None,
        typer.Argument(metavar="TAG", help="Images; by default those of the selected cells."),
    ] = None,
    file: File = HERE,
    select: Select = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Load the images from what build --output wrote."
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write Markdown for a CI job's summary."),
    ] = None,
    receipt_only: Annotated[
        bool,
        typer.Option(
            "--receipt",
            help="Run nothing: check the receipts of TAG, those here and in its registry. "
            "Fails if none shows --level.",
        ),
    ] = False,
    level: Annotated[
        Level | None,
        typer.Option("--level", help="Go up to this level, and fail if it is not reached."),
    ] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="--level gpu: also compute and serve on a GPU.")
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="all|NAME,...",
            help="The tiny models to serve; by default those that the level needs.",
        ),
    ] = None,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun", help="Run images also if a signed receipt of another machine counts."
        ),
    ] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="List what is checked, and verify nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Run images in containers and check them; exits with 1 if a required check fails.

    An image that was pulled is not run if a signed receipt of another machine counts here.
    """
    check_images(*(tags or []))
    if checks:
        _show_checks(json=json)
        return
    if tags and select and not receipt_only:
        what, fix = "both TAG and --select are given", "name images, or select cells"
        raise fail(InputError, "verify-what", what, fix=fix)
    _check_options(tags, source, level, gpu=gpu)
    for report in filter(None, (junit_file, markdown_file)):
        files.check_target(report)
    wanted = Level.GPU if gpu else level
    write = partial(_write_reports, junit_file, markdown_file, wanted or Level.STATIC)
    if receipt_only:
        running = {"--select": select, "--from": source, "--models": models, "--rerun": rerun}
        _refuse_to_run(name for name, given in running.items() if given)
        _show_receipts(workspace_of(file), tags or [], wanted, write, json=json)
        return
    watcher = Watcher() if json else Watcher(verified=tables.receipt)
    chosen = _chosen(models, wanted or Level.SERVE)
    workspace = workspace_of(file)
    asked = [] if rerun or models is not None else tags or []
    known = _vouched(workspace, asked, wanted, watcher)
    receipts = tuple(known.values())
    left = [tag for tag in tags or [] if tag not in known]
    if left or not tags:
        receipts += pipeline.verify(
            workspace,
            left,
            select or [],
            watcher,
            source=source,
            level=wanted or Level.SERVE,
            models=chosen,
        )
    write(receipts)
    if json:
        ui.emit_json([one.as_dict() for one in receipts])
    problems = receipt.problems(receipts)
    if wanted and chosen is None:
        problems += receipt.below(receipts, wanted)
    if problems:
        raise CheckFailedError(problems)


def _write_reports(
    junit_file: Path | None,
    markdown_file: Path | None,
    wanted: Level,
    receipts: Sequence[Receipt],
) -> None:
    if junit_file:
        junit.write(junit_file, *receipts)
    if markdown_file:
        files.write_text(markdown_file, markdown.summary(*receipts, wanted=wanted))


def _refuse_to_run(names: Iterable[str]) -> None:
    """Raise InputError for options that are about what runs, where nothing does."""
    given = ", ".join(names)
    if given:
        what, fix = f"--receipt runs nothing, and takes no {given}", "leave one of them out"
        raise fail(InputError, "verify-what", what, fix=fix)


def _check_options(
    tags: Sequence[str] | None, source: Path | None, level: Level | None, *, gpu: bool
) -> None:
    if tags and source:
        what, fix = "both TAG and --from are given", "--select chooses among the images in a folder"
        raise fail(InputError, "verify-what", what, fix=fix)
    if gpu and level not in (None, Level.GPU):
        what, fix = f"both --gpu and --level {level} are given", "choose one"
        raise fail(InputError, "verify-what", what, fix=fix)


def _vouched(
    workspace: Workspace, tags: Sequence[str], level: Level | None, watcher: Watcher
) -> dict[str, Receipt]:
    """The receipts of other machines by which images need not be run, shown as our own are."""
    known = {tag: workflows.vouched(workspace, tag, level) for tag in tags}
    found = {tag: one for tag, one in known.items() if one}
    for tag, one in found.items():
        watcher.verified(one.receipt)
        ui.say(f"{tag} was not run here (--rerun does): {one}")
    return {tag: one.receipt for tag, one in found.items()}


def _chosen(models: str | None, level: Level) -> tuple[str, ...] | None:
    if models is None:
        return None
    from imagefactory.verifying import choice  # noqa: PLC0415 - imports NumPy

    return choice.parse(models, level)


def _show_receipts(
    workspace: Workspace,
    tags: Sequence[str],
    wanted: Level | None,
    write: Callable[[Sequence[Receipt]], None],
    *,
    json: bool,
) -> None:
    if not tags:
        what, fix = "--receipt needs images", "imagefactory verify --receipt TAG"
        raise fail(InputError, "verify-what", what, fix=fix)
    found, problems = dict[str, Found](), list[Problem]()
    for tag in tags:
        try:
            found[tag] = workflows.find_receipt(workspace, tag)
        except CheckFailedError as error:
            problems += error.problems
    receipts = [one.receipt for one in found.values()]
    write(receipts)
    if json:
        ui.emit_json([{"image": tag, **one.as_dict()} for tag, one in found.items()])
    for tag, one in () if json else found.items():
        tables.receipt(one.receipt)
        ui.line(f"{tag}: {one}")
    if wanted:
        problems += receipt.below(receipts, wanted)
    if problems:
        raise CheckFailedError(problems)


def _show_checks(*, json: bool) -> None:
    from imagefactory.verifying import check_registry  # noqa: PLC0415 - loads every check

    rows = check_registry.describe()
    if json:
        ui.emit_json([asdict(row) for row in rows])
        return
    table = [[row.name, row.level, "yes" if row.required else "no", row.text] for row in rows]
    ui.table("checks", ["check", "level", "required", "what it checks"], table)

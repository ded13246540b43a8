"""The ``nightly`` command: one unattended night, from what is new to a moving tag."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from imagefactory import pipeline
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import InputError, fail
from imagefactory.matrix import matrix
from imagefactory.nightly import nightly, observing, stations
from imagefactory.nightly.report import markdown
from imagefactory.nightly.values import Found, Job, Night
from imagefactory.system import files, ui

app = typer.Typer(add_completion=False)


@app.command(
    "nightly", epilog="Example: imagefactory nightly --to ghcr.io/me/vllm --max-minutes 300"
)
def nightly_command(
    file: File = HERE,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REPO", help="Push to this repository, not the matrix's own."),
    ] = None,
    no_push: Annotated[
        bool, typer.Option("--no-push", help="Push nothing, and move no tag.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what is new; change nothing.")
    ] = False,
    branch: Annotated[
        str, typer.Option("--branch", metavar="NAME", help="Git branch for the result.")
    ] = "nightly",
    max_cells: Annotated[
        int | None, typer.Option("--max-cells", metavar="N", min=0, help="Build at most N cells.")
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            "--max-minutes", metavar="M", min=0, help="Begin no build after this many minutes."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the report here, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Adopt what is new, build, verify and push what changed, and move the nightly tags.

    Meant for cron, systemd or CI: what breaks stops nothing else and is reported, a run that was
    killed goes on, and nothing new takes seconds. Exits 1 if something broke, 3 if that was the
    machine, the network or a registry.
    """
    if to is not None:
        pipeline.check_repository(to, "--to")
    workspace = workspace_of(file)
    if to is None and not (no_push or dry_run):
        _check_registry(matrix.load(workspace.matrix).repository)
    job = Job(
        to=to,
        push=not no_push,
        branch=branch,
        max_cells=max_cells,
        max_minutes=max_minutes,
        now=datetime.now(UTC),
    )
    called = stations.real(job)
    if dry_run:
        _show_news(called.detect(workspace), json=json)
        return
    if report is not None:
        files.check_target(report)

    def publish(night: Night) -> None:
        kept = nightly.folder_of(workspace) / "report.md"
        for path in filter(None, (kept, report)):
            files.write_text(path, markdown(night))
        observing.keep(workspace, night, kept.parent)

    night = nightly.run(workspace, job, called, publish)
    if json:
        ui.emit_json(_as_dict(night))
    else:
        ui.line(markdown(night).rstrip())
    if night.exit_code:
        raise typer.Exit(night.exit_code)


def _check_registry(repository: str) -> None:
    """Raise InputError for the name of images on this machine, before hours are spent on them."""
    first = repository.partition("/")[0]
    if "/" not in repository or not (first == "localhost" or "." in first or ":" in first):
        what = f"{repository}, the matrix's repository, names no registry to push to"
        fix = "imagefactory nightly --to ghcr.io/me/vllm, or --no-push; "
        fix += f"for Docker Hub, --to docker.io/{repository}"
        raise fail(InputError, "nightly-registry", what, fix=fix)


def _show_news(found: Found, *, json: bool) -> None:
    if json:
        errors = [problem.as_dict() for one in found.broken for problem in one.problems]
        ui.emit_json({"news": list(found.news), "broken": errors})
    for line in found.news if not json else ():
        ui.line(line)
    for problem in (problem for one in found.broken for problem in one.problems):
        ui.warn(str(problem))
    if not found.news:
        ui.say("nothing is new upstream")
    if found.broken:
        raise typer.Exit(3)


def _as_dict(night: Night) -> dict[str, Any]:
    values = {**asdict(night), "began": night.began.isoformat(), "project": str(night.project)}
    return {**values, "state": night.state, "exit_code": night.exit_code}

"""The ``inspect`` command: shows what an image contains."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import opening, workflows
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, check_images, workspace_of
from imagefactory.inspecting import inspecting
from imagefactory.inspecting.anatomy import Anatomy
from imagefactory.planning.cell_plan import LABEL
from imagefactory.reporting import reporting
from imagefactory.system import ui
from imagefactory.verifying.receipt import Outcome, Receipt

EXAMPLE = "Example: imagefactory inspect imagefactory/vllm:gb10-vllm0.22.1 --html image.html"

app = typer.Typer(add_completion=False)


@app.command("inspect", epilog=EXAMPLE)
def inspect_command(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="An image in the engine.")],
    file: File = HERE,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write all that is known of it as a page."),
    ] = None,
    json: Json = False,
) -> None:
    """Show an image's pins, patches, layers, biggest packages and verification result.

    The page of --html also has every check with its evidence, the GPU code if its cell was audited,
    and what changed since the last image of its cell. It is one file, and needs no network.
    """
    check_images(tag)
    workspace = workspace_of(file)
    engine = opening.connect(workspace)
    found = inspecting.look(engine, tag)
    verified = opening.receipts(workspace).load(found.digest)
    if html:
        facts = workflows.gather(workspace, engine, found, datetime.now(UTC))
        reporting.write(html, facts, workspace.settings.cache / "templates")
    if json:
        ui.emit_json({**found.as_dict(), "receipt": verified.as_dict() if verified else None})
        return
    _facts(found, verified)
    tables.layers("layers", found.layers)
    if found.dropped:
        shown = [[one.layer, one.rule, str(one.files), ui.size(one.size)] for one in found.dropped]
        ui.table("left out", ["layer", "rule", "files", "size"], shown)
    biggest = workflows.biggest(workspace, found)
    if biggest:
        rows = [[name, version, ui.size(size)] for name, version, size in biggest]
        ui.table("biggest wheels", ["package", "version", "compressed"], rows)


def _facts(found: Anatomy, verified: Receipt | None) -> None:
    is_ours = f"{LABEL}.build-key" in found.labels
    pins = {
        key.removeprefix(f"{LABEL}.pin."): v
        for key, v in found.labels.items()
        if key.startswith(f"{LABEL}.pin.")
    }
    rows = [
        ["digest", found.digest],
        ["platform", found.platform],
        ["size", "unknown" if found.size is None else f"{ui.size(found.size)} unpacked"],
    ]
    if is_ours:
        unknown = f"unknown: {found.unknown}" if found.unknown else ""
        patches = ", ".join(f"{name} ({state})" for name, state in found.patches.items())
        rows += [
            ["cell", found.labels.get(f"{LABEL}.cell", "")],
            ["pins", ", ".join(f"{name} {version}" for name, version in pins.items())],
            ["torch", found.labels.get(f"{LABEL}.torch", "")],
            ["patches", unknown or patches or "none"],
            ["packages", unknown or str(len(found.packages))],
            ["build key", found.labels[f"{LABEL}.build-key"]],
        ]
    else:
        rows.append(["built by", "not by imagefactory: it has no build key"])
    rows.append(["verified", _verified(verified)])
    ui.table(found.ref, ["", ""], [[name, text] for name, text in rows])


def _verified(verified: Receipt | None) -> str:
    if verified is None:
        return "never, on this machine"
    counts = {
        outcome: sum(check.outcome is outcome for check in verified.checks) for outcome in Outcome
    }
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    return f"{verified.verified_at}: {'passed' if verified.passed else 'failed'} ({summary})"

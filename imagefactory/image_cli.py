"""The commands that look at images: inspect, diff and rebuild."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from imagefactory import anatomy, filetree, rebuild, receipt, ui
from imagefactory.anatomy import Anatomy, Layer
from imagefactory.engine import Engine
from imagefactory.filetree import FileChange
from imagefactory.options import HERE, File, Json, engine_of, workspace_of
from imagefactory.plan import LABEL
from imagefactory.receipt import Outcome, Receipt

MANIFEST = "/opt/imagefactory/manifest.json"
#: As many packages as tell what an image is heavy with.
BIGGEST = 10
#: As many files as a person reads.
MOST_FILES = 50


def look(engine: Engine, ref: str) -> Anatomy:
    """The anatomy of an image in the engine. Raises CheckFailedError if there is none of that name."""
    image = engine.inspect_image(ref)
    manifest = _manifest(engine, ref) if f"{LABEL}.build-key" in image.labels else {}
    return Anatomy(
        ref=ref,
        digest=image.digest,
        platform=image.platform,
        labels=image.labels,
        env=image.env,
        layers=anatomy.layers_of(image.layers, engine.history(ref), anatomy.copies(manifest)),
        packages={wheel["name"]: wheel["version"] for wheel in manifest.get("wheels", ())},
        patches={patch["name"]: patch["state"] for patch in manifest.get("patches", ())},
        hashes={wheel["name"]: wheel["sha256"] for wheel in manifest.get("wheels", ())},
        dropped=anatomy.dropped_of(manifest),
    )


def _manifest(engine: Engine, ref: str) -> Mapping[str, Any]:
    text = engine.read_file(ref, MANIFEST)
    found = jsonlib.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def inspect_command(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="An image in the engine.")],
    file: File = HERE,
    json: Json = False,
) -> None:
    """What an image is made of: pins, patches, layers, biggest packages, and which checks held."""
    workspace = workspace_of(file)
    engine = engine_of(workspace.settings)
    found = look(engine, tag)
    verified = receipt.load(workspace.settings.receipts, found.digest)
    if json:
        ui.emit_json({**found.as_dict(), "receipt": verified.as_dict() if verified else None})
        return
    _facts(found, verified)
    _layers("layers", found.layers)
    lock = workspace.lock if workspace.lock_file.exists() else None
    if found.dropped:
        shown = [[one.layer, one.rule, str(one.files), _gb(one.size)] for one in found.dropped]
        ui.table("left out", ["layer", "what", "files", "bytes"], shown)
    sizes = {wheel.sha256: wheel.size for wheel in lock.all_wheels()} if lock else {}
    biggest = anatomy.biggest(found, sizes, BIGGEST)
    if biggest:
        rows = [[name, version, _gb(size)] for name, version, size in biggest]
        ui.table("biggest wheels", ["package", "version", "compressed"], rows)


def _facts(found: Anatomy, verified: Receipt | None) -> None:
    made = f"{LABEL}.build-key" in found.labels
    pins = {key.removeprefix(f"{LABEL}.pin."): v for key, v in found.labels.items() if key.startswith(f"{LABEL}.pin.")}
    rows = [["digest", found.digest], ["platform", found.platform], ["size", f"{_gb(found.size)} unpacked"]]
    if made:
        rows += [
            ["cell", found.labels.get(f"{LABEL}.cell", "")],
            ["pins", ", ".join(f"{name} {version}" for name, version in pins.items())],
            ["torch", found.labels.get(f"{LABEL}.torch", "")],
            ["patches", ", ".join(f"{name} ({state})" for name, state in found.patches.items()) or "none"],
            ["packages", str(len(found.packages))],
            ["build key", found.labels[f"{LABEL}.build-key"]],
        ]
    else:
        rows.append(["made by", "not by imagefactory: it has no build key"])
    rows.append(["verified", _verified(verified)])
    ui.table(found.ref, ["", ""], [[name, ui.escape(text)] for name, text in rows])


def _verified(verified: Receipt | None) -> str:
    if verified is None:
        return "never, on this machine"
    counts = {outcome: sum(check.outcome is outcome for check in verified.checks) for outcome in Outcome}
    told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    return f"{verified.verified_at}: {'passed' if verified.passed else 'NOT passed'} ({told})"


def _layers(title: str, layers: Sequence[Layer]) -> None:
    ui.table(title, ["digest", "holds", "unpacked"], [[one.digest[:19], one.purpose, _gb(one.size)] for one in layers])


def _gb(size: int) -> str:
    """Bytes for people, as Docker writes them."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def diff_command(
    old: Annotated[str, typer.Argument(metavar="A", help="The image that one has.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The image that one may get.")],
    file: File = HERE,
    files: Annotated[bool, typer.Option("--files", help="File by file too; reads both images whole.")] = False,
    sent: Annotated[
        bool, typer.Option("--bytes", help="What would move as compressed bytes too; reads both images whole.")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if anything is different.")] = False,
    json: Json = False,
) -> None:
    """What an upgrade from A to B changes: pins, packages, patches, settings, files, and what would move."""
    workspace = workspace_of(file)
    engine = engine_of(workspace.settings)
    found = anatomy.compare(look(engine, old), look(engine, new), pin_prefix=f"{LABEL}.pin.")
    changed = filetree.compare(*rebuild.trees(engine, (old, new))) if files and found.moved else []
    blobs = _blobs(engine, old, new) if sent and found.moved else 0 if sent else None
    if json:
        ui.emit_json({**found.as_dict(), "files": [one.as_dict() for one in changed], "bytes_sent": blobs})
    elif not found.changes and not found.moved:
        ui.say("the same, layer by layer")
    else:
        rows = [[one.kind, one.name, ui.escape(one.old) or "-", ui.escape(one.new) or "-"] for one in found.changes]
        ui.table(f"{old} -> {new}", ["", "what", "old", "new"], rows)
        _layers("layers that would move", found.moved)
        _files(changed)
        compressed = "" if blobs is None else f", {_gb(blobs)} compressed"
        ui.say(f"{len(found.shared)} layers are shared; {_gb(found.bytes_moved)} (unpacked{compressed}) would move")
    if exit_code and (found.changes or found.moved):
        raise typer.Exit(1)


def _blobs(engine: Engine, old: str, new: str) -> int:
    """Compressed bytes of what ``new`` has and ``old`` has not."""
    had = engine.blobs(old)
    return sum(size for digest, size in engine.blobs(new).items() if digest not in had)


def _files(changes: Sequence[FileChange]) -> None:
    if changes:
        rows = [[ui.escape(c.path), c.what, _gb(c.old_size), _gb(c.new_size)] for c in changes[:MOST_FILES]]
        ui.table(f"{len(changes)} files differ", ["file", "what", "old", "new"], rows)
    if len(changes) > MOST_FILES:
        ui.say(f"the first {MOST_FILES} of {len(changes)} files; --json names all of them")


def rebuild_command(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="An image in the engine.")],
    file: File = HERE,
    diff: Annotated[bool, typer.Option("--diff", help="If it differs, show what: file by file.")] = False,
    with_base: Annotated[
        bool,
        typer.Option("--with-base", help="Install the base's packages again too; the distribution's archive moves."),
    ] = False,
    json: Json = False,
) -> None:
    """Build an image once more from nothing, and hold it against the one that is there; exit 1 if it is another."""
    workspace = workspace_of(file)
    engine = engine_of(workspace.settings)
    image = engine.inspect_image(tag)
    plan = rebuild.plan_of(workspace, image, engine)
    done = rebuild.rebuild(workspace, engine, image, plan, bases=with_base, files=diff)
    if json:
        ui.emit_json(done.as_dict())
    elif done.same:
        ui.out.print(f"[green]the same[/green]: built again, {tag} is {done.new}")
    else:
        _show_rebuilt(done)
    if not done.same:
        raise typer.Exit(1)


def _show_rebuilt(done: rebuild.Rebuilt) -> None:
    ui.out.print(f"[red]different[/red]: {done.tag} is {done.old}, built again it is {done.new}")
    rows = [[str(place), old[:19], new[:19]] for place, old, new in done.layers]
    ui.table("layers that differ", ["place", "there", "built again"], rows)
    if not done.layers:
        ui.say("all layers are equal: the difference is in the image's settings or its manifest (imagefactory diff)")
    _files(done.files or ())
    if done.fingerprints:
        same = done.fingerprints[0] == done.fingerprints[1]
        ui.say(f"contents without dates are {'the same' if same else 'different'}: {' and '.join(done.fingerprints)}")

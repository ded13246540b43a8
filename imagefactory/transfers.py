"""Workflows that move verified images between machines: in files, or over ssh."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from imagefactory import opening, pipeline
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, fail
from imagefactory.matrix.select import select
from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import sbom, tags, vouching
from imagefactory.system import reference as references
from imagefactory.system.engine import Engine, ImageInfo, RemoteEngine, check_host, client
from imagefactory.system.registry import Registries
from imagefactory.transport import distributing, pulling, saving, transport
from imagefactory.transport.distributing import Delivered
from imagefactory.transport.pulling import Stored
from imagefactory.transport.saving import Papers
from imagefactory.transport.transport import Loaded
from imagefactory.verifying.receipt_store import Found, ReceiptStore
from imagefactory.workspace import Workspace


def save(
    workspace: Workspace, target: Path, names: Sequence[str], selection: Sequence[str]
) -> tuple[ImageInfo, ...]:
    """Write verified images, their receipts and SBOMs to an OCI layout."""
    wanted = _wanted(workspace, names, selection)
    engine = opening.connect(workspace)
    ready = _verified(wanted, engine, opening.receipts(workspace), "save")
    images = [image for image, _ in ready]
    plans = pipeline.expected_by_tag(workspace, wanted, engine)
    with transport.reading(engine, images, workspace.settings.cache) as found:
        papers = {}
        for (image, receipt), one in zip(ready, found, strict=True):
            plan = plans.get(image.ref)
            current = plan and plan.build_key == image.labels.get(f"{LABEL}.build-key")
            listed = sbom.make(plan, one.digest) if plan and current else None
            papers[one.digest] = Papers(receipt=receipt.content, sbom=listed)
        saving.save(found, papers, target)
    return tuple(images)


def load(workspace: Workspace, source: Path) -> tuple[Loaded, ...]:
    """Load the images of an OCI layout, once all of their blobs were compared with their digests.

    Their receipts are kept, if they count here.
    """
    receipts = opening.receipts(workspace)
    saved = saving.read(source)
    return transport.load(opening.connect(workspace), saved, source, receipts)


def distribute(
    workspace: Workspace, hosts: Sequence[str], names: Sequence[str], selection: Sequence[str]
) -> tuple[Delivered, ...]:
    """Send verified images to the engines of other machines, which get only what they lack."""
    for host in hosts:
        check_host(host)
    wanted = _wanted(workspace, names, selection)
    engine = opening.connect(workspace)
    ready = _verified(wanted, engine, opening.receipts(workspace), "distribute")
    images = [image for image, _ in ready]
    with transport.reading(engine, images, workspace.settings.cache) as found:
        return distributing.distribute(found, list(dict.fromkeys(hosts)))


def distribute_from_registry(
    workspace: Workspace,
    hosts: Sequence[str],
    source: str,
    names: Sequence[str],
    selection: Sequence[str],
) -> tuple[Delivered, ...]:
    """Let other machines pull verified images from a registry: each only what it lacks.

    ``source`` is an image there, or a repository that has the images that are named.
    """
    from imagefactory.verifying import check_registry  # noqa: PLC0415 - imports NumPy and requests

    for host in hosts:
        check_host(host)
    registries, receipts = Registries(), opening.receipts(workspace)
    ready: list[Stored] = []
    problems: list[Problem] = []
    for repository, wanted in _in_registry(workspace, source, names, selection):
        try:
            one = pulling.read(registries, repository, wanted)
            found = vouching.candidates(one.image, registries, receipts)
            vouching.judge(one.image, found, check_registry.requirements, "distribute")
            ready.append(one)
        except CheckFailedError as error:
            problems += error.problems
    if problems:
        raise CheckFailedError(problems)
    binary = client(os.environ, workspace.settings.state)
    connect = partial(RemoteEngine, binary=binary)
    return pulling.distribute(ready, list(dict.fromkeys(hosts)), connect)


def _in_registry(
    workspace: Workspace, source: str, names: Sequence[str], selection: Sequence[str]
) -> list[tuple[str, str]]:
    """Repository and tag or digest of what is wanted. Raises InputError."""
    parts = references.parse(source)
    if not (parts.tag or parts.digest):
        wanted = _wanted(workspace, names, selection)
        return [(source, name.rpartition(":")[2]) for name in wanted]
    if names or selection:
        what = f"{source} is one image, and others are named, too"
        fix = f"name the repository: --from-registry {source.partition('@')[0].rpartition(':')[0]}"
        raise fail(InputError, "images-unnamed", what, fix=fix)
    return [vouching.reference_of(source, "")]


def _wanted(workspace: Workspace, names: Sequence[str], selection: Sequence[str]) -> list[str]:
    """The tags of the images that are named, and of the cells that are selected."""
    found = [*names]
    if selection:
        cells = select(opening.declared(workspace).cells, selection)
        found += [cell.tag for cell in cells]
    if not found:
        fix = "name tags, or cells with --select; imagefactory plan lists both"
        raise fail(InputError, "images-unnamed", "no image is named", fix=fix)
    return list(dict.fromkeys(found))


def _verified(
    wanted: Sequence[str], engine: Engine, receipts: ReceiptStore, action: str
) -> list[tuple[ImageInfo, Found]]:
    """The images, each with the receipt that vouches for it.

    Raises CheckFailedError naming all that are missing, foreign or not verified.
    """
    from imagefactory.verifying import check_registry  # noqa: PLC0415 - imports NumPy and requests

    there = engine.find_images(wanted)
    ready: list[tuple[ImageInfo, Found]] = []
    problems: list[Problem] = []
    for name in wanted:
        try:
            image = _image(name, there.get(name), action)
            subject = vouching.of_engine(image, name.rpartition(":")[0])
            own = [*vouching.own(subject, receipts)]
            needed = check_registry.requirements
            ready.append((image, vouching.judge(subject, own, needed, action)))
        except FactoryError as error:
            problems += error.problems
    if problems:
        raise CheckFailedError(problems)
    return ready


def _image(name: str, found: ImageInfo | None, action: str) -> ImageInfo:
    if found is None:
        what, fix = f"the engine has no image {name}", "imagefactory build --matrix, or pull it"
        raise fail(CheckFailedError, "image-missing", what, fix=fix)
    if tags.of_labels(found.labels) is None:
        what = f"{name} is no image that imagefactory made: its labels are incomplete"
        fix = "docker save, or docker push to a registry, moves any image"
        raise fail(CheckFailedError, f"{action}-foreign", what, fix=fix)
    return found

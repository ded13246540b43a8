"""Checks what this machine offers for building, and how to fix what it lacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import requests

from imagefactory.errors import SetupError
from imagefactory.locking.debian import archive
from imagefactory.matrix import cell_rules
from imagefactory.matrix.matrix import Matrix
from imagefactory.planning.image_config import LABEL
from imagefactory.settings import Settings
from imagefactory.system import temporary, web
from imagefactory.system.engine import ContainerMemory, Engine
from imagefactory.system.platforms import Platform
from imagefactory.upkeep import spark
from imagefactory.upkeep.finding import Finding, Health, of

GIB = 1024**3
#: A CUDA cell is about 10 GB unpacked, and a build stores it in up to three forms.
ROOM_FOR_A_CELL = 35 * GIB


def examine(
    settings: Settings, environ: Mapping[str, str], matrix: Matrix | None = None
) -> list[Finding]:
    """Run all checks, with the cells of ``matrix`` in mind; problems are returned, not raised."""
    try:
        engine: Engine | None = Engine.connect(environ, settings.state)
    except SetupError:
        engine = None
    checks: list[Callable[[], list[Finding]]] = [
        lambda: _engine(engine),
        lambda: _emulation(engine),
        lambda: _disk(engine, settings),
        lambda: _leftovers(engine, settings),
        lambda: _indexes(settings),
        lambda: _wheel_folders(settings),
        lambda: _archives(settings),
        lambda: _old_images(engine, matrix),
        _gpu,
        lambda: spark.examine(spark.Machine(), drivers(matrix), lambda: _containers(engine)),
    ]
    return [finding for check in checks for finding in check()]


def _engine(engine: Engine | None) -> list[Finding]:
    if engine is None:
        return [
            Finding(
                name="engine",
                health=Health.BAD,
                seen="no container engine answers",
                remedy="start Docker, or a private engine: imagefactory engine up",
            )
        ]
    server, buildx = engine.version
    kind = "private engine of imagefactory" if engine.private else "the machine's own"
    return [
        Finding(name="engine", health=Health.GOOD, seen=f"Docker {server}, {kind}"),
        Finding(name="buildx", health=Health.GOOD, seen=buildx),
    ]


def _emulation(engine: Engine | None) -> list[Finding]:
    if engine is None:
        return []
    return [
        Finding(name=f"runs {platform}", health=Health.GOOD, seen="natively or through binfmt_misc")
        if engine.emulates(platform)
        else Finding(
            name=f"runs {platform}",
            health=Health.NOTE,
            seen="not on this machine, so its images are built here, but verified elsewhere",
            remedy="imagefactory engine up, or install qemu-user-static binfmt-support",
        )
        for platform in Platform
    ]


def _disk(engine: Engine | None, settings: Settings) -> list[Finding]:
    root = Path(engine.data_root) if engine else settings.state
    while not root.exists():
        root = root.parent
    free = shutil.disk_usage(root).free
    seen = f"{free / GIB:.0f} GiB free at {root}"
    if free >= ROOM_FOR_A_CELL:
        return [Finding(name="disk", health=Health.GOOD, seen=seen)]
    remedy = f"building a CUDA cell takes {ROOM_FOR_A_CELL / GIB:.0f} GiB: imagefactory prune"
    return [Finding(name="disk", health=Health.NOTE, seen=seen, remedy=remedy)]


def _leftovers(engine: Engine | None, settings: Settings) -> list[Finding]:
    """What killed runs left behind; nothing if there is none."""
    try:
        containers = engine.orphans() if engine else []
    except SetupError as error:
        seen = f"unknown: {error.problems[0].what}"
        return [Finding(name="leftovers", health=Health.NOTE, seen=seen)]
    folders = temporary.orphans(settings.cache)
    if not containers and not folders:
        return []
    seen = f"{len(containers)} containers and {len(folders)} folders of runs that were killed"
    remedy = "the next build or verify removes them; so does imagefactory prune"
    return [Finding(name="leftovers", health=Health.NOTE, seen=seen, remedy=remedy)]


def _indexes(settings: Settings) -> list[Finding]:
    findings = []
    for index in settings.indexes:
        if not index.startswith("http"):
            continue
        try:
            answer = requests.get(
                f"{index.rstrip('/')}/pip/",
                timeout=20,
                stream=True,
                auth=settings.account_for(index),
            )
            problem = "" if answer.ok else f"HTTP {answer.status_code}"
            answer.close()
        except requests.RequestException as error:
            problem = type(error).__name__
        shown = index.partition("://")[2]
        if problem:
            remedy = "check the network and SSL_CERT_FILE, or set UV_DEFAULT_INDEX to another index"
            findings.append(
                Finding(name="index", health=Health.BAD, seen=f"{shown}: {problem}", remedy=remedy)
            )
        else:
            findings.append(Finding(name="index", health=Health.GOOD, seen=f"{shown} answers"))
    return findings


def _wheel_folders(settings: Settings) -> list[Finding]:
    findings = []
    for folder in settings.find_links:
        count = len(list(folder.glob("*.whl")))
        seen = f"{folder} has {count} wheel{'' if count == 1 else 's'}"
        findings.append(Finding(name="wheel folder", health=Health.GOOD, seen=seen))
    return findings


def _archives(settings: Settings) -> list[Finding]:
    """Whether Debian's archives answer: bases are locked and downloaded from there."""
    findings = []
    for name in dict.fromkeys(one for one, _ in archive.DISTRIBUTIONS["debian"].parts):
        url = archive.mirror(name, settings.debian)
        if web.is_up(f"{url}/"):
            findings.append(Finding(name=name, health=Health.GOOD, seen=f"{url} answers"))
        else:
            remedy = "set IMAGEFACTORY_DEBIAN_MIRROR and IMAGEFACTORY_DEBIAN_SECURITY_MIRROR"
            seen = f"{url} does not answer, so only packages in the cache or in folders are found"
            findings.append(Finding(name=name, health=Health.NOTE, seen=seen, remedy=remedy))
    for folder in settings.debian.folders:
        count = len(list(folder.glob("*.deb")))
        seen = f"{folder} has {count} Debian package{'' if count == 1 else 's'}"
        findings.append(Finding(name="package folder", health=Health.GOOD, seen=seen))
    return findings


def _old_images(engine: Engine | None, matrix: Matrix | None) -> list[Finding]:
    """Images of the matrix's repository that no cell has any more; nothing if there is none."""
    if engine is None or matrix is None:
        return []
    wanted = {tag for cell in matrix.cells for tag in cell.tags}
    try:
        images = engine.find_images([*engine.names(matrix.repository), *wanted])
    except SetupError as error:
        return [of("old images", "unknown", error.problems[0].what)]
    current = {images[tag].digest for tag in wanted & {*images}}
    old = {
        image.digest: image.size
        for image in images.values()
        if f"{LABEL}.build-key" in image.labels and image.digest not in current
    }
    if not old:
        return []
    seen = f"{len(old)} of no cell, up to {sum(old.values()) / GIB:.0f} GiB"
    return [of("old images", seen, "imagefactory prune shows and removes them")]


def drivers(matrix: Matrix | None) -> dict[str, str]:
    """What needs a driver, and the oldest one for it: the cells of ``matrix``, or CUDA itself."""
    if matrix is None:
        oldest, driver = next(iter(cell_rules.drivers().items()))
        return {f"CUDA {oldest}": driver}
    found: dict[str, str] = {}
    for cell in matrix.cells:
        if required := cell_rules.required_driver(cell):
            found[f"CUDA {cell.axes['cuda']}"] = required
        if "cuda" in cell.axes and cell.flavor.driver:
            found[f"flavor {cell.flavor.name}"] = cell.flavor.driver
    return found


def _containers(engine: Engine | None) -> Sequence[ContainerMemory]:
    with suppress(SetupError):
        return engine.memory_in_use() if engine else ()
    return ()


def _gpu() -> list[Finding]:
    fields = "--query-gpu=name,driver_version,compute_cap"
    written = spark.nvidia_smi(fields, "--format=csv,noheader")
    if written is None:
        return [
            Finding(
                name="gpu",
                health=Health.NOTE,
                seen=f"no NVIDIA driver on this {os.uname().machine} machine",
                remedy="not needed to build; checks that need a GPU are skipped",
            )
        ]
    return [
        Finding(name="gpu", health=Health.GOOD, seen=line.strip())
        for line in written.splitlines()
        if line.strip()
    ]

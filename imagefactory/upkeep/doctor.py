"""Checks what this machine offers for building, and how to fix what it lacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import requests

from imagefactory.errors import SetupError
from imagefactory.locking.debian import archive
from imagefactory.settings import Settings
from imagefactory.system import shell, web
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform

GIB = 1024**3
#: A CUDA cell is about 10 GB unpacked, and a build stores it in up to three forms.
ROOM_FOR_A_CELL = 35 * GIB


class Health(StrEnum):
    """The severity of a finding; only BAD makes doctor exit with 3."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, and the remedy if it is not good."""

    name: str
    health: Health
    seen: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as plain JSON values."""
        return asdict(self)


def examine(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks; problems are returned, not raised."""
    try:
        engine: Engine | None = Engine.connect(environ, settings.state)
    except SetupError:
        engine = None
    checks: list[Callable[[], list[Finding]]] = [
        lambda: _engine(engine),
        lambda: _emulation(engine),
        lambda: _disk(engine, settings),
        lambda: _indexes(settings),
        lambda: _wheel_folders(settings),
        lambda: _archives(settings),
        _gpu,
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
    for name in archive.ARCHIVES:
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


def _gpu() -> list[Finding]:
    try:
        argv = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,compute_cap",
            "--format=csv,noheader",
        ]
        done = shell.run(argv, quiet=True, timeout=30)
    except SetupError:
        done = None
    if done is None or not done.ok:
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
        for line in done.out.splitlines()
        if line.strip()
    ]

"""Adapter for base images.

By digest from a registry, or bootstrapped from the Debian archive and swapped in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagefactory.errors import SetupError, fail
from imagefactory.matrix.cell import Base, Cell
from imagefactory.planning.cell_plan import BaseImage
from imagefactory.system import shell, ui
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform


def bootstrap_tag(base: Base, platform: Platform) -> str:
    """The local image that stands in for ``base`` where no registry answers."""
    return f"imagefactory/bootstrap:{base.suite}-{platform.arch}"


def unresolved(base: Base, platform: Platform) -> BaseImage:
    """A base of which nothing but its declaration is known: there is no engine to ask."""
    return BaseImage(
        base=base,
        platform=platform,
        reference=base.image,
        digest=None,
        origin="unresolved",
        swap=None,
    )


def look(engine: Engine, base: Base, platform: Platform, known: Path) -> BaseImage:
    """The base as it is now, without making or pulling anything.

    Its origin is ``unresolved`` if it exists neither here nor, as far as is known, in a registry.

    ``known`` is a JSON file of registry digests seen before, so that planning asks the network only
    once.
    """
    if "@sha256:" in base.image:
        digest = base.image.partition("@")[2]
        return BaseImage(
            base=base,
            platform=platform,
            reference=base.image,
            digest=digest,
            origin="registry",
            swap=None,
        )
    if base.suite:
        tag = bootstrap_tag(base, platform)
        local = engine.find_images([tag]).get(tag)
        if local:
            return BaseImage(
                base=base,
                platform=platform,
                reference=base.image,
                digest=f"sha256:{hashlib.sha256(' '.join(local.layers).encode()).hexdigest()}",
                origin="bootstrap",
                swap=f"docker-image://{tag}",
            )
    seen = _read(known).get(base.image)
    if seen:
        reference = f"{base.image}@{seen}"
        return BaseImage(
            base=base,
            platform=platform,
            reference=reference,
            digest=seen,
            origin="registry",
            swap=None,
        )
    return unresolved(base, platform)


def look_all(
    cells: Iterable[Cell], platforms: Iterable[Platform], engine: Engine | None, known: Path
) -> dict[tuple[str, Platform], BaseImage]:
    """The bases of ``cells`` for their own platforms and for ``platforms``, as they are now."""
    wanted = _wanted(cells, platforms)

    def one(key: tuple[str, Platform]) -> BaseImage:
        base = wanted[key]
        return look(engine, base, key[1], known) if engine else unresolved(base, key[1])

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(wanted, pool.map(one, wanted), strict=True))


def ensure_all(
    cells: Iterable[Cell],
    platforms: Iterable[Platform],
    engine: Engine,
    *,
    known: Path,
    project: Path,
) -> dict[tuple[str, Platform], BaseImage]:
    """Like ``look_all``, with every base made that is missing. Raises SetupError as ``ensure``."""
    return {
        key: ensure(engine, base, key[1], known=known, project=project)
        for key, base in _wanted(cells, platforms).items()
    }


def _wanted(
    cells: Iterable[Cell], platforms: Iterable[Platform]
) -> dict[tuple[str, Platform], Base]:
    also = tuple(platforms)
    return {
        (cell.flavor.base.name, platform): cell.flavor.base
        for cell in cells
        for platform in (cell.platform, *also)
    }


def ensure(
    engine: Engine, base: Base, platform: Platform, *, known: Path, project: Path
) -> BaseImage:
    """The base, found or made: what is there, else the registry's, else bootstrapped from the
    Debian archive.

    Raises SetupError if none of them works.
    """
    found = look(engine, base, platform, known)
    if found.origin != "unresolved":
        return found
    digest, why = _ask_registry(engine, base.image)
    if digest:
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(
            json.dumps({**_read(known), base.image: digest}, indent=1) + "\n", encoding="utf-8"
        )
        return look(engine, base, platform, known)
    if base.suite is None:
        raise fail(
            SetupError,
            "base-unreachable",
            f"{base.image} cannot be pulled ({why}), and it has no bootstrap suite",
            where=base.name,
            fix="make its registry reachable, or choose a base with `bootstrap:` in matrix.yaml",
        )
    ui.warn(
        f"{base.image} cannot be pulled ({why}): making it from the Debian archive "
        f"({base.suite}) instead"
    )
    with ui.step(f"bootstrapping {base.suite} for {platform}"):
        argv = [
            str(project / "scripts" / "bootstrap-base"),
            base.suite,
            platform.arch,
        ]
        done = shell.run(argv, env=engine.environment)
    if not done.ok:
        last = (done.err or done.out).strip().splitlines()[-3:]
        raise fail(
            SetupError,
            "base-bootstrap",
            f"bootstrapping {base.suite} for {platform} failed: {' / '.join(last)}",
            fix=f"run {shell.show(argv)} by hand; imagefactory doctor checks what it needs",
        )
    return look(engine, base, platform, known)


def _ask_registry(engine: Engine, image: str) -> tuple[str | None, str]:
    """The digest that a registry has for ``image``, or None and why there is none."""
    try:
        found = engine.registries.manifest(image)
    except SetupError as error:
        return None, error.problems[0].what
    return (found.digest, "") if found else (None, "its registry has no such image")


def _read(known: Path) -> dict[str, str]:
    try:
        data = json.loads(known.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}

"""Turns the entries of a matrix file into bases, flavors and toolchains. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.matrix.build_schema import BuildEntry, ExtraEntry
from imagefactory.matrix.cell import Base, Extra, Flavor, SourceBuild, Toolchain
from imagefactory.matrix.schema import BaseEntry, FlavorEntry, MatrixFile
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Loc, Location, Positions


def flavor(file: MatrixFile, name: str, positions: Positions) -> Flavor:
    """The flavor ``name`` of ``file``, with its base; both must exist."""
    entry: FlavorEntry = file.flavors[name]
    loc: Loc = ("flavors", name)
    return Flavor(
        name=name,
        summary=entry.summary,
        base=_base(file, entry.base, positions),
        requirements=tuple(entry.requirements),
        patches=tuple(entry.patches),
        env=dict(entry.env),
        serve_args=tuple(entry.serve_args),
        driver=entry.driver,
        toolchain=entry.toolchain,
        location=positions.locate(loc, "flavors"),
        build=_build(entry.build, positions.locate((*loc, "build"), "flavors")),
        indexes=dict(entry.indexes),
        extras=tuple(
            _extra(key, entry.extras[key], _locate((*loc, "extras", key), positions))
            for key in sorted(entry.extras)
        ),
        locations={
            **_of_scalars(loc, ("base", "driver", "toolchain"), positions),
            **_of_items(loc, "requirements", entry.requirements, positions),
            **_of_items(loc, "patches", entry.patches, positions),
            **_of_items(loc, "serve_args", entry.serve_args, positions),
            **{("env", key): _locate((*loc, "env", key), positions) for key in entry.env},
            **{
                ("indexes", key): _locate((*loc, "indexes", key), positions)
                for key in entry.indexes
            },
        },
    )


def _base(file: MatrixFile, name: str, positions: Positions) -> Base:
    entry: BaseEntry = file.bases[name]
    loc: Loc = ("bases", name)
    suite = entry.suite or entry.bootstrap
    return Base(
        name=name,
        image=entry.image or f"debian:{suite}",
        suite=suite,
        python=entry.python,
        glibc=entry.glibc,
        packages=tuple(sorted(set(entry.packages))),
        cuda_home=entry.cuda_home,
        path=tuple(entry.path),
        locations={
            **_of_scalars(loc, ("image", "suite", "cuda_home", "path"), positions),
            **_of_items(loc, "packages", entry.packages, positions),
        },
    )


def _build(entry: BuildEntry | None, location: Location) -> SourceBuild | None:
    if entry is None:
        return None
    return SourceBuild(
        binaries=entry.binaries,
        tools=entry.tools,
        location=location,
        extensions=tuple(entry.extensions),
        sources=dict(entry.sources),
    )


def _extra(name: str, entry: ExtraEntry, location: Location) -> Extra:
    return Extra(
        name=name,
        source=entry.source,
        tools=entry.tools,
        location=location,
        folder=(entry.folder or "").strip("/"),
        setup=entry.setup,
        env=dict(entry.env),
        sources=dict(entry.sources),
    )


def toolchains(file: MatrixFile, positions: Positions) -> tuple[Toolchain, ...]:
    """The toolchains that the file declares."""
    return tuple(
        Toolchain(
            name=name,
            requirements=tuple(sorted(entry.requirements)),
            platforms=tuple(Platform(name) for name in entry.platforms),
            location=positions.locate(("toolchains", name), "toolchains"),
        )
        for name, entry in file.toolchains.items()
    )


def _of_scalars(
    loc: Loc, keys: Iterable[str], positions: Positions
) -> dict[tuple[str, str], Location]:
    return {(key, ""): _locate((*loc, key), positions) for key in keys}


def _of_items(
    loc: Loc, key: str, items: Iterable[str], positions: Positions
) -> dict[tuple[str, str], Location]:
    return {
        (key, item): _locate((*loc, key, number), positions) for number, item in enumerate(items)
    }


def _locate(loc: Loc, positions: Positions) -> Location:
    """Where a value is set: its section names the entry, which may be one that is extended."""
    section, entry, *_ = positions.inherited.get(loc, loc)
    return positions.locate(loc, f"{section}.{entry}")

"""Where builds run: the engine, and the buildx builder that does the work if it is another one."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.errors import SetupError, fail
from imagefactory.matrix.cell import Cell
from imagefactory.system.engine import Builder, Engine
from imagefactory.system.platforms import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An engine, which keeps the images, and the builder, if it is not the engine's own."""

    engine: Engine
    builder: Builder | None = None

    @property
    def platform(self) -> Platform:
        """The build platform: the one on which build stages run."""
        return self.builder.platform if self.builder else self.engine.platform

    @property
    def builder_name(self) -> str | None:
        """The builder as buildx knows it; None for the engine's own."""
        return self.builder.name if self.builder else None

    def platform_for(self, cell: Cell) -> Platform:
        """The build platform for the wheel of ``cell``: the cell's own if anything is compiled.

        Raises SetupError if no node of the builder has it, for nothing is cross-compiled.
        """
        build, builder = cell.build, self.builder
        if build is None or not build.compiles:
            return self.platform
        if cell.platform in (builder.platforms if builder else (self.engine.platform,)):
            return cell.platform
        what = (
            f"{cell.name} is compiled on {cell.platform}, "
            f"and this builder's platform is {self.platform}"
        )
        fix = (
            "name one that has it: --builder NAME (docs/builders.md), "
            f"or run this on a {cell.platform} machine"
        )
        raise fail(SetupError, "builder-platform", what, where=str(build.location), fix=fix)

    @property
    def loads(self) -> bool:
        """Whether finished images are loaded into the engine: the builder has another store."""
        return self.builder is not None and self.builder.has_own_store


def find(engine: Engine, builder: str | None) -> Site:
    """The site of ``engine`` and the builder of that name, which is started if it is not running.

    Raises SetupError if there is no such builder, or it does not answer.
    """
    return Site(engine=engine, builder=engine.builder(builder) if builder else None)

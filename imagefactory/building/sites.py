"""Where builds run: the engine, and the buildx builders that do the work if they are others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from imagefactory.errors import Problem, SetupError, fail
from imagefactory.matrix.cell import Cell
from imagefactory.system import ui
from imagefactory.system.background import in_background
from imagefactory.system.engine import Builder, Engine
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An engine, which keeps the images, and builders, if it is not the engine's own."""

    engine: Engine
    builders: tuple[Builder, ...] = ()

    @property
    def builder(self) -> Builder | None:
        """The first builder; None for the engine's own."""
        return self.builders[0] if self.builders else None

    @property
    def platform(self) -> Platform:
        """The build platform: the one on which build stages run."""
        return self.builder.platform if self.builder else self.engine.platform

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """The build platforms of all builders."""
        return tuple(dict.fromkeys(site.platform for site in self.each()))

    @property
    def builder_name(self) -> str | None:
        """The builder as buildx knows it; None for the engine's own."""
        return self.builder.name if self.builder else None

    def each(self) -> tuple[Site, ...]:
        """A site for each of the builders."""
        return tuple(replace(self, builders=(one,)) for one in self.builders) or (self,)

    def for_wheel(self, cell: Cell, *, compiles: bool) -> Site:
        """The site that builds a wheel of ``cell``: the first that can."""
        if not compiles:
            return self.each()[0]
        return next((site for site in self.each() if cell.platform in site.natives), self)

    @property
    def natives(self) -> tuple[Platform, ...]:
        """What the nodes of the builder run natively."""
        return self.builder.platforms if self.builder else (self.engine.platform,)

    def platform_for(self, cell: Cell, where: Location, *, compiles: bool) -> Platform:
        """The build platform for a wheel of ``cell``: the cell's own if anything is compiled.

        Raises SetupError, with ``where`` the wheel is declared, if no node of the builder has it,
        for nothing is cross-compiled.
        """
        if not compiles:
            return self.platform
        if cell.platform in self.natives:
            return cell.platform
        what = (
            f"{cell.name} is compiled on {cell.platform}, "
            f"and this builder's platform is {self.platform}"
        )
        fix = (
            "name one that has it: --builder NAME (docs/builders.md), "
            f"or run this on a {cell.platform} machine"
        )
        raise fail(SetupError, "builder-platform", what, where=str(where), fix=fix)

    @property
    def loads(self) -> bool:
        """Whether finished images are loaded into the engine: the builder has another store."""
        return self.builder is not None and self.builder.has_own_store


def find(engine: Engine, names: Sequence[str]) -> Site:
    """The site of ``engine`` and the builders ``names``, which are started if they are not running.

    Raises SetupError if there is no such builder, or none of them answers. One of several that does
    not answer is left out with a warning.
    """
    asked = {name: in_background(engine.builder, name) for name in dict.fromkeys(names)}
    found: list[Builder] = []
    problems: dict[str, Problem] = {}
    for name, future in asked.items():
        try:
            found.append(future.result())
        except SetupError as error:
            problems[name] = error.problems[0]
    if problems and not (found and {*problems} <= {*engine.builder_names()}):
        raise SetupError(problems.values())
    for problem in problems.values():
        ui.warn(f"{problem.what}; the other builders get its cells")
    return Site(engine=engine, builders=tuple(found))

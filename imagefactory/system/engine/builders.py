"""Buildx builders, as ``docker buildx inspect`` describes them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagefactory.system import platforms
from imagefactory.system.platforms import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A builder.

    Attributes:
        name: as buildx knows it.
        driver: buildx's driver, such as ``docker``, ``docker-container`` or ``remote``.
        platforms: what its nodes run natively, one platform for each kind of node.
    """

    name: str
    driver: str
    platforms: tuple[Platform, ...]

    @property
    def platform(self) -> Platform:
        """The platform on which its build stages run."""
        return self.platforms[0]

    @property
    def has_own_store(self) -> bool:
        """Whether it has an image store of its own.

        Such a builder does not see the engine's images, and the images that it makes have to be
        loaded into the engine.
        """
        return self.driver != "docker"


def why_not(out: str, err: str) -> str:
    """Why a builder does not answer, as ``docker buildx inspect`` says: each node, or the whole."""
    nodes = re.findall(r"^Name:\s*(\S+)\n(?:(?!Name:).*\n)*?Error:\s*(.+)", out, re.MULTILINE)
    if nodes:
        return "; ".join(dict.fromkeys(f"{node}: {error}" for node, error in nodes))
    said = (err or out).strip().splitlines()
    return said[-1].removeprefix("ERROR: ") if said else "buildx wrote nothing"


def parse(name: str, text: str) -> Builder | None:
    """The builder that ``docker buildx inspect name`` describes; None if no node of it runs."""
    driver = re.search(r"^Driver:\s*(\S+)", text, re.MULTILINE)
    # a node lists its own platform first, then those that it emulates
    first = re.findall(r"^Platforms:\s*([^\s,*]+)", text, re.MULTILINE)
    natives = [found for platform in first if (found := platforms.parse(platform))]
    if driver is None or not natives:
        return None
    return Builder(name=name, driver=driver[1], platforms=tuple(dict.fromkeys(natives)))

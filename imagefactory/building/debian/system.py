"""A system that is being assembled: its packages and files, and what scripts registered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from imagefactory.building.debian.package import Package
from imagefactory.building.tree import Tree
from imagefactory.system.platforms import Platform

_LOADERS = {
    Platform.AMD64: "/lib64/ld-linux-x86-64.so.2",
    Platform.ARM64: "/lib/ld-linux-aarch64.so.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """Files of other packages for ``path`` go to ``to`` instead. Both begin with a slash."""

    path: str
    to: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What actions work on: ``tree`` and ``diversions`` are changed by them.

    ``packages`` are those that are installed, by name; ``present`` are the versions of those that
    an image has already; ``epoch`` is in seconds.
    """

    tree: Tree
    packages: Mapping[str, Package]
    platform: Platform
    suite: str
    epoch: int
    diversions: list[Diversion] = field(default_factory=list)
    present: Mapping[str, str] = field(default_factory=dict)

    @property
    def libc_bin(self) -> str | None:
        """The version of the package with ldconfig; None without it."""
        new = self.packages.get("libc-bin")
        return new.fields["Version"] if new else self.present.get("libc-bin")

    @property
    def names(self) -> dict[str, str]:
        """What the platform calls things: its multiarch triplet, and the dynamic linker."""
        return {
            "triplet": f"{self.platform.machine}-linux-gnu",
            "loader": _LOADERS[self.platform],
        }

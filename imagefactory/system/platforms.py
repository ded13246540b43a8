"""The platforms that images are for, by every name that the tools around them use. Pure."""

from __future__ import annotations

import os
from enum import StrEnum


class Platform(StrEnum):
    """An OCI platform (``os/architecture``); a plain string wherever one is expected."""

    AMD64 = "linux/amd64"
    ARM64 = "linux/arm64"

    @property
    def arch(self) -> str:
        """OCI's name of the architecture, which is Debian's too: ``arm64``."""
        return self.partition("/")[2]

    @property
    def machine(self) -> str:
        """What ``uname -m``, wheel tags and uv call it: ``aarch64``."""
        return {Platform.AMD64: "x86_64", Platform.ARM64: "aarch64"}[self]

    @property
    def emulator(self) -> str:
        """The name under which QEMU registers with binfmt_misc: ``qemu-aarch64``."""
        return f"qemu-{self.machine}"


def of_machine(machine: str) -> Platform | None:
    """The platform of a machine that calls itself so (``uname -m``); None for any other."""
    return next((platform for platform in Platform if platform.machine == machine), None)


def here() -> Platform | None:
    """The platform of this machine; None if images for it cannot be made."""
    return of_machine(os.uname().machine)


def parse(name: str) -> Platform | None:
    """The platform of an OCI name, with or without a variant (``linux/arm64/v8``).

    None for any other.
    """
    bare = "/".join(name.split("/")[:2])
    return Platform(bare) if bare in set(Platform) else None


def is_native(name: str) -> bool:
    """Whether this machine runs programs for the OCI platform ``name`` without emulation."""
    return parse(name) is not None and parse(name) == here()

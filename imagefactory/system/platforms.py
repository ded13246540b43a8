"""The platforms that images are built for, and what different tools call them. Pure."""

from __future__ import annotations

import os
from enum import StrEnum


class Platform(StrEnum):
    """An OCI platform (``os/architecture``), which is also a plain string."""

    AMD64 = "linux/amd64"
    ARM64 = "linux/arm64"

    @property
    def arch(self) -> str:
        """The architecture as OCI and Debian call it: ``arm64``."""
        return self.partition("/")[2]

    @property
    def machine(self) -> str:
        """The architecture as ``uname -m``, wheel tags and uv call it: ``aarch64``."""
        return {Platform.AMD64: "x86_64", Platform.ARM64: "aarch64"}[self]

    @property
    def emulator(self) -> str:
        """The name of QEMU's binfmt_misc handler: ``qemu-aarch64``."""
        return f"qemu-{self.machine}"

    @property
    def emulation(self) -> dict[str, str]:
        """Variables of QEMU for a container of this platform; none where it runs natively.

        A processor without pointer authentication and SVE is emulated in two thirds of the time.
        ``QEMU_CPU`` in the environment chooses another one, such as ``max``.
        """
        models = {Platform.ARM64: "cortex-a76"}
        model = os.environ.get("QEMU_CPU") or models.get(self)
        return {} if self == here() or not model else {"QEMU_CPU": model}


def of_machine(machine: str) -> Platform | None:
    """The platform of a machine name (``uname -m``); None if it is not supported."""
    return next((platform for platform in Platform if platform.machine == machine), None)


def here() -> Platform | None:
    """The platform of this machine; None if it is not supported."""
    return of_machine(os.uname().machine)


def parse(name: str) -> Platform | None:
    """The platform of an OCI name, which may have a variant (``linux/arm64/v8``); else None."""
    bare = "/".join(name.split("/")[:2])
    return Platform(bare) if bare in set(Platform) else None


def is_native(name: str) -> bool:
    """Whether this machine runs the OCI platform ``name`` without emulation."""
    return parse(name) is not None and parse(name) == here()

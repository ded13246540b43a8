"""Layers of hand-made images, as a registry has them."""

from __future__ import annotations

from collections.abc import Mapping

from support.debs import Member, tar

#: An image of Debian that has everything that a build needs.
COMPLETE = ("apt", "base-files", "ca-certificates", "git", "python3", "python3-venv")
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_CODENAME=trixie\n'


def status(*names: str, **more: str) -> str:
    """dpkg's status of packages at version 1; ``more`` are those with other versions."""
    rows = {**dict.fromkeys(names, "1"), **more}
    return "".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: all\nVersion: {version}\n\n"
        for name, version in sorted(rows.items())
    )


def debian(
    *names: str,
    os_release: str = OS_RELEASE,
    files: Mapping[str, str | bytes | Member] | None = None,
    dpkg: str | None = None,
) -> bytes:
    """The layer of a small Debian image with packages at version 1, and other ``files``."""
    text = status(*(names or COMPLETE)) if dpkg is None else dpkg
    return tar({"usr/lib/os-release": os_release, "var/lib/dpkg/status": text, **(files or {})})

"""Writes locked wheels as the requirements file of an install layer. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.locking.lock import Wheel


def requirements_txt(wheels: Iterable[Wheel]) -> str:
    """Lines of ``name==version --hash=sha256:...``, sorted, for ``--require-hashes --no-deps``."""
    lines = sorted(
        f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels
    )
    return "".join(lines)

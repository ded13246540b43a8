"""Installs a locked toolchain on this machine, into a prefix named after its content."""

from __future__ import annotations

import sys
from pathlib import Path

import uv

from imagefactory.errors import SetupError, fail
from imagefactory.locking import uv_indexes
from imagefactory.locking.lock import Lock, LockedToolchain
from imagefactory.locking.requirements import requirements_txt
from imagefactory.locking.store import digest
from imagefactory.settings import Settings
from imagefactory.system import locks, platforms, shell, temporary


def for_this_machine(lock: Lock, name: str) -> LockedToolchain | None:
    """The toolchain ``name`` for the platform of this machine, or None."""
    platform = platforms.here()
    return lock.toolchain(name, platform) if platform else None


def prepare(toolchain: LockedToolchain, settings: Settings) -> Path:
    """The toolchain's ``CUDA_HOME``; installed by hash the first time.

    Raises SetupError if a wheel is not found on any index, or if the wheels contain no nvcc.
    """
    prefix = (
        settings.cache
        / "toolchains"
        / f"{toolchain.name}-{digest(toolchain).removeprefix('sha256:')[:16]}"
    )
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(prefix.with_name(prefix.name + ".lock"), "the CUDA toolchain"):
        if not prefix.is_dir():
            with temporary.folder(prefix="imagefactory-toolchain-", parent=prefix.parent) as parent:
                part = parent / "prefix"
                _install(toolchain, part, settings)
                part.rename(prefix)
    return _cuda_home(prefix)


def _install(toolchain: LockedToolchain, target: Path, settings: Settings) -> None:
    requirements = target.with_name("requirements.txt")
    requirements.write_text(requirements_txt(toolchain.wheels), encoding="utf-8")
    done = shell.run(
        [
            *(
                uv.find_uv_bin(),
                "pip",
                "install",
                "--python",
                sys.executable,
                "--target",
                str(target),
            ),
            *("--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-config", "--quiet"),
            *("--requirements", str(requirements)),
            *uv_indexes.options(settings),
        ],
        env=uv_indexes.environment(settings),
    )
    if not done.ok:
        fix = (
            "imagefactory lock --check reports wheels that are no longer available; "
            "imagefactory doctor checks the indexes"
        )
        raise fail(
            SetupError, "toolchain-install", f"{toolchain.name}: {done.err.strip()[-600:]}", fix=fix
        )
    home = _cuda_home(target)
    if not (home / "lib64").exists():
        (home / "lib64").symlink_to("lib")  # where nvcc 13 looks for its runtime


def _cuda_home(prefix: Path) -> Path:
    found = next(iter(sorted(prefix.glob("nvidia/cu*/bin/nvcc"))), None)
    if found is None:
        what, fix = (
            f"{prefix.name} contains no nvcc",
            "add nvcc to the toolchain's requirements in matrix.yaml",
        )
        raise fail(SetupError, "toolchain-empty", what, fix=fix)
    return found.parents[1]

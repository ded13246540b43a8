"""What is newer than bases and git refs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.plans import base_image
from support.watched import NOW, SETTINGS, locked, record, write

from imagefactory.errors import SetupError, fail
from imagefactory.locking import gitref
from imagefactory.locking.debian import archive
from imagefactory.locking.lock import Deb
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.matrix.policies import Policies
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries
from imagefactory.watching import others
from imagefactory.watching.assessing import View
from imagefactory.watching.rows import Row, State

OLD, NEW = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
IMAGE = "trixie: {suite: trixie"
REF = "git+https://example.org/vllm@main"
ARM = Platform("linux/arm64")


def look(folder: Path, *changes: tuple[str, str], policies: Policies | None = None) -> list[Row]:
    """The rows of a matrix whose bases are locked with the old digest, or one old package."""
    declared = write(folder, *changes)
    bases = []
    for base in {cell.flavor.base.name: cell.flavor.base for cell in declared.cells}.values():
        row = base_image(base, ARM, suite=base.suite).locked
        debs = (deb("apt", "3.0.1"), deb("bash", "5.2")) if base.suite else ()
        digest = None if base.suite else OLD
        bases.append(replace(row, debs=debs, builder=(), compiler=None, digest=digest))
    sources = (
        LockedSource(
            name=REF, version="1" * 40, filename="v.tar", sha256="0" * 64, size=1, url=REF
        ),
    )
    lock = replace(locked(declared), bases=tuple(bases), sources=sources)
    view = View(upstream=record(), policies=policies or declared.policies, today=NOW.date())
    return others.look_up(declared.cells, lock, SETTINGS, view)


def deb(name: str, version: str) -> Deb:
    path = f"pool/main/{name[0]}/{name}/{name}_{version}_arm64.deb"
    return Deb(
        name=name,
        version=version,
        arch="arm64",
        sha256="0" * 64,
        size=1,
        archive="debian",
        path=path,
    )


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What registries, archives and repositories have now."""
    now: dict[str, object] = {"digest": NEW, "debs": {"apt": ["3.0.1", "3.0.10"]}, "down": False}

    def versions(*_: object) -> object:
        if now["down"]:
            raise fail(SetupError, "debian-unreachable", "no mirror answers")
        return now["debs"]

    monkeypatch.setattr(archive, "versions", versions)
    monkeypatch.setattr(
        Registries,
        "manifest",
        lambda *_: SimpleNamespace(digest=now["digest"]) if now["digest"] else None,
    )
    monkeypatch.setattr(gitref, "commit_of", lambda *_: "2" * 40)
    return now


def test_each_package_of_a_base_that_has_a_newer_version_is_a_row(tmp_path: Path) -> None:
    rows = [row for row in look(tmp_path) if row.part == "base trixie linux/arm64"]
    assert [(one.name, one.current, one.newest) for one in rows] == [("apt", "3.0.1", "3.0.10")]
    assert rows[0].state is State.OUTDATED


@pytest.mark.parametrize(
    ("image", "digest", "state", "reason"),
    [
        ("debian:trixie", NEW, State.OUTDATED, ""),
        ("debian:trixie", OLD, State.CURRENT, ""),
        (f"debian:trixie@{OLD}", NEW, State.HELD, "the digest is pinned in "),
        ("debian:trixie", None, State.YANKED, "its registry does not have debian:trixie"),
    ],
)
def test_the_image_of_a_base_is_compared_by_digest(
    tmp_path: Path,
    upstream: dict[str, object],
    image: str,
    digest: str | None,
    state: State,
    reason: str,
) -> None:
    upstream["digest"] = digest
    rows = look(tmp_path, (IMAGE, f'trixie: {{image: "{image}"'))
    found = next(row for row in rows if row.part == "base trixie")
    assert found.state is state
    assert found.reason.startswith(reason)


def test_a_branch_is_compared_with_the_commit_that_was_locked(tmp_path: Path) -> None:
    build = (
        '    driver: "580.95"\n    build: {binaries: compiled, tools: t, extensions: [x], '
        f"sources: {{A_SRC_DIR: '{REF}'}}}}\n    toolchain: t\n    env: {{TORCH_CUDA_ARCH_LIST: 12.1a}}\n"
    )
    tools = "toolchains:\n  t: {requirements: [setuptools], platforms: [linux/arm64]}\n"
    rows = look(tmp_path, ('    driver: "580.95"\n', build), ("axes:\n", f"{tools}axes:\n"))
    found = next(row for row in rows if row.part == "sources")
    assert (found.name, found.newest, found.state) == (REF, "2" * 40, State.OUTDATED)


def test_an_archive_that_is_down_makes_only_its_rows_unknown(
    tmp_path: Path, upstream: dict[str, object]
) -> None:
    upstream["down"] = True
    rows = look(tmp_path, (IMAGE, 'trixie: {image: "debian:trixie"'))
    states = {row.part: row.state for row in rows}
    assert states == {
        "base trixie": State.OUTDATED,
        "base bookworm linux/arm64": State.UNKNOWN,
    }


def test_a_base_may_be_held(tmp_path: Path) -> None:
    more = (
        "defaults:",
        "hold: {trixie: {to: '<1', reason: frozen, until: 2027-01-01}}\ndefaults:",
    )
    found = next(row for row in look(tmp_path, more) if row.name == "apt")
    assert (found.state, found.compatible) == (State.HELD, "3.0.1")
    assert found.reason == "hold <1 until 2027-01-01: frozen"

"""``lock --upgrade`` moves what the policies of the matrix allow, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.version import Version
from support.index import serve, wheel, wheels_of_matrix, write_pages
from support.machine import settings
from support.matrices import GOOD
from support.matrices import write as write_matrix

from imagefactory.locking import limits, locking
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.policies import Policies

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LEAF = ("1.0", "1.0.1", "1.1", "2.0")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    files = wheels_of_matrix(tmp_path / "files")
    with serve(files, tmp_path / "www") as url:
        yield url


def locked(declared: Matrix, lock: Lock | None, folder: Path, index: str) -> Lock:
    renewed = locking.renew(
        lock,
        declared.cells[:1],
        settings(folder, index),
        upgrade=lock is not None,
        policies=declared.policies,
        now=NOW,
    )
    assert renewed.error is None
    return renewed.lock


def version(lock: Lock, name: str) -> str:
    found = lock.resolutions[0].wheel(name)
    assert found
    return found.version


@pytest.mark.programs
def test_an_upgrade_moves_packages_as_far_as_policies_allow(tmp_path: Path, index: str) -> None:
    first = locked(matrix.load(write_matrix(tmp_path)), None, tmp_path, index)
    for number in LEAF:
        wheel(tmp_path / "files", "leaf", number)
    wheel(tmp_path / "files", "uv", "0.14.0")
    write_pages(tmp_path / "files", tmp_path / "www")
    for policy, leaf, uv in (
        ("follow: patch", "1.0.1", "0.13.8"),
        ("follow: {leaf: minor}", "1.1", "0.14.0"),
        ("follow: {leaf: release, default: patch}", "2.0", "0.13.8"),
        ("hold: {leaf: {to: '<1.1', reason: slow, until: 2026-11-22}}", "1.0.1", "0.14.0"),
        ("hold: {uv: {to: '<0.14', reason: slow, until: 2026-11-22}}", "2.0", "0.13.8"),
        ("hold: {leaf: {to: '<1.1', reason: slow, until: 2026-11-21}}", "2.0", "0.14.0"),
    ):
        (tmp_path / "matrix.yaml").write_text(f"{GOOD}{policy}\n")
        found = locked(matrix.load(tmp_path / "matrix.yaml"), first, tmp_path, index)
        assert (version(found, "leaf"), found.unpacker_version) == (leaf, uv), policy


def test_what_the_matrix_pins_or_overrides_is_not_limited_again(tmp_path: Path) -> None:
    text = "hold: {vllm: {to: '<0.1', reason: x, until: 2027-01-01}, numpy: {to: '<1', reason: y, "
    (tmp_path / "matrix.yaml").write_text(f"{GOOD}{text}until: 2027-01-01}}}}\n")
    declared = matrix.load(tmp_path / "matrix.yaml")
    found = {
        cell.vllm: limits.constraints(
            cell.requirements, cell.overrides, (), declared.policies, NOW.date()
        )
        for cell in declared.cells
    }
    assert found == {"0.22.1": ("numpy<1",), "0.33.0": (), "0.23.0": ("numpy<1",)}


def test_without_a_current_version_only_holds_count() -> None:
    assert limits.allows("uv", None, Policies(), NOW.date())(Version("1.0.dev1"))

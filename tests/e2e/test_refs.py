"""Git refs of vLLM: what cannot be locked, and how they move; with git, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import projects
from support.machine import settings as settings_of
from support.upstream import Upstream, cell_of, locked_with, vllm, wanted

from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.locking import refs, wheelhouse
from imagefactory.locking.failures import Failures
from imagefactory.locking.lock import Lock
from imagefactory.locking.locked_sources import LockedRef
from imagefactory.patching import sources
from imagefactory.settings import Settings
from imagefactory.watching import others

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    return vllm(tmp_path_factory.mktemp("upstream") / "vllm")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_of(tmp_path_factory.mktemp("machine"))


def test_a_pull_request_on_a_release_brings_only_its_own_changes(
    upstream: Upstream, settings: Settings, tmp_path: Path
) -> None:
    ref = wanted(upstream, "v0.33.0", 7)
    found = refs.lock_ref(ref, settings)
    assert found.version == f"0.33.0+g{found.commit[:9]}.pr7"
    tree = sources.of_cell("vllm", cell_of(tmp_path, ref), locked_with(found), settings)
    assert "two\n" in (tree.root / "vllm/envs.py").read_text()
    assert not (tree.root / "vllm/new.py").exists()


@pytest.mark.parametrize(
    ("ref", "prs", "base", "kind", "says"),
    [
        ("main", (7, 8), "0.33.0", CheckFailedError, "pull request 8 conflicts with what it is merged into: vllm/envs.py"),
        ("gone", (), "0.33.0", SetupError, "has no tag or branch gone"),
        ("main", (5,), "0.33.0", CheckFailedError, "pull request 5 has no commits that main"),
        ("main", (6,), "0.33.0", SetupError, "has no pull request 6"),
        ("main", (), "0.34.0", InputError, "has no tag v0.34.0"),
        ("main", (), "0.34.0.dev1+gabcdef1", InputError, "has no commit abcdef1"),
        ("v0.33.0", (), "0.33.0", InputError, "is 0.33.0 itself"),
        ("0" * 40, (), "0.33.0", SetupError, "git fetch"),
    ],
)  # fmt: skip
def test_what_cannot_be_locked_is_one_error(
    upstream: Upstream, settings: Settings, ref: str, prs: tuple[int, ...], base: str,
    kind: type[FactoryError], says: str,
) -> None:  # fmt: skip
    with pytest.raises(kind) as caught:
        refs.lock_ref(wanted(upstream, ref, *prs, base=base), settings)
    (problem,) = caught.value.problems
    assert says in problem.what
    assert problem.fix


def test_a_branch_moves_only_with_an_upgrade_and_stays_where_it_was_if_it_cannot(
    tmp_path: Path, settings: Settings
) -> None:
    moving = Upstream(tmp_path / "moving")
    moving.commit({"csrc/a.cu": "1", "requirements/cuda.txt": ""})
    moving.git("tag", "v0.33.0")
    first = moving.commit({"vllm/a.py": "1"})
    cell = cell_of(tmp_path, wanted(moving))

    def renewed(old: Lock | None, *, upgrade: bool) -> tuple[LockedRef, Failures]:
        failures = Failures()
        rows = [projects.resolution_of(cell)]
        (found,) = refs.renewed(old, [cell], rows, settings, failures, upgrade=upgrade)
        return found, failures

    lock = locked_with(renewed(None, upgrade=False)[0])
    second = moving.commit({"vllm/a.py": "2"})
    assert renewed(lock, upgrade=False)[0].commit == first
    moved = renewed(lock, upgrade=True)[0]
    assert moved.commit == second
    moving.commit({"csrc/a.cu": "2"})
    kept, failures = renewed(locked_with(moved), upgrade=True)
    assert kept == moved
    assert [one.kept for one in failures.rows] == [True]
    moving.git("reset", "--quiet", "--hard", "v0.33.0")  # a force push: the archive is kept
    source = kept.source
    assert wheelhouse.fetch(source.url, source.sha256, source.filename, settings).is_file()
    rows = [row for lookup in others._sources([cell], lock) for row in lookup[1]()]
    assert [(row.current, row.newest) for row in rows] == [(first, moving.git("rev-parse", "main"))]

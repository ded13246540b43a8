"""Wheels that the matrix gives by URL: locked by hash, downloaded once, always verified."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.index import serve, torch, unpacker, wheel
from support.matrices import problems
from support.matrices import write as write_matrix

from imagefactory.errors import SetupError
from imagefactory.locking import locking, store, wheelhouse
from imagefactory.locking.lock import Lock, Wheel
from imagefactory.locking.requirements import requirements_txt
from imagefactory.matrix import matrix
from imagefactory.patching import sources
from imagefactory.planning import vllm_settings
from imagefactory.settings import Settings

pytestmark = pytest.mark.programs

NAME = "vllm-0.22.1+stream-py3-none-any.whl"
#: Declares a variable that no release of vLLM has.
ENVS = 'environment_variables = {"VLLM_STREAM_LOADING": lambda: True}\n'


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    files = tmp_path / "files"
    torch(files, "2.11.0", "cu130", "13.0")
    wheel(files, "leaf", "1.0")
    unpacker(files, "0.13.8")
    made = wheel(
        tmp_path / "made", "vllm", "0.22.1+stream", requires=("leaf",), files={"vllm/envs.py": ENVS}
    )
    with serve(files, tmp_path / "www") as url:
        (tmp_path / "www" / "files" / NAME).write_bytes(made.read_bytes())
        yield Settings(
            state=tmp_path / "state",
            cache=tmp_path / "cache",
            indexes=(url,),
            find_links=(),
            ca_bundle=None,
        )


def served(settings: Settings) -> Path:
    return settings.cache.parent / "www" / "files" / NAME


def address(settings: Settings) -> str:
    return settings.indexes[0].removesuffix("/simple") + "/files/" + NAME.replace("+", "%2B")


def sha256(settings: Settings) -> str:
    return hashlib.sha256(served(settings).read_bytes()).hexdigest()


def locked(settings: Settings, sha: str) -> tuple[Lock, Wheel]:
    path = write_matrix(
        settings.cache.parent, '"vllm=={vllm}"', f'"vllm @ {address(settings)}#sha256={sha}"'
    )
    lock, _ = locking.update(None, matrix.load(path).cells[:1], settings)
    found = lock.resolutions[0].wheel("vllm")
    assert found is not None
    return lock, found


def test_a_wheel_by_url_is_locked_with_its_url_and_its_requirements(
    settings: Settings,
) -> None:
    lock, found = locked(settings, sha256(settings))
    assert (found.version, found.filename, found.index) == (
        "0.22.1+stream",
        NAME,
        address(settings),
    )
    assert (found.sha256, found.has_address, found.is_local) == (sha256(settings), True, False)
    assert lock.resolutions[0].wheel("leaf") is not None
    store.write(settings.cache.parent / "wheels.lock", lock, guards=settings.state)
    assert store.read(settings.cache.parent / "wheels.lock") == lock
    assert requirements_txt([found]) == f"vllm==0.22.1+stream --hash=sha256:{found.sha256}\n"


def test_a_file_with_another_hash_than_in_the_matrix_is_rejected(settings: Settings) -> None:
    with pytest.raises(SetupError) as caught:
        locked(settings, "0" * 64)
    (problem,) = caught.value.problems
    assert problem.code == "wheel-changed"
    assert sha256(settings) in problem.what


def test_a_wheel_by_url_is_downloaded_once_and_stored_by_its_hash(settings: Settings) -> None:
    _, found = locked(settings, sha256(settings))
    path = wheelhouse.file_of(found, settings)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == found.sha256
    served(settings).unlink()
    assert wheelhouse.file_of(found, settings) == path


KILLED = """
import os, signal, sys
from pathlib import Path
from imagefactory.locking import wheelhouse
from imagefactory.settings import from_environment
def save(url, path, settings):
    path.write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
wheelhouse._save = save
wheelhouse.fetch(*sys.argv[1:4], from_environment(os.environ))
"""


def test_a_download_that_was_killed_leaves_nothing_once_it_is_repeated(
    settings: Settings, tmp_path: Path
) -> None:
    wanted = address(settings), sha256(settings), NAME
    used = replace(settings, cache=tmp_path / "xdg/imagefactory")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    done = subprocess.run([sys.executable, "-c", KILLED, *wanted], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    target = wheelhouse.path_of(*wanted[1:], used)
    (left,) = target.parent.iterdir()
    assert left != target
    assert wheelhouse.fetch(*wanted, used) == target
    assert [*target.parent.iterdir()] == [target]


@pytest.mark.parametrize("shown", [True, False])
def test_a_download_is_a_step_unless_its_caller_shows_it(
    settings: Settings, capsys: pytest.CaptureFixture[str], shown: bool
) -> None:
    wheelhouse.fetch(address(settings), sha256(settings), NAME, settings, shown=shown)
    assert (f"fetching {NAME} ..." in capsys.readouterr().err) is shown


def test_a_replaced_file_is_reported_and_not_stored(settings: Settings) -> None:
    _, found = locked(settings, sha256(settings))
    served(settings).write_bytes(b"another")
    other_cache = replace(settings, cache=settings.cache.parent / "other")
    with pytest.raises(SetupError) as caught:
        wheelhouse.file_of(found, other_cache)
    assert caught.value.problems[0].code == "wheel-changed"
    assert [path for path in other_cache.cache.rglob("*.whl") if path.is_file()] == []


def test_an_unreachable_url_is_reported_by_check_and_by_a_build(
    settings: Settings,
) -> None:
    lock, found = locked(settings, sha256(settings))
    cells = matrix.load(settings.cache.parent / "matrix.yaml").cells[:1]
    assert locking.check(lock, cells, settings) == ()
    served(settings).unlink()
    (problem,) = locking.check(lock, cells, settings)
    assert (problem.code, problem.where) == ("wheel-unreachable", NAME)
    with pytest.raises(SetupError) as caught:
        wheelhouse.file_of(found, replace(settings, cache=settings.cache.parent / "other"))
    assert caught.value.problems[0].code == "wheel-unreachable"


@pytest.mark.parametrize("end", ["", "#sha256=abc", "#md5=" + "0" * 64])
def test_a_url_without_the_hash_of_its_file_is_rejected_with_its_line(
    tmp_path: Path, end: str
) -> None:
    text = f'"vllm @ https://example.org/vllm-1.0-py3-none-any.whl{end}"'
    (problem,) = problems(write_matrix(tmp_path, '"vllm=={vllm}"', text))
    assert problem.code == "matrix-no-hash"
    assert "matrix.yaml:" in (problem.where or "")


def test_settings_and_patches_are_checked_against_the_wheel_and_not_the_release_of_its_version(
    settings: Settings,
) -> None:
    lock, found = locked(settings, sha256(settings))
    (cell, *_) = matrix.load(settings.cache.parent / "matrix.yaml").cells
    tree = sources.of_cell("vllm", cell, lock, settings)
    assert (tree.version, tree.sha256) == ("0.22.1", found.sha256)
    assert (tree.root / "vllm/envs.py").read_text() == ENVS
    assert sources.of_cell("vllm", cell, lock, settings) == tree
    assert vllm_settings.read(tree.root).knows("VLLM_STREAM_LOADING")
    with pytest.raises(SetupError) as caught:  # without the lock, the index is searched in vain
        sources.of_cell("vllm", cell, None, settings)
    assert caught.value.problems[0].code == "sources-unreachable"

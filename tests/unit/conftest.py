"""For all unit tests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import stamina
import uv
from hypothesis import settings

from imagefactory import redaction

# Each run draws other examples, so few of them find in some runs what many find in one.
settings.register_profile("few", max_examples=20, deadline=None)
settings.load_profile("few")
# Servers of tests are on loopback, whatever proxy this machine uses; and without a list of hosts,
# requests reads the whole environment twice for each request.
os.environ |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
# A key of the user who runs the tests would sign their receipts.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
gc.set_threshold(50_000)  # by default, a tenth of the time goes into looking for cycles


#: Whether the test that runs may start programs.
_may_start = [True]


def _refuse_programs(event: str, _: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and not _may_start[0]:
        pytest.fail("starts a program: mark the test with @pytest.mark.programs")


sys.addaudithook(_refuse_programs)


def pytest_collection_finish() -> None:
    gc.freeze()  # tests and modules stay: looking for cycles among them finds nothing


@pytest.fixture(autouse=True, scope="session")
def retries_do_not_wait() -> Iterator[None]:
    with stamina.set_testing(True, attempts=3, cap=True):
        yield


@pytest.fixture(autouse=True, scope="session")
def what_killed_programs_leave_goes_with_files_of_tests(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def only_marked_tests_start_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    _may_start[0] = request.node.get_closest_marker("programs") is not None
    yield
    _may_start[0] = True


@pytest.fixture(autouse=True)
def secrets_of_a_test_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets", [])


@pytest.fixture(scope="session")
def known_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What uv has in its cache about this Python; without it, uv starts Python for 100 ms."""
    cache = tmp_path_factory.mktemp("uv")
    (cache / "requirements.in").touch()
    subprocess.run(
        [
            *(uv.find_uv_bin(), "pip", "compile", "--quiet", "--offline", "--no-config"),
            *("--python", sys.executable, str(cache / "requirements.in")),
        ],
        env={**os.environ, "UV_CACHE_DIR": str(cache)},
        check=True,
        capture_output=True,
    )
    (folder,) = cache.glob("interpreter-*")
    return folder


@pytest.fixture
def own_uv_cache(tmp_path: Path, known_interpreter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache: uv caches pages by URL, and another test's index may have had that port."""
    cache = tmp_path / "uv-cache"
    cache.mkdir()
    (cache / known_interpreter.name).symlink_to(known_interpreter)
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))

"""``imagefactory lock`` as a user sees it: what it writes, says and returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.index import serve, torch, unpacker, vllm, wheel
from support.machine import DOWN
from support.matrices import write as write_matrix
from support.plans import locked_bases
from support.program import Run, runner

from imagefactory.locking import bases, store

pytestmark = pytest.mark.programs

GOOD, BAD = "0.22.1", "0.33.0"


@pytest.fixture
def project(tmp_path: Path, own_uv_cache: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with two cells; no index has the wheel of one of them."""
    files = tmp_path / "files"
    vllm(files, GOOD, requires=tuple(f"leaf{n}" for n in range(4)))
    for number in range(4):
        wheel(files, f"leaf{number}", "1.0")
    torch(files, "2.11.0", "cu130", "13.0")
    torch(files, "2.14.0", "cu130", "13.0")
    unpacker(files, "0.13.8")
    path = write_matrix(tmp_path)
    text = path.read_text()
    begin, end = text.index("include:"), text.index("exclude:")
    path.write_text(text[:begin] + "include: []\n" + text[end:])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setattr(bases, "_locked", locked_bases)  # Debian's archive takes seconds
    with serve(files, tmp_path / "www") as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield tmp_path


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys, project)


def test_what_can_be_resolved_is_written_and_the_rest_is_an_error_at_the_end(
    project: Path, run: Run
) -> None:
    done = run("lock")
    assert done.code == 1
    (locked,) = store.read(project / "wheels.lock").resolutions
    assert locked.name == f"linux-arm64-py313-cu130-vllm-{GOOD}"
    assert f"{locked.name}: added 6 (torch 2.11.0, vllm {GOOD})" in done.err
    assert "wheels.lock is written: 1 resolution, 6 wheels" in done.err
    *_, error, fix = done.err.splitlines()
    assert error.startswith("error: matrix.yaml:")
    assert f"vllm=={BAD}" in error
    assert fix.startswith("  fix: ")
    assert "leaf0" not in done.err


def test_the_full_list_is_for_verbose_and_for_json(project: Path, run: Run) -> None:
    done = run("lock", "--verbose")
    assert "leaf0 (none) -> 1.0" in done.err
    (project / "wheels.lock").unlink()
    done = run("lock", "--json")
    found = json.loads(done.out)
    assert {row["package"] for row in found["changes"]} >= {"leaf0", "vllm", "uv"}
    assert found["written"] is True
    assert found["summary"][0]["added"] == 6
    assert [row["kept"] for row in found["failed"]] == [False]
    assert (found["exit_code"], len(found["errors"])) == (1, 1)


def test_without_a_network_no_lock_is_written_and_none_is_changed(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", DOWN)
    done = run("lock")
    assert done.code == 3
    assert "wheels.lock is not written" in done.err
    assert not (project / "wheels.lock").exists()


def test_a_plan_shows_the_unlocked_cell_as_blocked_and_plans_the_other(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project}/none.sock")
    monkeypatch.setenv("IMAGEFACTORY_ENGINE_DIR", str(project))
    (project / "matrix.yaml").write_text(
        (project / "matrix.yaml").read_text().replace("[vllm/one]", "[]")
    )
    (project / "templates").symlink_to(Path(__file__).parents[2] / "templates")
    assert run("lock").code == 1
    done = run("plan", "--json")
    assert done.code == 2
    rows = json.loads(done.out)
    assert [row["action"] for row in rows] == ["build", "blocked"]
    assert "[lock-uncovered]" in done.err
    done = run("plan")
    assert "blocked" in done.out
    assert run("plan", "--select", f"vllm={GOOD}").code == 0


def test_a_cell_is_exported_to_a_file_that_installers_recognize(project: Path, run: Run) -> None:
    (project / "matrix.yaml").write_text(
        (project / "matrix.yaml").read_text().replace("[vllm/one]", "[]")
    )
    assert run("lock").code == 1
    done = run("export", f"vllm={GOOD}", "-o", "pylock.gb10.toml")
    assert done.code == 0, done.err
    assert "wrote pylock.gb10.toml: 6 wheels of gb10-vllm0-22-1" in done.err
    text = (project / "pylock.gb10.toml").read_text()
    assert run("export", f"vllm={GOOD}").out == text
    refused = run("export", f"vllm={GOOD}", "-o", "gb10.lock")
    assert refused.code == 2
    assert "[export-name]" in refused.err
    several = run("export", "gb10-*")
    assert several.code == 2
    assert "matches 2 cells" in several.err
    assert "[lock-uncovered]" in run("export", f"vllm={BAD}").err


def test_a_package_that_is_nowhere_in_the_lock_is_not_upgraded_in_silence(
    project: Path, run: Run
) -> None:
    done = run("lock", "-P", "laef1", "-P", "Leaf1", "-P", "uv", "--no-audit")
    assert "warning: laef1 is no package of wheels.lock" in done.err
    assert done.err.count("is no package") == 1

"""The programs that build the wheel of an extra, with projects that compile nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.inbuild import backend, extra, sources

#: Stands in for setuptools, whose release here may be older than what builds wheels.
SETUPTOOLS = """\
import runpy

class __legacy__:
    def build_wheel(out):
        name = runpy.run_path("setup.py")["NAME"]
        open(f"{out}/{name}", "w").close()
        return name
"""


def run(project: Path, out: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    argv, env = [sys.executable, backend.__file__, str(out)], {**os.environ, "PYTHONPATH": path}
    return subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, check=False)


def setuptools(folder: Path) -> Path:
    for name, text in (
        ("setuptools/build_meta.py", SETUPTOOLS),
        ("setuptools-99.dist-info/METADATA", "Name: setuptools\nVersion: 99\n"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (folder / "setuptools/__init__.py").touch()
    return folder


@pytest.mark.programs
def test_a_project_is_built_by_the_backend_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'own:Backend'\nbackend-path = ['build']\n"
    )
    (tmp_path / "build").mkdir()
    (tmp_path / "build/own.py").write_text(
        "class Backend:\n    def build_wheel(out):\n        open(f'{out}/w.whl', 'w').close()\n"
        "        return 'w.whl'\n"
    )
    done = run(tmp_path, tmp_path)
    assert (done.returncode, done.stdout) == (0, "built w.whl\n"), done.stderr
    assert (tmp_path / "w.whl").is_file()


@pytest.mark.programs
def test_a_project_with_only_a_setup_is_built_by_setuptools(tmp_path: Path) -> None:
    tools = setuptools(tmp_path / "tools")
    (tools / "sources.py").write_text("NAME = 'its own.whl'\n")  # the factory has one, too
    (tmp_path / "setup.py").write_text("from sources import NAME\n")
    done = run(tmp_path, tmp_path, str(tools))
    assert (done.returncode, done.stdout) == (0, "built its own.whl\n"), done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "has neither pyproject.toml nor setup.py"),
        ("[build-system", "is not valid"),
        (
            "[build-system]\nrequires = ['no-such-tool>=2', 'pytest']\n",
            "its build needs no-such-tool>=2: add it to the toolchain",
        ),
    ],
)
def test_what_cannot_be_built_says_why(tmp_path: Path, text: str | None, says: str) -> None:
    if text:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        backend.main(tmp_path, tmp_path)
    assert says in str(caught.value)
    assert str(caught.value).startswith("E: ")


def test_a_requirement_with_a_condition_is_left_to_the_backend() -> None:
    assert backend.lacking(["tomli; python_version < '3'", "pytest", "none-such"]) == ["none-such"]


def test_the_user_s_variables_win_but_not_over_what_is_found_in_the_builder() -> None:
    job = {"cuda": "/opt/cuda", "env": {"LDFLAGS": "-g", "A": "b"}, "sources": ["CUTLASS"]}
    found = extra.variables(job, {"PATH": "/bin", "A": "old", "KEPT": "1"})
    assert found["PATH"] == "/opt/cuda/bin:/tools/bin:/bin"
    assert (found["A"], found["KEPT"], found["LDFLAGS"]) == ("b", "1", "-g")
    assert (found["CUDA_HOME"], found["CUTLASS"]) == ("/opt/cuda", "/sources/CUTLASS")
    assert int(found["MAX_JOBS"]) >= 1
    plain = extra.variables({"cuda": "", "env": {}, "sources": []}, {"PATH": "/bin"})
    assert (plain["PATH"], plain["LDFLAGS"]) == ("/tools/bin:/bin", extra.STRIP)
    assert "CUDA_HOME" not in plain


@pytest.mark.programs
def test_the_user_s_setup_takes_the_place_of_the_source_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, job = tmp_path / "src/sub", tmp_path / "job"
    source.mkdir(parents=True)
    job.mkdir()
    (source / "setup.py").write_text("raise SystemExit('the wrong one')\n")
    (job / "setup.py").write_text("NAME = 'w.whl'\n")
    values = {"cuda": "", "folder": "sub", "env": {}, "sources": []}
    (job / "job.json").write_text(json.dumps(values))
    torch = tmp_path / "torch"

    def unpack(kind: str, target: Path) -> None:
        assert (kind, target) == ("torch", torch)
        torch.mkdir()

    monkeypatch.setattr(extra, "unpack", unpack)
    monkeypatch.setattr(sources, "main", lambda *_: 0)
    tools = setuptools(tmp_path / "tools")
    for name, path in (
        *(("SOURCE", source.parent), ("JOB", job)),
        *(("TORCH", torch), ("TOOLS", tools)),
    ):
        monkeypatch.setattr(extra, name, path)
    monkeypatch.setattr(extra, "OUT", tmp_path / "out")
    extra.build()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["w.whl"]
    assert not torch.exists()
    (job / "job.json").write_text(json.dumps({**values, "folder": "none"}))
    with pytest.raises(SystemExit, match="no folder none"):
        extra.build()

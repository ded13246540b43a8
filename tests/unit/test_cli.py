"""The command line as users see it: help with examples, clear errors, sensible exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from imagefactory import cli

COMMANDS = [
    "plan",
    "lock",
    "render",
    "build",
    "verify",
    "push",
    "doctor",
    "patch status",
    "patch check",
    "patch port",
    "patch continue",
    "patch import",
    "wheel",
    "inspect",
    "diff",
    "rebuild",
    "prune",
]


def run(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "DOCKER_HOST": "unix:///nonexistent/docker.sock",
        "XDG_STATE_HOME": "/nonexistent",
        "COLUMNS": "200",
    }
    argv = (sys.executable, "-m", "imagefactory", *argv)
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json_where_it_has_results(command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: imagefactory {command}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout or command == "render"


def test_unknown_options_and_commands_are_input_errors() -> None:
    assert run("plan", "--nonsense").returncode == 2
    assert run("nonsense").returncode == 2


def test_a_misspelt_command_gets_a_suggestion() -> None:
    assert "Did you mean 'plan'?" in run("plam").stderr


def test_build_without_a_matrix_says_what_to_write() -> None:
    done = run("build")
    assert done.returncode == 2
    assert "imagefactory build --matrix" in done.stderr


def test_an_operating_system_error_is_a_clear_error_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("render", "--select", "flavor=cpu", "--out", str(tmp_path / "file"))
    assert done.returncode == 3
    assert "[system-refused]" in done.stderr
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_reported_with_how_to_free_space(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/file")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "[disk-full]" in said
    assert "/somewhere/file" in said
    assert "imagefactory prune" in said


def test_options_of_try_need_try_and_try_needs_one_cell() -> None:
    done = run("wheel", "--target", "sm_121a")
    assert done.returncode == 2
    assert "try-what" in done.stderr
    assert run("wheel", "--try", "csrc/*.cu").returncode == 2


def test_a_missing_matrix_is_one_clear_error(tmp_path: Path) -> None:
    done = run("plan", cwd=tmp_path)
    assert done.returncode == 2
    assert "matrix-missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_show_the_file_as_the_user_wrote_it_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(
        (ROOT / "matrix.yaml").read_text().replace("channel: [cu130]", "channel: [cu128]")
    )
    (tmp_path / "patches").symlink_to(ROOT / "patches")
    done = run("plan", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: matrix.yaml:" in done.stderr
    assert "[matrix-cuda-major]" in done.stderr


def test_a_plan_needs_no_engine_and_its_json_has_the_documented_fields() -> None:
    done = run("plan", "--json")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout):
        assert row.keys() == {"cell", "platform", "pins", "tags", "build_key", "action", "reason"}
        assert len(row["build_key"]) == 64


def test_explain_shows_where_values_are_set() -> None:
    done = run("plan", "--explain", "cpu*", "--json")
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert rows["torch"]["where"].startswith("matrix.yaml:")
    assert rows["override"]["value"].startswith("drop ")


def test_render_prints_a_dockerfile_and_writes_a_bake_file(tmp_path: Path) -> None:
    done = run("render", "--select", "vllm=0.33.0")
    assert done.stdout.startswith("# generated from templates/Dockerfile.j2")
    assert "do not edit" in done.stdout
    done = run("render", "--select", "vllm=0.33.0", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    targets = json.loads((tmp_path / "docker-bake.json").read_text())["target"]
    (cell,) = [name for name in targets if name.startswith("gb10")]
    assert targets[cell]["platforms"] == ["linux/arm64"]
    assert (tmp_path / cell / "patches" / "series.json").is_file()


def test_building_without_an_engine_is_a_setup_error() -> None:
    done = run("build", "--matrix")
    assert done.returncode == 3
    assert "scripts/engine up" in done.stderr

"""The command line as users see it: help with examples, clear errors, sensible exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support import ROOT

from imagefactory import cli, redaction
from imagefactory.building import bases
from imagefactory.errors import CheckFailedError, Problem
from imagefactory.examples import examples
from imagefactory.examples.examples import Example
from imagefactory.locking import store
from imagefactory.patching import importing
from imagefactory.patching.importing import Imported
from imagefactory.system import shell, ui
from imagefactory.system.commandline import CommandLog


class Ended(NamedTuple):
    """How the program ended, and what it wrote."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]

COMMANDS = [
    "init",
    "plan",
    "lock",
    "export",
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
    "engine",
]
#: Commands whose output is not for programs, or is a shell's.
WITHOUT_JSON = ("render", "export", "engine")


def environment(state: Path) -> dict[str, str]:
    """An environment in which no engine answers, and nothing of the user's is touched."""
    return {
        "DOCKER_HOST": f"unix://{state}/none.sock",
        "IMAGEFACTORY_ENGINE_DIR": str(state),
        "XDG_STATE_HOME": str(state),
        "COLUMNS": "200",
    }


@pytest.fixture
def run(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs the program's entry point in this process, which saves the start of an interpreter."""
    state = tmp_path_factory.mktemp("state")

    def run(*argv: str, cwd: Path = ROOT) -> Ended:
        handler = signal.getsignal(signal.SIGTERM)
        with monkeypatch.context() as changed:
            changed.chdir(cwd)
            changed.setattr(sys, "argv", ["imagefactory", *argv])
            changed.setattr(shell, "LOG", CommandLog())
            for name, value in environment(state).items():
                changed.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        signal.signal(signal.SIGTERM, handler)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, captured.out, captured.err)

    return run


def start(state: Path, *argv: str, **more: Any) -> subprocess.Popen[str]:
    """Starts the program as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", "imagefactory", *argv],
        cwd=ROOT,
        env={**os.environ, **environment(state), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # what runs in the background of a shell inherits that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json_where_it_has_results(
    command: str, run: Run
) -> None:
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert run(*command.split(), "-h").out == out
    assert f"Example: imagefactory {command}" in " ".join(out.split())
    assert ("--json" in out) == (command not in WITHOUT_JSON)
    assert out.isascii()  # no boxes


def test_an_import_names_all_that_it_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Imported(
        patch="vllm/pr-1",
        version="0.33.0",
        left=("run.sh",),
        skipped=("tests/a.py",),
        empty=("vllm/b.py",),
        fetches=("https://x.y/1.diff",),
    )
    monkeypatch.setattr(importing, "import_diffs", lambda *_, **__: done)
    code, out, err = run("patch", "import", "vllm#1", "--unproven")
    assert (code, out) == (0, "")
    assert "wrote the unproven patch patches/vllm/pr-1, which applies to 0.33.0" in err
    for name in (*done.left, *done.skipped, *done.empty, *done.fetches):
        assert name in err
    row = json.loads(run("patch", "import", "vllm#1", "--unproven", "--json").out)
    wanted = {**done.as_dict(), "unproven": True, "work_tree": ""}
    assert row == wanted


def test_unknown_options_and_commands_are_input_errors(run: Run) -> None:
    code, out, err = run("plan", "--nonsense")
    assert (code, out) == (2, "")
    assert "error: No such option: --nonsense [usage]" in err
    assert "fix: imagefactory plan --help" in err
    assert run("nonsense")[0] == 2


def test_a_missing_command_is_answered_with_the_list_of_commands(run: Run) -> None:
    for argv in ((), ("patch",)):
        code, out, err = run(*argv)
        assert (code, out) == (2, "")
        assert err.startswith("Usage: imagefactory")
        assert "[usage]" not in err


def test_a_misspelt_command_gets_a_suggestion(run: Run) -> None:
    assert "Did you mean 'plan'?" in run("plam")[2]


def test_build_without_a_matrix_says_what_to_write(run: Run) -> None:
    done = run("build")
    assert done.code == 2
    assert "imagefactory build --matrix" in done.err


def test_an_operating_system_error_is_a_clear_error_without_traceback(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("render", "--select", "flavor=cpu", "--out", str(tmp_path / "file"))
    assert done.code == 3
    assert "[system-refused]" in done.err
    assert str(tmp_path / "file") in done.err
    assert "Traceback" not in done.err


def test_a_full_disk_is_reported_with_how_to_free_space(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/file")

    monkeypatch.setattr(cli, "app", full)
    done = run("plan")
    assert done.code == 3
    assert "[disk-full]" in done.err
    assert "/somewhere/file" in done.err
    assert "imagefactory prune" in done.err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("verify", "--", "--help"), "image-name"),
        (("inspect", "--", "-v"), "image-name"),
        (("diff", "a:b", "--", "--help"), "image-name"),
        (("rebuild", "--", "a b"), "image-name"),
        (("lock", "-P", "--help"), "package-name"),
        (("build", "--matrix", "--builder", "--help"), "builder-name"),
    ],
)
def test_an_argument_is_never_an_option_of_another_program(
    run: Run, argv: tuple[str, ...], code: str
) -> None:
    ended = run(*argv)
    assert ended.code == 2
    assert f"[{code}]" in ended.err


def test_a_closed_standard_output_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    ended = run("plan", "--check")
    assert ended.code == 3
    assert "standard output is closed [output-closed]" in ended.err


def test_a_result_that_cannot_be_written_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ui, "finish", full)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    ended = run("--version")
    assert ended.code == 3
    assert "[disk-full]" in ended.err


def test_options_of_try_need_try_and_try_needs_one_cell(run: Run) -> None:
    done = run("wheel", "--target", "sm_121a")
    assert done.code == 2
    assert "try-what" in done.err
    assert run("wheel", "--try", "csrc/*.cu").code == 2


def test_a_missing_matrix_is_one_clear_error(tmp_path: Path, run: Run) -> None:
    done = run("plan", cwd=tmp_path)
    assert done.code == 2
    assert "matrix-missing" in done.err
    assert "Traceback" not in done.err


def test_errors_show_the_file_as_the_user_wrote_it_and_the_line(tmp_path: Path, run: Run) -> None:
    (tmp_path / "matrix.yaml").write_text(
        (ROOT / "matrix.yaml").read_text().replace("channel: [cu130]", "channel: [cu128]")
    )
    (tmp_path / "patches").symlink_to(ROOT / "patches")
    done = run("plan", cwd=tmp_path)
    assert done.code == 2
    assert "error: matrix.yaml:" in done.err
    assert "[matrix-cuda-major]" in done.err


def test_a_plan_needs_no_engine_and_its_json_has_the_documented_fields(run: Run) -> None:
    done = run("plan", "--json")
    assert done.code == 0, done.err
    for row in json.loads(done.out):
        keys = {"cell", "platform", "pins", "tags", "build_key", "action", "reason", "unproven"}
        assert row.keys() == keys
        assert len(row["build_key"]) == 64


def new_project(run: Run, folder: Path) -> Path:
    """A new project with the cpu example, whose cells our own lock covers."""
    done = run("init", "--from", "cpu", str(folder))
    assert done.code == 0, done.err
    shutil.copy(ROOT / "wheels.lock", folder)
    return folder


def test_init_says_what_it_wrote_and_what_to_do_next(tmp_path: Path, run: Run) -> None:
    done = run("init", cwd=tmp_path)
    assert done.code == 0
    assert "matrix.yaml" in done.out.split()
    steps = ["imagefactory lock", "imagefactory plan", "imagefactory build --matrix"]
    assert [line.strip() for line in done.err.splitlines()[-3:]] == steps
    again = run("init", cwd=tmp_path)
    assert again.code == 2
    assert "matrix.yaml exists already" in again.err


def test_a_new_project_is_planned_and_rendered_with_the_stock_files(
    tmp_path: Path, run: Run
) -> None:
    folder = new_project(run, tmp_path / "new")
    done = run("plan", "--check", cwd=folder)
    assert (done.code, done.err) == (0, "1 cell: matrix, lock and patches agree\n")
    ours = run("render", "--select", "flavor=cpu")
    assert run("render", cwd=folder).out == ours.out


def test_plan_check_fails_with_what_does_not_agree(tmp_path: Path, run: Run) -> None:
    folder = new_project(run, tmp_path / "new")
    text = (folder / "matrix.yaml").read_text()
    (folder / "matrix.yaml").write_text(text.replace("vllm/cpu-dist-info", "vllm/unknown"))
    done = run("plan", "--check", "--json", cwd=folder)
    assert done.code == 2
    assert [error["code"] for error in json.loads(done.out)["errors"]] == ["patch-unknown"]
    (folder / "matrix.yaml").write_text(text.replace("0.32.0", "0.31.0"))
    done = run("plan", "--check", cwd=folder)
    assert done.code == 2
    assert "[lock-uncovered]" in done.err


def test_explain_shows_which_patches_and_templates_are_the_projects_own(
    tmp_path: Path, run: Run
) -> None:
    folder = new_project(run, tmp_path / "new")
    shutil.copytree(ROOT / "patches/vllm/cpu-dist-info", folder / "patches/vllm/cpu-dist-info")
    (folder / "templates").mkdir()
    shutil.copy(ROOT / "templates/entrypoint", folder / "templates")
    done = run("plan", "--explain", "cpu*", "--json", cwd=folder)
    rows = {row["what"]: row for row in json.loads(done.out)}
    replaced = "project, replaces stock"
    assert rows["patch file"]["where"] == "patches/vllm/cpu-dist-info/patch.yaml"
    assert rows["patch file"]["section"] == rows["template"]["section"] == replaced
    assert rows["template"]["where"] == "templates/entrypoint"
    assert "template" not in run("plan", "--explain", "cpu*").out.split()


def test_hooks_and_workflows_run_commands_that_exist(run: Run) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    workflow = yaml.safe_load(examples.files(Example.GB10)[".github/workflows/nightly.yml"])
    lines = [hook["entry"] for hook in hooks]
    lines += [step.get("run", "") for step in workflow["jobs"]["nightly"]["steps"]]
    ours = [line.split() for line in lines if line.startswith("imagefactory ")]
    assert len(ours) == 6
    for _, command, *words in ours:
        options = {word for word in words if word.startswith("--")}
        assert options <= set(run(command, "--help").out.split())


def test_a_shell_completes_commands_and_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_IMAGEFACTORY_COMPLETE", "complete_bash")
    for typed, offered in (("imagefactory pl", "plan"), ("imagefactory plan --sel", "--select")):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        assert run() == (0, f"{offered}\n", "")


def test_explain_shows_where_values_are_set(run: Run) -> None:
    done = run("plan", "--explain", "cpu*", "--json")
    rows = {row["what"]: row for row in json.loads(done.out)}
    assert rows["torch"]["where"].startswith("matrix.yaml:")
    assert rows["override"]["value"].startswith("drop ")


@pytest.fixture
def unpackers_in_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that has something for each locked unpacker, so that none is downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for one in store.read(ROOT / "wheels.lock").unpackers:
        path = tmp_path / "cache/imagefactory/unpackers" / one.wheel.sha256 / "uv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.platform)


@pytest.mark.usefixtures("unpackers_in_cache")
def test_render_prints_a_dockerfile_and_writes_a_bake_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = "oci-layout:///made@sha256:1"  # assembling one takes seconds
    monkeypatch.setattr(bases, "contexts", lambda *_: {"root": layout})
    done = run("render", "--select", "vllm=0.33.0")
    assert done.out.startswith("# Generated by imagefactory for gb10-")
    assert "do not edit" in done.out
    done = run("render", "--select", "vllm=0.33.0", "--out", str(tmp_path))
    assert done.code == 0, done.err
    targets = json.loads((tmp_path / "docker-bake.json").read_text())["target"]
    (cell,) = [name for name in targets if name.startswith("gb10")]
    assert targets[cell]["platforms"] == ["linux/arm64"]
    assert targets["base-trixie-arm64"]["contexts"]["root"] == layout
    assert (tmp_path / cell / "patches" / "series.json").is_file()
    assert (tmp_path / "builder-trixie-arm64" / "uv").read_text() == "linux/arm64"


def test_building_without_an_engine_is_a_setup_error(run: Run) -> None:
    done = run("build", "--matrix")
    assert done.code == 3
    assert "imagefactory engine up" in done.err


def ending(monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]) -> None:
    """Let the program run ``command`` in place of what the command line says."""
    monkeypatch.setattr(cli, "app", lambda **_: command())


def broken(result: object) -> Callable[[], None]:
    def command() -> None:
        if result is not None:
            ui.emit_json(result)
        raise CheckFailedError(Problem(code="check-failed", where="tag", what="x", fix="y"))

    return command


FAILED = {
    "errors": [{"code": "check-failed", "where": "tag", "what": "x", "fix": "y", "detail": ""}],
    "exit_code": 1,
}


@pytest.mark.parametrize(
    ("result", "document"),
    [(None, FAILED), ({"a": 1}, {"a": 1, **FAILED}), ([{"a": 1}], [{"a": 1}]), ([], [])],
)
def test_with_json_a_failure_is_one_document_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, run: Run, result: object, document: object
) -> None:
    ending(monkeypatch, broken(result))
    done = run("verify", "tag", "--json")
    assert (done.code, json.loads(done.out)) == (1, document)
    assert "error: tag: x [check-failed]" in done.err


def test_without_json_a_failure_is_text_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    ending(monkeypatch, broken(None))
    for argv in (["verify"], ["verify", "--", "--json"]):
        done = run(*argv)
        assert (done.code, done.out) == (1, "")


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "--nonsense", "--json"],
        ["patch", "check", "--json"],
        ["plan", "--json", "--select"],
        ["plan", "--json", "--select", "flavour=x"],
        ["build", "--json"],
        ["verify", "tag", "--from", "folder", "--json"],
    ],
)
def test_with_json_wrong_input_is_a_document_too(run: Run, argv: list[str]) -> None:
    done = run(*argv)
    found = json.loads(done.out)
    assert (done.code, found["exit_code"]) == (2, 2)
    assert all(one["what"] and one["fix"] for one in found["errors"])


def test_with_json_a_bug_is_a_document_and_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(**_: object) -> None:
        redaction.remember("s3cret-word")
        raise KeyError("s3cret-word")

    monkeypatch.setattr(cli, "app", bug)
    monkeypatch.setattr(sys, "argv", ["imagefactory", "plan", "--json"])
    monkeypatch.setattr(shell, "LOG", CommandLog())
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == 1
    written = capsys.readouterr()
    (error,) = json.loads(written.out)["errors"]
    assert (error["code"], error["what"]) == ("internal-error", "KeyError: '***'")
    assert "Traceback (most recent call last)" in written.err
    assert "s3cret-word" not in written.out + written.err


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_with_json_a_command_that_is_stopped_is_a_document_too(
    tmp_path: Path, number: int, code: int, name: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/up\nexec sleep 30\n")
    docker.chmod(0o755)
    process = start(tmp_path, "plan", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}")
    up = tmp_path / "up"
    while not up.exists() or len(up.read_text().splitlines()) < 2:  # engine and Buildx
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number)  # as a terminal does
    out, said = process.communicate(timeout=60)
    found = json.loads(out)
    assert (process.returncode, found["exit_code"]) == (code, code)
    assert [one["code"] for one in found["errors"]] == [name]
    assert "Traceback" not in said


def test_the_real_program_plans_and_fails_with_one_document_each(tmp_path: Path) -> None:
    with start(tmp_path, "plan", "--json") as planned:
        out, said = planned.communicate()
    assert planned.returncode == 0, said
    assert {row["action"] for row in json.loads(out)} == {"build"}
    logged = (tmp_path / "imagefactory" / "logs" / "commands.log").read_text()
    assert "docker version --format" in logged
    with start(tmp_path, "build", "--matrix", "--json") as refused:
        out, said = refused.communicate()
    assert (refused.returncode, json.loads(out)["exit_code"]) == (3, 3)
    assert "[no-engine]" in said


def test_output_that_the_terminal_cannot_encode_is_escaped(tmp_path: Path) -> None:
    argv = "plan", "--explain", "cpu* not é\x1b[2J"
    with start(tmp_path, *argv, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as process:
        out, said = process.communicate()
    assert process.returncode == 0, said
    assert out.startswith(r"cpu* not \xe9\x1b[2J")

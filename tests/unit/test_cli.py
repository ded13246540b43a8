"""The command line as users see it: help with examples, clear errors, sensible exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from support import ROOT
from support.plans import STACK
from support.program import Run, run

from imagefactory import cli
from imagefactory.building import bases
from imagefactory.building.stack import stack
from imagefactory.locking import store
from imagefactory.patching import importing
from imagefactory.patching.importing import Imported
from imagefactory.system import ui

__all__ = ["run"]
COMMANDS = [
    "init",
    "plan",
    "lock",
    "outdated",
    "export",
    "render",
    "build",
    "verify",
    "recipe list",
    "recipe show",
    "recipe check",
    "recipe run",
    "recipe export",
    "recipe import",
    "push",
    "promote",
    "rollback",
    "history",
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
    "cluster init",
    "cluster show",
    "cluster check",
    "cluster up",
    "cluster status",
    "cluster logs",
    "cluster down",
    "bench server",
    "bench diff",
    "prune",
    "engine",
]
#: Commands whose output is not for programs, or is a shell's.
WITHOUT_JSON = ("render", "export", "recipe export", "cluster logs", "engine")


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
    assert not re.search(r"<(str|path|list|int|float)\b", out)  # no Python types


def test_the_list_of_commands_cuts_no_sentence_off(run: Run) -> None:
    _, _, listed = run("--help").out.partition("Commands:\n")
    assert not re.search(r"\.\.\.$", listed, re.MULTILINE)


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
    assert "'--from': 'x' is not one of 'gb10', 'cpu'" in run("init", "--from", "x")[2]


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


@pytest.mark.programs
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


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("verify", "https://u:p@h.example/x"), "reference-wrong"),
        (("inspect", "h.example/X:1"), "reference-wrong"),
        (("patch", "list", "-f", "none/matrix.yaml"), "matrix-missing"),
        (("recipe", "list", "-f", "/dev/zero"), "matrix-missing"),
        (("key", "list", "--file", " "), "matrix-missing"),
    ],
)
def test_an_argument_that_can_name_nothing_is_refused(
    run: Run, argv: tuple[str, ...], code: str
) -> None:
    ended = run(*argv)
    assert ended.code == 2
    assert f"[{code}]" in ended.err
    assert "u:p" not in ended.err


def test_a_closed_standard_output_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    ended = run("plan", "--check")
    assert ended.code == 3
    assert "standard output is closed [output-closed]" in ended.err


def test_a_closed_standard_input_has_nothing_to_say(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    run("plan", "--check")
    assert sys.stdin is not None


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


@pytest.mark.programs
def test_a_plan_needs_no_engine_and_its_json_has_the_documented_fields(run: Run) -> None:
    done = run("plan", "--json")
    assert done.code == 0, done.err
    for row in json.loads(done.out):
        keys = {"cell", "platform", "pins", "tags", "build_key", "action", "reason", "unproven"}
        assert row.keys() == keys | {"audit"}
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
    assert (again.code, "matrix.yaml exists already" in again.err) == (2, True)
    assert "\n  cd 'my images'\n" in run("init", "my images", cwd=tmp_path).err


@pytest.mark.programs
def test_a_new_project_is_planned_and_rendered_with_the_stock_files(
    tmp_path: Path, run: Run
) -> None:
    folder = new_project(run, tmp_path / "new")
    done = run("plan", "--check", cwd=folder)
    assert done.code == 0
    assert done.err.startswith("1 cell: matrix, lock and patches agree")
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
    (folder / "templates/entrypoint").rename(folder / "templates/entripoint")
    done = run("plan", "--explain", "cpu*", "--json", cwd=folder)
    rows = {row["what"]: row for row in json.loads(done.out)}
    assert (rows["template"]["value"], rows["template"]["section"]) == ("entripoint", "project")
    assert "template" not in run("plan", "--explain", "cpu*").out.split()


def test_hooks_and_workflows_run_commands_and_targets_that_exist(run: Run) -> None:
    texts = [
        hook["entry"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    ]
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job.get("steps", ()):
                texts += [step.get("run", ""), step.get("with", {}).get("command", "")]
    lines = [line for text in texts for line in text.splitlines()]
    ours = [line.split() for line in lines if line.startswith("imagefactory ")]
    assert len(ours) == 6
    for _, command, *words in ours:
        options = {word for word in words if re.match("--?[a-z]", word)}
        options |= {word.partition(":+")[2] for word in words if ":+--" in word}
        assert options <= set(re.split(r"[\s,]+", run(command, "--help").out)), command
    targets = {line.split()[1] for line in lines if line.startswith(("make ", ".ci/step "))}
    assert len(targets) == 7
    assert targets <= set(re.findall("(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))


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


@pytest.mark.programs
@pytest.mark.usefixtures("unpackers_in_cache")
def test_render_prints_a_dockerfile_and_writes_a_bake_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = "oci-layout:///made@sha256:1"  # assembling one takes seconds
    monkeypatch.setattr(bases, "contexts", lambda *_: {"root": layout})
    monkeypatch.setattr(stack, "make", lambda *_: STACK)
    newest = ("--select", "flavor=gb10 vllm=0.33.0")
    done = run("render", *newest)
    assert re.match(r"(?s)# Generated by imagefactory for gb10-.*do not edit", done.out)
    done = run("render", *newest, "--out", str(tmp_path))
    assert done.code == 0, done.err
    targets = json.loads((tmp_path / "docker-bake.json").read_text())["target"]
    (cell,) = [name for name in targets if name.startswith("gb10")]
    assert targets[cell]["platforms"] == ["linux/arm64"]
    assert targets[cell]["contexts"]["packages"] == STACK.image
    assert targets["builder-trixie-arm64"]["contexts"]["root"] == layout
    assert (tmp_path / cell / "patches" / "series.json").is_file()
    assert (tmp_path / "builder-trixie-arm64" / "uv").read_text() == "linux/arm64"


@pytest.mark.programs
def test_building_without_an_engine_is_a_setup_error(run: Run) -> None:
    done = run("build", "--matrix")
    assert done.code == 3
    assert "imagefactory engine up" in done.err

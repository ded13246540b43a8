"""Matrix files that nobody means: each is refused in one line, and at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.matrices import problems, write

from imagefactory import workspace
from imagefactory.matrix import origins

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BOMB, "matrix-syntax"),
        ("a: " + "[" * 5000, "matrix-syntax"),
        ("- " * 5000, "matrix-syntax"),
        ("a: &a [*a]\n", "matrix-syntax"),
        (f"version: {'9' * 5000}\n", "matrix-too-long"),
        ('repository: "\\ud800"\n', "matrix-character"),
        ("repository: a\u202eb\n", "matrix-character"),
    ],
)
def test_text_that_would_explode_or_hide_something_is_refused(
    tmp_path: Path, text: str, code: str
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    found = problems(path)
    assert code in {problem.code for problem in found}
    assert all((problem.where or "").startswith(f"{path}:") for problem in found)


def test_joined_emoji_and_line_ends_are_text_like_any_other(tmp_path: Path) -> None:
    path = write(tmp_path, "summary: DGX Spark", 'summary: "👩\u200d💻 é"')
    assert problems(path) == []


def test_a_pipe_a_folder_and_a_circular_link_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    for name in ("pipe", "folder", "circle"):
        (problem,) = problems(tmp_path / name)
        assert problem.code == "matrix-missing"
        assert "cannot be read" in problem.what
    assert workspace.find(tmp_path / "circle", {"HOME": "/x"}).project == tmp_path


def test_a_product_of_long_lists_is_counted_and_not_made(tmp_path: Path) -> None:
    values = ", ".join(f'"{n}"' for n in range(1500))
    path = write(tmp_path, '  python: ["3.13"]\n', f"  python: [{values}]\n  extra: [{values}]\n")
    (problem,) = problems(path)
    assert problem.code == "matrix-too-large"
    assert problem.what == "the matrix has 4500001 cells, more than 10000"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"vllm=={vllm}"', '"-r /etc/passwd"'),
        ('python: "3.13"\n    glibc', 'python: "3.99999999"\n    glibc'),
        ('glibc: "2.41"', 'glibc: "2.\u0664\u0661"'),
        ("repository: example/vllm", "repository: -x/vllm"),
        ("suite: trixie", 'image: "--help"'),
        ("env: {A: b}", 'env: {"--x": b}'),
        ("[vllm/one]", "[vllm/-one]"),
        ('"{flavor}-vllm{vllm}-torch{torch}-py{python}"', '"-- --help"'),
        ("exclude: []", "toolchains: {t: {requirements: [-r x], platforms: [linux/arm64]}}"),
        ("exclude: []", 'toolchains: {"--t": {requirements: [x], platforms: [linux/arm64]}}'),
    ],
)
def test_nothing_that_a_program_would_take_for_an_option_is_accepted(
    tmp_path: Path, old: str, new: str
) -> None:
    found = problems(write(tmp_path, old, new))
    assert found
    assert all(problem.where and problem.fix for problem in found)


@pytest.mark.parametrize("text", ["git+ssh://-oProxyCommand=x/y@main", "git+https://h/r@-x"])
def test_a_host_or_a_ref_cannot_be_an_option(text: str) -> None:
    assert origins.parse(text) is None

"""Locks that were edited, cut off or merged badly: every value is validated, its line reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import projects

from imagefactory.errors import InputError, Problem
from imagefactory.locking import store

FIRST = 'filename = "numpy-2.3-py3-none-any.whl"'
HASH = f'sha256 = "{"0" * 63}5"'


def problem_of(folder: Path, old: str, new: str) -> tuple[Problem, int]:
    """The problem with the project's lock after a change, and the line of that change."""
    path = projects.write(folder).with_name("wheels.lock")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        store.read(path)
    (problem,) = caught.value.problems
    return problem, text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HASH, 'sha256 = ""'),
        (HASH, f'sha256 = "{"A" * 64}"'),
        (FIRST, 'filename = "../../etc/passwd"'),
        (FIRST, 'filename = "torch-2.3-py3-none-any.whl"'),
        ("size = 1", "size = -1"),
        ("size = 1", 'size = "1"'),
        ("size = 1", "size = true"),
        ("size = 1", "size = 1\nlicense = 1"),
        ('index = "https://pypi.org/simple"', 'index = "--help"'),
        ('name = "numpy"', 'name = "num\u202epy"'),
        ('path = "pool/', 'path = "pool/../../'),
        ('url = "https://', 'url = "ext::sh -c '),
        ('tags = "py3-none-any"', 'tags = "py2-none-any"'),
        ('reason = "a reason"', 'reason = "a \ufeffreason"'),
    ],
)
def test_every_value_is_validated(tmp_path: Path, old: str, new: str) -> None:
    problem, line = problem_of(tmp_path, old, new)
    assert problem.code == "lock-malformed"
    assert problem.fix
    assert problem.where
    assert abs(int(problem.where.rpartition(":")[2]) - line) <= 1


@pytest.mark.parametrize("day", ["", "yesterday", "2026-13-01", "2026-01-45", "2026-1-1"])
def test_a_date_is_a_date(tmp_path: Path, day: str) -> None:
    problem, line = problem_of(tmp_path, f'created = "{projects.DAY}"', f'created = "{day}"')
    assert problem.where == f"{tmp_path / 'wheels.lock'}:{line}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("format = 1", "format = 1\nx = " + "[" * 5000),
        ("size = 1", "size = " + "9" * 5000),
        ("[[resolution]]", "<<<<<<< ours\n[[resolution]]"),
        ("format = 1", "format = 1\ntool = 1"),
        ("tags = ", "tag = "),
    ],
)
def test_what_is_no_lock_is_refused(tmp_path: Path, old: str, new: str) -> None:
    problem, _ = problem_of(tmp_path, old, new)
    assert problem.code == "lock-malformed"


def test_the_same_wheel_twice_contradicts_itself(tmp_path: Path) -> None:
    path = projects.write(tmp_path).with_name("wheels.lock")
    text = path.read_text()
    begin = text.index("[[resolution.wheel]]")
    end = text.index("[[resolution.wheel]]", begin + 1)
    path.write_text(text[:end] + text[begin:end] + text[end:])
    with pytest.raises(InputError, match="two wheels of numpy"):
        store.read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wheels.lock")
    with pytest.raises(InputError, match="not a regular file"):
        store.read(tmp_path / "wheels.lock")

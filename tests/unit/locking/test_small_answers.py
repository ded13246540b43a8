"""Tables of what small pure parts of locking answer: markers, tags, names, torch, failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.tags import parse_tag
from packaging.version import Version
from support.plans import planned
from support.projects import wheel

from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, SetupError
from imagefactory.locking import closure, cures, failures, gitref, naming, pylock, tags, torch_build
from imagefactory.locking.failures import Failure, Failures
from imagefactory.locking.lock import LockedOverride, TorchBuild
from imagefactory.matrix.cell import Cell, Override, request_of
from imagefactory.system import shell
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

HERE = Location(file="matrix.yaml", line=7)
TARGET = closure.environment(Platform.ARM64, "3.13")
#: A marker for each variable of PEP 508, as wheels for Linux have them, and one that is false.
MARKERS = {
    "implementation_name": "== 'cpython'",
    "implementation_version": ">= '3.13'",
    "os_name": "== 'posix'",
    "platform_machine": "== 'aarch64'",
    "platform_python_implementation": "== 'CPython'",
    "platform_release": "== ''",
    "platform_system": "== 'Linux'",
    "platform_version": "== ''",
    "python_full_version": "== '3.13.0'",
    "python_version": "== '3.13'",
    "sys_platform": "== 'linux'",
}


def test_every_variable_of_markers_has_the_value_of_the_target() -> None:
    assert MARKERS.keys() == default_environment().keys() == TARGET.keys()
    for name, test in MARKERS.items():
        other = test.replace("==", "!=").replace(">=", "<")
        lines = {"app": [f"yes; {name} {test}", f"no; {name} {other}"]}
        assert closure.active(lines, [], (), TARGET) == {"app": ("yes",)}, name
    assert closure.environment(Platform.AMD64, "3.11")["platform_machine"] == "x86_64"


def test_what_a_lock_lacks_is_judged_on_the_target_with_names_and_versions_normalized() -> None:
    part = planned().resolution
    own = wheel("a-b", "1.0", "C.D[x,y]>=2", "no; python_version<'3'", "e @ https://host/e.whl")
    wheels = (own, wheel("c-d", "2.0rc1"), wheel("e", "1"))

    def lacking(*more: str) -> tuple[str, ...]:
        return closure.lacking(
            replace(part, requirements=("A_B", *more), wheels=wheels, overrides=())
        )

    assert lacking() == ("a-b 1.0 requires c-d[x,y]>=2, but it has c-d 2.0rc1",)
    assert lacking("C.D==2.0rc1", "f!") == (
        "the matrix requires 'f!', which is not a valid requirement",
        *lacking(),
    )
    assert lacking("f>1") == ("the matrix requires f>1, which has no wheel in it", *lacking())


def test_extras_are_followed_through_overrides_and_each_is_asked_for_once() -> None:
    lines = {
        "app": ["web"],
        "web": ["fast; extra == 'speed'", "web[speed]; extra == 'all'"],
        "fast": [],
    }
    kept = LockedOverride(requirement="web[all]", drop=False, reason="r")
    dropped = LockedOverride(requirement="web", drop=True, reason="r")
    assert closure.active(lines, ["app"], (), TARGET)["web"] == ()
    assert closure.active(lines, ["web[all]"], (), TARGET)["web"] == ("fast", "web[speed]")
    assert closure.active(lines, ["app"], (kept,), TARGET)["web"] == ("web[speed]",)
    assert closure.active(lines, ["app", "web[all]"], (dropped,), TARGET)["web"] == ()


@pytest.mark.parametrize(
    ("platform", "python", "glibc", "accepted", "refused"),
    [
        (Platform.ARM64, "3.13", "2.28", "cp313-cp313-manylinux_2_28_aarch64", "2_29_aarch64"),
        (Platform.ARM64, "3.13", "2.28", "cp313-cp313-manylinux2014_aarch64", "2_28_x86_64"),
        (Platform.ARM64, "3.13", "2.28", "cp39-abi3-manylinux_2_17_aarch64", "2_16_aarch64"),
        (Platform.ARM64, "3.13", "2.28", "py3-none-linux_aarch64", "2010_aarch64"),
        (Platform.AMD64, "3.11", "2.41", "cp311-cp311-manylinux_2_40_x86_64", "2_41_x86_64"),
        (Platform.AMD64, "3.11", "2.41", "cp311-cp311-manylinux1_x86_64", "2_4_x86_64"),
        (Platform.AMD64, "3.11", "2.41", "cp311-none-manylinux2010_x86_64", "2_28_aarch64"),
        (Platform.AMD64, "3.11", "2.41", "py3-none-manylinux_2_5_x86_64", "2_4_x86_64"),
    ],
)
def test_a_target_accepts_the_wheels_of_its_platform_python_and_glibc(
    platform: Platform, python: str, glibc: str, accepted: str, refused: str
) -> None:
    request = replace(request_of(planned().cell), platform=platform, python=python, glibc=glibc)
    found = [str(tag) for tag in tags.target_tags(request)]
    assert accepted in found
    assert not [tag for tag in found if refused in tag]
    newer = f"cp{python.replace('.', '')[:-1]}{int(python[-1]) + 1}"
    assert not [tag for tag in found if tag.startswith(f"{newer}-")]
    assert found.index(accepted) < found.index("py3-none-any")


@pytest.mark.parametrize(
    ("version", "cuda", "channel", "code"),
    [
        ("2.11.0+cpu", None, "cpu", ""),
        ("2.11.0+cpu", "13.0", "cpu", "torch-not-cpu"),
        ("2.11.0", None, "cpu", "torch-not-cpu"),
        ("2.11.0+cu130", "13.0", "cpu", "torch-not-cpu"),
        ("2.11.0+cu130", "13.0", "cu130", ""),
        ("2.11.0+cu130", "13.2", "cu130", "torch-other-channel"),
        ("2.11.0+cu132", "13.0", "cu130", "torch-other-channel"),
        ("2.11.0+cu132", "13.2", "cu130", "torch-other-channel"),
        ("2.11.0+cu130", None, "cu130", "torch-cpu-build"),
        ("2.11.0+cpu", None, "cu130", "torch-cpu-build"),
    ],
)
def test_a_torch_belongs_to_its_channel_only_if_its_name_and_its_cuda_do(
    version: str, cuda: str | None, channel: str, code: str
) -> None:
    found = torch_build.check(TorchBuild(version=version, cuda=cuda), channel, where="here")
    assert (found.code if found else "") == code
    assert found is None or found.where == "here"


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        ("__version__ = '2.1+cu130'\ncuda = '13.0'\n", "2.1+cu130", "13.0"),
        ("__version__: str = '2.1'\ncuda: object = None\n", "2.1", None),
        ("version = __version__ = '2.1'\nx.cuda = '1'\nother = '3'\n", "2.1", None),
        ("__version__ = f()\nprint(1)\ncuda = '13.0'\n", None, "13.0"),
    ],
)
def test_what_torch_says_of_itself_is_read_without_running_it(
    text: str, version: str | None, cuda: str | None
) -> None:
    assert torch_build.facts(text) == {"version": version, "cuda": cuda}


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (f"3.{n}", [f"choose a base with Python 3.{n}, which x 1 has a wheel for"])
        for n in range(10, 15)
    ]
    + [("3.9", []), ("3.15", [])],
)
def test_a_base_with_another_python_is_proposed_if_there_may_be_one(
    python: str, said: list[str]
) -> None:
    request = replace(
        request_of(planned().cell), platform=Platform.ARM64, python="3.8", glibc="2.41"
    )
    name = f"cp{python.replace('.', '')}"
    files = [(Version("1"), parse_tag(f"{name}-{name}-manylinux_2_28_aarch64"))]
    assert list(cures._cures("x 1", files, files, request)) == said


def test_cells_share_a_resolution_if_only_reasons_and_lines_differ() -> None:
    override = Override(requirement="x==1", drop=False, reason="r", location=HERE)
    first: Cell = replace(planned().cell, overrides=(override,))
    other = replace(override, reason="s", location=replace(HERE, line=8))
    same = replace(first, name="same", overrides=(other,))
    more = replace(first, requirements=(*first.requirements, "y"))
    own = replace(more, axes={**more.axes, "transformers": "5", "zeta": "1"})
    found = naming.named_requests([first, same, more, own])
    names = [name for name, *_ in found]
    start = f"linux-arm64-py{first.python.replace('.', '')}-{first.channel}-vllm-{first.vllm}"
    assert names[:2] == [start, f"{start}-2"]
    assert [users for _, users, _ in found] == [[first, same], [more, own]]
    (alone,) = naming.named_requests([own])
    assert alone[0] == f"{start}-transformers-5-zeta-1"
    dropped = replace(first, overrides=(replace(override, drop=True),))
    assert len(naming.named_requests([first, dropped])) == 2


def problem(code: str, where: str | None = None) -> Problem:
    return Problem(code=code, what="w", where=where, fix="f")


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        ((), None),
        ((SetupError,), SetupError),
        ((SetupError, CheckFailedError), CheckFailedError),
        ((CheckFailedError, InputError, SetupError), InputError),
    ],
)
def test_failures_are_one_error_of_the_most_specific_kind(
    kinds: tuple[type[FactoryError], ...], kind: type[FactoryError] | None
) -> None:
    rows = [
        Failure(name="n", cells=(), error=one([problem("same"), problem(one.__name__)]), kept=False)
        for one in kinds
    ]
    error = failures.combined(rows)
    assert (type(error) if error else None) == kind
    codes = [one.code for one in error.problems] if error else []
    assert codes == (["same", *(one.__name__ for one in kinds)] if kinds else [])


def throw(error: Exception) -> None:
    raise error


def test_a_failure_has_its_cells_and_their_line_and_other_errors_are_not_caught() -> None:
    found, cell = Failures(), planned().cell
    with found.of("r", [cell], kept=True):
        throw(CheckFailedError([problem("a"), problem("b", "elsewhere")]))
    with found.of("tools", kept=False):
        throw(SetupError(problem("c")))
    with found.of("fine", kept=False):
        pass
    with pytest.raises(KeyError), found.of("bug", kept=False):
        throw(KeyError())
    first, second = found.rows
    assert [one.where for one in first.error.problems] == [
        str(cell.locations["vllm"]),
        "elsewhere",
    ]
    assert isinstance(first.error, CheckFailedError)
    assert [one.where for one in second.error.problems] == [None]
    assert (str(first), str(second)) == (f"r ({cell.name}): kept as it was", "tools: not locked")
    assert first.as_dict() == {"name": "r", "cells": [cell.name], "kept": True}


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("rows", "commit"),
    [
        ({"refs/tags/v1": "b", "refs/tags/v1^{}": "a", "refs/heads/v1": "c"}, "a"),
        ({"refs/heads/v1": "c", "refs/tags/v1": "b"}, "b"),
        ({"refs/heads/v1": "c"}, "c"),
        ({}, None),
    ],
)
def test_a_tag_is_preferred_to_a_branch_and_its_commit_to_itself(
    monkeypatch: pytest.MonkeyPatch, rows: dict[str, str], commit: str | None
) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], *, env: dict[str, str], quiet: bool) -> shell.Completed:
        asked.append(argv)
        assert env == {"GIT_TERMINAL_PROMPT": "0", "GIT_ADVICE": "0", "LC_ALL": "C"}
        out = "".join(f"{commit}\t{name}\n" for name, commit in rows.items())
        return shell.Completed(argv=tuple(argv), code=0, out=out, err="")

    monkeypatch.setattr(shell, "run", run)
    if commit:
        assert gitref.commit_of("https://host/r", "v1") == commit
    else:
        with pytest.raises(SetupError, match="has no tag or branch v1"):
            gitref.commit_of("https://host/r", "v1")
    names = ["refs/tags/v1^{}", "refs/tags/v1", "refs/heads/v1"]
    assert asked == [["git", "ls-remote", "https://host/r", *names]]
    assert gitref.commit_of("https://host/r", COMMIT) == COMMIT
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("out", "err", "says"),
    [
        ("a\nb\n", "c\nfatal: d\n", "git fetch: fatal: d"),
        ("a\nb\n", "", "git fetch: b"),
        ("", "", "git fetch: failed"),
        (
            "",
            (
                "fatal: '/x' does not appear to be a git repository\n"
                "fatal: Could not read from remote repository.\n\n"
                "Please make sure you have the correct access rights\nand the repository exists.\n"
            ),
            "git fetch: fatal: '/x' does not appear to be a git repository",
        ),
        (
            "",
            "fatal: Could not read from remote repository.\n",
            "git fetch: fatal: Could not read from remote repository.",
        ),
    ],
)
def test_what_git_says_at_last_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, err: str, says: str
) -> None:
    asked: list[tuple[str, ...]] = []

    def run(argv: list[str], **_: object) -> shell.Completed:
        asked.append(tuple(text.replace(str(tmp_path), "") for text in argv))
        done = "fetch" not in argv
        return shell.Completed(argv=tuple(argv), code=0 if done else 1, out=out, err=err)

    monkeypatch.setattr(shell, "run", run)
    with pytest.raises(SetupError) as caught:
        gitref.pack("https://host/r", COMMIT, tmp_path / "x.tar")
    (found,) = caught.value.problems
    assert (found.code, found.what) == ("git-failed", says)
    assert [argv[1] if argv[1] == "init" else argv[3:] for argv in asked] == [
        "init",
        ("fetch", "--quiet", "--depth", "1", "https://host/r", COMMIT),
    ]


def test_what_pylock_has_no_field_for_is_in_its_table_of_tools(tmp_path: Path) -> None:
    override = LockedOverride(requirement="x==1", drop=False, reason="why")
    part = replace(planned().resolution, wheels=(), overrides=(override,))
    found = pylock._facts(part, "a-cell")
    assert found == {
        "cell": "a-cell",
        "resolution": part.name,
        "created": part.created,
        "glibc": part.glibc,
        "torch": part.torch.version,
        "overrides": [{"requirement": "x==1", "drop": False, "reason": "why"}],
    }
    text = pylock.dumps(part, {}, tmp_path, cell="a-cell")
    assert 'implementation_name == \\"cpython\\"' in text
    assert 'sys_platform == \\"linux\\"' in text
    assert 'created-by = "imagefactory"' in text
    assert 'lock-version = "1.0"' in text

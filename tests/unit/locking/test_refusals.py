"""What git, a wheel or a registry cannot give ends with one error that says so."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import remotezip
import requests
import urllib3
from remotezip import RangeNotSupported
from support.machine import settings
from support.project import project_lock
from support.projects import wheel

from imagefactory.errors import FactoryError
from imagefactory.locking import (
    bases,
    clone,
    gitref,
    indexes,
    refs,
    remote_wheel,
    store,
    torch_build,
    wheelhouse,
)
from imagefactory.locking.clone import Clone
from imagefactory.locking.lock import WHEELHOUSE
from imagefactory.matrix.cell import VllmRef
from imagefactory.system import archive, shell, web
from imagefactory.system.yamlfile import Location

WANTED = VllmRef(
    repository="https://h.example/vllm",
    ref="main",
    prs=(),
    base="0.33.0",
    tools=None,
    words="main",
    location=Location(file="matrix.yaml", line=7),
)
CLONE = Clone(Path("none"))


def code_of(work: Callable[[], object]) -> str:
    """The code of the only problem that ``work`` ends with; empty if it ends well."""
    try:
        work()
    except FactoryError as error:
        (problem,) = error.problems
        return problem.code if problem.fix else f"{problem.code} without a fix"
    return ""


@pytest.mark.parametrize(
    ("base", "described", "code"),
    [
        ("0.33.0", ("v0.33.0", 2), ""),
        ("0.33.0", ("v0.33.0", 0), ""),
        ("0.33.0", None, "ref-no-tag"),
        ("0.33.0", ("vnext", 1), "ref-no-tag"),
    ],
)
def test_a_ref_has_a_version_only_if_a_release_is_in_its_history(
    monkeypatch: pytest.MonkeyPatch, base: str, described: object, code: str
) -> None:
    monkeypatch.setattr(Clone, "described", lambda *_: described)
    assert code_of(lambda: refs._version(CLONE, replace(WANTED, base=base), "a" * 40)) == code


@pytest.mark.parametrize(
    ("base", "sought"),
    [("0.33.0", "refs/tags/v0.33.0"), ("0.33.1.dev1+g1234abcd.cu130", "1234abcd")],
)
def test_the_commit_of_a_base_is_that_of_its_tag_or_the_one_that_it_names(
    monkeypatch: pytest.MonkeyPatch, base: str, sought: str
) -> None:
    asked: list[str] = []
    answers: list[str | None] = ["b" * 40, None]

    def commit(_: Clone, name: str) -> str | None:
        asked.append(name)
        return answers.pop(0)

    monkeypatch.setattr(Clone, "commit", commit)
    wanted = replace(WANTED, base=base)
    assert refs._base(CLONE, wanted) == "b" * 40
    assert code_of(lambda: refs._base(CLONE, wanted)) == "ref-base"
    assert asked == [sought] * 2


def test_a_ref_that_is_its_base_and_a_pull_request_that_is_in_it_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    monkeypatch.setattr(clone, "opened", lambda *_: nullcontext(CLONE))
    monkeypatch.setattr(gitref, "commit_of", lambda *_: commit)
    monkeypatch.setattr(Clone, "fetch", lambda *_: None)
    monkeypatch.setattr(Clone, "commit", lambda *_: commit)
    assert code_of(lambda: refs.lock_ref(WANTED, settings(tmp_path))) == "ref-is-base"
    monkeypatch.setattr(Clone, "fork", lambda *_: None)
    assert code_of(lambda: refs._pull(CLONE, 7, commit, [commit], WANTED)) == "pr-merged"
    monkeypatch.setattr(gitref, "_first", lambda *_: None)
    assert code_of(lambda: gitref.head_of(WANTED.repository, 7)) == "no-such-pr"
    assert code_of(lambda: gitref.default_of(WANTED.repository)) == "no-such-ref"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"requirements/cuda.txt": "a==1\n# no\n-f x\nb-c>2 # why\n"}, {"a==1", "b-c>2"}),
        (
            {
                "requirements/cuda.txt": "-r common.txt\n--x\nd\n",
                "requirements/common.txt": "-r  more/e.txt\n",
                "requirements/more/e.txt": "e\n",
            },
            {"d", "e"},
        ),
        ({}, "ref-requirements"),
        ({"requirements/cuda.txt": "-r common.txt\n"}, "ref-requirements"),
    ],
)
def test_what_a_commit_requires_is_in_its_files_and_in_those_that_they_name(
    monkeypatch: pytest.MonkeyPatch, texts: Mapping[str, str], found: object
) -> None:
    assert refs.REQUIREMENTS == "requirements/cuda.txt"
    monkeypatch.setattr(Clone, "text", lambda _, __, path: texts.get(path))
    if isinstance(found, str):
        assert code_of(lambda: refs._requirements(CLONE, "a" * 40, WANTED)) == found
    else:
        assert refs._requirements(CLONE, "a" * 40, WANTED) == found


@pytest.mark.parametrize(
    ("code", "out", "expected"),
    [
        (0, "tree\0", ""),
        (1, "tree\0a.py\0", "pr-conflict"),
        (128, "", "pr-failed"),
        (0, "tree\0a.py\0", ""),
    ],
)
def test_a_merge_that_conflicts_is_another_error_than_one_that_git_cannot_make(
    monkeypatch: pytest.MonkeyPatch, code: int, out: str, expected: str
) -> None:
    done = shell.Completed(argv=("git",), code=code, out=out, err="fatal: x")
    monkeypatch.setattr(gitref, "tried", lambda *_: done)
    monkeypatch.setattr(Clone, "_committed", lambda _, tree, *__: tree)
    assert code_of(lambda: CLONE.merged("a" * 40, [("pull request 7", "b..c")])) == expected


def test_a_tree_is_packed_through_an_index_of_its_own_and_not_with_submodules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[tuple[str, ...], Mapping[str, str]]] = []
    monkeypatch.setattr(Clone, "git", lambda _, *words, env: ran.append((words, env)))
    monkeypatch.setattr(archive, "pack", lambda *_: None)
    monkeypatch.setattr(Clone, "text", lambda *_: None)
    CLONE.pack("a" * 40, tmp_path / "x.tar")
    ((words, env),) = ran
    assert words[-4:] == ("read-tree", "--reset", "-u", "a" * 40)
    assert "core.autocrlf=false" in words
    folder = Path(env["GIT_INDEX_FILE"]).parent
    assert f"--work-tree={folder / 'tree'}" in words
    assert folder.parent == tmp_path
    monkeypatch.setattr(Clone, "text", lambda *_: "")
    assert code_of(lambda: CLONE.pack("a" * 40, tmp_path / "x.tar")) == "pr-submodules"


@pytest.mark.parametrize("modules", [True, False])
def test_a_commit_is_fetched_alone_and_packed_with_all_of_its_submodules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, modules: bool
) -> None:
    ran, packed = list[tuple[str, ...]](), list[tuple[Path, Path]]()

    def git(*arguments: str) -> str:
        ran.append(tuple(word for word in arguments if not word.startswith(str(tmp_path))))
        if "checkout" in arguments and modules:
            (Path(arguments[1]) / ".gitmodules").touch()
        elif arguments[0] == "init":
            Path(arguments[-1]).mkdir()
        return ""

    monkeypatch.setattr(gitref, "git", git)
    monkeypatch.setattr(archive, "pack", lambda *args: packed.append(args))
    gitref.pack("https://x.test/r", "abc", tmp_path / "out.tar")
    submodules = ("submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
    assert ran == [
        ("init", "--quiet"),
        ("-C", "fetch", "--quiet", "--depth", "1", "https://x.test/r", "abc"),
        ("-C", "-c", "core.autocrlf=false", "checkout", "--quiet", "FETCH_HEAD"),
        *([("-C", *submodules)] if modules else []),
    ]
    ((tree, target),) = packed
    assert (tree.name, target) == ("tree", tmp_path / "out.tar")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"__version__ = '2.11.0'\ncuda = None\n", ""),
        (b"cuda = None\n", "torch-unreadable"),
        (b"__version__ = \n", "torch-unreadable"),
        (b"__version__ = '\xff'\n", "torch-unreadable"),
        (None, "torch-unreadable"),
    ],
)
def test_a_torch_that_does_not_say_what_it_is_cannot_be_read(
    tmp_path: Path, content: bytes | None, code: str
) -> None:
    torch = wheel("torch", "2.11.0")
    with zipfile.ZipFile(tmp_path / torch.filename, "w") as archive:
        archive.writestr("other", b"")
        if content is not None:
            archive.writestr(torch_build.MEMBER, content)
    own = replace(settings(tmp_path), find_links=(tmp_path / "empty", tmp_path))
    assert code_of(lambda: torch_build.read(torch, "", own)) == code
    (tmp_path / torch.filename).write_bytes(b"no zip")
    assert code_of(lambda: torch_build.read(torch, "", own)) == "torch-unreadable"


@pytest.mark.parametrize(
    ("error", "whole", "code"),
    [
        (RangeNotSupported("no"), False, "index-no-metadata"),
        (zipfile.BadZipFile("no"), True, "index-corrupt"),
        (zipfile.BadZipFile("no"), False, "index-corrupt"),
        (RangeNotSupported("no"), True, "index-corrupt"),
    ],
)
def test_a_wheel_without_ranges_or_that_is_none_is_told_from_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, whole: bool, code: str
) -> None:
    def fails(_: object) -> bytes:
        raise error

    (tmp_path / "x.whl").write_bytes(b"no zip")
    monkeypatch.setattr(web, "with_retries", fails)
    monkeypatch.setattr(wheelhouse, "fetch", lambda *_: tmp_path / "x.whl")
    url, own = "https://h.example/x.whl", settings(tmp_path)
    assert (
        code_of(lambda: remote_wheel.member(wheel("x", "1"), url, own, lambda _: "x", whole=whole))
        == code
    )


def test_an_answer_that_is_cut_off_in_a_member_is_asked_for_again_and_then_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Cut:
        def __init__(self, url: str, **_: object) -> None:
            asked.append(url)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, _: str) -> bytes:
            raise urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead")

    monkeypatch.setattr(remotezip, "RemoteZip", Cut)
    monkeypatch.setenv("UV_HTTP_RETRIES", "1")
    url, own, torch = "https://h.example/x.whl", settings(tmp_path), wheel("torch", "1")
    with pytest.raises(requests.ConnectionError):
        remote_wheel.use(torch, url, own, lambda archive: archive.read("x"))
    assert asked == [url, url]
    code = code_of(lambda: remote_wheel.member(torch, url, own, lambda _: "x"))
    assert (code, len(asked)) == ("index-cut-off", 4)


def test_a_built_wheel_is_on_this_machine_and_whole_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "urls", lambda *_: None)
    built, own = replace(wheel("vllm", "1"), index=WHEELHOUSE), settings(tmp_path)

    def path() -> Path:
        with wheelhouse.Collection(own) as files:
            files.fetch([built])
            return files.path(built)

    assert code_of(lambda: wheelhouse.file_of(built, own)) == "wheel-not-here"
    assert code_of(path) == "wheel-not-here"
    kept = wheelhouse.path_of(built.sha256, built.filename, own)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"cut")
    assert code_of(path) == "wheel-damaged"


def test_a_locked_image_that_its_registry_lost_is_found_by_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = replace(project_lock().bases[0], image="h.example/x@sha256:1", digest="sha256:2")
    there: dict[str, Any] = {}
    asked: list[str] = []

    def manifest(image: str) -> object:
        asked.append(image)
        return there.get(image)

    monkeypatch.setattr(bases, "Registries", lambda: SimpleNamespace(manifest=manifest))
    found = list(bases._not_in_registry([base, base, replace(base, digest=None)]))
    assert [(one.code, one.where) for one in found] == [("base-gone", "h.example/x@sha256:2")]
    assert asked == ["h.example/x@sha256:2"]
    there["h.example/x@sha256:2"] = object()
    assert list(bases._not_in_registry([base])) == []


def test_a_lock_that_is_missing_is_another_error_than_one_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    assert code_of(lambda: store.read(tmp_path / "wheels.lock")) == "lock-missing"
    assert code_of(lambda: store.read(tmp_path)) not in ("", "lock-missing")

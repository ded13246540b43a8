"""The conditions of locking, each alone: what is asked again, what is kept, and what counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machine import settings

from imagefactory.errors import InputError, Problem
from imagefactory.locking import (
    bases,
    clone,
    closure,
    indexes,
    locking,
    named_indexes,
    registry_bases,
    wheelhouse,
)
from imagefactory.locking.debian import additions, skeleton
from imagefactory.locking.lock import Wheel
from imagefactory.locking.wheelhouse import Collection
from imagefactory.system.platforms import Platform

SHA = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc"


def wheel(name: str = "x", sha256: str = SHA, index: str = "https://x.test/simple") -> Wheel:
    filename = f"{name}-1-py3-none-any.whl"
    return Wheel(name=name, version="1", filename=filename, sha256=sha256, size=3, index=index)


@pytest.mark.parametrize(
    ("known", "answers", "recorded", "lacks", "upgrade", "again"),
    [
        (True, True, True, (), False, False),
        (False, True, True, (), False, True),
        (True, False, True, (), False, True),
        (True, True, False, (), False, True),
        (True, True, True, ("numpy",), False, True),
        (True, True, True, (), True, True),
    ],
)
def test_a_toolchain_is_locked_again_unless_the_lock_has_all_of_exactly_that_one(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    known: bool,
    answers: bool,
    recorded: bool,
    lacks: tuple[str, ...],
    upgrade: bool,
    again: bool,
) -> None:
    old = SimpleNamespace(answers=lambda *_: answers)
    limits, tried = list[object](), list[bool]()

    @contextmanager
    def of(name: str, *, kept: bool) -> Iterator[None]:
        assert name == "cuda linux/arm64"
        tried.append(kept)
        yield

    task: Any = SimpleNamespace(
        lock=SimpleNamespace(toolchain=lambda *_: old if known else None),
        settings=settings(tmp_path),
        upgrade=upgrade,
        failures=SimpleNamespace(of=of),
        constraints=lambda _, found: limits.append(found),
    )
    monkeypatch.setattr(closure, "is_recorded", lambda _: recorded)
    monkeypatch.setattr(closure, "lacking", lambda _: lacks)
    monkeypatch.setattr(locking, "lock_toolchain", lambda *_, refresh: ("new", refresh))
    wanted: Any = SimpleNamespace(name="cuda", platforms=[Platform.ARM64], requirements=())
    assert [*locking._toolchains(task, [wanted])] == [("new", upgrade) if again else old]
    valid = known and answers
    assert tried == ([valid] if again else [])
    assert limits == ([old if valid else None] if again else [])


@pytest.mark.parametrize(
    ("overrides", "requirements", "found"),
    [
        ((), ("torch==2", "numpy"), "torch==2"),
        (("torch==3",), ("torch==2",), "torch==3"),
        (("numpy==1",), ("numpy==2", "Torch>=2"), "Torch>=2"),
    ],
)
def test_what_is_wanted_of_a_package_is_its_override_or_its_requirement(
    overrides: tuple[str, ...], requirements: tuple[str, ...], found: str
) -> None:
    request: Any = SimpleNamespace(
        overrides=[SimpleNamespace(requirement=one) for one in overrides],
        requirements=requirements,
    )
    assert str(named_indexes._requirement("torch", request)) == found


def test_a_page_is_read_for_the_wanted_hashes_only() -> None:
    files = [
        {"hashes": {"sha256": "a"}, "url": "../x.whl"},
        {"hashes": {"sha256": "b"}, "url": "y.whl"},
        {"hashes": {}, "url": "z.whl"},
    ]

    def page(status: int, kind: str) -> Any:
        return SimpleNamespace(
            status_code=status,
            headers={"content-type": kind},
            url="https://x.test/simple/x/",
            json=lambda: {"files": files},
        )

    json = "application/vnd.pypi.simple.v1+json"
    assert indexes._urls(page(200, json), "x", {"a", "c"}) == {"a": "https://x.test/simple/x.whl"}
    assert indexes._urls(page(200, json), "x", set()) == {}
    assert indexes._urls(page(404, json), "x", {"a"}) == {}


def test_a_merge_is_the_same_commit_on_every_machine() -> None:
    """Not a name, an address or a time of the person who makes it."""
    assert clone._WHO == {
        "GIT_AUTHOR_NAME": "imagefactory",
        "GIT_AUTHOR_EMAIL": "imagefactory@localhost",
        "GIT_AUTHOR_DATE": "315532800 +0000",
        "GIT_COMMITTER_NAME": "imagefactory",
        "GIT_COMMITTER_EMAIL": "imagefactory@localhost",
        "GIT_COMMITTER_DATE": "315532800 +0000",
    }


def test_a_wheel_is_looked_for_once_and_a_failure_reaches_whoever_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[list[str]]()

    def urls(wheels: list[Wheel], _: object, begin: Any) -> None:
        asked.append([one.name for one in wheels])
        if "broken" in asked[-1]:
            raise InputError(Problem(code="index-down", what="no", fix="wait"))
        for one in wheels:
            begin(one.sha256, f"https://x.test/{one.name}")

    monkeypatch.setattr(indexes, "urls", urls)
    monkeypatch.setattr(Collection, "_here", lambda *_: None)
    monkeypatch.setattr(Collection, "_file", lambda _, one, url: Path(f"{one.name} {url}"))
    one, other, broken = wheel(), wheel("y", "b" * 64), wheel("broken", "c" * 64)
    with Collection(settings(tmp_path)) as files:
        files.fetch([one])
        first = files._found[one.sha256]
        files.fetch([one, other])
        assert files._found[one.sha256] is first
        files.fetch([other])
        assert files.path(one) == Path("x https://x.test/x")
        assert files.path(other) == Path("y https://x.test/y")
        files.fetch([broken])
        with pytest.raises(InputError):
            files.path(broken)
    assert asked == [["x"], ["y"], ["broken"]]


def test_a_kept_file_is_used_only_whole_and_a_damaged_one_is_removed(tmp_path: Path) -> None:
    using, one = settings(tmp_path), wheel()
    kept = wheelhouse.path_of(one.sha256, one.filename, using)
    with Collection(using) as files:
        assert files._here(one) is None
        kept.parent.mkdir(parents=True)
        kept.write_text("abc")
        assert files._here(one) == kept
        kept.write_text("abd")
        assert files._here(one) is None
        assert not kept.exists()


def test_a_platform_that_no_cell_needs_may_be_unreadable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images: Any = SimpleNamespace(
        images={Platform.AMD64: "sha256:a", Platform.ARM64: "sha256:b"},
        digest="sha256:index",
        environments={Platform.AMD64: (), Platform.ARM64: ()},
    )
    found = SimpleNamespace(debs=(), builder=(), compiler=None)

    def read(_: object, image: str, *__: object) -> object:
        if image == "sha256:b":
            raise InputError(Problem(code="x", what="no os-release", fix="y"))
        return image

    monkeypatch.setattr(registry_bases, "look_up", lambda *_, **__: images)
    monkeypatch.setattr(skeleton, "read", read)
    monkeypatch.setattr(additions, "find", lambda *_, **__: found)
    base: Any = SimpleNamespace(name="x", suite=None, image="x.test/x", packages=())

    def rows(*platforms: Platform) -> list[Platform]:
        users: Any = [SimpleNamespace(platform=one, compiles=False) for one in platforms]
        made = bases._locked(base, users, settings(tmp_path), None, digest=None)  # type: ignore[arg-type]
        return [one.platform for one in made]

    assert rows(Platform.AMD64) == [Platform.AMD64]
    assert "x linux/arm64 is not locked, no cell needs it: no os-release" in capsys.readouterr().err
    with pytest.raises(InputError):
        rows(Platform.AMD64, Platform.ARM64)

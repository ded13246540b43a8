"""What a registry or a download lacks, and what is said meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machine import settings
from support.project import project_lock
from support.projects import wheel

from imagefactory.errors import SetupError
from imagefactory.locking import metadata, registry_bases, wheelhouse
from imagefactory.locking.debian import archive
from imagefactory.system import ui


@pytest.mark.parametrize("found", [None, SimpleNamespace(config=None)], ids=["gone", "an index"])
def test_a_locked_image_that_is_none_is_reported(
    monkeypatch: pytest.MonkeyPatch, found: object
) -> None:
    registries: Any = SimpleNamespace(manifest=lambda _: found)
    monkeypatch.setattr(registry_bases, "_own", lambda *_: "sha256:own")
    with pytest.raises(SetupError) as caught:
        registry_bases.image_of(project_lock().bases[0], registries)
    assert "the registry does not have it" in caught.value.problems[0].what


def test_a_download_is_shown_as_a_step_unless_it_is_one_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def step(text: str) -> AbstractContextManager[None]:
        steps.append(text)
        return nullcontext()

    monkeypatch.setattr(ui, "step", step)
    monkeypatch.setattr(wheelhouse, "_download", lambda _, __, target, ___: target.touch())
    for sha, shown in (("a", {}), ("b", {"shown": False}), ("a", {})):
        wheelhouse.fetch("https://h.example/x", sha * 64, "x.whl", settings(tmp_path), **shown)
    assert steps == ["fetching x.whl"]


DAMAGED = ["", "{", "3", "[5]", "{}5", "[" * 100_000]


@pytest.mark.parametrize("text", DAMAGED)
def test_requirements_that_are_kept_and_damaged_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    one, using = wheel("x", "1"), settings(tmp_path)
    answers = ["Requires-Dist: a\n", "Requires-Dist: b\n"]
    monkeypatch.setattr(metadata, "_remote", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(metadata, "_lines", str.splitlines)
    assert metadata.of_wheel(one, "https://h.example/x", using) == ["Requires-Dist: a"]
    assert metadata.of_wheel(one, "https://h.example/x", using) == ["Requires-Dist: a"]
    (kept,) = (tmp_path / "cache/metadata").iterdir()
    kept.write_text(text)
    assert metadata.of_wheel(one, "https://h.example/x", using) == ["Requires-Dist: b"]


@pytest.mark.parametrize("text", [*DAMAGED, '{"a": 1}'])
def test_versions_of_packages_that_are_kept_and_damaged_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    rows = {"git": "1"}
    of, part = archive.DISTRIBUTIONS["debian"], ("debian", "trixie")
    (component,) = of.components
    hashes = {f"{component}/binary-arm64/Packages.xz": "aa"}
    monkeypatch.setattr(archive, "_release", lambda *_: ("url", hashes))
    packages = b"Package: git\nVersion: 1\n\n"
    monkeypatch.setattr(archive, "_packages", lambda *_: packages)
    using = settings(tmp_path).debian
    assert archive._versions(part, "arm64", of, using, tmp_path) == rows
    packages = b""
    assert archive._versions(part, "arm64", of, using, tmp_path) == rows
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(text)
    packages = b"Package: git\nVersion: 1\n\n"
    assert archive._versions(part, "arm64", of, using, tmp_path) == rows

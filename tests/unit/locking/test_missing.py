"""What a registry or a download lacks, and what is said meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machine import settings
from support.project import project_lock

from imagefactory.errors import SetupError
from imagefactory.locking import registry_bases, wheelhouse
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

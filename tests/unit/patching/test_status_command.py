"""``imagefactory patch status`` as a user sees it; what is measured is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.patches import make
from support.program import Run, run

from imagefactory.commands import patch_measure
from imagefactory.patching.measure import Measured
from imagefactory.patching.patch import Patch, State

__all__ = ["run"]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the patches that were measured."""
    make(tmp_path)
    found: list[str] = []

    def measure(patches: list[Patch], *_: object) -> list[Measured]:
        found.extend(patch.name for patch in patches)
        return [
            Measured(
                patch=patch.name,
                project=patch.project,
                version="0.33.0",
                state=State.NEEDED,
                reason="",
                evidence="",
            )
            for patch in patches
        ]

    monkeypatch.setattr(patch_measure, "_measured", measure)
    return found


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(
    measured: list[str], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = run("patch", "status", "vllm/one", "--markdown", "file/page.md", cwd=tmp_path)
    assert (done.code, "[system-refused]" in done.err) == (3, True)
    assert measured == []


def test_the_folder_of_the_page_is_made_and_a_patch_named_twice_is_measured_once(
    measured: list[str], run: Run, tmp_path: Path
) -> None:
    words = ("patch", "status", "vllm/one", "vllm/one", "--markdown", "new/page.md", "--json")
    done = run(*words, cwd=tmp_path)
    assert [row["patch"] for row in json.loads(done.out)] == measured == ["vllm/one"]
    assert "vllm/one" in (tmp_path / "new/page.md").read_text()

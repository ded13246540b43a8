"""What commands that start servers take for an image, a cell, a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.matrices import write as write_matrix
from support.program import Run, run

from imagefactory import opening
from imagefactory.commands.recipe_target import source_of

__all__ = ["run"]


@pytest.mark.parametrize(
    ("option", "says"),
    [("--image", "'' is not the name of an image"), ("--cell", "no cell '' is for recipe")],
)
def test_a_variable_that_is_not_set_chooses_no_image(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, says: str
) -> None:
    monkeypatch.setattr(opening, "connect_if_any", lambda _: None)
    write_matrix(tmp_path)
    done = run("recipe", "run", "qwen3-0.6b", "--print", option, "", cwd=tmp_path)
    assert (done.code, says in done.err) == (2, True)


def test_the_home_of_nobody_is_a_folder_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert source_of("~/cache") == "/home/me/cache"
    assert source_of("~nobody-has-this-name/a") == f"{tmp_path}/~nobody-has-this-name/a"
    assert source_of("volume") == "volume"

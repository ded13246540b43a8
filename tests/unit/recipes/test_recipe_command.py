"""``imagefactory recipe`` as a user sees it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.program import Run, run

from imagefactory.errors import InputError
from imagefactory.patching import sources
from imagefactory.patching.sources import SourceTree
from imagefactory.planning import vllm_settings
from imagefactory.planning.vllm_settings import VllmSettings

__all__ = ["run"]
RECIPE = """\
summary: mine
model: org/mine
weights: bf16
vllm: ">=0.22"
patches: [vllm/gpu-memory-utilization-gb]
options: {gpu-memory-utilization-gb: 100, kv-cache-dtype: fp8}
sampling: {all: {temperature: "0.5"}}
notes:
  - {text: it works, source: me}
"""
KNOWN = VllmSettings(
    variables=frozenset(),
    options=frozenset({"--kv-cache-dtype"}),
    choices={"--kv-cache-dtype": ("auto", "fp8")},
    architectures=frozenset({"Qwen3ForCausalLM"}),
)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's file, and releases that know one option."""
    tree = SourceTree(project="vllm", version="x", root=tmp_path, sha256="0")
    monkeypatch.setattr(vllm_settings, "of_cell", lambda *_: KNOWN)
    monkeypatch.setattr(vllm_settings, "of_tree", lambda *_: KNOWN)
    monkeypatch.setattr(sources, "fetch", lambda *_: tree)
    monkeypatch.setattr(sources, "releases", lambda *_: ["0.21.0", "0.22.1", "0.33.0"])
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


def test_stock_recipes_are_listed(run: Run) -> None:
    found = json.loads(run("recipe", "list", "--json").out)
    assert len(found) >= 29
    assert "qwen3-0.6b" in run("recipe", "list").out


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_of_a_recipe_is_named(run: Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "recipes/mine.yaml"
    path.parent.mkdir()
    make = {"folder": path.mkdir, "link": lambda: path.symlink_to("gone")}
    make.get(kind, lambda: os.mkfifo(path))()
    for words in (("show", "mine"), ("list",)):
        done = run("recipe", *words, cwd=tmp_path)
        assert (done.code, "recipes/mine.yaml" in done.err) == (2, True)


def test_a_recipe_is_shown_with_what_it_gives_to_a_release(run: Run, mine: Path) -> None:
    shown = run("recipe", "show", str(mine), "--vllm", "0.22.1")
    assert "vllm serve org/mine --gpu-memory-utilization-gb 100 --kv-cache-dtype fp8" in shown.out
    assert "sampling for all: temperature 0.5" in shown.out
    assert "it works (me)" in shown.out
    data = json.loads(run("recipe", "show", str(mine), "--json").out)
    assert [one["vllm"] for one in data["on"]] == ["0.22.1", "0.33.0"]
    assert run("recipe", "show", "nonsense").code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--vllm", "0.21.0"), "is for vLLM >=0.22, not 0.21.0"),
        (("--nodes", "2"), "is for 1 nodes, not 2"),
    ],
)
def test_settings_that_a_recipe_does_not_have_are_not_shown(
    run: Run, mine: Path, words: tuple[str, str], says: str
) -> None:
    done = run("recipe", "show", str(mine), *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_good_recipe_passes_on_the_cells_and_releases_that_it_is_for(
    run: Run, mine: Path
) -> None:
    newest = "vllm0-33-0-torch2-14-0"
    for more, targets in (
        ((), {"gb10-vllm0-22-1-torch2-11-0", f"gb10-{newest}", f"gb10-ray-{newest}"}),
        (("--vllm", ">=0.1"), {"vLLM 0.22.1", "vLLM 0.33.0"}),
    ):
        done = run("recipe", "check", str(mine), *more, "--json")
        assert done.code == 0, done.err
        assert {one["target"].partition("-cu")[0] for one in json.loads(done.out)} == targets
    assert "3 cells" in run("recipe", "check", str(mine)).out
    assert run("recipe", "check", "--vllm", "zero").code == 2


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("kv-cache-dtype: fp8", "kv-cache-dtype: fp9", 6, "does not take 'fp9'"),
        ("kv-cache-dtype: fp8", "kv-dtype: fp8", 6, "does not know --kv-dtype"),
        ("patches: [vllm/gpu-memory-utilization-gb]", "env: {VLLM_GONE: '1'}", 5, "VLLM_GONE"),
        ("-gb: 100", ": '0.1'", 6, "no server started"),
        ("model: org/mine", "model: a/b\narchitecture: Qwen3ForCausal", 3, "has no Qwen3ForCausal"),
        ("[vllm/gpu", "[vllm/cpu-dist-info, vllm/gpu", 5, "does not have it"),
    ],
)
def test_a_bad_recipe_fails_with_its_line(
    run: Run, mine: Path, old: str, new: str, where: int, what: str
) -> None:
    mine.write_text(RECIPE.replace(old, new, 1))
    done = run("recipe", "check", str(mine))
    assert done.code == 1
    assert f"{mine}:{where}: " in done.err
    assert what in done.err
    assert "fail" in done.out


@pytest.mark.parametrize(
    ("name", "option"),
    [("Qwen3ForCausalLM", ""), ("Own", "model-impl: transformers, ")],
)
def test_an_architecture_that_is_there_or_served_by_transformers_passes(
    run: Run, mine: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    known = replace(KNOWN, options=KNOWN.options | {"--model-impl"})
    monkeypatch.setattr(vllm_settings, "of_cell", lambda *_: known)
    text = RECIPE.replace("model: org/mine", f"model: org/mine\narchitecture: {name}")
    mine.write_text(text.replace("options: {", f"options: {{{option}"))
    done = run("recipe", "check", str(mine))
    assert done.code == 0, done.err


def test_a_patch_without_a_diff_for_the_release_is_missing(run: Run, mine: Path) -> None:
    mine.write_text(RECIPE.replace("[vllm/gpu-memory-utilization-gb]", "[vllm/nemotron-ultra]"))
    done = run("recipe", "check", str(mine), "--vllm", ">=0.1")
    assert done.code == 1
    assert "it has no diff for vLLM 0.33.0" in done.err


def test_rules_and_patches_that_do_not_exist_are_refused(run: Run, mine: Path) -> None:
    mine.write_text(RECIPE.replace("[vllm/gpu-memory-utilization-gb]", "[vllm/nonsense]"))
    assert run("recipe", "check", str(mine), "--vllm", ">=0.1").code == InputError.exit_code

"""Recipes are read strictly, and the stock ones keep the rules."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from support import ROOT

from imagefactory.errors import InputError
from imagefactory.recipes import recipes, rules, schema
from imagefactory.recipes.recipe import contains

STOCK = ROOT / "recipes"
GOOD = """\
summary: a model
model: org/model
weights: bf16
vllm: ">=0.20"
options:
  max-num-seqs: 4
  trust-remote-code: true
  enable-prefix-caching: false
  name: -x
  speculative-config: {method: mtp, more: [1, {a: true}]}
env: {A: "1"}
when:
  - vllm: "<0.30"
    nodes: 2
    options: {max-num-seqs: 8}
    env: {B: "2"}
  - vllm: ">=0.30"
    options: {max-num-seqs: 16}
"""


def write(folder: Path, text: str = GOOD, name: str = "mine") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("release", "nodes", "seqs", "env"),
    [
        ("0.22.1", 1, 4, {"A": "1"}),
        ("0.22.1", 2, 8, {"A": "1", "B": "2"}),
        ("0.30.0rc1", 1, 4, {"A": "1"}),
        ("0.33.0", 2, 16, {"A": "1"}),
    ],
)
def test_settings_are_those_of_the_release_and_the_number_of_nodes(
    tmp_path: Path, release: str, nodes: int, seqs: int, env: dict[str, str]
) -> None:
    setup = recipes.read(write(tmp_path)).on(release, nodes)
    assert (setup.options["max-num-seqs"], setup.env) == (seqs, env)
    assert setup.arguments[2:] == (
        "--trust-remote-code",
        "--no-enable-prefix-caching",
        "--name=-x",
        "--speculative-config",
        '{"method":"mtp","more":[1,{"a":true}]}',
    )


def test_a_setting_has_the_line_where_its_value_is_written(tmp_path: Path) -> None:
    path = write(tmp_path)
    recipe = recipes.read(path)
    lines = {
        (release, setting): recipe.on(release, 2).where(setting).removeprefix(f"{path}:")
        for release in ("0.22.1", "0.33.0")
        for setting in ("--max-num-seqs", "B", "--no-enable-prefix-caching", "missing")
    }
    assert lines == {
        ("0.22.1", "--max-num-seqs"): "15",
        ("0.22.1", "B"): "16",
        ("0.22.1", "--no-enable-prefix-caching"): "8",
        ("0.22.1", "missing"): "1",
        ("0.33.0", "--max-num-seqs"): "18",
        ("0.33.0", "B"): "1",
        ("0.33.0", "--no-enable-prefix-caching"): "8",
        ("0.33.0", "missing"): "1",
    }


def test_all_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = GOOD.replace("\nenv:", "\nenvs:").replace("4", "0.5", 1)
    path = write(tmp_path, f"{text}accepts:\n  - {{rule: memry, reason: r}}\n")
    with pytest.raises(InputError) as caught:
        recipes.read(path)
    assert [(one.where, one.code) for one in caught.value.problems] == [
        (f"{path}:6", "recipe-not-text"),
        (f"{path}:11", "recipe-unknown-key"),
        (f"{path}:20", "recipe-rule"),
    ]
    assert caught.value.problems[1].fix == "write 'env'"
    assert "did you mean 'memory'?" in caught.value.problems[2].fix
    bad = GOOD.replace('">=0.20"', '">=zero"').replace('"<0.30"', '"<"')
    with pytest.raises(InputError, match=r"'>=zero' is no range.*\n.*\n.*'<' is no range"):
        recipes.read(write(tmp_path, bad))


def test_own_recipes_replace_stock_ones_by_name(tmp_path: Path) -> None:
    own, stock = tmp_path / "own", tmp_path / "stock"
    write(stock, name="a")
    write(stock, name="b")
    write(own, GOOD.replace("a model", "my model"), name="b")
    found = recipes.load((own, stock), stock)
    assert [(one.name, one.summary, one.is_stock) for one in found] == [
        ("a", "a model", True),
        ("b", "my model", False),
    ]
    assert recipes.find("b", (own, stock), stock).summary == "my model"
    assert recipes.find(str(stock / "b.yaml"), (own, stock), stock).summary == "a model"
    with pytest.raises(InputError, match=r"no recipe 'aa'.*\n.*did you mean a"):
        recipes.find("aa", (own, stock), stock)
    write(own, "x: 1\n", name="c")
    write(own, "y: 1\n", name="d")
    with pytest.raises(InputError) as caught:
        recipes.load((own, stock), stock)
    assert {(one.where or "").split(":")[0] for one in caught.value.problems} == {
        str(own / "c.yaml"),
        str(own / "d.yaml"),
    }


def test_the_published_schema_is_that_of_the_code_and_of_the_stock_recipes() -> None:
    published = json.loads((ROOT / "docs/recipe.schema.json").read_text())
    assert published == schema.json_schema()
    validator = jsonschema.Draft202012Validator(published)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in STOCK.glob("*.yaml"):
        assert validator.is_valid(yaml.load(path.read_text(), loader)), path  # noqa: S506
    assert not validator.is_valid({"summary": "x"})


def test_the_stock_recipes_keep_the_rules_on_every_release_and_note_their_sources() -> None:
    found = recipes.load((STOCK,), STOCK)
    models = {one.model for one in found}
    assert len(found) >= 29
    assert {"nvidia/Qwen3.6-35B-A3B-NVFP4", "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4"} <= models
    for recipe in found:
        assert recipe.notes
        assert all(note.source for note in recipe.notes)
        for release in (f"0.{minor}.1" for minor in range(16, 34)):
            for nodes in recipe.nodes if contains(recipe.vllm, release) else ():
                assert list(rules.broken(recipe.on(release, nodes), hardware="gb10")) == []

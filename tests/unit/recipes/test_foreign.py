"""Recipes of other projects: what is read from them, and that what is written is read the same."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

from imagefactory.errors import InputError
from imagefactory.launching import documents
from imagefactory.recipes import foreign, importing, recipes

STOCK = ROOT / "recipes"
#: Written for these tests, with the keys that the projects document.
SPARK = """\
recipe_version: "1"
name: A name
description: serves a model
model: org/Model-30B-A3B-NVFP4
container: vllm-node
mods: [mods/fix]
build_args: []
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 2, gpu_memory_utilization: 0.7}
env: {VLLM_A: 1, B: "x y", C: true}
command: |
  # a comment
  vllm serve org/Model-30B-A3B-NVFP4 \\
     --max_model_len=4096 -tp {tensor_parallel} --no-enable-prefix-caching \\ \n     --port {port} --host {host} \\
     --gpu-memory-utilization {gpu_memory_utilization} --trust-remote-code \\
     --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}' \\
     --hf-overrides '{"factor": 0.25}' --compilation-config.mode=3 stray
"""
WITHOUT_COMMAND = """\
model: org/small
runtime: vllm
model_revision: abc
defaults: {port: 8000, tensor_parallel: 1, max_model_len: 2048, trust_remote_code: true}
pre_exec: [pip install x]
"""
VLLM_PROJECT = """\
meta: {description: a model}
model:
  model_id: org/Big-80B
  min_vllm_version: "0.24.0"
  context_length: 262144
  base_args: ["--trust-remote-code", "--max-num-seqs 4"]
  base_env: {A: 1}
features:
  tool_calling: {args: ["--enable-auto-tool-choice", "--tool-call-parser", hermes]}
  spec_decoding: {args: ["--speculative-config", '{"method":"mtp"}']}
opt_in_features: [spec_decoding]
variants:
  default: {precision: bf16}
  nvfp4:
    model_id: nvidia/Big-80B-NVFP4
    description: NVIDIA's checkpoint
    extra_args: ["--kv-cache-dtype", fp8]
    hardware_overrides:
      dgx_spark_gb10: {extra_args: ["--max-num-seqs", "2"], extra_env: {B: "2"}}
      h200: {extra_args: ["--max-num-seqs", "99"]}
dependencies: [{command: pip install x}]
"""


def imported(folder: Path, text: str, **keys: Any) -> tuple[dict[str, Any], list[str]]:
    path = folder / "theirs.yaml"
    path.write_text(text)
    found = importing.read(path, **{"variant": None, "vllm": None, "name": None, **keys})
    (folder / "mine.yaml").write_text(found.text)
    recipes.read(folder / "mine.yaml")  # it is a recipe
    return yaml.safe_load(found.text), list(found.dropped)


def test_a_command_with_placeholders_is_read(tmp_path: Path) -> None:
    file, dropped = imported(tmp_path, SPARK)
    assert file.pop("notes")
    assert file == {
        "summary": "serves a model",
        "model": "org/Model-30B-A3B-NVFP4",
        "weights": "nvfp4-compressed-tensors",
        "experts": True,
        "vllm": ">=0.16",
        "nodes": [2],
        "options": {
            "max-model-len": 4096,
            "tensor-parallel-size": 2,
            "enable-prefix-caching": False,
            "gpu-memory-utilization": "0.7",
            "trust-remote-code": True,
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
            "hf-overrides": '{"factor": 0.25}',
            "compilation-config.mode": 3,
        },
        "env": {"VLLM_A": "1", "B": "x y", "C": "true"},
    }
    assert dropped == ["mods: has no counterpart", "stray: is no option"]


def test_braces_that_are_doubled_for_a_template_are_those_of_json(tmp_path: Path) -> None:
    """As in recipes of spark-vllm-docker, which calls str.format."""
    own = '{{"method":"mtp","num_speculative_tokens":{drafts}}}'
    text = SPARK.replace('{"method": "mtp", "num_speculative_tokens": 2}', own)
    text = text.replace('{"factor": 0.25}', '{{"a":{{"b":1}}}}')
    file, _ = imported(
        tmp_path, text.replace("tensor_parallel: 2,", "tensor_parallel: 2, drafts: 3,")
    )
    assert file["options"]["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 3}
    assert file["options"]["hf-overrides"] == {"a": {"b": 1}}
    assert file["options"]["tensor-parallel-size"] == 2


def test_values_without_a_command_become_options(tmp_path: Path) -> None:
    file, dropped = imported(tmp_path, WITHOUT_COMMAND, vllm=">=0.22")
    assert (file["revision"], file["vllm"], file["weights"]) == ("abc", ">=0.22", "bf16")
    assert file["options"] == {
        "tensor-parallel-size": 1,
        "max-model-len": 2048,
        "trust-remote-code": True,
    }
    assert dropped == ["pre_exec: has no counterpart"]


def test_a_variant_is_read_with_what_a_spark_needs(tmp_path: Path) -> None:
    file, dropped = imported(tmp_path, VLLM_PROJECT)
    assert file["model"] == "nvidia/Big-80B-NVFP4"
    assert (file["weights"], file["vllm"], file["context"]) == (
        "nvfp4-modelopt",
        ">=0.24.0",
        262144,
    )
    assert file["options"] == {
        "trust-remote-code": True,
        "max-num-seqs": 2,
        "enable-auto-tool-choice": True,
        "tool-call-parser": "hermes",
        "kv-cache-dtype": "fp8",
    }
    assert file["env"] == {"A": "1", "B": "2"}
    assert dropped == [
        "the feature spec_decoding, which is off by default",
        "dependency pip install x",
    ]
    assert imported(tmp_path, VLLM_PROJECT, variant="default")[0]["model"] == "org/Big-80B"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
SPREAD = "{{a: '{}', b: '{}', c: '{}'}}".format("{b}" * 999, "{c}" * 999, "x" * 999)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"x: {'[' * 9999}", "cannot be read: nested too deeply"),
        ("x: 2024-13-45\n", "cannot be read: month must be in 1..12"),
        (f"x: {'9' * 5000}\n", "cannot be read: Exceeds the limit"),
        (f"{BOMB}defaults: {{x: *a39}}\n", "more than 50000 values"),
        (f"model: a/b\ndefaults: {SPREAD}\ncommand: vllm serve a/b --x {{a}}\n", "1000000 char"),
        (f"model: a/b\ndefaults: {{tensor_parallel: '{'9' * 5000}'}}\n", "5000 characters"),
        (f"model: a/b\ncommand: vllm serve a/b --x {'[' * 9999}\n", "nested too deeply"),
    ],
    ids=range(7),
)
def test_no_file_is_too_strange_to_be_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        imported(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: b\n", "none of the keys"),
        ("- a\n", "no mapping"),
        ("a: [\n", "cannot be read"),
        ("command: |\n  sglang serve x\n", "does not call `vllm serve`"),
        ("command: |\n  vllm serve 'x\n", "cannot be read"),
        ("defaults: {port: 1}\n", "names no model"),
        ("defaults: 3\n", "no recipe that can be read"),
        (VLLM_PROJECT.replace("nvfp4:", "int4:").replace("default:", "x:"), "no variant 'default'"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        imported(tmp_path, text)


def test_every_stock_recipe_survives_both_formats() -> None:
    for recipe in recipes.load((STOCK,), STOCK):
        setup = recipe.on("0.33.0", recipe.nodes[0])
        for write in (foreign.sparkrun, foreign.spark_vllm_docker):
            data = write(setup, "repo@sha256:0")
            command = shlex.split(data["command"].replace("\\\n", " ").format(**data["defaults"]))
            assert command[:6] == ["vllm", "serve", recipe.model, "--port", "8000", "--host"]
            assert [_plain(word) for word in command[7:]] == [*map(_plain, setup.arguments)]
            found = foreign.read(data, recipe.name)
            assert (found.model, dict(found.env)) == (recipe.model, dict(setup.env))
            assert found.nodes == setup.nodes
            options = {key: _plain(str(one)) for key, one in found.options.items()}
            assert options == {
                **({} if setup.nodes > 1 else options),
                **{key: _plain(str(one)) for key, one in setup.options.items()},
            }


def test_what_is_written_is_read_by_yaml_as_it_was() -> None:
    setup = recipes.find("nemotron-3-ultra-550b-nvfp4", (STOCK,), STOCK).on("0.33.0", 4)
    data = foreign.sparkrun(setup, "repo@sha256:0")
    text = documents.dump(data)
    assert yaml.safe_load(text) == data
    assert "command: |\n  vllm serve nvidia/" in text


def _plain(word: str) -> str:
    """A number without superfluous digits, JSON without spaces."""
    if word.startswith("{"):
        try:
            return json.dumps(json.loads(word))
        except ValueError:
            return word
    return str(float(word)) if word.replace(".", "", 1).isdecimal() else word

"""``imagefactory memory`` as a user sees it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.memory import MODELS, raw
from support.program import Run, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return runner(monkeypatch, capsys, tmp_path, command="memory")


def test_it_shows_a_picture_what_fits_and_the_settings(run: Run) -> None:
    done = run(MODELS / "gpt-oss-120b", "--context", 65536, "--kv-cache-dtype", "fp8")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "gpt-oss-120b in MXFP4 on a node with 119.70 GiB"
    assert lines[1].startswith("[ssss")
    assert lines[1].endswith(".]")
    assert len(lines[1]) == 62
    assert "weights       60.69 GiB  computed from its shapes" in done.out
    assert "--gpu-memory-utilization  0.58" in done.out
    assert "--gpu-memory-utilization-gb 69.5 instead of the fraction" in done.out
    assert "4 x 65536 tokens in fp8" in done.out


def test_json_has_all_of_the_plan(run: Run) -> None:
    done = run(MODELS / "Qwen3.6-35B-A3B" / "config.json", "--speculative", 3, "--json")
    found = json.loads(done.out)
    assert (done.code, found["fits"], found["model"]) == (0, True, "Qwen3.6-35B-A3B")
    assert found["recipe"] is None
    assert found["settings"]["--max-model-len"] == "262144"
    assert [group["kind"] for group in found["kv_cache"]["groups"]] == ["state"] * 3 + ["full"]
    assert found["kv_cache"]["tokens"] >= 4 * 262144
    assert found["bytes_per_node"]["budget"] <= found["bytes_per_node"]["ceiling"]


def test_what_does_not_fit_exits_with_1_and_says_what_would(run: Run) -> None:
    done = run(MODELS / "gemma-3-27b-it", "--seqs", 64)
    assert done.code == 1
    assert "memory-too-small" in done.err
    assert "fix: try --context " in done.err
    assert " or --nodes " in done.err
    assert "settings" not in done.out
    failed = json.loads(run(MODELS / "gemma-3-27b-it", "--seqs", 64, "--json").out)
    assert (failed["fits"], failed["exit_code"]) == (False, 1)
    assert failed["errors"][0]["code"] == "memory-too-small"


def test_a_model_of_the_hugging_face_cache_is_found_by_its_name(run: Run, tmp_path: Path) -> None:
    done = run("openai/gpt-oss-120b")
    assert done.code == 2
    assert "fix: hf download openai/gpt-oss-120b config.json model.safetensors.index.json" in (
        done.err
    )
    folder = tmp_path / "hf/hub/models--openai--gpt-oss-120b"
    for revision in ("aaaa", "bbbb"):
        shutil.copytree(MODELS / "gpt-oss-120b", folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("aaaa")
    index = {"metadata": {"total_size": 65_248_815_744}, "weight_map": {}}
    (folder / "snapshots/aaaa/model.safetensors.index.json").write_text(json.dumps(index))
    done = run("openai/gpt-oss-120b", "--context", 8192)
    assert done.code == 0
    assert "weights       60.77 GiB  read from its index" in done.out
    (folder / "refs/main").write_bytes(b"\xff")
    assert run("openai/gpt-oss-120b", "--context", 8192).code == 0


def test_the_home_of_nobody_is_no_reason_for_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "~nobody-has-this-name/hub")
    done = run("openai/gpt-oss-120b")
    assert (done.code, "is not in the Hugging Face cache ~nobody" in done.err) == (2, True)


def test_a_recipe_sets_what_no_option_does(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "hf/hub/models--nvidia--Qwen3.6-35B-A3B-NVFP4/snapshots/aaaa"
    shutil.copytree(MODELS / "Qwen3.6-35B-A3B", folder)
    done = run("qwen3.6-35b-a3b-nvfp4")
    assert done.code == 0
    assert "weights       21.90 GiB  as the recipe says" in done.out
    assert "4 x 65536 tokens in fp8" in done.out
    assert "weights       21.90 GiB" in done.out
    # the server that the recipe is from reported 76.49 GiB and 4,843,965 tokens
    last = "the recipe has --gpu-memory-utilization 0.85: 77.15 GiB of KV cache, 4886706 tokens"
    assert done.out.splitlines()[-1] == last
    found = json.loads(run("qwen3.6-35b-a3b-nvfp4", "--seqs", 2, "--speculative", 0, "--json").out)
    assert (found["seqs"], found["context"]) == (2, 65536)
    assert "--speculative-config" not in found["settings"]
    held = json.loads(run("qwen3.6-35b-a3b-nvfp4", "--json").out)["recipe"]
    assert (held["option"], held["tokens"]) == ("--gpu-memory-utilization 0.85", 4886706)


@pytest.mark.parametrize("share", ["inf", "nan", "most"])
def test_a_share_of_a_recipe_that_is_no_number_is_no_budget(
    run: Run, tmp_path: Path, share: str
) -> None:
    options = f"options: {{gpu-memory-utilization: {share}}}"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"summary: s\nmodel: {MODELS / 'Qwen3-0.6B'}\nweights: bf16\nvllm: '>=0.22'\n{options}\n"
    )
    done = run(recipe)
    assert (done.code, "the recipe has" in done.out) == (0, False), done.err


def test_quantization_in_a_file_of_its_own_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw("Qwen3-0.6B")))
    quantization = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    done = run(tmp_path)
    assert " in NVFP4 on a node" in done.out
    assert "4 x 40960 tokens in fp8" in done.out


#: Files of a model, by name -> what the error says.
BROKEN: tuple[tuple[dict[str, str], str], ...] = (
    ({}, "No such file or directory"),
    ({"config.json": "{"}, "it is not JSON: Expecting property name"),
    ({"config.json": ""}, "it is empty"),
    ({"config.json": "[]"}, "it is not a JSON object"),
    ({"config.json": '{"a": 1, "a": 2}'}, "an object has a key twice"),
    ({"config.json": "{}"}, "hidden_size is missing"),
    (
        {"config.json": json.dumps(raw("Qwen3-0.6B")), "model.safetensors.index.json": "{}"},
        "metadata.total_size is not a number of bytes: None",
    ),
)


@pytest.mark.parametrize(("files", "text"), BROKEN)
def test_broken_files_are_wrong_input(
    run: Run, tmp_path: Path, files: dict[str, str], text: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    done = run(folder)
    assert done.code == 2
    assert text in done.err
    assert "Traceback" not in done.err


def test_a_pipe_is_no_configuration(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    done = run(tmp_path)
    assert (done.code, "config.json: not a regular file" in done.err) == (2, True)


@pytest.mark.parametrize("name", ["no-such-model", "~nobody-here", ""])
def test_what_names_no_model_is_wrong_input(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw("Qwen3-0.6B")))  # of the current folder
    done = run(name)
    assert done.code == 2
    assert f"{name!r} is no config.json, no folder with one, no recipe" in done.err

"""The container that serves a recipe, as it is printed and started."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.program import Run, run
from support.served_recipe import DIGEST, GB10, INFO, KNOWN, RECIPE, FakeEngine, engine, mine

from imagefactory import opening
from imagefactory.errors import InputError, Problem, SetupError
from imagefactory.launching import compose, docker, quadlet
from imagefactory.planning import vllm_settings
from imagefactory.recipes import recipes, starting
from imagefactory.recipes.starting import Wishes
from imagefactory.system import platforms

__all__ = ["engine", "mine", "run"]


def test_a_container_keeps_its_caches_and_no_secret(mine: Path) -> None:
    setup = recipes.read(mine).on("0.33.0", 1)
    found = starting.launch(setup, "image", "gb10")
    assert found.command == (
        *("serve", "org/mine", "--port", "8000"),
        *("--gpu-memory-utilization", "0.5", "--max-num-seqs", "4"),
    )
    assert [(one.source, one.target) for one in found.mounts] == [
        ("imagefactory-cache", "/root/.cache")
    ]
    assert (found.passed_on, found.environment, found.gpus) == (("HF_TOKEN",), {"A": "b c"}, True)
    wishes = Wishes(name="xy", port=9000, cache="/c", model="/m", address="10.0.0.1")
    found = starting.launch(setup, "image", "cpu", wishes)
    assert found.command[1:] == (
        *("/model", "--port", "8000", "--max-num-seqs", "4", "--served-model-name", "org/mine"),
    )
    assert [(one.source, one.target, one.read_only) for one in found.mounts] == [
        ("/c", "/root/.cache", False),
        ("/m", "/model", True),
    ]
    assert (found.name, found.gpus, found.ports[0].host) == ("xy", False, 9000)
    # vLLM's CPU backend would want nearly all of the machine's memory
    assert found.environment == {"VLLM_CPU_KVCACHE_SPACE": "4", "A": "b c"}
    mine.write_text(RECIPE.replace("{A: b c}", "{VLLM_CPU_KVCACHE_SPACE: '1'}"))
    found = starting.launch(recipes.read(mine).on("0.33.0", 1), "image", "cpu")
    assert found.environment == {"VLLM_CPU_KVCACHE_SPACE": "1"}


def test_tuned_kernels_of_the_project_are_given_to_servers_with_a_gpu(mine: Path) -> None:
    wishes = Wishes(tunings="/mine/tunings")
    setup = recipes.read(mine).on("0.33.0", 1)
    found = starting.launch(setup, "image", "gb10", wishes)
    assert ("/mine/tunings", "/tunings", True) in [
        (one.source, one.target, one.read_only) for one in found.mounts
    ]
    assert found.environment["VLLM_TUNED_CONFIG_FOLDER"] == "/tunings"
    assert len(starting.launch(setup, "image", "cpu", wishes).mounts) == 1
    mine.write_text(RECIPE.replace("{A: b c}", "{VLLM_TUNED_CONFIG_FOLDER: /own}"))
    own = starting.launch(recipes.read(mine).on("0.33.0", 1), "image", "gb10", wishes)
    assert (own.environment["VLLM_TUNED_CONFIG_FOLDER"], len(own.mounts)) == ("/own", 1)


def test_the_command_is_printed_with_the_digest(
    run: Run, mine: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    done = run("recipe", "run", str(mine), "--cell", "gb10*33*", "--print")
    assert done.code == 0, done.err
    assert f"imagefactory/vllm@{DIGEST} serve org/mine" in done.out
    assert "--env HF_TOKEN" in done.out
    assert "hf_secret" not in done.out + done.err
    assert "has not passed imagefactory verify" in done.err
    assert engine.started == []


def test_an_image_that_the_engine_has_is_started(run: Run, mine: Path, engine: FakeEngine) -> None:
    done = run("recipe", "run", str(mine), "--cell", "gb10*33*", "--port", "9000", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["started"] == "0123"
    (words,) = engine.started
    assert "127.0.0.1:9000:8000" in words
    missing = run("recipe", "run", str(mine), "--cell", "gb10*22*")
    assert (missing.code, len(engine.started)) == (2, 1)
    assert "the engine has no image" in missing.err
    assert "fix: imagefactory build --matrix --select gb10-vllm0-22-1" in missing.err


def test_without_an_engine_nobody_is_told_to_build(
    run: Run, mine: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.images.clear()
    gone = SetupError(Problem(code="no-engine", what="no container engine answers"))

    def connect(_: object) -> FakeEngine:
        raise gone

    monkeypatch.setattr(opening, "connect", connect)
    monkeypatch.setattr(opening, "connect_if_any", lambda _: None)
    for words in (("recipe", "run"), ("bench",)):
        done = run(*words, str(mine), "--cell", "gb10*33*")
        assert (done.code, "no container engine answers" in done.err) == (3, True), done.err
    assert run("recipe", "run", str(mine), "--cell", "gb10*33*", "--print").code == 0


def test_a_user_other_than_root_has_a_cache_that_can_be_written(
    run: Run, mine: Path, engine: FakeEngine, tmp_path: Path
) -> None:
    argv = ("recipe", "run", str(mine), "--cell", "gb10*33*", "--cache", str(tmp_path))
    shown = run(*argv, "--user", "1000:100", "--print").out
    assert "--user 1000:100" in shown
    assert f"--volume {tmp_path}:/tmp/home-1000/.cache" in shown
    mine.write_text(f"{RECIPE}user: '1001'\n")
    assert "--user 1001 " in run(*argv, "--print").out
    assert "--user 1000:100 " in run(*argv, "--user", "1000:100", "--print").out
    assert run(*argv, "--user", "me").code == 2
    assert "volume imagefactory-cache belongs to root" in run(*argv[:-2]).err
    absent = run(*argv[:-1], str(tmp_path / "new one"))
    assert f"error: there is no folder {tmp_path}/new one: Docker would" in absent.err
    assert f"mkdir -p '{tmp_path}/new one'" in absent.err
    assert engine.started == []
    export = ("recipe", "export", str(mine), "--cell", "gb10*33*", "--to")
    assert run(*export, "compose").code == 2
    assert run(*export, "kubernetes").code == 0
    assert engine.started == []


def test_the_newest_cell_with_an_image_here_goes_before_a_newer_one_without(
    run: Run, mine: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platforms, "here", lambda: platforms.Platform.ARM64)
    older = GB10.replace("0.33.0-torch2.14.0", "0.22.1-torch2.11.0")
    engine.images = {older: replace(INFO, ref=older)}
    assert run("recipe", "run", str(mine), "--cell", "gb10-vllm*").code == 0
    assert f"imagefactory/vllm@{DIGEST}" in engine.started[-1]
    engine.images |= {GB10: replace(INFO, digest=f"sha256:{'2' * 64}")}
    assert run("recipe", "run", str(mine), "--cell", "gb10-vllm*").code == 0
    assert f"imagefactory/vllm@sha256:{'2' * 64}" in engine.started[-1]
    engine.images = {}
    newest = run("recipe", "run", str(mine), "--cell", "gb10-vllm*", "--print")
    assert GB10 in newest.out


def test_an_image_is_checked_as_the_release_that_its_label_names(
    run: Run, mine: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefactory.patching.sources.fetch", lambda *_: None)
    monkeypatch.setattr(vllm_settings, "of_tree", lambda *_: KNOWN)
    engine.images["other:1"] = INFO
    assert f"other@{DIGEST}" in run("recipe", "run", str(mine), "--image", "other:1", "--print").out
    engine.images["other:1"] = replace(INFO, labels={})
    assert "no label" in run("recipe", "run", str(mine), "--image", "other:1", "--print").err
    assert run("recipe", "run", str(mine), "--image", "gone:1").code == 2


@pytest.mark.parametrize(
    ("old", "new", "code", "what"),
    [
        ("max-num-seqs", "max-nun-seqs", 1, "does not know --max-nun-seqs"),
        ('vllm: ">=0.22"', 'vllm: ">=9"', 2, "no cell"),
        ("hardware:", "nodes: [2]\nhardware:", 2, "imagefactory cluster"),
    ],
)
def test_what_cannot_be_served_is_not_started(
    run: Run, mine: Path, engine: FakeEngine, old: str, new: str, code: int, what: str
) -> None:
    mine.write_text(RECIPE.replace(old, new))
    done = run("recipe", "run", str(mine))
    assert done.code == code
    assert what in done.err
    assert engine.started == []


def test_a_recipe_is_imported_once(run: Run, tmp_path: Path) -> None:
    theirs = tmp_path / "Their Model.yaml"
    theirs.write_text("model: org/m\ndefaults: {max_model_len: 8}\nmods: [x]\n")
    matrix = str(tmp_path / "matrix.yaml")
    done = run("recipe", "import", str(theirs), "-f", matrix)
    assert done.code == 0, done.err
    target = tmp_path / "recipes/their-model.yaml"
    assert recipes.read(target).model == "org/m"
    assert "mods: has no counterpart" in done.err
    assert run("recipe", "import", str(theirs), "-f", matrix).code == 2
    kept = target.read_text()
    theirs.write_text("model: no model\ndefaults: {}\n")
    refused = run("recipe", "import", str(theirs), "-f", matrix, "--replace")
    assert (refused.code, f"error: {theirs}: 'model'" in refused.err) == (2, True)
    assert target.read_text() == kept
    target.write_bytes(b"\xff")
    theirs.write_text("model: org/n\ndefaults: {}\n")
    done = run("recipe", "import", str(theirs), "-f", matrix, "--replace", "--json")
    assert json.loads(done.out)["kind"] == "spark-vllm-docker"
    assert recipes.read(target).model == "org/n"
    nameless = run("recipe", "import", str(theirs), "-f", matrix, "--name", "é")
    assert (nameless.code, "'é' cannot be the name" in nameless.err) == (2, True)
    assert [one.name for one in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"name": "bad name!"}, "'bad name!' cannot be the name of a container"),
        ({"address": "spark1"}, "'spark1' is no IP address"),
        ({"cache": "a b"}, "'a b' cannot be the name of a volume"),
        ({"cache": ""}, "'' cannot be the name of a volume"),
        ({"model": "/models/a:b"}, "/models/a:b has a colon"),
        ({"tunings": "/a:b/tunings"}, "/a:b/tunings has a colon"),
    ],
    ids=str,
)
def test_what_no_engine_could_start_is_refused(mine: Path, wish: dict[str, Any], says: str) -> None:
    setup = recipes.read(mine).on("0.33.0", 1)
    with pytest.raises(InputError, match=re.escape(says)):
        starting.launch(setup, "vllm:1", "gb10", Wishes(**wish))


def test_an_address_of_ipv6_is_in_brackets(mine: Path) -> None:
    setup = recipes.read(mine).on("0.33.0", 1)
    found = starting.launch(setup, "vllm:1", "gb10", Wishes(address="::1", port=80))
    assert "--publish '[::1]:80:8000'" in docker.text(found)
    assert '"[::1]:80:8000"' in compose.text(found)
    assert "PublishPort=[::1]:80:8000" in quadlet.text(found)

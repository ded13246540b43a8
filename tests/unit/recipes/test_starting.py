"""The container that serves a recipe, as it is printed, started and exported."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT
from support.program import Ended, Run, run

from imagefactory import opening
from imagefactory.errors import InputError, Problem, SetupError
from imagefactory.launching import compose, docker, quadlet
from imagefactory.planning import vllm_settings
from imagefactory.planning.vllm_settings import VllmSettings
from imagefactory.recipes import recipes, starting
from imagefactory.recipes.starting import Wishes
from imagefactory.system import platforms
from imagefactory.system.engine import ImageInfo

__all__ = ["run"]
RECIPE = """\
summary: mine
model: org/mine
weights: bf16
hardware: [gb10, cpu]
vllm: ">=0.22"
options: {gpu-memory-utilization: "0.5", max-num-seqs: 4}
env: {A: b c}
"""
GB10 = "imagefactory/vllm:gb10-vllm0.33.0-torch2.14.0-cu130"
DIGEST = f"sha256:{'1' * 64}"
KNOWN = VllmSettings(
    variables=frozenset(), options=frozenset({"--gpu-memory-utilization", "--max-num-seqs"})
)
INFO = ImageInfo(
    ref=GB10,
    digest=DIGEST,
    layers=(),
    platform="linux/arm64",
    labels={"io.imagefactory.pin.vllm": "0.33.0"},
    env={},
    size=1,
)


@dataclass
class FakeEngine:
    """An engine with some images, which notes what it is asked to start."""

    images: dict[str, ImageInfo]
    started: list[Sequence[str]]

    def find_images(self, refs: Sequence[str]) -> dict[str, ImageInfo]:
        return {ref: self.images[ref] for ref in refs if ref in self.images}

    def start_service(self, arguments: Sequence[str]) -> str:
        self.started.append(arguments)
        return "0123"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine(images={GB10: INFO}, started=[])
    monkeypatch.setattr(opening, "connect", lambda _: fake)
    monkeypatch.setattr(opening, "connect_if_any", lambda _: fake)
    monkeypatch.setattr(vllm_settings, "of_cell", lambda *_: KNOWN)
    return fake


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


@pytest.mark.parametrize(
    "form", ["sparkrun", "spark-vllm-docker", "compose", "quadlet", "kubernetes"]
)
def test_what_is_exported_names_the_image_by_digest(
    run: Run, mine: Path, engine: FakeEngine, tmp_path: Path, form: str
) -> None:
    argv = "recipe", "export", str(mine), "--to", form, "--cell", "gb10*33*"
    done = run(*argv, "--repository", "ghcr.io/me/vllm", "--output", str(tmp_path / "out"))
    assert done.code == 0, done.err
    text = (tmp_path / "out").read_text()
    assert f"ghcr.io/me/vllm@{DIGEST}" in text
    assert "--repository" not in done.err
    assert "org/mine" in text
    if form != "quadlet":
        assert list(yaml.safe_load_all(text))
    engine.images.clear()
    done = run(*argv)
    assert GB10 in done.out
    assert "not pinned to a digest" in done.err
    assert ("looks for this one at docker.io" in done.err) is (form in ("quadlet", "kubernetes"))


TUNED = "E=8,N=256,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json"


@dataclass
class Project:
    """A folder with a matrix, a recipe for a GPU and tuned kernels, and what is exported there."""

    run: Run
    folder: Path

    def export(self, form: str, *more: str) -> Ended:
        matrix = ("-f", str(self.folder / "matrix.yaml"), "--cell", "gb10*33*")
        return self.run(
            "recipe", "export", str(self.folder / "mine.yaml"), *matrix, *more, "--to", form
        )


@pytest.fixture
def project(run: Run, mine: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Project:
    engine.images[GB10] = INFO
    folder = mine.parent / "project"
    (folder / "tunings").mkdir(parents=True)
    (folder / "tunings" / TUNED).write_text('{"1": {"BLOCK_SIZE_M": 16}}')
    mine.rename(folder / "mine.yaml")
    for name in ("matrix.yaml", "wheels.lock"):
        shutil.copy(ROOT / name, folder)
    monkeypatch.chdir(folder)
    return Project(run, folder)


def test_tuned_kernels_of_the_project_are_in_what_is_exported(project: Project) -> None:
    folder = project.folder / "tunings"
    service = yaml.safe_load(project.export("compose").out)["services"]["mine"]
    assert service["volumes"][1] == {
        "type": "bind",
        "source": str(folder),
        "target": "/tunings",
        "read_only": True,
        "bind": {"create_host_path": False},
    }
    assert service["environment"]["VLLM_TUNED_CONFIG_FOLDER"] == "/tunings"
    unit = project.export("quadlet").out.splitlines()
    assert f"Volume={folder}:/tunings:ro" in unit
    assert "Environment=VLLM_TUNED_CONFIG_FOLDER=/tunings" in unit
    config_map, deployment = list(yaml.safe_load_all(project.export("kubernetes").out))[:2]
    assert list(config_map["data"].values()) == ['{"1": {"BLOCK_SIZE_M": 16}}']
    pod = deployment["spec"]["template"]["spec"]
    items = pod["volumes"][2]["configMap"]["items"]
    assert [one["path"] for one in items] == [TUNED]
    assert pod["containers"][0]["volumeMounts"][2]["mountPath"] == "/tunings"
    assert {"name": "VLLM_TUNED_CONFIG_FOLDER", "value": "/tunings"} in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("sparkrun", "cp {folder}/*.json ~/.cache/sparkrun/tuning/vllm/"),
        (
            "spark-vllm-docker",
            'ARGS="--mount type=bind,source={folder},target=/tunings,readonly -e VLLM_TUNED_CON',
        ),
    ],
)
def test_where_a_file_has_no_mounts_it_says_how_to_use_tuned_kernels(
    project: Project, form: str, says: str
) -> None:
    folder = project.folder / "tunings"
    done = project.export(form)
    remark = done.out.splitlines()[0]
    assert remark.startswith("# tuned kernels: ")
    assert says.format(folder=folder) in remark
    assert remark.removeprefix("# ") in done.err
    assert yaml.safe_load(done.out)["env"] == {"A": "b c"}
    (folder / TUNED).unlink()
    done = project.export(form)
    assert "tuned kernels" not in done.out + done.err


@pytest.mark.parametrize(
    "form", ["sparkrun", "spark-vllm-docker", "compose", "quadlet", "kubernetes"]
)
def test_a_recipe_with_tuned_kernels_of_its_own_is_exported_with_these(
    project: Project, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(KNOWN, variables=frozenset({"VLLM_TUNED_CONFIG_FOLDER"}))
    monkeypatch.setattr(vllm_settings, "of_cell", lambda *_: known)
    recipe = project.folder / "mine.yaml"
    recipe.write_text(RECIPE.replace("{A: b c}", "{VLLM_TUNED_CONFIG_FOLDER: /own}"))
    done = project.export(form)
    assert done.code == 0, done.err
    assert "/own" in done.out
    assert "/tunings" not in done.out + done.err


def test_tuned_kernels_that_cannot_be_exported_are_refused(project: Project) -> None:
    path = project.folder / "tunings" / TUNED
    path.write_bytes(b"\xff")
    done = project.export("kubernetes")
    assert done.code == 2
    assert f"{path} cannot be read" in done.err
    path.write_text("1" * (1 << 20))
    (path.parent / "two.json").write_text("22")
    assert "a ConfigMap 1048576" in project.export("kubernetes").err
    moved = project.folder.rename(project.folder.with_name("my project"))
    done = Project(project.run, moved).export("spark-vllm-docker")
    assert (done.code, "spark-vllm-docker cannot mount" in done.err) == (2, True)


@pytest.mark.parametrize("name", ["BAD NAME", "ghcr.io/me/vllm:tag", "ghcr.io/Me/vllm", ""])
def test_what_is_no_repository_is_in_no_file(
    run: Run, mine: Path, engine: FakeEngine, name: str
) -> None:
    done = run("recipe", "export", str(mine), "--to", "compose", "--repository", name)
    assert (done.code, done.out) == (2, "")
    assert "--repository" in done.err
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

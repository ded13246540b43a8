"""Recipes as files of other programs: what they name, mount and refuse."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from support import ROOT
from support.program import Ended, Run, run
from support.served_recipe import DIGEST, GB10, INFO, KNOWN, RECIPE, FakeEngine, engine, mine

from imagefactory.planning import vllm_settings

__all__ = ["engine", "mine", "run"]


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

"""Which images files pin, in whatever form they name them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.errors import InputError
from imagefactory.launching import compose, docker, kubernetes, quadlet
from imagefactory.launching.launching import Launch
from imagefactory.publishing import pins

DIGEST = "sha256:" + "1a" * 32
TAG = "0.33.0-cu130-gb10-20261120-1a2b3c4d"
RECORD = "nightly.20261122T021700Z.5f6a7b8c9d0e"


@pytest.mark.parametrize("write", [compose.text, docker.text, kubernetes.text, quadlet.text])
@pytest.mark.parametrize("pin", [DIGEST, TAG])
def test_every_form_that_is_exported_pins_its_image(
    write: Callable[[Launch], str], pin: str
) -> None:
    image = f"ghcr.io/me/vllm{'@' if pin == DIGEST else ':'}{pin}"
    assert pin in pins.words(write(Launch(name="vllm", image=image, command=("serve", "me/model"))))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"image: ghcr.io/me/vllm:{TAG}@{DIGEST}", [DIGEST, TAG]),
        (f'{{"image": "me/vllm:{TAG}"}}', [TAG]),
        (f"images: [{{name: vllm, newTag: {TAG}}}]", [TAG]),  # kustomize
        (f"image:\n  repository: me/vllm\n  digest: {DIGEST}", [DIGEST]),  # helm
        (f"digest={'1a' * 32}", [DIGEST]),
        (f"We serve {TAG}.", [TAG]),
        (f"# rollback: {RECORD}", [RECORD]),
        (f"Image=docker://h:5000/me/vllm:{TAG} \\", [TAG]),
        ("image: me/vllm:gb10-vllm0.33.0", []),  # a tag that keeps its image by itself
        (f"sha512: {'1a' * 64}", []),
        ("image: me/vllm@sha256:1a1a", []),
    ],
)
def test_a_digest_or_an_immutable_tag_anywhere_in_a_text_pins_it(
    text: str, found: list[str]
) -> None:
    assert [*pins.words(text)] == found


def test_a_project_pins_what_its_clusters_recipes_and_deployments_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "cluster.yaml compose.yml vllm.container .env run.sh recipes/a.yaml recipes/spark/b.txt"
    names += " notes.md wheels.lock recipes/.git/x deploy/pod.yaml recipes.yaml/pod.yaml"
    tags = {name: f"0.33.0-cu130-gb10-20261120-{n:08}" for n, name in enumerate(names.split())}
    for name, tag in tags.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"x:{tag}")
    monkeypatch.chdir(tmp_path)
    found = pins.read(pins.of_project(tmp_path))
    assert {*found.values()} == {*names.split()[:7]}
    found = pins.read([*pins.of_project(tmp_path), tmp_path / "deploy", tmp_path / "notes.md"])
    assert found[tags["deploy/pod.yaml"]] == "deploy/pod.yaml"
    assert found[tags["notes.md"]] == "notes.md"
    assert pins.read(pins.of_project(tmp_path / "recipes/.git")) == {}


def test_folders_behind_links_are_read_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "loop").symlink_to(tmp_path)
    (tmp_path / "b/pod.yaml").write_text(f"x:{TAG}")
    (tmp_path / "a/link").symlink_to(tmp_path / "b")
    assert [*pins.read([tmp_path / "a"])] == [TAG]


def test_all_files_that_cannot_be_read_are_named_since_they_may_pin_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/a.yaml").write_text(f"x:{TAG}", encoding="utf-16")
    (tmp_path / "b.yaml").write_bytes(b"image: \0")
    (tmp_path / "c.yaml").symlink_to("nothing")
    os.mkfifo(tmp_path / "d.yaml")
    (tmp_path / "e.yaml").write_text("x" * 11)
    monkeypatch.setattr(pins, "LARGEST", 10)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        pins.read([*pins.of_project(tmp_path), tmp_path / "none.yaml"])
    problems = {one.where: one.what for one in caught.value.problems}
    assert problems == {
        "recipes/a.yaml": "cannot be read: larger than 10 bytes",
        "b.yaml": "cannot be read: it is not UTF-8 text",
        "c.yaml": "cannot be read: No such file or directory",
        "d.yaml": "cannot be read: not a regular file",
        "e.yaml": "cannot be read: larger than 10 bytes",
        "none.yaml": "cannot be read: No such file or directory",
    }
    monkeypatch.setattr(pins, "LARGEST", 1000)
    with pytest.raises(InputError, match=r"recipes/a.yaml: cannot be read: it is not UTF-8"):
        pins.read([tmp_path / "recipes"])


def test_a_folder_that_cannot_be_listed_may_pin_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes/locked").mkdir(parents=True)
    scandir = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        pins.read([tmp_path / "recipes"])
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("pins-unreadable", "recipes/locked")
    assert problem.what == "cannot be read: Permission denied"


def test_the_first_of_several_files_is_named_and_of_several_names_the_first_that_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.txt", "a.txt", ".hidden/c.txt"):
        (tmp_path / "deploy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "deploy" / name).write_text(f"{TAG} {DIGEST}")
    monkeypatch.chdir(tmp_path)
    found = pins.read([tmp_path / "deploy"])
    assert found == dict.fromkeys((DIGEST, TAG), "deploy/a.txt")
    assert pins.read([tmp_path / "deploy/b.txt", tmp_path / "deploy"])[TAG] == "deploy/b.txt"
    assert pins.pinning(["other", TAG], found) == "deploy/a.txt"
    monkeypatch.chdir(tmp_path / "deploy/.hidden")
    assert pins.read([tmp_path / "deploy/b.txt"])[TAG] == str(tmp_path / "deploy/b.txt")
    assert pins.pinning(["other"], found) == ""

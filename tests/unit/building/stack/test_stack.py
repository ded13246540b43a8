"""The layers of an image, from small wheels on an index to the layout that BuildKit reads."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support import index
from support.machine import settings
from support.plans import base_image, planned
from support.registry import fake_registry

from imagefactory.building import bases, tarball
from imagefactory.building.blob import Blob
from imagefactory.building.debian import layout as debian_layout
from imagefactory.building.stack import stack
from imagefactory.building.tree import Tree
from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import LockedToolchain, TorchBuild, Wheel
from imagefactory.planning.cell_plan import ROOT, CellPlan
from imagefactory.settings import Settings

SITE = "opt/venv/lib/python3.13/site-packages"
TORCH = "__version__ = '2.11.0+cu130'\ncuda = '13.0'\n"
PACKAGES: dict[str, dict[str, str]] = {
    "torch": {
        "torch/version.py": TORCH,
        "torch/lib/libtorch.so": "code",
        "torch/test/test_torch.py": "",
        "nvidia/cu13/lib/libcublas.so.13": "cublas",
    },
    "leaf": {"leaf.py": "LEAF = 1\n"},
    "vllm": {"vllm/a.py": "A = 1\n", "vllm/_C.abi3.so": "code"},
}


@pytest.fixture
def using(tmp_path: Path) -> Iterator[Settings]:
    """An index with the wheels, and an empty cache folder."""
    for name, files in PACKAGES.items():
        index.wheel(tmp_path / "files", name, "1", files=files)
    index.wheel(tmp_path / "files", "nvidia-cuda-nvcc", "1", files={"nvidia/cu13/bin/nvcc": "nvcc"})
    with index.serve(tmp_path / "files", tmp_path / "www") as url:
        yield settings(tmp_path, url)


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system of one file, assembled before."""
    tree, folder = Tree(), tmp_path / "system"
    tree.file("etc/base", "base")
    cell = planned().cell
    digest, _, _ = debian_layout.write(
        tree, folder, platform=cell.platform, epoch=0, history="Debian: 1 package", tag="base"
    )
    layout = f"{bases.LAYOUT}{folder}@{digest}"
    monkeypatch.setattr(bases, "contexts", lambda *_: {ROOT: layout})
    return folder


def locked(using: Settings, name: str) -> Wheel:
    path = using.cache.parent / "files" / f"{name.replace('-', '_')}-1-py3-none-any.whl"
    return Wheel(
        name=name,
        version="1",
        filename=path.name,
        sha256=wheelhouse.sha_of(path),
        size=path.stat().st_size,
        index=using.indexes[0],
    )


def plan_of(using: Settings, *names: str, compilers: bool = False) -> CellPlan:
    made = planned()
    resolution = replace(
        made.resolution,
        wheels=tuple(locked(using, name) for name in names or PACKAGES),
        torch=TorchBuild(version="2.11.0+cu130", cuda="13.0"),
    )
    wheels = (locked(using, "nvidia-cuda-nvcc"),)
    toolchain = LockedToolchain(
        name="cuda", platform=made.cell.platform, requirements=(), wheels=wheels
    )
    cell = made.cell
    system = base_image(cell.flavor.base, cell.platform, suite="trixie")
    return replace(
        made, resolution=resolution, base=system, toolchain=toolchain if compilers else None
    )


def image_of(context: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, bytes | str]]]:
    """Manifest, configuration, and the content or link target of each layer's files."""
    folder, _, digest = context.removeprefix(bases.LAYOUT).partition("@")

    def blob(name: str) -> bytes:
        return (Path(folder) / "blobs" / Path(*name.split(":"))).read_bytes()

    manifest = json.loads(blob(digest))
    layers: list[dict[str, bytes | str]] = []
    for row in manifest["layers"]:
        data = zstandard.ZstdDecompressor().decompressobj().decompress(blob(row["digest"]))
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            layers.append(
                {
                    one.name: one.linkname if one.issym() else archive.extractfile(one).read()  # type: ignore[union-attr]
                    for one in archive
                    if not one.isdir()
                }
            )
    return manifest, json.loads(blob(manifest["config"]["digest"])), layers


def test_an_image_has_its_base_and_a_layer_for_each_list_of_wheels(
    using: Settings, tmp_path: Path
) -> None:
    made = stack.make(plan_of(using), tmp_path / "layouts", using)
    manifest, config, layers = image_of(made.image)
    assert [max(one) for one in layers] == [
        "etc/base",
        f"{SITE}/torch/version.py",
        f"{SITE}/leaf.py",
        f"{SITE}/vllm/a.py",
    ]
    assert f"{SITE}/torch/test/test_torch.py" not in layers[1]
    assert [row["created_by"] for row in config["history"]] == [
        "Debian: 1 package",
        "imagefactory: cuda-torch",
        "imagefactory: dependencies",
        "imagefactory: vllm",
    ]
    assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 4
    assert config["architecture"] == "arm64"
    assert all(row["mediaType"].endswith(".tar+zstd") for row in manifest["layers"])


def test_the_report_says_which_torch_is_there_and_what_was_left_out(
    using: Settings, tmp_path: Path
) -> None:
    report = stack.make(plan_of(using), tmp_path / "layouts", using).report
    torch = {"version": "2.11.0+cu130", "cuda": "13.0"}
    assert report["layers"] == [
        {"group": name, "torch": torch} for name in ("cuda-torch", "dependencies", "vllm")
    ]
    (row,) = report["dropped"]
    assert (row["layer"], row["files"]) == ("cuda-torch", [["torch/test/test_torch.py", 0]])


def test_what_patches_change_is_a_context_without_libraries(
    using: Settings, tmp_path: Path
) -> None:
    made = stack.make(plan_of(using), tmp_path / "layouts", using)
    (files,) = image_of(made.sources)[2]
    assert f"{SITE}/vllm/a.py" in files
    assert not any(name.endswith(".so") for name in files)


def test_compilers_are_linked_to_the_libraries_of_the_image(
    using: Settings, tmp_path: Path
) -> None:
    made = stack.make(plan_of(using, compilers=True), tmp_path / "layouts", using)
    compilers = image_of(made.image)[2][1]
    assert compilers["opt/cuda/bin/nvcc"] == b"nvcc"
    assert compilers["opt/cuda/lib/libcublas.so"] == f"/{SITE}/nvidia/cu13/lib/libcublas.so.13"


@pytest.mark.parametrize("compilers", [True, False])
def test_whoever_waits_is_told_of_the_layers_from_the_bottom_up_unless_all_are_kept(
    compilers: bool, using: Settings, tmp_path: Path
) -> None:
    plan = plan_of(using, compilers=compilers)
    told: list[list[str]] = []

    def growing(layers: Sequence[Blob]) -> None:
        assert all(one.path.is_file() for one in layers)
        told.append([one.digest for one in layers])

    made = stack.make(plan, tmp_path / "layouts", using, growing=growing)
    layers = [row["digest"] for row in image_of(made.image)[0]["layers"]]
    assert told == [layers[:count] for count in range(1, len(layers) + 1)]
    told.clear()
    assert stack.make(plan, tmp_path / "layouts", using, growing=growing) == made
    assert told == []


def test_the_same_wheels_give_the_same_image_elsewhere(using: Settings, tmp_path: Path) -> None:
    plan = plan_of(using, compilers=True)
    first = stack.make(plan, tmp_path / "one", using)
    second = stack.make(plan, tmp_path / "two", using, kept=tmp_path / "kept")
    assert first.image.partition("@")[2] == second.image.partition("@")[2]
    assert first.sources.partition("@")[2] == second.sources.partition("@")[2]
    assert first.report == second.report


def test_layers_that_are_kept_need_no_wheels(using: Settings, tmp_path: Path) -> None:
    plan = plan_of(using, compilers=True)
    first = stack.make(plan, tmp_path / "layouts", using)
    shutil.rmtree(using.cache / "wheelhouse")
    offline = replace(using, indexes=("http://127.0.0.1:9/simple",))
    assert stack.make(plan, tmp_path / "layouts", offline) == first
    kept = {path.name for path in (using.cache / stack.LAYERS).iterdir() if path.is_dir()}
    assert {name for name in kept if not name.startswith("base-")} == stack.folders_of(plan)


def test_another_wheel_makes_its_own_layer_anew_and_no_other(
    using: Settings, tmp_path: Path
) -> None:
    first = image_of(stack.make(plan_of(using), tmp_path / "layouts", using).image)[0]
    index.wheel(tmp_path / "files", "leaf", "1", files={"leaf.py": "LEAF = 2\n"})
    shutil.rmtree(tmp_path / "www")
    index.write_pages(tmp_path / "files", tmp_path / "www")
    second = image_of(stack.make(plan_of(using), tmp_path / "layouts", using).image)[0]
    same = [a == b for a, b in zip(first["layers"], second["layers"], strict=True)]
    assert same == [True, True, False, True]


def test_a_wheel_that_is_nowhere_is_named(using: Settings, tmp_path: Path) -> None:
    plan = plan_of(using)
    first, *others = plan.resolution.wheels
    wheels = [first, *(replace(one, sha256=one.sha256[::-1]) for one in others)]
    broken = replace(plan, resolution=replace(plan.resolution, wheels=tuple(wheels)))
    with pytest.raises(SetupError) as caught:
        stack.make(broken, tmp_path / "layouts", using)
    assert {problem.code for problem in caught.value.problems} == {"wheel-gone"}
    assert len(caught.value.problems) == 2


def test_a_kept_wheel_that_is_damaged_is_fetched_again(using: Settings, tmp_path: Path) -> None:
    plan = plan_of(using)
    first = stack.make(plan, tmp_path / "layouts", using)
    (leaf,) = (using.cache / "wheelhouse").glob("*/leaf-*.whl")
    good = leaf.read_bytes()
    leaf.write_bytes(good.replace(b"LEAF = 1", b"LEAF = 9"))
    shutil.rmtree(using.cache / stack.LAYERS)
    assert stack.make(plan, tmp_path / "layouts", using) == first
    assert leaf.read_bytes() == good


def test_a_locked_wheel_that_cannot_be_unpacked_is_one_clear_error(
    using: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "files" / "leaf-1-py3-none-any.whl"
    file.write_bytes(file.read_bytes().replace(b"LEAF = 1", b"LEAF = 9"))
    shutil.rmtree(tmp_path / "www")
    index.write_pages(tmp_path / "files", tmp_path / "www")
    with pytest.raises(SetupError) as caught:
        stack.make(plan_of(using), tmp_path / "layouts", using)
    assert caught.value.problems[0].code == "wheel-broken"


def test_a_wheel_that_brings_another_torch_stops_the_build(using: Settings, tmp_path: Path) -> None:
    index.wheel(tmp_path / "files", "leaf", "1", files={"torch/version.py": "__version__ = '1'\n"})
    shutil.rmtree(tmp_path / "www")
    index.write_pages(tmp_path / "files", tmp_path / "www")
    with pytest.raises(CheckFailedError, match="after layer dependencies, torch is 1"):
        stack.make(plan_of(using), tmp_path / "layouts", using)


def test_a_wheel_that_replaces_a_file_of_torch_is_undone_in_a_layer_above(
    using: Settings, tmp_path: Path
) -> None:
    index.wheel(tmp_path / "files", "leaf", "1", files={"torch/lib/libtorch.so": "other"})
    shutil.rmtree(tmp_path / "www")
    index.write_pages(tmp_path / "files", tmp_path / "www")
    made = stack.make(plan_of(using), tmp_path / "layouts", using)
    _, config, layers = image_of(made.image)
    assert layers[-1] == {f"{SITE}/torch/lib/libtorch.so": b"code"}
    assert config["history"][-1]["created_by"].startswith("imagefactory: torch, where")


def test_the_layers_of_a_registrys_image_are_taken_as_they_are(
    using: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "contexts", lambda *_: {})
    tree = Tree()
    tree.file("etc/os-release", "ID=x")
    layer = b"".join(tarball.blocks(tree, 0))
    with fake_registry() as server:
        digest = server.put_image("base", "1", "linux/arm64", env={"A": "b"}, layers=[layer])
        plan = plan_of(using)
        declared = replace(plan.base.base, image=f"{server.address}/base:1")
        image = base_image(declared, plan.cell.platform, digest=digest)
        made = stack.make(replace(plan, base=image), tmp_path / "layouts", using)
        folder, _, wanted = made.image.removeprefix(bases.LAYOUT).partition("@")
        blobs = Path(folder) / "blobs" / "sha256"
        manifest = json.loads((blobs / wanted.removeprefix("sha256:")).read_text())
        first = manifest["layers"][0]
        assert (blobs / first["digest"].removeprefix("sha256:")).read_bytes() == layer
        assert first["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
        name = manifest["config"]["digest"].removeprefix("sha256:")
        assert json.loads((blobs / name).read_text())["config"] == {
            "Env": ["A=b"],
            "WorkingDir": "/root",
        }
        asked = len([path for path in server.asked if "/blobs/" in path])
        stack.make(replace(plan, base=image), tmp_path / "layouts", using)
        assert len([path for path in server.asked if "/blobs/" in path]) == asked + 1  # its config

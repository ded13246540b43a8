"""The program that writes the top layer of an image: its manifest, its entrypoint, its proofs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagefactory.inbuild import manifest, overlay, proofkit
from imagefactory.inbuild.layer import EPOCH


def copied(folder: Path, steps: list[dict[str, str]]) -> Path:
    (folder / "patches/vllm/one").mkdir(parents=True)
    script = "import proofkit\nproofkit.main(lambda tree: proofkit.verdict([], tree.name))\n"
    (folder / "patches/vllm/one/proof.py").write_text(script)
    (folder / "patches/series.json").write_text(json.dumps(steps))
    manifest.copy_proofs(folder / "patches", folder / "proofs")
    return folder / "proofs"


@pytest.mark.programs
def test_the_proofs_of_an_image_have_the_proofkit_next_to_them(tmp_path: Path) -> None:
    out = copied(tmp_path, [{"name": "vllm/one", "proof": "vllm/one/proof.py"}])
    assert (out / "proofkit/__init__.py").read_bytes() == Path(proofkit.__file__).read_bytes()
    assert overlay.prove(out / "vllm/one/proof.py", tmp_path) == (0, tmp_path.name)


def test_an_image_without_proofs_has_no_proofkit(tmp_path: Path) -> None:
    out = copied(tmp_path, [{"name": "vllm/one", "exempt": "not for this version"}])
    assert not out.exists()


PLANNED = {"cell": "a-cell", "build_key": "k", "wheels": [{"name": "torch"}]}
DROPPED = [
    {"layer": "torch", "rule": "tests", "why": "not used", "files": [["a/test.py", 5], ["b", 7]]},
    {"layer": "vllm", "rule": "none", "why": "nothing", "files": []},
]
LAYERS = {"layers": [{"group": "torch", "torch": None}], "dropped": DROPPED}
PATCHED = [{"name": "vllm/one", "state": "needed", "files": {"x.py": "0"}}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The layer that is made from reports of a build."""
    folder = tmp_path / "in"
    for name, value in {
        "image/manifest": PLANNED,
        "image/layers": LAYERS,
        "patched": PATCHED,
    }.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    for name in manifest.PROGRAMS:
        (folder / "image" / name).write_text("#!/bin/sh\n")
    steps = [
        {"name": "vllm/one", "proof": "vllm/one/proof.py"},
        {"name": "vllm/two", "proof": "vllm/two/proof.py"},
        {"name": "vllm/three", "exempt": "not for this version"},
    ]
    for row in steps[:2]:
        path = folder / "patches" / row["proof"]
        path.parent.mkdir(parents=True)
        path.write_text(f"proof of {row['name']}")
    (folder / "patches/series.json").write_text(json.dumps(steps))
    manifest.main(folder, tmp_path / "root")
    return tmp_path / "root"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_manifest_has_what_was_planned_and_what_the_build_recorded(root: Path) -> None:
    assert read(root / "opt/imagefactory/manifest.json") == {
        **PLANNED,
        "layers": LAYERS["layers"],
        "patches": PATCHED,
        "dropped": [
            {"layer": "torch", "rule": "tests", "why": "not used", "files": 2, "bytes": 12},
            {"layer": "vllm", "rule": "none", "why": "nothing", "files": 0, "bytes": 0},
        ],
    }


def test_every_removed_file_is_listed_beside_the_manifest(root: Path) -> None:
    assert read(root / "opt/imagefactory/dropped.json") == DROPPED


def test_the_layer_has_nothing_but_its_files_all_of_one_date(root: Path) -> None:
    out = root / "opt/imagefactory"
    found = {str(path.relative_to(out)) for path in root.rglob("*") if path.is_file()}
    kit = {f"proofs/proofkit/{p.name}" for p in Path(proofkit.__file__).parent.glob("*.py")}
    proofs = {"proofs/vllm/one/proof.py", "proofs/vllm/two/proof.py", *kit}
    assert found == {"manifest.json", "dropped.json", *manifest.PROGRAMS, *proofs}
    assert {path.stat().st_mtime for path in [root, *root.rglob("*")]} == {EPOCH}
    assert (out / "proofs/vllm/two/proof.py").read_text() == "proof of vllm/two"


def test_the_entrypoint_can_be_run_by_everyone(root: Path) -> None:
    entrypoint = root / "opt/imagefactory/entrypoint"
    assert entrypoint.read_text() == "#!/bin/sh\n"
    assert entrypoint.stat().st_mode & 0o777 == 0o755

"""The layers above those of wheels: patches, and what an image knows of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefactory.inbuild import manifest, patched, proofkit
from imagefactory.inbuild.layer import EPOCH, SITE

pytestmark = pytest.mark.programs

INSTALLED = SITE.format(python="3.13")
PROOF = """\
import pathlib, sys
sys.exit(0 if "new" in pathlib.Path(sys.argv[1], "vllm/a.py").read_text() else 1)
"""
DIFF = "--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-old\n+{word}\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def dates(root: Path) -> set[float]:
    return {path.lstat().st_mtime for path in [root, *root.rglob("*")]}


def series(folder: Path, word: str) -> Path:
    rows = [{"name": "vllm/one", "diff": "vllm/one/0.diff", "proof": "vllm/one/proof.py"}]
    files = {"vllm/one/0.diff": DIFF.format(word=word), "vllm/one/proof.py": PROOF}
    return write(folder, {**files, "series.json": json.dumps(rows)})


def test_the_layer_of_patches_has_the_changed_files_and_no_others(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    write(wheels / INSTALLED, {"vllm/a.py": "old\n", "vllm/b.py": "same\n"})
    patches, out = series(tmp_path / "patches", "new"), tmp_path / "patched"
    assert patched.main("3.13", wheels=wheels, patches=patches, out=out) == 0
    assert names(out / "root" / INSTALLED) == {"vllm/a.py"}
    assert names(out) == {"report.json", f"root/{INSTALLED}/vllm/a.py"}
    assert [row["state"] for row in json.loads((out / "report.json").read_text())] == ["needed"]
    assert dates(out / "root") == {EPOCH}


def test_a_patch_that_does_not_help_makes_no_layer(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    write(wheels / INSTALLED, {"vllm/a.py": "old\n"})
    patches, out = series(tmp_path / "patches", "other"), tmp_path / "patched"
    assert patched.main("3.13", wheels=wheels, patches=patches, out=out) == 1
    assert not (out / "report.json").exists()


def inputs(folder: Path) -> Path:
    dropped = [{"layer": "torch", "rule": "tests", "why": "w", "files": [["a", 3], ["b", 4]]}]
    series(folder / "patches", "new")
    return write(
        folder,
        {
            "image/manifest.json": json.dumps({"cell": "c"}),
            **{f"image/{name}": "#!" for name in manifest.PROGRAMS},
            "image/layers.json": json.dumps({"layers": [{"group": "torch"}], "dropped": dropped}),
            "patched.json": json.dumps([{"name": "vllm/one"}]),
        },
    )


def test_the_top_layer_has_the_entrypoint_the_records_and_the_proofs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    manifest.main(inputs(tmp_path / "in"), root)
    folder = root / "opt/imagefactory"
    assert names(folder) == {
        "manifest.json",
        "dropped.json",
        *manifest.PROGRAMS,
        *(f"proofs/proofkit/{path.name}" for path in Path(proofkit.__file__).parent.glob("*.py")),
        "proofs/vllm/one/proof.py",
    }
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in manifest.PROGRAMS}
    assert modes == {"entrypoint": 0o755, "nodes.py": 0o644}
    assert dates(root) == {EPOCH}


def test_the_manifest_adds_up_what_was_left_out_and_dropped_json_names_it(tmp_path: Path) -> None:
    manifest.main(inputs(tmp_path / "in"), tmp_path / "root")
    folder = tmp_path / "root/opt/imagefactory"
    assert json.loads((folder / "manifest.json").read_text()) == {
        "cell": "c",
        "layers": [{"group": "torch"}],
        "patches": [{"name": "vllm/one"}],
        "dropped": [{"layer": "torch", "rule": "tests", "why": "w", "files": 2, "bytes": 7}],
    }
    (row,) = json.loads((folder / "dropped.json").read_text())
    assert row["files"] == [["a", 3], ["b", 4]]

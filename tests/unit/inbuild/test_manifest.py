"""The program that writes an image's manifest and puts the proofs beside it."""

from __future__ import annotations

import json
from pathlib import Path

from imagefactory.inbuild import manifest, overlay


def write(folder: Path, steps: list[dict[str, str]]) -> Path:
    (folder / "dropped").mkdir()
    (folder / "patches/vllm/one").mkdir(parents=True)
    script = "import proofkit\nproofkit.main(lambda tree: proofkit.verdict([], tree.name))\n"
    (folder / "patches/vllm/one/proof.py").write_text(script)
    (folder / "patches/series.json").write_text(json.dumps(steps))
    for name in ("planned", "layers", "patched"):
        (folder / name).write_text("{}")
    manifest.main(
        folder / "planned",
        folder / "layers",
        folder / "patched",
        folder / "dropped",
        folder / "patches",
        folder / "out",
    )
    return folder / "out"


def test_the_proofs_lie_beside_the_manifest_with_what_they_import(tmp_path: Path) -> None:
    out = write(tmp_path, [{"name": "vllm/one", "proof": "vllm/one/proof.py"}])
    kit = Path(overlay.__file__).with_name("proofkit.py").read_bytes()
    assert (out / "proofs/proofkit.py").read_bytes() == kit
    assert overlay.prove(out / "proofs/vllm/one/proof.py", tmp_path) == (0, tmp_path.name)


def test_an_image_without_proofs_has_nothing_of_them(tmp_path: Path) -> None:
    out = write(tmp_path, [{"name": "vllm/one", "exempt": "not for this version"}])
    assert sorted(path.name for path in out.iterdir()) == ["dropped.json", "manifest.json"]

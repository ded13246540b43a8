"""The program that writes an image's manifest copies the proofs and what they import."""

from __future__ import annotations

import json
from pathlib import Path

from imagefactory.inbuild import manifest, overlay, proofkit


def copied(folder: Path, steps: list[dict[str, str]]) -> Path:
    (folder / "patches/vllm/one").mkdir(parents=True)
    script = "import proofkit\nproofkit.main(lambda tree: proofkit.verdict([], tree.name))\n"
    (folder / "patches/vllm/one/proof.py").write_text(script)
    (folder / "patches/series.json").write_text(json.dumps(steps))
    manifest.copy_proofs(folder / "patches", folder / "proofs")
    return folder / "proofs"


def test_the_proofs_of_an_image_have_the_proofkit_next_to_them(tmp_path: Path) -> None:
    out = copied(tmp_path, [{"name": "vllm/one", "proof": "vllm/one/proof.py"}])
    assert (out / "proofkit.py").read_bytes() == Path(proofkit.__file__).read_bytes()
    assert overlay.prove(out / "vllm/one/proof.py", tmp_path) == (0, tmp_path.name)


def test_an_image_without_proofs_has_no_proofkit(tmp_path: Path) -> None:
    out = copied(tmp_path, [{"name": "vllm/one", "exempt": "not for this version"}])
    assert not out.exists()

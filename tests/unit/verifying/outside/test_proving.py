"""Proofs of an emulated image, which run here on its files."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.saved_images import Saving
from support.whole_images import SITE, Node, WholeImage, archive, base_in

from imagefactory.inbuild import proofkit
from imagefactory.system import platforms
from imagefactory.verifying.outside import outside, proving
from imagefactory.verifying.outside.judged import Judged

pytestmark = pytest.mark.programs


def observed(own: WholeImage, engine: Saving) -> Judged:
    return outside.observe(engine, own.saved()[1], own.plan, own.settings)


@pytest.fixture
def emulated(own: WholeImage, monkeypatch: pytest.MonkeyPatch) -> WholeImage:
    """An image of another platform, whose proof reads the file that its patch changes."""
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    monkeypatch.setattr(platforms, "is_native", lambda _: False)
    return own


def proof_of(own: WholeImage, monkeypatch: pytest.MonkeyPatch, *needs: proofkit.Need) -> Path:
    """The proof that this machine runs, with other text and needs than the image's."""
    (step,) = own.plan.series
    assert step.patch.proof is not None
    script = own.folder / "here" / "proof.py"
    script.parent.mkdir()
    patch = replace(step.patch, proof=replace(step.patch.proof, script=script, needs=needs))
    monkeypatch.setattr(own, "plan", replace(own.plan, series=(replace(step, patch=patch),)))
    return script


READS = """\
import pathlib, sys
root = pathlib.Path(sys.argv[1])
print(sorted(p.name for p in root.rglob("*") if p.is_file()), (root / "vllm/modelopt.py").read_text())
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 1])
def test_proofs_of_an_emulated_image_run_here_on_its_own_files_without_its_libraries(
    emulated: WholeImage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(proving, "MOST_BYTES", 1000)
    proof_of(emulated, monkeypatch).write_text(READS.format(code=code))
    engine = Saving(emulated)
    found = observed(emulated, engine)
    assert engine.asked == [f"/{SITE}/vllm"]
    assert [(one.patch, one.code) for one in found.proofs] == [("vllm/one", code)]
    assert found.proofs[0].output == "zwei"
    assert found.to_prove == ()


def test_what_a_proof_leaves_in_the_folder_for_temporary_files_is_removed(
    emulated: WholeImage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    proof_of(emulated, monkeypatch).write_text("import tempfile; tempfile.mkdtemp()")
    assert [one.code for one in observed(emulated, Saving(emulated)).proofs] == [0]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("code", "needs"), [(3, ()), (2, ()), (0, ("nvcc",))])
def test_a_proof_that_says_nothing_here_or_needs_a_compiler_is_left_to_the_image(
    emulated: WholeImage, monkeypatch: pytest.MonkeyPatch, code: int, needs: tuple[str, ...]
) -> None:
    monkeypatch.delenv(proofkit.CUDA, raising=False)
    proof_of(emulated, monkeypatch, *needs).write_text(f"raise SystemExit({code})")  # type: ignore[arg-type]
    found = observed(emulated, Saving(emulated))
    assert (found.proofs, found.to_prove) == ((), ("vllm/one",))


def test_no_proof_runs_here_on_files_that_are_not_the_cell_s(
    emulated: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = emulated.folder / "ran"
    proof_of(emulated, monkeypatch).write_text(f"open({str(ran)!r}, 'w')")
    for spoilt in ("vllm/extra.py", "vllm/modelopt.py"):
        emulated.tree[f"{SITE}/{spoilt}"] = Node(data=b"import os")
        engine = Saving(emulated)
        found = observed(emulated, engine)
        assert found.changed or found.extra
        assert (engine.asked, found.proofs, ran.exists()) == ([], (), False)


def test_an_image_of_this_machine_s_platform_proves_its_patches_itself(
    own: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    monkeypatch.setattr(platforms, "is_native", lambda _: True)
    engine = Saving(own)
    assert observed(own, engine).clean
    assert engine.asked == []


def test_a_name_that_leads_out_of_the_folder_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    names_in = {"../out": Node(data=b"x"), "/abs": Node(data=b"x"), "a/b.py": Node(data=b"y")}
    proving.unpack(io.BytesIO(archive(names_in)), tmp_path / "in")
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["in/a/b.py"]

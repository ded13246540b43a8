"""The patch catalogue: what is valid, and in which order a cell gets its patches."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.matrices import GOOD
from support.matrices import write as write_matrix
from support.patches import PATCH, UNPROVEN, make

from imagefactory.errors import InputError
from imagefactory.matrix import matrix
from imagefactory.patching import catalog
from imagefactory.patching.patch import IMPORTED, PROJECTS, Origin, Source, State, unproven
from imagefactory.patching.sources import DISTRIBUTIONS

#: The record of what a patch was imported from does not match.
CHANGED = "patch-imported", 12


def codes(root: Path) -> dict[str, str | None]:
    with pytest.raises(InputError) as caught:
        catalog.load(root / "patches")
    return {problem.code: problem.where for problem in caught.value.problems}


def test_a_cell_gets_the_variant_for_its_version(tmp_path: Path) -> None:
    make(tmp_path)
    found = catalog.load(tmp_path / "patches")
    steps = [catalog.series(found, cell)[0] for cell in matrix.load(write_matrix(tmp_path)).cells]
    assert [step.variant.diff.name if step.variant else step.exempt for step in steps] == [
        "a.diff",
        "b.diff",
        "",
    ]


def test_a_patch_of_the_project_replaces_the_stock_one_of_the_same_name(tmp_path: Path) -> None:
    stock, own = tmp_path / "stock", tmp_path / "project"
    for root, name in ((stock, "one"), (stock, "two"), (own, "two"), (own, "three")):
        make(root, f"vllm/{name}")
    found = catalog.load(own / "patches", stock / "patches")
    assert {name: (patch.origin, patch.shown) for name, patch in found.items()} == {
        "vllm/one": (Origin.STOCK, str(stock / "patches/vllm/one/patch.yaml")),
        "vllm/three": (Origin.PROJECT, "patches/vllm/three/patch.yaml"),
        "vllm/two": (Origin.REPLACES_STOCK, "patches/vllm/two/patch.yaml"),
    }
    assert found["vllm/two"].folder == own / "patches/vllm/two"


def test_a_project_without_patches_has_the_stock_ones(tmp_path: Path) -> None:
    make(tmp_path / "stock")
    found = catalog.load(tmp_path / "patches", tmp_path / "stock/patches")
    assert [patch.origin for patch in found.values()] == [Origin.STOCK]


def test_an_exemption_is_kept_with_its_reason(tmp_path: Path) -> None:
    make(
        tmp_path, text=PATCH + 'not_applicable:\n  - {versions: "==0.22.1", reason: never there}\n'
    )
    cell = matrix.load(write_matrix(tmp_path)).cells[0]
    (step,) = catalog.series(catalog.load(tmp_path / "patches"), cell)
    assert (step.variant, step.exempt) == (None, "never there")


def test_a_patch_comes_after_those_that_its_after_lists(tmp_path: Path) -> None:
    make(tmp_path, "vllm/one", PATCH + "after: [vllm/two]\n")
    make(tmp_path, "vllm/two")
    (tmp_path / "matrix.yaml").write_text(GOOD.replace("[vllm/one]", "[vllm/one, vllm/two]"))
    cell = matrix.load(tmp_path / "matrix.yaml").cells[0]
    names = [step.patch.name for step in catalog.series(catalog.load(tmp_path / "patches"), cell)]
    assert names == ["vllm/two", "vllm/one"]


def test_the_error_for_an_unknown_patch_lists_the_available_ones(tmp_path: Path) -> None:
    make(tmp_path, "vllm/other")
    with pytest.raises(InputError) as caught:
        catalog.series(
            catalog.load(tmp_path / "patches"), matrix.load(write_matrix(tmp_path)).cells[0]
        )
    (problem,) = caught.value.problems
    assert (problem.code, problem.fix) == ("patch-unknown", "available: vllm/other")


@pytest.mark.parametrize(
    ("listed", "text", "code", "fix"),
    [
        ("vllm/gone", PATCH, "patch-unknown", "available: vllm/one"),
        ("vllm/one", PATCH + "draft: true\n", "patch-draft", "remove `draft`"),
        ("vllm/one", PATCH.replace("installed", "source"), "patch-stage", "binaries: compiled"),
        ("flashinfer/one", PATCH, "patch-no-version", "give the cell that axis"),
    ],
)
def test_a_patch_that_a_cell_cannot_have_is_refused_at_its_flavor(
    tmp_path: Path, listed: str, text: str, code: str, fix: str
) -> None:
    make(tmp_path, listed if listed == "flashinfer/one" else "vllm/one", text)
    cell = matrix.load(write_matrix(tmp_path, "[vllm/one]", f"[{listed}]")).cells[0]
    with pytest.raises(InputError) as caught:
        catalog.series(catalog.load(tmp_path / "patches"), cell)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == (code, str(cell.flavor.location))
    assert fix in problem.fix


def test_of_several_patches_every_refused_one_is_reported(tmp_path: Path) -> None:
    make(tmp_path, "vllm/one", PATCH + "draft: true\n")
    make(tmp_path, "vllm/two")
    path = write_matrix(tmp_path, "[vllm/one]", "[vllm/one, vllm/two, vllm/gone]")
    with pytest.raises(InputError) as caught:
        catalog.series(catalog.load(tmp_path / "patches"), matrix.load(path).cells[0])
    assert [one.code for one in caught.value.problems] == ["patch-draft", "patch-unknown"]


def test_a_patch_without_a_proof_goes_into_a_series_only_if_it_says_so(tmp_path: Path) -> None:
    sha = hashlib.sha256(b"as fetched").hexdigest()
    folder = make(tmp_path, text=UNPROVEN + f"imported: {{address: u, sha256: {sha}}}\n")
    (folder / IMPORTED).write_bytes(b"as fetched")
    (folder / "proof.py").unlink()
    cell = matrix.load(write_matrix(tmp_path)).cells[0]
    series = catalog.series(catalog.load(tmp_path / "patches"), cell)
    assert unproven(series) == ("vllm/one",)
    assert series[0].patch.source == Source(address="u", sha256=sha)
    assert unproven([replace(series[0], exempt="not here")]) == ()


def test_only_a_conflict_and_a_broken_patch_stop_a_build() -> None:
    stops = {state.value for state in State if state.stops_build}
    assert stops == {"conflict", "missing", "broken"}
    goes_on = {state.value for state in State} - stops
    assert goes_on == {"needed", "obsolete", "declared", "n/a", "unknown", "unproven"}


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ('">=0.33,<0.34"', '">=0.22.1,<0.34"', "patch-overlap", 10),
        ('">=0.33,<0.34"', '">0.22,<0.23"', "patch-overlap", 10),
        ('">=0.33,<0.34"', '"0.33"', "patch-bad-versions", 10),
        ("diff: b.diff", "diff: c.diff", "patch-no-diff", 10),
        ("run: proof.py", "run: none.py", "patch-no-proof", 14),
        ("findings: f", "finding: f", "patch-unknown-key", 12),
        ("stage: installed", "stage: here", "patch-wrong-value", 6),
        ("kind: static", "kind: static\n  needs: [gcc]", "patch-wrong-value", 16),
        ("variants:", "applies_to: {flavors: [gb11]}\nvariants:", "patch-unknown-key", 7),
        *(
            (
                "findings: f",
                f"{name}:\n  - {{{row}versions: '>=1'}}\n  - {{{row}versions: '===n'}}\nfindings: f",
                "patch-bad-versions",
                14,
            )
            for name, row in (
                ("not_applicable", "reason: r, "),
                ("no_diff", "reason: r, "),
                ("kinds", "kind: latent, reason: r, "),
            )
        ),
        (
            "findings: f",
            "kinds:\n  - kind: latent\n    reason: r\n    versions: '===n'\nfindings: f",
            "patch-bad-versions",
            15,
        ),
        (
            "findings: f",
            "not_applicable:\n  - reason: r\n    versions: '===n'\nfindings: f",
            "patch-bad-versions",
            14,
        ),
        (
            "findings: f",
            "no_diff:\n  - reason: r\n    versions: '===n'\nfindings: f",
            "patch-bad-versions",
            14,
        ),
        (
            '  - versions: ">=0.33,<0.34"\n    diff: b.diff',
            "  - diff: b.diff\n    versions: '===n'",
            "patch-bad-versions",
            11,
        ),
        ("variants:", "after: [vllm/gone]\nvariants:", "patch-unknown", 1),
        ("variants:", "after: [vllm/one]\nvariants:", "patch-cycle", 1),
        ("variants:", "unproven: true\nvariants:", "patch-unproven", 7),
        ("proof:\n  run: proof.py\n  kind: static\n", "", "patch-no-proof", 1),
        ("findings: f", f"imported: {{address: u, sha256: {'a' * 64}}}\nfindings: f", *CHANGED),
    ],
)
def test_a_mistake_in_patch_yaml_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, code: str, line: int
) -> None:
    make(tmp_path, text=PATCH.replace(old, new))
    where = codes(tmp_path)[code]
    assert where == f"patches/vllm/one/patch.yaml:{line}"


def test_the_mistakes_in_all_patches_are_reported_together(tmp_path: Path) -> None:
    (make(tmp_path, "vllm/one") / "a.diff").write_text("")
    (make(tmp_path, "vllm/two") / "proof.py").unlink()
    assert codes(tmp_path).keys() == {"diff-empty", "patch-no-proof"}


def test_the_committed_catalogue_is_valid() -> None:
    assert catalog.load(ROOT / "patches")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../matrix.yaml", "--help", "..", "a b"])
def test_a_proof_or_a_diff_is_a_file_of_the_patch_itself(tmp_path: Path, name: str) -> None:
    make(tmp_path, text=PATCH.replace("run: proof.py", f"run: {name!r}"))
    make(tmp_path, "vllm/two", PATCH.replace("diff: a.diff", f"diff: {name!r}"))
    found = codes(tmp_path)
    assert found["patch-wrong-value"]


@pytest.mark.parametrize("file", ["proof.py", "a.diff"])
def test_a_link_out_of_the_patch_is_not_followed(tmp_path: Path, file: str) -> None:
    folder = make(tmp_path)
    (folder / file).unlink()
    (folder / file).symlink_to("/etc/passwd")
    assert codes(tmp_path)["patch-link"] == "patches/vllm/one/patch.yaml:1"


@pytest.mark.parametrize("data", [b"\0", b"\xff", None])
def test_a_proof_is_a_file_of_text(tmp_path: Path, data: bytes | None) -> None:
    proof = make(tmp_path) / "proof.py"
    proof.unlink()
    if data is not None:
        proof.write_bytes(data)
    assert codes(tmp_path)["patch-no-proof"] == "patches/vllm/one/patch.yaml:14"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("vllm/-x", "patch-bad-name"),
        ("vllm/a b", "patch-bad-name"),
        ("nobody/x", "patch-unknown-project"),
    ],
)
def test_a_patch_has_a_name_and_a_known_project(tmp_path: Path, name: str, code: str) -> None:
    make(tmp_path, name)
    assert code in codes(tmp_path)


def test_a_version_range_is_of_versions(tmp_path: Path) -> None:
    make(tmp_path, text=PATCH.replace('">=0.22,<0.23"', '"===new"'))
    assert "patch-bad-versions" in codes(tmp_path)


def test_the_projects_are_those_with_sources() -> None:
    assert set(PROJECTS) == set(DISTRIBUTIONS)

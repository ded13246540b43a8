"""Which rows of a matrix are proposed, and how they are written into it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.watched import MATRIX, NOW, record, write

from imagefactory.errors import CheckFailedError
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.policies import Follow
from imagefactory.watching import releases, watching
from imagefactory.watching.candidates import Candidate, candidates
from imagefactory.watching.releases import Listing, Recorded, WheelFile

TODAY = NOW.date()
NIGHTLY = "0.34.1.dev12+g1234567"


def proposed(declared: Matrix, upstream: Recorded, today: date = TODAY) -> tuple[Candidate, ...]:
    return candidates(declared.cells, upstream, declared.policies, today)


def shown(found: Sequence[Candidate]) -> list[tuple[str, str, bool]]:
    return [(one.row.values["vllm"], one.version, one.replaces) for one in found]


def index(vllm: Mapping[str, str], yanked: Sequence[str] = ()) -> Recorded:
    """An index with releases of vLLM, each with the torch that it requires."""
    lines, files = {}, []
    for version, torch in vllm.items():
        name = f"vllm-{version}-cp38-abi3-manylinux_2_28_aarch64.whl"
        files.append(wheel(name, yanked="bad" if version in yanked else None))
        lines[name] = (f"torch=={torch}",)
    built = []
    for version in {*vllm.values(), "2.11.0", "2.13.0"}:
        name = f"torch-{version}-cp313-cp313-manylinux_2_28_aarch64.whl"
        built.append(wheel(name))
        lines[name] = ("cuda-toolkit==13.0.2",)
    return Recorded({"vllm": releases.listing(files), "torch": releases.listing(built)}, lines)


def wheel(name: str, yanked: str | None = None) -> WheelFile:
    found = releases.wheel_file(name, yanked=yanked)
    assert found
    return found


def test_a_line_moves_in_its_place_and_a_newer_one_gets_a_row_of_its_own(tmp_path: Path) -> None:
    declared = write(tmp_path)
    found = proposed(declared, record())
    assert shown(found) == [("0.22.0", "0.22.1", True), ("0.29.0", "0.33.0", False)]
    watching.update(declared, found)
    text = (tmp_path / "matrix.yaml").read_text()
    expected = MATRIX
    for old, new in (
        ('["0.22.0", "0.29.0"]', '["0.22.1", "0.29.0", "0.33.0"]'),
        ('["2.11.0", "2.13.0"]', '["2.11.0", "2.13.0", "2.14.0"]'),
        ('["0.6.12", "0.6.18"]', '["0.6.12", "0.6.18", "0.7.2.post1"]'),
        ('vllm: "0.22.0"}', 'vllm: "0.22.1"}'),
        ('when: {vllm: "0.29.0"}', 'when: {vllm: ["0.29.0", "0.33.0"]}'),
    ):
        expected = expected.replace(old, new)
    assert text == expected  # comments, quotes and alignment are the author's
    assert proposed(write(tmp_path, (MATRIX, text)), record()) == ()


@pytest.mark.parametrize(
    ("follow", "old", "expected"),
    [
        ("patch", "0.29.0", [("0.29.1", True)]),
        ("minor", "0.29.0", [("0.29.1", True), ("0.34.0", False)]),
        ("release", "0.29.0", [("0.29.1", True), ("1.0.0", False)]),
        ("rc", "0.29.0", [("0.29.1", True), ("1.0.0", False), ("1.1.0rc1", False)]),
        (
            "nightly",
            "0.29.0",
            [("0.29.1", True), ("1.0.0", False), ("1.1.0.dev3+gabcdef0", False)],
        ),
        ("nightly", NIGHTLY, [("1.1.0.dev3+gabcdef0", True)]),
        ("release", NIGHTLY, [("1.0.0", True)]),
        ("patch", NIGHTLY, [("0.34.1", True)]),
    ],
)
def test_each_policy_proposes_what_it_allows(
    tmp_path: Path, follow: str, old: str, expected: list[tuple[str, bool]]
) -> None:
    known = ["0.22.0", "0.29.0", "0.29.1", "0.34.0", "0.34.1", "1.0.0"]
    known += ["1.1.0rc1"] if follow != "nightly" else ["1.1.0.dev2", "1.1.0.dev3+gabcdef0"]
    changes = [('"0.22.0", "0.29.0"', f'"{old}"'), ('"2.11.0", "2.13.0"', '"2.11.0"')]
    changes += [('"0.6.12", "0.6.18"', '"0.6.12"'), (MATRIX[MATRIX.index("include:") :], "")]
    if follow == "minor":
        known.remove("0.34.1")
    declared = write(tmp_path, *changes, more=f"follow: {follow}\n")
    upstream = index(dict.fromkeys(known, "2.11.0"))
    assert [(one.version, one.replaces) for one in proposed(declared, upstream)] == expected


def test_a_release_replaces_the_early_version_that_led_to_it(tmp_path: Path) -> None:
    changes = [('"0.22.0", "0.29.0"', '"0.29.0", "0.30.0rc1"')]
    declared = write(
        tmp_path, *changes, (MATRIX[MATRIX.index("overrides:") :], ""), more="follow: rc\n"
    )
    found = proposed(declared, index(dict.fromkeys(["0.29.0", "0.30.0rc1", "0.30.0"], "2.13.0")))
    assert shown(found) == [("0.30.0rc1", "0.30.0", True)]


def test_nightlies_come_from_the_index_that_the_matrix_names(tmp_path: Path) -> None:
    url = "https://nightly.example/simple"
    named = f"indexes: {{nightly: {{url: '{url}'}}}}\ndefaults:"
    changes = [("defaults:", named), ('"0.22.0", "0.29.0"', f'"0.29.0", "{NIGHTLY}"')]
    changes += [('"580.95"\n', '"580.95"\n    indexes: {vllm: nightly}\n')]
    changes += [(MATRIX[MATRIX.index("overrides:") :], "")]
    declared = write(tmp_path, *changes, more="follow: {vllm: nightly}\n")
    known = index({"0.29.0": "2.13.0", "0.34.1.dev20+gabc": "2.13.0", NIGHTLY: "2.13.0"})
    here: dict[str | tuple[str, str], Listing]
    here = {("vllm", url): known.listings["vllm"], "torch": known.listings["torch"]}
    found = proposed(declared, Recorded(here, known.lines))
    assert shown(found) == [(NIGHTLY, "0.34.1.dev20+gabc", True)]
    watching.update(declared, found)
    assert '"0.34.1.dev20+gabc"' in declared.path.read_text()


def test_a_row_of_include_and_lists_over_several_lines_are_extended(tmp_path: Path) -> None:
    start, end = MATRIX.index("  - vllm:"), MATRIX.index("include:")
    block = """\
  - vllm:
      - 0.22.0
      - "0.29.0"   # the last
    torch:
      - '2.11.0'
      - '2.13.0'
    flashinfer: ["0.6.12",
                 "0.6.18"]
"""
    row = '  - {flavor: cpu, python: "3.11", channel: cpu, vllm: "0.19.1", torch: "2.10.0"}  # arm64\n'
    other = '  - flavor: other\n    vllm: "0.31.0"\n'
    other += '    torch: "2.13.0"\n    flashinfer: "0.6.18"\n    # the end\n'
    flavor = ("  cpu:\n", "  other: {extends: gb10, summary: another}\n  cpu:\n")
    declared = write(tmp_path, (MATRIX[start:end], block), (row, other), flavor)
    watching.update(declared, proposed(declared, record()))
    text = (tmp_path / "matrix.yaml").read_text()
    assert '      - 0.22.1\n      - "0.29.0"   # the last\n      - "0.33.0"\n    torch:' in text
    assert "      - '2.13.0'\n      - '2.14.0'\n    flashinfer:" in text
    assert '"0.6.18", "0.7.2.post1"]' in text
    copy = other[:-14].replace("0.31.0", "0.33.0").replace("2.13.0", "2.14.0")
    assert copy.replace("0.6.18", "0.7.2.post1").rstrip() in text
    assert text.count("    # the end\n") == 1


def test_what_would_not_be_valid_is_not_written(tmp_path: Path) -> None:
    declared = write(tmp_path, ('["{flavor}-vllm{vllm}-torch{torch}"]', '["{flavor}-{torch}"]'))
    found = proposed(declared, index({"0.22.0": "2.11.0", "0.29.0": "2.13.0", "0.35.0": "2.13.0"}))
    before = declared.path.read_text()
    with pytest.raises(CheckFailedError, match="would not be valid"):
        watching.update(declared, found)
    assert declared.path.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["matrix.yaml"]


def test_a_release_that_needs_an_axis_of_another_line_is_not_proposed(tmp_path: Path) -> None:
    changes = [('    torch:      ["2.11.0", "2.13.0"]\n', "")]
    changes += [("linux/arm64}", 'linux/arm64, torch: "2.13.0"}')]
    changes += [("    when: {flavor: gb10, vllm", "    when: {vllm")]
    upstream = index({"0.22.0": "2.13.0", "0.30.0": "2.13.0", "0.31.0": "2.14.0"})
    found = proposed(write(tmp_path, *changes), upstream)
    assert shown(found) == [("0.29.0", "0.30.0", False)]


RELEASES = st.dictionaries(
    st.sampled_from(
        [
            f"{major}.{minor}.{patch}"
            for major in (0, 1)
            for minor in (22, 29, 30)
            for patch in (0, 1)
        ]
        + ["0.30.0rc1", "1.22.0rc2", "0.31.0.dev4+gabc", "0.30.0.dev1", "1.30.0.dev9+g0"]
    ),
    st.sampled_from(["2.11.0", "2.13.0", "2.14.0"]),
)
EARLY = MATRIX[: MATRIX.index("overrides:")].replace(
    '"0.22.0", "0.29.0"', '"0.29.0", "0.30.0.dev1"'
)
HOLDS = st.sampled_from(["", "<0.30", "<1", "!=0.29.1"])


@given(
    vllm=RELEASES,
    withdrawn=st.sets(st.sampled_from(["0.29.1", "1.30.1", "0.30.0"])),
    follow=st.sampled_from(list(Follow)),
    hold=HOLDS,
    early=st.booleans(),
)
def test_candidates_are_within_the_policy_never_older_and_final(
    vllm: dict[str, str], withdrawn: set[str], follow: Follow, hold: str, early: bool
) -> None:
    more = f"follow: {follow}\n"
    if hold:
        more += f'hold: {{vllm: {{to: "{hold}", reason: x, until: "{TODAY}"}}}}\n'
    upstream = index(vllm, [*withdrawn])
    with tempfile.TemporaryDirectory() as name:
        start = MATRIX if not early else EARLY
        declared = write(Path(name), (MATRIX, start), more=more)
        found = proposed(declared, upstream)
        for one in found:
            old, new = one.row.version, Version(one.version)
            assert new > old
            assert follow.allows(old, new)
            assert not hold or SpecifierSet(hold).contains(new, prereleases=True)
            assert one.version not in withdrawn
            assert one.values.get("torch", one.row.values["torch"]) == vllm[one.version]
        if found:
            watching.update(declared, found)
        text = declared.path.read_text()
        again = proposed(write(Path(name), (MATRIX, text)), upstream)
        assert again == ()

"""How measured states become tables and the published page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.patches import PATCH, make
from support.project import stock_patches

from imagefactory.errors import InputError
from imagefactory.patching import catalog, status
from imagefactory.patching.measure import Measured
from imagefactory.patching.patch import State

KINDS = 'kinds:\n  - {versions: "==0.2", kind: fix, reason: a build emits it}\n'


def rows_of(*states: str) -> list[Measured]:
    return [
        Measured(
            project="vllm", patch="p", version=f"0.{n}", state=State(state), reason="", evidence=""
        )
        for n, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (("needed", "needed", "obsolete", "obsolete"), "needed 0.0 - 0.1, obsolete since 0.2"),
        (("obsolete", "obsolete"), "not needed in any of 0.0 - 0.1"),
        (("needed",), "needed 0.0"),
        (
            ("n/a", "needed", "obsolete", "needed"),
            "n/a 0.0, needed 0.1, obsolete 0.2, needed since 0.3",
        ),
    ],
)
def test_the_history_of_a_patch_is_given_as_ranges_of_releases(
    states: tuple[str, ...], text: str
) -> None:
    assert status.history(rows_of(*states)) == text


def test_the_kind_of_a_patch_is_given_where_it_is_no_fix(tmp_path: Path) -> None:
    text = PATCH.replace("purpose: p", "kind: latent\n" + KINDS + "purpose: p")
    make(tmp_path, text=text)
    (patch,) = catalog.load(tmp_path / "patches").values()
    rows = [
        replace(row, version=f"0.{minor}", patch=patch.name)
        for row, minor in zip(rows_of("needed", "needed", "obsolete"), (1, 2, 3), strict=True)
    ]
    assert status.history(rows, patch) == "needed (latent) 0.1, needed 0.2, obsolete since 0.3"
    page = status.markdown(rows, [patch])
    assert "| vllm/one | latent | static |" in page
    assert "| 0.1 | needed (latent) |" in page
    assert "On ==0.2 it is fix: a build emits it." in page


def test_mutants_that_survive_are_listed_with_the_reason_of_the_patch(tmp_path: Path) -> None:
    mutants = make(tmp_path) / status.MUTANTS
    (patch,) = catalog.load(tmp_path / "patches").values()
    assert "## Surviving mutants" not in status.markdown(rows_of("needed"), [patch])
    mutants.write_text(
        "releases: [0.1.0]\nharmless:\n  - {change: 1 -> 2, because: nobody counts}\n"
    )
    assert "| vllm/one | nobody counts |" in status.markdown(rows_of("needed"), [patch])
    mutants.write_text("harmless:\n  - {change: 1 -> 2}\n")
    with pytest.raises(InputError) as caught:
        status.markdown(rows_of("needed"), [patch])
    (problem,) = caught.value.problems
    assert (problem.code.partition("-")[0], "because" in problem.what) == ("mutants", True)


def test_a_point_release_is_shown_only_if_a_state_flips_inside_its_minor() -> None:
    rows = [
        replace(row, version=version)
        for row, version in zip(
            rows_of("needed", "obsolete", "obsolete", "obsolete", "obsolete"),
            ("0.19.0", "0.19.1", "0.19.2", "0.20.0", "0.20.1"),
            strict=True,
        )
    ]
    assert [row.version for row in status.shown(rows)] == ["0.19.0", "0.19.2", "0.20.1"]
    mixed = [
        replace(row, project=project, version=version)
        for project, version in (("vllm", "0.9.2"), ("vllm", "0.9.10"), ("flashinfer", "0.9.3"))
        for row in rows[1:2]
    ]
    assert [row.version for row in status.shown(mixed)] == ["0.9.10", "0.9.3"]


def test_the_published_page_is_in_step_with_the_catalogue() -> None:
    page = (ROOT / "docs/patch-status.md").read_text()
    patches = list(stock_patches().values())
    assert status.markdown(published(page), patches) == page
    assert max(len(line) for line in page.splitlines() if not line.startswith("|")) <= 100


def published(page: str) -> list[Measured]:
    """The measured rows of a status page, read back from its tables of releases."""
    rows = []
    for section in page.split("\n## ")[1:]:
        project, _, text = section.partition("\n")
        tables = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
        heads = [number for number, cells in enumerate(tables) if cells[0] == "release"]
        for version, *states in tables[heads[0] + 2 :] if heads else []:
            for name, state in zip(tables[heads[0]][1:], states, strict=True):
                rows.append(
                    Measured(
                        project=project,
                        patch=f"{project}/{name}",
                        version=version,
                        state=State(state.partition(" (")[0]),
                        reason="",
                        evidence="",
                    )
                )
    return rows

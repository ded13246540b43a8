"""Importing what the peers have.

Plain diffs and folders of them become drafts on the release that they are for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.releases import BASE, DIFF, using

from imagefactory.errors import InputError
from imagefactory.inbuild import overlay
from imagefactory.patching import catalog, importing
from imagefactory.settings import Settings

__all__ = ["using"]


@pytest.fixture(autouse=True)
def _layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importing.PROJECTS, "pkg", "vllm")
    monkeypatch.setitem(importing.PROJECTS, "other", "vllm")


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def taken(tmp_path: Path, using: Settings, path: Path) -> importing.Imported:
    return importing.take(path, tmp_path / "patches", using)


def test_a_diff_becomes_a_draft_on_the_newest_release_that_takes_it(
    tmp_path: Path, using: Settings
) -> None:
    path = write(tmp_path, Fix_It__patch=DIFF) / "Fix_It.patch"
    done = taken(tmp_path, using, path)
    assert (done.patch, done.version) == ("vllm/fix-it", "0.21.0")
    draft = catalog.load(tmp_path / "patches")["vllm/fix-it"]
    assert draft.draft
    assert "0.21.5" in draft.variants[0].versions
    assert draft.variants[0].diff.read_text().splitlines()[1:] == DIFF.splitlines()
    said = overlay.prove(draft.proof.script, tmp_path)
    assert said == (overlay.INCONCLUSIVE, "inconclusive: this proof is not written yet")


@pytest.mark.parametrize(
    "prefix", ["", "a/usr/local/lib/python3.12/dist-packages/", "usr/lib/python3/site-packages/"]
)
def test_paths_of_the_machine_it_was_made_on_are_taken_off(
    tmp_path: Path, using: Settings, prefix: str
) -> None:
    text = DIFF.replace("a/pkg", f"{prefix}pkg").replace(
        "b/pkg", f"{prefix.replace('a/usr', 'b/usr')}pkg"
    )
    assert taken(tmp_path, using, write(tmp_path, x__diff=text) / "x.diff").version == "0.21.0"


def test_a_mailed_patch_keeps_its_subject(tmp_path: Path, using: Settings) -> None:
    mail = (
        "From 12ab Mon Sep 17 00:00:00 2001\nSubject: [PATCH 1/2] Mend the "
        f"loader\n\n---\n pkg/x.py | 2 +-\n\n{DIFF}"
    )
    taken(tmp_path, using, write(tmp_path, x__patch=mail) / "x.patch")
    assert catalog.load(tmp_path / "patches")["vllm/x"].summary == "Mend the loader"


def test_a_folder_of_diffs_becomes_one_and_what_is_no_diff_is_named(
    tmp_path: Path, using: Settings
) -> None:
    second = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -5,4 +5,4 @@\n d\n e\n f\n-g\n+G\n"
    mod = write(
        tmp_path / "mods" / "my mod",
        **{"1__patch": DIFF, "2__patch": second, "run__sh": "sed -i s/a/b/ x\n"},
    )
    done = taken(tmp_path, using, mod)
    assert (done.patch, done.left) == ("vllm/my-mod", ("run.sh",))
    draft = catalog.load(tmp_path / "patches")["vllm/my-mod"]
    assert "run.sh" in draft.text["findings"]
    text = draft.variants[0].diff.read_text()
    assert "+mended" in text
    assert "+G" in text
    assert text.count("+++ ") == 1


def test_one_release_can_be_named(tmp_path: Path, using: Settings) -> None:
    path = write(tmp_path, x__diff=DIFF) / "x.diff"
    assert importing.take(path, tmp_path / "patches", using, on="0.20.0").version == "0.20.0"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (DIFF.replace("\n", "\r\n"), "diff-crlf", 1),
        ("", "diff-empty", 1),
        (DIFF.replace("pkg/x.py", "nowhere/x.py"), "import-project", 1),
        (DIFF.replace("a/pkg/x.py", "a/pkg/../../x.py"), "diff-escape", 1),
        (DIFF.replace("@@ -1,7 +1,7 @@", "@@ -1,5 +1,5 @@"), "diff-malformed", 10),
        (DIFF + DIFF, "diff-twice", 13),
    ],
)
def test_a_bad_diff_is_refused_with_its_line(
    tmp_path: Path, using: Settings, text: str, code: str, line: int
) -> None:
    path = write(tmp_path) / "x.diff"
    path.write_bytes(text.encode())
    with pytest.raises(InputError) as caught:
        taken(tmp_path, using, path)
    found = {problem.code: problem.where for problem in reversed(caught.value.problems)}
    assert code in found
    assert found[code] == f"{path}:{line}"
    assert not (tmp_path / "patches").exists()


def test_what_applies_nowhere_is_shown_against_the_newest_release(
    tmp_path: Path, using: Settings
) -> None:
    path = write(tmp_path, x__diff=DIFF.replace(" b\n", " bee\n")) / "x.diff"
    with pytest.raises(InputError) as caught:
        taken(tmp_path, using, path)
    (problem,) = caught.value.problems
    assert problem.code == "import-nowhere"
    assert "pkg/x.py" in problem.detail


@pytest.mark.parametrize(("make", "code"), [(False, "import-missing"), (True, "import-empty")])
def test_nothing_to_import_is_told(tmp_path: Path, using: Settings, make: bool, code: str) -> None:
    if make:
        write(tmp_path / "mod", run__sh="true\n")
    with pytest.raises(InputError) as caught:
        taken(tmp_path, using, tmp_path / "mod")
    assert caught.value.problems[0].code == code


def test_an_entry_that_is_there_is_not_overwritten(tmp_path: Path, using: Settings) -> None:
    path = write(tmp_path, x__diff=DIFF) / "x.diff"
    taken(tmp_path, using, path)
    with pytest.raises(InputError) as caught:
        taken(tmp_path, using, path)
    assert caught.value.problems[0].code == "patch-exists"


def test_the_sources_are_left_as_they_were(tmp_path: Path, using: Settings) -> None:
    taken(tmp_path, using, write(tmp_path, x__diff=DIFF) / "x.diff")
    kept = tmp_path / "cache/sources/vllm/0.21.0"
    assert (kept / "pkg/x.py").read_text() == BASE
    assert [
        path.name for path in kept.parent.iterdir() if path.name.startswith(".imagefactory")
    ] == []

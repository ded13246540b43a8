"""Importing plain diffs, or folders of them: they become drafts for the release that they fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.releases import BASE, DIFF, using

from imagefactory.errors import InputError
from imagefactory.inbuild import overlay
from imagefactory.patching import catalog, importing
from imagefactory.settings import Settings

pytestmark = pytest.mark.programs

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


def imported(tmp_path: Path, using: Settings, path: Path) -> importing.Imported:
    return importing.import_diffs(str(path), tmp_path / "patches", using)


def test_a_diff_becomes_a_draft_for_the_newest_release_that_it_applies_to(
    tmp_path: Path, using: Settings
) -> None:
    path = write(tmp_path, Fix_It__patch=DIFF) / "Fix_It.patch"
    done = imported(tmp_path, using, path)
    assert (done.patch, done.version) == ("vllm/fix-it", "0.21.0")
    draft = catalog.load(tmp_path / "patches")["vllm/fix-it"]
    assert draft.draft
    assert "0.21.5" in draft.variants[0].versions
    assert draft.variants[0].diff.read_text().splitlines()[1:] == DIFF.splitlines()
    assert draft.proof is not None
    said = overlay.prove(draft.proof.script, tmp_path)
    assert said == (overlay.INCONCLUSIVE, "inconclusive: this proof is not written yet")


@pytest.mark.parametrize(
    "prefix", ["", "a/usr/local/lib/python3.12/dist-packages/", "usr/lib/python3/site-packages/"]
)
def test_the_prefix_of_an_installed_tree_is_removed_from_paths(
    tmp_path: Path, using: Settings, prefix: str
) -> None:
    text = DIFF.replace("a/pkg", f"{prefix}pkg").replace(
        "b/pkg", f"{prefix.replace('a/usr', 'b/usr')}pkg"
    )
    assert imported(tmp_path, using, write(tmp_path, x__diff=text) / "x.diff").version == "0.21.0"


def test_the_subject_of_a_mailed_patch_becomes_its_summary(tmp_path: Path, using: Settings) -> None:
    mail = (
        "From 12ab Mon Sep 17 00:00:00 2001\nSubject: [PATCH 1/2] Fix the "
        f"loader\n\n---\n pkg/x.py | 2 +-\n\n{DIFF}"
    )
    imported(tmp_path, using, write(tmp_path, x__patch=mail) / "x.patch")
    assert catalog.load(tmp_path / "patches")["vllm/x"].summary == "Fix the loader"


def test_a_folder_of_diffs_becomes_one_draft_and_other_files_are_listed(
    tmp_path: Path, using: Settings
) -> None:
    second = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -5,4 +5,4 @@\n d\n e\n f\n-g\n+G\n"
    mod = write(
        tmp_path / "mods" / "my mod",
        **{"1__patch": DIFF, "2__patch": second, "run__sh": "sed -i s/a/b/ x\n"},
    )
    done = imported(tmp_path, using, mod)
    assert (done.patch, done.left) == ("vllm/my-mod", ("run.sh",))
    draft = catalog.load(tmp_path / "patches")["vllm/my-mod"]
    assert "run.sh" in draft.text["findings"]
    text = draft.variants[0].diff.read_text()
    assert "+patched" in text
    assert "+G" in text
    assert text.count("+++ ") == 1


def test_the_release_can_be_given(tmp_path: Path, using: Settings) -> None:
    path = write(tmp_path, x__diff=DIFF) / "x.diff"
    done = importing.import_diffs(str(path), tmp_path / "patches", using, on="0.20.0")
    assert done.version == "0.20.0"
    with pytest.raises(InputError, match="port-target"):
        importing.import_diffs(str(path), tmp_path / "other", using, on="9.9")


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
def test_a_bad_diff_is_rejected_with_the_line(
    tmp_path: Path, using: Settings, text: str, code: str, line: int
) -> None:
    path = write(tmp_path) / "x.diff"
    path.write_bytes(text.encode())
    with pytest.raises(InputError) as caught:
        imported(tmp_path, using, path)
    found = {problem.code: problem.where for problem in reversed(caught.value.problems)}
    assert code in found
    assert found[code] == f"{path}:{line}"
    assert not (tmp_path / "patches").exists()


def test_hunks_that_no_image_contains_are_left_out_and_named(
    tmp_path: Path, using: Settings
) -> None:
    test = "--- a/tests/x.py\n+++ b/tests/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    page = "--- /dev/null\n+++ b/docs/new.md\n@@ -0,0 +1 @@\n+text\n"
    path = write(tmp_path, x__diff=test + DIFF + page) / "x.diff"
    done = imported(tmp_path, using, path)
    assert (done.version, done.skipped) == ("0.21.0", ("tests/x.py", "docs/new.md"))
    draft = catalog.load(tmp_path / "patches")["vllm/x"]
    assert "docs/new.md" in draft.text["findings"]
    assert "tests/x.py" not in draft.variants[0].diff.read_text()
    only = write(tmp_path, y__diff=test) / "y.diff"
    with pytest.raises(InputError) as caught:
        imported(tmp_path, using, only)
    assert caught.value.problems[0].code == "import-empty"


def test_a_diff_of_which_only_a_part_applies_opens_a_work_tree_on_the_best_release(
    tmp_path: Path, using: Settings
) -> None:
    other = "@@ -6,3 +6,3 @@\n nothing\n-like\n+this\n here\n"
    short = DIFF.replace("1,7 +1,7", "2,4 +2,4").replace(" head\n", "").replace(" e\n f\n", "")
    done = imported(tmp_path, using, write(tmp_path, x__diff=short + other) / "x.diff")
    assert done.work is not None
    assert done.version == "0.21.0"
    text = (done.work.tree / "pkg/x.py").read_text()
    assert "patched\n" in text
    assert "<<<<<<< vllm" in text
    assert not (tmp_path / "patches").exists()


def test_a_diff_that_applies_to_no_release_is_shown_with_the_newest_one(
    tmp_path: Path, using: Settings
) -> None:
    path = write(tmp_path, x__diff=DIFF.replace(" b\n", " bee\n")) / "x.diff"
    with pytest.raises(InputError) as caught:
        imported(tmp_path, using, path)
    (problem,) = caught.value.problems
    assert problem.code == "import-nowhere"
    assert "pkg/x.py" in problem.detail


@pytest.mark.parametrize(("make", "code"), [(False, "import-missing"), (True, "import-empty")])
def test_a_path_without_diffs_is_rejected(
    tmp_path: Path, using: Settings, make: bool, code: str
) -> None:
    if make:
        write(tmp_path / "mod", run__sh="true\n")
    with pytest.raises(InputError) as caught:
        imported(tmp_path, using, tmp_path / "mod")
    assert caught.value.problems[0].code == code


def test_only_scripts_are_searched_for_addresses_of_diffs(tmp_path: Path) -> None:
    address = "https://github.com/vllm-project/vllm/pull/{}.diff"
    files = {"run.sh": 1, "apply": 2, "notes.txt": 3, "sub/run.sh": 4, "b.py": 5}
    (tmp_path / "sub").mkdir()
    for name, number in files.items():
        (tmp_path / name).write_text(f"curl {address.format(number)}\n")
    with pytest.raises(InputError) as caught:
        importing._given(str(tmp_path))
    fix = caught.value.problems[0].fix
    assert [number for number in range(9) if address.format(number) in fix] == [1, 2, 4]
    (tmp_path / "a.diff").write_text("x")
    (tmp_path / "sub/b.patch").write_text("y")
    given = importing._given(str(tmp_path))
    assert given.left == ("apply", "b.py", "notes.txt", "run.sh", "sub/run.sh")
    assert given.fetches == tuple(address.format(number) for number in (2, 1, 4))
    assert [*given.texts.values()] == [b"x", b"y"]
    assert given.name == tmp_path.name


def test_an_existing_entry_is_not_overwritten(tmp_path: Path, using: Settings) -> None:
    path = write(tmp_path, x__diff=DIFF) / "x.diff"
    imported(tmp_path, using, path)
    with pytest.raises(InputError) as caught:
        imported(tmp_path, using, path)
    assert caught.value.problems[0].code == "patch-exists"


def test_importing_does_not_change_the_cached_sources(tmp_path: Path, using: Settings) -> None:
    imported(tmp_path, using, write(tmp_path, x__diff=DIFF) / "x.diff")
    cached = tmp_path / "cache/sources/vllm/0.21.0"
    assert (cached / "pkg/x.py").read_text() == BASE
    assert [
        path.name for path in cached.parent.iterdir() if path.name.startswith(".imagefactory")
    ] == []

"""What is taken out of a diff that is imported, and what stops an import."""

from __future__ import annotations

import pytest
from support.patches import DIFF

from imagefactory.errors import FactoryError, InputError
from imagefactory.patching import (
    diffs,
    fetched,
    importing,
    incoming,
)
from imagefactory.patching.incoming import Part
from imagefactory.system import web


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (DIFF.encode(), 200, ""),
        (b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", 200, ""),
        (b"<html>\n</html>", 200, "import-no-diff"),
        (b"x @@ \n", 200, "import-no-diff"),
        (b"\xff\n", 200, "import-no-diff"),
        (b"", 200, "import-no-diff"),
        (DIFF.encode(), 404, "import-not-found"),
        (DIFF.encode(), 410, "import-not-found"),
        *((DIFF.encode(), status, "import-refused") for status in (401, 403, 429)),
        (DIFF.encode(), 500, "import-failing"),
        (DIFF.encode() + b"x" * 100, 200, "import-large"),
    ],
)
def test_what_an_address_gives_is_a_diff_or_an_error(
    monkeypatch: pytest.MonkeyPatch, content: bytes, status: int, code: str
) -> None:
    monkeypatch.setattr(diffs, "LARGEST", 100)
    answer = web.Response(status=status, content=content, retry_after="")
    monkeypatch.setattr(web, "within", lambda *_: answer)
    address = fetched.Address(url="https://h.example/x.diff", name="x", project=None)
    if not code:
        found = fetched.fetch(address)
        assert (found.content, found.source.address) == (content, address.url)
        return
    with pytest.raises(FactoryError) as caught:
        fetched.fetch(address)
    assert [one.code for one in caught.value.problems] == [code]


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["vllm/a.py"], ""),
        (["vllm/a.py", "vllm/b.py"], ""),
        (["vllm/a.py", "flashinfer/b.py"], "import-projects"),
        (["vllm/a.py", "other/b.py"], "import-project"),
        ([], "import-projects"),
    ],
)
def test_a_patch_belongs_to_one_known_project(names: list[str], code: str) -> None:
    parts = tuple(
        Part(shown="x.diff", old=n, new=n, first=1, lines=(), hunks=(), renamed=False)
        for n in names
    )
    kept = importing._Kept(diffs=(parts,), skipped=(), empty=())
    given = importing._Given(shown="x.diff", name="x", texts={})
    if not code:
        assert importing._project(kept, given) == "vllm"
        return
    with pytest.raises(InputError) as caught:
        importing._project(kept, given)
    assert [one.code for one in caught.value.problems] == [code]


@pytest.mark.parametrize(
    ("name", "shipped"),
    [
        *((f"{folder}/x.py", False) for folder in ("docs", "tests", "benchmarks", "examples")),
        *((name, False) for name in ("docker/x", "tools/x", "mkdocs.yaml", "pyproject.toml")),
        *((name, False) for name in (".github/x", "README.md", "index.rst")),
        *((name, True) for name in ("vllm/docs/x.py", "vllm/a.md", "csrc/x.cu", "setup.py")),
    ],
)
def test_what_no_image_contains_is_not_shipped(name: str, shipped: bool) -> None:
    assert incoming.is_shipped(name) is shipped


@pytest.mark.parametrize(
    ("folder", "flashinfer", "found"),
    [
        ("csrc", True, "flashinfer/data/csrc/x.cu"),
        ("csrc", None, "csrc/x.cu"),
        ("csrc", False, "csrc/x.cu"),
        ("include", None, "flashinfer/data/include/x.cu"),
        ("include", False, "include/x.cu"),
        ("flashinfer", None, "flashinfer/x.cu"),
    ],
)
def test_the_folders_of_flashinfer_are_where_its_wheel_has_them(
    folder: str, flashinfer: bool | None, found: str
) -> None:
    data = DIFF.replace("x.py", f"{folder}/x.cu").encode()
    (message,) = incoming.messages(data, "x.diff", flashinfer=flashinfer)
    assert [part.name for part in message.parts] == [found]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("diff --git a/x.py b/x.py", "x.py"),
        ("diff --git a/x.py b/y.py", ""),
        ("diff --git a/a b.py b/a b.py", "a b.py"),
        ("--- a/x.py b/x.py", ""),
    ],
)
def test_a_header_names_a_file_if_both_its_paths_are_the_same(line: str, name: str) -> None:
    assert incoming._same_name(line, {}) == name


def test_an_import_as_json_has_all_but_its_work_tree() -> None:
    made = importing.Imported(
        patch="p",
        version="1",
        left=("l",),
        skipped=("s",),
        empty=("e",),
        fetches=("f",),
        source="o",
    )
    assert made.as_dict() == {
        "patch": "p",
        "version": "1",
        "source": "o",
        "left": ["l"],
        "skipped": ["s"],
        "empty": ["e"],
        "fetches": ["f"],
    }

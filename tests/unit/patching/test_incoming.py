"""Diffs as others write them, and where they are fetched from: each ends as a patch or an error."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.index import running
from support.machine import settings
from support.releases import DIFF, using

from imagefactory.errors import FactoryError, InputError
from imagefactory.patching import catalog, diffs, fetched, importing, incoming, port, worktree
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import IMPORTED, Source, Stage
from imagefactory.settings import Settings

__all__ = ["using"]

GIT = "diff --git a/{0} b/{0}\n"
CODE = GIT.format("pkg/x.py") + "index 12ab..34cd 100644\n" + DIFF
PICTURE = GIT.format("docs/a.png") + "index 1..2 100644\nBinary files a/docs/a.png differ\n"
DATA = GIT.format("tests/b.bin") + "index 1..2\nGIT binary patch\nliteral 3\nKcmZ=@\n\n"
MOVED_TEST = (
    "diff --git a/tests/a.py b/tests/b.py\nsimilarity index 100%\n"
    "rename from tests/a.py\nrename to tests/b.py\n"
)
EMPTY = GIT.format("pkg/__init__.py") + "new file mode 100644\nindex 000..e69de29\n"
MODE = GIT.format("pkg/run.py") + "old mode 100644\nnew mode 100755\n"
PAGE = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
RENAME = (
    "diff --git a/pkg/x.py b/{0}\nsimilarity index 90%\nrename from pkg/x.py\n"
    "rename to {0}\n" + DIFF.replace("b/pkg/x.py", "b/{0}")
)


@pytest.fixture(autouse=True)
def _layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importing.PROJECTS, "pkg", "vllm")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


def imported(tmp_path: Path, using: Settings, text: str, **options: bool) -> importing.Imported:
    path = tmp_path / "x.diff"
    path.write_text(text)
    return importing.import_diffs(str(path), tmp_path / "patches", using, **options)  # type: ignore[arg-type]


@pytest.mark.programs
def test_a_git_diff_loses_what_no_image_contains_and_it_is_named(
    tmp_path: Path, using: Settings
) -> None:
    rest = [".github/ci.yml", "README.md", "tools/x.py", "docker/Dockerfile"]
    text = PICTURE + DATA + MOVED_TEST + EMPTY + CODE + MODE
    done = imported(tmp_path, using, text + "".join((GIT + PAGE).format(name) for name in rest))
    assert done.skipped == ("docs/a.png", "tests/b.bin", "tests/b.py", *rest)
    assert done.empty == ("pkg/__init__.py", "pkg/run.py")
    draft = catalog.load(tmp_path / "patches")["vllm/x"]
    assert draft.variants[0].diff.read_text().splitlines()[1:] == DIFF.splitlines()
    assert all(name in draft.text["findings"] for name in (*done.skipped, *done.empty))


@pytest.mark.parametrize("header", [PICTURE, MOVED_TEST, EMPTY, MODE])
def test_a_plain_diff_after_a_header_of_git_is_of_its_own_file(header: str) -> None:
    (found,) = incoming.messages((header + DIFF).encode(), "x")
    first, second = found.parts
    assert (first.hunks, second.name, len(second.hunks)) == ((), "pkg/x.py", 9)


@pytest.mark.programs
def test_a_renamed_file_is_removed_and_added(tmp_path: Path, using: Settings) -> None:
    new = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+new\n"
    text = RENAME.format("pkg/z.py") + new
    assert imported(tmp_path, using, text).version == "0.21.0"
    draft = catalog.load(tmp_path / "patches")["vllm/x"]
    assert draft.stage is Stage.INSTALLED
    assert "+++ b/pkg/new.py" in draft.variants[0].diff.read_text()
    text = draft.variants[0].diff.read_text()
    assert "--- a/pkg/x.py\n+++ /dev/null" in text
    assert "--- /dev/null\n+++ b/pkg/z.py" in text
    assert "+patched" in text
    shutil.rmtree(tmp_path / "patches")
    pure = RENAME.partition("--- ")[0].format("pkg/z.py")
    assert imported(tmp_path, using, pure + GIT.format("pkg/new.py") + new).version == "0.25.0"
    text = catalog.load(tmp_path / "patches")["vllm/x"].variants[0].diff.read_text()
    assert re.findall(r"^\+\+\+ (.+)", text, re.MULTILINE) == [
        "b/pkg/new.py",
        "/dev/null",
        "b/pkg/z.py",
    ]


@pytest.mark.programs
def test_a_rename_that_applies_to_no_release_is_refused_with_the_best_one(
    tmp_path: Path, using: Settings
) -> None:
    lost = RENAME.partition("--- ")[0].replace("pkg/x.py", "pkg/gone.py").format("pkg/z.py")
    with pytest.raises(InputError, match=r"renames files .* to vllm 0\.21\.0"):
        imported(tmp_path, using, lost + CODE)
    assert worktree.unfinished(using) == []


@pytest.mark.programs
def test_the_commits_of_a_mailbox_are_applied_in_order(tmp_path: Path, using: Settings) -> None:
    second = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -3,3 +3,3 @@\n b\n-patched\n+patched twice\n d\n"
    text = "".join(
        f"From {'12ab' * 10} Mon Sep 17 00:00:00 2001\nSubject: [PATCH {n}/2] Fix {n}\n\n- a point\n"
        f"---\n pkg/x.py | 2 +-\n\n{diff}-- \n2.43.0\n\n"
        for n, diff in ((1, CODE + PAGE.format("tests/a.py")), (2, second))
    )
    imported(tmp_path, using, text)
    draft = catalog.load(tmp_path / "patches")["vllm/x"]
    assert draft.summary == "Fix 1"
    assert "+patched twice" in draft.variants[0].diff.read_text()


SHORT = PAGE.format("tests/a.py").replace("@@ -1 +1 @@", "@@ -1,3 +1,3 @@")


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (CODE + PICTURE.replace("docs/", "pkg/"), "diff-binary", 16),
        (CODE + DATA.replace("tests/", "pkg/"), "diff-binary", 16),
        (EMPTY.replace("100644", "160000") + CODE, "diff-submodule", 2),
        (EMPTY.replace("100644", "120000") + CODE, "diff-symlink", 2),
        (EMPTY.replace("100644", "104755") + CODE, "diff-mode", 2),
        (RENAME.format("tests/z.py"), "import-rename", 1),
        (RENAME.format("../z.py"), "diff-escape", 4),
        (RENAME.format("other/z.py"), "import-project", 5),
        (CODE + PAGE.format("../../etc/passwd"), "diff-escape", 14),
        (CODE + PAGE.format("/etc/passwd"), "diff-escape", 14),
        # a hunk that claims too many lines would take the next file with it
        (SHORT + CODE, "diff-malformed", 6),
        (CODE + SHORT, "diff-malformed", 18),
        (PICTURE + EMPTY, "import-empty", None),
        ("hello\n", "diff-empty", 1),
    ],
)
def test_what_cannot_be_a_patch_is_one_clear_error(
    tmp_path: Path, text: str, code: str, line: int | None
) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, settings(tmp_path), text)
    where = {problem.code: problem.where for problem in reversed(caught.value.problems)}
    assert where.get(code) == (f"{tmp_path}/x.diff" + (f":{line}" if line else ""))
    assert not (tmp_path / "patches").exists()


def test_what_is_too_much_to_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = settings(tmp_path)
    mail = f"From {'12ab' * 10} Mon Sep 17 00:00:00 2001\n\n"
    with pytest.raises(InputError, match="import-commits"):
        imported(tmp_path, using, f"{mail}{CODE}" * (incoming.MOST_MAILS + 1))
    monkeypatch.setattr(diffs, "LARGEST", 20)
    with pytest.raises(InputError, match="diff-unreadable"):
        imported(tmp_path, using, CODE)


@pytest.mark.programs
def test_the_name_of_what_is_left_out_can_be_printed(tmp_path: Path, using: Settings) -> None:
    path = tmp_path / "x.diff"
    path.write_bytes(CODE.encode() + (GIT + PAGE).format("docs/\x1b[2J").encode() + ODD)
    done = importing.import_diffs(str(path), tmp_path / "patches", using)
    assert done.skipped == ("docs/?[2J", "docs/\ufffd.md")
    assert "\ufffd.md" in catalog.load(tmp_path / "patches")["vllm/x"].text["findings"]


ODD = (GIT + PAGE).format("docs/odd.md").encode().replace(b"odd", b"\xff")


def test_a_name_stays_in_the_folder_of_patches(tmp_path: Path) -> None:
    for name in ("../../evil/x", "vllm/../x", "flashinfer/x", "vllm"):
        with pytest.raises(InputError, match="patch-name"):
            imported(tmp_path, settings(tmp_path), CODE, name=name)  # type: ignore[arg-type]


def test_the_sources_of_flashinfer_are_where_its_wheel_has_them() -> None:
    text = PAGE.format("csrc/a.cu") + PAGE.format("include/flashinfer/b.cuh")
    (found,) = incoming.messages(text.encode(), "x")
    names = ["flashinfer/data/csrc/a.cu", "flashinfer/data/include/flashinfer/b.cuh"]
    assert [part.name for part in found.parts] == names
    (vllm,) = incoming.messages(PAGE.format("csrc/a.cu").encode(), "x")
    assert vllm.parts[0].name == "csrc/a.cu"
    (known,) = incoming.messages(PAGE.format("csrc/a.cu").encode(), "x", flashinfer=True)
    assert known.parts[0].name == names[0]


VLLM = "https://github.com/vllm-project/vllm"
RAW = "https://patch-diff.githubusercontent.com/raw/vllm-project/vllm/pull/38909.diff"


@pytest.mark.parametrize(
    ("text", "url", "name", "project"),
    [
        ("vllm#7", f"{VLLM}/pull/7.diff", "pr-7", "vllm"),
        ("me/vllm#7", "https://github.com/me/vllm/pull/7.diff", "pr-7", None),
        (f"{VLLM}/pull/7", f"{VLLM}/pull/7.diff", "pr-7", "vllm"),
        (f"{VLLM}/pull/7/files#diff-1", f"{VLLM}/pull/7.diff", "pr-7", "vllm"),
        (f"{VLLM}/pull/7/commits/{'ab' * 20}", f"{VLLM}/commit/{'ab' * 20}.patch", *("c", "vllm")),
        (f"{VLLM}/commit/12ab34c", f"{VLLM}/commit/12ab34c.patch", "commit-12ab34c", "vllm"),
        (f"flashinfer@{'12' * 20}", None, "commit-121212121", "flashinfer"),
        (RAW, RAW, "pr-38909", "vllm"),
        ("https://example.com/a/fix.patch?token=t", None, "fix", None),
    ],
)
def test_an_address_is_that_of_a_diff(
    text: str, url: str | None, name: str, project: str | None
) -> None:
    found = fetched.address_of(text)
    assert found is not None
    assert (found.url, found.project) == (url or found.url, project)
    assert found.name.startswith(name)


def test_a_path_is_no_address_and_a_page_is_refused() -> None:
    assert [fetched.address_of(text) for text in ("a.diff", "mods/x", "#7", "vllm@main")] == [
        None
    ] * 4
    with pytest.raises(InputError, match="import-address"):
        fetched.address_of(f"{VLLM}/issues/7")


class _Forge(BaseHTTPRequestHandler):
    """Answers each path with the status that it begins with."""

    def __init__(self, content: bytes, *args: object) -> None:
        self.content = content
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Retry-After", "60")
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def forge(request: pytest.FixtureRequest) -> Iterator[str]:
    content = getattr(request, "param", CODE).encode()
    with running(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Forge, content))) as url:
        yield url


@pytest.mark.programs
def test_an_unproven_pull_request_is_kept_with_its_address_and_hash(
    tmp_path: Path, using: Settings, forge: str
) -> None:
    url = f"{forge}/200/vllm/pull/7/files?token=secret"
    done = importing.import_diffs(url, tmp_path / "patches", using, unproven=True)
    assert done.patch == "vllm/pr-7"
    patch = catalog.load(tmp_path / "patches")["vllm/pr-7"]
    sha = hashlib.sha256(CODE.encode()).hexdigest()
    assert patch.source == Source(address=f"{forge}/200/vllm/pull/7.diff", sha256=sha)
    assert (patch.folder / IMPORTED).read_text() == CODE
    assert (patch.unproven, patch.draft) == (True, False)
    assert "secret" not in (patch.folder / "patch.yaml").read_text()


PARTLY = (
    DIFF.replace("1,7 +1,7", "2,4 +2,4").replace(" head\n", "").replace(" e\n f\n", "")
    + "@@ -6,3 +6,3 @@\n nothing\n-like\n+this\n here\n"
)


@pytest.mark.programs
@pytest.mark.parametrize("forge", [PARTLY], indirect=True)
def test_the_address_and_the_kind_survive_a_work_tree(
    tmp_path: Path, using: Settings, forge: str
) -> None:
    url = f"{forge}/200/vllm/commit/12ab34c"
    one = importing.import_diffs(url, tmp_path / "patches", using, unproven=True)
    assert one.work is not None
    (work,) = worktree.unfinished(using)
    file = work.tree / "pkg/x.py"
    file.write_text("resolved\n")
    done = port.finish(work, None, tmp_path / "patches", Bench(using), using)
    assert done.outcome == "unproven"
    patch = catalog.load(tmp_path / "patches")["vllm/commit-12ab34c"]
    assert patch.unproven
    assert patch.source is not None
    assert patch.source.address == f"{url}.patch"


@pytest.mark.parametrize(
    ("path", "code", "ends"),
    [
        ("404", "import-not-found", 2),
        ("403", "import-refused", 3),
        ("429", "import-refused", 3),
        ("503", "import-failing", 3),
    ],
)
def test_a_server_that_gives_no_diff_is_one_clear_error(
    forge: str, path: str, code: str, ends: int
) -> None:
    error = refused(f"{forge}/{path}/vllm/pull/7")
    (problem,) = error.problems
    assert (problem.code, error.exit_code) == (code, ends)
    assert f"{forge}/{path}/vllm/pull/7.diff" in problem.what
    assert ("after 60 s" in problem.fix) is (code == "import-refused")


def refused(text: str) -> FactoryError:
    address = fetched.address_of(text)
    assert address is not None
    with pytest.raises(FactoryError) as caught:
        fetched.fetch(address)
    return caught.value


@pytest.mark.parametrize("forge", ["<!DOCTYPE html>\n<p>Sign in"], indirect=True)
def test_a_page_instead_of_a_diff_is_refused(forge: str) -> None:
    assert "<!DOCTYPE html>" in refused(f"{forge}/200/vllm/pull/7").problems[0].what


def test_without_a_network_the_file_is_asked_for_and_no_password_is_shown() -> None:
    error = refused("http://me:secret@127.0.0.1:9/vllm/pull/7")
    (problem,) = error.problems
    assert (problem.code, error.exit_code) == ("import-unreachable", 3)
    assert "import the file" in problem.fix
    assert "secret" not in str(error)


def test_a_diff_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, forge: str) -> None:
    monkeypatch.setattr(diffs, "LARGEST", 20)
    assert refused(f"{forge}/200/vllm/pull/7").problems[0].code == "import-large"


@pytest.mark.programs
def test_the_diffs_that_a_script_fetches_are_named(tmp_path: Path, using: Settings) -> None:
    mod = tmp_path / "mods/fix"
    mod.mkdir(parents=True)
    (mod / "run.sh").write_text(f'curl -fsL {RAW} | git apply\ncurl "https://x.y/$PR.diff"\n')
    with pytest.raises(InputError) as caught:
        importing.import_diffs(str(mod), tmp_path / "patches", using)
    assert f"imagefactory patch import {RAW}" in caught.value.problems[0].fix
    assert "$PR" not in caught.value.problems[0].fix
    (mod / "1.patch").write_text(CODE)
    assert importing.import_diffs(str(mod), tmp_path / "patches", using).fetches == (RAW,)

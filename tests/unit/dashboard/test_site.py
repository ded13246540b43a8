"""The command and the pages that it writes, read by a parser as a browser reads them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.pages import Page
from support.program import Run, runner
from support.recorded import HOSTILE, cell, failure, night, write

from imagefactory.dashboard import pages
from imagefactory.nightly import nightly
from imagefactory.nightly.record import PatchRecord, Record
from imagefactory.workspace import find


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled templates: to compile them takes longer than all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    (tmp_path / "sparks").mkdir()
    monkeypatch.chdir(tmp_path / "sparks")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return runner(monkeypatch, capsys, tmp_path / "sparks", command="dashboard")


def keep(*records: Record) -> Path:
    """Write the records where nights do; their folder."""
    folder = nightly.folder_of(find(Path("matrix.yaml"), os.environ)) / "records"
    write(folder, iter(records))
    return folder


def receipt(digest: str) -> None:
    folder = find(Path("matrix.yaml"), os.environ).settings.receipts
    folder.mkdir(parents=True)
    (folder / f"{digest.replace(':', '-')}.json").write_text('{"passed": true}')


def test_every_page_is_well_formed_and_every_link_leads_somewhere(run: Run) -> None:
    broke = cell("b", "failed", failures=(failure(where="b"),), digest=None)
    patch = PatchRecord(patch="vllm/mine", version="0.33.0", state="needed")
    keep(night(0, cell("a"), broke, patches=(patch,)), night(20, cell("a"), cell("new/one")))
    receipt(str(cell().digest))
    assert run().code == 0
    site = {path.name: Page.of(path) for path in Path("dashboard").glob("*.html")}
    assert {*site} == {
        *("index.html", "cells.html", "compare.html"),
        *("nights-2025-11.html", "nights-2025-12.html"),
    }
    ids = {n: Counter(a["id"] for _, a in page.tags if "id" in a) for n, page in site.items()}
    for name, page in site.items():
        assert (page.wrong, page.open) == ([], [])
        assert max(ids[name].values()) == 1
        for link in page.all("a"):
            target, _, fragment = link["href"].partition("#")
            assert Path("dashboard", target or name).is_file()
            assert not fragment or fragment in ids[target or name], (name, link)
    assert "receipts/sha256-" in "".join(link["href"] for link in site["index.html"].all("a"))


def test_a_page_can_be_used_without_a_mouse_and_without_seeing_it(run: Run) -> None:
    keep(night(0, cell("a")), night(1, cell("b", "failed", failures=(failure(where="b"),))))
    assert run("-o", "site").code == 0
    for path in Path("site").glob("*.html"):
        page = Page.of(path)
        assert page.barriers() == []
    index = Page.of(Path("site/index.html"))
    assert "build failed" in index.text  # a state is text, and no mere colour or symbol
    assert {"pushed", "failed"} <= {*index.text.split()}


def test_names_and_logs_run_nothing_in_the_browser_of_a_reader(run: Run) -> None:
    bad = failure(**dict.fromkeys(("where", "step", "code", "what", "fix", "excerpt"), HOSTILE))
    values: dict[str, Any] = {
        "versions": {HOSTILE: HOSTILE},
        "digest": HOSTILE,
        "build_key": HOSTILE,
    }
    texts: dict[str, Any] = dict.fromkeys(("news", "did", "tags", "notes"), (HOSTILE,))
    keep(
        night(0, cell("a")),
        night(
            1,
            cell(HOSTILE, "failed", failures=(bad,), **values),
            cell(f"{HOSTILE}2", **values),
            failures=(bad,),
            patches=(PatchRecord(patch=HOSTILE, version=HOSTILE, state=HOSTILE),),
            version=HOSTILE,
            **texts,
        ),
    )
    assert run("-o", "site").code == 0
    for path in Path("site").glob("*.html"):
        page = Page.of(path)
        assert page.all("img") == []
        scripts = [{"type": "application/json", "id": "data"}, {}]
        assert page.all("script") == (scripts if path.name == "compare.html" else [])
        policy = page.all("meta")[-2]["content"]
        assert policy.startswith("default-src 'none'")
        assert ("script-src 'sha256-" in policy) == (path.name == "compare.html")
        if path.name != "compare.html":
            assert HOSTILE in page.text
    text = Path("site/compare.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert HOSTILE in [name for name, _ in data["cells"]]


def test_without_escaping_they_would(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(night(0, cell(HOSTILE)))
    env = pages._environment.__wrapped__(Path("cache"))
    env.autoescape = False
    monkeypatch.setattr(pages, "_environment", lambda _: env)
    assert run("-o", "site").code == 0
    assert len(Page.of(Path("site/cells.html")).all("img")) > 0


def test_what_is_unknown_is_shown_as_unknown_and_never_as_zero(run: Run) -> None:
    keep(night(0, cell("a", size=None, digest=None, seconds=None, versions={})))
    assert run("-o", "site").code == 0
    for name, count in {"index.html": 5, "cells.html": 2, "nights-2025-11.html": 2}.items():
        text = Page.of(Path("site", name)).text
        assert text.count("unknown") == count, name
        assert " 0.0" not in text


def test_the_site_keeps_nights_and_receipts_for_a_machine_that_has_only_the_site(run: Run) -> None:
    folder = keep(night(0, cell("a")))
    receipt(str(cell().digest))
    assert run("-o", "site").code == 0
    for path in folder.iterdir():
        path.unlink()
    keep(night(1, cell("a", "unchanged")))
    done = run("-o", "site", "--json")
    found = json.loads(done.out)
    assert (done.code, found["nights"], found["cells"], found["problems"]) == (0, 2, 1, [])
    assert found["index"] == "site/index.html"
    assert len(list(Path("site/records").iterdir())) == 2
    assert "receipts/sha256-" in Path("site/index.html").read_text()


def test_damaged_records_are_each_one_error_and_the_other_nights_are_shown(run: Run) -> None:
    folder = keep(night(0, cell("a")), night(1, cell("a")), night(2, cell("a")))
    first, second, _ = sorted(folder.iterdir())
    first.write_text(first.read_text()[:100])
    second.write_text(second.read_text().replace('"format": 1', '"format": 2'))
    done = run("-o", "site", "--json")
    errors = json.loads(done.out)["errors"]
    assert done.code == 1
    assert [error["where"] for error in errors] == [str(first), str(second)]
    assert "Traceback" not in done.err
    text = Page.of(Path("site/index.html")).text
    assert text.count("A night is missing here:") == 2
    assert "the first night that is recorded" in text
    assert len(list(Path("site/records").iterdir())) == 1, "they can be removed in one place"


def test_a_folder_or_a_pipe_among_the_records_is_a_damaged_record(run: Run) -> None:
    folder = keep(night(0, cell("a")))
    (folder / "20260101T000000Z.json").mkdir()
    os.mkfifo(folder / "20260102T000000Z.json")
    done = run("-o", "site", "--json")
    codes = [error["code"] for error in json.loads(done.out)["errors"]]
    assert (done.code, codes) == (1, ["record-unreadable"] * 2)
    assert Path("site/index.html").is_file()


@pytest.mark.parametrize(
    ("damage", "code"), [(False, "dashboard-no-nights"), (True, "record-unreadable")]
)
def test_without_a_readable_record_no_site_is_written(damage: bool, code: str, run: Run) -> None:
    if damage:
        folder = keep(night(0, cell("a")))
        next(folder.iterdir()).write_text("{")
    done = run("-o", "site", "--json")
    assert (done.code, json.loads(done.out)["errors"][0]["code"]) == (2, code)
    assert not Path("site").exists()


def test_a_site_that_cannot_be_written_is_one_error(run: Run) -> None:
    keep(night(0, cell("a")))
    Path("site").write_text("a file")
    done = run("-o", "site")
    assert (done.code, "[dashboard-folder]" in done.err) == (3, True)


def test_names_in_lines_of_the_report_are_code_and_nothing_else_is() -> None:
    line = "`nightly` is now <b>1.0</b> (`x"
    assert pages.code(line) == "<code>nightly</code> is now &lt;b&gt;1.0&lt;/b&gt; (`x"


@pytest.mark.parametrize(("minutes", "shown"), [(0, "0 s"), (0.5, "30 s"), (61.7, "62 min")])
def test_short_nights_are_shown_in_seconds(minutes: float, shown: str) -> None:
    assert pages.took(minutes) == shown

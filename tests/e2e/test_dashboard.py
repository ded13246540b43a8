"""The dashboard of a year of nights, and the page of an image, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import chromium, recorded
from support.chromium import Browser
from support.recorded import HOSTILE
from support.reported import check, facts

from imagefactory.dashboard import dashboard
from imagefactory.reporting import reporting
from imagefactory.settings import Settings
from imagefactory.verifying.receipt import Outcome

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A year of nights; in the last one a cell has a hostile name and fails."""
    folder = tmp_path_factory.mktemp("nights")
    *nights, last = recorded.year()
    broke = recorded.failure(where=HOSTILE, what=HOSTILE, excerpt=HOSTILE)
    cells = (*last.cells, recorded.cell(HOSTILE, "failed", failures=(broke,)))
    recorded.write(folder / "records", iter([*nights, replace(last, cells=cells)]))
    settings = Settings(
        state=folder, cache=folder / "cache", indexes=(), find_links=(), ca_bundle=None
    )
    now = datetime.now(UTC)
    dashboard.write(folder / "site", folder / "records", "sparks", now, settings=settings)
    return folder / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium.find()
    assert program, "the tests need Chromium: install it, for example by 'make browser'"
    with chromium.browser(program, tmp_path_factory.mktemp("profile")) as found:
        found.look(width=1400, height=1000)
        yield found


def test_no_page_complains_and_no_name_runs_anything(site: Path, browser: Browser) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) == 16
    for page in pages:
        browser.open(page)
        assert browser.complaints() == []
        assert browser.value("document.querySelectorAll('img').length") == 0
        assert browser.value("document.querySelector('h1').innerText.length") > 3


def test_a_script_that_is_not_the_sites_own_would_be_blocked_and_heard_of(
    site: Path, browser: Browser, tmp_path: Path
) -> None:
    text = (site / "index.html").read_text()
    page = tmp_path / "index.html"
    page.write_text(text.replace("</main>", "<script>document.title = 'run'</script></main>"))
    browser.open(page)
    assert browser.value("document.title") != "run"
    assert any("Content Security Policy" in one for one in browser.complaints())


def test_any_two_nights_are_compared_as_the_pages_of_the_months_do(
    site: Path, browser: Browser
) -> None:
    before, after = "n20260310T021700Z", "n20260311T021700Z"
    browser.open(site / "nights-2026-03.html")
    items = f"[...document.querySelectorAll('#{after} .changes > li > ul > li')]"
    written = browser.value(
        f"{items}.map(i => i.textContent.replace(/and \\d+\\s+more/, ', ').replace(/[\\s,]+/g, ' ').trim())"
    )
    browser.open(site / "compare.html", f"#{before}..{after}")
    items = "[...document.querySelectorAll('#result > ul > li > ul > li')]"
    compared = browser.value(f"{items}.map(i => i.textContent.replace(/[\\s,]+/g, ' ').trim())")
    assert written
    assert compared == written
    browser.open(site / "compare.html", f"#{before}..{before}")
    assert browser.value("document.querySelector('#result').innerText") == "Nothing changed."


def test_states_are_heard_and_plots_have_names(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html")
    heard = browser.heard()
    names = {name for role, name in heard if role == "cell"}
    assert {"pushed", "unchanged", "build failed"} <= names
    assert ("region", "Cells by night") in heard
    assert all(name for role, name in heard if role in ("image", "link", "region", "table cell"))
    assert any(role == "image" and "Size of gb10-00" in name for role, name in heard)


def test_the_keyboard_skips_to_the_content_and_reaches_what_scrolls(
    site: Path, browser: Browser
) -> None:
    browser.open(site / "index.html")
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.className") == "skip"
    assert browser.value("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter", 13)
    seen = []
    for _ in range(12):
        browser.press("Tab", 9)
        seen.append(browser.value("document.activeElement.getAttribute('aria-label')"))
    assert "Cells by night" in seen


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast_on_a_narrow_screen_too(
    dark: bool, site: Path, browser: Browser
) -> None:
    browser.look(width=390, height=900, dark=dark)
    for name in ("index.html", "cells.html", "compare.html", "nights-2026-11.html"):
        browser.open(site / name)
        assert browser.value("document.documentElement.scrollWidth") <= 390
        assert browser.value(CONTRASTS) >= 4.5
    back = "getComputedStyle(document.body).backgroundColor"
    browser.value(f"document.querySelector('h1').style.color = {back}")
    assert browser.value(CONTRASTS) == 1


def test_the_page_of_an_image_is_read_by_eye_ear_and_keyboard(
    browser: Browser, tmp_path: Path
) -> None:
    failed = check(HOSTILE, outcome=Outcome.FAIL, detail=f"{HOSTILE}\n" + "a line of a log\n" * 99)
    reporting.write(tmp_path / "image.html", facts(check(), failed), tmp_path)
    for width, dark in ((1400, False), (1400, True), (390, False), (390, True)):
        browser.look(width=width, height=900, dark=dark)
        browser.open(tmp_path / "image.html")
        assert browser.complaints() == []
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value(CONTRASTS) >= 4.5
    region = "document.querySelector('[aria-label=Checks]')"  # the evidence is seen on a telephone
    assert browser.value(f"{region}.scrollWidth <= {region}.clientWidth")
    assert browser.value("document.querySelectorAll('img, script').length") == 0
    heard = browser.heard()
    assert {("region", "Checks"), ("region", "Layers"), ("rowheader", HOSTILE)} <= {*heard}
    assert all(name for role, name in heard if role in ("link", "region"))
    browser.press("Tab", 9)
    browser.press("Enter", 13)
    seen = []
    for _ in range(6):
        browser.press("Tab", 9)
        seen.append(browser.value("document.activeElement.tagName"))
    assert seen[:2] == ["SUMMARY", "PRE"]  # what failed is open, and can be scrolled


#: The smallest contrast of text with what is behind it (WCAG 2), as the browser computes colours.
CONTRASTS = """
(() => {
  const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
  const part = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) =>
    0.2126 * part(r / 255) + 0.7152 * part(g / 255) + 0.0722 * part(b / 255);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const color = rgba(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let least = 21, node;
  while ((node = walker.nextNode())) {
    if (!node.textContent.trim() || !node.parentElement.checkVisibility()) continue;
    const a = light(rgba(getComputedStyle(node.parentElement).color));
    const b = light(behind(node.parentElement));
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()
"""

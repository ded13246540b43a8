"""Verifications as Markdown, read by a parser of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.recorded import HOSTILE
from support.reported import check, receipt

from imagefactory import pipeline
from imagefactory.commands.verify import verify_command
from imagefactory.errors import CheckFailedError
from imagefactory.reporting import markdown
from imagefactory.verifying.receipt import Level, Outcome

TRICKS = (
    f"{HOSTILE} ![x](http://a/b.png) [y](http://c) **z** `c` | a \x1b[31m & www.d.org </details>"
)
BAD = check(outcome=Outcome.FAIL, detail=f"{TRICKS}\n````\n{TRICKS}\n")


def tokens(text: str) -> list[Token]:
    found = MarkdownIt("commonmark").enable("table").parse(text)
    return [token for one in found for token in (one, *(one.children or ()))]


def test_the_verdict_is_first_and_a_fault_has_its_evidence() -> None:
    text = markdown.summary(receipt(check(), check("server", outcome=Outcome.FAIL, detail="a\nb")))
    head, *_ = text.splitlines()
    assert head == r"## ✗ imagefactory/vllm\:gb10-vllm0.33.0: not verified"
    assert "1 passed, 1 failed, 0 skipped; level import" in text
    assert "**server** failed: a" in text
    assert "```text\nb\n```" in text
    assert "## ✓" in markdown.summary(receipt())
    below = markdown.summary(receipt(), wanted=Level.GPU)
    assert "## ✗" in below
    assert "level import, not gpu" in below


def test_a_skip_that_is_required_and_an_unproven_patch_are_named() -> None:
    text = markdown.summary(receipt(check(outcome=Outcome.SKIP), unproven=("vllm/mine",)))
    assert "was skipped, but is required" in text
    assert "**Unproven patches**, of which nothing shows what they do: vllm/mine" in text


def test_what_an_image_says_is_neither_a_link_nor_an_image_nor_html() -> None:
    bad = replace(receipt(BAD), tag=TRICKS, unproven=(TRICKS,))
    found = tokens(markdown.summary(bad, receipt(check(detail=TRICKS))))
    kinds = {one.type for one in found}
    assert not {"link_open", "image", "html_inline", "code_inline"} & kinds
    html = [one.content.strip() for one in found if one.type == "html_block"]
    assert html == ["<details><summary>All checks</summary>", "</details>"] * 2
    assert len([one for one in found if one.type == "fence"]) == 1
    assert "image" in {one.type for one in tokens(TRICKS)}  # it would be without escapes
    text = "".join(one.content for one in found if one.type in ("text", "text_special"))
    assert r"a \x1b[31m & www.d.org </details>" in text


def test_only_the_end_of_a_long_log_is_shown() -> None:
    lines = markdown.fenced("x\n" * 5000 + "last")
    assert lines[-2] == "last"
    assert sum(map(len, lines)) < markdown.LONGEST


def test_verify_writes_it_for_images_that_fail_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "verify", lambda *_, **__: (receipt(BAD), receipt()))
    target = tmp_path / "deep" / "summary.md"
    with pytest.raises(CheckFailedError):
        verify_command(["me/vllm:1"], file=tmp_path / "matrix.yaml", markdown_file=target)
    assert target.read_text() == markdown.summary(receipt(BAD), receipt())

"""How a receipt is shown."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from support.verify_fakes import Good
from support.verify_faults import receipt

from imagefactory.system import ui
from imagefactory.verifying import report
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt

TAG = "registry.example.com/team/vllm:gb10-nemotron-vllm0.22.1-torch2.11.0-cu130-arm64"


def result(name: str, outcome: Outcome, detail: str, *, required: bool = True) -> CheckResult:
    return CheckResult(name=name, outcome=outcome, required=required, detail=detail, seconds=1.5)


SOME = Receipt(
    digest="sha256:" + "ab" * 32,
    tag="imagefactory/vllm:test",
    cell="a-cell",
    build_key="key",
    verified_at="2026-11-20T12:00:00+00:00",
    checks=(
        result("one", Outcome.PASS, "seen"),
        result("two", Outcome.FAIL, "expected <a> & [b]\nlog: \x1b[31mred\x1b[0m"),
        result("three", Outcome.SKIP, "needs a GPU", required=False),
    ),
)


class Terminal(io.StringIO):
    """Output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns shows."""
    shown = Terminal()
    console = Console(
        file=shown,
        width=80,
        force_terminal=True,
        color_system=None,
        highlight=False,
        soft_wrap=True,
    )
    monkeypatch.setattr(ui, "out", console)
    return shown


def test_the_table_shows_every_check_with_its_reason_and_the_verdict(screen: io.StringIO) -> None:
    report.show(SOME)
    text = screen.getvalue()
    assert "two: log:" in text
    for word in ("one", "two", "three", "pass", "FAIL", "skip", "needs a GPU", "[b]"):
        assert word in text
    assert ["check", "took", "details"] in [line.split() for line in text.splitlines()]
    assert "not verified: 1 passed, 1 failed, 1 skipped" in text
    assert "imagefactory/vllm:test\nsha256:" + "ab" * 32 in text


def test_a_log_that_several_failures_share_is_shown_once(screen: io.StringIO) -> None:
    shared = tuple(
        result(name, Outcome.FAIL, f"{name} is wrong\nthe log") for name in ("two", "three")
    )
    report.show(replace(SOME, checks=shared))
    assert screen.getvalue().count("the log") == 1
    assert "two, three: the log" in screen.getvalue()


def test_the_table_fits_80_columns_and_breaks_neither_the_tag_nor_a_name(
    screen: io.StringIO,
) -> None:
    image = Good()
    image.manifest["patches"][0]["files"]["vllm/" + "a" * 90 + ".py"] = "33" * 32
    report.show(replace(receipt(image), tag=TAG, digest="sha256:" + "ab" * 32))
    lines = screen.getvalue().splitlines()
    assert lines[0] == TAG
    assert [line for line in lines[1:] if len(line) > 80] == []
    for check in receipt(image).checks:
        assert any(check.name in line and str(check.outcome) in line.lower() for line in lines)


def test_unproven_patches_are_named_below_the_verdict(screen: io.StringIO) -> None:
    report.show(SOME)
    assert "unproven" not in screen.getvalue()
    report.show(replace(SOME, unproven=("vllm/x",)))
    assert screen.getvalue().endswith("1 unproven patch: vllm/x\n")


def test_a_check_that_is_not_required_is_marked(screen: io.StringIO) -> None:
    report.show(SOME)
    assert "not required: needs a GPU" in screen.getvalue()

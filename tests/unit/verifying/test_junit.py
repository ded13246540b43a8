"""The report for continuous integration: a test case for every check."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC
from pathlib import Path

from support.verify_station import NOW

from imagefactory.verifying import junit
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt


def result(name: str, outcome: Outcome, detail: str, *, required: bool = True) -> CheckResult:
    return CheckResult(name=name, outcome=outcome, required=required, detail=detail, seconds=1.5)


SOME = Receipt(
    digest="sha256:" + "ab" * 32,
    tag="imagefactory/vllm:test",
    cell="a-cell",
    build_key="key",
    verified_at=NOW.astimezone(UTC).isoformat(),
    checks=(
        result("one", Outcome.PASS, "seen"),
        result("two", Outcome.FAIL, "expected <a> & [b]\nlog: \x1b[31mred\x1b[0m"),
        result("three", Outcome.SKIP, "needs a GPU", required=False),
    ),
)


def test_junit_has_a_test_case_for_every_check(tmp_path: Path) -> None:
    junit.write(tmp_path / "deep" / "junit.xml", SOME)
    root = ET.fromstring((tmp_path / "deep" / "junit.xml").read_text(encoding="utf-8"))  # noqa: S314
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    one, two, three = suite.findall("testcase")
    assert [case.get("name") for case in (one, two, three)] == ["one", "two", "three"]
    assert one.find("failure") is None
    failure = two.find("failure")
    assert failure is not None
    assert failure.get("message") == "expected <a> & [b]"
    assert failure.get("type") == "required"
    assert "log: ?[31mred" in (failure.text or "")
    skipped = three.find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "needs a GPU"


def test_no_label_of_an_image_makes_the_report_unreadable(tmp_path: Path) -> None:
    odd = '\x00\x1b[31m\ufffe\ud800<&"\n'
    one = result(odd, Outcome.SKIP, odd)
    spoilt = replace(SOME, tag=odd, cell=odd, build_key=odd, digest=odd, checks=(one,))
    junit.write(tmp_path / "junit.xml", spoilt)
    root = ET.fromstring((tmp_path / "junit.xml").read_text(encoding="utf-8"))  # noqa: S314
    assert root[0].get("name") == '??[31m??<&"\n'

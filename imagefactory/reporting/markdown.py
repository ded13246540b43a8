"""Verifications as Markdown, for the summary of a CI job. Pure.

What an image says is data: nothing in it is a link, an image or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagefactory.system.text import safe
from imagefactory.verifying import receipt as receipts
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, Receipt

#: Characters of a log that are shown; the end of it is what matters.
LONGEST = 6000
MARKS = {Outcome.PASS: "✓", Outcome.FAIL: "✗", Outcome.SKIP: "…"}
_MEANS_SOMETHING = re.compile(r"([\\`*_{}\[\]()<>&|~#!$@:]|(?<=www)\.)")


def summary(*receipts: Receipt, wanted: Level = Level.STATIC) -> str:
    """A section for each receipt: the verdict, what failed with its evidence, then all checks.

    What did not reach the level ``wanted`` is not verified.
    """
    return "\n".join(line for one in receipts for line in _lines(one, wanted)) + "\n"


def _lines(receipt: Receipt, wanted: Level) -> Iterator[str]:
    enough = receipt.level.includes(wanted)
    good = receipt.passed and enough
    mark, verdict = ("✓", "verified") if good else ("✗", "not verified")
    yield from (f"## {mark} {escaped(receipt.tag)}: {verdict}", "")
    level = f"level {receipt.level}" + ("" if enough else f", not {wanted}")
    yield f"{receipts.counts(receipt)}; {level}; {escaped(receipt.digest)}"
    if receipt.unproven:
        names = ", ".join(map(escaped, receipt.unproven))
        yield from ("", f"**Unproven patches**, of which nothing shows what they do: {names}")
    for check in receipt.checks:
        if check.outcome is Outcome.FAIL or check.name in receipt.failed_checks:
            how = "failed" if check.outcome is Outcome.FAIL else "was skipped, but is required"
            note = "" if check.required else " (not required)"
            yield from ("", f"**{escaped(check.name)}** {how}{note}: {_first_line(check)}")
    for text, checks in receipts.explanations(receipt).items():
        yield from ("", f"From {', '.join(map(escaped, checks))}:", "", *fenced(text))
    yield from ("", "<details><summary>All checks</summary>", "")
    yield from ("| check | | took | details |", "| --- | --- | ---: | --- |")
    for check in receipt.checks:
        took = f"{check.seconds:.1f} s" if check.seconds >= 0.05 else ""
        shown = f"{MARKS[check.outcome]} {check.outcome}"
        yield f"| {escaped(check.name)} | {shown} | {took} | {_first_line(check)} |"
    yield from ("", "</details>", "")


def escaped(text: str) -> str:
    """``text`` as Markdown that shows just that, on one line."""
    return _MEANS_SOMETHING.sub(r"\\\1", " ".join(safe(text).split()))


def fenced(text: str) -> list[str]:
    """The end of ``text`` as a block of code, whatever is in it."""
    shown = safe(text[-LONGEST:])
    fence = "```"
    while fence in shown:
        fence += "`"
    return [f"{fence}text", *shown.splitlines(), fence]


def _first_line(check: CheckResult) -> str:
    return escaped(check.detail.partition("\n")[0])

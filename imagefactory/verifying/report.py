"""Shows a receipt to a person."""

from __future__ import annotations

from imagefactory.system import ui
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt

MARKS = {
    Outcome.PASS: ui.styled("pass", "green"),
    Outcome.FAIL: ui.styled("FAIL", "red"),
    Outcome.SKIP: ui.styled("skip", "yellow"),
}
WORDS = {Outcome.PASS: "passed", Outcome.FAIL: "failed", Outcome.SKIP: "skipped"}


def show(receipt: Receipt) -> None:
    """Print the results as a table on standard output, then long explanations and the verdict."""
    rows = [
        [check.name, MARKS[check.outcome], _seconds(check), _detail(check)]
        for check in receipt.checks
    ]
    ui.line(ui.styled(receipt.tag, "bold"))
    ui.line(ui.styled(receipt.digest, "dim"))
    ui.table("", ["check", "", "took", "details"], rows)
    for text, names in _explanations(receipt).items():
        ui.line(ui.styled(", ".join(names), "red"), f": {text}")
    counts = {
        outcome: sum(check.outcome is outcome for check in receipt.checks) for outcome in Outcome
    }
    counted = ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items())
    verified = f"verified ({receipt.level})"
    verdict = (verified, "green") if receipt.passed else ("not verified", "red")
    ui.line(ui.styled(*verdict), f": {counted}")
    if receipt.unproven:
        noun = "patch" if len(receipt.unproven) == 1 else "patches"
        text = f"{len(receipt.unproven)} unproven {noun}"
        ui.line(ui.styled(text, "bold yellow"), f": {', '.join(receipt.unproven)}")


def _seconds(check: CheckResult) -> str:
    return f"{check.seconds:.1f} s" if check.seconds >= 0.05 else ""


def _detail(check: CheckResult) -> ui.Part:
    text = check.detail.partition("\n")[0]
    shown = text if check.required else f"not required: {text}"
    return ui.styled(shown, "yellow") if check.outcome is Outcome.SKIP else shown


def _explanations(receipt: Receipt) -> dict[str, list[str]]:
    """What failures say below their first line, with the checks that say it.

    Checks of the server share one log, which is shown once.
    """
    names: dict[str, list[str]] = {}
    for check in receipt.checks:
        text = check.detail.partition("\n")[2]
        if check.outcome is Outcome.FAIL and text:
            names.setdefault(text, []).append(check.name)
    return names

"""Shows a receipt to a person."""

from __future__ import annotations

from imagefactory.system import ui
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt, counts, explanations

MARKS = {
    Outcome.PASS: ui.styled("pass", "green"),
    Outcome.FAIL: ui.styled("FAIL", "red"),
    Outcome.SKIP: ui.styled("skip", "yellow"),
}


def show(receipt: Receipt) -> None:
    """Print the results as a table on standard output, then long explanations and the verdict."""
    rows = [
        [check.name, MARKS[check.outcome], _seconds(check), _detail(check)]
        for check in receipt.checks
    ]
    ui.line(ui.styled(receipt.tag, "bold"))
    ui.line(ui.styled(receipt.digest, "dim"))
    ui.table("", ["check", "", "took", "details"], rows)
    for text, names in explanations(receipt).items():
        ui.line(ui.styled(", ".join(names), "red"), f": {text}")
    verified = f"verified ({receipt.level})"
    verdict = (verified, "green") if receipt.passed else ("not verified", "red")
    ui.line(ui.styled(*verdict), f": {counts(receipt)}")
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

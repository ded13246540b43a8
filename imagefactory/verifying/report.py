"""Shows a receipt to a person."""

from __future__ import annotations

from imagefactory.system import ui
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt

MARKS = {
    Outcome.PASS: "[green]pass[/green]",
    Outcome.FAIL: "[red]FAIL[/red]",
    Outcome.SKIP: "[yellow]skip[/yellow]",
}
WORDS = {Outcome.PASS: "passed", Outcome.FAIL: "failed", Outcome.SKIP: "skipped"}


def show(receipt: Receipt) -> None:
    """Print the results as a table on standard output, then long explanations and the verdict."""
    rows = [
        [check.name, MARKS[check.outcome], _seconds(check), _detail(check)]
        for check in receipt.checks
    ]
    # Not the table's title: that would be folded to the table's width.
    ui.out.print(f"[bold]{ui.escape(receipt.tag)}[/bold]")
    ui.out.print(f"[dim]{receipt.digest}[/dim]")
    ui.table("", ["check", "", "took", "details"], rows)
    for text, names in _explanations(receipt).items():
        ui.out.print(f"[red]{', '.join(names)}[/red]: {ui.escape(text)}")
    counts = {
        outcome: sum(check.outcome is outcome for check in receipt.checks) for outcome in Outcome
    }
    verdict = "[green]verified[/green]" if receipt.passed else "[red]not verified[/red]"
    ui.out.print(
        f"{verdict}: " + ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items())
    )


def _seconds(check: CheckResult) -> str:
    return f"{check.seconds:.1f} s" if check.seconds >= 0.05 else ""


def _detail(check: CheckResult) -> str:
    text = ui.escape(check.detail.partition("\n")[0])
    if check.outcome is Outcome.SKIP:
        text = f"[yellow]{text}[/yellow]"
    return text if check.required else f"[dim]not required:[/dim] {text}"


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

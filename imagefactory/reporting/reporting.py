"""The reporting station: what is known of an image as one page of HTML.

The page loads nothing and runs nothing. Everything from an image, its labels and its programs is
data, and escaped.
"""

from __future__ import annotations

from functools import cache as cached
from pathlib import Path

import jinja2
from markupsafe import Markup

from imagefactory import __version__
from imagefactory.reporting import environment
from imagefactory.reporting.facts import LEVELS, Facts
from imagefactory.system import files
from imagefactory.system.text import safe
from imagefactory.verifying import receipt as receipts
from imagefactory.verifying.receipt_store import Refused

#: So many rows are shown; more are behind a click.
FEW = 12


def write(path: Path, facts: Facts, cache: Path) -> None:
    """Write the page of an image to ``path``; ``cache`` is a folder for compiled templates."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, page(facts, cache))


def page(facts: Facts, cache: Path) -> str:
    """The page of an image."""
    record = facts.receipt
    return (
        _environment(cache)
        .get_template("image.html.j2")
        .render(
            facts=facts,
            image=facts.image,
            receipt=record,
            verdict=verdict(facts),
            counts=receipts.counts(record) if record else "",
            evidence=receipts.explanations(record) if record else {},
            levels=LEVELS,
            few=FEW,
            version=__version__,
        )
    )


def verdict(facts: Facts) -> tuple[str, str]:
    """How it stands with an image: ``good``, ``bad`` or ``open``, and in a sentence."""
    if isinstance(facts.found, Refused):
        return "bad", f"Not verified: it has a receipt that does not count: {facts.found.why}"
    if facts.receipt is None:
        return "open", "Not verified: it has no receipt on this machine"
    if facts.receipt.passed:
        return "good", f"Verified, level {facts.receipt.level}"
    names = ", ".join(facts.receipt.failed_checks) or "it made no required check"
    return "bad", f"Not verified: {names} did not pass"


@cached
def _environment(cache: Path) -> jinja2.Environment:
    env = environment.environment(cache / "images")  # compiled otherwise than other pages
    # such as terminal escapes, characters that reverse the reading direction, and secrets
    env.finalize = lambda value: value if isinstance(value, Markup) else safe(str(value))
    return env

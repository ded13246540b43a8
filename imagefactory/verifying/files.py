"""Verdicts of checks on what was found in the layers, for images in which nobody looks.

Where an image is emulated, walking its files takes minutes; from outside it takes seconds, and says
more: every file has the content of its wheel.
"""

from __future__ import annotations

from collections.abc import Callable

from imagefactory.verifying.check_registry import Verdict, count, failed, passed, unknown
from imagefactory.verifying.subject import Subject

SHOWN = 3


def by_files(
    subject: Subject,
    concerns: Callable[[str], object],
    said: str,
    *,
    changed: bool = True,
    extra: bool = True,
) -> Verdict:
    """Passes and says ``said`` if nothing was found at paths that ``concerns`` the check.

    ``changed`` and ``extra`` are whether files that are not as they should be, and files that
    nothing explains, count.
    """
    content = subject.content
    if content is None:
        return unknown("its files were judged neither inside nor from outside")
    if content.error:
        return failed(content.error) if content.damaged else unknown(content.error)
    found = [*(content.changed if changed else ()), *(content.extra if extra else ())]
    faults = [str(one) for one in found if concerns(f"/{one.path}")]
    if faults:
        return failed(f"{count(len(faults), 'fault')}: {'; '.join(faults[:SHOWN])}")
    return passed(f"{said}; its layers were read for it")

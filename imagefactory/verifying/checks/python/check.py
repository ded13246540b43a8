"""The check that the image's Python runs: without it nothing inside can be observed."""

from __future__ import annotations

from imagefactory.verifying.check_registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject


@check("probe")
def reports(subject: Subject) -> Verdict:
    """The image's Python starts, and the probe that it is given runs to its end.

    Fails for a broken virtual environment or an image of the wrong architecture.
    """
    report, seconds = subject.probed.report, subject.probed.seconds
    if report is None:
        return failed(subject.probed.error, seconds=seconds)
    return passed(f"Python {report['python']} on {report['machine']}", seconds=seconds)

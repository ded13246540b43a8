"""The check of the server's log, by the rules in ``verifying/log_rules.toml``."""

from __future__ import annotations

from imagefactory.verifying import log_rules
from imagefactory.verifying.check_registry import Verdict, check, count, failed, passed, unknown
from imagefactory.verifying.server import MODEL
from imagefactory.verifying.subject import Subject


@check("server-log", needs="server")
def says(subject: Subject) -> Verdict:
    """The server's log has the lines that its release of vLLM writes when all is well.

    Fails for a line that must not be there, such as an unknown variable of vLLM, and for a missing
    one.
    """
    if subject.server is None or subject.server.fault:
        return unknown("the server did not start")
    rules, wrong = log_rules.broken(subject.server.log, model=MODEL.name, **subject.runs_on)
    return failed("; ".join(wrong)) if wrong else passed(f"{count(len(rules), 'rule')} kept")

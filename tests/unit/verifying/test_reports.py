"""What several probes report is put together, and how a run of a program ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagefactory.verifying import reports
from imagefactory.verifying.subject import Probed, Ran, ending

FACTS = {"a": {"x": 1}, "late": {"old": 1}, "patches": {"files": 1, "proofs": [0]}}
REPORT = {"python": "3", "facts": FACTS, "errors": {"b": "why"}}
FIRST = Probed(report=REPORT, seconds=1)
NONE = Probed(report=None, error="no report")


def test_a_theme_that_was_probed_apart_has_that_probe_s_facts_and_errors_only() -> None:
    said = {"facts": {"late": {"new": 1}, "a": {"evil": 1}}, "errors": {"late": "e", "b": "evil"}}
    facts = {"a": FACTS["a"], "patches": FACTS["patches"], "late": {"new": 1}}
    wanted = {**REPORT, "facts": facts, "errors": {"b": "why", "late": "e"}}
    assert reports.merged(FIRST, Probed(report=said), "late") == replace(FIRST, report=wanted)
    left = {"a": FACTS["a"], "patches": FACTS["patches"]}
    lost = {**REPORT, "facts": left, "errors": {"b": "why", "late": "no report"}}
    assert reports.merged(FIRST, NONE, "late") == replace(FIRST, report=lost)
    assert reports.merged(NONE, Probed(report=said), "late") == NONE


def test_proofs_that_ran_later_replace_those_that_were_not_asked_for() -> None:
    more = Probed(report={"facts": {"patches": {"proofs": [1], "files": 2}, "a": {"evil": 1}}})
    patches = {"files": 1, "proofs": [1]}
    wanted = {**REPORT, "facts": {**FACTS, "patches": patches}}
    assert reports.with_proofs(FIRST, more) == replace(FIRST, report=wanted)
    lost = {**REPORT, "facts": {**FACTS, "patches": {"files": 1, "proofs": []}}}
    for nothing in (NONE, Probed(report={"facts": {}})):
        assert reports.with_proofs(FIRST, nothing) == replace(FIRST, report=lost)
    for unknown in (NONE, Probed(report={**REPORT, "facts": {"a": {}}})):
        assert reports.with_proofs(unknown, more) is unknown


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, ""),
        (0, ""),
        (1, ""),
        (128, ""),
        (193, ""),
        (129, "SIGHUP"),
        (139, "SIGSEGV: a library that is damaged or does not fit the others"),
        (132, "SIGILL: an instruction that this CPU lacks, or code that was overwritten"),
        (134, "SIGABRT: a failed assertion of a library"),
        (135, "SIGBUS: a file that is mapped is shorter than its headers say: a truncated library"),
        (137, "SIGKILL: the memory limit, or somebody ended it"),
        (159, "SIGSYS: a system call that the container may not make"),
    ],
)
def test_an_exit_code_above_128_is_a_signal_with_its_usual_cause(
    code: int | None, said: str
) -> None:
    assert ending(code) == said
    assert ending(192)


def test_a_run_is_shown_by_its_code_and_its_last_line() -> None:
    assert str(Ran(code=0, out="", err=" \n")) == "exit 0, no output"
    assert str(Ran(code=1, out="out\n", err="")) == "exit 1: out"
    assert str(Ran(code=2, out="out\n", err="first\nlast\n")) == "exit 2: last"
    assert str(Ran(code=129, out="", err="")) == "exit 129 (SIGHUP), no output"

"""Logs: the faults that turn the check of the server's log red."""

from __future__ import annotations

from support.verify_fakes import CPU, server_run
from support.verify_faults import Fault, red

UNKNOWN = "WARNING [envs.py:2057] Unknown vLLM environment variable detected: VLLM_MXFP4_BACKEND"
FAULTS = (
    Fault(
        check="server-log",
        name="a variable that vLLM does not know",
        breaks=lambda image: setattr(image, "server", server_run(log=UNKNOWN)),
        says="Unknown vLLM environment variable",
        torch=CPU,
    ),
)


def test_the_check_goes_red_for_a_line_that_must_not_be_there() -> None:
    assert FAULTS[0].says in red(FAULTS[0])

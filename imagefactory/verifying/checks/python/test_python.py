"""The image's Python: red when it does not report."""

from __future__ import annotations

import pytest
from support.verify_faults import Fault, red

FAULTS = (
    Fault(
        check="probe",
        name="Python does not run",
        breaks=lambda image: setattr(image, "report", None),
        says="no Python at all",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)

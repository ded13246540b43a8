"""CUDA toolkits and the drivers that run them: the table, and overrides with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.matrices import changed, problems
from support.plans import planned

from imagefactory.locking import locking, store
from imagefactory.locking.lock import Lock, LockedDriver, drivers_of
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import request_of
from imagefactory.matrix.explain import explain
from imagefactory.planning import image_config
from imagefactory.settings import from_environment

REASON = "minor-version compatibility; nothing here passes PTX to the driver"
OVERRIDE = f"""\
overrides:
  - driver: "580.142"
    when: {{cuda: "13.2"}}
    reason: {REASON}
"""


def write(folder: Path, *changes: tuple[str, str]) -> Path:
    """A matrix with CUDA 13.2 on driver 580.142, which NVIDIA documents 595.45.04 for."""
    return changed(
        folder,
        ('  cuda: ["13.0"]', '  cuda: ["13.2"]'),
        ('driver: "580.95"', 'driver: "580.142"'),
        ("overrides:\n", OVERRIDE),
        *changes,
    )


def test_a_toolkit_on_an_older_driver_needs_an_override_and_the_error_says_so(
    tmp_path: Path,
) -> None:
    (problem,) = {p.code: p for p in problems(write(tmp_path, (OVERRIDE, "overrides:\n")))}.values()
    assert problem.code == "matrix-driver-too-old"
    assert 'add an override: `driver: "580.142"`, `when` and a `reason`' in problem.fix


def test_an_override_accepts_the_driver_and_its_reason_is_explained(tmp_path: Path) -> None:
    cell = matrix.load(write(tmp_path)).cells[0]
    assert (cell.axes["cuda"], cell.flavor.driver) == ("13.2", "580.142")
    (row,) = [row for row in explain(cell) if row[1].startswith("driver ")]
    path, _, line = row[2].rpartition(":")
    assert (row[0], row[1], row[3]) == ("override", f"driver 580.142: {REASON}", "overrides")
    assert Path(path).read_text().splitlines()[int(line) - 1] == '  - driver: "580.142"'
    assert request_of(cell).overrides == ()  # it has no influence on the wheels


def test_an_override_makes_a_toolkit_usable_that_the_table_does_not_have(tmp_path: Path) -> None:
    path = write(
        tmp_path, ('cuda: ["13.2"]', 'cuda: ["13.9"]'), ('{cuda: "13.2"}', '{cuda: "13.9"}')
    )
    assert matrix.load(path).cells
    path.write_text(path.read_text().replace(OVERRIDE.replace("13.2", "13.9"), "overrides:\n"))
    assert {p.code for p in problems(path)} == {"matrix-unknown-toolkit"}


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ('  - driver: "580.142"', '  - driver: "590.1"', "matrix-driver-too-old", 'cuda: ["13.2"]'),
        ('  - driver: "580.142"', "  - driver: new", "matrix-bad-driver", "driver: new"),
        ('    driver: "580.142"', '    driver: "600.1"', "matrix-idle-override", "- driver"),
        ('{cuda: "13.2"}', '{cuda: "13.0"}', "matrix-idle-override", "- driver"),
        (f"    reason: {REASON}\n", "", "matrix-missing-key", "- driver"),
        (
            '  - driver: "580.142"\n',
            '  - driver: "580.142"\n    drop: x\n',
            "matrix-bad-override",
            "-",
        ),
        ("overrides:\n", OVERRIDE.replace("580.142", "580.95"), "matrix-bad-override", "- driver"),
    ],
)
def test_a_wrong_override_of_the_driver_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, code: str, line: str
) -> None:
    path = write(tmp_path, (old, new))
    found = [problem for problem in problems(path) if problem.code == code]
    assert found, problems(path)
    assert line in path.read_text().splitlines()[int(str(found[0].where).rpartition(":")[2]) - 1]


def test_the_reason_is_recorded_in_the_lock_and_in_the_labels(tmp_path: Path) -> None:
    cells = matrix.load(write(tmp_path)).cells
    (locked,) = drivers_of(cells)
    assert locked == LockedDriver(cuda="13.2", driver="580.142", reason=REASON)
    lock = Lock(created="2026-01-01", tools=(), resolutions=(), drivers=(locked,))
    (tmp_path / "wheels.lock").write_text(store.dumps(lock))
    assert store.read(tmp_path / "wheels.lock") == lock
    plan = planned()
    base = plan.base
    labels = image_config.labels(
        cells[0], plan.resolution, plan.series, base.locked, base_digest=base.digest
    )
    assert labels["io.imagefactory.driver-override"] == f"580.142: {REASON}"
    assert "io.imagefactory.driver-override" not in plan.labels


def test_a_lock_without_the_reason_of_the_matrix_is_out_of_date(tmp_path: Path) -> None:
    cells = matrix.load(write(tmp_path)).cells
    lock = Lock(created="2026-01-01", tools=(), resolutions=(), drivers=drivers_of(cells))

    def codes(lock: Lock) -> set[str]:
        return {p.code for p in locking.check(lock, cells, from_environment({}))}

    assert "lock-drivers" not in codes(lock)
    assert "lock-drivers" in codes(replace(lock, drivers=()))

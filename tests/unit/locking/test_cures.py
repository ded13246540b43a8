"""What an error says when a package has no wheel for the target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.index import serve, torch, unpacker, wheel
from support.machine import settings
from support.matrices import GOOD

from imagefactory.errors import CheckFailedError
from imagefactory.locking import cures, locking
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import request_of

pytestmark = pytest.mark.programs


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "files"
    for version in ("0.22.1", "0.33.0", "0.23.0"):
        wheel(folder, "vllm", version)
    unpacker(folder, "0.13.8")
    torch(folder, "2.11.0", "cu130", "13.0")
    torch(folder, "2.14.0", "cu130", "13.0")
    for version, tags in (
        ("1.0", "cp312-cp312-manylinux_2_28_aarch64"),
        ("2.0", "cp313-cp313-manylinux_2_28_aarch64"),
        ("3.0", "cp313-cp313-manylinux_2_39_aarch64"),
        ("4.0", "cp313-cp313-manylinux_2_28_x86_64"),
    ):
        made = wheel(folder, "native", version)
        made.rename(folder / f"native-{version}-{tags}.whl")
    with serve(folder, tmp_path / "www") as url:
        yield url


OTHER = "take native from another index (`indexes`), or give its wheel by URL"


@pytest.mark.parametrize(
    ("version", "fix"),
    [
        (
            "1.0",
            (
                "write a version that has a wheel: 2.0; or choose a base with Python 3.12, which "
                f"native 1.0 has a wheel for; or {OTHER}"
            ),
        ),
        (
            "3.0",
            (
                "write a version that has a wheel: 2.0; or choose a base with a newer glibc, which "
                f"native 3.0 has a wheel for; or {OTHER}"
            ),
        ),
        ("4.0", f"write a version that has a wheel: 2.0; or {OTHER}"),
    ],
)
def test_a_missing_wheel_is_reported_with_what_would_have_one(
    tmp_path: Path, index: str, version: str, fix: str
) -> None:
    text = GOOD.replace('"torch=={torch}"]', f'"torch=={{torch}}", "native=={version}"]')
    (tmp_path / "matrix.yaml").write_text(text.replace('glibc: "2.41"', 'glibc: "2.36"'))
    cells = matrix.load(tmp_path / "matrix.yaml").cells[:1]
    with pytest.raises(CheckFailedError) as caught:
        locking.update(None, cells, settings(tmp_path, index))
    (problem,) = caught.value.problems
    assert (problem.code, problem.fix) == ("lock-unsatisfiable", fix)


def test_another_reason_is_not_taken_for_a_missing_wheel(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(GOOD)
    request = request_of(matrix.load(tmp_path / "matrix.yaml").cells[0])
    text = "Because vllm==0.30.0 depends on x>=2 and you require x==1, we can conclude that"
    assert cures.of_missing_wheel(text, request, settings(tmp_path)) == ""

"""``follow`` and ``hold`` in a matrix, and nightlies as values of its axes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from packaging.version import Version
from support.matrices import GOOD, problems
from support.matrices import write as write_matrix

from imagefactory.matrix import matrix
from imagefactory.matrix.policies import Follow
from imagefactory.matrix.select import select

NIGHTLY = "0.34.1.dev12+g1234567"


def written(folder: Path, more: str) -> Path:
    path = folder / "matrix.yaml"
    path.write_text(GOOD + more)
    return path


def test_a_package_counts_before_its_axis_and_both_before_the_default(tmp_path: Path) -> None:
    follow = "follow: {default: patch, flashinfer: rc, FlashInfer_Python: minor}\n"
    found = matrix.load(written(tmp_path, follow)).policies
    assert found.followed(("flashinfer-python", "flashinfer")) is Follow.MINOR
    assert found.followed(("flashinfer-cubin", "flashinfer")) is Follow.RC
    assert found.followed(("torch", "torch")) is Follow.PATCH
    assert matrix.load(written(tmp_path, "follow: main\n")).policies.default is Follow.MAIN


@pytest.mark.parametrize("day", ["2027-01-31", '"2027-01-31"'])
def test_a_date_needs_no_quotes(tmp_path: Path, day: str) -> None:
    text = f'hold: {{vllm: {{to: "<0.24", reason: slow, until: {day}}}}}\n'
    (hold,) = matrix.load(written(tmp_path, text)).policies.holds.values()
    assert (hold.until, hold.location.line) == (date(2027, 1, 31), 37)
    assert hold.accepts(Version("0.23.1"))
    assert not hold.accepts(Version("0.24.0rc1"))


def test_all_mistakes_are_reported_with_their_line(tmp_path: Path) -> None:
    text = """\
follow:
  vllm: newest
  a b: patch
hold:
  vllm: {to: "0.24", reason: slow, until: 2027-02-31}
  torch: {to: "<2", until: 5}
  default: {to: "<2", reason: slow, until: 2027-01-01}
"""
    found = [(one.where, one.code) for one in problems(written(tmp_path, text))]
    assert found == [
        (f"{tmp_path}/matrix.yaml:38", "matrix-wrong-value"),
        (f"{tmp_path}/matrix.yaml:41", "matrix-wrong-value"),
        (f"{tmp_path}/matrix.yaml:42", "matrix-missing-key"),
        (f"{tmp_path}/matrix.yaml:42", "matrix-wrong-value"),
    ]
    text = text.replace("newest", "rc").replace("02-31", "01-31").replace("5}", "2027-01-01}")
    text = text.replace('"<2", until', '"<2", reason: x, until')
    found = [(one.where, one.code) for one in problems(written(tmp_path, text))]
    assert found == [
        (f"{tmp_path}/matrix.yaml:39", "matrix-bad-name"),
        (f"{tmp_path}/matrix.yaml:41", "matrix-bad-hold"),
        (f"{tmp_path}/matrix.yaml:43", "matrix-bad-name"),
    ]


def test_a_date_is_no_text(tmp_path: Path) -> None:
    (found,) = problems(write_matrix(tmp_path, "reason: a reason", "reason: 2027-01-31"))
    assert (found.code, "as a date" in found.what) == ("matrix-not-text", True)


def test_a_nightly_is_a_value_whose_tag_has_no_plus(tmp_path: Path) -> None:
    text = GOOD.replace('"0.33.0"]', f'"{NIGHTLY}"]').replace(
        'vllm: "0.33.0"', f'vllm: "{NIGHTLY}"'
    )
    (tmp_path / "matrix.yaml").write_text(text)
    cells = matrix.load(tmp_path / "matrix.yaml").cells
    (cell,) = select(cells, [f"vllm={NIGHTLY}"])
    assert cell.tag == "example/vllm:gb10-vllm0.34.1.dev12-g1234567-torch2.14.0-py3.13"
    assert cell.name.startswith("gb10-vllm0-34-1-dev12-g1234567-")
    assert f"vllm=={NIGHTLY}" in cell.requirements
    assert cell.pins["vllm"] == NIGHTLY

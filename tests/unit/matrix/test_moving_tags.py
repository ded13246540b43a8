"""Moving tags in the matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.matrices import changed, problems

from imagefactory.matrix import matrix

TAGS = '  - "{flavor}-vllm{vllm}-torch{torch}-py{python}"\n'


def declared(folder: Path, text: str) -> Path:
    return changed(folder, (TAGS, f"{TAGS}moving_tags:\n{text}"))


def test_a_moving_tag_is_filled_in_for_the_images_that_may_have_it(tmp_path: Path) -> None:
    text = '  nightly: {when: {vllm: ["0.33.0"]}}\n  "stable-{flavor}": {level: gpu}\n'
    found = matrix.load(declared(tmp_path, text))
    nightly, stable = found.moving_tags
    assert [nightly.of(cell.axes) for cell in found.cells] == [None, "nightly", None]
    assert stable.of(found.cells[0].axes) == "stable-gb10"
    assert stable.of({"platform": "linux/arm64"}) is None
    assert stable.of({"flavor": "a+b"}) == "stable-a-b"
    assert (nightly.level, stable.level) == ("verified", "gpu")
    assert str(stable.location).endswith("matrix.yaml:7")


def test_nights_move_nightly_and_latest_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    text = """\
  nightly: {}
  nightly-x: {}
  latest: {}
  "latest-{flavor}": {}
  latest-y: {nightly: false}
  latest-z: {level: gpu}
  nightlyx: {}
  latestx: {nightly: true}
"""
    found = matrix.load(declared(tmp_path, text)).moving_tags
    moved = [one.template for one in found if one.nightly]
    assert moved == ["nightly", "nightly-x", "latest", "latest-{flavor}", "latestx"]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("  '{nothing}': {}\n", "matrix-unknown-axis", 6),
        ("  nightly: {}\n  'a b': {}\n", "matrix-bad-tag", 7),
        (f"  {'x' * 91}: {{}}\n", "matrix-bad-tag", 6),
        ("  gb10-vllm0.33.0-torch2.14.0-py3.13: {}\n", "matrix-same-tag", 6),
        ("  nightly: {when: {flavour: gb10}}\n", "matrix-unknown-axis", 6),
        ("  nightly: {level: tpu}\n", "matrix-wrong-value", 6),
        ("  stable: {level: gpu, nightly: true}\n", "matrix-night-level", 6),
        ("  nightly: {nightly: often}\n", "matrix-wrong-value", 6),
        ("  nightly: {zzz: gpu}\n", "matrix-unknown-key", 6),
    ],
)
def test_a_wrong_moving_tag_has_its_line(tmp_path: Path, text: str, code: str, line: int) -> None:
    found = problems(declared(tmp_path, text))
    assert [(one.code, str(one.where).rpartition(":")[2]) for one in found] == [(code, str(line))]
    assert found[0].fix

"""Combinations that other projects publish for DGX Spark, as matrices."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.matrix.schema import json_schema

FOLDER = Path(__file__).with_name("published")


def cells_of(name: str) -> tuple[Cell, ...]:
    path = FOLDER / f"{name}.yaml"
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())
    return matrix.load(path).cells


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("vllm-gb10", ["0.30.0-nccl2.32.3-ray2.58.0"]),
        ("gpustack", ["cuda13.0-vllm0.27.1"]),
        ("scitrera", ["0.16.0-t4.57.6", "0.17.0-t4.57.6", "0.16.0-t5.3.0", "0.17.0-t5.3.0"]),
    ],
)
def test_a_published_combination_is_a_matrix(name: str, tags: list[str]) -> None:
    cells = cells_of(name)
    assert [cell.tag.rpartition(":")[2] for cell in cells] == tags
    assert {cell.platform for cell in cells} == {"linux/arm64"}
    assert len({request_of(cell) for cell in cells}) == len(cells)


def test_an_nccl_of_its_own_ray_and_a_toolkit_on_an_older_driver_are_pins_and_overrides() -> None:
    (cell,) = cells_of("vllm-gb10")
    assert cell.pins.items() >= {"nccl": "2.32.3", "ray": "2.58.0", "cuda": "13.2"}.items()
    assert "nvidia-nccl-cu13==2.32.3" in [one.requirement for one in cell.overrides]
    assert [one.driver for one in cell.driver_overrides] == ["580.142"]
    assert cell.flavor.base.cuda_home == "/usr/local/cuda"


def test_torch_of_a_published_combination_comes_from_the_index_of_its_channel() -> None:
    for cell in cells_of("scitrera"):
        indexes = {one.package: one.url for one in cell.indexes}
        assert indexes["torch"] == "https://download.pytorch.org/whl/cu130"
        assert ("transformers==5.3.0" in [o.requirement for o in cell.overrides]) == (
            cell.axes["transformers"] == "5.3.0"
        )

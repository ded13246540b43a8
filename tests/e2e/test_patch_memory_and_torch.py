"""vllm/gpu-memory-utilization-gb and vllm/existing-torch on real vLLM sources.

Whole and weakened.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import ROOT
from support.mutants import SETTINGS, measured, weakened

from imagefactory.inbuild import overlay
from imagefactory.patching import sources

pytestmark = pytest.mark.e2e

GIB, TORCH = "vllm/gpu-memory-utilization-gb", "vllm/existing-torch"
SCRIPTS = ("use_existing_torch.py", "tools/use_existing_torch.py")
WEAK = [
    ("if cache_config.gpu_memory_utilization_gb is not None", "if False"),  # the worker ignores it
    ("margin = GiB_bytes // 2", "margin = 0"),
    ("available < requested_memory + margin", "available < requested_memory"),
    ("import GiB_bytes", "import GB_bytes as GiB_bytes"),
    ("and self.kv_cache_memory_bytes is not None", "and False"),  # no exclusion
    (
        "gpu_memory_utilization_gb=self.gpu_memory_utilization_gb,",
        "",
    ),  # dropped on the way to the config
    ("default=None, gt=0", "default=None, ge=0"),
    ('            "gpu_memory_utilization_gb",', ""),
]
WEAK_BEFORE_0_32 = [
    ("free_memory, init_snapshot.total_memory)", "free_memory, 2 * init_snapshot.total_memory)")
]
WEAK_FROM_0_32 = [
    ("init_snapshot.total_memory,", "init_snapshot.free_memory + external_weight_memory,")
]


@pytest.mark.parametrize("version", ["0.16.0", "0.20.2", "0.29.0", "0.31.0", "0.32.0", "0.33.0"])
def test_the_flag_is_in_no_release_and_comes_with_the_patch(version: str) -> None:
    row = measured(GIB, version)
    assert row.state == "needed", row.reason


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        *(("0.22.1", *pair) for pair in WEAK + WEAK_BEFORE_0_32),
        *(("0.33.0", *pair) for pair in WEAK + WEAK_FROM_0_32),
    ],
)
def test_a_weakened_flag_turns_its_proof_red(
    tmp_path: Path, version: str, old: str, new: str
) -> None:
    row = measured(GIB, version, diff=weakened(GIB, version, [(old, new)], tmp_path))
    assert row.state == "broken", row.reason


@pytest.mark.parametrize("version", ["0.16.0", "0.20.2", "0.25.1", "0.30.0", "0.31.0", "0.33.0"])
def test_upstreams_own_script_leaves_the_installed_torch_alone(version: str) -> None:
    row = measured(TORCH, version)
    assert row.state == "obsolete", row.reason
    assert "and nothing else" in row.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"pyproject.toml"', '"setup.cfg"'),
        ("requirements/**/*.txt", "requirements/*.txt"),
        ('"torch" not in line.lower()', '"torch=" not in line.lower()'),
        ('"torch" not in line.lower()', '"t" not in line.lower()'),
        ('"torch" not in line.lower()', '"torch" not in line.lower() and "numba" not in line'),
    ],
)
def test_a_script_that_does_less_or_more_turns_the_proof_red(
    tmp_path: Path, old: str, new: str
) -> None:
    whole = sources.fetch("vllm", "0.33.0", SETTINGS).root
    for name in ("requirements", "tools"):
        shutil.copytree(whole / name, tmp_path / name)
    for name in ("pyproject.toml", "setup.py"):
        shutil.copyfile(whole / name, tmp_path / name)
    (tmp_path / "setup.cfg").touch()
    script = next(tmp_path / name for name in SCRIPTS if (tmp_path / name).is_file())
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new))
    code, said = overlay.prove(ROOT / "patches" / TORCH / "proof.py", tmp_path)
    assert code == overlay.SYMPTOM, said

"""What runs in the container, with a script as vLLM's uses Ray, and a vLLM that loads files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from imagefactory.tuning import inside

SCRIPT = """
import argparse, json, os
import ray
from ray.experimental.tqdm_ray import tqdm

@ray.remote(num_gpus=1)
class Worker:
    def __init__(self, seed):
        self.device = int(ray.get_gpu_ids()[0])
    def tune(self, size, space):
        return [one for one in tqdm(space)][-1] + size + self.device

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--save-dir"):
        parser.add_argument(name)
    parser.add_argument("--tune", action="store_true")
    args = parser.parse_args()
    with open(os.path.join(args.model, "config.json")) as file:
        experts = json.load(file)["experts"]
    ray.init()
    workers = [Worker.remote(0) for _ in range(int(ray.available_resources()["GPU"]))]
    best = ray.get([workers[0].tune.remote(size, [1, 2]) for size in (10, 20)])
    name = f"E={experts},N=64,device_name=NVIDIA_GB10,dtype=fp8_w8a8,block_shape=[128,64].json"
    with open(os.path.join(args.save_dir, name), "w") as file:
        json.dump(best, file)
"""


class TooLargeError(Exception):
    """As Triton's, which the script catches."""


class Kernel:
    """As Triton's: every other configuration is beyond it."""

    def _do_compile(self, size: int) -> int:
        if size % 2:
            raise RuntimeError("PassManager::run failed\nmodule {")
        return size


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    jit, autotuner = ModuleType("triton.runtime.jit"), ModuleType("triton.runtime.autotuner")
    jit.__dict__["JITFunction"] = type("JITFunction", (Kernel,), {})
    autotuner.__dict__["OutOfResources"] = TooLargeError
    for module in (jit, autotuner):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What vLLM is asked for."""
    found: list[Any] = []

    def get_moe_configs(*words: Any) -> dict[int, Any]:
        found.append(words)
        return {1: {"num_warps": 4}}

    kernel = ModuleType("kernel")
    platform = SimpleNamespace(get_device_name=lambda _: "NVIDIA GB10")
    kernel.__dict__.update(get_moe_configs=get_moe_configs, current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.fused_moe.fused_moe", kernel)
    for name in ("ray", "ray.experimental", "ray.experimental.tqdm_ray"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", "")
    return found


def test_the_script_runs_without_ray_and_vllm_is_asked_for_its_file(
    asked: list[Any], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = inside.tune(str(script), [], {"experts": 8})
    assert json.loads(done["text"]) == [12, 22]
    assert done["name"].startswith("E=8,N=64,")
    assert done["loaded"] == {"1": {"num_warps": 4}}
    assert asked == [(8, 64, "fp8_w8a8", 128, 64)]


def test_a_script_that_writes_no_file_fails(asked: list[Any], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    with pytest.raises(SystemExit, match="wrote 0 files"):
        inside.tune(str(script), [], None)


def test_a_file_without_quantization_is_asked_for_as_such(asked: list[Any], tmp_path: Path) -> None:
    inside.found(tmp_path / "E=8,N=64,device_name=NVIDIA_GB10.json")
    assert asked == [(8, 64, None, None, None)]


def test_a_container_without_a_gpu_says_so(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = ModuleType("torch")
    torch.__dict__["cuda"] = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "argv", ["inside.py", "script.py", "{}"])
    with pytest.raises(SystemExit) as ended:
        inside.main()
    assert ended.value.code == inside.NO_GPU
    assert "no NVIDIA GPU" in capsys.readouterr().out


def test_a_configuration_that_does_not_compile_is_skipped_as_one_that_is_too_large(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    loop = (
        "from triton.runtime.autotuner import OutOfResources\n"
        "from triton.runtime.jit import JITFunction\n"
        "kept = []\n"
        "for size in (1, 2, 3, 4):\n"
        "    try:\n"
        "        kept.append(JITFunction()._do_compile(size))\n"
        "    except OutOfResources:\n"
        "        continue\n"
    )
    script.write_text(loop + SCRIPT.replace("json.dump(best, file)", "json.dump(kept, file)"))
    assert json.loads(inside.tune(str(script), [], {"experts": 8})["text"]) == [2, 4]
    said = "a configuration does not compile: PassManager::run failed\n"
    assert capsys.readouterr().out.count(said) == 2

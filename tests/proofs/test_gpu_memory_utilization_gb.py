"""The proof and the diff of vllm/gpu-memory-utilization-gb.

On a vLLM that is small enough to read.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ROOT, proofs

from imagefactory.inbuild import overlay

FOLDER = ROOT / "patches" / "vllm" / "gpu-memory-utilization-gb"

# Cut down by hand to what a budget goes through; the lines that the diff stands beside are
# upstream's.
CACHE = '''\
from dataclasses import field
from pydantic import Field, field_validator
from vllm.config.utils import config

@config
class CacheConfig:
    """Configuration for the KV cache."""

    block_size: int | None = None
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    num_gpu_blocks: int | None = field(default=None, init=False)

    kv_cache_memory_bytes: int | None = None
    """Ignores the fraction: kv_cache_memory_bytes
    (when not-None) ignores gpu_memory_utilization"""

    kv_offloading_size: float | None = None

    def compute_hash(self) -> str:
        ignored_factors = {
            # Runtime/derived knobs that don't affect compiled graph shape
            "gpu_memory_utilization",
            "num_gpu_blocks",
        }

        from vllm.config.utils import get_hash_factors, hash_factors

        return hash_factors(get_hash_factors(self, ignored_factors))

    @field_validator("block_size", mode="after")
    @classmethod
    def _check(cls, block_size):
        return block_size
'''
ARGS = '''\
import argparse
import dataclasses
from dataclasses import dataclass

from vllm.config import CacheConfig, ModelConfig
from vllm.utils.argparse_utils import FlexibleArgumentParser


def get_kwargs(cls):
    kwargs = {}
    for each in dataclasses.fields(cls):
        kind = float if "float" in str(each.type) else int
        default = getattr(each.default, "default", each.default)
        kwargs[each.name] = {"type": kind, "default": default}
    return kwargs


@dataclass
class EngineArgs:
    """Arguments for vLLM engine."""

    model: str = ModelConfig.model
    block_size: int | None = None
    gpu_memory_utilization: float = CacheConfig.gpu_memory_utilization
    kv_cache_memory_bytes: int | None = CacheConfig.kv_cache_memory_bytes

    @staticmethod
    def add_cli_args(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
        model_kwargs = get_kwargs(ModelConfig)
        parser.add_argument("--model", **model_kwargs["model"])
        cache_kwargs = get_kwargs(CacheConfig)
        cache_group = parser.add_argument_group(title="CacheConfig")
        cache_group.add_argument(
            "--gpu-memory-utilization", **cache_kwargs["gpu_memory_utilization"]
        )
        cache_group.add_argument(
            "--kv-cache-memory-bytes", **cache_kwargs["kv_cache_memory_bytes"]
        )
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace):
        attrs = [attr.name for attr in dataclasses.fields(cls)]
        return cls(**{attr: getattr(args, attr) for attr in attrs if hasattr(args, attr)})

    def create_engine_config(self, usage_context: str | None = None) -> "VllmConfig":
        model_config = self.create_model_config()
        cache_config = CacheConfig(
            block_size=self.block_size,
            gpu_memory_utilization=self.gpu_memory_utilization,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            sliding_window=model_config.get_sliding_window(),
        )
        return VllmConfig(model_config, cache_config)
'''
UTILS = """\
import math

from vllm.config import CacheConfig
from vllm.utils.mem_utils import MemorySnapshot, format_gib


def request_memory(init_snapshot: MemorySnapshot, cache_config: CacheConfig) -> int:
    requested_memory = math.ceil(
        init_snapshot.total_memory * cache_config.gpu_memory_utilization
    )

    if init_snapshot.free_memory < requested_memory:
        raise ValueError("less is free")

    return requested_memory
"""
EXTERNAL = """\
    if external_weight_memory > 0:
        engine_memory = requested_memory - external_weight_memory
        if engine_memory <= 0 or init_snapshot.free_memory < engine_memory:
            raise ValueError("less is left")
        return engine_memory

    if init_snapshot.free_memory < requested_memory:
"""
WORKER = """\
class Worker:
    def init_device(self):
        self.init_snapshot = init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(init_snapshot, self.cache_config)
"""
LLM = """\
class LLM:
    def __init__(self, model: str, *, gpu_memory_utilization: float = 0.9, kv_cache_memory_bytes=None, **kwargs):
        engine_args = EngineArgs(
            model=model,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            **kwargs,
        )
        self.llm_engine = LLMEngine.from_engine_args(engine_args)
"""
PLAIN = {
    "config/cache.py": CACHE,
    "engine/arg_utils.py": ARGS,
    "entrypoints/llm.py": LLM,
    "utils/argparse_utils.py": (
        "import argparse\nclass FlexibleArgumentParser(argparse.ArgumentParser): ...\n"
    ),
    "utils/mem_constants.py": "GB_bytes = 1_000_000_000\nGiB_bytes = 1 << 30\n",
    "utils/mem_utils.py": (
        "from .mem_constants import *\ndef format_gib(b): return str(round(b / GiB_bytes, 2))\n"
    ),
    "v1/worker/gpu_worker.py": WORKER,
    "v1/worker/utils.py": UTILS,
}
WITH_EXTERNAL = {
    **PLAIN,
    "v1/worker/utils.py": UTILS.replace(
        "cache_config: CacheConfig) -> int",
        "cache_config: CacheConfig, external_weight_memory: int = 0) -> int",
    ).replace("    if init_snapshot.free_memory < requested_memory:\n", EXTERNAL),
    "v1/worker/gpu_worker.py": WORKER.replace(
        "self.cache_config)", "self.cache_config, external_weight_memory)"
    ),
}
TEXTS = {"0.16.diff": PLAIN, "0.32.diff": WITH_EXTERNAL}


def tree(folder: Path, diff: str, *, patched: bool = True) -> Path:
    for name, text in TEXTS[diff].items():
        (folder / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / name).write_text(text)
    if patched:
        done = overlay.git_apply(folder, FOLDER / diff)
        assert done.returncode == 0, done.stderr
    return folder


def judged(folder: Path) -> tuple[int, str]:
    return proofs.judged("vllm/gpu-memory-utilization-gb", folder)


def changed(folder: Path, name: str, old: str, new: str) -> Path:
    file = folder / "vllm" / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return folder


@pytest.mark.parametrize("diff", TEXTS)
def test_a_vllm_without_the_flag_tells_the_user_that_it_knows_no_such_argument(
    tmp_path: Path, diff: str
) -> None:
    code, said = judged(tree(tmp_path, diff, patched=False))
    assert code == 1
    assert "unrecognized arguments: --gpu-memory-utilization-gb 108" in said


@pytest.mark.parametrize("diff", TEXTS)
def test_with_the_diff_the_budget_in_gib_reaches_the_worker(tmp_path: Path, diff: str) -> None:
    code, said = judged(tree(tmp_path, diff))
    assert code == 0, said


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        (
            "v1/worker/utils.py",
            "if cache_config.gpu_memory_utilization_gb is not None",
            "if False",
            "100.143 GiB",
        ),
        ("v1/worker/utils.py", "margin = GiB_bytes // 2", "margin = 0", "no margin"),
        (
            "v1/worker/utils.py",
            "margin = GiB_bytes // 2",
            "margin = GiB_bytes",
            "must be left over",
        ),
        (
            "v1/worker/utils.py",
            "import GiB_bytes",
            "import GB_bytes as GiB_bytes",
            "108 requests 100.583 GiB",
        ),
        ("v1/worker/utils.py", "from vllm.utils.mem_constants import GiB_bytes\n", "", "NameError"),
        (
            "v1/worker/utils.py",
            '"hold --gpu-memory-utilization-gb "',
            '"hold "',
            "without saying what was asked",
        ),
        (
            "engine/arg_utils.py",
            "and self.kv_cache_memory_bytes is not None",
            "and False",
            "accepted",
        ),
        (
            "engine/arg_utils.py",
            "            gpu_memory_utilization_gb=self.gpu_memory_utilization_gb,\n",
            "",
            "100.143",
        ),
        (
            "engine/arg_utils.py",
            "CacheConfig.gpu_memory_utilization_gb\n",
            "64\n",
            "LLM(kv_cache_memory_bytes=...) is refused",
        ),
        ("config/cache.py", "default=None, gt=0", "default=None, ge=0", "=0 is accepted"),
        ("config/cache.py", "default=None, gt=0", "default=None", "=-1 is accepted"),
        ("config/cache.py", ", allow_inf_nan=False", "", "=inf is accepted"),
        ("config/cache.py", "utilization_gb: float", "utilization_gb: int", "107.5"),
        (
            "config/cache.py",
            '"gpu_memory_utilization_gb",\n',
            "\n",
            "leads to other compiled graphs",
        ),
        (
            "entrypoints/llm.py",
            "            **kwargs,\n",
            "",
            "LLM(gpu_memory_utilization_gb=108) requests",
        ),
        (
            "v1/worker/utils.py",
            "    return requested_memory",
            "    return requested_memory - 1",
            "without the flag",
        ),
    ],
)
def test_a_flag_that_is_there_in_part_is_a_symptom(
    tmp_path: Path, name: str, old: str, new: str, says: str
) -> None:
    code, said = judged(changed(tree(tmp_path, "0.16.diff"), name, old, new))
    assert code == 1, said
    assert says in said


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "init_snapshot.free_memory + external_weight_memory,",
            "init_snapshot.free_memory,",
            "does not hold",
        ),
        ("return engine_memory", "return requested_memory", "not part of the 108 GiB"),
        (
            "if available < requested_memory + margin",
            "if available < requested_memory",
            "no margin beside weights",
        ),
    ],
)
def test_weights_of_another_process_are_a_part_of_the_budget(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    code, said = judged(changed(tree(tmp_path, "0.32.diff"), "v1/worker/utils.py", old, new))
    assert code == 1, said
    assert says in said


def test_a_config_that_refuses_what_its_own_worker_sets_is_a_symptom(tmp_path: Path) -> None:
    check = """
    @field_validator("gpu_memory_utilization_gb", mode="after")
    @classmethod
    def _exclude(cls, value, info):
        if value is not None and info.data["kv_cache_memory_bytes"] is not None:
            raise ValueError("gpu_memory_utilization_gb excludes kv_cache_memory_bytes")
        return value

    def compute_hash("""
    code, said = judged(
        changed(tree(tmp_path, "0.16.diff"), "config/cache.py", "\n    def compute_hash(", check)
    )
    assert code == 1
    assert "a worker that copies its config" in said


@pytest.mark.parametrize("name", PLAIN)
def test_a_layout_that_the_proof_does_not_know_is_not_judged(tmp_path: Path, name: str) -> None:
    folder = tree(tmp_path, "0.16.diff")
    (folder / "vllm" / name).unlink()
    code, said = judged(folder)
    assert code == 3
    assert said.startswith("inconclusive: ")


def test_the_fraction_that_vllm_logs_is_the_budgets(tmp_path: Path) -> None:
    source = (tree(tmp_path, "0.16.diff") / "vllm/v1/worker/utils.py").read_text()
    space: dict[str, object] = {
        "GiB_bytes": 1 << 30,
        "format_gib": str,
        "MemorySnapshot": object,
        "CacheConfig": object,
    }
    body = "import math\n" + source[source.index("def request_memory") :]
    exec(body, space)  # noqa: S102

    class Thing:
        free_memory = total_memory = 120 << 30
        gpu_memory_utilization, gpu_memory_utilization_gb = 0.9, 90

    asked = Thing()
    request = space["request_memory"]
    assert callable(request)
    assert request(Thing, asked) == 90 << 30
    assert asked.gpu_memory_utilization == 0.75


def test_the_proof_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    folder = tree(tmp_path, "0.32.diff")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    judged(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

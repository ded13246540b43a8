"""Values of options, keys inside JSON and names of parsers that a release does not have."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from support.machine import settings

from imagefactory.patching.sources import SourceTree
from imagefactory.planning import vllm_fields, vllm_problems, vllm_settings
from imagefactory.planning.vllm_problems import Finding
from imagefactory.planning.vllm_settings import VllmSettings

FILES = {
    "engine/arg_utils.py": """
class EngineArgs:
    kv_cache_dtype: CacheDType | str = 'auto'
    quantization: QuantizationMethods | str | None = None
    attention_backend: AttentionBackendEnum | None = None
    distributed_executor_backend: str | DistributedExecutorBackend | None = None
    reasoning_parser: str = ''
    reasoning_parser_plugin: str | None = None
    compilation_config: CompilationConfig = None
    speculative_config: dict[str, Any] | None = None
    additional_config: dict[str, Any] = None
    kv_events_config: KVEventsConfig | None = None
    tensor_parallel_size: int = 1
    optimization_level: OptimizationLevel = 2
    def add_cli_args(parser):
        group.add_argument("--tensor-parallel-size", "-tp", **kwargs["tensor_parallel_size"])
        group.add_argument("--nnodes", "-n", **kwargs["nnodes"])
        group.add_argument("--compilation-config", "-cc", **kwargs["compilation_config"])
        group.add_argument("--quantization", "-q", **kwargs["quantization"])
""",
    "model_executor/models/registry.py": """
_TEXT_GENERATION_MODELS = {"Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM")}
_MULTIMODAL_MODELS: dict = {"NewForCausalLM": ("new", "NewForCausalLM")}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS}
_PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.9"}
_OOT_SUPPORTED_MODELS = {"PluginForCausalLM": "https://example.org"}
OTHER = {"NoModel": 1}
""",
    "config/cache.py": "CacheDType = Literal['auto', 'fp8', 'fp8_e4m3']\n",
    "config/parallel.py": "DistributedExecutorBackend = Literal['ray', 'mp']\n",
    "config/compilation.py": """
Mode = Literal['eager', 'piecewise']
class CompilationMode(enum.IntEnum):
    NONE = 0
class BaseConfig:
    inherited: int = 1
class PassConfig(BaseConfig):
    fuse: bool = False
class CompilationConfig:
    mode: CompilationMode = None
    graphs: Mode = 'eager'
    pass_config: PassConfig = None
    parent: CompilationConfig | None = None
    more: dict[str, Any] = None
""",
    "config/speculative.py": """
MTPModelTypes = Literal['mtp', 'other_mtp']
Method = Literal['ngram', MTPModelTypes]
class SpeculativeConfig:
    method: Method | None = None
    num_speculative_tokens: int = 1
""",
    "entrypoints/openai/cli_args.py": "class FrontendArgs:\n    tool_call_parser: str = ''\n",
    "model_executor/layers/quantization/__init__.py": (
        "QuantizationMethods = Literal['fp8', 'modelopt']\n"
    ),
    "reasoning/__init__.py": "_REASONING_PARSERS_TO_REGISTER = {'qwen3': ('a', 'B')}\n",
    "tool_parsers/__init__.py": (
        "_TOOL_PARSERS_TO_REGISTER: dict = {'hermes': ('a', 'B'), 'qwen3_xml': ('c', 'D')}\n"
    ),
    "v1/attention/backends/registry.py": (
        "class AttentionBackendEnum(Enum):\n    FLASH_ATTN = 'x.y'\n    TRITON_ATTN = 'x.z'\n"
    ),
}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> VllmSettings:
    root = tmp_path_factory.mktemp("tree")
    for name, text in FILES.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return vllm_settings.read(root)


def found(known: VllmSettings, *arguments: str, release: str = "0.33.0") -> list[Finding]:
    return list(
        vllm_problems.judge(arguments, (), known, frozenset(), release=release, of="recipe x")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "--kv-cache-dtype fp8",
        "-tp 2",
        "-tp=2 -q modelopt",
        "-O3",
        "-O=3",
        "-O 3",
        "--tensor-parallel-size -1",
        "--quantization=modelopt",
        "--attention-backend TRITON_ATTN",
        "--attention-backend flash-attn",
        "--distributed-executor-backend mp",
        "--distributed-executor-backend my.module.Executor",
        "--reasoning-parser qwen3",
        "--tool-call-parser hermes",
        "--reasoning-parser-plugin /p.py --reasoning-parser mine",
        '--compilation-config {"mode":3,"pass_config":{"fuse":true,"inherited":2}}',
        '--compilation-config {"graphs":"eager","more":{"anything":"x"}}',
        "--compilation-config.mode=3",
        "-cc.mode=3",
        "-cc.pass_config.fuse true",
        "-n2",
        "--compilation-config.pass_config.fuse true",
        '--compilation-config.pass_config {"fuse":true}',
        "--compilation-config.more.anything x",
        '--speculative-config {"method":"other_mtp","num_speculative_tokens":2}',
        '--additional-config {"anything":1}',
        '--kv-events-config {"unread":1}',
    ],
)
def test_what_the_release_takes_is_no_problem(known: VllmSettings, arguments: str) -> None:
    assert found(known, *arguments.split(" ")) == []


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        ("--kv-cache-dtype fp9", "'fp9' for --kv-cache-dtype", "write fp8"),
        ("-q nvfp4", "'nvfp4' for --quantization", "write one of fp8, modelopt"),
        ("-q=nvfp4", "'nvfp4' for --quantization", "write one of fp8, modelopt"),
        ("-O4", "'4' for --optimization-level", "write one of 0, 1, 2, 3"),
        ("-O fast", "'fast' for --optimization-level", "write one of 0, 1, 2, 3"),
        ("-tpp 2", "does not know -tpp", "vLLM 0.33.0 has -tp"),
        ("-tpp=2", "does not know -tpp", "vLLM 0.33.0 has -tp"),
        ("-x 2", "does not know -x", "remove it"),
        ("--quantization nvfp4", "'nvfp4' for --quantization", "write one of fp8, modelopt"),
        ("--attention-backend flashing", "'flashing' for --attention-backend", "flash_attn"),
        ("--reasoning-parser qwen4", "'qwen4' for --reasoning-parser", "write qwen3"),
        ("--reasoning-parser nano_v3", "'nano_v3' for", "write nemotron_v3, which this release"),
        ("--tool-call-parser pythonic", "'pythonic' for --tool-call-parser", "hermes, qwen3_xml"),
        ("-cc.level=3", "no --compilation-config.level", "write mode, which"),
        ("-nope 2", "does not know -nope", "remove it"),
        ("-tp2", "does not know -tp2", "vLLM 0.33.0 has -tp"),
        ("--compilation-config.level=3", "no --compilation-config.level", "write mode, which"),
        ('--compilation-config {"level":3}', "no --compilation-config.level", "write mode, which"),
        ('--compilation-config {"grafs":"eager"}', "no --compilation-config.grafs", "graphs"),
        ('--compilation-config {"graphs":"e"}', "'e' for --compilation-config.graphs", "write one"),
        ("--compilation-config.graphs piecewize", "'piecewize' for", "write piecewise"),
        ('--compilation-config {"pass_config":{"fuze":1}}', "pass_config.fuze", "write fuse"),
        ("--compilation-config.pass_config.fuze 1", "pass_config.fuze", "write fuse"),
        ("--compilation-config 3", "'3' for --compilation-config", "an object in JSON"),
        ("--compilation-config {", "'{' for --compilation-config", "an object in JSON"),
        ('--speculative-config {"method":"mpt"}', "'mpt' for --speculative-config.method", "mtp"),
        ('--speculative-config {"tokens":1}', "no --speculative-config.tokens", "num_spec"),
        ("--speculative-disable-by-batch-size 32", "does not know", "num_speculative_tokens_per"),
    ],
)
def test_what_the_release_does_not_take_is_refused(
    known: VllmSettings, arguments: str, what: str, fix: str
) -> None:
    (one,) = found(known, *arguments.split(" "))
    assert what in one.what
    assert "recipe x" in one.what
    assert fix in one.fix


@pytest.mark.parametrize(
    ("release", "fix"), [("0.23.0", ""), ("0.24.0", "--moe-backend"), ("main", "--moe-backend")]
)
def test_a_replacement_is_that_of_the_release(release: str, fix: str) -> None:
    replacement = vllm_problems.replacement("VLLM_USE_FLASHINFER_MOE_FP4", release)
    assert fix in replacement
    assert bool(fix) == bool(replacement)


def test_long_lists_of_values_are_cut(known: VllmSettings) -> None:
    values = tuple(f"{number:02}" for number in range(30))
    many = VllmSettings(variables=frozenset(), options=frozenset({"--a"}), choices={"--a": values})
    (one,) = found(many, "--a", "zz")
    assert one.fix.endswith("10, 11 and 18 more")


def test_what_is_read_survives_as_json(known: VllmSettings) -> None:
    fields = json.loads(json.dumps(known.fields))
    assert set(fields["--compilation-config.pass_config"]) == {"inherited", "fuse"}
    assert fields["--speculative-config"]["method"] == ["mtp", "ngram", "other_mtp"]


def test_architectures_are_those_of_the_registry_that_are_still_there(known: VllmSettings) -> None:
    assert known.architectures == {"Qwen3ForCausalLM", "NewForCausalLM"}


def test_what_was_read_is_the_same_from_the_cache(tmp_path: Path, known: VllmSettings) -> None:
    for name, text in FILES.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = SourceTree(project="vllm", version="1", root=tmp_path, sha256="0")
    own = settings(tmp_path / "machine")
    assert [vllm_settings.of_tree(tree, own) for _ in range(2)] == [known, known]


def test_a_class_in_itself_is_read_once() -> None:
    body = ast.parse("class A:\n    a: A\n    b: B\nclass B:\n    c: int\n").body
    classes = {one.name: one for one in body if isinstance(one, ast.ClassDef)}
    found = vllm_fields._below("--x", "A", classes, {})
    assert found == {"--x": {"a": (), "b": ()}, "--x.b": {"c": ()}}

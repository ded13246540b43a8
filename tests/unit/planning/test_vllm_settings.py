"""Settings that a release of vLLM does not support are errors before anything is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.machine import settings
from support.matrices import GOOD
from support.patches import make
from support.plans import inputs_with
from support.project import project_lock, stock_patches

from imagefactory.errors import InputError, Problem
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.patching import catalog
from imagefactory.planning import planning, vllm_choices, vllm_settings

FILES = {
    "vllm/envs.py": (
        'environment_variables: dict[str, object] = {"VLLM_KNOWN": 1, "VLLM_OTHER": 2}\n'
    ),
    "vllm/loader.py": (
        'environ.get("VLLM_READ")\ngetenv("VLLM_GOT")\nenviron["VLLM_INDEXED"]\n"VLLM_NAMED"\n'
    ),
    "vllm/engine/arg_utils.py": (
        'group.add_argument("--moe-backend", "-mb")\n'
        "class EngineArgs:\n"
        "    dtype: ModelDType = ModelConfig.dtype\n"
        "    kv_cache_dtype: CacheDType | str = CacheConfig.kv_cache_dtype\n"
        "    load_format: Literal['auto', 'dummy'] = 'auto'\n"
        "    policy: Literal['fcfs'] | None = None\n"
        "    width: Width = 1\n"
        "load['load_format']['choices'].append('more')\n"
    ),
    "vllm/config/model.py": (
        "ModelDType = Literal['auto', 'half', 'bfloat16']\n"
        "CacheDType = Literal['auto']\n"
        "class ModelConfig:\n"
        "    dtype: ModelDType | torch.dtype = 'auto'\n"
        "class OtherConfig:\n"
        "    policy: Literal['priority'] = 'priority'\n"
    ),
    "vllm/entrypoints/openai/cli_args.py": (
        "class FrontendArgs:\n    tool_call_parser: str = ''\n    plain = 1\n"
    ),
}


@pytest.fixture
def found(tmp_path: Path) -> vllm_settings.VllmSettings:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return vllm_settings.read(tmp_path)


def cell_with(tmp_path: Path, env: str = "{}", args: str = "[]") -> Cell:
    text = GOOD.replace("    env: {A: b}\n", f"    env: {env}\n    serve_args: {args}\n")
    assert text != GOOD
    (tmp_path / "matrix.yaml").write_text(text)
    return matrix.load(tmp_path / "matrix.yaml").cells[0]


@pytest.mark.parametrize(
    "setting",
    [
        *("VLLM_KNOWN", "VLLM_READ", "VLLM_GOT", "VLLM_INDEXED"),
        *(
            "--moe-backend",
            "--moe_backend=marlin",
            "--no-moe-backend",
            "--tool-call-parser",
            "--moe-backend.x",
        ),
    ],
)
def test_settings_that_the_release_reads_are_known(
    found: vllm_settings.VllmSettings, setting: str
) -> None:
    assert found.knows(setting)


@pytest.mark.parametrize("setting", ["VLLM_NAMED", "VLLM_GONE", "--gone", "--plain", "--no-gone"])
def test_settings_that_the_release_only_mentions_or_lacks_are_unknown(
    found: vllm_settings.VllmSettings, setting: str
) -> None:
    assert not found.knows(setting)


def test_an_unknown_variable_and_an_unknown_option_are_reported_with_their_lines(
    tmp_path: Path, found: vllm_settings.VllmSettings
) -> None:
    cell = cell_with(
        tmp_path,
        "{VLLM_KNOWN: '1', VLLM_KNOWM: '1', HF_HOME: /x}",
        '["--moe-backend", "--gone", "value"]',
    )
    reported = list(vllm_settings.unknown_settings(cell, found, ()))
    lines = (tmp_path / "matrix.yaml").read_text().splitlines()
    env, args = (
        next(n for n, line in enumerate(lines, 1) if line.startswith(f"    {key}"))
        for key in ("env", "serve_args")
    )
    assert [(p.code, p.where) for p in reported] == [
        ("setting-dead", f"{tmp_path / 'matrix.yaml'}:{env}"),
        ("setting-dead", f"{tmp_path / 'matrix.yaml'}:{args}"),
    ]
    assert "would ignore it" in reported[0].what
    assert reported[0].fix == "vLLM 0.22.1 has VLLM_KNOWN"
    assert "--gone" in reported[1].what
    assert "would not start" in reported[1].what


def test_an_option_that_a_patch_of_the_series_adds_is_known(
    tmp_path: Path, found: vllm_settings.VllmSettings
) -> None:
    make(tmp_path)
    diff = tmp_path / "patches/vllm/one/a.diff"
    diff.write_text(
        '--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-two\n+parser.add_argument("--gone")\n'
    )
    cell = cell_with(tmp_path, args='["--gone=1"]')
    steps = catalog.series(catalog.load(tmp_path / "patches"), cell)
    assert list(vllm_settings.unknown_settings(cell, found, steps)) == []
    assert len(list(vllm_settings.unknown_settings(cell, found, ()))) == 1


def test_a_flavor_without_vllm_settings_has_none_to_check(tmp_path: Path) -> None:
    assert vllm_settings.settings_of(cell_with(tmp_path, "{TORCH_CUDA_ARCH_LIST: 12.1a}")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        '["--dtype", "half"]',
        '["--dtype=BFloat16"]',
        '["--kv-cache-dtype", "anything"]',
        '["--load-format", "anything"]',
        '["--policy", "fcfs"]',
        '["--policy", "priority"]',
        '["--width", "anything"]',
        '["--dtype", "--policy", "fcfs"]',
    ],
)
def test_a_value_that_the_release_may_take_is_no_problem(
    tmp_path: Path, found: vllm_settings.VllmSettings, arguments: str
) -> None:
    cell = cell_with(tmp_path, args=arguments)
    assert list(vllm_settings.unknown_settings(cell, found, ())) == []


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ('["--dtype", "nonsense"]', "write one of auto, bfloat16, half"),
        ('["--dtype=bfloat61"]', "write bfloat16"),
        ('["--policy", "first"]', "write one of fcfs, priority"),
    ],
)
def test_a_value_that_the_release_does_not_take_is_refused(
    tmp_path: Path, found: vllm_settings.VllmSettings, arguments: str, fix: str
) -> None:
    cell = cell_with(tmp_path, args=arguments)
    (problem,) = vllm_settings.unknown_settings(cell, found, ())
    assert problem.code == "setting-value"
    assert "would not start" in problem.what
    assert problem.fix == fix
    assert (problem.where or "").startswith(str(tmp_path / "matrix.yaml"))


def test_options_and_their_values_are_read_in_both_spellings() -> None:
    assert list(vllm_choices.given(["--a_b", "1", "-x", "--c=d=e", "--flag", "--g"])) == [
        ("--a-b", "1"),
        ("--c", "d=e"),
    ]


def test_a_releases_settings_are_read_once_and_every_unknown_one_stops_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = replace(inputs_with(project_lock(), settings(tmp_path)), patches=stock_patches())
    cells = inputs.matrix.cells
    asked: list[tuple[str, str]] = []

    def of_cell(cell: Cell, *_: object) -> object:
        asked.append((cell.flavor.name, cell.vllm))
        return None if cell.flavor.name == "cpu" else object()

    def unknown(cell: Cell, *_: object) -> list[Problem]:
        return [Problem(code="x", what=cell.name, fix="y")]

    monkeypatch.setattr(vllm_settings, "settings_of", lambda _: ["X"])
    monkeypatch.setattr(vllm_settings, "of_cell", of_cell)
    monkeypatch.setattr(vllm_settings, "unknown_settings", unknown)
    with pytest.raises(InputError) as caught:
        planning.plan([*cells, *cells], planning.bases(cells, (), inputs.lock), inputs)
    assert len(asked) == len({*asked}) > 1
    found = {one.what for one in caught.value.problems}
    assert found == {cell.name for cell in cells if cell.flavor.name != "cpu"}

"""Settings that a release of vLLM does not support are errors before anything is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.machine import settings
from support.matrices import GOOD
from support.patches import make
from support.plans import inputs_with
from support.project import project_lock, project_matrix, stock_patches

from imagefactory.errors import InputError, Problem, SetupError
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.patching import catalog, sources
from imagefactory.patching.sources import SourceTree
from imagefactory.planning import planning, vllm_choices, vllm_problems, vllm_settings

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
    reported = list(vllm_problems.of_flavor(cell, found, ()))
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
    assert list(vllm_problems.of_flavor(cell, found, steps)) == []
    assert len(list(vllm_problems.of_flavor(cell, found, ()))) == 1


def test_a_flavor_without_vllm_settings_has_none_to_check(tmp_path: Path) -> None:
    assert vllm_problems.settings_of(cell_with(tmp_path, "{TORCH_CUDA_ARCH_LIST: 12.1a}")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        '["--dtype", "half"]',
        '["--dtype=BFloat16"]',
        '["--kv-cache-dtype", "auto"]',
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
    assert list(vllm_problems.of_flavor(cell, found, ())) == []


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
    (problem,) = vllm_problems.of_flavor(cell, found, ())
    assert problem.code == "setting-value"
    assert "would not start" in problem.what
    assert problem.fix == fix
    assert (problem.where or "").startswith(str(tmp_path / "matrix.yaml"))


def test_options_and_their_values_are_read_in_both_spellings() -> None:
    assert list(vllm_choices.given(["--a_b", "1", "-x", "--c=d=e", "--flag", "--g"])) == [
        ("--a-b", "1"),
        ("--c", "d=e"),
    ]


def test_the_settings_of_a_release_are_kept_by_the_hash_of_its_sources(
    tmp_path: Path,
    found: vllm_settings.VllmSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = SourceTree(project="vllm", version="0.22.1", root=tmp_path, sha256="a" * 64)
    asked: list[str] = []

    def of_cell(project: str, *_: object) -> SourceTree:
        asked.append(project)
        return tree

    monkeypatch.setattr(sources, "of_cell", of_cell)
    cell, using = project_matrix().cells[0], settings(tmp_path)

    def read() -> vllm_settings.VllmSettings | None:
        return vllm_settings.of_cell(cell, project_lock(), using)

    assert read() == found
    (kept,) = (using.cache / "vllm-settings").iterdir()
    assert kept.name == f"{tree.sha256}.json"
    monkeypatch.setattr(vllm_settings, "read", lambda _: None)
    assert read() == found
    for spoilt in ("[", "{}", "[]", '{"variables": [], "options": [], "choices": []}'):
        kept.write_text(spoilt)
        monkeypatch.setattr(vllm_settings, "read", lambda _: found)
        assert read() == found
        assert kept.read_text() != spoilt
    assert {*asked} == {"vllm"}

    def missing(*_: object) -> SourceTree:
        raise SetupError(Problem(code="x", what="no sources", fix="f"))

    monkeypatch.setattr(sources, "of_cell", missing)
    assert read() is None
    assert f"not checked against vLLM {cell.vllm}: no sources" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("environment_variables = {'VLLM_A': 1, NAME: 2, **more}\n", ["VLLM_A"]),
        ("environment_variables: dict = {'VLLM_A': 1}\n", ["VLLM_A"]),
        ("a = environment_variables = {'VLLM_A': 1}\n", ["VLLM_A"]),
        ("if x:\n    environment_variables = {'VLLM_A': 1}\n", ["VLLM_A"]),
        ("environment_variables = other = None\n", []),
        ("variables = {'VLLM_A': 1}\nx.environment_variables = {'VLLM_B': 1}\n", []),
        ("environment_variables.update({'VLLM_A': 1})\n", []),
    ],
)
def test_only_the_table_of_variables_declares_them(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/envs.py").write_text(text)
    assert sorted(vllm_settings.read(tmp_path).variables) == names


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        ("Literal['a', 'b']", ("a", "b")),
        ("Literal['a']", ("a",)),
        ("Literal['a', None, 1]", ("1", "a")),
        ("Literal['a'] | None", ("a",)),
        ("None | torch.dtype | Literal['a']", ("a",)),
        ("Named", ("n",)),
        ("Named | Literal['a']", ("a", "n")),
        ("Literal['a'] | str", ()),
        ("str | Literal['a']", ()),
        ("Literal[a]", ()),
        ("Literal['a', b]", ()),
        ("list[Literal['a']]", ()),
        ("Unknown", ()),
        ("Nested", ()),
        ("None", ()),
        ("Literal['a'] & Named", ()),
    ],
)
def test_values_are_known_only_where_the_type_lists_all_of_them(
    tmp_path: Path, annotation: str, values: tuple[str, ...]
) -> None:
    named = "Named = Literal['n']\nNested = Optional[Named]\nx, y = 1, 2\n"
    engine = f"{named}class EngineArgs:\n    an_option: {annotation} = 1\n    other: int = 2\n"
    (tmp_path / "vllm/engine").mkdir(parents=True)
    assert vllm_choices.read(tmp_path) == {}
    (tmp_path / "vllm/engine/arg_utils.py").write_text(engine)
    assert vllm_choices.read(tmp_path) == ({"--an-option": values} if values else {})
    (tmp_path / "vllm/config").mkdir()
    config = "class XConfig:\n    an_option: Literal['z'] = 'z'\n    foreign: Literal['f'] = 'f'\n"
    (tmp_path / "vllm/config/x.py").write_text(config)
    more = () if annotation == "None" else values
    is_open = not more and annotation != "None"
    expected = {} if is_open else {"--an-option": tuple(sorted({*more, "z"}))}
    assert vllm_choices.read(tmp_path) == expected


def test_values_that_vllm_looks_up_are_known_unless_the_command_line_extends_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "vllm/engine").mkdir(parents=True)
    (tmp_path / "vllm/config").mkdir()
    (tmp_path / "vllm/config/cache.py").write_text("CacheDType = Literal['auto', 'fp8']\n")
    engine = tmp_path / "vllm/engine/arg_utils.py"
    engine.write_text("class EngineArgs:\n    kv_cache_dtype: str = 'auto'\n")
    assert vllm_choices.read(tmp_path) == {"--kv-cache-dtype": ("auto", "fp8")}
    more = "cache_kwargs['kv_cache_dtype']['choices'].append('more')\n"
    engine.write_text(engine.read_text() + more)
    assert vllm_choices.read(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "pairs"),
    [
        ("--a 1", [("--a", "1")]),
        ("--a_b=1", [("--a-b", "1")]),
        ("--a=", [("--a", "")]),
        ("--a -1", []),
        ("--a --b 2", [("--b", "2")]),
        ("-a 1", []),
        ("a 1 --b", []),
    ],
)
def test_an_option_has_a_value_if_one_follows_it(
    arguments: str, pairs: list[tuple[str, str]]
) -> None:
    assert list(vllm_choices.given(arguments.split())) == pairs


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

    monkeypatch.setattr(vllm_problems, "settings_of", lambda _: ["X"])
    monkeypatch.setattr(vllm_settings, "of_cell", of_cell)
    monkeypatch.setattr(vllm_problems, "of_flavor", unknown)
    with pytest.raises(InputError) as caught:
        planning.plan([*cells, *cells], planning.bases(cells, (), inputs.lock), inputs)
    assert len(asked) == len({*asked}) > 1
    found = {one.what for one in caught.value.problems}
    assert found == {cell.name for cell in cells if cell.flavor.name != "cpu"}

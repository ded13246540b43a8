"""What a release of vLLM says about tuning, read from its own sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import SetupError, fail
from imagefactory.patching.sources import SourceTree

#: vLLM's own script, which its wheel does not have.
SCRIPT = "benchmarks/kernels/benchmark_moe.py"
_KERNEL = "vllm/model_executor/layers/fused_moe/fused_moe.py"
_DTYPES = "vllm/model_executor/layers/fused_moe/config.py"
#: How vLLM names a file: a release that does it in another way is not read.
_NAME = 'f"E={E},N={N},device_name={device_name}{dtype_selector}{block_shape_selector}.json"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of vLLM, as far as tuning goes.

    Attributes:
        version: the release.
        script: its ``benchmark_moe.py``.
        tunes: the values of the script's ``--dtype``.
        dtypes: those that the name of a file may have.
        required: the keys that each configuration has.
        optional: further keys that it may have on an NVIDIA GPU.
        batch_sizes: those that the script tries by default.
    """

    version: str
    script: Path
    tunes: tuple[str, ...]
    dtypes: frozenset[str]
    required: frozenset[str]
    optional: frozenset[str]
    batch_sizes: tuple[int, ...]


def read(tree: SourceTree) -> Release:
    """Read the sources of a release. Raises SetupError if they say it in another way."""
    try:
        script, kernel, dtypes = (
            (tree.root / name).read_text(encoding="utf-8") for name in (SCRIPT, _KERNEL, _DTYPES)
        )
        parsed = ast.parse(script)
        keys = frozenset(_keys(_function(parsed, "sort_config")))
        found = Release(
            version=tree.version,
            script=tree.root / SCRIPT,
            tunes=tuple(_choices(parsed, "--dtype")),
            dtypes=frozenset(_returned(_function(ast.parse(dtypes), "_get_config_dtype_str"))),
            required=keys,
            optional=frozenset(_keys(_function(ast.parse(kernel), "get_default_config"))) - keys,
            batch_sizes=_batch_sizes(_function(parsed, "main")),
        )
    except (OSError, SyntaxError, LookupError, ValueError) as error:
        raise _unreadable(tree, str(error)) from None
    if _NAME not in kernel or not (found.tunes and found.dtypes and found.required):
        raise _unreadable(tree, "they say it in another way than all releases from 0.16 to 0.33")
    return found


def _unreadable(tree: SourceTree, why: str) -> Exception:
    what = f"the sources of vLLM {tree.version} do not say how it is tuned: {why}"
    return fail(SetupError, "tune-sources", what, fix="report it, with the release")


def _function(module: ast.Module, name: str) -> ast.FunctionDef:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"there is no {name}")


def _keys(node: ast.AST) -> Iterator[str]:
    """Keys of the dictionaries below ``node``, but not those of ``{...} if condition else {}``.

    Only other GPUs than NVIDIA's have the latter, and SPLIT_K, which the kernel's defaults have.
    """
    if isinstance(node, ast.IfExp):
        return
    if isinstance(node, ast.Dict):
        keys = (key.value for key in node.keys if isinstance(key, ast.Constant))
        yield from (key for key in keys if isinstance(key, str))
    for child in ast.iter_child_nodes(node):
        yield from _keys(child)


def _returned(function: ast.FunctionDef) -> Iterator[str]:
    """The texts that a function returns."""
    for node in ast.walk(function):
        match node:
            case ast.Return(value=ast.Constant(value=str() as text)):
                yield text


def _choices(module: ast.Module, option: str) -> Iterator[str]:
    """The ``choices`` of an option of argparse."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and any(
            isinstance(word, ast.Constant) and word.value == option for word in node.args
        ):
            for keyword in node.keywords:
                if keyword.arg == "choices":
                    yield from ast.literal_eval(keyword.value)


def _batch_sizes(function: ast.FunctionDef) -> tuple[int, ...]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "batch_sizes"
            and isinstance(node.value, ast.List)
        ):
            return tuple(ast.literal_eval(node.value))
    raise LookupError("there is no list of batch sizes")

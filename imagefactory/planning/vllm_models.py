"""The architectures of models that a vLLM release has, read from its own registry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_REGISTRY = "vllm/model_executor/models/registry.py"
#: Tables of architectures that a release does not have any more, or only with a plugin.
_GONE = frozenset({"_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS"})


def read(root: Path) -> frozenset[str]:
    """Names as in the ``architectures`` of a config.json; empty if there is no registry."""
    path = root / _REGISTRY
    return frozenset(_listed(path.read_text(encoding="utf-8"))) if path.is_file() else frozenset()


def _listed(text: str) -> Iterator[str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if any(name.endswith("_MODELS") for name in names) and not names & _GONE:
                keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
                yield from (key for key in keys if isinstance(key, str))

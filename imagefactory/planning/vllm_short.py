"""Short options of a vLLM release, such as ``-tp``, read from its own sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: What ``-O3`` means, and its values; the parser of all releases from 0.16 on has it.
LEVEL, LEVELS = "--optimization-level", ("0", "1", "2", "3")


def read(root: Path) -> dict[str, str]:
    """Short option -> the long one, for the options of the engine and of ``vllm serve``."""
    files = [
        root / "vllm/engine/arg_utils.py",
        *sorted((root / "vllm/entrypoints").rglob("cli_args.py")),
    ]
    found: dict[str, str] = {}
    for path in (one for one in files if one.is_file()):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                names = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
                options = [name for name in names if name.startswith("--")]
                short = [name for name in names if re.fullmatch(r"-[A-Za-z]+", name)]
                found |= dict.fromkeys(short, options[0]) if options else {}
    return found


def expanded(arguments: Iterable[str], short: Mapping[str, str]) -> Iterator[str]:
    """``arguments`` with long options for short ones; all other words are as they were."""
    for word in arguments:
        name, equals, value = word.partition("=")
        option = name.partition(".")[0]  # `-cc.mode` is a key of what `-cc` sets
        if name == "-O":
            yield f"{LEVEL}{equals}{value}"
        elif word.startswith("-O"):
            yield f"{LEVEL}={word[2:]}"
        elif word[:2] in short and word[2:].isdigit():
            yield f"{short[word[:2]]}={word[2:]}"
        else:
            yield f"{short.get(option, option)}{word[len(option) :]}"


def unknown(words: Iterable[str]) -> Iterator[str]:
    """The short options that are left in what ``expanded`` gave, without their values."""
    return (word.partition("=")[0] for word in words if re.match(r"-[A-Za-z]", word))

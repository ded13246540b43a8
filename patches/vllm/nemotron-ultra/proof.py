"""Asks vLLM's own tables for what Nemotron 3 Ultra is served with, and runs the reasoning parser.

The model's architecture must be in the registry with a module that knows its latent experts, and
``nemotron_v3`` in the table of reasoning parsers with a class that exists. Where that class is a
plain one (up to 0.23), it is run with the classes that it is made from: it separates thoughts from
the answer, and an answer without thoughts is an answer where thinking was switched off. Where it
belongs to the parser engine, only that its class exists is checked.
"""

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proofkit

ARCHITECTURE, PARSER = "NemotronHForCausalLM", "nemotron_v3"
OFF = SimpleNamespace(chat_template_kwargs={"enable_thinking": False})
ON = SimpleNamespace(chat_template_kwargs=None)
ANSWERS = (
    (ON, "<think>why</think>Paris", ("why", "Paris")),
    (ON, "why</think>Paris", ("why", "Paris")),
    (ON, "still thinking", ("still thinking", None)),
    (OFF, "Paris", (None, "Paris")),
)


def tables(path: Path) -> dict[Any, Any]:
    """Every dictionary of constants in a module, joined."""
    found: dict[Any, Any] = {}
    for node in ast.walk(proofkit.Source(path).module):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        for key, value in ((key, value) for key, value in pairs if key):
            with contextlib.suppress(ValueError, TypeError):  # not constants
                found.setdefault(ast.literal_eval(key), ast.literal_eval(value))
    return found


def has_class(path: Path, name: str) -> bool:
    """Whether a module defines the class ``name``."""
    found = proofkit.Source(path).definitions.get(name) if path.is_file() else None
    return isinstance(found, ast.ClassDef)


def parser(folder: Path, path: Path, name: str) -> Any:
    """An instance of a plain reasoning parser, made from its own bases without a tokenizer."""
    space = {
        "ReasoningParser": object,
        "DeltaMessage": proofkit.mocked("DeltaMessage"),
        "abstractmethod": lambda method: method,
    }
    chain = [
        (folder / "basic_parsers.py", "BaseThinkingReasoningParser"),
        (folder / "deepseek_r1_reasoning_parser.py", "DeepSeekR1ReasoningParser"),
        (path, name),
    ]
    for file, wanted in chain:
        source = proofkit.Source(file)
        node = source.cls(wanted)
        functions = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        node.body = [n for n in functions if n.name != "__init__"]
        source.run([node], space)
    return space[name]()


def model_faults(vllm: Path) -> Iterator[str]:
    """What the model lacks."""
    entry = tables(vllm / "model_executor/models/registry.py").get(ARCHITECTURE)
    if entry is None:
        yield f"the model registry has no {ARCHITECTURE}"
        return
    path = vllm / f"model_executor/models/{entry[0]}.py"
    if not has_class(path, entry[1]) or "latent" not in proofkit.read(path):
        yield f"{entry[0]}.py has no {entry[1]} with latent experts"


def parser_faults(vllm: Path) -> Iterator[str]:
    """What the reasoning parser lacks, or reads wrongly."""
    folder = vllm / "reasoning"
    entry = tables(folder / "__init__.py").get(PARSER)
    if entry is None:
        yield f"--reasoning-parser {PARSER}: no such parser"
        return
    path = folder / f"{entry[0]}.py"
    if not has_class(path, entry[1]):
        if not path.is_file() or entry[1] not in proofkit.read(path):
            yield f"--reasoning-parser {PARSER} names {entry[1]}, which is not in {path.name}"
        return
    if "engine" in entry[0]:
        return
    made = parser(folder, path, entry[1])
    for request, text, wanted in ANSWERS:
        got = tuple(made.extract_reasoning(text, request))
        if got != wanted:
            yield f"{text!r} is read as {got}, not {wanted}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a model or a parser that is missing, or a parser that reads wrongly."""
    vllm = tree / "vllm"
    return proofkit.verdict(
        [*model_faults(vllm), *parser_faults(vllm)],
        right=f"{ARCHITECTURE} and the reasoning parser {PARSER} are there",
    )


if __name__ == "__main__":
    proofkit.main(judge)

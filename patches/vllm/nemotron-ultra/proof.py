"""Asks vLLM's own tables for what Nemotron 3 Ultra is served with, and lets the reasoning parser read answers.

    python proof.py TREE

The model's architecture must be in the registry with a module that knows its latent experts, and ``nemotron_v3`` in the table of
reasoning parsers with a class that exists. Where that class is a plain one (up to 0.23), it is run with the classes that it
is made from: thoughts and answer are told apart, and an answer without thoughts is an answer where thinking was switched off.
Where it belongs to the parser engine, that its class exists is all that is looked at.
"""

import ast
import pathlib
import sys
import types
from unittest import mock

TREE = pathlib.Path(sys.argv[1], "vllm")
ARCHITECTURE, PARSER = "NemotronHForCausalLM", "nemotron_v3"
OFF = types.SimpleNamespace(chat_template_kwargs={"enable_thinking": False})
ON = types.SimpleNamespace(chat_template_kwargs=None)
ANSWERS = (
    (ON, "<think>why</think>Paris", ("why", "Paris")),
    (ON, "why</think>Paris", ("why", "Paris")),
    (ON, "still thinking", ("still thinking", None)),
    (OFF, "Paris", (None, "Paris")),
)


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


def tables(path):
    """Every dictionary of constants in a module, joined."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                try:
                    found.setdefault(ast.literal_eval(key), ast.literal_eval(value))
                except (ValueError, TypeError):
                    continue
    return found


def class_of(path, name):
    """The class ``name`` in a module, or None."""
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def without_thoughts(node):
    """A class with its plain methods and properties, and nothing that needs a tokenizer."""
    node.body = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name != "__init__"]
    for function in node.body:
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
    return node


def parser(path, name):
    """An instance of a plain reasoning parser, made from its own bases."""
    space = {"ReasoningParser": object, "DeltaMessage": mock.MagicMock(), "abstractmethod": lambda method: method}
    folder = TREE / "reasoning"
    chain = [
        (folder / "basic_parsers.py", "BaseThinkingReasoningParser"),
        (folder / "deepseek_r1_reasoning_parser.py", "DeepSeekR1ReasoningParser"),
        (path, name),
    ]
    for file, wanted in chain:
        node = class_of(file, wanted)
        if node is None:
            raise Unknown(f"{wanted} is not in {file.name}")
        code = ast.fix_missing_locations(ast.Module([without_thoughts(node)], []))
        exec(compile(code, str(file), "exec"), space)
    return space[name]()


def faults():
    """What is missing, or read wrongly."""
    models = tables(TREE / "model_executor/models/registry.py")
    module = models.get(ARCHITECTURE)
    if module is None:
        yield f"the model registry has no {ARCHITECTURE}"
    else:
        path = TREE / f"model_executor/models/{module[0]}.py"
        if class_of(path, module[1]) is None or "latent" not in path.read_text():
            yield f"{module[0]}.py has no {module[1]} with latent experts"
    entry = tables(TREE / "reasoning/__init__.py").get(PARSER)
    if entry is None:
        yield f"--reasoning-parser {PARSER}: no such parser"
        return
    path = TREE / f"reasoning/{entry[0]}.py"
    if class_of(path, entry[1]) is None:
        if not path.is_file() or entry[1] not in path.read_text():
            yield f"--reasoning-parser {PARSER} names {entry[1]}, which is not in {path.name}"
        return
    if "engine" in entry[0]:
        return
    made = parser(path, entry[1])
    for request, text, wanted in ANSWERS:
        got = made.extract_reasoning(text, request)
        if tuple(got) != wanted:
            yield f"{text!r} is read as {tuple(got)}, not {wanted}"


try:
    found = list(faults())
except Exception as reason:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {reason!r}")
    sys.exit(3)
print("; ".join(found) or f"{ARCHITECTURE} and the reasoning parser {PARSER} are there")
sys.exit(1 if found else 0)

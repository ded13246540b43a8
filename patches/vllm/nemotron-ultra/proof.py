"""Asks vLLM's own tables for what Nemotron 3 Ultra is served with, and runs the reasoning parser.

The model's architecture must be in the registry with a module that knows its latent experts, and
``nemotron_v3`` in the table of reasoning parsers with a class that exists. Where that class is a
plain one (up to 0.23), it is run with the classes that it is made from: it separates thoughts from
the answer, whole and streamed, and an answer without thoughts is an answer where thinking was
switched off. Where it belongs to the parser engine, only that its class exists is checked.
"""

import ast
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import proofkit

ARCHITECTURE, PARSER = "NemotronHForCausalLM", "nemotron_v3"
THINK = ("<think>", "</think>")
OFF = {"enable_thinking": False}
NONEMPTY = {"force_nonempty_content": True}
#: What the chat template was asked for, what the model says, and its thoughts and answer.
ANSWERS: tuple[tuple[dict[str, bool] | None, str, tuple[str | None, str | None]], ...] = (
    (None, "<think>why</think>Paris", ("why", "Paris")),
    (None, "why</think>Paris", ("why", "Paris")),
    (None, "still thinking", ("still thinking", None)),
    (None, "why</think>", ("why", None)),
    ({}, "still thinking", ("still thinking", None)),
    ({"enable_thinking": True}, "still thinking", ("still thinking", None)),
    ({"force_nonempty_content": False}, "still thinking", ("still thinking", None)),
    (OFF, "Paris", (None, "Paris")),
    (OFF, "why</think>Paris", ("why", "Paris")),
    (NONEMPTY, "Paris", (None, "Paris")),
    (NONEMPTY, "why</think>Paris", ("why", "Paris")),
    (None, "why\n</think>\n\nParis \n", ("why\n", "\n\nParis \n")),
)
#: Deltas as a server gets them, token by token, and what a client must get.
STREAMED: tuple[tuple[list[list[str]], tuple[str, str]], ...] = (
    ([["<think>"], ["why", "?"], ["</think>"], ["Par"], ["is"]], ("why?", "Paris")),
    ([["why"], ["</think>"], ["Paris"]], ("why", "Paris")),
    ([["why", "</think>", "Par"], ["is"]], ("why", "Paris")),
    ([["still"], [" thinking"]], ("still thinking", "")),
)


#: Tokens so far, and whether the model has ended its thoughts: a grammar binds it from then on.
ENDED: tuple[tuple[list[str], bool], ...] = (
    ([], False),
    (["<think>", "why"], False),
    (["<think>", "why", "</think>"], True),
    (["why", "</think>", "Paris"], True),
    (["why", "</think>", "Paris", "<think>"], False),
)


class Tokenizer:
    """A word is a token."""

    words: ClassVar[list[str]] = []

    def get_vocab(self) -> dict[str, int]:
        return {word: self.encode(word) for word in THINK}

    def encode(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


def tables(path: Path) -> dict[Any, Any]:
    """Every dictionary of constants in a module, joined."""
    found: dict[Any, Any] = {}
    for node in ast.walk(proofkit.Source(path).module):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        for key, value in ((key, value) for key, value in pairs if key):
            with contextlib.suppress(ValueError, TypeError):  # not constants
                found.setdefault(ast.literal_eval(key), ast.literal_eval(value))
    return found


def registered(vllm: Path) -> dict[str, tuple[str, str]]:
    """The reasoning parsers by name: file and class. Upstream's own module is run for it."""
    found: dict[str, tuple[str, str]] = {}

    def register(name: str, module_path: str, class_name: str) -> None:
        found[name] = module_path.rpartition(".")[2], class_name

    source = proofkit.Source(vllm / "reasoning/__init__.py")
    manager = SimpleNamespace(register_lazy_module=register)
    space = source.in_tree(vllm.parent, {"ReasoningParserManager": manager})
    imports = (ast.Import, ast.ImportFrom)
    source.run([node for node in source.module.body if not isinstance(node, imports)], space)
    if not found:
        raise proofkit.Inconclusive("reasoning/__init__.py registers no parser by its name")
    return found


def has_class(path: Path, name: str) -> bool:
    """Whether a module defines the class ``name``."""
    found = proofkit.Source(path).definitions.get(name) if path.is_file() else None
    return isinstance(found, ast.ClassDef)


def parser(tree: Path, path: Path, name: str) -> Any:
    """An instance of a plain reasoning parser, made from its own bases."""
    message = SimpleNamespace
    known = {
        "DeltaMessage": lambda **given: message(**{"reasoning": None, "content": None, **given})
    }
    return proofkit.Source(path).in_tree(tree, known)[name](Tokenizer())


def streamed(made: Any, deltas: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The thoughts and the answer that a client gets of ``deltas``."""
    text, ids, got = "", list[int](), ["", ""]
    for words in deltas:
        delta, tokens = "".join(words), [Tokenizer().encode(word) for word in words]
        now = text + delta, [*ids, *tokens]
        message = made.extract_reasoning_streaming(text, now[0], delta, ids, now[1], tokens)
        text, ids = now
        for at, part in enumerate(("reasoning", "content")):
            got[at] += getattr(message, part, None) or ""
    return got[0], got[1]


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
    """What the reasoning parser lacks."""
    folder = vllm / "reasoning"
    parsers = registered(vllm)
    entry = parsers.get(PARSER)
    if entry is None:
        yield f"--reasoning-parser {PARSER}: no such parser"
        return
    if others := [name for name, found in parsers.items() if found == entry and name != PARSER]:
        yield f"--reasoning-parser {', '.join(others)} is {entry[1]}, too"
    path = folder / f"{entry[0]}.py"
    if not has_class(path, entry[1]):
        if not path.is_file() or entry[1] not in proofkit.Source(path).names:
            yield f"--reasoning-parser {PARSER} names {entry[1]}, which is not in {path.name}"
        return
    if "engine" in entry[0]:
        return
    yield from misread(parser(vllm.parent, path, entry[1]))


def misread(made: Any) -> Iterator[str]:
    """What a parser reads wrongly."""
    for asked, text, wanted in ANSWERS:
        request = SimpleNamespace(chat_template_kwargs=asked)
        got = tuple(made.extract_reasoning(text, request))
        if got != wanted:
            yield f"{text!r} is read as {got}, not {wanted}, with {asked}"
    for words, ended in ENDED:
        if bool(made.is_reasoning_end([Tokenizer().encode(word) for word in words])) != ended:
            yield f"thoughts are {'still open' if ended else 'over'} after {words}"
    for deltas, parts in STREAMED:
        try:
            seen = streamed(made, deltas)
        except Exception as error:  # noqa: BLE001 - any kind stops a stream
            yield f"streaming {deltas} raises {error!r}"
            continue
        if seen != parts:
            yield f"streaming {deltas} gives {seen}, not {parts}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a model or a parser that is missing, or a parser that reads wrongly."""
    vllm = tree / "vllm"
    return proofkit.verdict(
        [*model_faults(vllm), *parser_faults(vllm)],
        right=f"{ARCHITECTURE} and the reasoning parser {PARSER} are there",
    )


if __name__ == "__main__":
    proofkit.main(judge)

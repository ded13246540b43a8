"""Asks the vLLM of an image for its KV-cache blocks, and writes docs/memory-table.md.

    python benchmarks/memory_table.py [--image IMAGE | --python PYTHON] [--markdown PAGE]

The cases are in tests/data/memory/cases.json, and vLLM's answers go to tests/data/memory/vllm.json,
with which the tests compare plans. Without --image and --python, the page is made from the answers
that are there. memory_of_vllm.py is what runs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagefactory.errors import CheckFailedError, fail
from imagefactory.memory import kv_cache, memory
from imagefactory.memory.kv_cache import Options, Pool
from imagefactory.memory.machine import GIB
from imagefactory.memory.model import Model
from imagefactory.settings import from_environment
from imagefactory.system import shell, ui
from imagefactory.system.engine import Engine

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/memory"
CASES, RECORD, MODELS = DATA / "cases.json", DATA / "vllm.json", DATA / "models"
#: Seconds that vLLM may take for all cases on a busy machine.
PATIENCE = 1800.0
PYTHON = "/opt/venv/bin/python"
PROGRAM = "memory_of_vllm.py"
HEAD = """# KV-cache blocks, planned and by vLLM

Written by `make memory-table` from what vLLM {vllm} says ([how](memory.md#how-it-is-checked)); the
tests compare both columns. Memory is that of the KV cache alone. GPU blocks are multiples of 16
tokens; those of the row with 32 are a CPU's.

| model | context | memory | settings | blocks by vLLM | planned | tokens by vLLM | planned | off |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def model(name: str, **changes: Any) -> Model:
    """A recorded model; ``changes`` of None remove keys."""
    raw = {**json.loads((MODELS / name / "config.json").read_text()), **changes}
    return memory.read(
        {key: value for key, value in raw.items() if value is not None}, name, "config.json"
    )


def planned(case: Mapping[str, Any], **changes: Any) -> Pool:
    """The factory's pool for a case."""
    found = model(case["model"], **changes)
    speculative = case.get("speculative", 0)
    options = Options(
        context=case["context"],
        dtype=case.get("kv_cache_dtype", found.dtype),
        tensor=case.get("nodes", 1),
        in_flight=case["in_flight"],
        speculative=speculative,
        prefix_caching=case.get("prefix_caching", True),
        kernel_block=case.get("kernel_block", 16),
    )
    drafts = found.draft_caches if speculative else ()
    return kv_cache.pool([*found.caches, *drafts], options, found.layers)


def ask(engine: Engine, image: str, cases: str) -> dict[str, Any]:
    """What the vLLM of ``image`` answers to ``cases``."""
    done = engine.run(
        image,
        [f"/ask/{PROGRAM}", "/models"],
        platform=engine.platform,
        timeout=PATIENCE,
        entrypoint=PYTHON,
        stdin=cases,
        network="none",
        mounts=[(Path(__file__).parent / PROGRAM, f"/ask/{PROGRAM}"), (MODELS, "/models")],
    )
    return _answers(done)


def _answers(done: shell.Completed) -> dict[str, Any]:
    if not done.ok:
        what = f"vLLM answered nothing: {done.err[-2000:]}"
        raise fail(CheckFailedError, "memory-table", what, fix="see what it wrote")
    found: dict[str, Any] = json.loads(done.out)
    return found


def page(record: Mapping[str, Any]) -> str:
    """docs/memory-table.md."""
    rows = []
    for case in record["cases"]:
        pool = planned(case)
        settings = {
            "fp8": case.get("kv_cache_dtype"),
            f"{case.get('speculative')} drafts": case.get("speculative"),
            f"{case.get('nodes')} nodes": case.get("nodes"),
            "without prefix caching": case.get("prefix_caching") is False,
            f"blocks of {case.get('kernel_block')}": case.get("kernel_block"),
        }
        tokens = pool.tokens(case["memory"])
        cells = [
            case["model"],
            str(case["context"]),
            f"{case['memory'] // GIB} GiB",
            ", ".join(name for name, is_set in settings.items() if is_set) or "-",
            str(case["blocks"]),
            str(pool.blocks(case["memory"])),
            str(case["tokens"]),
            str(tokens),
            f"{abs(tokens / case['tokens'] - 1):.2%}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD.format(vllm=record["vllm"]) + "\n".join(rows) + "\n"


def main() -> None:
    """Ask vLLM if that is wanted, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="an image of the cpu flavor")
    parser.add_argument("--python", help="a Python with vLLM's CPU build")
    parser.add_argument("--markdown", type=Path, help="the page to write")
    options = parser.parse_args()
    if options.image:
        engine = Engine.connect(os.environ, from_environment(os.environ).state)
        record = ask(engine, options.image, CASES.read_text())
    elif options.python:
        argv = [options.python, str(Path(__file__).parent / PROGRAM), str(MODELS)]
        record = _answers(shell.run(argv, stdin=CASES.read_text(), timeout=PATIENCE))
    else:
        record = json.loads(RECORD.read_text())
    if options.image or options.python:
        cases = ",\n".join(f"  {json.dumps(case)}" for case in record["cases"])
        RECORD.write_text(f'{{"vllm": "{record["vllm"]}", "cases": [\n{cases}\n]}}\n')
    if options.markdown:
        options.markdown.write_text(page(record), encoding="utf-8")
    else:
        ui.line(page(record))


if __name__ == "__main__":
    main()

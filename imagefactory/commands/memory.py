"""The ``memory`` command: plans the memory of a model on Sparks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from imagefactory import stock
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError, FactoryError, fail
from imagefactory.memory import finding, memory, picture, serving
from imagefactory.memory.machine import GIB, TOTAL
from imagefactory.memory.memory import Plan, Request
from imagefactory.recipes import recipes
from imagefactory.recipes.recipe import Setup
from imagefactory.system import ui

#: Columns of the bar.
WIDTH = 60
EXAMPLE = "Example: imagefactory memory Qwen/Qwen3-0.6B --context 32768 --seqs 4"

app = typer.Typer(add_completion=False)


@app.command("memory", epilog=EXAMPLE)
def memory_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A config.json, its folder, ORGANIZATION/NAME in the Hugging Face cache, or a "
            "recipe.",
        ),
    ],
    context: Annotated[
        int | None,
        typer.Option(
            "--context", min=1, max=1 << 30, help="Tokens of a sequence; else the model's own."
        ),
    ] = None,
    seqs: Annotated[
        int | None,
        typer.Option("--seqs", min=1, max=1 << 16, help="Sequences at the same time; else 4."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, max=64, help="Number of Sparks; else the fewest of a recipe, or 1."
        ),
    ] = None,
    cache_dtype: Annotated[
        str | None,
        typer.Option("--kv-cache-dtype", metavar="TYPE", help="As for vLLM, such as fp8."),
    ] = None,
    total: Annotated[
        float,
        typer.Option(
            "--gpu-memory", metavar="GIB", min=1, max=1 << 20, help="What CUDA reports in total."
        ),
    ] = TOTAL,
    speculative: Annotated[
        int | None,
        typer.Option(
            "--speculative", min=0, max=64, help="Tokens of a draft by the model's own MTP head."
        ),
    ] = None,
    batched: Annotated[
        int | None,
        typer.Option(
            "--batched-tokens", min=1, max=1 << 20, help="As --max-num-batched-tokens for vLLM."
        ),
    ] = None,
    pipeline: Annotated[
        bool | None,
        typer.Option(
            "--pipeline/--tensor",
            help="Divide the layers among nodes, or each layer; else the latter if it is possible.",
        ),
    ] = None,
    eager: Annotated[
        bool | None,
        typer.Option("--eager/--graphs", help="Without CUDA graphs, as --enforce-eager, or with."),
    ] = None,
    vllm: Annotated[
        str, typer.Option("--vllm", metavar="VERSION", help="The release of vLLM.")
    ] = memory.VLLM,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Plan the memory of a model on one or more Sparks, and the settings of vLLM.

    Reads only its config.json, and the size of its weights if their index is beside it. A recipe
    sets what no option does. Exits with 1 if it does not fit. docs/memory.md compares plans with
    vLLM's own figures.
    """
    setup = _setup(model, file, vllm, nodes)
    options: Mapping[str, Any] = setup.options if setup else {}
    found = finding.find(setup.recipe.model if setup else model, os.environ)
    size = found.size
    if size is None and setup and setup.recipe.weights_gib:
        size = round(setup.recipe.weights_gib * GIB)
    read = memory.read(found.raw, found.name, found.where, size=size)
    read = replace(read, notes=(*read.notes, *serving.notes(options)))
    given: dict[str, Any] = {
        "context": context,
        "seqs": seqs,
        "pipeline": pipeline,
        "cache_dtype": cache_dtype,
        "speculative": speculative,
        "batched": batched,
        "eager": eager,
    }
    request = Request(
        nodes=setup.nodes if setup else nodes or 1, total=round(total * GIB), vllm=vllm
    )
    request = serving.asked(options, request)
    request = replace(request, **{name: one for name, one in given.items() if one is not None})
    plan = memory.plan(read, request, size)
    of_recipe = _of_recipe(plan, options)
    if json:
        ui.emit_json({**plan.as_dict(), "recipe": of_recipe})
    else:
        _show(plan, "read from its index" if found.size else "as the recipe says")
        if of_recipe:
            held = f"{_gib(of_recipe['kv_cache'])} of KV cache, {of_recipe['tokens']} tokens"
            ui.line(f"the recipe has {of_recipe['option']}: {held}")
    if not plan.fits:
        raise _too_much(plan, memory.fewest_nodes(plan, size))


def _setup(text: str, file: Path, release: str, nodes: int | None) -> Setup | None:
    """The settings of the recipe that ``text`` names; None if it names none."""
    folders = workspace_of(file).recipes
    is_file = text.endswith(recipes.SUFFIX)
    if not is_file and not any((one / f"{text}{recipes.SUFFIX}").is_file() for one in folders):
        return None
    recipe = recipes.find(text, folders, stock.ROOT / "recipes")
    return recipe.on(release, nodes or min(recipe.nodes))


def _of_recipe(plan: Plan, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the budget of a recipe is enough for; None if it sets none."""
    budget = serving.budget(options, plan.request.total)
    if budget is None:
        return None
    option, size = budget
    cache = plan.cache_in(size)
    held = {"kv_cache": cache, "tokens": plan.pool.tokens(cache)}
    return {"option": option, "budget": size, **held}


def _gib(number: int) -> str:
    return f"{number / GIB:.2f} GiB"


def _show(plan: Plan, measured: str) -> None:
    how = f" in {plan.model.quantization}" if plan.model.quantization else ""
    on = f"{plan.request.nodes} nodes, each" if plan.request.nodes > 1 else "a node"
    ui.line(
        ui.styled(f"{plan.model.name}{how}", "bold"), f" on {on} with {_gib(plan.request.total)}"
    )
    _picture(plan)
    rows: list[list[ui.Part]] = [
        [ui.styled(one.letter, one.colour), one.name, _gib(one.bytes), one.source]
        for one in picture.segments(plan, measured)
    ]
    ui.table("", ["", "memory", "size", "what it is"], rows)
    if plan.fits:
        _cache(plan)
    title = f"\nwhat fits below {_gib(plan.ceiling)} for vLLM"
    fitting = [[str(context), str(seqs)] for context, seqs in plan.most_seqs.items()]
    ui.table(title, ["context", "sequences"], fitting)
    for note in plan.model.notes:
        ui.say(f"note: {note}")
    if plan.fits:
        settings = [[name, value] for name, value in plan.settings().items()]
        ui.table("\nsettings of vllm serve", ["", ""], settings)
        patched = f"--gpu-memory-utilization-gb {plan.budget_gib:g}"
        ui.line(f"with the patch gpu-memory-utilization-gb: {patched} instead of the fraction")


def _picture(plan: Plan) -> None:
    parts: list[ui.Part] = []
    for one, columns in picture.bar(plan, WIDTH):
        if ui.out.is_terminal and not ui.out.no_color:
            parts.append(ui.styled("█" * columns, one.colour))
        else:
            parts.append(one.letter * columns)
    ui.line("[", *parts, "]")


def _cache(plan: Plan) -> None:
    tokens, per_request = plan.pool.tokens(plan.cache), plan.pool.per_request(plan.context)
    ui.line(
        f"\nKV cache: {tokens} tokens in {plan.pool.blocks(plan.cache)} blocks of "
        f"{plan.pool.block_bytes} bytes, {per_request} for each sequence: "
        f"{plan.pool.blocks(plan.cache) / per_request:.2f} sequences of {plan.context} tokens"
    )


def _too_much(plan: Plan, nodes: int | None) -> FactoryError:
    lacking = _gib(plan.budget - plan.ceiling)
    what = (
        f"{plan.model.name} needs {_gib(plan.budget)} for vLLM on each node, {lacking} more than "
        f"the {_gib(plan.ceiling)} that leave enough to the rest of the machine"
    )
    advice = []
    seqs = plan.most_seqs[plan.context]
    if plan.longest:
        advice.append(f"--context {plan.longest}")
    if seqs:
        advice.append(f"--seqs {seqs}")
    if plan.request.cache_dtype == "auto" and plan.cache_dtype in ("bfloat16", "float16"):
        advice.append("--kv-cache-dtype fp8")
    if nodes:
        advice.append(f"--nodes {nodes}")
    fix = f"try {' or '.join(advice)}" if advice else "serve a smaller model, or quantize it"
    return fail(CheckFailedError, "memory-too-small", what, fix=fix)

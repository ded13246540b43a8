"""The ``bench`` commands: measure a server, and compare what was measured."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from imagefactory import opening
from imagefactory.benchmarking import benchmarking, comparing, serving, streaming
from imagefactory.benchmarking.benchmarking import Image, Load
from imagefactory.benchmarking.comparing import Verdict
from imagefactory.benchmarking.metrics import HIGH, LOW, METRICS, Spread, spread
from imagefactory.benchmarking.results import Result, Store
from imagefactory.commands.options import HERE, File, Json, check_images, workspace_of
from imagefactory.commands.recipe_check import STOCK
from imagefactory.commands.recipe_target import (
    CacheFolder,
    CellName,
    folder_of,
    must_be_here,
    source_of,
    target_of,
    tunings_of,
)
from imagefactory.errors import CheckFailedError, InputError, Problem
from imagefactory.launching.launching import Launch, check_cache
from imagefactory.recipes import recipes, starting
from imagefactory.recipes.starting import Wishes
from imagefactory.system import ui
from imagefactory.verifying import leftovers
from imagefactory.workspace import Workspace

#: Tokens that no model has room for, and seconds that nobody waits: a typing mistake would fill the
#: memory with a prompt, or be more than the system's clock takes.
LONGEST, DAY = 1 << 24, 86400
#: Hosts that are this machine.
LOCAL = ("localhost", "127.0.0.1", "::1")
COLOURS = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.UNKNOWN: "yellow"}


class _ServerOrCommand(TyperGroup):
    """``bench URL`` is short for ``bench server URL``, and so is ``bench RECIPE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["server", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="bench",
    cls=_ServerOrCommand,
    add_completion=False,
    no_args_is_help=True,
    help=(
        "Measure a server, or a recipe, and compare results. `bench URL` is short for "
        "`bench server URL`."
    ),
)


@app.command("server", epilog="Example: imagefactory bench server http://127.0.0.1:8888")
def server_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="URL|RECIPE",
            help="An OpenAI-compatible server, or a recipe to serve meanwhile.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="The model; by default the first one served.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,...", help="Requests at the same time.")
    ] = "1,2,4,8",
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=1000, help="Rounds measured at each level.")
    ] = 5,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", min=8, max=LONGEST, help="Length of prompts.")
    ] = 1024,
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", min=2, max=LONGEST, help="Length of answers.")
    ] = 128,
    needle: Annotated[
        str, typer.Option("--needle", metavar="DEPTH,...", help="Hide a needle: 0 start, 1 end.")
    ] = "",
    context: Annotated[
        int,
        typer.Option("--context", min=100, max=LONGEST, help="Tokens that needles are hidden in."),
    ] = 8192,
    image: Annotated[
        str | None,
        typer.Option(
            "--image", help="A recipe's image; or a URL's, which is found by its port here."
        ),
    ] = None,
    cell: CellName = None,
    cache: CacheFolder = starting.VOLUME,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Serve the recipe's model from this folder."),
    ] = None,
    start: Annotated[
        float,
        typer.Option("--start", min=1, max=DAY, help="Seconds that a recipe's server may take."),
    ] = 3600,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=1, max=DAY, help="Seconds that the server may be silent."),
    ] = 600,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Measure prefill, decode and latencies of a server, and whether it finds needles.

    A recipe is served for that time, as recipe run does, in a container that is removed afterwards.
    Exits with 1 if a request failed or a needle was not found. OPENAI_API_KEY is sent if it is set.
    """
    load = _load(concurrency, repeats, prompt_tokens, output_tokens, needle, context)
    workspace = workspace_of(file)
    key = streaming.check_key(os.environ.get("OPENAI_API_KEY"))

    def measure(url: str, found: Image | None) -> Result:
        server = streaming.Server(url, key=key, seconds=timeout)
        asked = streaming.check_model(model, server.models())
        return benchmarking.measure(server, asked, load, found, datetime.now(UTC), ui.say)

    if _is_recipe(what):
        launch, found = _launch(workspace, what, image, cell, cache, folder)
        engine = opening.connect(workspace)
        leftovers.sweep(engine, workspace.settings.cache)
        with serving.served(engine, launch, seconds=start, say=ui.say) as url:
            result = measure(url, found)
    else:
        address = streaming.address(what)
        result = measure(address, _image(workspace, address, image))
    _report(workspace, result, json=json)


def _is_recipe(what: str) -> bool:
    return ":" not in what and bool(what)


def _launch(
    workspace: Workspace,
    name: str,
    image: str | None,
    cell: str | None,
    cache: str,
    folder: Path | None,
) -> tuple[Launch, Image]:
    """The container that serves a recipe, and its image, which the engine has."""
    recipe = recipes.find(name, workspace.recipes, STOCK)
    target = target_of(workspace, recipe, 1, image, cell)
    must_be_here(workspace, target)
    wishes = Wishes(cache=source_of(cache), model=folder_of(folder), tunings=tunings_of(workspace))
    launch = starting.launch(target.setup, target.image, target.hardware, wishes)
    check_cache(launch)
    if target.note:
        ui.warn(target.note)
    name, _, digest = target.image.partition("@")
    return launch, Image(name=image or (target.cell.tag if target.cell else name), digest=digest)


def _report(workspace: Workspace, result: Result, *, json: bool) -> None:
    """Keep a result that is whole, and show it. Raises CheckFailedError for one that is not.

    One that cannot be kept is shown before the OSError is raised: measuring took long.
    """
    kept, refused = None, None
    try:
        kept = None if result.failed else _store(workspace).save(result)
    except OSError as error:
        refused = error
    if json:
        ui.emit_json({**result.data, "file": str(kept) if kept else None})
    else:
        _show(result)
    _warn(result)
    if kept:
        ui.say(f"kept as {kept}")
    problems = _problems(result)
    if problems:
        raise CheckFailedError(problems)
    if refused:
        raise refused


@app.command("diff", epilog="Example: imagefactory bench diff imagefactory/vllm:old new.json")
def diff_command(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A file, or the image's tag or digest.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, to compare with A.")],
    file: File = HERE,
    json: Json = False,
) -> None:
    """Compare two results: `faster` or `slower` if their spreads do not overlap, else `same`."""
    workspace = workspace_of(file)
    store = _store(workspace)

    def find(name: str) -> Result:
        return store.find(name, lambda tag: _digest(workspace, tag), ui.warn)

    first, second = find(before), find(after)
    rows = comparing.compare(first, second)
    if json:
        ui.emit_json([row.as_dict() for row in rows])
        return
    columns = ["at once", "figure", "A", "B", "change", "verdict"]
    titles = {metric.key: metric.title for metric in METRICS}
    shown: list[list[ui.Part]] = [
        [
            str(row.concurrency),
            f"{titles[row.metric]} ({row.unit})",
            _median(row.before),
            _median(row.after),
            "" if row.percent is None else f"{row.percent:+.1f} %",
            ui.styled(row.verdict, COLOURS.get(row.verdict, "")),
        ]
        for row in rows
    ]
    if first == second:
        ui.warn("A and B are the same result")
    ui.line(f"A: {first.name}")
    ui.line(f"B: {second.name}")
    ui.table("", columns, shown)


def _load(
    concurrency: str, repeats: int, prompt: int, output: int, needle: str, context: int
) -> Load:
    """The load that the options describe. Raises InputError for those that are no numbers."""
    problems: list[Problem] = []
    levels = _numbers("--concurrency", concurrency, int, (1, streaming.MOST_AT_ONCE), problems)
    depths = _numbers("--needle", needle, float, (0, 1), problems) if needle else ()
    if problems:
        raise InputError(problems)
    return Load(
        concurrency=tuple(int(level) for level in levels),
        repeats=repeats,
        prompt_tokens=prompt,
        output_tokens=output,
        depths=depths,
        context=context,
    )


def _numbers(
    option: str,
    text: str,
    kind: Callable[[str], float],
    bounds: tuple[int, int],
    problems: list[Problem],
) -> tuple[float, ...]:
    least, most = bounds
    try:
        found = tuple(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(least <= number <= most for number in found):
        what = f"{option} is {text[:40]!r}"
        fix = f"write numbers from {least} to {most}, separated by commas"
        problems.append(Problem(code="bench-numbers", what=what, fix=fix))
    return found


def _image(workspace: Workspace, address: str, name: str | None) -> Image | None:
    """The image of the server: ``name``, or that of the container here that has the port."""
    if name is not None:
        check_images(name)
        return Image(name=name, digest=opening.connect(workspace).inspect_image(name).digest)
    parts = urlsplit(address)
    engine = opening.connect_if_any(workspace) if parts.hostname in LOCAL else None
    found = engine.publishing(parts.port or 80) if engine else None
    return Image(name=found[0], digest=found[1]) if found else None


def _digest(workspace: Workspace, tag: str) -> str | None:
    """The image that has a tag here; None if there is none, or ``tag`` is no name."""
    try:
        check_images(tag)
    except InputError:
        return None
    engine = opening.connect_if_any(workspace)
    found = engine.find_images([tag]).get(tag) if engine else None
    return found.digest if found else None


def _store(workspace: Workspace) -> Store:
    return Store(workspace.settings.state / "benchmarks")


def _show(result: Result) -> None:
    rows: list[list[ui.Part]] = []
    for concurrency, level in result.levels.items():
        for metric in METRICS:
            one = spread(level, metric)
            title = f"{metric.title} ({metric.unit})"
            samples = f"{one.samples} {metric.per}{'s' * (one.samples != 1)}"
            rows.append([str(concurrency), title, *_both(one), samples])
    columns = ["at once", "figure", "median", f"p{LOW} to p{HIGH}", "of"]
    ui.table(f"{result.name}: {result.data['model_id']}", columns, rows)
    if result.data["needles"]:
        found = [
            [f"{one['depth']:g}", str(one["input_len"]), _found(one), one["answer"] or one["error"]]
            for one in result.data["needles"]
        ]
        ui.table("needles", ["depth", "tokens", "found", "answer"], found)


def _found(needle: dict[str, Any]) -> ui.Part:
    return ui.styled("yes", "green") if needle["found"] else ui.styled("no", "red")


def _warn(result: Result) -> None:
    hits = result.data["prefix_cache_hits"]
    if hits:
        ui.warn(f"{hits:.0f} tokens came from the prefix cache: prefill looks too fast")
    bursts = [str(number) for number, level in result.levels.items() if level["in_bursts"]]
    if bursts:
        at = ", ".join(bursts)
        ui.warn(f"at {at} at once, tokens came in bursts: how fast each was made is not known")
    wanted = result.data["output_tokens"]
    lengths = {length for level in result.data["levels"] for length in level["output_lens"]}
    if not result.failed and lengths != {wanted}:
        ui.warn(f"answers have {min(lengths)} to {max(lengths)} tokens instead of {wanted}")
    if result.data["digest"] is None:
        ui.warn("the server's image is not known: name it with --image to compare its results")


def _problems(result: Result) -> list[Problem]:
    levels = result.data["levels"]
    errors = Counter(error for level in levels for error in level["errors"] if error)
    total = sum(level["num_prompts"] for level in levels)
    failed = [
        Problem(code="bench-failed", what=f"{count} of {total} requests failed: {error}")
        for error, count in errors.items()
    ]
    lost = [
        Problem(
            code="bench-needle",
            what=f"the needle at depth {one['depth']:g} was not found: "
            + (one["error"] or f"{one['expected']} is not in the answer"),
        )
        for one in result.data["needles"]
        if not one["found"]
    ]
    return [*failed, *lost]


def _both(one: Spread) -> tuple[str, str]:
    if not one.samples:
        return "unknown", ""
    return _number(one.median), f"{_number(one.low)} to {_number(one.high)}"


def _median(one: Spread) -> str:
    median, between = _both(one)
    return f"{median} ({between})" if between else median


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"

"""What to tune: from a recipe, a model, or numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.errors import InputError, fail
from imagefactory.recipes.recipe import Setup
from imagefactory.tuning import tuning
from imagefactory.tuning.release import Release
from imagefactory.tuning.tuning import MODEL, Job

#: The script's ``--dtype`` for how a recipe's weights are stored.
DTYPES = {"bf16": "auto", "fp8": "fp8_w8a8", "awq": "int4_w4a16", "gptq": "int4_w4a16"}
#: Values of ``--moe-backend`` with which vLLM may take Triton's kernel.
_TRITON = ("", "auto", "triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A model: by name, or as a folder of the host; neither if only its shape is given.

    ``dtype`` and ``tp`` are what its recipe says.
    """

    model: str = ""
    folder: str = ""
    dtype: str = ""
    tp: int = 1


def of_recipe(setup: Setup) -> Wanted:
    """What a recipe says. Raises InputError for one whose experts use no such files."""
    recipe, why = setup.recipe, ""
    backend = setup.text("moe-backend").lower()
    if not recipe.experts:
        why = "its model is no mixture of experts"
    elif recipe.weights not in DTYPES:
        why = f"vLLM serves experts in {recipe.weights} with kernels that are not Triton's"
    elif backend not in _TRITON:
        why = f"it sets moe-backend: {backend}, whose kernels are not Triton's"
    if why:
        what = f"recipe {recipe.name} uses no tuned configuration: {why}"
        fix = "tune a recipe with experts in FP8 or BF16"
        raise fail(InputError, "tune-unused", what, where=recipe.shown, fix=fix)
    tp = setup.text("tensor-parallel-size")
    return Wanted(
        model=recipe.model, dtype=DTYPES[recipe.weights], tp=int(tp) if tp.isdecimal() else 1
    )


def job(
    wanted: Wanted,
    release: Release,
    *,
    shape: str | None,
    block: str | None,
    dtype: str | None,
    tp: int | None,
    batch_sizes: tuple[int, ...],
) -> Job:
    """What the script is asked. Raises InputError for numbers that are none, or a wrong dtype."""
    kind = dtype or wanted.dtype
    if kind not in release.tunes:
        what = f"vLLM {release.version} does not tune for {kind}"
        what = what if kind else "the dtype of the weights is not known"
        fix = f"write --dtype with one of {', '.join(release.tunes)}"
        raise fail(InputError, "tune-dtype", what, fix=fix)
    if block and not shape:
        what, fix = "--block goes with --shape", "leave it out: the model's config says it"
        raise fail(InputError, "tune-what", what, fix=fix)
    words = ("--tp-size", str(tp or wanted.tp), "--dtype", kind)
    if shape is None:
        model = ("--model", MODEL if wanted.folder else wanted.model)
        return Job(words=(*model, *words), model=wanted.folder, batch_sizes=batch_sizes)
    experts, size, hidden, top_k = numbers("--shape", shape, 4)
    if top_k > experts:
        what, fix = (
            f"--shape is {shape!r}: no token has {top_k} of {experts} experts",
            "write E,N,H,K",
        )
        raise fail(InputError, "tune-numbers", what, fix=fix)
    sides = numbers("--block", block, 2, least=0) if block else ()
    config = tuning.config_of(
        experts, size * (tp or 1), hidden, top_k, (sides[0], sides[1]) if sides else None
    )
    return Job(words=words, config=config, batch_sizes=batch_sizes)


def numbers(option: str, text: str, count: int = 0, least: int = 1) -> tuple[int, ...]:
    """The numbers, separated by commas, that an option has. Raises InputError."""
    parts = text.split(",")
    found = tuple(dict.fromkeys(map(int, parts))) if all(map(_is_number, parts)) else ()
    whole = tuple(map(int, parts)) if found else ()
    if not whole or min(whole) < least or (count and len(whole) != count):
        what = f"{option} is {text[:40]!r}"
        fix = f"write {count or 'some'} numbers from {least} on, separated by commas"
        raise fail(InputError, "tune-numbers", what, fix=fix)
    return whole if count else found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8

"""Which of the tiny models an image serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from imagefactory.errors import InputError, fail
from imagefactory.planning.cell_plan import LABEL
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying.models import models
from imagefactory.verifying.models.dialog import MODEL
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.receipt import Level

#: The word for every model that an image can serve.
ALL = "all"
CODE = "verify-models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The models that one image serves.

    Attributes:
        served: those that are served.
        impossible: those that are not served though all were asked for, with the reason.
        lacking: those that the level needs and that were not chosen.
    """

    served: tuple[TinyModel, ...] = ()
    impossible: Mapping[str, str] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()


def parse(text: str, level: Level) -> tuple[str, ...]:
    """The models that ``--models`` names, () for all.

    Raises InputError for a name that none has, and at a level at which nothing is served.
    """
    if not level.includes(Level.SERVE):
        what, fix = f"nothing is served at level {level}", "leave --models or --level out"
        raise fail(InputError, CODE, what, where="--models", fix=fix)
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if names == (ALL,):
        return ()
    known = [one.name for one in models.family()]
    unknown = [repr(name) for name in names if name not in known]
    if unknown:
        what, fix = f"no tiny model is named {', '.join(unknown)}", f"all, or {', '.join(known)}"
        raise fail(InputError, CODE, what, where="--models", fix=fix)
    return names


def choose(image: ImageInfo, level: Level, names: Sequence[str] | None) -> Choice:
    """What ``image`` serves when it is verified up to ``level``; ``names`` as of ``parse``.

    Without names that is what the level needs: one model for SERVE, for GPU every one that the
    image takes. Raises InputError if the image does not take one of ``names`` or serves only on a
    GPU, and if GPU is asked of an image for the CPU.
    """
    on_gpu = image.labels.get(f"{LABEL}.channel") != "cpu"
    if level is Level.GPU and not on_gpu:
        what, fix = f"{image.ref} is for the CPU, and computes on no GPU", "verify it without --gpu"
        raise fail(InputError, "verify-gpu", what, fix=fix)
    if on_gpu and level is not Level.GPU:
        if names is not None:
            what, fix = f"{image.ref} serves on a GPU only", "--gpu, on a machine with one"
            raise fail(InputError, CODE, what, where="--models", fix=fix)
        return Choice()
    if not level.includes(Level.SERVE):
        return Choice()
    # the default one is served whatever the image says of itself: without it, nothing would be
    others = (one for one in models.family() if one is not MODEL)
    impossible = {one.name: why for one in others if (why := _why_not(one, image))}
    possible = [one for one in models.family() if one.name not in impossible]
    needed = possible if level is Level.GPU else [MODEL]
    _refuse(image, names or (), impossible, possible)
    everything = names == () or (names is None and level is Level.GPU)
    wanted = [one.name for one in (needed if names is None else possible)]
    served = tuple(one for one in possible if one.name in (names or wanted))
    return Choice(
        served=served,
        impossible=impossible if everything else {},
        lacking=tuple(
            one.name for one in needed if one not in served and one.name not in impossible
        ),
    )


def _refuse(
    image: ImageInfo,
    names: Sequence[str],
    impossible: Mapping[str, str],
    possible: Sequence[TinyModel],
) -> None:
    refused = [f"{name} ({impossible[name]})" for name in names if name in impossible]
    if refused:
        what = f"{image.ref} does not serve {', '.join(refused)}"
        fix = f"choose among {', '.join(one.name for one in possible)}"
        raise fail(InputError, CODE, what, where="--models", fix=fix)


def _why_not(model: TinyModel, image: ImageInfo) -> str:
    """Why an image cannot serve a model; empty if it can."""
    on_gpu = image.labels.get(f"{LABEL}.channel") != "cpu"
    return model.why_not("cuda" if on_gpu else "cpu", image.labels.get(f"{LABEL}.pin.vllm", ""))

"""The family of tiny models: finds every one in this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet

from imagefactory.verifying import models
from imagefactory.verifying.models import words
from imagefactory.verifying.models.words import Question

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A model that is made on the spot and answers right only if what it needs computes right.

    Attributes:
        name: its name, also the one that it is served under.
        proves: what has to work for its answers to be right.
        write: writes it into a folder, the same bytes every time, and returns the folder.
        completions: questions for ``/v1/completions``.
        chats: questions for ``/v1/chat/completions``.
        reasoning: questions for chat that it thinks about before it answers.
        calls: questions for chat with functions that it may call.
        at_once: questions to be asked at the same time.
        serve_args: what ``vllm serve`` needs for it besides the folder.
        gpu_args: what it needs on a GPU besides.
        devices: the kinds of device whose vLLM takes it.
        vllm: the releases of vLLM that take it.
        metrics: counters of ``/metrics`` that have to be above these values once it has answered.
    """

    name: str
    proves: str
    write: Callable[[Path], Path]
    completions: tuple[Question, ...] = words.COMPLETIONS
    chats: tuple[Question, ...] = words.CHATS
    reasoning: tuple[Question, ...] = ()
    calls: tuple[Question, ...] = ()
    at_once: tuple[Question, ...] = words.AT_ONCE
    serve_args: tuple[str, ...] = ()
    gpu_args: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ("cpu", "cuda")
    vllm: str = ">=0.16"
    metrics: Mapping[str, float] = field(default_factory=dict)

    def runs_on(self, device: Device, version: str) -> bool:
        """Whether this release of vLLM takes it on this kind of device."""
        return not self.why_not(device, version)

    def why_not(self, device: Device, version: str) -> str:
        """Why this release of vLLM does not take it; empty if it does, or is not known."""
        if device not in self.devices:
            return f"vLLM's {device} backend has no kernels for it"
        taken = SpecifierSet(self.vllm, prereleases=True)
        if version and not taken.contains(version):
            return f"needs vLLM {self.vllm}, this is {version}"
        return ""


@cache
def family() -> tuple[TinyModel, ...]:
    """Every model, by name.

    Raises ValueError if two have the same name.
    """
    found: dict[str, TinyModel] = {}
    for module in pkgutil.iter_modules(models.__path__):
        for entry in vars(importlib.import_module(f"{models.__name__}.{module.name}")).values():
            if isinstance(entry, TinyModel) and found.setdefault(entry.name, entry) is not entry:
                raise ValueError(f"two models are named {entry.name}")
    return tuple(found[name] for name in sorted(found))


def named(name: str) -> TinyModel:
    """The model of that name. Raises LookupError."""
    for model in family():
        if model.name == name:
            return model
    raise LookupError(f"no model is named {name}: {', '.join(one.name for one in family())}")

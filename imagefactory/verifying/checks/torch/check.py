"""The checks that torch is the build that was locked.

A resolver that swaps it for a CPU build is the oldest fault of such images.
"""

from __future__ import annotations

import re

from imagefactory.locking.lock import TorchBuild
from imagefactory.verifying.check_registry import Verdict, check, count, failed, passed
from imagefactory.verifying.files import by_files
from imagefactory.verifying.subject import Subject

SHOWN = 3
TORCH = re.compile(r"/site-packages/torch(?:/|-[^/]*\.dist-info/)")


@check("torch-identity", needs=("facts", "lock"))
def identity(subject: Subject) -> Verdict:
    """``import torch`` gives exactly the locked version and CUDA version.

    Fails for a CPU build of torch, another channel, or a torch that cannot be imported.
    """
    torch = subject.facts["torch"]
    seconds = torch["seconds"]
    if torch["error"]:
        return failed(f"import torch: {torch['error']}", seconds=seconds)
    found, locked = TorchBuild(version=torch["version"], cuda=torch["cuda"]), _locked(subject)
    if found != locked:
        return failed(_difference(found, locked), seconds=seconds)
    if locked.cuda and not torch["arch_flags"]:
        return failed(f"{_name(found)} has code for no GPU architecture", seconds=seconds)
    return passed(" ".join([_name(found), *torch["arch_flags"]]), seconds=seconds)


@check("torch-files", needs="facts")
def files(subject: Subject) -> Verdict:
    """Every file of torch exists with the size that its RECORD says.

    Fails for a torch that a later install step has partly overwritten. Where the image is emulated,
    its layers are judged instead.
    """
    damaged = subject.facts["torch"]["damaged"]
    if damaged is None:
        return by_files(subject, TORCH.search, "as its RECORD says")
    if damaged:
        shown = ", ".join(damaged[:SHOWN])
        return failed(f"{count(len(damaged), 'file')} not as installed: {shown}")
    return passed("as its RECORD says")


@check("torch-layers", needs=("manifest", "lock"))
def layers(subject: Subject) -> Verdict:
    """Torch was the locked one after every install layer, not only after the last.

    Fails for a layer that swaps or removes torch, even if a later layer restores it.
    """
    locked = _locked(subject)
    seen: list[str] = []
    for layer in subject.manifest.get("layers", []):
        if layer["torch"] is None:
            if seen:
                return failed(f"layer {layer['group']}: torch is gone, {seen[-1]} had it")
            continue
        found = TorchBuild(version=layer["torch"]["version"], cuda=layer["torch"]["cuda"])
        if found != locked:
            return failed(f"after layer {layer['group']}: {_difference(found, locked)}")
        seen.append(layer["group"])
    if not seen:
        return failed("the manifest has no layer with torch in it")
    return passed(f"{_name(locked)} after {seen[0]} and every layer above it ({len(seen) - 1})")


def _locked(subject: Subject) -> TorchBuild:
    if subject.resolution is None:
        raise ValueError('a check that reads the locked torch needs "lock"')
    return subject.resolution.torch


def _name(torch: TorchBuild) -> str:
    return f"{torch.version} (CUDA {torch.cuda})" if torch.cuda else f"{torch.version} (no CUDA)"


def _difference(found: TorchBuild, locked: TorchBuild) -> str:
    text = f"torch is {_name(found)}, locked is {_name(locked)}"
    if locked.cuda and not found.cuda:
        return f"{text}: a CPU build, which cannot use the GPU"
    return text

"""Is torch the build that was locked? A resolver that swaps it for a CPU build is the oldest fault
of such images.
"""

from __future__ import annotations

from imagefactory.locking.lock import TorchBuild
from imagefactory.verifying.registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject


@check("probe")
def probe(subject: Subject) -> Verdict:
    """The image's Python runs and reports."""
    if subject.probed.facts is None:
        return failed(subject.probed.error, seconds=subject.probed.seconds)
    facts = subject.facts
    return passed(f"Python {facts['python']} on {facts['machine']}", seconds=subject.probed.seconds)


@check("torch-identity", needs=("facts", "lock"))
def identity(subject: Subject) -> Verdict:
    """The torch that is imported is the locked one."""
    torch = subject.facts["torch"]
    if torch["error"]:
        return failed(f"import torch: {torch['error']}", seconds=torch["seconds"])
    found, locked = TorchBuild(version=torch["version"], cuda=torch["cuda"]), _locked(subject)
    if found != locked:
        return failed(_difference(found, locked), seconds=torch["seconds"])
    if locked.cuda and not torch["arch_flags"]:
        return failed(
            f"{_name(found)} holds code for no GPU architecture", seconds=torch["seconds"]
        )
    return passed(" ".join([_name(found), *torch["arch_flags"]]), seconds=torch["seconds"])


@check("torch-files", needs="facts")
def files(subject: Subject) -> Verdict:
    """No later step damaged torch's files."""
    damaged = subject.facts["torch"]["damaged"]
    if damaged:
        return failed(f"{len(damaged)} files are not as installed: " + ", ".join(damaged[:3]))
    return passed("as its RECORD says")


@check("torch-layers", needs=("facts", "lock"))
def layers(subject: Subject) -> Verdict:
    """Torch was the locked one after every install layer, not only after the last."""
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
        return failed("the manifest names no layer with torch in it")
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
        return f"{text}: a CPU build took its place, nothing can run on the GPU"
    return text

"""Prepares the tree for a build against an installed torch: what would still be pulled?

The files that a build reads requirements from are copied; upstream's own ``use_existing_torch.py``
runs in the copy, as its users run it. Then everything that could bring another torch is read: the
build system's requirements (``pyproject.toml``), the list that is installed for a build without
isolation (``requirements/build.txt``, from 0.20 ``requirements/build/cuda.txt``) and what the
wheel's metadata would ask for: ``get_requirements()`` of setup.py, taken out of it and run for a
CUDA 13 machine. A tree without the script is judged as it is.
"""

import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import proofkit

SCRIPTS = ("use_existing_torch.py", "tools/use_existing_torch.py")
BUILD_LISTS = ("requirements/build/cuda.txt", "requirements/build.txt")
FAMILY = {
    "torch",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "triton",
    "pytorch-triton",
    "torchdata",
    "torchtext",
}
PLATFORMS = ("_no_device", "_is_cuda", "_is_hip", "_is_tpu", "_is_cpu", "_is_xpu")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9_.*+!-]+"
VERSIONS = rf"\(?\s*{VERSION}(?:\s*,\s*{VERSION})*\s*,?\s*\)?"
REQUIREMENT = re.compile(
    rf"{NAME.pattern}\s*(?:\[[A-Za-z0-9._,\s-]*\])?\s*(?:@\s*\S+|{VERSIONS})?\s*(?:;.*)?$"
)
#: A distribution's name as the index has it, and the requirement as it is written.
Requirement = tuple[str, str]


class UnreadableError(Exception):
    """The script left something that no build can read."""


def named(line: str) -> Requirement:
    """A line of PEP 508. Raises Inconclusive for another one."""
    text = re.split(r"(?:^|\s)#", line)[0].strip()
    name = NAME.match(text)
    if name is None or not REQUIREMENT.match(text):
        raise proofkit.Inconclusive(f"not a requirement: {line!r}")
    return re.sub(r"[-_.]+", "-", name[0]).lower(), text


def lines(tree: Path, name: str) -> Iterator[str]:
    """The requirements of a file and of the files that it names."""
    for line in map(str.strip, proofkit.read(tree / name).splitlines()):
        if line.startswith("-r "):
            yield from lines(tree, (Path(name).parent / line.split()[1]).as_posix())
        elif line and not line.startswith(("#", "-")):
            yield line


def of_the_wheel(tree: Path) -> list[str]:
    """What setup.py would write into the metadata of a wheel for CUDA 13."""
    torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0", hip=None))
    space: proofkit.Space = {"ROOT_DIR": tree, "torch": torch, "sys": sys}
    space |= {name: lambda found=name == "_is_cuda": found for name in PLATFORMS}
    setup = proofkit.Source(tree / "setup.py")
    found: list[str] = setup.run(["get_requirements"], space)["get_requirements"]()
    return found


def asked(tree: Path) -> dict[str, set[Requirement]]:
    """Everything that a build and its wheel ask for, by where that is written."""
    project = tomllib.loads(proofkit.read(tree / "pyproject.toml"))
    built = next((name for name in BUILD_LISTS if (tree / name).is_file()), None)
    if built is None:
        raise proofkit.Inconclusive("no list of what is needed to build")
    if "dependencies" not in project["project"]["dynamic"]:
        raise proofkit.Inconclusive("the wheel's requirements do not come from setup.py")
    found: dict[str, Iterable[str]] = {
        "pyproject.toml": project["build-system"]["requires"],
        built: lines(tree, built),
        "the wheel": of_the_wheel(tree),
    }
    return {where: set(map(named, requirements)) for where, requirements in found.items()}


def family(found: Iterable[Requirement]) -> set[Requirement]:
    """The requirements of the torch family."""
    return {(name, text) for name, text in found if name in FAMILY}


def copied(tree: Path, folder: Path) -> Path:
    """A copy of what the script may touch and the build reads."""
    shutil.copytree(tree / "requirements", folder / "requirements")
    for name in ("pyproject.toml", "setup.py", *SCRIPTS):
        if (tree / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(tree / name, folder / name)
    return folder


def prepared(tree: Path, folder: Path, *options: str) -> dict[str, set[Requirement]]:
    """What is asked for after the script ran in a copy; nothing where there is no script."""
    copy = copied(tree, folder)
    script = next((name for name in SCRIPTS if (copy / name).is_file()), None)
    if script is None:
        return {}
    code, said = proofkit.command([sys.executable, "-B", script, *options], copy)
    if code != 0:
        raise proofkit.Inconclusive(f"{script} failed: {said.strip().splitlines()[-1:]}")
    try:
        return asked(copy)
    except (KeyError, tomllib.TOMLDecodeError) as error:
        what = f"after {script} pyproject.toml cannot be read: {error!r}"
        raise UnreadableError(what) from error


def listed(requirements: Iterable[Requirement]) -> str:
    """Requirements as text."""
    return ", ".join(sorted(text for _, text in requirements))


def compared(tree: Path, folder: Path) -> proofkit.Verdict:
    """What the script leaves of torch, and what else it takes."""
    before, after = asked(tree), prepared(tree, folder / "default")
    pinned = family(before["the wheel"])
    if not pinned and after:
        what = "nothing of torch is asked for by the wheel, and yet there is a script against it"
        raise proofkit.Inconclusive(what)
    brought = {where: family(found) for where, found in (after or before).items()}
    broken = [f"{where} would bring {listed(found)}" for where, found in brought.items() if found]
    if not after:
        broken = [f"no use_existing_torch.py: {each}" for each in broken]
        return proofkit.verdict(broken, right="nothing of torch is asked for")
    for where, found in before.items():
        if lost := found - after[where] - family(found):
            broken.append(f"{where} lost {listed(lost)}")
    narrow = prepared(tree, folder / "prefix", "--prefix")
    kept = {each for found in narrow.values() for each in family(found)}
    seen = f"use_existing_torch.py takes {listed(pinned)} out of all that a build reads"
    more = f"; with --prefix it would leave {listed(kept)}" if kept else ""
    return proofkit.verdict(broken, right=f"{seen}, and nothing else{more}")


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a torch that would be pulled, or anything else that would not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return compared(tree, Path(folder))
        except UnreadableError as error:
            return proofkit.Verdict(proofkit.SYMPTOM, str(error))


if __name__ == "__main__":
    proofkit.main(judge)

"""Prepares TREE for a build against an installed torch, as vLLM documents it, and asks what would still be pulled.

    python proof.py TREE

The files that a build reads requirements from are copied; upstream's own ``use_existing_torch.py`` runs in the copy,
as its users run it. Then everything that could bring another torch is read: the build system's requirements
(``pyproject.toml``), the list that is installed for a build without isolation (``requirements/build.txt``, from 0.20
``requirements/build/cuda.txt``) and what the wheel's metadata would ask for: ``get_requirements()`` of setup.py, taken
out of it and run for a CUDA 13 machine. A tree without the script is judged as it is.
"""

import ast
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import types

SCRIPTS = ("use_existing_torch.py", "tools/use_existing_torch.py")
BUILD_LISTS = ("requirements/build/cuda.txt", "requirements/build.txt")
FAMILY = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "pytorch-triton", "torchdata", "torchtext"}
NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9_.*+!-]+"
REQUIREMENT = re.compile(
    rf"{NAME.pattern}\s*(?:\[[A-Za-z0-9._,\s-]*\])?\s*(?:@\s*\S+|\(?\s*{VERSION}(?:\s*,\s*{VERSION})*\s*,?\s*\)?)?\s*(?:;.*)?$"
)


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class Symptom(Exception):
    """The script left something that no build can read."""


def named(line):
    """(name as the index has it, requirement) of a line of PEP 508."""
    text = re.split(r"(?:^|\s)#", line)[0].strip()
    if not REQUIREMENT.match(text):
        raise Unknown(f"not a requirement: {line!r}")
    return re.sub(r"[-_.]+", "-", NAME.match(text)[0]).lower(), text


def lines(tree, name):
    """The requirements of a file and of the files that it names."""
    for line in map(str.strip, (tree / name).read_text(encoding="utf-8").splitlines()):
        if line.startswith("-r "):
            yield from lines(tree, (pathlib.Path(name).parent / line.split()[1]).as_posix())
        elif line and not line.startswith(("#", "-")):
            yield line


def of_the_wheel(tree):
    """What setup.py would write into the metadata of a wheel for CUDA 13."""
    code = ast.parse((tree / "setup.py").read_text(encoding="utf-8"))
    functions = [n for n in code.body if isinstance(n, ast.FunctionDef) and n.name == "get_requirements"]
    if len(functions) != 1:
        raise Unknown("setup.py has no get_requirements")
    platforms = ("_no_device", "_is_cuda", "_is_hip", "_is_tpu", "_is_cpu", "_is_xpu")
    space = {name: lambda found=name == "_is_cuda": found for name in platforms}
    torch = types.SimpleNamespace(version=types.SimpleNamespace(cuda="13.0", hip=None))
    space |= {"ROOT_DIR": tree, "torch": torch, "sys": sys}
    exec(compile(ast.Module(functions, []), "setup.py", "exec"), space)
    return space["get_requirements"]()


def asked(tree):
    """{where: {(name, requirement)}} of everything that a build and its wheel ask for."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    built = next((name for name in BUILD_LISTS if (tree / name).is_file()), None)
    if built is None:
        raise Unknown("no list of what is needed to build")
    if "dependencies" not in project["project"]["dynamic"]:
        raise Unknown("the wheel's requirements do not come from setup.py")
    found = {
        "pyproject.toml": project["build-system"]["requires"],
        built: lines(tree, built),
        "the wheel": of_the_wheel(tree),
    }
    return {where: set(map(named, all_)) for where, all_ in found.items()}


def family(found):
    """The requirements of the torch family, and all of that name."""
    return {(name, text) for name, text in found if name in FAMILY}


def copied(tree, folder):
    """A copy of what the script may touch and the build reads."""
    shutil.copytree(tree / "requirements", folder / "requirements")
    for name in ("pyproject.toml", "setup.py", *SCRIPTS):
        if (tree / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(tree / name, folder / name)
    return folder


def prepared(tree, folder, *options):
    """What is asked for after the script ran in a copy, or None where there is no script."""
    copy = copied(tree, folder)
    script = next((name for name in SCRIPTS if (copy / name).is_file()), None)
    if script is None:
        return None
    done = subprocess.run(
        [sys.executable, "-B", script, *options], cwd=copy, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Unknown(f"{script} failed: {done.stderr.strip().splitlines()[-1:]}")
    try:
        return asked(copy)
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise Symptom(f"after {script} pyproject.toml cannot be read: {error!r}") from error


def listed(requirements):
    """Requirements as text."""
    return ", ".join(sorted(text for _, text in requirements))


def symptoms(tree, folder):
    """Everything that is not as it should be, one line each; and what was seen where all is well."""
    before, after = asked(tree), prepared(tree, folder / "default")
    pinned = family(before["the wheel"])
    if not pinned and after is not None:
        raise Unknown("nothing of torch is asked for by the wheel, and yet there is a script that takes it out")
    brought = {where: family(all_) for where, all_ in (after or before).items()}
    broken = [f"{where} would bring {listed(all_)}" for where, all_ in brought.items() if all_]
    if after is None:
        return [f"no use_existing_torch.py: {each}" for each in broken], "nothing of torch is asked for"
    for where, all_ in before.items():
        if lost := all_ - after[where] - family(all_):
            broken.append(f"{where} lost {listed(lost)}")
    narrow = prepared(tree, folder / "prefix", "--prefix")
    kept = {each for all_ in narrow.values() for each in family(all_)}
    seen = f"use_existing_torch.py takes {listed(pinned)} out of all that a build reads, and nothing else"
    return broken, f"{seen}{f'; with --prefix it would leave {listed(kept)}' if kept else ''}"


def main(tree):
    """Judge a tree; the exit code."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            broken, seen = symptoms(pathlib.Path(tree), pathlib.Path(folder))
    except Symptom as error:
        broken, seen = [str(error)], ""
    except Exception as error:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
        print(f"cannot be told: {error!r}")
        return 3
    print("; ".join(broken) or seen)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Spoilt images: files, modes, links, variables and settings changed at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from support.odd_layers import SEEN
from support.whole_images import BASE, SITE, Node, WholeImage, names

from faults import Outcome
from imagefactory.verifying.outside.tree import DamagedError

Fault = Callable[[random.Random, WholeImage], str]

#: Not every Python writes it.
_OPTIONAL = ("opt/venv/.gitignore",)


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Spoil a good image in one to three ways, and judge it."""
    master = WholeImage(folder)
    if wrong := _findings(master):
        yield Outcome(fault="nothing was spoilt", held=False, detail=names(wrong))
    chance = random.Random(seed)  # noqa: S311 - attacks are to be repeatable
    for name, above in chance.sample(sorted(SEEN.items()), min(count, len(SEEN))):
        said = _findings(master, *above)
        yield Outcome(fault=name, held=bool(said), detail="nothing was found")
    for number in range(count):
        image = master.copy()
        done = [chance.choice(FAULTS)(chance, image) for _ in range(chance.randint(1, 3))]
        fault = f"{number}: {', then '.join(done)}"
        if image.tree == master.tree and image.config == master.config:
            continue  # one fault undid the other
        yield Outcome(fault=fault, held=bool(_findings(image)), detail="nothing was found")


def _findings(image: WholeImage, *above: bytes) -> tuple[object, ...]:
    """What is wrong with an image that has the layers ``above``."""
    try:
        found = image.judged(None, *above)
    except DamagedError as error:
        return (error,)
    return (*found.config, *found.changed, *found.extra)


def _some(chance: random.Random, image: WholeImage) -> str:
    """A file of the image or of its base that is not empty."""
    tree = {**BASE, **image.tree}
    return chance.choice([path for path, node in tree.items() if node.data])


def _flip(chance: random.Random, image: WholeImage) -> str:
    path = _some(chance, image)
    data = bytearray(image.data(path))
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    image.edit(path, bytes(data))
    return f"a bit of {path} flipped"


def _truncate(chance: random.Random, image: WholeImage) -> str:
    path = _some(chance, image)
    data = image.data(path)
    image.edit(path, data[: chance.randrange(len(data))])
    return f"{path} cut"


def _append(chance: random.Random, image: WholeImage) -> str:
    path = _some(chance, image)
    image.edit(path, image.data(path) + chance.randbytes(chance.randint(1, 50)))
    return f"{path} longer"


def _remove(chance: random.Random, image: WholeImage) -> str:
    files = (path for path, node in image.tree.items() if node.data or node.link)
    path = chance.choice([path for path in files if path not in _OPTIONAL])
    del image.tree[path]
    return f"{path} removed"


def _add(chance: random.Random, image: WholeImage) -> str:
    folder = chance.choice([SITE, f"{SITE}/vllm", "usr/lib/python3", "etc", "opt/venv/bin", "root"])
    name = chance.choice(["evil.pth", "sitecustomize.py", "evil.py", "evil/__init__.py", "evil.so"])
    image.tree[f"{folder}/{name}"] = Node(data=chance.randbytes(9))
    return f"{folder}/{name} added"


def _chmod(chance: random.Random, image: WholeImage) -> str:
    path = _some(chance, image)
    node = image.tree.get(path) or BASE[path]
    mode = node.mode ^ chance.choice([0o001, 0o002, 0o111, 0o4000, 0o2000, 0o400])
    image.tree[path] = replace(node, mode=mode)
    return f"{path} has the mode {mode:o}"


def _chown(chance: random.Random, image: WholeImage) -> str:
    path = _some(chance, image)
    image.tree[path] = replace(image.tree.get(path) or BASE[path], owner=1000)
    return f"{path} has another owner"


def _link(chance: random.Random, image: WholeImage) -> str:
    path = _some(chance, image)
    image.tree[path] = Node(link=chance.choice(["/srv/evil", "../evil"]))
    return f"{path} is a link"


def _white_out(chance: random.Random, image: WholeImage) -> str:
    path = chance.choice([path for path, node in BASE.items() if node.data or node.link])
    folder, _, name = path.rpartition("/")
    image.tree[f"{folder}/.wh.{name}"] = Node(data=b"")
    return f"{path} whited out"


def _variable(chance: random.Random, image: WholeImage) -> str:
    name = chance.choice(["LD_PRELOAD", "PYTHONPATH", "PATH", "IMAGEFACTORY_SERVE_ARGS", "X"])
    image.config["config"]["Env"].append(f"{name}=/evil")
    return f"{name} set"


def _setting(chance: random.Random, image: WholeImage) -> str:
    name = chance.choice(["Entrypoint", "Cmd", "User", "WorkingDir", "Shell", "OnBuild"])
    image.config["config"][name] = ["/evil"]
    return f"{name} set"


def _label(chance: random.Random, image: WholeImage) -> str:
    labels = image.config["config"]["Labels"]
    name = chance.choice([*labels, "evil"])
    labels[name] = "evil"
    return f"label {name} set"


FAULTS: tuple[Fault, ...] = (
    _flip,
    _flip,
    _truncate,
    _append,
    _remove,
    _add,
    _chmod,
    _chown,
    _link,
    _white_out,
    _variable,
    _setting,
    _label,
)

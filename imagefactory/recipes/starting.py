"""The container that serves a recipe. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from imagefactory.errors import InputError, Problem
from imagefactory.launching.launching import TUNED, TUNINGS, Launch, Mount, Port, cache_of
from imagefactory.recipes.recipe import Setup

#: The named volume with models and compiled kernels, unless the user names another or a folder.
VOLUME = "imagefactory-cache"
#: Where a model of the host is in the container.
MODEL = "/model"
#: Passed on to containers by name, for models that have to be asked for.
TOKEN = "HF_TOKEN"
SERVED = "served-model-name"
#: GiB of `/dev/shm` for a server on a CPU, whose workers share it.
_CPU_SHM = 1 << 30
#: GiB of KV cache on a CPU, as releases up to 0.19 have by default; later ones want 0.92 of all the
#: machine's memory and end if less is free.
_CPU_CACHE, _CPU_CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE", "4"
#: What Docker takes as the name of a container or volume.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user chooses about the container.

    Attributes:
        name: the container's; empty is the recipe's.
        address: at which the host publishes the port.
        port: of the host.
        cache: a named volume, or an absolute path of the host.
        model: a folder of the host with the model; empty leaves it to be downloaded.
        tunings: a folder of the host with tuned kernels for a GPU; empty is none.
        tuned: its files, for a form that brings them along.
        restart: whether the engine starts it again.
        user: whom it runs as, by number; empty is whom the recipe says, else root.
        memory_bytes: the most memory that it may use; None is no limit.
    """

    name: str = ""
    address: str = "127.0.0.1"
    port: int = 8000
    cache: str = VOLUME
    model: str = ""
    tunings: str = ""
    tuned: Mapping[str, str] = field(default_factory=dict)
    restart: bool = False
    user: str = ""
    memory_bytes: int | None = None


def launch(setup: Setup, image: str, hardware: str, wishes: Wishes = Wishes()) -> Launch:
    """The container of ``image`` that serves on one node.

    A model of the host is served under the name that its recipe has for it. Raises InputError for
    wishes that no engine could fulfil.
    """
    if problems := [*_problems(wishes)]:
        raise InputError(problems)
    recipe = setup.recipe
    arguments, environment = list(setup.arguments), {**setup.env}
    if hardware == "cpu":
        arguments = _without(arguments, "--gpu-memory-utilization")
        environment = {_CPU_CACHE: _CPU_CACHE_GIB, **environment}
    if wishes.model and SERVED not in setup.options:
        arguments = [*arguments, f"--{SERVED}", recipe.model]
    user = wishes.user or recipe.user
    mounts = [Mount(source=wishes.cache, target=cache_of(user))]
    if wishes.model:
        mounts.append(Mount(source=wishes.model, target=MODEL, read_only=True))
    if wishes.tunings and takes_tunings(setup, hardware):
        tuned = Mount(source=wishes.tunings, target=TUNINGS, read_only=True, files=wishes.tuned)
        mounts.append(tuned)
        environment[TUNED] = TUNINGS
    inside = Port(host=wishes.port, address=wishes.address)
    model = MODEL if wishes.model else recipe.model
    return Launch(
        name=wishes.name or _UNFIT.sub("-", recipe.name),
        image=image,
        command=("serve", model, "--port", str(inside.container), *arguments),
        user=user,
        environment=environment,
        passed_on=(TOKEN,),
        mounts=tuple(mounts),
        ports=(inside,),
        gpus=hardware != "cpu",
        shm_bytes=_CPU_SHM if hardware == "cpu" else 16 << 30,
        memory_bytes=wishes.memory_bytes,
        restart=wishes.restart,
    )


def takes_tunings(setup: Setup, hardware: str) -> bool:
    """Whether tuned kernels of the project are of use: a GPU, and a recipe without its own."""
    return hardware != "cpu" and TUNED not in setup.env


def _problems(wishes: Wishes) -> Iterator[Problem]:
    if wishes.name and not _NAME.fullmatch(wishes.name):
        what = f"{wishes.name!r} cannot be the name of a container"
        fix = "write letters, digits, '_', '.' and '-', two at least"
        yield Problem(code="launch-name", what=what, fix=fix)
    try:
        ipaddress.ip_address(wishes.address)
    except ValueError:
        what = f"{wishes.address!r} is no IP address"
        fix = "write 127.0.0.1, 0.0.0.0 for the network, or another of this machine"
        yield Problem(code="launch-address", what=what, fix=fix)
    for source in (wishes.cache, *filter(None, (wishes.model, wishes.tunings))):
        if ":" in source:
            what, fix = (
                f"{source} has a colon: it cannot be mounted",
                "give the folder another name",
            )
            yield Problem(code="launch-mount", what=what, fix=fix)
        elif not source.startswith("/") and not _NAME.fullmatch(source):
            what, fix = f"{source!r} cannot be the name of a volume", "write ./NAME for a folder"
            yield Problem(code="launch-mount", what=what, fix=fix)


def _without(arguments: list[str], option: str) -> list[str]:
    """``arguments`` without an option and its value."""
    if option not in arguments:
        return arguments
    at = arguments.index(option)
    return arguments[:at] + arguments[at + 2 :]

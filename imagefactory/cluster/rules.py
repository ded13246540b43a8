"""What ``cluster.yaml`` must keep to, beyond its keys and types. Pure."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterator
from itertools import zip_longest
from math import prod

from imagefactory.cluster.schema import FileKeys, NodeKeys
from imagefactory.errors import InputError, Problem
from imagefactory.launching.launching import TUNED, TUNINGS, USER, cache_of
from imagefactory.system import reference
from imagefactory.system.yamlfile import Loc, Positions

#: Nothing that begins with ``-``: ssh would take it for an option.
_HOST = re.compile(
    r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(?::(?P<port>[0-9]{1,5}))?"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_MODEL = re.compile(r"[^\s-]\S*")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_USER = re.compile(USER)
_SIZE = re.compile(r"0*[1-9][0-9]{0,4}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOUNT = re.compile(r"(/[^:]*|[A-Za-z0-9][A-Za-z0-9_.-]*):(/[^:]*)(:ro)?")
IPV6 = 6
#: Where vLLM's processes, and Ray's, find the head.
MASTER_PORT, RAY_PORT = 29501, 6379
#: Options of vLLM that follow from the nodes.
DERIVED = (
    *("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless"),
    *("--distributed-executor-backend", "--port"),
)
#: Options that say how many parts a model is cut into.
SIZES = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
)


def problems(file: FileKeys, args: tuple[str, ...], positions: Positions) -> Iterator[Problem]:
    """All problems of ``file`` beyond its keys and types; ``args`` are its split options."""
    yield from _Rules(file, args, positions).problems()


class _Rules:
    def __init__(self, file: FileKeys, args: tuple[str, ...], positions: Positions) -> None:
        self._file = file
        self._args = args
        self._positions = positions

    def problems(self) -> Iterator[Problem]:
        """All problems."""
        yield from self._top()
        yield from self._vllm()
        if not self._file.nodes:
            yield self._bad(("nodes",), "nodes", "there is no node", "list at least one host")
        for number, node in enumerate(self._file.nodes):
            yield from self._node(number, node)
        yield from self._together()

    def _top(self) -> Iterator[Problem]:
        file = self._file
        if (file.image is None) == (file.cell is None):
            fix = "write `image:` with a reference, or `cell:` with the name of a cell"
            yield self._bad((), "image", "exactly one of 'image' and 'cell' is needed", fix)
        texts = [("name", file.name, _NAME, "write lower-case letters, digits and dashes")]
        for key, text, pattern, fix in texts:
            yield from self._match((key,), key, text, pattern, fix)
        yield from self._image()
        if not _is_port(file.port):
            yield self._bad(("port",), "port", f"{file.port} is no port", "write 1 to 65535")
        if file.port == (RAY_PORT if file.executor == "ray" else MASTER_PORT):
            what = f"{file.port} is where the nodes find the head"
            yield self._bad(("port",), "port", what, "write another, such as 8000")
        if file.user is not None:
            fix = "write UID or UID:GID, in quotes"
            yield from self._match(("user",), "user", file.user, _USER, fix)
        yield from self._mounts()
        fix = "write the name of an environment variable"
        for number, name in enumerate(file.pass_on):
            yield from self._match(("pass_on", number), "variable", name, _VARIABLE, fix)
        for name in file.environment:
            yield from self._match(("environment", name), "variable", name, _VARIABLE, fix)

    def _mounts(self) -> Iterator[Problem]:
        file, own = self._file, cache_of(self._file.user or "")
        fix = "write SOURCE:TARGET or SOURCE:TARGET:ro; paths are absolute"
        yield from self._match(("cache",), "mount", f"{file.cache}:{own}", _MOUNT, fix)
        taken = {own} if TUNED in file.environment else {own, TUNINGS}
        for number, text in enumerate(file.mounts):
            yield from self._match(("mounts", number), "mount", text, _MOUNT, fix)
            target = posixpath.normpath(text.removesuffix(":ro").rpartition(":")[2])
            if target in taken:
                what = f"{target} is the target of another mount"
                other = f"mount it elsewhere: the cache is at {own}, tuned kernels at {TUNINGS}"
                yield self._bad(("mounts", number), "mount", what, other)
            taken.add(target)

    def _image(self) -> Iterator[Problem]:
        try:
            if self._file.image is not None:
                reference.parse(self._file.image)
        except InputError as error:
            (problem,) = error.problems
            yield self._bad(("image",), "image", problem.what, problem.fix)

    def _vllm(self) -> Iterator[Problem]:
        model, recipe = self._file.model, self._file.recipe
        if (model is None) == (recipe is None):
            fix = "write `model:` as vLLM names it, or `recipe:` with the name of a recipe"
            yield self._bad((), "model", "exactly one of 'model' and 'recipe' is needed", fix)
        if model is not None and not _MODEL.fullmatch(model):
            fix = "write ORGANIZATION/NAME or a folder of the container"
            yield self._bad(("model",), "model", f"{model!r} is no model", fix)
        if recipe is not None and self._file.cell is None:
            what = "a recipe is checked against the cell that serves it"
            yield self._bad(("recipe",), "recipe", what, "write `cell:` in place of `image:`")
        if self._args and not self._args[0].startswith("-"):
            what = f"{self._args[0]!r} is no option of vllm serve"
            yield self._bad(("args",), "args", what, "write --OPTION VALUE; `model:` is the model")
        for option in DERIVED:
            if value_of(self._args, option) is not None:
                what = f"{option} follows from the nodes, the executor and the port"
                yield self._bad(("args",), "derived-option", what, "remove it")
        yield from self._sizes()

    def _sizes(self) -> Iterator[Problem]:
        sizes = [value_of(self._args, *names) for names in SIZES]
        given = [size for size in sizes if size is not None]
        if not given or not all(size.isdecimal() for size in given):
            return  # a value that is no number is vLLM's to refuse
        if wrong := [size for size in given if not _SIZE.fullmatch(size)]:
            what, fix = f"a model cannot be cut into {wrong[0]:.20} parts", "write 1 to 99999"
            yield self._bad(("args",), "parallel-size", what, fix)
            return
        ranks, nodes = prod(map(int, given)), len(self._file.nodes)
        if nodes and ranks % nodes:
            what = f"{ranks} ranks (tensor x pipeline x data) on {nodes} nodes"
            fix = f"make their product a multiple of {nodes}"
            yield self._bad(("args",), "parallel-size", what, fix)

    def _node(self, number: int, node: NodeKeys) -> Iterator[Problem]:
        loc: Loc = ("nodes", number)
        fix = "write [USER@]HOST[:PORT]; ~/.ssh/config can name any other, an IPv6 address too"
        yield from self._match((*loc, "host"), "host", node.host, _HOST, fix)
        if (found := _HOST.fullmatch(node.host)) and found["port"] and not _is_port(found["port"]):
            what = f"{found['port']} is no port"
            yield self._bad((*loc, "host"), "host", what, "write 1 to 65535")
        if problem := self._wrong_address(node.address):
            fix = "write the address of the node in the network of the nodes: ip -br address"
            yield self._bad((*loc, "address"), "address", problem, fix)
        for key, names in (("interfaces", node.interfaces), ("rdma", node.rdma)):
            fix = {"interfaces": "ip -br link lists them", "rdma": "ibdev2netdev lists them"}[key]
            for index, name in enumerate(names):
                yield from self._match((*loc, key, index), "device", name, _DEVICE, fix)

    def _wrong_address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return f"{text!r} is no IP address"
        several = len(self._file.nodes) > 1
        if several and (address.is_loopback or address.is_unspecified or address.is_multicast):
            return f"no other node reaches this one at {text}"
        if address.version == IPV6 and self._file.executor == "ray":
            return "Ray's nodes have IPv4 addresses"
        return ""

    def _together(self) -> Iterator[Problem]:
        nodes = self._file.nodes
        for key, same in (("host", machine), ("address", plain_address)):
            lines: dict[str, int] = {}
            for number, node in enumerate(nodes):
                loc: Loc = ("nodes", number, key)
                text, line = getattr(node, key), self._positions.line(loc)
                if (value := same(text)) in lines:
                    what = f"{key} {text} is also that of the node on line {lines[value]}"
                    yield self._bad(loc, f"same-{key}", what, "each node has its own")
                lines.setdefault(value, line)
        if len({":" in node.address for node in nodes}) > 1:
            what = "some addresses are of IPv4 and some of IPv6"
            yield self._bad(("nodes",), "address", what, "write those of one network")
        heads = [number for number, node in enumerate(nodes) if node.role == "head"]
        for number in heads[1:]:
            loc = ("nodes", number, "role")
            yield self._bad(loc, "heads", "there is a head already", "make it a worker")
        if nodes and all(node.role == "worker" for node in nodes):
            yield self._bad(("nodes",), "heads", "all nodes are workers", "make one the head")

    def _match(
        self, loc: Loc, code: str, text: str, pattern: re.Pattern[str], fix: str
    ) -> Iterator[Problem]:
        if not pattern.fullmatch(text):
            yield self._bad(loc, code, f"{text!r} cannot be used as {code}", fix)

    def _bad(self, loc: Loc, code: str, what: str, fix: str) -> Problem:
        where = str(self._positions.locate(loc))
        return Problem(code=f"cluster-{code}", where=where, what=what, fix=fix)


def machine(host: str) -> str:
    """What a host is told apart by: whoever logs in, it is the same machine."""
    return host.rpartition("@")[2].lower().removesuffix(":22")


def plain_address(text: str) -> str:
    """An address as systems write it; what is none stays as it is."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def _is_port(number: str | int) -> bool:
    return 0 < int(number) < 1 << 16


def value_of(args: tuple[str, ...], *names: str) -> str | None:
    """The last value of an option in ``args``, by any of its names; None if it is not there."""
    found = None
    for word, following in zip_longest(args, args[1:], fillvalue=""):
        name, equals, value = word.replace("_", "-").partition("=")
        if name in names:
            found = value if equals else following
    return found

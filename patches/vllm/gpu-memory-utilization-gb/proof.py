"""Starts a server of vLLM as far as its memory budget, with ``--gpu-memory-utilization-gb`` or not.

vLLM's own code is run, taken out of its files: the command line's parser and the cache group of its
arguments, EngineArgs, the statements that make the CacheConfig of them, that class with its limits
and validators, the constructor of LLM, and the worker's statement that requests memory with the
function that it calls. Stand-ins are for the rest of vLLM, for torch, and for pydantic (fields,
their limits, validators): what is not in Python is not needed.
"""

import ast
import builtins
import contextlib
import dataclasses
import inspect
import io
import math
import operator
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import proofkit

IMPORTS = (ast.Import, ast.ImportFrom)
GIB = 2**30
VISIBLE = math.floor(111.27 * GIB)  # what a GB10 of 128 GB shows
FLAG, FRACTION = "--gpu-memory-utilization-gb", "--gpu-memory-utilization"
BUDGET = re.compile(r"gpu[-_]memory[-_]utilization|kv[-_]cache[-_]memory[-_]bytes")
#: What goes wrong in vLLM's code where a flag is there, but not all of what it needs.
MISTAKES = (AttributeError, NameError, ImportError, TypeError, ValueError, OverflowError)
LIMITS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}


class FieldInfo:
    """What pydantic's Field gives: a default and its limits."""

    init = None

    def __init__(
        self, default: Any = dataclasses.MISSING, default_factory: Any = None, **limits: Any
    ) -> None:
        self.default, self.default_factory, self.limits = default, default_factory, limits

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError in pydantic's words for a value beyond the limits."""
        if value is None:
            return
        for limit, words in LIMITS.items():
            bound = self.limits.get(limit)
            if bound is not None and not getattr(operator, limit)(float(value), float(bound)):
                raise ValueError(f"{name}: Input should be {words} {bound}, got {value}")
        if self.limits.get("allow_inf_nan") is False and not math.isfinite(value):
            raise ValueError(f"{name}: Input should be a finite number, got {value}")


@dataclasses.dataclass
class Validator:
    """A validator of a pydantic class: of the fields ``names``, or of the whole."""

    names: tuple[str, ...]
    mode: str
    function: Any

    def __call__(self, owner: type, value: Any, data: Mapping[str, Any]) -> Any:
        function = getattr(self.function, "__func__", self.function)
        extra: list[Any] = [lambda v: v] if self.mode == "wrap" else []
        if len(inspect.signature(function).parameters) > 2 + len(extra):
            extra.append(SimpleNamespace(data=data))
        return function(owner, value, *extra)


def config(cls: Any = None, **_named: object) -> Any:
    """Makes a class of fields as vLLM's ``config`` does: an object's limits and validators hold."""
    if cls is None:
        return config
    made: Any = dataclasses.dataclass(kw_only=True, init=False, eq=False)(cls)
    fields = {field.name: field for field in dataclasses.fields(made)}
    infos = {n: f.default for n, f in fields.items() if isinstance(f.default, FieldInfo)}
    for name, info in infos.items():
        setattr(made, name, info.default)
    validators = [v for v in vars(cls).values() if isinstance(v, Validator)]

    def default(name: str) -> Any:
        info = infos.get(name, fields[name])
        if info.default is not dataclasses.MISSING:
            return info.default
        return info.default_factory() if callable(info.default_factory) else None

    def init(self: Any, **given: Any) -> None:
        if unknown := given.keys() - {name for name, field in fields.items() if field.init}:
            raise ValueError(f"{', '.join(sorted(unknown))}: Unexpected keyword argument")
        for name in fields:
            setattr(self, name, given[name] if name in given else default(name))
            infos.get(name, FieldInfo()).check(name, given.get(name))
            for validator in (v for v in validators if name in v.names and name in given):
                setattr(self, name, validator(made, getattr(self, name), vars(self)))
        for hook in (v.function for v in validators if not v.names and v.mode == "after"):
            hook(self)
        getattr(self, "__post_init__", lambda: None)()

    made.__init__ = init
    return made


PYDANTIC = proofkit.mocked(
    "pydantic",
    Field=FieldInfo,
    FieldInfo=FieldInfo,
    field_validator=lambda *names, mode="after": lambda function: Validator(names, mode, function),
    model_validator=lambda mode="after": lambda function: Validator((), mode, function),
)
PYDANTIC.fields = PYDANTIC


class Code(proofkit.Source):
    """A file of the tree. Its imports bind what Python has, what ``known`` has, and else mocks."""

    def __init__(self, tree: Path, name: str, **known: object) -> None:
        super().__init__(tree / name)
        self.known, self.constants = known, tree / "vllm/utils/mem_constants.py"
        typed = {name: getattr(typing, name) for name in typing.__all__}
        self.modules = {"pydantic": PYDANTIC, "pydantic.fields": PYDANTIC, "regex": re}
        self.modules["typing_extensions"] = proofkit.mocked("typing_extensions", **typed)
        python = {**vars(builtins), "__import__": self._import}
        self.space = {"__builtins__": python, "__name__": "builtins", **known}
        blocks = [self.module.body, *(n.body for n in self.module.body if isinstance(n, ast.If))]
        self.add(node for block in blocks for node in block if isinstance(node, IMPORTS))

    def _import(self, name: str, _globals: Any, _locals: Any, wanted: Any, level: int) -> Any:
        if name.endswith("mem_constants"):
            constants = proofkit.Source(self.constants)
            return SimpleNamespace(**constants.run(constants.module.body))
        if level == 0 and name.partition(".")[0] in sys.stdlib_module_names:
            return __import__(name, None, None, wanted, 0)
        if level == 0 and name in self.modules:
            return self.modules[name]
        found = proofkit.mocked(name)
        for each in wanted or ():
            if each in self.known or each.startswith("__"):  # which a mock does not have
                setattr(found, each, self.known.get(each, ""))
        return found

    def add(self, nodes: Iterable[str | ast.stmt]) -> proofkit.Space:
        """Run definitions of the file in its space, by name or as they are given."""
        return self.run(nodes, self.space, annotated=True)

    def body(self) -> list[ast.stmt]:
        """The file but for its imports."""
        return [node for node in self.module.body if not isinstance(node, IMPORTS)]


def about_budget(function: ast.FunctionDef, also: str = "(?!)") -> list[ast.stmt]:
    """Statements of a function that are about the memory's budget, or have what ``also`` finds."""
    texts = {node: ast.unparse(node) for node in function.body}
    found = [n for n, text in texts.items() if BUDGET.search(text) or re.search(also, text)]
    return [n for n in found if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]


def only_budget(function: ast.FunctionDef) -> ast.FunctionDef:
    """What ``create_engine_config`` does about the budget, as far as EngineArgs alone decides."""
    function.body = [*about_budget(function), *ast.parse("return cache_config").body]
    function.args.args, function.args.defaults = function.args.args[:1], []
    assigned = [n for n in function.body if isinstance(n, ast.Assign)]
    known = {"self"} | {ast.unparse(target) for n in assigned for target in n.targets}
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "CacheConfig":
            call.func.id = "made"
            call.keywords = [k for k in call.keywords if proofkit.names_in([k.value]) <= known]
    return function


class Vllm:
    """The parts of one tree, joined."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.cache = Code(tree, "vllm/config/cache.py", config=config)
        self.cache.cls("CacheConfig")
        self.cache_config = self.cache.add(self.cache.body())["CacheConfig"]
        parser = Code(tree, "vllm/utils/argparse_utils.py")
        self.parser_class = parser.add(parser.body())["FlexibleArgumentParser"]
        human = {k: v for k, v in parser.space.items() if k.startswith("human_readable")}
        self.engine_args = self._engine_args(human)
        self.llm = Code(tree, "vllm/entrypoints/llm.py")
        self.request = self._request()

    def _engine_args(self, human: Mapping[str, Any]) -> Any:
        code = Code(self.tree, "vllm/engine/arg_utils.py", CacheConfig=self.cache_config, **human)
        owner = code.cls("EngineArgs")
        code.add(n for n in code.body() if not getattr(n, "name", "").endswith("EngineArgs"))
        code.space["made"] = lambda **given: self.cache_config(
            **{k: v for k, v in given.items() if not isinstance(v, mock.NonCallableMock)}
        )
        late = [n for n in owner.body if getattr(n, "name", "") == "__post_init__"]
        for function in (n for n in late if isinstance(n, ast.FunctionDef)):
            function.body = about_budget(function) or [ast.Pass()]
        names = ("add_cli_args", "create_engine_config", "from_cli_args")
        add, build, read = (code.function(name, of="EngineArgs") for name in names)
        group = about_budget(add, r"cache_(kwargs|group)\b")
        add.body = [*group, *ast.parse("return parser").body]
        fields = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
        owner.body = [*fields, *late, add, only_budget(build), read]
        return code.add([owner])["EngineArgs"]

    def _request(self) -> Callable[..., Any]:
        sizes = Code(self.tree, "vllm/utils/mem_utils.py").add(["format_gib"])
        code = Code(self.tree, "vllm/v1/worker/utils.py", format_gib=sizes["format_gib"])
        function = proofkit.bare(code.function("request_memory"))
        called = (code.definitions.get(name) for name in proofkit.names_in([function]))
        own = [function, *(node for node in called if isinstance(node, ast.FunctionDef))]
        request = code.run(own, code.space, proofkit.mocked)["request_memory"]
        worker = proofkit.Source(self.tree / "vllm/v1/worker/gpu_worker.py")
        begin = "self.requested_memory = request_memory("
        assigned = [node for node in ast.walk(worker.module) if isinstance(node, ast.Assign)]
        calls = [node for node in assigned if ast.unparse(node).startswith(begin)]
        if len(calls) != 1:
            raise proofkit.Inconclusive(f"{len(calls)} statements of gpu_worker.py request memory")
        self.knows_external = "external_weight_memory" in ast.unparse(calls[0])

        def run(cache_config: Any, free: int, total: int, external: int = 0) -> Any:
            snapshot = SimpleNamespace(free_memory=free, total_memory=total, device_="cuda:0")
            itself = SimpleNamespace(cache_config=cache_config, init_snapshot=snapshot)
            space = {"self": itself, "request_memory": request, "init_snapshot": snapshot}
            worker.run(calls, {**space, "external_weight_memory": external})
            if isinstance(itself.requested_memory, mock.NonCallableMock):
                raise proofkit.Inconclusive("request_memory calls what this proof does not know")
            return itself.requested_memory

        return run

    def configure(self, *argv: str) -> Any:
        """The CacheConfig that a command line makes. Raises ValueError where it is refused."""
        parser = self.engine_args.add_cli_args(self.parser_class(prog="vllm serve", add_help=False))
        message = io.StringIO()
        try:
            with contextlib.redirect_stderr(message):
                args = parser.parse_args(list(argv))
        except SystemExit:
            raise ValueError(message.getvalue().strip().splitlines()[-1]) from None
        return self.engine_args.from_cli_args(args).create_engine_config()

    def construct(self, **given: Any) -> Any:
        """The CacheConfig that ``LLM(**given)`` makes."""
        made: dict[str, Any] = {}

        def engine_args(**named: Any) -> None:
            made.update(named)
            raise StopIteration

        space = {**self.llm.space, "EngineArgs": engine_args}
        init = proofkit.bare(self.llm.function("__init__", of="LLM"))
        try:
            with contextlib.suppress(StopIteration):
                self.llm.run([init], space)["__init__"](proofkit.mocked("self"), "model", **given)
        except Exception as error:
            raise proofkit.Inconclusive(f"LLM does not run with stand-ins: {error!r}") from error
        if "gpu_memory_utilization" not in made:
            raise proofkit.Inconclusive("LLM makes no EngineArgs")
        memory = {name: value for name, value in made.items() if BUDGET.search(name)}
        if unknown := memory.keys() - {f.name for f in dataclasses.fields(self.engine_args)}:
            raise ValueError(f"EngineArgs has no {', '.join(unknown)}")
        return self.engine_args(**memory).create_engine_config()

    def hashed(self, cache_config: Any) -> dict[str, Any]:
        """The fields that distinguish compiled graphs, with their values."""
        seen: dict[str, Any] = {}

        def factors(made: object, ignored: Iterable[str]) -> dict[str, Any]:
            seen.update({k: v for k, v in vars(made).items() if k not in ignored})
            return seen

        utils = SimpleNamespace(get_hash_factors=factors, hash_factors=lambda found: found)
        with mock.patch.dict(self.cache.modules, {"vllm.config.utils": utils}):
            cache_config.compute_hash()
        return seen


def refused(function: Callable[..., object], *given: Any, **named: Any) -> str:
    """The message with which something is refused, empty if it is not."""
    try:
        function(*given, **named)
    except ValueError as error:
        return str(error) or repr(error)
    return ""


def with_flag(vllm: Vllm) -> Iterator[str]:
    """What is wrong where the flag is given."""
    asked = {text: (VISIBLE, float(text)) for text in ("108", "107.5", "110.7", "0.25")}
    asked |= {"100": (math.ceil(100.5 * GIB), 100), "60": (2 * VISIBLE, 60)}
    for text, (free, wanted) in asked.items():
        found = vllm.configure(FLAG, text)
        got = vllm.request(found, free, VISIBLE)
        if not math.isclose(found.gpu_memory_utilization, got / VISIBLE):
            yield f"{FLAG} {text} is shown as a fraction of {found.gpu_memory_utilization}"
        if got != math.ceil(wanted * GIB) or type(got) is not int:
            yield f"{FLAG} {text} requests {got / GIB:.3f} GiB of {VISIBLE / GIB:.2f}"
    if vllm.request(vllm.construct(gpu_memory_utilization_gb=108), VISIBLE, VISIBLE) != 108 * GIB:
        yield "LLM(gpu_memory_utilization_gb=108) requests something else"
    yield from too_much(vllm)


def too_much(vllm: Vllm) -> Iterator[str]:
    """What is taken although it leaves no margin."""
    close = [("110.8", 2 * VISIBLE), ("108", math.floor(108.4 * GIB))]
    for text, free in [("111", VISIBLE), ("110.8", VISIBLE), ("200", VISIBLE), *close]:
        message = refused(vllm.request, vllm.configure(FLAG, text), free, VISIBLE)
        there = [f"{round(each / GIB, 2)}" for each in (free, VISIBLE)]
        if not message:
            yield f"{FLAG} {text} is taken with {there[0]} GiB free of {there[1]}: no margin"
        elif not all([FLAG in message, text in message, any(each in message for each in there)]):
            yield f"{FLAG} {text} is refused without saying what was asked and what is: {message}"
    if vllm.knows_external:
        outside = vllm.configure(FLAG, "108")
        if vllm.request(outside, VISIBLE - 60 * GIB, VISIBLE, 60 * GIB) != 48 * GIB:
            yield "60 GiB of weights held by another process are not part of the 108 GiB"
        if not refused(vllm.request, outside, 48 * GIB, VISIBLE, 60 * GIB):
            yield "no margin beside weights that another process holds"


def limits(vllm: Vllm) -> Iterator[str]:
    """What should have been refused before any worker starts."""
    given = [f"{FLAG}={text}" for text in ("0", "-1", "nan", "inf", "much")]
    yield from (f"{each} is accepted" for each in given if not refused(vllm.configure, each))
    message = refused(vllm.configure, FLAG, "108", "--kv-cache-memory-bytes", "1073741824")
    both = (FLAG.strip("-"), "kv-cache-memory-bytes")
    if not all(word in message.replace("_", "-") for word in both):
        yield f"{FLAG} together with --kv-cache-memory-bytes: {message or 'accepted'}"
    if not refused(vllm.construct, gpu_memory_utilization_gb=108, kv_cache_memory_bytes=GIB):
        yield "LLM() takes gpu_memory_utilization_gb together with kv_cache_memory_bytes"


def runtime(vllm: Vllm) -> Iterator[str]:
    """What is wrong in a running server, which hashes its config and copies it after profiling."""
    factors = vllm.hashed(vllm.configure()).keys()
    if "gpu_memory_utilization" in factors:
        raise proofkit.Inconclusive("gpu_memory_utilization leads to other compiled graphs")
    given = vllm.hashed(vllm.configure(FLAG, "108")).keys()
    if "gpu_memory_utilization_gb" in factors or given != factors:
        yield f"{FLAG} leads to other compiled graphs, gpu_memory_utilization does not"
    both = {"gpu_memory_utilization_gb": 108.0, "kv_cache_memory_bytes": GIB}
    if message := refused(vllm.cache_config, **both):
        yield f"a worker that copies its config with the KV cache's size is refused: {message}"


def without_flag(vllm: Vllm) -> Iterator[str]:
    """What is not as it always was where the flag is not given."""
    default = vllm.cache_config.gpu_memory_utilization
    for option, fraction in (("", default), (f"{FRACTION}=0.5", 0.5), (f"{FRACTION}=1", 1)):
        found = vllm.configure(*filter(None, [option]))
        requested = vllm.request(found, VISIBLE, VISIBLE)
        if requested != math.ceil(VISIBLE * fraction) or found.gpu_memory_utilization != fraction:
            yield f"without the flag, {option or 'the default'} is something else than {fraction}"
        if not refused(vllm.request, found, math.floor(VISIBLE * fraction) - 1, VISIBLE):
            yield "without the flag, more than what is free is requested"
        if refused(vllm.request, found, math.ceil(VISIBLE * fraction), VISIBLE):
            yield "without the flag, something is kept back"
    found = vllm.construct()
    if vllm.request(found, VISIBLE, VISIBLE) != math.ceil(VISIBLE * found.gpu_memory_utilization):
        yield "without the flag, LLM() requests something else than its fraction"
    if message := refused(vllm.construct, kv_cache_memory_bytes=GIB):
        yield f"without the flag, LLM(kv_cache_memory_bytes=...) is refused: {message}"
    taken = [bad for bad in ("0", "1.1") if not refused(vllm.configure, FRACTION, bad)]
    yield from (f"{FRACTION} {bad} is accepted" for bad in taken)
    if vllm.configure("--kv-cache-memory-bytes", "1073741824").kv_cache_memory_bytes != GIB:
        yield "--kv-cache-memory-bytes alone is not taken"


def symptoms(tree: Path) -> list[str]:
    """Everything that is not as it should be, one line each."""
    try:
        vllm = Vllm(tree)
        broken = list(without_flag(vllm))
    except (AttributeError, NameError, ValueError) as error:
        if FLAG.strip("-") not in str(error).replace("_", "-"):
            raise
        return [f"without {FLAG}: {error!r}"]
    if message := refused(vllm.configure, FLAG, "108"):
        return [*broken, f"{FLAG} 108: {message}"]
    for look in (with_flag, limits, runtime):
        try:
            broken += look(vllm)
        except MISTAKES as error:
            broken.append(f"with {FLAG}: {error!r}")
    return broken


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a flag that is not there, does not do what it says, or changes the rest."""
    right = f"{FLAG} is the worker's budget in GiB, within its limits; without it the fraction is"
    return proofkit.verdict(symptoms(tree), right)


if __name__ == "__main__":
    proofkit.main(judge)

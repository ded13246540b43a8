"""Starts a server of vLLM as far as its memory budget, with ``--gpu-memory-utilization-gb`` and without it.

    python proof.py TREE

vLLM's own code is run from TREE, taken out of its files: the command line's parser and the cache group of its
arguments, EngineArgs, the statements that make the CacheConfig of them, that class with its limits and validators, the
constructor of LLM, and the worker's statement that requests memory with the function that it calls. Stand-ins are for
the rest of vLLM, for torch, and for pydantic (fields, their limits, validators): what is not in Python is not needed.
"""

import ast
import builtins
import contextlib
import dataclasses
import inspect
import io
import math
import pathlib
import re
import sys
import types
import typing
from unittest import mock

GIB = 2**30
VISIBLE = math.floor(111.27 * GIB)  # what a GB10 of 128 GB shows
FLAG = "--gpu-memory-utilization-gb"
SPEAKS = re.compile(r"gpu[-_]memory[-_]utilization|kv[-_]cache[-_]memory[-_]bytes")


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class FieldInfo:
    """What pydantic's Field gives: a default and its limits."""

    def __init__(self, default=dataclasses.MISSING, default_factory=None, **limits):
        self.default, self.default_factory, self.init, self.limits = default, default_factory, None, limits

    def check(self, name, value):
        """The value, or ValueError in pydantic's words."""
        tests = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
        good = {"gt": "__gt__", "ge": "__ge__", "lt": "__lt__", "le": "__le__"}
        for limit, words in tests.items():
            bound = self.limits.get(limit)
            if bound is not None and value is not None and getattr(float(value), good[limit])(float(bound)) is not True:
                raise ValueError(f"{name}: Input should be {words} {bound}, got {value}")
        if self.limits.get("allow_inf_nan") is False and value is not None and not math.isfinite(value):
            raise ValueError(f"{name}: Input should be a finite number, got {value}")


@dataclasses.dataclass
class Validator:
    """A validator of a pydantic class: of the fields ``names``, or of the whole."""

    names: tuple
    mode: str
    function: object

    def __call__(self, owner, value, data):
        function = self.function.__func__ if isinstance(self.function, classmethod) else self.function
        extra = [lambda v: v] if self.mode == "wrap" else []
        if len(inspect.signature(function).parameters) > 2 + len(extra):
            extra.append(types.SimpleNamespace(data=data))
        return function(owner, value, *extra)


def config(cls=None, **_named):
    """Makes a class of fields as vLLM's ``config`` does: limits and validators hold when an object is made."""
    if cls is None:
        return config
    made = dataclasses.dataclass(kw_only=True, init=False, eq=False)(cls)
    fields = dataclasses.fields(made)
    for field in fields:
        if isinstance(field.default, FieldInfo):
            setattr(made, field.name, field.default.default)
    validators = [v for v in vars(cls).values() if isinstance(v, Validator)]

    def default(field):
        info = field.default if isinstance(field.default, FieldInfo) else field
        if info.default is not dataclasses.MISSING:
            return info.default
        return info.default_factory() if callable(info.default_factory) else None

    def init(self, **given):
        if unknown := set(given) - {f.name for f in fields if f.init}:
            raise ValueError(f"{', '.join(sorted(unknown))}: Unexpected keyword argument")
        for field in fields:
            value = given.get(field.name, default(field))
            if field.name in given:
                if isinstance(field.default, FieldInfo):
                    field.default.check(field.name, value)
                for validator in [v for v in validators if field.name in v.names]:
                    value = validator(made, value, vars(self))
            setattr(self, field.name, value)
        for hook in [v.function for v in validators if not v.names and v.mode == "after"]:
            hook(self)
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    made.__init__ = init
    return made


PYDANTIC = mock.MagicMock(
    Field=FieldInfo,
    FieldInfo=FieldInfo,
    field_validator=lambda *names, mode="after": lambda function: Validator(names, mode, function),
    model_validator=lambda mode="after": lambda function: Validator((), mode, function),
    fields=types.SimpleNamespace(FieldInfo=FieldInfo, Field=FieldInfo),
)


class Code:
    """Python of one file of TREE. Its imports bind what is in Python, what ``known`` has, and mocks for the rest."""

    def __init__(self, tree, name, **known):
        self.path = pathlib.Path(tree, name)
        self.tree = ast.parse(self.path.read_text(encoding="utf-8"))
        modules = {"pydantic": PYDANTIC, "pydantic.fields": PYDANTIC.fields, "regex": re}
        modules["typing_extensions"] = mock.MagicMock(**{n: getattr(typing, n) for n in typing.__all__})
        constants = pathlib.Path(tree, "vllm/utils/mem_constants.py")

        def load(module, _globals=None, _locals=None, wanted=(), level=0):
            top = module.partition(".")[0]
            if module.endswith("mem_constants"):
                return types.SimpleNamespace(**space_of(constants))
            if level == 0 and top in sys.stdlib_module_names:
                return __import__(module, None, None, wanted, 0)
            if level == 0 and module in modules:
                return modules[module]
            found = mock.MagicMock(name=module)
            for each in wanted or ():
                if each in known or each.startswith("__"):  # a mock has no such names of its own
                    setattr(found, each, known.get(each, ""))
            return found

        self.space = {"__builtins__": {**vars(builtins), "__import__": load}, "__name__": "builtins", **known}
        blocks = [self.tree.body, *(n.body for n in self.tree.body if isinstance(n, ast.If))]
        self.run(n for block in blocks for n in block if isinstance(n, (ast.Import, ast.ImportFrom)))

    def run(self, nodes):
        """Execute nodes of the file in its space."""
        exec(compile(ast.fix_missing_locations(ast.Module(list(nodes), [])), str(self.path), "exec"), self.space)
        return self.space

    def named(self, kind, name, among=None):
        """The one definition of that kind and name."""
        found = [n for n in (among or self.tree).body if isinstance(n, kind) and n.name == name]
        if not found:
            raise Unknown(f"no {name} in {self.path.name}")
        return found[-1]


def space_of(path):
    """The names that a file of constants has."""
    space = {}
    exec(path.read_text(encoding="utf-8"), space)
    return {name: value for name, value in space.items() if name.isidentifier() and not name.startswith("__")}


def speaking(function, also="(?!)"):
    """Statements of a function that speak of the memory's budget, or of what ``also`` finds."""
    found = [n for n in function.body if SPEAKS.search(ast.unparse(n)) or re.search(also, ast.unparse(n))]
    return [n for n in found if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]


def bare(function):
    """The function without annotations, whose names need not be there, and without decorators."""
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef):
            node.returns, node.decorator_list = None, []
        if isinstance(node, ast.arg):
            node.annotation = None
    return function


def is_mock(value):
    """Whether a stand-in got where a value should be."""
    return isinstance(value, mock.NonCallableMock)


class Vllm:
    """The parts of one tree, joined."""

    def __init__(self, tree):
        self.tree = tree
        self.cache_config = self._cache_config()
        self.parser_class, human = self._parser()
        self.engine_args, self.to_config = self._engine_args(human)
        self.request = self._request()

    def _cache_config(self):
        code = Code(self.tree, "vllm/config/cache.py", config=config)
        body = [n for n in code.tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))]
        code.named(ast.ClassDef, "CacheConfig")
        return code.run(body)["CacheConfig"]

    def _parser(self):
        code = Code(self.tree, "vllm/utils/argparse_utils.py")
        body = [n for n in code.tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))]
        space = code.run(body)
        return space["FlexibleArgumentParser"], {k: v for k, v in space.items() if k.startswith("human_readable")}

    def _engine_args(self, human):
        code = Code(self.tree, "vllm/engine/arg_utils.py", CacheConfig=self.cache_config, **human)
        imports = (ast.Import, ast.ImportFrom)
        engine = [n for n in code.tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("EngineArgs")]
        code.run(n for n in code.tree.body if not isinstance(n, imports) and n not in engine)
        owner = code.named(ast.ClassDef, "EngineArgs")
        late = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "__post_init__"]
        for function in late:
            function.body = speaking(function) or [ast.Pass()]
        add = code.named(ast.FunctionDef, "add_cli_args", owner)
        add.body = [*speaking(add, r"cache_(kwargs|group)\b"), *ast.parse("return parser").body]
        build = self._build(code.named(ast.FunctionDef, "create_engine_config", owner))
        code.space["made"] = lambda **given: self.cache_config(**{k: v for k, v in given.items() if not is_mock(v)})
        fields = [n for n in owner.body if isinstance(n, ast.AnnAssign)]
        owner.body = [*fields, *late, add, build, code.named(ast.FunctionDef, "from_cli_args", owner)]
        found = code.run([owner])["EngineArgs"]
        return found, found.create_engine_config

    @staticmethod
    def _build(function):
        """The statements of ``create_engine_config`` that speak of the budget, as far as EngineArgs alone decides."""
        function.body = [*speaking(function), *ast.parse("return cache_config").body]
        function.args.args = function.args.args[:1]
        function.args.defaults = []
        known = {"self"} | {ast.unparse(t) for n in function.body if isinstance(n, ast.Assign) for t in n.targets}
        for call in [n for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func) == "CacheConfig"]:
            call.func.id = "made"
            names = {k.arg: {n.id for n in ast.walk(k.value) if isinstance(n, ast.Name)} for k in call.keywords}
            call.keywords = [k for k in call.keywords if names[k.arg] <= known]
        return function

    def _request(self):
        sizes = Code(self.tree, "vllm/utils/mem_utils.py")
        sizes.run([sizes.named(ast.FunctionDef, "format_gib")])
        known = {"format_gib": sizes.space["format_gib"]}
        code = Code(self.tree, "vllm/v1/worker/utils.py", **known)
        function = code.named(ast.FunctionDef, "request_memory")
        self_made = {ast.unparse(t) for n in code.tree.body if isinstance(n, ast.Assign) for t in n.targets}
        code.space.update(dict.fromkeys(self_made - code.space.keys(), mock.MagicMock()))
        request = code.run([bare(function)])["request_memory"]
        worker = ast.parse(pathlib.Path(self.tree, "vllm/v1/worker/gpu_worker.py").read_text(encoding="utf-8"))
        begins = "self.requested_memory = request_memory("
        calls = [n for n in ast.walk(worker) if isinstance(n, ast.Assign) and ast.unparse(n).startswith(begins)]
        if len(calls) != 1:
            raise Unknown(f"{len(calls)} statements of gpu_worker.py request memory")
        self.knows_external = "external_weight_memory" in ast.unparse(calls[0])
        statement = compile(ast.Module(calls, []), "gpu_worker.py", "exec")

        def run(cache_config, free, total, external=0):
            snapshot = types.SimpleNamespace(free_memory=free, total_memory=total, device_="cuda:0")
            worker_self = types.SimpleNamespace(cache_config=cache_config, init_snapshot=snapshot)
            space = {"self": worker_self, "request_memory": request, "init_snapshot": snapshot}
            exec(statement, {**space, "external_weight_memory": external})
            return worker_self.requested_memory

        return run

    def configure(self, *argv):
        """The CacheConfig that a command line makes; ValueError with what the user is told where it makes none."""
        parser = self.engine_args.add_cli_args(self.parser_class(prog="vllm serve", add_help=False))
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                args = parser.parse_args(list(argv))
        except SystemExit:
            raise ValueError(told.getvalue().strip().splitlines()[-1]) from None
        return self.to_config(self.engine_args.from_cli_args(args))

    def construct(self, **given):
        """The CacheConfig that ``LLM(**given)`` makes."""
        code = Code(self.tree, "vllm/entrypoints/llm.py")
        init = code.named(ast.FunctionDef, "__init__", code.named(ast.ClassDef, "LLM"))
        made = {}

        def engine_args(**named):
            made.update(named)
            raise StopIteration

        code.space["EngineArgs"] = engine_args
        try:
            code.run([bare(init)])["__init__"](mock.MagicMock(), "model", **given)
        except StopIteration:
            pass
        except Exception as error:
            raise Unknown(f"LLM cannot be made of stand-ins: {error!r}") from error
        if "gpu_memory_utilization" not in made:
            raise Unknown("LLM makes no EngineArgs")
        memory = {name: value for name, value in made.items() if SPEAKS.search(name)}
        if unknown := set(memory) - {f.name for f in dataclasses.fields(self.engine_args)}:
            raise ValueError(f"EngineArgs.__init__() got an unexpected keyword argument {', '.join(unknown)}")
        return self.to_config(self.engine_args(**memory))

    def hashed(self, cache_config):
        """Names of the fields that tell compiled graphs apart, with their values."""
        seen = {}

        def factors(made, ignored):
            seen.update({k: v for k, v in vars(made).items() if k not in ignored})
            return seen

        utils = types.SimpleNamespace(get_hash_factors=factors, hash_factors=lambda found: found)
        loads = self.cache_config.compute_hash.__globals__["__builtins__"]
        before = loads["__import__"]
        loads["__import__"] = lambda name, *rest: utils if name == "vllm.config.utils" else before(name, *rest)
        try:
            cache_config.compute_hash()
        finally:
            loads["__import__"] = before
        return seen


def refused(function, *given, **named):
    """What the user is told, or the empty text where nothing is refused."""
    try:
        function(*given, **named)
    except ValueError as error:
        return str(error) or repr(error)
    return ""


def with_flag(vllm):
    """What is wrong where the flag is given."""
    asked = {text: (VISIBLE, float(text)) for text in ("108", "107.5", "110.7", "0.25")}
    asked |= {"100": (math.ceil(100.5 * GIB), 100), "60": (2 * VISIBLE, 60)}
    for text, (free, wanted) in asked.items():
        got = vllm.request(vllm.configure(FLAG, text), free, VISIBLE)
        if got != math.ceil(wanted * GIB) or type(got) is not int:
            yield f"{FLAG} {text} requests {got / GIB:.3f} GiB of {VISIBLE / GIB:.2f}"
    if vllm.request(vllm.construct(gpu_memory_utilization_gb=108), VISIBLE, VISIBLE) != 108 * GIB:
        yield "LLM(gpu_memory_utilization_gb=108) requests something else"
    close = [("110.8", 2 * VISIBLE), ("108", math.floor(108.4 * GIB))]
    for text, free in [("111", VISIBLE), ("110.8", VISIBLE), ("200", VISIBLE), *close]:
        told = refused(vllm.request, vllm.configure(FLAG, text), free, VISIBLE)
        there = [f"{round(each / GIB, 2)}" for each in (free, VISIBLE)]
        if not told:
            yield f"{FLAG} {text} is taken with {there[0]} GiB free of {there[1]}: no margin"
        elif FLAG not in told or text not in told or not any(each in told for each in there):
            yield f"{FLAG} {text} is refused without saying what was asked and what there is: {told}"
    if vllm.knows_external:
        outside = vllm.configure(FLAG, "108")
        if vllm.request(outside, VISIBLE - 60 * GIB, VISIBLE, 60 * GIB) != 48 * GIB:
            yield "60 GiB of weights held by another process are not part of the 108 GiB"
        if not refused(vllm.request, outside, 48 * GIB, VISIBLE, 60 * GIB):
            yield "no margin beside weights that another process holds"


def limits(vllm):
    """What should have been refused before any worker starts."""
    for text in ["0", "-1", "nan", "inf", "much"]:
        if not refused(vllm.configure, f"{FLAG}={text}"):
            yield f"{FLAG}={text} is accepted"
    told = refused(vllm.configure, FLAG, "108", "--kv-cache-memory-bytes", "1073741824")
    if not all(word in told.replace("_", "-") for word in (FLAG.strip("-"), "kv-cache-memory-bytes")):
        yield f"{FLAG} together with --kv-cache-memory-bytes: {told or 'accepted'}"
    if not refused(vllm.construct, gpu_memory_utilization_gb=108, kv_cache_memory_bytes=GIB):
        yield "LLM() takes gpu_memory_utilization_gb together with kv_cache_memory_bytes"


def runtime(vllm):
    """What a running server does with the config: hashes it, copies it after a worker found out the KV cache's size."""
    factors = vllm.hashed(vllm.configure())
    if "gpu_memory_utilization" in factors:
        raise Unknown("gpu_memory_utilization tells compiled graphs apart")
    if "gpu_memory_utilization_gb" in factors or vllm.hashed(vllm.configure(FLAG, "108")).keys() != factors.keys():
        yield f"{FLAG} tells compiled graphs apart, which gpu_memory_utilization does not"
    if told := refused(vllm.cache_config, gpu_memory_utilization_gb=108.0, kv_cache_memory_bytes=GIB):
        yield f"a worker that copies its config after it has set the KV cache's size is refused: {told}"


def without_flag(vllm):
    """What is not as it always was where the flag is not given."""
    fractions = {(): vllm.cache_config.gpu_memory_utilization, ("--gpu-memory-utilization", "0.5"): 0.5}
    for argv, fraction in {**fractions, ("--gpu-memory-utilization=1",): 1}.items():
        found = vllm.configure(*argv)
        requested = vllm.request(found, VISIBLE, VISIBLE)
        if requested != math.ceil(VISIBLE * fraction) or found.gpu_memory_utilization != fraction:
            yield f"without the flag, {' '.join(argv) or 'the default'} requests something else than {fraction}"
        if not refused(vllm.request, found, math.floor(VISIBLE * fraction) - 1, VISIBLE):
            yield "without the flag, more than what is free is requested"
        if refused(vllm.request, found, math.ceil(VISIBLE * fraction), VISIBLE):
            yield "without the flag, something is kept back"
    found = vllm.construct()
    if vllm.request(found, VISIBLE, VISIBLE) != math.ceil(VISIBLE * found.gpu_memory_utilization):
        yield "without the flag, LLM() requests something else than its fraction"
    if told := refused(vllm.construct, kv_cache_memory_bytes=GIB):
        yield f"without the flag, LLM(kv_cache_memory_bytes=...) is refused: {told}"
    for bad in ["0", "1.1"]:
        if not refused(vllm.configure, "--gpu-memory-utilization", bad):
            yield f"--gpu-memory-utilization {bad} is accepted"
    if vllm.configure("--kv-cache-memory-bytes", "1073741824").kv_cache_memory_bytes != GIB:
        yield "--kv-cache-memory-bytes alone is not taken"


def symptoms(tree):
    """Everything that is not as it should be, one line each."""
    try:
        vllm = Vllm(tree)
        broken = list(without_flag(vllm))
    except (AttributeError, NameError, ValueError) as error:
        if FLAG.strip("-") not in str(error).replace("_", "-"):
            raise
        return [f"without {FLAG}: {error!r}"]  # the flag is there, but not all of what it needs
    try:
        vllm.configure(FLAG, "108")
    except ValueError as error:
        return [*broken, f"{FLAG} 108: {error}"]
    for look in (with_flag, limits, runtime):
        try:
            broken += look(vllm)
        except (AttributeError, NameError, ImportError, TypeError, ValueError, OverflowError) as error:
            broken.append(f"with {FLAG}: {error!r}")
    return broken


def main(tree):
    """Judge a tree; the exit code."""
    try:
        seen = symptoms(tree)
    except Exception as error:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
        print(f"cannot be told: {error!r}")
        return 3
    right = f"{FLAG} is the worker's budget in GiB, within its limits; without it the fraction is"
    print("; ".join(dict.fromkeys(seen)) or right)
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

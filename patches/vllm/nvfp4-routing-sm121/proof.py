"""Runs vLLM's own choice of NVFP4 kernels for several GPUs and user settings.

The functions that choose are taken out of the sources and run with stand-ins for what they call.
Every kernel says that it can do the layer, except Marlin, whose own answer is taken from its
source. By saying no to each kernel that was chosen and asking again, the whole order of preference
comes out, in one process that is asked for one GPU after the other, also with LoRA and with batched
experts. It must be: on capability 12.1 Marlin first and then the order of 12.0; on 12.0, 12.2,
13.0, 10.3, 10.0 and 9.0 nothing moved; and what a user asked for (flag or variable) is what a user
gets, on 12.1 too.

Files read, below ``vllm/model_executor``: ``kernels/linear/__init__.py`` (from 0.20) or
``layers/quantization/utils/nvfp4_utils.py``, and ``layers/fused_moe/oracle/nvfp4.py``; where they
exist also Marlin's ``kernels/linear/nvfp4/marlin.py``,
``layers/quantization/utils/marlin_utils_fp4.py`` and its experts.
"""

import ast
import enum
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import proofkit

EXPERTS = ("experts/marlin_moe.py", "fused_marlin_moe.py")
GB10, MODEL = (12, 1), (12, 0)
#: Two are above 12.1: "from 12.1 on" is wrong, too.
OTHERS = [(13, 0), (12, 2), MODEL, (10, 3), (10, 0), (9, 0)]
#: What a user can choose with VLLM_NVFP4_GEMM_BACKEND.
GEMM_BACKENDS = (
    "cutlass",
    "flashinfer-cutlass",
    "flashinfer-trtllm",
    "flashinfer-cudnn",
    "marlin",
)
Pair = tuple[int, int]
#: How weights and activations are quantized, as vLLM is told.
KEYS = (object(), object())


FlashinferMoeBackend = enum.Enum("FlashinferMoeBackend", ["CUTLASS", "TENSORRT_LLM", "CUTEDSL"])


class Capability(NamedTuple):
    """A compute capability as vLLM has it."""

    major: int
    minor: int

    def to_int(self) -> int:
        return self.major * 10 + self.minor


class Platform:
    """A GPU of one compute capability, as far as choosing asks."""

    _enum = "cuda"

    def __init__(self, capability: Pair) -> None:
        self.capability = Capability(*capability)

    @staticmethod
    def _pair(capability: Pair | int) -> Pair:
        return capability if isinstance(capability, tuple) else divmod(capability, 10)

    def is_device_capability(self, capability: Pair | int, device_id: int = 0) -> bool:
        return self.capability == self._pair(capability)

    def has_device_capability(self, capability: Pair | int, device_id: int = 0) -> bool:
        return self.capability >= self._pair(capability)

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        return self.capability.major == capability // 10

    def get_device_capability(self, device_id: int = 0) -> Capability:
        return self.capability

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False


class Envs:
    """vLLM's environment variables, unset but for the given ones."""

    def __init__(self) -> None:
        self.given: Mapping[str, object] = {}

    def __getattr__(self, name: str) -> object:
        unset = {"VLLM_NVFP4_GEMM_BACKEND": None, "VLLM_DISABLED_KERNELS": list[str]()}
        return self.given.get(name, unset.get(name, False))

    def is_set(self, name: str) -> bool:
        return name in self.given


@functools.cache
def marlin_for_linear(folder: Path, capability: Pair) -> bool:
    """Marlin's own answer for a linear layer."""
    known: dict[str, object] = {"current_platform": Platform(capability)}
    utilities = folder / "layers/quantization/utils/marlin_utils_fp4.py"
    marlin = folder / "kernels/linear/nvfp4/marlin.py"
    if not marlin.is_file():
        name = "is_fp4_marlin_supported"
        if not utilities.is_file():
            return True
        return bool(proofkit.Source(utilities).in_tree(root_of(folder), known)[name]())
    source, name = proofkit.Source(marlin), "MarlinNvFp4LinearKernel"
    if not utilities.is_file():
        known["is_fp4_marlin_supported"] = lambda: True
    own = proofkit.bare(source.cls(name), {"is_supported", "can_implement"})
    kernel = source.run([own], source.in_tree(root_of(folder), known))[name]
    return bool(kernel.is_supported()[0] and kernel.can_implement(None)[0])


@functools.cache
def marlin_for_experts(folder: Path, capability: Pair) -> bool:
    """Marlin's own answer for experts with NVFP4 weights and activations."""
    paths = (folder / "layers/fused_moe" / name for name in EXPERTS)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return True
    keys = proofkit.Known(
        r"k[A-Z]\w+", lambda _name: object(), current_platform=Platform(capability)
    )
    asked = {
        "_supports_current_device": (),
        "_supports_quant_scheme": (keys["kNvfp4Static"], keys["kNvfp4Dynamic"]),
    }
    source, name = proofkit.Source(path), "MarlinExpertsBase"
    space = source.in_tree(root_of(folder), keys)
    source.run([proofkit.bare(source.cls(name), asked)], space)
    return all(getattr(space[name], method)(*given) for method, given in asked.items())


def root_of(folder: Path) -> Path:
    """The tree that ``vllm/model_executor`` is in."""
    return folder.parents[1]


class Choice:
    """A choice that one process makes again and again, for other GPUs and other users.

    What it does to a list that outlives the choice is seen by the next one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.platform, self.envs = folder, Platform(GB10), Envs()
        self.refused: Collection[str] = ()
        self.flag = "auto"

    def __call__(
        self,
        capability: Pair,
        refused: Collection[str] = (),
        flag: str = "auto",
        **more: object,
    ) -> str | None:
        """The name of what is chosen, None if nothing is left."""
        self.platform.capability = Capability(*capability)
        self.refused, self.flag = refused, flag
        self.envs.given = {name: value for name, value in more.items() if name.isupper()}
        try:
            return self.choose({name: more[name] for name in more.keys() - self.envs.given.keys()})
        except (ValueError, NotImplementedError):
            return None

    def choose(self, layer: Mapping[str, object]) -> str:
        """The name of what is chosen for a kind of layer."""
        raise NotImplementedError

    def layers(self) -> Iterator[dict[str, Any]]:
        """Every kind of layer."""
        yield {}


class Linear(Choice):
    """The choice of a kernel for NVFP4 linear layers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kernels = folder / "kernels/linear/__init__.py"
        utilities = folder / "layers/quantization/utils/nvfp4_utils.py"
        name = "init_nvfp4_linear_kernel"
        self.by_list = kernels.is_file() and name in proofkit.Source(kernels).definitions
        self.source = proofkit.Source(kernels if self.by_list else utilities)
        config = SimpleNamespace(kernel_config=self)
        known = proofkit.Known(
            r"\w+Kernel",
            self.kernel,
            current_platform=self.platform,
            envs=self.envs,
            PlatformEnum=proofkit.mocked("PlatformEnum", CUDA="cuda"),
            prefers_humming=lambda *_: False,
            prioritize_humming=lambda kernels, *_: kernels,
            get_current_vllm_config_or_none=lambda: config,
            has_flashinfer=lambda: "FLASHINFER_CUTLASS" not in self.refused,
            cutlass_fp4_supported=lambda: "VLLM_CUTLASS" not in self.refused,
            is_fp4_marlin_supported=lambda: self.can("MARLIN"),
            logger=proofkit.Unknown("logger"),
        )
        self.space = self.source.in_tree(root_of(folder), known)

    @property
    def linear_backend(self) -> str:
        return self.flag

    linear_backend_per_quant = None

    def can(self, name: str) -> bool:
        """Whether a kernel says that it can do the layer."""
        marlin = marlin_for_linear(self.folder, self.platform.capability)
        return name not in self.refused and (marlin or not is_marlin(name))

    def kernel(self, name: str) -> type:
        """A stand-in for a class of kernels."""
        answer = classmethod(lambda *_: (self.can(name), None))
        methods = {"is_supported": answer, "can_implement": answer}
        return type(name, (), {**methods, "__init__": lambda *_: None})

    def choose(self, layer: Mapping[str, object]) -> str:
        if self.by_list:
            return type(self.space["init_nvfp4_linear_kernel"](**layer)).__name__
        return str(self.space["select_nvfp4_linear_backend"]().name)

    def layers(self) -> Iterator[dict[str, Any]]:
        yield {}
        if self.by_list:
            arguments = self.source.function("init_nvfp4_linear_kernel").args
            if "use_a16" in ast.unparse(arguments):
                yield {"use_a16": True}

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every way in which a user can ask for a linear kernel of one kind."""
        yield from self._flags()
        for name in ("VLLM_USE_FBGEMM", "VLLM_USE_NVFP4_CT_EMULATIONS", "VLLM_BATCH_INVARIANT"):
            if f"envs.{name}" in self.source.text:
                yield {name: True}
        if "envs.VLLM_NVFP4_GEMM_BACKEND" in self.source.text:
            for backend in GEMM_BACKENDS:
                yield {"VLLM_NVFP4_GEMM_BACKEND": backend}

    def _flags(self) -> Iterator[dict[str, Any]]:
        name = "_LINEAR_BACKEND_KERNEL_MAP"
        table = self.space[name] if name in self.source.names else {}
        for flag, kernels in table.items():
            names = [kernel.__name__ for kernel in kernels]
            if any("NvFp4" in each for each in names) and "W4A16" not in "".join(names):
                yield {"flag": flag}


class OneOrMany(type):
    """0.16 has one class of experts for a backend, later there are lists: these are both."""

    def __iter__(cls) -> Iterator[type]:
        return iter([cls])


class Moe(Choice):
    """The choice of a backend for NVFP4 experts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.source = proofkit.Source(folder / "layers/fused_moe/oracle/nvfp4.py")
        known: dict[str, object] = {
            "current_platform": self.platform,
            "envs": self.envs,
            "backend_to_kernel_cls": self.experts,
            "is_supported_config_trtllm": lambda *given, **_: (
                "FLASHINFER_TRTLLM" not in self.refused and given[1:3] == KEYS,
                None,
            ),
            "prioritize_humming": lambda backends, *_: backends,
            "FlashinferMoeBackend": FlashinferMoeBackend,
            "get_flashinfer_moe_backend": lambda: FlashinferMoeBackend.CUTLASS,
            "logger": proofkit.Unknown("logger"),
        }
        self.space = self.source.in_tree(root_of(folder), known)

    def experts(self, backend: enum.Enum) -> type:
        """A stand-in for a backend's classes of experts."""
        marlin = marlin_for_experts(self.folder, self.platform.capability)
        can = backend.name not in self.refused and (marlin or backend.name != "MARLIN")
        answer = staticmethod(lambda *given: (can and given[2:4] == KEYS, None))
        return OneOrMany("Experts", (), {"is_supported_config": answer})

    def choose(self, layer: Mapping[str, object]) -> str:
        is_batched = bool(layer.get("is_batched"))
        parallel = proofkit.Fields(
            use_batched_activation_format=is_batched,
            use_deepep_ll_kernels=is_batched,
            use_pplx_kernels=False,
        )
        config = proofkit.Fields(
            moe_backend=self.flag,
            swiglu_limit=layer.get("swiglu_limit"),
            is_lora_enabled=bool(layer.get("is_lora_enabled")),
            moe_parallel_config=parallel,
        )
        return str(self.space["select_nvfp4_moe_backend"](config, *KEYS)[0].name)

    def layers(self) -> Iterator[dict[str, Any]]:
        for is_lora, is_batched in itertools.product((False, True), repeat=2):
            yield {"is_lora_enabled": is_lora, "is_batched": is_batched}

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every way in which a user can ask for experts of one kind."""
        flags = self.source.definitions.get("map_nvfp4_backend")
        for node in ast.walk(flags) if flags else ():
            for key in node.keys if isinstance(node, ast.Dict) else ():
                yield {"flag": key.value} if isinstance(key, ast.Constant) else {}
        if '"VLLM_USE_FLASHINFER_MOE_FP4"' in self.source.text:
            asked = {"VLLM_USE_FLASHINFER_MOE_FP4": True}
            yield asked
            yield {**asked, "VLLM_FLASHINFER_MOE_BACKEND": "throughput"}
        if "envs.VLLM_TEST_FORCE_FP8_MARLIN" in self.source.text:
            yield {"VLLM_TEST_FORCE_FP8_MARLIN": True}


def order(choose: Choice, capability: Pair, layer: Mapping[str, Any]) -> list[str]:
    """All that can be chosen, most preferred first."""
    chosen: list[str] = []
    while (name := choose(capability, tuple(chosen), **layer)) is not None:
        if name in chosen:
            what = f"{name} is chosen although it says that it cannot do the layer"
            raise proofkit.Inconclusive(what)
        chosen.append(name)
    return chosen


def is_marlin(name: str | None) -> bool:
    """Whether this is the name of a Marlin kernel or backend."""
    return "marlin" in (name or "").lower()


def limited(choose: Moe) -> Iterator[str]:
    """The choice of experts for models that limit activations: not all kernels can, or could."""
    layer = {"swiglu_limit": 7.0}
    got, model = order(choose, GB10, layer), order(choose, MODEL, layer)
    wanted = sorted(model, key=lambda name: not is_marlin(name))
    if got != wanted:
        yield f"MoE with a limit on 12.1: {', '.join(got)}; not {', '.join(wanted)}"


def symptoms_of(what: str, choose: Linear | Moe, layer: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it should be in one choice, one line each."""
    orders = {capability: order(choose, capability, layer) for capability in [GB10, *OTHERS]}
    first = orders[GB10][0] if orders[GB10] else None
    if not is_marlin(first):
        yield f"{what} on 12.1 prefers {first} to Marlin"
    for capability in OTHERS if not layer.get("use_a16") else ():
        names = itertools.takewhile(lambda name: not is_marlin(name), orders[capability])
        if not any("CUTLASS" in name.upper() for name in names) and orders[capability]:
            gpu = ".".join(map(str, capability))
            yield f"{what} on {gpu}: Marlin, which no user asked for"
    rest, model = ([n for n in orders[pair] if not is_marlin(n)] for pair in (GB10, MODEL))
    if rest != model:
        yield f"{what} on 12.1, after Marlin: {', '.join(rest)}; on 12.0: {', '.join(model)}"
    if (again := order(choose, GB10, layer)) != orders[GB10]:
        yield f"{what} on 12.1, asked again: {', '.join(again)}"
    if not any(layer.values()):
        for setting in choose.settings():
            got, meant = choose(GB10, **setting, **layer), choose(MODEL, **setting, **layer)
            if got != meant:
                yield f"{what} on 12.1 with {setting}: {got}, not {meant}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is another order than Marlin first on 12.1, and only there."""
    folder = tree / "vllm/model_executor"
    moe = Moe(folder)
    choices: dict[str, Linear | Moe] = {"linear": Linear(folder), "MoE": moe}
    seen: list[str] = []
    for what, choose in choices.items():
        try:
            for layer in choose.layers():
                seen += symptoms_of(what, choose, layer)
        except AssertionError as error:
            seen.append(f"{what}: choosing fails: {error!r}")
    seen += limited(moe)
    right = "Marlin on 12.1 unless the user chose; 13.0, 12.2, 12.0, 10.3, 10.0 and 9.0 as before"
    return proofkit.verdict(seen, right)


if __name__ == "__main__":
    proofkit.main(judge)

"""Runs vLLM's own CMake files for a build on the GB10: what would each source and target get?

CMakeLists.txt and everything it includes are configured as they are, with CUDA 13.0, for the lists
of architectures that people give for a GB10: 12.1, 12.1a, 12.1f and 12.0f. Torch, the compiler and
the downloads are stand-ins; so are the commands that make targets, which write down what they are
given. Compared with the same run for 12.0 (which upstream builds and tests):

- every source has machine code that a GB10 loads, and as good as 12.0 has: with the features of the
  family where 12.0 has them. `sm_120a` is for 12.0 only; plain `sm_121` lacks the FP4 conversion
  and the block-scaled matrix instructions;
- the SM120 kernels are all built, with those features, beside their dispatchers, and the
  dispatchers know it by ENABLE_…;
- other GPUs have code of every source that a build with CUDA 12.8 has for them, and 10.3 of every
  source that 10.0 has with the features of the family;
- the guards inside the kernels (``enable_sm120_…``) let through the ``__CUDA_ARCH__`` that the
  target has.
"""

import ast
import functools
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import proofkit

LISTS = ("12.1", "12.1a", "12.1f", "12.0f")
#: Architectures of other GPUs, together and alone, and which GPUs they are for.
OTHERS = {
    "7.5;8.0;8.6;8.7;8.9;9.0;10.0;12.0": (75, 80, 86, 87, 89, 90, 100, 120),
    "8.9": (89,),
    "9.0": (90,),
    "10.0": (100,),
    "10.3": (103,),
    "12.0": (120,),
}
KERNELS = {
    "scaled_mm_sm120_fp8.cu",
    "scaled_mm_blockwise_sm120_fp8.cu",
    "nvfp4_scaled_mm_sm120_kernels.cu",
    "nvfp4_blockwise_moe_kernel.cu",
    "nvfp4_quant_kernels.cu",
    "nvfp4_experts_quant.cu",
    "activation_nvfp4_quant_fusion_kernels.cu",
}
DISPATCHERS = {
    "scaled_mm_entry.cu": {"ENABLE_SCALED_MM_SM120", "ENABLE_CUTLASS_MOE_SM120"},
    "nvfp4_scaled_mm_entry.cu": {"ENABLE_NVFP4_SM120"},
    "nvfp4_quant_entry.cu": {"ENABLE_NVFP4_SM120"},
}
#: Commands of CMake are replaced by macros of the same name; the command itself is then _name.
PROJECT = r"""
cmake_minimum_required(VERSION 3.20)
project(stand_in NONE)
set(VLLM_PYTHON_EXECUTABLE "${CMAKE_COMMAND}")
set(FETCHCONTENT_BASE_DIR "${CMAKE_BINARY_DIR}/deps")
set(CUTLASS_INCLUDE_DIR "${CMAKE_SOURCE_DIR}/cutlass")
foreach(name cmake_minimum_required project enable_language install find_program find_library
    add_custom_target add_custom_command add_dependencies add_library set_target_properties
    set_source_files_properties target_include_directories target_link_libraries)
  cmake_language(EVAL CODE "macro(${name})\nendmacro()")
endforeach()
macro(find_package name)
  if("${name}" STREQUAL "Python")
    set(Python_FOUND 1)
    set(Python_VERSION_MAJOR 3)
    set(Python_VERSION_MINOR 12)
  elseif("${name}" STREQUAL "Torch")
    set(CUDA_FOUND 1)
    set(CUDA_VERSION TOOLKIT)
    set(CMAKE_CUDA_COMPILER_VERSION TOOLKIT)
    set(CMAKE_CUDA_FLAGS "-O3 GENCODE")
    set(Torch_VERSION ${TORCH_SUPPORTED_VERSION_CUDA})
  endif()
endmacro()
function(execute_process)
  cmake_parse_arguments(ARG "" "RESULT_VARIABLE;OUTPUT_VARIABLE" "" ${ARGN})
  foreach(name ${ARG_OUTPUT_VARIABLE})
    set(${name} "" PARENT_SCOPE)
  endforeach()
  foreach(name ${ARG_RESULT_VARIABLE}) # last: upstream gives both one name
    set(${name} 0 PARENT_SCOPE)
  endforeach()
endfunction()
macro(file action)
  if("${action}" MATCHES "^(READ|STRINGS)$" AND NOT EXISTS "${ARGV1}") # a header of torch
    set(${ARGV2} "")
  elseif("${action}" MATCHES "^(GLOB|MD5|READ|REAL_PATH|RELATIVE_PATH|STRINGS)$")
    _file(${ARGV})
    if("${action}" STREQUAL "GLOB" AND "${${ARGV1}}" STREQUAL "")
      set(${ARGV1} "${ARGV2}") # a script would have written these sources
    endif()
  endif()
endmacro()
foreach(name FetchContent_Declare FetchContent_MakeAvailable FetchContent_GetProperties)
  cmake_language(EVAL CODE "macro(${name})\nendmacro()")
endforeach()
macro(FetchContent_Populate name)
  set(${name}_SOURCE_DIR "${FETCHCONTENT_BASE_DIR}/${name}-src")
endmacro()
function(target_sources name)
  foreach(source ${ARGN})
    if(source MATCHES "[.](cu|cpp|cc)$")
      set_property(GLOBAL APPEND PROPERTY "sources of ${name}" "${source}")
    endif()
  endforeach()
endfunction()
function(Python_add_library name)
  set_property(GLOBAL APPEND PROPERTY targets ${name})
  target_sources(${name} ${ARGN})
endfunction()
function(target_compile_options name)
  set_property(GLOBAL APPEND PROPERTY "flags of ${name}" ${ARGN})
endfunction()
function(target_compile_definitions name)
  target_compile_options(${name} ${ARGN})
endfunction()
include("${CMAKE_SOURCE_DIR}/upstream.cmake")
get_property(targets GLOBAL PROPERTY targets)
foreach(name ${targets})
  get_property(flags GLOBAL PROPERTY "flags of ${name}")
  string(APPEND seen "target\t${name}\t${flags}\n")
  get_property(sources GLOBAL PROPERTY "sources of ${name}")
  foreach(source ${sources})
    get_property(options SOURCE "${source}" PROPERTY COMPILE_OPTIONS)
    string(APPEND seen "source\t${source}\t${options}\n")
  endforeach()
endforeach()
_file(WRITE "${CMAKE_BINARY_DIR}/seen" "${seen}")
"""


class Build:
    """What CMake would have built for a list of architectures, with one CUDA toolkit.

    ``targets`` maps (library, source) to the kinds of code for it, ``flags`` a library to its
    ENABLE_… definitions.
    """

    def __init__(self, tree: Path, archs: str, toolkit: str = "13.0") -> None:
        self.tree, self.archs, self.toolkit = tree, archs, toolkit
        self.targets: dict[tuple[str, str], list[str]] = {}
        self.flags: dict[str, set[str]] = {}
        library = ""
        for line in self._configure().splitlines():
            kind, name, rest = line.split("\t")
            if kind == "target":
                library = name
                self.flags[library] = set(re.findall(r"(?:-D|\b)(ENABLE_\w+)=1", rest))
            elif name.endswith(".cu"):
                codes = re.findall(r"code=((?:sm|compute)_\w+)", rest)
                self.targets[library, "/".join(name.split("/")[-3:])] = codes

    def _configure(self) -> str:
        codes = [arch.replace(".", "") for arch in self.archs.split(";")]
        gencode = " ".join(f"-gencode arch=compute_{code},code=sm_{code}" for code in codes)
        with tempfile.TemporaryDirectory() as name:
            folder, made = Path(name, "project"), Path(name, "build")
            (folder / "cutlass/cutlass").mkdir(parents=True)
            (folder / "cutlass/cutlass/cutlass.h").touch()
            shutil.copy(self.tree / "CMakeLists.txt", folder / "upstream.cmake")
            for inside in ("cmake", "csrc", "vllm"):
                (folder / inside).symlink_to(self.tree / inside)
            project = PROJECT.replace("GENCODE", gencode).replace("TOOLKIT", self.toolkit)
            (folder / "CMakeLists.txt").write_text(project, encoding="utf-8")
            code, said = proofkit.command(["cmake", "-Wno-dev", "-S", folder, "-B", made])
            if code:
                error = said[said.find("CMake Error") :][:300]
                raise proofkit.Inconclusive(f"CMake fails for {self.archs}: {error}")
            return (made / "seen").read_text(encoding="utf-8")


@functools.cache
def built(tree: Path, archs: str, toolkit: str = "13.0") -> Build:
    """A build; each is configured once."""
    return Build(tree, archs, toolkit)


def loads(code: str, gpu: int) -> int:
    """How good a kind of code is for a GPU (121 is capability 12.1).

    0 is not loaded, 1 is plain (or made from PTX), 2 has its features.
    """
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
    if not found:
        return 0
    made, is_exact = int(found[2] + found[3]), found[4] == "a"
    if found[1] == "compute":
        return 1 if made <= gpu else 0
    if int(found[2]) != gpu // 10 or made > gpu or (is_exact and made != gpu):
        return 0
    return 2 if found[4] else 1


def best(codes: Iterable[str], gpu: int) -> int:
    """How good the best of some kinds of code is; -1 if there are none."""
    return max((loads(code, gpu) for code in codes), default=-1)


def reached(tree: Path, path: Path) -> str:
    """A source and everything of the tree that it includes."""
    found: dict[Path, str] = {}
    todo = [path]
    while todo:
        path = todo.pop()
        found[path] = proofkit.read(path)
        folders = (path.parent, tree / "csrc", tree / "csrc/libtorch_stable")
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', found[path], re.MULTILINE):
            files = [(folder / name).resolve() for folder in folders if (folder / name).is_file()]
            todo += [file for file in files if file not in found][:1]
    return "\n".join(found.values())


def refused(tree: Path, path: Path, macro: int) -> Iterator[str]:
    """The guards of a source that shut its kernels out where ``__CUDA_ARCH__`` is ``macro``."""
    text = reached(tree, path)
    struct = re.compile(r"^struct (enable_sm12\w+) : Kernel \{(.*?)^\};", re.MULTILINE | re.DOTALL)
    bodies = dict(struct.findall(text))
    for name in sorted(set(re.findall(r"\b(enable_sm12\w+)<", text))):
        guards = r"^\s*#\s*if\b(.*__CUDA_ARCH__.*)$"
        for condition in re.findall(guards, bodies.get(name, ""), re.MULTILINE):
            plain = re.sub(r"defined\s*\(?\s*__CUDA_ARCH__\s*\)?", "1", condition)
            plain = plain.replace("__CUDA_ARCH__", str(macro))
            plain = plain.replace("&&", " and ").replace("||", " or ")
            if not re.fullmatch(r"(?:[\d\s()<>=]|and|or)+", plain):
                what = f"{name} is guarded in a way that this proof cannot read: {condition}"
                raise proofkit.Inconclusive(what)
            if not proofkit.evaluate(ast.parse(plain.strip(), mode="eval").body, {}):
                yield f"{name} shuts out __CUDA_ARCH__ {macro}"


def dispatchers(build: Build) -> Iterator[str]:
    """Definitions that dispatchers lack, and kernels that are not beside them."""
    for dispatcher, wanted in DISPATCHERS.items():
        libraries = [library for library, name in build.targets if name.endswith(f"/{dispatcher}")]
        if len(libraries) != 1:
            raise proofkit.Inconclusive(f"{len(libraries)} libraries have {dispatcher}")
        if missing := wanted - build.flags[libraries[0]]:
            yield f"{dispatcher} is compiled without {', '.join(sorted(missing))}"
        built = {
            source.rpartition("/")[2]
            for library, source in build.targets
            if library == libraries[0]
        }
        if missing := KERNELS - built:
            yield f"{libraries[0]} has {dispatcher}, but not {', '.join(sorted(missing))}"


def weak(build: Build, model: Build) -> dict[str, list[str]]:
    """Sources whose code is not good enough for 12.1, by that code."""
    found: dict[str, list[str]] = {}
    for library, source in sorted(model.targets.keys() | build.targets.keys()):
        codes = build.targets.get((library, source), [])
        wanted = best(model.targets.get((library, source), []), 120)
        if best(codes, 121) < (2 if source.rpartition("/")[2] in KERNELS else wanted):
            found.setdefault(" ".join(sorted(codes)) or "nothing", []).append(source)
    return found


def symptoms_of(build: Build, model: Build) -> Iterator[str]:
    """What is not as it should be in one build, one line each."""
    for codes, sources in weak(build, model).items():
        more = f" and {len(sources) - 4} more" if sources[4:] else ""
        yield f"{codes} for {', '.join(sources[:4])}{more}"
    yield from dispatchers(build)
    paths = sorted((build.tree / "csrc").rglob("*sm120*.cu"))
    for path in (path for path in paths if path.name in KERNELS):
        own = [codes for (_, s), codes in build.targets.items() if path.as_posix().endswith(s)]
        loaded = {code for codes in own for code in codes if loads(code, 121)}
        for macro in sorted({int(re.sub(r"\D", "", code)) * 10 for code in loaded}):
            yield from (f"{path.name}: {guard}" for guard in refused(build.tree, path, macro))


def lost(tree: Path) -> Iterator[str]:
    """Sources that CUDA 13 has no code of for another GPU, and CUDA 12.8 has."""
    for archs, gpus in OTHERS.items():
        before, now = built(tree, archs, "12.8").targets, built(tree, archs).targets
        for gpu in gpus:
            sources = [
                source
                for (library, source), codes in before.items()
                if best(codes, gpu) > max(best(now.get((library, source), []), gpu), 0)
            ]
            if sources:
                more = f" and {len(sources) - 2} more" if sources[2:] else ""
                yield f"for {archs}: no code for {gpu / 10} of {', '.join(sources[:2])}{more}"
    # CUDA 12.8 knows no 10.3: what it is to have is what the first of its family has
    first, other = built(tree, "10.0").targets, built(tree, "10.3").targets
    sources = [
        key[1]
        for key, codes in first.items()
        if best(codes, 100) == 2 and best(other.get(key, []), 103) < 1
    ]
    if sources:
        yield f"for 10.3: no code of {', '.join(sources[:2])}, which 10.0 has"
    if not any(best(codes, 110) > 0 for codes in built(tree, "11.0").targets.values()):
        yield "for 11.0: no code at all"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a list of architectures for which anything is not as for 12.0."""
    proofkit.require("cmake")
    proofkit.holding(tree / "cmake", r".*")  # CMake reads them all, and its reads are not traced
    model = built(tree, "12.0")
    if missing := KERNELS - {path.name for path in (tree / "csrc").rglob("*.cu")}:
        raise proofkit.Inconclusive(f"there is no {', '.join(sorted(missing))}")
    lists: dict[str, list[str]] = {}
    for archs in LISTS:
        if seen := "; ".join(dict.fromkeys(symptoms_of(built(tree, archs), model))):
            lists.setdefault(seen, []).append(archs)
    found = [f"for {', '.join(archs)}: {seen}" for seen, archs in lists.items()]
    return proofkit.verdict(
        [*found, *lost(tree)],
        right=f"for {', '.join(LISTS)} every source gets code for a GB10, and the dispatchers "
        "know the SM120 kernels; other GPUs lose nothing",
    )


if __name__ == "__main__":
    proofkit.main(judge)

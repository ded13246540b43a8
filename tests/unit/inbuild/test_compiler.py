"""The programs that compile parts of vLLM and build its wheel, with fake compilers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from imagefactory.inbuild import compiler, overlay, sources, wheelmaker

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "free", "wanted"),
    [(2, 24 * GIB, 2), (8, 24 * GIB, 3), (20, 120 * GIB, 17), (2, 4 * GIB, 1), (1, 99 * GIB, 1)],
)
def test_parallel_units_are_limited_by_cores_and_memory(cores: int, free: int, wanted: int) -> None:
    assert compiler.jobs(cores, free) == wanted


def test_available_memory_is_free_memory_or_the_control_groups_limit(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:    2048 kB\n")
    assert compiler.available_memory(tmp_path) == 2048 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert compiler.available_memory(tmp_path) == 2048 * 1024
    (group / "memory.max").write_text("1024\n")
    assert compiler.available_memory(tmp_path) == 1024


def tree(folder: Path) -> Path:
    projects = folder / "cmake/external_projects"
    projects.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("if (DEFINED ENV{VLLM_CUTLASS_SRC_DIR})\n")
    (projects / "qutlass.cmake").write_text("if(DEFINED ENV{QUTLASS_SRC_DIR})\n")
    (projects / "flashmla.cmake").write_text("if(DEFINED ENV{FLASH_MLA_SRC_DIR})\n")
    return folder


def test_projects_whose_sources_are_not_given_are_disabled_and_listed(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    assert compiler.disable_projects(folder, ["VLLM_CUTLASS_SRC_DIR", "QUTLASS_SRC_DIR"]) == [
        "flashmla"
    ]
    assert (folder / "cmake/external_projects/qutlass.cmake").read_text() != ""
    assert (folder / "cmake/external_projects/flashmla.cmake").read_text() == ""


def test_missing_sources_that_vllm_itself_needs_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="VLLM_CUTLASS_SRC_DIR"):
        compiler.disable_projects(tree(tmp_path), [])


def test_cmake_gets_the_header_folders_of_a_cutlass_without_a_cmake_file(tmp_path: Path) -> None:
    (tmp_path / "include/cutlass").mkdir(parents=True)
    given = {"VLLM_CUTLASS_SRC_DIR": str(tmp_path)}
    assert f"-DCUTLASS_INCLUDE_DIR={tmp_path}/include" in compiler.cutlass_options(given)
    (tmp_path / "CMakeLists.txt").touch()
    assert compiler.cutlass_options(given) == []
    assert compiler.cutlass_options({}) == []


SASS = """
Fatbin elf code:
================
arch = sm_121a
code version = [1,8]

\tcode for sm_121a
\t\tFunction : _Z5probev
        /*0000*/                   LDC R1, c[0x0][0x37c] ;          /* 0x0000df00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/                   F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C R3, R2, R0, RZ ;
                                                                               /* 0x000fe200078e02ff */
Fatbin elf code:
================
arch = sm_80
        /*0000*/                   EXIT ;
"""


def test_instructions_are_counted_per_gpu_target() -> None:
    found = compiler.machine_code(Path("x.o"), "E2M1", lambda _: SASS)
    assert found == {
        "sm_121a": {"instructions": 2, "matching": 1},
        "sm_80": {"instructions": 1, "matching": 0},
    }


# A fake compiler: writes its arguments instead of an object file, and fails for plain sm_121.
COMPILER = """#!{python}
import sys
if sys.argv[-1].endswith("code=sm_121"):
    print("ptxas fatal: Instruction 'cvt with .e2m1x2' not supported on .target 'sm_121'")
    sys.exit(255)
open(sys.argv[sys.argv.index("-o") + 1], "w").write(" ".join(sys.argv[1:]))
"""


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in ("ccache", "nvcc"):
        (tmp_path / name).write_text(
            '#!/bin/sh\nexec "$@"\n' if name == "ccache" else COMPILER.format(python=sys.executable)
        )
        (tmp_path / name).chmod(0o755)
    (tmp_path / "cuobjdump").write_text("#!/bin/sh\n")
    (tmp_path / "cuobjdump").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    targets = "-gencode arch=compute_120f,code=sm_120f -gencode arch=compute_80,code=sm_80"
    return {"command": f"{tmp_path}/nvcc -O3 {targets} -c a.cu -o a.o", "directory": str(tmp_path)}


@pytest.mark.programs
def test_a_unit_is_compiled_for_cmakes_targets_or_only_for_another_one(
    tmp_path: Path, entry: dict[str, str]
) -> None:
    own = compiler.compile_unit(entry, "csrc/a.cu", "", "", tmp_path)
    assert (own["target"], own["error"]) == ("sm_120f sm_80", "")
    other = compiler.compile_unit(entry, "csrc/a.cu", "sm_121a", "", tmp_path)
    assert other["error"] == ""
    argv = (tmp_path / "csrc.a.cu.sm_121a.o").read_text()
    assert argv.count("-gencode") == 1
    assert argv.endswith("-gencode arch=compute_121a,code=sm_121a")


@pytest.mark.programs
def test_unreadable_machine_code_is_an_error_and_not_counted_as_none(
    tmp_path: Path, entry: dict[str, str]
) -> None:
    (tmp_path / "cuobjdump").write_text(
        "#!/bin/sh\necho 'cuobjdump fatal: no nvdisasm' >&2\nexit 255\n"
    )
    with pytest.raises(SystemExit, match="no nvdisasm"):
        compiler.compile_unit(entry, "csrc/a.cu", "sm_121a", "", tmp_path)
    (tmp_path / "cuobjdump").unlink()
    with pytest.raises(SystemExit, match="nvidia-cuda-cuobjdump"):
        compiler.compile_unit(entry, "csrc/a.cu", "sm_121a", "", tmp_path)


@pytest.mark.programs
def test_a_unit_that_fails_to_compile_reports_why(tmp_path: Path, entry: dict[str, str]) -> None:
    row = compiler.compile_unit(entry, "csrc/a.cu", "sm_121", "", tmp_path)
    assert "not supported" in row["error"]
    assert row["code"] == {}


@pytest.mark.programs
@pytest.mark.skipif(not shutil.which("cmake"), reason="there is no cmake")
def test_an_extension_that_installs_no_library_with_its_name_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(x NONE)\n"
        "add_custom_target(_C)\nadd_custom_target(_D)\n"
        "install(FILES CMakeLists.txt DESTINATION vllm RENAME _D.abi3.so COMPONENT _D)\n"
    )
    (tmp_path / "ccache").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    subprocess.run(["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build")], check=True)
    compiler.compile_extensions(["_D"], tmp_path / "build", tmp_path / "out")
    with pytest.raises(SystemExit, match="target _C installs no library"):
        compiler.compile_extensions(["_D", "_C"], tmp_path / "build", tmp_path / "out")
    with pytest.raises(SystemExit, match="compiling the extension _E failed"):
        compiler.compile_extensions(["_E"], tmp_path / "build", tmp_path / "out")


def official(folder: Path) -> Path:
    path = folder / "vllm-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("vllm/a.abi3.so", "vllm/b.abi3.so", "vllm/__init__.py"):
            file.writestr(name, f"official {name}")
    return path


def compiled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"compiled {name}")
    return folder


def test_compiled_libraries_replace_the_official_ones_and_nothing_is_compressed(
    tmp_path: Path,
) -> None:
    mixed = wheelmaker.with_compiled(
        official(tmp_path), compiled(tmp_path / "c", "vllm/b.abi3.so"), tmp_path / "mixed"
    )
    with zipfile.ZipFile(mixed) as file:
        found = {name: file.read(name).decode().split()[0] for name in file.namelist()}
        assert {member.compress_type for member in file.infolist()} == {zipfile.ZIP_STORED}
    assert found == {
        "vllm/a.abi3.so": "official",
        "vllm/b.abi3.so": "compiled",
        "vllm/__init__.py": "official",
    }


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["vllm/unknown.abi3.so"], r"E: vllm-1-.* contains no vllm/unknown.abi3.so"),
        ([], r"E: .*/c contains no library"),
    ],
)
def test_a_library_that_vllm_would_not_load_is_an_error_and_so_is_none_at_all(
    tmp_path: Path, names: list[str], error: str
) -> None:
    (tmp_path / "c").mkdir()
    with pytest.raises(SystemExit, match=error):
        wheelmaker.with_compiled(
            official(tmp_path), compiled(tmp_path / "c", *names), tmp_path / "mixed"
        )


def test_the_requested_folder_of_an_archive_is_unpacked(tmp_path: Path) -> None:
    path = official(tmp_path)
    sources.unpack(path, "vllm", tmp_path / "inside")
    sources.unpack(path, "", tmp_path / "only")
    assert (tmp_path / "inside/__init__.py").is_file()
    assert (tmp_path / "only/__init__.py").is_file()
    with pytest.raises(SystemExit, match="contains no folder nothing"):
        sources.unpack(path, "nothing", tmp_path / "none")


def test_an_image_records_the_libraries_that_a_patch_is_compiled_into(tmp_path: Path) -> None:
    series, site = tmp_path / "series", compiled(tmp_path / "site", "vllm/_C.abi3.so")
    series.mkdir()
    (series / "series.json").write_text('[{"name": "vllm/one", "compiled": ["vllm/_C*.so"]}]')
    assert overlay.main(site, series, tmp_path / "out") == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())
    assert row["state"] == overlay.COMPILED
    assert list(row["files"]) == ["vllm/_C.abi3.so"]
    assert list((tmp_path / "out").iterdir()) == []
    (site / "vllm/_C.abi3.so").unlink()
    assert overlay.main(site, series, tmp_path / "none") == 1

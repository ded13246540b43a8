"""An extra of the cpu cell: compiled against its torch, locked, installed, imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.e2e import Completed, copy_project, factory

from imagefactory.locking import store
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

REPOSITORY = "imagefactory/test-extras"
EXTRAS = """\
    patches: [vllm/cpu-dist-info]
    extras:
      names-of-c10: {source: ./sources, folder: names, tools: extension-build}
"""
TOOLS = """\
    platforms: [linux/amd64, linux/arm64]
  extension-build:
    requirements: [setuptools==80.9.0, wheel==0.45.1, packaging==25.0, ninja==1.13.0]
    platforms: [linux/amd64, linux/arm64]

defaults"""
SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="names_of_c10",
    version="1.0",
    py_modules=["names_of_c10"],
    ext_modules=[CppExtension("_names_of_c10", ["names.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
#: Takes seconds to compile, unlike ``torch/extension.h``, and a function from torch's libraries.
CODE = """\
#include <Python.h>
#include <c10/util/Type.h>

static PyObject* demangle(PyObject*, PyObject* name) {
  return PyUnicode_FromString(c10::demangle(PyUnicode_AsUTF8(name)).c_str());
}
static PyMethodDef methods[] = {{"demangle", demangle, METH_O, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_names_of_c10", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__names_of_c10() { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Path]:
    if engine.platform != "linux/amd64":
        pytest.skip("the cpu cell is for linux/amd64, where its extras are compiled")
    folder = copy_project(
        tmp_path_factory.mktemp("extras") / "project",
        ("repository: imagefactory/vllm", f"repository: {REPOSITORY}"),
        ("    patches: [vllm/cpu-dist-info]\n", EXTRAS),
        ("    platforms: [linux/amd64, linux/arm64]\n\ndefaults", TOOLS),
    )
    source = folder / "sources/names"
    source.mkdir(parents=True)
    (source / "setup.py").write_text(SETUP)
    (source / "names.cpp").write_text(CODE)
    (source / "names_of_c10.py").write_text("import torch\nfrom _names_of_c10 import demangle\n")
    done = factory("lock", cwd=folder)
    assert done.code == 0, done.err
    yield folder
    for tag in engine.find_images([f"{REPOSITORY}:{tag}" for tag in TAGS]):
        engine.untag(tag)


TAGS = ("cpu-vllm0.32.0-torch2.13.0-cpu", "cpu-vllm0.32.0")


def run(project: Path, command: str, *options: str) -> Completed:
    return factory(command, "--select", "flavor=cpu", *options, cwd=project)


def test_an_extra_is_built_once_installed_beside_vllm_and_imported(
    project: Path, engine: Engine
) -> None:
    done = run(project, "plan")
    assert (done.code, "wheel-not-made" in done.err) == (2, True), done.err

    (made,) = run(project, "wheel", "--json").json
    assert (made["built"], made["patches"]) == (True, {})
    assert Path(made["wheel"]).name == "names_of_c10-1.0-cp311-cp311-linux_x86_64.whl"
    (locked,) = store.read(project / "wheels.lock").built
    assert (locked.key, locked.wheel.sha256) == (made["key"], made["sha256"])
    (again,) = run(project, "wheel", "--json").json
    assert again == {**made, "built": False}

    done = run(project, "build", "--matrix", "--no-verify")
    assert done.code == 0, done.err
    done = run(project, "verify", "--level", "import", "--json")
    assert done.code == 0, done.out + done.err
    checks = {row["name"]: row for row in done.json[0]["checks"]}
    assert checks["extras-import"]["detail"] == "1 extra: _names_of_c10, names_of_c10"
    assert {row["outcome"] for row in checks.values() if row["required"]} <= {"pass", "skip"}
    program = "import names_of_c10; print(names_of_c10.demangle('_ZN3c106DeviceE'))"
    ran = engine.run(
        f"{REPOSITORY}:{TAGS[0]}",
        ["-c", program],
        platform=engine.platform,
        timeout=120,
        entrypoint="/opt/venv/bin/python",
    )
    assert ran.out.strip() == "c10::Device"

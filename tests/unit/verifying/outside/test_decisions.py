"""What the judgement from outside decides by itself, without an image."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT

from imagefactory.inbuild import overlay
from imagefactory.patching.patch import Stage
from imagefactory.verifying import circumstances
from imagefactory.verifying.outside import configured, layers, patched, proving
from imagefactory.verifying.outside.judged import Proven

UNITS = {"s": 10**9, "m": 60 * 10**9}


@pytest.mark.parametrize("name", ["cpu/cpu", "gb10/gb10-vllm0-22-1-torch2-11-0-cu130-py313-arm64"])
def test_what_every_image_has_to_have_is_what_its_dockerfile_sets(name: str) -> None:
    text = (ROOT / f"tests/data/golden/{name}.Dockerfile").read_text().replace("\\\n", " ")
    rows = dict(re.findall(r"^([A-Z]+) (.*)$", text.rpartition("\nFROM ")[2], re.MULTILINE))
    options, _, command = rows["HEALTHCHECK"].partition("CMD")
    given = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
    times = {
        "".join(word.title() for word in key.split("-")): int(value[:-1]) * UNITS[value[-1]]
        for key, value in given.items()
        if key != "retries"
    }
    test = ["CMD", *json.loads(command)]
    assert {
        "Entrypoint": json.loads(rows["ENTRYPOINT"]),
        "Cmd": json.loads(rows["CMD"]),
        "WorkingDir": "/root",  # which comes with the packages
        "ExposedPorts": {f"{rows['EXPOSE']}/tcp": {}},
        "Healthcheck": {"Test": test, "Retries": int(given["retries"]), **times},
    } == configured.FIXED


def step(**changes: Any) -> Any:
    patch = {"name": "vllm/one", "project": "vllm", "stage": Stage.INSTALLED, "proof": object()}
    own = {"variant": SimpleNamespace(diff=Path("a.diff")), "exempt": False}
    return SimpleNamespace(
        patch=SimpleNamespace(**{key: changes.get(key, value) for key, value in patch.items()}),
        **{key: changes.get(key, value) for key, value in own.items()},
    )


@pytest.mark.parametrize(
    ("changes", "build", "has"),
    [
        ({}, None, True),
        ({}, object(), True),
        ({"stage": Stage.SOURCE}, None, True),
        ({"stage": Stage.SOURCE}, object(), False),
        ({"proof": None}, None, False),
        ({"exempt": True}, None, False),
    ],
)
def test_a_patch_has_a_proof_in_the_image_unless_it_went_into_compiled_sources(
    changes: dict[str, Any], build: object, *, has: bool
) -> None:
    plan: Any = SimpleNamespace(cell=SimpleNamespace(build=build))
    assert proving._has_proof(step(**changes), plan) == has


@pytest.mark.parametrize(
    ("series", "build", "applied"),
    [
        ([step()], None, ["vllm/one"]),
        ([step()], object(), []),
        ([step(name="flashinfer/x", project="flashinfer")], object(), ["flashinfer/x"]),
        ([step(exempt=True)], None, []),
        ([step(variant=None)], None, []),
        ([step(name="vllm/old")], None, []),
    ],
)
def test_the_patches_that_an_install_applies_are_applied_here(
    series: Sequence[Any], build: Any, applied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a patch removes is in none of its images, and one that it adds is its own."""

    def unpack(tree: Path, names: set[str], *_: object) -> list[str]:
        assert names == ({"gone", "kept", "new"} if applied else set())
        for name in ("gone", "kept"):
            (tree / name).write_text("old")
        return ["a fault of a wheel"]

    def apply(tree: Path, diff: Path) -> object:
        (tree / "gone").unlink()
        (tree / "kept").write_text("new")
        (tree / "new").write_text("added")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(patched, "_unpack", unpack)
    monkeypatch.setattr(overlay, "touched", lambda _: ["gone", "kept", "new"])
    monkeypatch.setattr(overlay, "git_apply", apply)
    found = patched.apply(series, build, (), {}, None, {"vllm/old"})  # type: ignore[arg-type]
    assert found.faults == ("a fault of a wheel",)
    assert found.patches == dict.fromkeys(applied, (("gone", "kept", "new"), ("new",)))
    assert {name: size for name, (_, size) in found.files.items()} == (
        {"kept": 3, "new": 5} if applied else {}
    )


def test_a_stream_has_blobs_and_two_documents_and_the_rest_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in {
            "index.json": b'{"i": 1}',
            "manifest.json": b'{"m": 1}',
            "oci-layout": b"no json",
            "repositories": b"[",
            "blobs/sha256/ab": b"blob",
            "blobs/sha512/cd": b"other",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name in ("index.json", "blobs/sha256/folder"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
    blobs = list[tuple[str, bytes]]()
    monkeypatch.setattr(
        layers, "_read_blob", lambda name, file, *_: blobs.append((name, file.read()))
    )
    monkeypatch.setattr(layers, "_assembled", lambda *args: args)
    found: Any = layers.read_stream(io.BytesIO(out.getvalue()), "digest", tmp_path)
    assert found == ("digest", {"index.json": {"i": 1}, "manifest.json": {"m": 1}}, {})
    assert blobs == [("sha256:ab", b"blob")]


@pytest.mark.parametrize(
    ("row", "proof", "detail"),
    [
        ({"code": 0, "output": "one\ntwo\n"}, "pass", "two"),
        ({"code": 1}, "fail", ""),
        ({"code": 3}, "inconclusive", ""),
        ({"code": 2}, "fail", ""),
        ({"code": 135, "output": "x" * 999}, "fail", "x" * circumstances.MOST),
        ({"code": "0"}, "", ""),
        ({}, "", ""),
        ({"code": 0, "output": "\ud800"}, "pass", "?"),
    ],
)
def test_how_a_proof_ended_is_in_the_receipt(row: dict[str, Any], proof: str, detail: str) -> None:
    reported = [7, {"patch": 5}, {"patch": "vllm/one", **row}, {"patch": "vllm/other", "code": 0}]
    labels = {
        "io.imagefactory.patch.vllm.one": "a.diff",
        "io.imagefactory.patch.vllm.two.b": "b.diff",
        "io.imagefactory.build-key": "k",
    }
    subject: Any = SimpleNamespace(
        image=SimpleNamespace(labels=labels),
        facts={"patches": {"proofs": reported}},
        content=SimpleNamespace(proofs=[Proven(patch="vllm/two.b", code=1, output="no")]),
    )
    found = {
        one.name: (one.variant, one.proof, one.detail) for one in circumstances._patches(subject)
    }
    assert found == {"vllm/one": ("a.diff", proof, detail), "vllm/two.b": ("b.diff", "fail", "no")}
    nothings: list[dict[str, Any]] = [{}, {"patches": {}}, {"patches": {"proofs": {"a": 1}}}]
    for nothing in nothings:
        subject.facts, subject.content = nothing, None
        assert {one.proof for one in circumstances._patches(subject)} == {""}

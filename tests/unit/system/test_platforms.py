"""Platforms and their names."""

from __future__ import annotations

import os

import pytest

from imagefactory.system import platforms
from imagefactory.system.platforms import Platform


@pytest.mark.parametrize(
    ("machine", "image", "native"),
    [
        ("x86_64", "linux/amd64", True),
        ("x86_64", "linux/arm64", False),
        ("aarch64", "linux/arm64", True),
        ("aarch64", "linux/arm64/v8", True),
        ("riscv64", "linux/riscv64", False),
    ],
)
def test_only_images_of_this_machines_own_platform_run_natively(
    monkeypatch: pytest.MonkeyPatch, machine: str, image: str, native: bool
) -> None:
    own = os.uname_result(("Linux", "host", "6", "1", machine))
    monkeypatch.setattr(os, "uname", lambda: own)
    assert platforms.is_native(image) is native


@pytest.mark.parametrize("platform", Platform)
def test_a_platform_is_found_by_its_machine_name_and_its_oci_name(platform: Platform) -> None:
    assert platforms.of_machine(platform.machine) is platform
    assert platforms.parse(f"{platform}/v8") is platform
    assert str(platform) == f"linux/{platform.arch}"


@pytest.mark.parametrize(
    ("machine", "chosen", "platform", "variables"),
    [
        ("x86_64", "", Platform.ARM64, {"QEMU_CPU": "cortex-a76"}),
        ("x86_64", "max", Platform.ARM64, {"QEMU_CPU": "max"}),
        ("aarch64", "max", Platform.ARM64, {}),
        ("aarch64", "", Platform.AMD64, {}),
    ],
)
def test_an_emulated_processor_is_a_fast_one_unless_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    chosen: str,
    platform: Platform,
    variables: dict[str, str],
) -> None:
    own = os.uname_result(("Linux", "host", "6", "1", machine))
    monkeypatch.setattr(os, "uname", lambda: own)
    monkeypatch.setenv("QEMU_CPU", chosen)
    assert platform.emulation == variables

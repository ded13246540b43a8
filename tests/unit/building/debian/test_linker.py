from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.debs import library

from imagefactory.building.debian import linker
from imagefactory.building.tree import Tree
from imagefactory.system.platforms import Platform

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin")


def sample() -> Tree:
    tree = Tree()
    tree.symlink("lib", "usr/lib")
    folder = "usr/lib/x86_64-linux-gnu"
    tree.file(f"{folder}/libone.so.1.2", library("libone.so.1"))
    tree.symlink(f"{folder}/libone.so.1", "libone.so.1.2")
    tree.symlink(f"{folder}/libone.so", "libone.so.1.2")
    tree.file(f"{folder}/libone.so.10", library("libone.so.10"))
    tree.file(f"{folder}/libplain.so", library(None))
    tree.file(f"{folder}/libunlinked.so.2.1", library("libunlinked.so.2"))
    tree.file(f"{folder}/libscript.so", "GROUP ( libone.so.1 )")
    tree.file(f"{folder}/libarm.so.1", library("libarm.so.1", "arm64"))
    tree.file(f"{folder}/plugins/libdeep.so", library("libdeep.so"))
    tree.file("opt/own/libone.so.1", library("libone.so.1"))
    tree.file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    tree.file("etc/ld.so.conf.d/a.conf", "# ours\n/opt/own\n/lib/x86_64-linux-gnu # aliases\n")
    tree.file("etc/ld.so.conf.d/no", "/opt/no\n")
    return tree


def listed(tree: Tree, platform: Platform = Platform.AMD64) -> list[str]:
    return [found.path for found in linker.libraries(tree, platform)]


def test_libraries_are_listed_by_soname_with_the_highest_version_first() -> None:
    assert listed(sample()) == [
        "/lib/x86_64-linux-gnu/libunlinked.so.2",
        "/lib/x86_64-linux-gnu/libplain.so",
        "/lib/x86_64-linux-gnu/libone.so.10",
        "/opt/own/libone.so.1",
        "/lib/x86_64-linux-gnu/libone.so.1",
        "/lib/x86_64-linux-gnu/libone.so",
    ]


def test_only_libraries_of_the_architecture_are_listed() -> None:
    assert listed(sample(), Platform.ARM64) == ["/lib/x86_64-linux-gnu/libarm.so.1"]


def test_a_link_that_a_package_lacks_is_found() -> None:
    missing = linker.missing_links(sample(), Platform.AMD64)
    assert missing == {"usr/lib/x86_64-linux-gnu/libunlinked.so.2": "libunlinked.so.2.1"}


@pytest.mark.programs
@pytest.mark.skipif(LDCONFIG is None, reason="this machine has no ldconfig")
def test_ldconfig_reads_the_cache(tmp_path: Path) -> None:
    cache = linker.make(sample(), Platform.AMD64, libc_bin="2.41-12+deb13u4")
    (tmp_path / "cache").write_bytes(cache)
    done = subprocess.run(
        [str(LDCONFIG), "-p", "-C", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[1] == "\tlibunlinked.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libunlinked.so.2"
    assert [line.rpartition(" ")[2] for line in lines[1:7]] == listed(sample())
    assert "ldconfig (Debian GLIBC 2.41-12+deb13u4) stable release version 2.41" in done.stdout


def test_texts_that_end_others_are_stored_once() -> None:
    cache = linker.make(sample(), Platform.AMD64, libc_bin="2.41")
    assert cache.count(b"libone.so.10\0") == 1

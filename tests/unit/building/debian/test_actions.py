from __future__ import annotations

from pathlib import Path

import pytest
from support.debs import deb

from imagefactory.building.debian import actions, merge, package, scripts
from imagefactory.building.debian.system import Diversion, System
from imagefactory.errors import InputError
from imagefactory.system.platforms import Platform

SCRIPT = "#!/bin/sh\nsomething\n"
FILES = {
    "etc/group": "root:x:0:\nssh:x:101:\n",
    "usr/bin/agent": "",
    "usr/bin/gcc-14": "",
    "usr/bin/g++": "",
    "usr/bin/gcc-ar": "",
    "usr/bin/aarch64-linux-gnu-gcc": "",
    "usr/share/default": "settings",
    "var/run/mine": "kept",
}


def run(tmp_path: Path, *steps: str) -> System:
    """A system with one package, whose script does ``steps``."""
    path = deb(tmp_path, "one", FILES, arch="arm64", control={"postinst": SCRIPT})
    one = package.read(path, tmp_path / "spool")
    system = System(
        tree=merge.merge([one]),
        packages={"one": one},
        platform=Platform.ARM64,
        suite="trixie",
        epoch=0,
    )
    identity = scripts.identity(SCRIPT)
    listed = ", ".join(str(step.split()) for step in steps)
    table = scripts.read(f"[[one]]\npostinst = ['{identity}']\nwhy = 'test'\ndo = [{listed}]\n")
    actions.run(system, table)
    return system


def test_steps_make_files_folders_links_and_copies(tmp_path: Path) -> None:
    tree = run(
        tmp_path,
        "folder srv/deep/x 2775 ssh",
        "file var/log/x 0640 ssh text",
        "link etc/x ../usr/x",
        "copy usr/share/default etc/settings",
        "own usr/bin/agent 2755 ssh",
    ).tree
    found = {path: tree.entries[path] for path in ("srv/deep/x", "var/log/x", "usr/bin/agent")}
    assert [(entry.mode, entry.gid) for entry in found.values()] == [
        (0o2775, 101),
        (0o640, 101),
        (0o2755, 101),
    ]
    assert tree.entries["srv/deep"].mode == 0o755
    assert tree.entries["etc/x"].target == "../usr/x"
    assert tree.text("etc/settings") == "settings"


def test_ccache_has_links_with_the_names_of_the_compilers(tmp_path: Path) -> None:
    tree = run(tmp_path, "ccache").tree
    links = dict(tree.below("usr/lib/ccache/"))
    assert [path.rpartition("/")[2] for path in links] == [
        *("aarch64-linux-gnu-gcc", "c++", "g++", "gcc-14")
    ]
    assert {entry.target for entry in links.values()} == {"../../bin/ccache"}


def test_steps_leave_alone_what_is_there(tmp_path: Path) -> None:
    tree = run(
        tmp_path, "file usr/share/default 0600 root new", "copy etc/group usr/share/default"
    ).tree
    assert tree.text("usr/share/default") == "settings"


def test_what_is_in_a_folder_that_becomes_a_link_moves_with_it(tmp_path: Path) -> None:
    tree = run(tmp_path, "replace var/run /run").tree
    assert tree.entries["var/run"].target == "/run"
    assert tree.entries["run/mine"].read() == b"kept"


def test_steps_name_things_as_the_platform_does(tmp_path: Path) -> None:
    system = run(tmp_path, "divert {loader} {loader}.x", "folder usr/lib/{triplet} 0755")
    loader = "/lib/ld-linux-aarch64.so.1"
    assert system.diversions == [Diversion(path=loader, to=f"{loader}.x", package="one")]
    assert "usr/lib/aarch64-linux-gnu" in system.tree


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("copy usr/share/none etc/x", "copy /usr/share/none"),
        ("file etc/x 0600 nobody", "no group nobody"),
        ("own usr/bin/none 0755 root", "cannot be done: 'usr/bin/none'"),
        ("folder srv/x high", "cannot be done: invalid literal"),
        ("reboot", "cannot be done: 'reboot'"),
        ("link etc/x", "missing 1 required positional argument"),
    ],
)
def test_a_step_that_cannot_be_done_is_refused_by_name(
    tmp_path: Path, step: str, what: str
) -> None:
    with pytest.raises(InputError) as caught:
        run(tmp_path, step)
    assert what in str(caught.value)


def test_certificates_of_an_images_own_are_not_dropped_from_its_bundle(tmp_path: Path) -> None:
    own = {"usr/local/share/ca-certificates/mine.crt": "a certificate"}
    one = package.read(deb(tmp_path, "one", own), tmp_path / "spool")
    system = System(
        tree=merge.merge([one]),
        packages={"one": one},
        platform=Platform.AMD64,
        suite="trixie",
        epoch=0,
    )
    with pytest.raises(ValueError, match="certificates of its own"):
        actions.STEPS["certificates"](system, one)

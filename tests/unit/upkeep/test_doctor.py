"""What the doctor says about Debian's archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.index import served
from support.machine import settings

from imagefactory.settings import Debian
from imagefactory.upkeep import doctor


def test_archives_that_answer_or_do_not_and_folders_of_packages_are_shown(tmp_path: Path) -> None:
    (tmp_path / "one.deb").touch()
    with served(tmp_path) as url:
        mirrors = (("debian", url), ("debian-security", "http://127.0.0.1:9/x"))
        machine = replace(settings(tmp_path), debian=Debian(mirrors=mirrors, folders=(tmp_path,)))
        one, two, folder = doctor._archives(machine)
    assert (one.health, one.seen) == ("good", f"{url} answers")
    assert (two.health, two.name) == ("note", "debian-security")
    assert "IMAGEFACTORY_DEBIAN_SECURITY_MIRROR" in two.remedy
    assert folder.seen == f"{tmp_path} has 1 Debian package"

"""A base from today's Debian packages, compared with what Debian's own tools make of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imagefactory.building.debian import debian
from imagefactory.building.debian.debian import Assembled
from imagefactory.system import zstd
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

#: What matrix.yaml asks for, and what makes a system that apt can extend.
PACKAGES = (
    *("?priority(^required$)", "?essential", "apt", "passwd", "usr-is-merged"),
    *("ca-certificates", "g++", "libgomp1", "libnuma1", "libpython3-dev", "python3"),
)
APT = """\
Dir "{folder}"; Dir::Etc::sourcelist "{folder}/sources.list"; Dir::Etc::sourceparts "none";
Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "none";
Dir::State::status "{folder}/status"; Dir::Bin::dpkg "/bin/false";
Acquire::Languages "none"; APT::Sandbox::User "root"; APT::Install-Recommends "false";
APT::Architecture "{arch}"; APT::Architectures {{ "{arch}"; }};
"""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
CHECK = """\
set -eux
test -z "$(dpkg --audit)"
test -z "$(dpkg --verify)"
apt-get check
getent passwd _apt
getent group shadow
grpck -r

python3 -c 'import ctypes.util, ssl; assert ctypes.util.find_library("c"); \\
assert len(ssl.create_default_context().get_ca_certs()) > 100'
printf '#include <iostream>\\nint main() { std::cout << "compiled"; }' > /tmp/a.cc
c++ -fopenmp /tmp/a.cc -o /tmp/a
test "$(/tmp/a)" = compiled

cp /etc/ld.so.cache /tmp/cache
ldconfig
cmp /tmp/cache /etc/ld.so.cache

certs() { find /etc/ssl/certs -printf '%f %l\\n' | sort; cat /etc/ssl/certs/ca-certificates.crt; }
certs > /tmp/before
update-ca-certificates --fresh
certs > /tmp/after
cmp /tmp/before /tmp/after

cp -r /etc/pam.d /var/lib/pam /tmp
pam-auth-update --package --force < /dev/null
rm -f /etc/pam.d/*.pam-old
diff -r /tmp/pam.d /etc/pam.d
diff -r /tmp/pam /var/lib/pam

cp -r /etc/alternatives /tmp
update-alternatives --get-selections | while read -r name _; do
  update-alternatives --auto "$name"
done
diff -r --no-dereference /tmp/alternatives /etc/alternatives
cp /etc/shells /tmp
update-shells
cmp /tmp/shells /etc/shells
"""


def packages(suite: str, arch: str, folder: Path) -> list[Path]:
    """Today's packages of a suite, in a folder of their own."""
    for name in ("lists/partial", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(
        f"deb [signed-by={KEYS}] http://deb.debian.org/debian {suite} main\n"
        f"deb [signed-by={KEYS}] http://deb.debian.org/debian {suite}-updates main\n"
        f"deb [signed-by={KEYS}] http://deb.debian.org/debian-security {suite}-security main\n"
    )
    (folder / "apt.conf").write_text(APT.format(folder=folder, arch=arch))
    environ = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    for command in (["update"], ["install", "--yes", "--download-only", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return list((folder / "var/cache/apt/archives").glob("*.deb"))


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_debians_own_tools_find_nothing_to_change(
    suite: str, engine: Engine, tmp_path: Path
) -> None:
    files = packages(suite, engine.platform.arch, tmp_path / "apt")
    image: Assembled = debian.assemble(
        files, platform=engine.platform, suite=suite, epoch=315532800, folder=tmp_path / "image"
    )
    context = tmp_path / "context"
    context.mkdir()
    layer = image.folder / "blobs" / "sha256" / image.layer.removeprefix("sha256:")
    (context / "layer.tar").write_bytes(zstd.decompress(layer.read_bytes()))
    (context / "check").write_text(CHECK)
    (context / "Dockerfile").write_text(
        "FROM scratch\nADD layer.tar /\nRUN --mount=type=bind,target=/mnt sh /mnt/check\n"
    )
    engine.build(context, cached=False)

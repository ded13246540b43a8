"""A small Debian archive on loopback, signed with a key of its own."""

from __future__ import annotations

import hashlib
import itertools
import lzma
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pysequoia import SignatureMode, Tsk, sign

from imagefactory.settings import Debian
from support.index import served

ARCHITECTURES = ("amd64", "arm64")
PARTS = {"debian": ("{}", "{}-updates"), "debian-security": ("{}-security",)}


def key() -> Tsk:
    return Tsk.generate("An archive <archive@example.org>")


def package(name: str, version: str = "1", **fields: str) -> dict[str, str]:
    """A paragraph of a package index; fields as in ``depends="libc6 (>= 2)"``."""
    data = f"{name} {version}".encode()
    named = {name.replace("_", "-").title(): value for name, value in fields.items()}
    arch = named.get("Architecture", "all")
    return {
        "Package": name,
        "Version": version,
        "Architecture": arch,
        "Priority": "optional",
        **named,
        "Filename": f"pool/main/{name[0]}/{name}/{name}_{version.rpartition(':')[2]}_{arch}.deb",
        "Size": str(len(data)),
        "SHA256": hashlib.sha256(data).hexdigest(),
    }


def text(*packages: Mapping[str, str]) -> bytes:
    """The text of a package index."""
    rows = ("".join(f"{key}: {value}\n" for key, value in one.items()) for one in packages)
    return "\n".join(rows).encode()


#: What every base has.
BASIC = (
    package("base-files", essential="yes", priority="required"),
    package("apt"),
    package("ca-certificates"),
    package("git"),
    package("python3"),
    package("python3-venv"),
)
#: What compiling a wheel needs.
COMPILERS = (
    package("ccache", depends="libhash"),
    package("g++"),
    package("libhash"),
    package("libpython3-dev"),
)


def write(
    folder: Path,
    key: Tsk,
    *packages: Mapping[str, str],
    suite: str = "trixie",
    security: tuple[Mapping[str, str], ...] = (),
    fields: str = "",
) -> None:
    """Write an archive of ``packages``, with their files, below ``folder``."""
    for archive, codenames in PARTS.items():
        for codename in (one.format(suite) for one in codenames):
            rows = security if "security" in codename else packages if codename == suite else ()
            _write_suite(folder / archive, codename, rows, key, fields)


def write_ubuntu(folder: Path, key: Tsk, *universe: Mapping[str, str]) -> None:
    """Write Ubuntu's archives of noble, with packages in the component universe only."""
    for archive in ("ubuntu", "ubuntu-ports"):
        for suite in ("noble", "noble-updates", "noble-security"):
            rows = universe if suite == "noble" else ()
            _write_suite(folder / archive, suite, (), key, f"Suite: {suite}\n", universe=rows)


def _write_suite(
    root: Path,
    codename: str,
    rows: tuple[Mapping[str, str], ...],
    key: Tsk,
    fields: str,
    *,
    universe: tuple[Mapping[str, str], ...] | None = None,
) -> None:
    """Write a suite with ``rows`` in main; with ``universe``, it is one of Ubuntu."""
    components = {"main": rows} if universe is None else {"main": rows, "universe": universe}
    lines = []
    dists = root / "dists" / codename
    for arch, component in itertools.product(ARCHITECTURES, components):
        data = lzma.compress(text(*components[component]), preset=0)  # the default takes 3 ms
        sha256 = hashlib.sha256(data).hexdigest()
        name = f"{component}/binary-{arch}"
        (dists / name / "by-hash" / "SHA256").mkdir(parents=True, exist_ok=True)
        (dists / name / "by-hash" / "SHA256" / sha256).write_bytes(data)
        lines.append(f" {sha256} {len(data)} {name}/Packages.xz\n")
    codename = codename if universe is None else codename.partition("-")[0]
    release = f"Codename: {codename}\n{fields}SHA256:\n{''.join(lines)}"
    signed = sign(key.signer(), release.encode(), mode=SignatureMode.CLEAR)
    (dists / "InRelease").write_bytes(signed)
    for row in (*rows, *(universe or ())):
        path = root / row["Filename"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{row['Package']} {row['Version']}".encode())


@contextmanager
def serve(folder: Path, trusted: Tsk, account: str = "") -> Iterator[Debian]:
    """Serve the archives in ``folder``; gives the settings with which they are used.

    ``account`` is the ``user:password`` that they ask for.
    """
    keys = folder.parent / "keys.asc"
    keys.write_text(str(trusted.extract_certificate()))
    with served(folder, account) as url:
        yield Debian(
            mirrors=tuple((name, f"{url}/{name}") for name in (*PARTS, "ubuntu", "ubuntu-ports")),
            snapshot=f"{url}/snapshot",
            keys=keys,
        )

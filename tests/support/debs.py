"""Hand-made Debian packages, and ELF libraries to put into them."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zstandard

MACHINES = {"amd64": 62, "arm64": 183}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Something else than a plain file with mode 0644 owned by root."""

    kind: bytes = tarfile.REGTYPE
    content: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    target: str = ""


def folder(mode: int = 0o755) -> Member:
    return Member(kind=tarfile.DIRTYPE, mode=mode)


def symlink(target: str) -> Member:
    return Member(kind=tarfile.SYMTYPE, mode=0o777, target=target)


def hard_link(target: str) -> Member:
    return Member(kind=tarfile.LNKTYPE, target=f"./{target}")


def deb(
    to: Path,
    name: str,
    files: Mapping[str, str | bytes | Member] | None = None,
    *,
    version: str = "1.0",
    arch: str = "amd64",
    fields: Mapping[str, str] | None = None,
    control: Mapping[str, str] | None = None,
    compression: str = "xz",
) -> Path:
    """Write a package; ``control`` are further files of the control archive (``postinst`` …)."""
    lines = {"Package": name, "Version": version, "Architecture": arch, **(fields or {})}
    lines |= {"Maintainer": "Somebody <a@b.example>", "Description": "a test\n more of it\n ."}
    paragraph = "".join(f"{key}: {value}\n" for key, value in lines.items())
    members = {"control": paragraph, **(control or {})}
    parts = {
        "debian-binary": b"2.0\n",
        f"control.tar.{compression}": _compressed(tar(members), compression),
        f"data.tar.{compression}": _compressed(tar(files or {}), compression),
    }
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"{name}_{version}_{arch}.deb"
    path.write_bytes(b"!<arch>\n" + b"".join(_member(*part) for part in parts.items()))
    return path


def _member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)


def _compressed(data: bytes, compression: str) -> bytes:
    match compression:
        case "xz":
            return lzma.compress(data, preset=0)
        case "zst":
            return zstandard.compress(data)
        case _:
            return data


def tar(files: Mapping[str, str | bytes | Member]) -> bytes:
    """An archive of ``files``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        root = tarfile.TarInfo("./")
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(root)
        for path, given in files.items():
            member = given if isinstance(given, Member) else Member(content=_bytes(given))
            info = tarfile.TarInfo(f"./{path}" + "/" * (member.kind == tarfile.DIRTYPE))
            info.type, info.mode, info.linkname = member.kind, member.mode, member.target
            info.uid, info.gid, info.size = member.uid, member.gid, len(member.content)
            info.uname = info.gname = "somebody"
            archive.addfile(info, io.BytesIO(member.content))
    return stream.getvalue()


def _bytes(given: str | bytes) -> bytes:
    return given.encode() if isinstance(given, str) else given


def library(soname: str | None, arch: str = "amd64") -> bytes:
    """A shared library without code: what ldconfig looks at, and no more."""
    strings = b"\0" + (soname or "").encode() + b"\0"
    header = 64 + 2 * 56
    dynamic = [(5, header), *([(14, 1)] if soname else []), (0, 0)]
    table = b"".join(struct.pack("<QQ", *pair) for pair in dynamic)
    total = header + len(strings) + len(table)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, total, total, 4096)
    at = header + len(strings)
    segment = struct.pack("<IIQQQQQQ", 2, 6, at, at, at, len(table), len(table), 8)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    numbers = (3, MACHINES[arch], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    return identity + struct.pack("<HHIQQQIHHHHHH", *numbers) + load + segment + strings + table

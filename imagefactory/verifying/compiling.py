"""Compiles, on this machine, the Python files that a probe in an emulated container imports.

The Python that compiles is the one of a base that was assembled here, from locked packages, for
this machine's own platform: it writes the same bytecode as the image's, or is not used. It runs
nothing of the image.
"""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imagefactory.settings import Settings
from imagefactory.system import platforms, processes, shell, temporary, ui, zstd
from imagefactory.verifying import compile_server

#: Where containers find the folder with the socket, and the socket.
FOLDER = "/run/imagefactory-compiler"
SOCKET = f"{FOLDER}/socket"
#: What the compiler may take: bytes of memory, and seconds of CPU. Torch takes 200 MB and 10 s.
MEMORY, SECONDS = 2 << 30, 300
#: Seconds between two looks at whether it still runs.
POLL = 0.2
#: The dynamic linker of a Debian system.
LINKERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
#: What Debian's Python is linked with.
LIBRARIES = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1")


@contextmanager
def offered(base: str, python: str, settings: Settings) -> Iterator[Path | None]:
    """A folder to mount at ``FOLDER``, whose socket compiles for the Python of ``base``.

    None if no such base was assembled on this machine.
    """
    system = find_system(base, settings)
    if system is None:
        yield None
        return
    with temporary.folder(prefix="imagefactory-compiler-") as parent:
        root, folder = parent / "root", parent / "run"
        argv = command(system, root, python)
        if argv is None:
            ui.warn(f"the image compiles what it imports: {system} has no Python that runs here")
            yield None
            return
        folder.mkdir()
        ended = threading.Event()
        with socket.socket(socket.AF_UNIX) as listener:
            _bind(listener, folder)
            for path, mode in ((parent, 0o755), (folder, 0o755), (folder / "socket", 0o666)):
                path.chmod(mode)  # an image may have another user
            listener.listen(1)
            thread = threading.Thread(target=_serve, args=(listener, argv, ended), daemon=True)
            thread.start()
            try:
                yield folder
            finally:
                ended.set()
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection
                thread.join()


def _bind(listener: socket.socket, folder: Path) -> None:
    """By a short path: that of a socket has at most 107 bytes, and ``TMPDIR`` may have more."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{handle}/socket")
    finally:
        os.close(handle)


def find_system(base: str, settings: Settings) -> Path | None:
    """The newest system that was assembled here of the base of that name, compressed."""
    here = platforms.here()
    pattern = f"{base}-*-{here.arch if here else 'none'}-*/index.json"
    found = sorted((settings.cache / "bases").glob(pattern), key=lambda path: path.stat().st_mtime)
    blobs = found[-1].parent / "blobs" / "sha256" if found else None
    return max(blobs.iterdir(), key=lambda path: path.stat().st_size) if blobs else None


def command(system: Path, root: Path, python: str) -> list[str] | None:
    """Unpack the Python of ``system`` below ``root``; the command line that compiles with it."""
    here = platforms.here() or platforms.Platform.AMD64
    libraries, program = f"usr/lib/{here.machine}-linux-gnu", f"usr/bin/python{python}"
    linker, home = LINKERS[here.arch], f"usr/lib/python{python}"
    faults: tuple[type[Exception], ...] = (OSError, KeyError, tarfile.TarError, *zstd.errors())
    needed = {program, f"{home}/os.py", *(f"{libraries}/{name}" for name in (linker, *LIBRARIES))}
    # a library may be a link to a file with its full version, which comes later or came before
    wanted = re.compile(
        rf"{home}/encodings/\w+\.py|{libraries}/(?:{'|'.join(map(re.escape, LIBRARIES))})[\d.]*"
    )
    try:
        with zstd.reader(system) as stream, tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                name = member.name.removeprefix("./")
                if name in needed or wanted.fullmatch(name):
                    _write(members, member, root / name)
    except faults:
        return None
    if not all((root / name).is_file() for name in needed):
        return None
    run = [str(root / program), "-I", "-S", "-B", compile_server.__file__]
    return [str(root / libraries / linker), "--library-path", str(root / libraries), *run]


def _write(members: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(Path(member.linkname).name)  # in the same folder
        return
    with target.open("wb") as file:
        shutil.copyfileobj(members.extractfile(member) or io.BytesIO(), file)
    target.chmod(0o755)


def _serve(listener: socket.socket, argv: list[str], ended: threading.Event) -> None:
    """Let one connection talk to a compiler until ``ended``; a second one is never answered."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    with connection:
        process = shell.attach(argv, connection.fileno())
    try:
        for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS)):
            with suppress(OSError):
                resource.prlimit(process.pid, limit, (most, most))
        while process.poll() is None and not ended.wait(POLL):
            pass
    finally:
        processes.end(process)

"""Imports of a probe that are compiled outside: by a real compiler, a lying one, and none."""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from imagefactory.building import blob
from imagefactory.settings import Settings, from_environment
from imagefactory.system import platforms
from imagefactory.verifying import compile_server, compiling, probe_imports

pytestmark = pytest.mark.programs

MAGIC = importlib.util.MAGIC_NUMBER


def imported(folder: Path, address: Path | str) -> str:
    """What a fresh Python says that imports a module with its compiler at ``address``."""
    (folder / "told.py").write_text("WORD = 'compiled here'\n")
    hook = Path(probe_imports.__file__).read_text(encoding="utf-8")
    rest = f"import sys\nsys.path.insert(0, {str(folder)!r})\nimport told\nprint(told.WORD)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-"],
        input=f"{hook}\ncompile_outside({str(address)!r})\n{rest}",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[Path]:
    """A compiler that says the same to everybody, and listens to nobody."""

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(answer)
            peer.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        thread.join(60)


CODE = marshal.dumps(compile("WORD = 'compiled outside'", "told.py", "exec"))
OWN = len(CODE).to_bytes(4, "little") + CODE


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (MAGIC + OWN, "outside"),
        (MAGIC + bytes(4), "here"),  # a file that it cannot compile
        (b"\0\0\r\n" + OWN, "here"),  # another Python
        (MAGIC + OWN[:-1], "here"),  # it ended
        (MAGIC, "here"),
        (b"", "here"),
    ],
)
def test_a_module_is_what_the_compiler_answers_or_compiled_here(
    tmp_path: Path, answer: bytes, word: str
) -> None:
    with answering(tmp_path / "socket", answer) as address:
        assert imported(tmp_path, address) == f"compiled {word}"


def test_the_compiler_answers_with_code_and_with_nothing_for_what_is_no_python() -> None:
    def framed(name: bytes, data: bytes) -> bytes:
        return b"".join(len(part).to_bytes(4, "little") for part in (name, data)) + name + data

    given = framed(b"/a/b.py", b"x = 1\n") + framed(b"c.py", b"def") + framed(b"d.py", b"y = 2")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", compile_server.__file__],
        input=given,
        capture_output=True,
        timeout=60,
        check=True,
    )
    out, codes = io.BytesIO(done.stdout), []
    assert out.read(len(MAGIC)) == MAGIC
    while size := out.read(4):
        codes.append(out.read(int.from_bytes(size, "little")))
    assert [bool(code) for code in codes] == [True, False, True]
    assert marshal.loads(codes[0]).co_filename == "/a/b.py"  # noqa: S302 - made by the test


#: What ``ldd`` says of Debian's Python.
LINKED = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1")
#: Those that are links, with their files.
FILES = {"libz.so.1": "libz.so.1.3.1", "libexpat.so.1": "libexpat.so.1.10.1"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return from_environment({"HOME": str(tmp_path)})


def base_with(settings: Settings, *left_out: str) -> None:
    """A system in the cache, as the build assembles them, without some of its files."""
    here = platforms.here() or platforms.Platform.AMD64
    libraries = f"usr/lib/{here.machine}-linux-gnu"
    names = [f"{libraries}/{name}" for name in (compiling.LINKERS[here.arch], *LINKED)]
    names += [f"{libraries}/{name}" for name in FILES.values()]
    names += ["usr/bin/python3.13", "usr/lib/python3.13/os.py"]
    folder = settings.cache / "bases" / f"trixie-builder-{here.arch}-0123"
    (folder / "blobs" / "sha256").mkdir(parents=True)
    (folder / "index.json").write_text("{}")
    (folder / "blobs/sha256/small").write_text("{}")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in (*names, "usr/lib/python3.13/encodings/utf_8.py", "usr/lib/python3.13/cgi.py"):
            if not name.endswith(left_out or ("nothing",)):
                member = tarfile.TarInfo(name)
                member.linkname = FILES.get(Path(name).name, "")
                member.type = tarfile.SYMTYPE if member.linkname else tarfile.REGTYPE
                member.size = 0 if member.linkname else 1
                archive.addfile(member, io.BytesIO(b"x"))
    with (folder / "blobs/sha256/layer").open("wb") as out:
        blob.write([made.getvalue()], out)


def test_what_a_python_of_a_base_needs_to_compile_is_unpacked_and_nothing_else(
    settings: Settings, tmp_path: Path
) -> None:
    base_with(settings)
    system = compiling.find_system("trixie", settings)
    assert system is not None
    argv = compiling.command(system, tmp_path / "root", "3.13")
    assert argv is not None
    assert argv[0].startswith(str(tmp_path / "root" / "usr/lib"))
    assert argv[-4:] == ["-I", "-S", "-B", compile_server.__file__]
    files = {path.name for path in (tmp_path / "root").rglob("*") if path.is_file()}
    assert files == {
        "python3.13",
        "os.py",
        "utf_8.py",
        Path(argv[0]).name,
        *LINKED,
        *FILES.values(),
    }


@pytest.mark.parametrize("left_out", ["", "python3.13", "os.py", *LINKED, *FILES.values()])
def test_without_a_whole_python_of_the_base_nothing_is_offered(
    settings: Settings, left_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if left_out:
        base_with(settings, left_out)
    with compiling.offered("trixie", "3.13", settings) as folder:
        assert folder is None
    assert ("the image compiles what it imports" in capsys.readouterr().err) is bool(left_out)


def test_of_a_damaged_base_nothing_is_offered(settings: Settings) -> None:
    base_with(settings)
    (layer,) = (settings.cache / "bases").glob("*/blobs/sha256/layer")
    layer.write_bytes(layer.read_bytes()[:-40])
    with compiling.offered("trixie", "3.13", settings) as folder:
        assert folder is None


def test_a_compiler_is_offered_to_one_container_and_is_gone_afterwards(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [sys.executable, "-I", "-S", "-B", compile_server.__file__]
    monkeypatch.setattr(compiling, "find_system", lambda *_: tmp_path)
    monkeypatch.setattr(compiling, "command", lambda *_: argv)
    temporary = tmp_path / ("long" * 30)  # a socket's path has at most 107 bytes
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with compiling.offered("trixie", "3.13", settings) as folder:
        assert folder is not None
        assert (folder / "socket").stat().st_mode & 0o777 == 0o666
        (tmp_path / "mounted").symlink_to(folder)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(tmp_path / "mounted" / "socket"))
            assert peer.recv(4) == MAGIC
    assert not folder.exists()
    assert not os.path.lexists(folder.parent)


def test_members_are_written_into_folders_that_need_not_be_there(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, link in (("a/b/lib.so.1", ""), ("a/b/lib.so", "/elsewhere/lib.so.1")):
            member = tarfile.TarInfo(name)
            member.size = 0 if link else 3
            if link:
                member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member, None if link else io.BytesIO(b"elf"))
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        for member in archive:
            compiling._write(archive, member, tmp_path / member.name)
    assert (tmp_path / "a/b/lib.so.1").read_bytes() == b"elf"
    assert (tmp_path / "a/b/lib.so.1").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a/b/lib.so").readlink() == Path("lib.so.1")

"""Has Python files compiled outside of the image when they are imported.

It runs in the image before the rest of the probe. Where the image is emulated, compiling what
``import torch`` reads takes a minute, and the machine outside compiles it in seconds (see
``compiling.py``). Only modules that are built into Python are used: any other would be compiled.
"""

import _frozen_importlib_external as files
import _thread
import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket


def compile_outside(address: str) -> None:
    """Ask the socket at ``address`` to compile; whatever it does not answer is compiled here."""
    try:
        import _socket  # noqa: PLC0415 - may be missing

        peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        peer.connect(address)
        if receive(peer, len(files.MAGIC_NUMBER)) != files.MAGIC_NUMBER:
            return  # another Python, whose code this one cannot run
    except (ImportError, OSError):
        return
    here, turn, peers = files.SourceFileLoader.source_to_code, _thread.allocate_lock(), [peer]

    def source_to_code(loader, data, path, **options):  # type: ignore[no-untyped-def]
        with turn:
            if peers and isinstance(data, bytes) and isinstance(path, str):
                try:
                    code = ask(peers[0], data, path.encode())
                except OSError:
                    peers.clear()
                    code = b""
                if code:
                    return marshal.loads(code)  # noqa: S302 - of the same Python, see its number
        return here(loader, data, path, **options)

    files.SourceFileLoader.source_to_code = source_to_code  # type: ignore[assignment,method-assign]


def ask(peer: "_socket.socket", data: bytes, path: bytes) -> bytes:
    """The code of a file; empty if it was not compiled."""
    sizes = b"".join(len(part).to_bytes(4, "little") for part in (path, data))
    peer.sendall(sizes + path + data)
    return receive(peer, int.from_bytes(receive(peer, 4), "little"))


def receive(peer: "_socket.socket", size: int) -> bytes:
    """Exactly so many bytes."""
    parts = []
    while size:
        part = peer.recv(size)
        if not part:
            raise OSError("the compiler has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)

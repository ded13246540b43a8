"""Reads a tar of a file system on standard input, writes ``sha256 bytes`` for every regular file.

Hard links once.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile


def main() -> None:
    """One line a file; what is no regular file, further names of one among them.

    Has no bytes of its own.
    """
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isreg() else None
            if data is not None:
                digest = hashlib.sha256()
                while piece := data.read(1 << 20):
                    digest.update(piece)
                sys.stdout.write(f"{digest.hexdigest()} {member.size}\n")


if __name__ == "__main__":
    main()

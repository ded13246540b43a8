"""Reads a file system's tar on standard input, and prints ``sha256 bytes`` for each regular file.

Hard links are counted once.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile


def main() -> None:
    """Print a line per file; anything else, such as a hard link to it, has no bytes of its own."""
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

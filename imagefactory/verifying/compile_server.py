"""Compiles Python files that arrive at standard input; runs in a Python like that of an image.

It answers with its magic number, then with the code of each file, which is empty for one that
cannot be compiled. Nothing is run, and only modules that are built into Python are imported.
See ``probe_imports.py`` for what it answers to.
"""

import marshal
import sys
from _frozen_importlib_external import MAGIC_NUMBER


def main() -> None:
    """Answer until the input ends."""
    source, answer = sys.stdin.buffer, sys.stdout.buffer
    answer.write(MAGIC_NUMBER)
    answer.flush()
    while sizes := source.read(8):
        name = source.read(int.from_bytes(sizes[:4], "little")).decode()
        data = source.read(int.from_bytes(sizes[4:], "little"))
        try:
            code = marshal.dumps(compile(data, name, "exec", dont_inherit=True))
        except Exception:  # noqa: BLE001 - the image's own Python then says what is wrong with it
            code = b""
        answer.write(len(code).to_bytes(4, "little") + code)
        answer.flush()


if __name__ == "__main__":
    main()

"""Files that are invalid as a whole or in one place, for the fault "bad inputs"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from support.bad_values import DIGITS

_BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)

YAML_TEXTS: Sequence[tuple[str, str | bytes]] = (
    ("an alias bomb", _BOMB),
    ("an anchor that contains itself", "a: &a [*a]\n"),
    ("5,000 brackets", "a: " + "[" * 5000),
    ("300,000 brackets", "a: " + "[" * 300_000),
    ("5,000 braces", "{a: " * 5000),
    ("300,000 dashes", "- " * 300_000),
    ("100,000 question marks", "? " * 100_000),
    ("1,300 levels of indentation", "".join(f"{' ' * n}a:\n" for n in range(1300))),
    ("a number of 5,000 digits", f"version: {DIGITS}\n"),
    ("a float of 5,000 digits", f"version: {DIGITS}.{DIGITS}\n"),
    ("a NUL byte", "version: 1\0\n"),
    ("a NUL in quotes", 'version: "\\0"\n'),
    ("a lone surrogate", 'repository: "\\ud800"\n'),
    ("invalid UTF-8", b"version: 1\nrepository: \xff\xfe\xfd\n"),
    ("UTF-16", "version: 1\n".encode("utf-16")),
    ("a BOM in the middle", "version: 1\n\ufeffrepository: x\n"),
    ("a tab as indentation", "version:\n\t1\n"),
    ("an open quote", 'version: "1\n'),
    ("an open bracket", "version: [1\n"),
    ("two documents", "version: 1\n---\nversion: 1\n"),
    ("an unknown anchor", "version: *none\n"),
    ("a duplicate key", "version: 1\nversion: 1\n"),
    ("a Python object", "version: !!python/object/apply:os.system [id]\n"),
    ("an unknown tag", "version: !x 1\n"),
    ("a merge key", "x: &x {version: 1}\n<<: *x\n"),
    ("a list as a key", "[a, b]: 1\n"),
    ("a list", "- a\n- b\n"),
    ("a word", "word\n"),
    ("a comment", "# nothing\n"),
    ("nothing", ""),
    ("spaces", " \n \n"),
    ("an unknown directive", "%YAML 9.9\n---\nversion: 1\n"),
    ("escapes of a terminal", "version: 1\n\x1b[31mred: 1\n"),
    ("a million keys", "".join(f"k{n}: 1\n" for n in range(90_000))),
    ("a million items", "a: [" + "x, " * 300_000 + "]\n"),
    ("binary", bytes(range(256)) * 40),
)


def _with(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


def _fixed(data: bytes) -> Callable[[bytes], bytes]:
    return lambda _: data


def _doubled(data: bytes) -> bytes:
    begin = data.index(b"[[resolution.wheel]]")
    end = data.index(b"[[resolution.wheel]]", begin + 1)
    return data[:end] + data[begin:end] + data[end:]


LOCK_TEXTS: Sequence[tuple[str, Callable[[bytes], bytes]]] = (
    ("5,000 brackets", _with(b"format = 1", b"format = 1\nx = " + b"[" * 5000)),
    ("a number of 5,000 digits", _with(b"size = 1", b"size = " + DIGITS.encode())),
    ("a NUL byte", _with(b"format", b"\0format")),
    ("invalid UTF-8", _with(b"# generated", b"# \xff\xfe")),
    ("a BOM", lambda data: b"\xef\xbb\xbf" + data),
    ("UTF-16", lambda data: data.decode().encode("utf-16")),
    ("cut off", lambda data: data[: len(data) * 2 // 3 - 7]),
    ("merged badly", _with(b"[[resolution]]", b"<<<<<<< ours\n[[resolution]]")),
    ("a duplicate key", _with(b"format = 1", b"format = 1\nformat = 1")),
    ("a duplicate wheel", _doubled),
    ("an invisible character", _with(b'name = "numpy"', 'name = "num\u202epy"'.encode())),
    ("nothing", _fixed(b"")),
    ("a list", _fixed(b"[1, 2]")),
)


_HEAD = b"diff --git a/x.py b/x.py\n"


DIFFS: Sequence[tuple[str, Callable[[bytes], bytes]]] = (
    ("nothing", _fixed(b"")),
    ("prose", _fixed(b"this is no diff\n")),
    ("Windows line ends", lambda data: data.replace(b"\n", b"\r\n")),
    ("invalid UTF-8", _with(b"zwei", b"\xff\xfe")),
    ("a NUL byte", _with(b"zwei", b"zw\0ei")),
    ("UTF-16", lambda data: data.decode().encode("utf-16")),
    *(
        (f"the file {name!r}", _with(b"b/x.py", name))
        for name in (b"/etc/passwd", b"b/../../x", b"../x", b"x.py", b"b//etc/x", b"b/.git/config")
    ),
    ("a name that is reversed", _with(b"b/x.py", "b/x\u202eyp.x".encode())),
    ("an escape in a name", _with(b"b/x.py", b"b/\x1b[31mx.py")),
    ("a submodule", lambda data: _HEAD + b"new file mode 160000\n" + data),
    ("a submodule's index", lambda data: _HEAD + b"index 1234567..89abcde 160000\n" + data),
    ("a link", lambda data: _HEAD + b"new file mode 120000\n" + data),
    ("setuid", lambda data: _HEAD + b"old mode 100644\nnew mode 104755\n" + data),
    ("setgid", lambda data: _HEAD + b"new file mode 102755\n" + data),
    ("a folder", lambda data: _HEAD + b"new file mode 040000\n" + data),
    ("an odd mode", lambda data: _HEAD + b"new mode 100777\n" + data),
    ("a rename out", lambda data: _HEAD + b"rename from x.py\nrename to ../../x\n" + data),
    ("an absolute rename", lambda data: _HEAD + b"rename from /etc/passwd\nrename to y\n" + data),
    ("a copy out", lambda data: _HEAD + b"copy from /etc/passwd\ncopy to x.py\n" + data),
    ("a copy into .git", lambda data: _HEAD + b"copy from x\ncopy to .git/config\n" + data),
    ("a binary patch", lambda data: data + b"GIT binary patch\nliteral 3\nKcmZ\n"),
    ("binary files", lambda data: data + b"Binary files a/x and b/x differ\n"),
    ("a wrong count", _with(b"+1,2 @@", b"+1,9 @@")),
    ("a small count", _with(b"+1,2 @@", b"+1,1 @@")),
    ("a bad hunk header", _with(b"@@ -1,2 +1,2 @@", b"@@ -1,2 @@")),
    ("a huge line number", _with(b"@@ -1,2", b"@@ -" + DIGITS.encode() + b",2")),
    ("a huge count", _with(b"+1,2 @@", b"+1," + DIGITS.encode() + b" @@")),
    ("the same file twice", lambda data: data + data),
    ("a mode alone", _fixed(_HEAD + b"old mode 100644\nnew mode 100755\n")),
    ("cut off", lambda data: data[: len(data) - 12]),
    ("no hunk", _fixed(b"--- a/x.py\n+++ b/x.py\n")),
)

TEMPLATES: Sequence[tuple[str, Callable[[bytes], bytes]]] = (
    ("nothing", _fixed(b"")),
    ("only a comment", _fixed(b"{# nothing #}\n")),
    ("binary", _fixed(bytes(range(256)))),
    ("invalid UTF-8", lambda data: data + b"\xff\xfe"),
    ("UTF-16", lambda data: data.decode().encode("utf-16")),
    *(
        (f"ends with {text[:40]!r}", lambda data, text=text: data + text.encode())
        for text in (
            *("{% if %}", "{% for a in b %}", "{{ a", "{% endif %}", "{{ nothing | word }}"),
            *("{{ 'x' }}", "{{ 1 | nothing }}", "{% include 'none.j2' %}", "{{ (1 / 0) | word }}"),
            *("{% include '../../matrix.yaml' %}", "{% include '/etc/passwd' %}"),
            *(
                "{% extends 'Dockerfile.j2' %}{% include 'Dockerfile.j2' %}",
                "{% import 'x' as x %}",
            ),
            *("{{ ''.__class__.__mro__ }}", "{{ self }}", "{{ range(10 ** 12) | list }}"),
            *(
                "{% for n in range(10 ** 12) %}{% endfor %}",
                "{{ '\u2028' | quote }}",
                "{{ [] | word }}",
            ),
            *("{% macro m() %}{{ m() | word }}{% endmacro %}{{ m() }}", "{{ ('x' * 10 ** 12) }}"),
            *("{{ " + "(" * 5000, "{% if " + "not " * 5000 + "x %}{% endif %}", "{% raise %}"),
        )
    ),
)

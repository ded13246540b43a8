"""Lists of values that are invalid where they are written, for the fault "bad inputs"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Loc = tuple[str | int, ...]
DIGITS = "9" * 5000
DELETE = object()
_FLAVOR, _BASE, _TOOLS = ("flavors", "gb10"), ("bases", "trixie"), ("toolchains", "tools")

MATRIX_VALUES: Sequence[tuple[Loc, object]] = (
    *((("repository",), text) for text in ("-x/y", "a b", "http://x/y", "x:tag", "X/Y", "../x")),
    *(
        (("tags", 0), text)
        for text in ("-- --help", "{nope}", "../x", "a:b", "a/b", "fixed", DIGITS)
    ),
    *(
        ((*_BASE, "python"), text)
        for text in ("3.99999999", "3.\u0661\u0663", "3", "4.1", "3.13\n")
    ),
    *(((*_BASE, "glibc"), text) for text in ("2.\u0664\u0661", "2", "3.1", f"2.{DIGITS}")),
    *(((*_BASE, "suite"), text) for text in ("-x", "Trixie", "a b", "../x")),
    *(((*_BASE, "packages"), [text]) for text in ("--help", "a b", "x=1", "../x", "X")),
    *(
        ((*_FLAVOR, "requirements", 0), t)
        for t in ("-r /etc/passwd", "--index-url x", "a b", "a @ x")
    ),
    *(
        ((*_FLAVOR, "patches", 0), text)
        for text in ("-x/y", "../../etc", "vllm/../one", "none/such")
    ),
    *(((*_FLAVOR, "driver"), text) for text in ("--help", "new", DIGITS, "5")),
    *(((*_FLAVOR, "env", key), "x") for key in ("A B", "--x", "A=B", "1A", "")),
    ((*_FLAVOR, "env", "A"), "a\nb"),
    ((*_FLAVOR, "base"), "none"),
    ((*_FLAVOR, "toolchain"), "none"),
    ((*_FLAVOR, "extends"), "gb10"),
    ((*_FLAVOR, "summary"), "a\u202eb"),
    (("flavors", "--help"), {"extends": "gb10"}),
    (("flavors", "a b"), {"extends": "gb10"}),
    (("bases", "../x"), {"extends": "trixie"}),
    *(
        ((*_TOOLS, "requirements", 0), text)
        for text in ("-r /etc/passwd", "--help", "a b", "a @ x")
    ),
    ((*_TOOLS, "platforms", 0), "windows/amd64"),
    *(
        (("indexes", "own", "url"), t)
        for t in ("ftp://x/y", "-x", "https://u:p@h/x", "https://a b")
    ),
    *((("axes", "python", 0), text) for text in ("3", "three", "3.12", "-3.13")),
    *((("axes", "channel", 0), text) for text in ("cu\u0661\u0663\u0660", "rocm", "cu13", "cpu\n")),
    *((("axes", "cuda", 0), text) for text in ("13", "12.0", "99.9", "-13.0")),
    *((("zip", 0, "vllm", 0), text) for text in ("latest", "01.0", DIGITS, "-1", "1 ")),
    (("zip", 0, "vllm"), ["0.22.1"]),
    (("zip", 0, "vllm"), []),
    (("axes",), {"python": [str(n) for n in range(1500)], "cuda": [str(n) for n in range(1500)]}),
    (("axes",), {f"a{n}": ["1", "2"] for n in range(40)}),
    (("axes", "colour"), ["red"]),
    (("axes", "vllm"), ["0.33.0"]),
    (("include", 0, "vllm"), "0.22.1 "),
    (("include", 0, "platform"), "linux/arm64;id"),
    (("exclude",), [{"when": {"vllm": "0.1"}, "reason": "r"}]),
    (("exclude",), [{"when": {}, "reason": "r"}]),
    (("overrides", 0, "requirement"), "-r /etc/passwd"),
    (("overrides", 0, "drop"), "numpy"),
    (("overrides", 0, "when"), {"vllm": "0.1"}),
    (("overrides", 0, "reason"), ""),
    (("version",), 2),
    (("version",), "1"),
    (("version",), True),
    *(
        ((key,), DELETE)
        for key in ("version", "repository", "tags", "bases", "flavors", "defaults")
    ),
    *(((*_BASE, key), DELETE) for key in ("python", "glibc", "packages", "suite")),
    *(((*_FLAVOR, key), DELETE) for key in ("summary", "base", "requirements", "driver")),
)

PATCH_VALUES: Sequence[tuple[Loc, object]] = (
    *(
        (("proof", "run"), t)
        for t in ("/etc/passwd", "../../../matrix.yaml", "--help", ".", "none.py", "a\0b", "..")
    ),
    *(
        (("variants", 0, "diff"), t)
        for t in ("/etc/passwd", "../../../x", "-x.diff", "", "none.diff", "sub/a.diff", "\ud800")
    ),
    *(
        (("variants", 0, "versions"), t)
        for t in (">=", "===new", ">=1.0.*", "latest", f">={DIGITS}", ">=0.20", "0.22", ">=0.22;x")
    ),
    (("proof", "kind"), "magic"),
    (("proof", "needs"), ["rm -rf /"]),
    (("stage",), "later"),
    (("after",), ["vllm/one"]),
    (("after",), ["none/such"]),
    (("after",), ["--help"]),
    (("not_applicable",), [{"versions": "x", "reason": "r"}]),
    (("not_applicable",), [{"versions": ">=1"}]),
    (("draft",), "yes please"),
    (("draft",), True),
    (("summary",), "a\u202eb"),
    (("summary",), "x" * 5000),
    *(((key,), DELETE) for key in ("summary", "purpose", "symptom", "stage", "findings", "proof")),
)

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

_WHEEL = ("resolution", 0, "wheel", 0)
_DEB = ("base", 0, "deb", 0)
_DAYS = ("yesterday", "2026-13-01", "2026-01-45", "2026", "2026-1-1", "\u0662026-01-01", "")
_NAMES = ("../../etc/passwd", "/etc/passwd", "-x.whl", "numpy.whl", "torch-1-py3-none-any.whl", "")
_HASHES = ("", "0" * 63, "0" * 65, "g" * 64, "A" * 64, "sha256:" + "0" * 64)
_ADDRESSES = ("--help", "ftp://x", "file:///etc/passwd", "pypi", "https://a b", "")
LOCK_VALUES: Sequence[tuple[Loc, object]] = (
    *(((*_WHEEL, "sha256"), text) for text in _HASHES),
    *(((*_WHEEL, "filename"), text) for text in _NAMES),
    *(((*_WHEEL, "index"), text) for text in _ADDRESSES),
    *(((*_WHEEL, "size"), n) for n in (-1, 1.5, "1", True)),
    *(((*_WHEEL, "version"), text) for text in ("-1", "9.9", "../x", "")),
    *(((*_WHEEL, "name"), text) for text in ("--help", "Numpy", "a/b", "")),
    ((*_WHEEL, "tags"), "py2-none-any"),
    ((*_WHEEL, "requires"), ["absent>=1"]),
    ((*_WHEEL, "requires"), ["torch<1"]),
    ((*_WHEEL, "requires"), ["-r /etc/passwd"]),
    *((("resolution", 0, "wheel", n), DELETE) for n in range(3)),
    *((("resolution", 2, "wheel", n), DELETE) for n in range(3)),
    *(((key, 0, "created"), text) for key in ("resolution", "base") for text in _DAYS),
    *((("created",), text) for text in _DAYS),
    *((("resolution", 0, "python"), text) for text in ("3.99999999", "--help", "")),
    *((("resolution", 0, "glibc"), text) for text in ("2.99999999", "x")),
    *((("resolution", 0, "platform"), text) for text in ("windows/amd64", "--help", "")),
    *((("resolution", 0, "channel"), text) for text in ("rocm", "--help")),
    (("resolution", 0, "requirements"), ["-r /etc/passwd"]),
    (("resolution", 0, "torch", "cuda"), "--help"),
    (("resolution", 0, "torch", "version"), "--help"),
    *((("resolution", 0, "torch", key), DELETE) for key in ("version",)),
    *(
        ((*_DEB, "path"), t)
        for t in ("../x.deb", "/etc/passwd", "pool/../../x.deb", "x", "a/-b.deb")
    ),
    *(((*_DEB, "sha256"), text) for text in _HASHES),
    *(((*_DEB, "arch"), text) for text in ("../x", "--help", "")),
    *(((*_DEB, "archive"), text) for text in ("../x", "ubuntu")),
    *(((*_DEB, "name"), text) for text in ("--help", "A", "../x")),
    (("base", 0, "suite"), "--help"),
    (("base", 0, "image"), "--help"),
    (("base", 0, "digest"), "sha256:1"),
    *(
        (("source", 0, "url"), text)
        for text in ("--help", "ext::sh -c id", "git+ssh://-oProxy=x/y")
    ),
    *((("source", 0, "filename"), text) for text in ("../x", "", "/x", "-x")),
    *((("source", 0, "sha256"), text) for text in _HASHES),
    *((("built", 0, "replaces"), text) for text in _HASHES),
    (("built", 0, "key"), "../x"),
    (("built", 0, "wheel", "filename"), "../x.whl"),
    (("unpacker", 0, "wheel", "filename"), "../x.whl"),
    (("unpacker", 0, "wheel", "name"), "pip"),
    (("unpacker", 0, "platform"), "x"),
    (("unpacker", 0), DELETE),
    (("format",), 2),
    (("format",), "1"),
    (("format",), DELETE),
    (("created",), DELETE),
    (("tools",), DELETE),
    (("tool",), {"x": 1}),
    (("resolution", 0, "extra"), 1),
    (("resolution", 0, "torch", "extra"), 1),
    ((*_WHEEL, "extra"), "x"),
    ((*_DEB, "extra"), "x"),
    (("resolution", 0, "wheel"), DELETE),
    (("resolution", 0, "torch"), DELETE),
    (("toolchain", 0, "wheel"), []),
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
COMMANDS: Sequence[tuple[str, ...]] = tuple(
    tuple(text.split())
    for text in (
        *("build", "plan", "lock", "verify", "push", "render", "export", "wheel", "prune", "init"),
        *("doctor", "diff", "inspect", "rebuild", "patch list", "patch status", "patch check"),
        *("patch port", "patch continue", "patch new", "patch import", "engine up"),
    )
)
JUNK = (
    *(
        "--junk",
        "--junk=1",
        "--select=",
        "--json=maybe",
        "-Z",
        "---",
        "-",
        "--",
        "\udcff",
        "-\u202e",
    ),
    *("--no-such --junk", "x" * 9999, "--junk=" + "y" * 9999, "$(id) --junk"),
)

ARGUMENTS: Sequence[tuple[str, ...]] = (
    *(("verify", "--", name) for name in ("--help", "-v", "a b", "", "\u202ex", "$(id)")),
    *(("inspect", "--", name) for name in ("--help", "a\nb", "../x")),
    *(("diff", "--", name, "x") for name in ("--help", "a b")),
    ("rebuild", "--", "--help"),
    *(("lock", "-P", name) for name in ("--help", "a b", "", "../x", "a==1")),
    *(("build", "--matrix", "--builder", name) for name in ("--help", "a b", "../x")),
    *(
        ("build", "--matrix", "--cache", name)
        for name in ("--help", "a b", "x:tag", "x@y", "\u202e")
    ),
    ("build",),
    *(
        ("plan", "--check", "--select", text)
        for text in (
            "((((",
            "nope",
            "vllm=",
            "a=b=c",
            "and",
            "not",
            "x" * 9999,
            "vllm=1,,2",
            "!",
            "",
        )
    ),
    ("plan", "--check", "--select", "( " * 5000),
    ("plan", "--check", "--select", "not " * 5000),
    ("plan", "--check", "--select", "[" * 5000),
    ("plan", "--check", "--select", "*" * 60 + "x"),
    *(("plan", "--explain", text) for text in ("nope", "--help ", "\u202e")),
    *(
        ("plan", "--check", "--file", name)
        for name in (
            "",
            ".",
            "/",
            "/dev/zero",
            "/dev/null",
            "/proc/self/mem",
            "x" * 5000,
            "a/" * 3000,
        )
    ),
    ("plan", "--none"),
    ("nonsense",),
    ("plan", "extra"),
    *(("patch", "new", name) for name in ("x", "vllm/-x", "vllm/../x", "--", "vllm/a b", "a/b")),
    *(("patch", "port", name) for name in ("x", "vllm/none", "-- -x", "\u202e")),
    *(("patch", "import", path) for path in ("none", "/dev/zero", "/proc/self/mem")),
    ("patch", "import", "matrix.yaml", "--name", "../x"),
    ("patch", "check", "--select", "nope"),
    ("patch", "continue", "--", "--help"),
    *(("export", "gb10*", "-o", name) for name in ("x.toml", "pylock.a b.toml", "/dev/full")),
    ("export", "nope"),
    *(("render", "--out", name) for name in ("matrix.yaml", "/dev/null", "/proc/x")),
    ("verify", "--from", "none"),
    ("verify", "x", "--from", "y"),
    *(("init", name) for name in ("matrix.yaml", "/proc/x", "a\0b")),
    ("init", "--from", "none"),
    ("wheel", "--try", "--help"),
    ("wheel", "--target", "x"),
    ("push", "--select", "nope"),
)

_LOCK = ("lock", "-P", "numpy")
VARIABLES: Sequence[tuple[str, str, tuple[str, ...]]] = (
    *(
        ("UV_DEFAULT_INDEX", text, _LOCK)
        for text in ("--help", "x", "ftp://x", "https://", "https://-x/y", "http://127.0.0.1:9/x")
    ),
    *(("UV_INDEX", text, _LOCK) for text in ("--help", "https://ok.example/x --help", "\u202e")),
    *(("PIP_INDEX_URL", text, _LOCK) for text in ("--help", "file:///etc")),
    *(("UV_HTTP_TIMEOUT", text, _LOCK) for text in ("never", "-1", "nan", "inf", DIGITS, "0")),
    *(("UV_HTTP_RETRIES", text, _LOCK) for text in ("many", "-1", "1e99")),
    *(("XDG_CACHE_HOME", text, _LOCK) for text in ("/dev/null", "/proc/x", "/dev/null/x")),
    *(("XDG_STATE_HOME", text, ("lock",)) for text in ("/dev/null", "/proc/x")),
    *(("DOCKER_HOST", text, ("build", "--matrix")) for text in ("--help", "x", "tcp://", "\u202e")),
    *(("BUILDX_BUILDER", text, ("build", "--matrix")) for text in ("--help", "a b", "\u202e")),
    ("IMAGEFACTORY_DEBIAN_MIRROR", "--help", ("build", "--matrix")),
    ("HOME", "/dev/null", ("build", "--matrix")),
)

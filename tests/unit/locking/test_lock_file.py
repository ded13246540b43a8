"""The text of a lock: every value is in it, is read back, and is found again when it is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from support import projects
from support.matrices import write as write_matrix
from support.plans import deb
from support.variants import variants

from imagefactory.errors import InputError, Problem
from imagefactory.locking import store
from imagefactory.locking.lock import Deb, Lock, LockedDriver, LockedOverride, Wheel
from imagefactory.locking.locked_sources import LockedPull, LockedRef
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import NamedIndex

COMMIT = "a" * 40


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Lock:
    """A lock with something in each of its fields."""
    found = projects.lock_of(matrix.load(write_matrix(tmp_path_factory.mktemp("m"))).cells[:1])
    (one,), (tools,) = found.resolutions, found.toolchains
    override = LockedOverride(requirement="x==1", drop=False, reason="two\nlines")
    dropped = LockedOverride(requirement="y", drop=True, reason="a reason")
    index = NamedIndex(package="torch", name="own", url="https://host.example/simple")
    image = replace(
        found.bases[0],
        name="registry",
        digest=f"sha256:{'0' * 64}",
        suite=None,
        env=(("A", "1"), ("PATH", "/bin")),
    )
    compiled = replace(found.bases[0], packages=("vim",), compiler=(deb("ccache"), deb("g++")))
    url = "https://host.example/vllm"
    tree = replace(found.sources[0], name=f"git+{url}@main", version=COMMIT)
    ref = LockedRef(
        repository=url,
        ref="main",
        base="0.33.0",
        commit=COMMIT,
        version="0.33.1.dev1",
        base_commit="b" * 40,
        source=replace(tree, filename="vllm.tar.gz", url=f"git+{url}@{COMMIT}"),
        pulls=(LockedPull(number=7, base=COMMIT, commit="c" * 40),),
        differs=("csrc/a.cu",),
        requires=("numpy>=3",),
    )
    made = replace(
        found,
        refs=(ref,),
        resolutions=(
            replace(one, overrides=(override, dropped), indexes=(index,)),
            replace(one, name="second", torch=replace(one.torch, cuda=None)),
        ),
        toolchains=(tools, replace(tools, name="zz-more")),
        drivers=(LockedDriver(cuda="13.0", driver="580.1", reason="measured"),),
        bases=(image, compiled),
    )
    empty = [field.name for field in fields(made) if not getattr(made, field.name)]
    assert empty == []
    return made


def read(text: str, path: Path = Path("wheels.lock")) -> Lock:
    return store._loads(text, path)


def problem_of(text: str) -> Problem:
    with pytest.raises(InputError) as caught:
        read(text)
    (problem,) = caught.value.problems
    return problem


def test_every_value_of_a_lock_is_in_its_text(lock: Lock) -> None:
    text = store.dumps(lock)
    assert read(text) == lock
    for path, other in variants(lock):
        if path in ("tools[]-", "bases[].env[]-"):  # half a pair
            continue
        try:
            changed = store.dumps(other)
            assert changed != text, path
            again = read(changed)
        except (InputError, AttributeError):  # a hash with another length, a text for a package
            continue
        assert again == other, path


@pytest.mark.parametrize("compiler", [None, (), (deb("g++"),)])
def test_a_base_that_has_all_compilers_is_not_one_that_needs_none(
    lock: Lock, compiler: tuple[Deb, ...] | None
) -> None:
    one = replace(lock, bases=(replace(lock.bases[1], compiler=compiler),))
    assert read(store.dumps(one)).bases == one.bases


def test_a_lock_without_anything_has_no_empty_tables() -> None:
    empty = Lock(created=projects.DAY, tools=(), resolutions=())
    text = store.dumps(empty)
    assert read(text) == empty
    rest = text.removeprefix(store.HEADER)
    assert re.findall(r"^\w+", rest, re.MULTILINE) == [
        "format",
        "created",
        "resolution",
        "toolchain",
    ]


def test_the_order_in_a_lock_does_not_change_its_text(lock: Lock) -> None:
    def backwards(value: Lock) -> Lock:
        lists = ("resolutions", "toolchains", "sources", "built", "unpackers", "bases", "tools")
        turned = {name: getattr(value, name)[::-1] for name in lists}
        turned["resolutions"] = [replace(r, wheels=r.wheels[::-1]) for r in turned["resolutions"]]
        turned["bases"] = [
            replace(b, debs=b.debs[::-1], compiler=b.compiler and b.compiler[::-1])
            for b in turned["bases"]
        ]
        return replace(value, **turned)

    twice = replace(
        lock,
        sources=tuple(replace(s, version=v) for v in ("1", "2") for s in lock.sources),
        built=tuple(replace(b, key=key) for key in "ab" for b in lock.built),
        tools=(("a", "1"), ("b", "1")),
    )
    assert store.dumps(backwards(twice)) == store.dumps(twice)


def scalars(text: str) -> Iterator[tuple[int, str]]:
    """The number of each line of a lock that is one value, and its key."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.fullmatch(r'(\w+) = (".*"|\d+|true|false)', line)
        if found and found[1] != "format":
            yield number, found[1]


def test_the_line_of_every_wrong_value_is_found(lock: Lock) -> None:
    text = store.dumps(lock)
    lines, keys = text.splitlines(), set()
    for number, key in scalars(text):
        if lines[number - 2] in ("[tools]", "[base.env]") or key == "PATH":
            continue  # reported at their table
        wrong = [*lines[: number - 1], f"{key} = 1.5", *lines[number:]]
        problem = problem_of("\n".join(wrong))
        assert (problem.code, problem.where) == ("lock-malformed", f"wheels.lock:{number}"), key
        assert problem.fix
        keys.add(key)
    assert keys >= {field.name for field in fields(Wheel)} - {"requires"}


def test_a_value_that_is_missing_is_reported_or_makes_another_lock(lock: Lock) -> None:
    text = store.dumps(lock)
    lines, seen = text.splitlines(), set()
    for number, key in scalars(text):
        header = next((x for x in lines[number - 1 :: -1] if x.startswith("[")), "")
        if key == "tags" or (header, key) in seen:  # the tags are for people
            continue
        seen.add((header, key))
        try:
            found = read("\n".join([*lines[: number - 1], *lines[number:]]))
        except InputError:
            continue
        assert found != lock, (number, key)


NUMPY = "numpy-2.3-py3-none-any.whl"


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        (NUMPY, True),
        ("NumPy-2.3.0-py3-none-any.whl", True),
        ("numpy-2.3-1build-py3-none-any.whl", True),
        ("numpy-2.3-py3-none.whl", False),
        ("numpy-2.3-1-2-py3-none-any.whl", False),
        ("numpy-2.4-py3-none-any.whl", False),
        ("numpy-x-py3-none-any.whl", False),
        ("numpyro-2.3-py3-none-any.whl", False),
    ],
)
def test_the_file_name_of_a_wheel_has_its_name_and_version(
    lock: Lock, name: str, is_right: bool
) -> None:
    text = re.sub(r"tags = .*\n", "", store.dumps(lock))
    changed = text.replace(f'filename = "{NUMPY}"', f'filename = "{name}"', 1)
    if is_right:
        assert read(changed).resolutions[0].wheels[0].filename == name
        return
    line = changed[: changed.index(f'"{name}"')].count("\n") + 1
    problem = problem_of(changed)
    assert problem.where == f"wheels.lock:{line}"
    assert problem.what == f"{name} is not a file of numpy 2.3"


@pytest.mark.parametrize("table", ["resolution", "toolchain", "built", "unpacker"])
def test_a_wheel_that_contradicts_itself_is_refused_in_every_table(lock: Lock, table: str) -> None:
    text = store.dumps(lock)
    start = text.index(f"[{table}.wheel]")
    for old, new, says in (
        ('tags = "py3-none-any"', 'tags = "py2-none-any"', "has other tags than 'py2-none-any'"),
        ("-py3-none-any.whl", "-1-2-py3-none-any.whl", "is not a file of"),
    ):
        if table == "built" and "file" in says:
            continue  # a wheel that was built is looked up by its hash alone
        problem = problem_of(text[:start] + text[start:].replace(old, new, 1))
        assert says in problem.what
        line = text[: text.index(old, start)].count("\n") + 1
        assert problem.where == f"wheels.lock:{line}"


def test_a_part_without_wheels_or_with_one_twice_is_refused(lock: Lock) -> None:
    for name in ("resolutions", "toolchains"):
        first, *more = getattr(lock, name)
        for wheels, says in (((), "has no wheels"), (first.wheels[:1] * 2, "two wheels of")):
            broken = replace(lock, **{name: (replace(first, wheels=wheels), *more)})  # type: ignore[arg-type]
            text = store.dumps(broken).replace("wheel = []\n", "")
            with pytest.raises((InputError, KeyError)) as caught:
                read(text)
            assert says in str(caught.value) or "'wheel' is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"format = 1\n\n\xff", 3, "not UTF-8 (byte 12)"),
        (b"format = 1\n\nx x", 3, "not valid TOML"),
        (b"format = 2\n", 1, "its format is 2, this imagefactory reads 1"),
        (b'format = 1\ncreated = "2026-01-01"\n[tools]\n[other]\n', 1, "there is no key 'other'"),
        (b'format = 1\n[tools]\nx = "https://me:word@host/"\n', 3, "a URL has credentials"),
    ],
)
def test_what_cannot_be_read_is_reported_with_its_line(
    tmp_path: Path, content: bytes, line: int, says: str
) -> None:
    path = tmp_path / "wheels.lock"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        store.read(path)
    (problem,) = caught.value.problems
    assert problem.where == f"{path}:{line}"
    assert says in problem.what
    assert problem.fix


def test_a_lock_that_is_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it cannot be read"):
        store.read(tmp_path)


def test_a_digest_is_of_what_is_installed(lock: Lock) -> None:
    part = lock.resolutions[0]
    before = store.digest(part)
    for path, other in variants(part.wheels[0]):
        changed = replace(part, wheels=(other, *part.wheels[1:]))
        store.digest.cache_clear()  # equal hashes, see Resolution.__hash__
        is_same = path.partition("[")[0].rstrip("-+") in ("index", "size", "requires")
        assert (store.digest(changed) == before) == is_same, path
    assert re.fullmatch("sha256:[0-9a-f]{64}", before)


@pytest.mark.parametrize(
    ("loc", "line"),
    [
        (("resolutions",), 1),
        (("resolutions", 0), 2),
        (("resolutions", 0, "name"), 3),
        (("resolutions", 1, "name"), 5),
        (("resolutions", 2), 1),
        (("created",), 1),
    ],
)
def test_a_value_is_found_in_its_table_and_a_table_at_its_header(
    loc: tuple[str | int, ...], line: int
) -> None:
    text = 'created = "x"\n[[resolution]]\nname = "a"\n[[resolution]]\nname = "b"\n'
    assert store._line(text, loc) == line

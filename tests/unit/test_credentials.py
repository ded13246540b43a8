"""Planted credentials: they open the index, and are in nothing that is written, shown or run."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import debian, matrices, projects
from support.docker import FakeDocker
from support.index import serve, wheels_of_matrix
from support.matrices import GOOD
from support.plans import planned

from imagefactory import redaction, workspace
from imagefactory.building import bakefile
from imagefactory.building.bakefile import WheelBake
from imagefactory.errors import InputError, SetupError
from imagefactory.inbuild import archives
from imagefactory.locking import bases, locking, store, wheelhouse
from imagefactory.locking.debian import archive, files
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.settings import Debian, from_environment
from imagefactory.system import keyring, shell
from imagefactory.system.engine import Engine
from imagefactory.upkeep import doctor

USER, PASSWORD = "robot", "s3cret/w@rd+planted"
EMPTY = Lock(created="2026-11-20", tools=(), resolutions=())
#: How the password may turn up: as it is, quoted for a URL, and as Basic credentials.
FORMS = ("s3cret", "planted", "c2VjcmV0", "cGxhbnRlZ")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """An index that only the planted account may read."""
    files = wheels_of_matrix(tmp_path / "files")
    with serve(files, tmp_path / "www", account=f"{USER}:{PASSWORD}") as url:
        yield url


def environment(kind: str, index: str, folder: Path) -> dict[str, str]:
    """An environment with the planted account in one of the ways in which users write it."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    base = {"HOME": str(home), "PATH": os.environ["PATH"]}
    with_account = index.replace("://", "://robot:s3cret%2Fw%40rd%2Bplanted@")
    named = {"UV_INDEX_CORP_USERNAME": USER, "UV_INDEX_CORP_PASSWORD": PASSWORD}
    if kind == "netrc":
        (home / ".netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    return (
        base
        | {
            "uv": {"UV_DEFAULT_INDEX": with_account},
            "pip": {"PIP_INDEX_URL": with_account},
            "named": {"UV_DEFAULT_INDEX": f"corp={index}", **named},
            "netrc": {"UV_DEFAULT_INDEX": index},
        }[kind]
    )


def planted_in(texts: dict[str, str]) -> list[str]:
    """What has the password in any form."""
    return [name for name, text in texts.items() if any(form in text for form in FORMS)]


def written(folder: Path) -> dict[str, str]:
    """The text of every file below ``folder``."""
    return {
        str(path): path.read_bytes().decode(errors="replace")
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".netrc"
    }


@pytest.mark.parametrize("kind", ["uv", "pip", "named", "netrc"])
def test_an_index_opens_to_the_account_that_the_environment_has(
    tmp_path: Path, index: str, kind: str
) -> None:
    using = from_environment(environment(kind, index, tmp_path))
    assert using.indexes == (index,)
    assert using.account_for(f"{index}/torch/") == (USER, PASSWORD)
    assert using.index_accounts() == {index: (USER, PASSWORD)}
    assert planted_in({"settings": repr(using), "indexes": str(using.indexes)}) == []
    assert using.account_for("https://elsewhere.example/simple") is None


@pytest.mark.programs
def test_a_lock_is_made_with_credentials_that_are_written_nowhere(
    tmp_path: Path,
    index: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = tmp_path / "state"
    using = replace(
        from_environment(environment("uv", index, tmp_path)),
        state=state,
        cache=state / "cache",
    )
    shell.LOG.open(state / "commands.log")
    seen: list[str] = []
    run = shell.run

    def recorded(argv: list[str], **options: object) -> shell.Completed:
        seen.append(repr(argv))
        seen.extend(path.read_text() for path in Path(argv[3]).parent.glob("*") if path.is_file())
        done = run(argv, **options)  # type: ignore[arg-type]
        seen.extend((done.out, done.err))
        return done

    monkeypatch.setattr(shell, "run", recorded)
    (tmp_path / "matrix.yaml").write_text(GOOD)
    lock, _ = locking.update(None, matrix.load(tmp_path / "matrix.yaml").cells, using)
    store.write(state / "wheels.lock", lock, guards=state)
    wheel = lock.resolutions[0].wheel("leaf")
    assert wheel is not None
    assert wheel.index == index
    assert wheelhouse.from_index(wheel, using).is_file()
    shown = capsys.readouterr()
    texts = {**written(state), "out": shown.out, "err": shown.err, "uv": "\n".join(seen)}
    assert len(texts) > 4
    assert len(seen) > 5
    assert planted_in(texts) == []


@pytest.mark.programs
def test_a_build_gets_credentials_as_a_secret_and_no_file_or_argument_has_them(
    tmp_path: Path, index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    using = replace(from_environment(environment("uv", index, tmp_path)), state=state)
    shell.LOG.open(state / "commands.log")
    docker = FakeDocker(tmp_path)
    state.mkdir(exist_ok=True)
    docker.program.write_text(
        f'#!/bin/sh\necho "$@" >> {state}/argv\nenv > {tmp_path}/environment\n'
        f'echo "401 for http://{USER}:s3cret%2Fw%40rd%2Bplanted@host/ and {PASSWORD}" >&2\nexit 1\n'
    )
    wheel = WheelBake(
        context=state, archive=state / "made.tar", stage="wheel", builder=planned().base
    )
    entry = bakefile._wheel_entry(wheel, "builder", using)
    bake = bakefile._write(state / "bake.json", {"wheel": entry})
    assert entry["secret"] == ["id=indexes,env=IMAGEFACTORY_INDEX_ACCOUNTS"]
    assert entry["args"]["UV_DEFAULT_INDEX"] == index
    said: list[str] = []
    engine = Engine(binary=str(docker.program))
    secrets = bakefile.secrets(using)
    assert engine.bake(bake, ["wheel"], on_line=said.append, secrets=secrets)
    # the client has it, and nobody else
    assert PASSWORD in (tmp_path / "environment").read_text()
    shown = capsys.readouterr()
    texts = {**written(state), "said": "".join(said), "out": shown.out, "err": shown.err}
    assert {"argv", "bake.json", "commands.log"} <= {Path(name).name for name in texts}
    assert "401 for http://" in "".join(texts.values())
    assert planted_in(texts) == []


def test_in_a_build_the_secret_opens_the_index(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (page,) = (tmp_path / "www" / "simple" / "leaf").glob("index.html")
    sha = page.read_text().partition("sha256=")[2][:64]
    listing = tmp_path / "list.txt"
    listing.write_text(f"leaf==1.0 --hash=sha256:{sha}\n")
    monkeypatch.setattr(archives, "ARCHIVES", tmp_path / "archives")
    monkeypatch.setattr(archives, "ACCOUNTS", tmp_path / "indexes")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    monkeypatch.delenv("UV_INDEX", raising=False)
    with pytest.raises(SystemExit) as ended:
        archives.collect(listing)
    assert "HTTP 401" in str(ended.value)
    (tmp_path / "indexes").write_text(json.dumps({index: [USER, PASSWORD]}))
    assert [path.name for path in archives.collect(listing)] == ["leaf-1.0-py3-none-any.whl"]
    assert planted_in({"out": str(capsys.readouterr())}) == []


@pytest.mark.programs
def test_the_keyring_is_asked_for_the_index_and_then_for_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "keyring"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        '[ "$4" = corp.example:8443 ] && printf "robot\\nfrom-keyring\\n"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    environ = {"UV_DEFAULT_INDEX": "https://corp.example:8443/simple", "HOME": str(tmp_path)}
    file = tmp_path / "matrix.yaml"
    assert workspace.find(file, environ).settings.index_accounts() == {}
    keyring.find.cache_clear()
    using = workspace.find(file, {**environ, "UV_KEYRING_PROVIDER": "subprocess"}).settings
    assert using.account_for("https://corp.example:8443/files/x.whl") == ("robot", "from-keyring")
    assert using.account_for("https://pypi.org/simple/x/") is None
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == [*using.indexes, "corp.example:8443"]


def test_two_indexes_on_one_host_have_accounts_of_their_own() -> None:
    both = "https://a:pass-of-a@h.example/a/simple https://b:pass-of-b@h.example/b/simple"
    using = from_environment({"UV_INDEX": both})
    assert using.account_for("https://h.example/b/simple/x/") == ("b", "pass-of-b")
    assert using.account_for("https://h.example/a/simple/x/") == ("a", "pass-of-a")


def test_what_is_remembered_is_hidden_in_every_form() -> None:
    redaction.remember(PASSWORD, user=USER)
    texts = [
        PASSWORD,
        "s3cret%2Fw%40rd%2Bplanted",
        "s3cret/w%40rd%2Bplanted",
        "Basic cm9ib3Q6czNjcmV0L3dAcmQrcGxhbnRlZA==",
        f"https://{USER}:{PASSWORD}@host/x",
    ]
    assert planted_in({text: redaction.hide(f"<{text}>") for text in texts}) == []
    assert redaction.hide("https://u:new@h/x git@h ssh://git@h") == (
        "https://u:***@h/x git@h ssh://git@h"
    )
    shown = redaction.hide_in({"a": [PASSWORD, 1, None], PASSWORD: ("b", PASSWORD)})
    assert shown == {"a": ["***", 1, None], "***": ["b", "***"]}


def test_a_debian_mirror_opens_to_its_account_which_is_written_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, www, owner = tmp_path / "state", tmp_path / "www", debian.key()
    debian.write(www, owner, *debian.BASIC)
    account = f"{USER}:s3cret%2Fw%40rd%2Bplanted"
    with debian.serve(www, owner, account=f"{USER}:{PASSWORD}") as mirrors:
        host = mirrors.snapshot.removeprefix("http://").partition("/")[0]
        start = "IMAGEFACTORY_DEBIAN"
        environ = {
            f"{start}_MIRROR": f"http://{account}@{host}/debian/",
            f"{start}_SECURITY_MIRROR": f"http://{account}@{host}/debian-security",
            f"{start}_SNAPSHOT": f"http://{account}@{host}/snapshot",
            f"{start}_KEYS": str(mirrors.keys),
        }
        using = replace(from_environment(environ), state=state, cache=state / "cache")
        assert using.debian == replace(mirrors, mirrors=mirrors.mirrors[:2])
        shell.LOG.open(state / "commands.log")
        (tmp_path / "matrix.yaml").write_text(GOOD)
        cells = matrix.load(tmp_path / "matrix.yaml").cells
        lock = bases.update(EMPTY, cells, using)
        store.write(state / "wheels.lock", lock, guards=state)
        (base, *_) = lock.bases
        assert files.missing([(deb, base.created) for deb in base.debs], using) == []
        assert len(files.fetch(base.debs, base.created, using)) == len(base.debs) > 3
        with pytest.raises(SetupError):  # which says where it looked
            files.fetch([replace(base.debs[0], sha256="0" * 64)], base.created, using)
        with pytest.raises(SetupError, match="401"):
            bases.update(EMPTY, cells, replace(using, debian=mirrors))
    found = doctor._archives(using)
    shown = capsys.readouterr()
    texts = {**written(state), "out": shown.out, "err": shown.err, "doctor": repr(found)}
    assert len(texts) > 8
    assert planted_in(texts) == []


def test_the_account_in_the_sources_of_apt_is_for_that_mirror_only(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a:of-apt@one.example/debian trixie main\n")
    assert archive.mirror("debian", Debian(), tmp_path) == "http://one.example/debian"
    for url, expected in {
        "http://one.example/debian/dists": ("a", "of-apt"),
        "http://one.example/debian": ("a", "of-apt"),
        "http://one.example/debian-other/x": None,
        "http://two.example/debian/x": None,
    }.items():
        assert archive.account_for(url, Debian(), tmp_path) == expected, url


@pytest.mark.parametrize(
    ("old", "new", "fix"),
    [
        ("env: {A: b}", "env: {A: 'http://u:planted@h/x'}", "when a container starts"),
        ("env: {A: b}", "env: {A: 'x --proxy=https://planted@h'}", "when a container starts"),
        (
            '"torch=={torch}"]',
            f'"a @ https://planted@h/a-1-py3-none-any.whl#sha256={"0" * 64}"]',
            "",
        ),
        *(
            ("env: {A: b}", f"build: {{binaries: compiled, tools: t, {text}}}", "~/.netrc")
            for text in (
                "sources: {X: 'git+https://u:planted@h/x@main'}",
                "sources: {X: 'git+ssh://git:planted@h/x@main'}",
                f"sources: {{X: 'https://planted@h/x.tar.gz#sha256={'0' * 64}'}}",
            )
        ),
    ],
)
def test_a_matrix_with_credentials_in_any_url_is_refused_with_the_cure(
    tmp_path: Path, old: str, new: str, fix: str
) -> None:
    found = matrices.problems(matrices.write(tmp_path, old, new))
    (problem,) = (p for p in found if p.code == "matrix-credentials")
    line = int(str(problem.where).rpartition(":")[2])
    assert "planted" in (tmp_path / "matrix.yaml").read_text().splitlines()[line - 1]
    assert "planted" not in repr(problem)
    assert fix in problem.fix


def test_the_user_of_ssh_and_a_ref_are_no_credentials(tmp_path: Path) -> None:
    build = "build: {binaries: official, tools: t, sources: {Y: 'git+ssh://git@h/x@main', X: 'git+https://h/x@main'}}"
    found = matrices.problems(matrices.write(tmp_path, "env: {A: b}", build))
    assert "matrix-credentials" not in {problem.code for problem in found}


@pytest.mark.parametrize("url", ["https://planted@h/simple", "https://u:planted@h/simple"])
def test_a_lock_with_credentials_is_refused_with_its_line(tmp_path: Path, url: str) -> None:
    projects.write(tmp_path)
    path = tmp_path / "wheels.lock"
    text = path.read_text().replace("https://pypi.org/simple", url, 1)
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        store.read(path)
    (problem,) = caught.value.problems
    assert problem.code == "lock-credentials"
    line = int(str(problem.where).rpartition(":")[2])
    assert "planted" in text.splitlines()[line - 1]
    assert "planted" not in repr(problem)

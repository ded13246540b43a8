"""Indexes of the matrix: which packages come from them, and where their credentials come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.index import serve, torch, unpacker, wheel
from support.machine import settings
from support.matrices import GOOD, changed, problems

from imagefactory.errors import CheckFailedError, FactoryError, SetupError
from imagefactory.locking import indexes, locking, store, wheelhouse
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.matrix.explain import explain
from imagefactory.matrix.matrix import Matrix
from imagefactory.settings import Settings, from_environment
from imagefactory.system import shell

pytestmark = pytest.mark.programs

SECRET = "s3cret-word"
ACCOUNT = {"UV_INDEX_CU130_USERNAME": "me", "UV_INDEX_CU130_PASSWORD": SECRET}
INCLUDE = GOOD[GOOD.index("include:\n") : GOOD.index("exclude:")]


def write(folder: Path, url: str, *changes: tuple[str, str]) -> Path:
    """A matrix whose torch comes from the index that is named like the channel."""
    return changed(
        folder,
        (INCLUDE, ""),
        ('["0.22.1", "0.33.0"]', '["0.22.1"]'),
        ('["2.11.0", "2.14.0"]', '["2.11.0"]'),
        (GOOD[GOOD.index("overrides:\n") :], ""),
        ("flavors:\n", f"indexes:\n  cu130: {{url: '{url}'}}\nflavors:\n"),
        ("    patches:", '    indexes: {torch: "{channel}"}\n    patches:'),
        *changes,
    )


@pytest.fixture
def main(tmp_path: Path) -> Iterator[str]:
    """An index that has a CPU torch, as PyPI has for some releases."""
    wheel(tmp_path / "main", "vllm", "0.22.1", requires=("torch==2.11.0", "leaf"))
    unpacker(tmp_path / "main", "0.13.8")
    torch(tmp_path / "main", "2.11.0", "cpu", None)
    wheel(tmp_path / "main", "leaf", "1.0")
    with serve(tmp_path / "main", tmp_path / "main-www") as url:
        yield url


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """What the index with torch's CUDA builds serves, and another leaf that nobody wants."""
    torch(tmp_path / "channel", "2.11.0+cu130", "cu130", "13.0")
    torch(tmp_path / "channel", "2.12.0+cu130", "cu130", "13.0")
    elsewhere = torch(tmp_path / "channel", "2.11.0+cu130", "cu130", "13.0")
    elsewhere.rename(elsewhere.with_name("torch-2.11.0+cu130-cp313-cp313-win_amd64.whl"))
    torch(tmp_path / "channel", "2.11.0+cu130", "cu130", "13.0")
    wheel(tmp_path / "channel", "leaf", "9.0")
    return tmp_path / "channel"


def updated(path: Path, main: str, environ: dict[str, str]) -> tuple[Lock, Matrix, Settings]:
    declared = matrix.load(path)
    using = replace(settings(path.parent, main), named=declared.indexes, environ=environ)
    lock, _ = locking.update(None, declared.cells, using)
    return lock, declared, using


def test_a_package_comes_from_its_index_and_all_others_do_not(
    tmp_path: Path, main: str, channel: Path
) -> None:
    with serve(channel, tmp_path / "www") as url:
        lock, declared, using = updated(write(tmp_path, url), main, {})
        (resolution,) = lock.resolutions
        versions = {w.name: w.version for w in resolution.wheels}
        assert versions == {"vllm": "0.22.1", "torch": "2.11.0+cu130", "leaf": "1.0"}
        assert resolution.torch.cuda == "13.0"
        found = resolution.wheel("torch")
        assert found is not None
        assert found.index == f"{url.removesuffix('/simple')}/files/{found.filename}"
        assert found.has_address
        assert indexes.missing(resolution.wheels, using) == []
    again, changes = locking.update(lock, declared.cells, using)  # needs no index
    assert (again, changes) == (lock, [])
    store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
    assert store.read(tmp_path / "wheels.lock") == lock
    rows = {(what, value): section for what, value, _, section in explain(declared.cells[0])}
    assert rows["index", f"torch from cu130 ({url})"] == "flavors.gb10"


def test_without_an_index_of_the_matrix_the_cpu_torch_is_refused_and_the_cure_is_named(
    tmp_path: Path, main: str
) -> None:
    path = write(tmp_path, main, ('    indexes: {torch: "{channel}"}\n', ""))
    with pytest.raises(CheckFailedError) as caught:
        updated(path, main, {})
    (problem,) = caught.value.problems
    assert problem.code == "torch-cpu-build"
    assert "`indexes`" in problem.fix


def test_an_override_of_the_package_keeps_its_index(
    tmp_path: Path, main: str, channel: Path
) -> None:
    override = 'overrides:\n  - {requirement: "torch==2.12.0", reason: measured}\n'
    with serve(channel, tmp_path / "www") as url:
        path = write(
            tmp_path,
            url,
            ('"torch=={torch}"]', "\"torch; sys_platform == 'linux'\"]"),
            ("exclude: []\n", override),
        )
        (resolution,) = updated(path, main, {})[0].resolutions
    assert resolution.torch.version == "2.12.0+cu130"
    assert [o.requirement for o in resolution.overrides] == ["torch==2.12.0"]


def test_another_url_of_the_index_is_another_request(
    tmp_path: Path, main: str, channel: Path
) -> None:
    with serve(channel, tmp_path / "www") as url:
        lock, _, _ = updated(write(tmp_path, url), main, {})
    cells = matrix.load(write(tmp_path, "https://other.example/simple")).cells
    assert lock.uncovered(cells) == cells


def test_an_index_without_the_version_is_reported_with_those_that_it_has(
    tmp_path: Path, main: str, channel: Path
) -> None:
    (channel / "torch-2.11.0+cu130-py3-none-any.whl").unlink()
    with serve(channel, tmp_path / "www") as url, pytest.raises(CheckFailedError) as caught:
        updated(write(tmp_path, url), main, {})
    (problem,) = caught.value.problems
    assert "index cu130" in problem.what
    assert "has no wheel of torch==2.11.0 for linux/arm64, Python 3.13" in problem.what
    assert problem.fix == "for that target it has 2.12.0+cu130"


def test_credentials_come_from_the_environment_and_reach_no_lock_no_log_and_no_message(
    tmp_path: Path,
    main: str,
    channel: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "commands.log"
    shell.LOG.open(log)
    for name, value in ACCOUNT.items():  # uv reads them itself
        monkeypatch.setenv(name, value)
    with serve(channel, tmp_path / "www", account=f"me:{SECRET}") as url:
        lock, _, using = updated(write(tmp_path, url), main, ACCOUNT)
        found = lock.resolutions[0].wheel("torch")
        assert found is not None
        assert wheelhouse.file_of(found, using).is_file()  # as a build gets it
        assert indexes.missing([found], using) == []
        other = replace(using, environ={**ACCOUNT, "UV_INDEX_CU130_PASSWORD": f"{SECRET}-old"})
        with pytest.raises(FactoryError) as caught:
            locking.update(None, matrix.load(tmp_path / "matrix.yaml").cells, other)
    written = capsys.readouterr()
    texts = [store.dumps(lock), log.read_text(), str(caught.value), *written, repr(using)]
    assert len(log.read_text()) > 100
    assert [text for text in texts if SECRET in text] == []


def test_credentials_come_from_netrc_as_well(
    tmp_path: Path, main: str, channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serve(channel, tmp_path / "www", account=f"me:{SECRET}") as url:
        lock, _, using = updated(write(tmp_path, url), main, {})
        found = lock.resolutions[0].wheel("torch")
        assert found is not None
        assert wheelhouse.file_of(found, using).is_file()
    assert SECRET not in store.dumps(lock)


def test_an_index_that_wants_credentials_is_reported_with_where_to_put_them(
    tmp_path: Path, main: str, channel: Path
) -> None:
    with (
        serve(channel, tmp_path / "www", account=f"me:{SECRET}") as url,
        pytest.raises(SetupError) as caught,
    ):
        updated(write(tmp_path, url), main, {})
    (problem,) = caught.value.problems
    assert problem.code == "index-credentials"
    assert "401" in problem.what
    assert "UV_INDEX_CU130_USERNAME" in problem.fix


def test_credentials_go_only_to_the_host_of_their_index() -> None:
    using = from_environment({**ACCOUNT, "UV_INDEX": "https://you:pw%40@b.example/simple"})
    using = replace(using, named={"cu130": "https://a.example/simple"})
    assert using.account_for("https://a.example/files/x.whl") == ("me", SECRET)
    assert using.account_for("https://b.example/files/x.whl") == ("you", "pw@")
    assert using.account_for("https://c.example/x.whl") is None


def test_the_credentials_of_an_index_of_the_machine_reach_no_lock(
    tmp_path: Path, main: str
) -> None:
    host = main.removeprefix("http://")
    path = write(
        tmp_path,
        main,
        ('    indexes: {torch: "{channel}"}\n', ""),
        ("channel: [cu130]", "channel: [cpu]"),
        ('  cuda: ["13.0"]\n', ""),
    )
    lock, _, _ = updated(path, f"http://me:{SECRET}@{host}", {})
    assert {wheel.index for wheel in lock.resolutions[0].wheels} == {main}
    assert SECRET not in store.dumps(lock)


@pytest.mark.parametrize(
    ("old", "new", "code", "fix"),
    [
        (
            "https://",
            f"https://me:{SECRET}@",
            "matrix-index-credentials",
            "UV_INDEX_CU130_PASSWORD",
        ),
        ("cu130: {url", "cu129: {url", "matrix-unknown-index", "write one of cu129"),
        ("{torch: ", "{torchaudio: ", "matrix-idle-index", "add torchaudio to `requirements`"),
        ("https://", "", "matrix-wrong-value", "kind"),
    ],
)
def test_a_wrong_index_is_reported_with_its_line_and_without_its_password(
    tmp_path: Path, old: str, new: str, code: str, fix: str
) -> None:
    path = write(tmp_path, "https://a.example/simple", (old, new))
    (problem,) = problems(path)
    assert (problem.code, fix in problem.fix) == (code, True)
    line = path.read_text().splitlines()[int(str(problem.where).rpartition(":")[2]) - 1]
    assert "url:" in line or "indexes:" in line
    assert SECRET not in str(problem)

"""What uv is asked for a request, and what its answer becomes; uv itself is not run."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import uv
from support.machine import settings
from support.plans import planned
from support.projects import wheel
from support.variants import variants

from imagefactory.errors import CheckFailedError, FactoryError, Problem, SetupError
from imagefactory.locking import cures, indexes, named_indexes, resolve
from imagefactory.locking.indexes import Page
from imagefactory.locking.lock import FIND_LINKS, Wheel
from imagefactory.matrix.cell import NamedIndex, Override, Request
from imagefactory.settings import Settings
from imagefactory.system import index_errors, shell, web
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

HERE = Location(file="matrix.yaml", line=7)
FIRST, SECOND = "https://one.example/simple", "https://two.example/simple"
OWN = "https://own.example/simple"
#: Parts of a request that uv is not asked about.
NOT_ASKED = {
    r"channel": "the build of torch that was chosen is compared with it",
    r"overrides\[\]\.(reason|location.*)": "for people",
}
REQUEST = Request(
    platform=Platform.ARM64,
    python="3.12",
    glibc="2.36",
    channel="cu130",
    requirements=("vllm==0.30", "zoo.Torch==2.1"),
    overrides=(
        Override(requirement="numpy==2.3", drop=False, reason="r", location=HERE),
        Override(requirement="xformers", drop=True, reason="r", location=HERE),
    ),
    indexes=(NamedIndex(package="zoo-torch", name="own", url=OWN),),
)
PINNED = f"{OWN}/zoo_torch-2.1-py3-none-any.whl#sha256={'0' * 64}"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command line, and the files that it names by their names."""

    argv: tuple[str, ...]
    files: dict[str, str]
    env: dict[str, str]


class FakeUv:
    """Stands in for the subprocess gateway: notes what it is asked, and answers."""

    def __init__(self, *packages: dict[str, Any], err: str = "") -> None:
        self.packages, self.err = packages, err
        self.asked: list[Asked] = []

    def __call__(self, argv: Sequence[str], *, env: dict[str, str]) -> shell.Completed:
        out = Path(argv[argv.index("--output-file") + 1])
        files = {path.name: path.read_text() for path in sorted(out.parent.iterdir())}
        shown = tuple(text.replace(f"{out.parent}/", "") for text in argv)
        self.asked.append(Asked(argv=shown, files=files, env=env))
        out.write_text(tomli_w.dumps({"packages": list(self.packages)}))
        return shell.Completed(argv=tuple(argv), code=2 if self.err else 0, out="", err=self.err)


@pytest.fixture
def using(tmp_path: Path) -> Settings:
    return replace(
        settings(tmp_path, FIRST, SECOND, links=(tmp_path / "links",)),
        named={"own": OWN},
        accounts={SECOND: ("me", "word")},
        environ={"UV_INDEX_OWN_USERNAME": "you", "UV_INDEX_OWN_PASSWORD": "other"},
    )


Resolve = Callable[..., tuple[list[Asked], dict[Wheel, str]]]


@pytest.fixture
def resolved(using: Settings, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    def resolve_with(
        fake: FakeUv, request: Request = REQUEST, **options: Any
    ) -> tuple[list[Asked], dict[Wheel, str]]:
        monkeypatch.setattr(shell, "run", fake)
        monkeypatch.setattr(indexes, "pages", lambda _, names, __: dict.fromkeys(names, Page()))
        monkeypatch.setattr(
            named_indexes,
            "urls",
            lambda request, _: {one.package: f"{PINNED}{one.url}" for one in request.indexes},
        )
        return fake.asked, resolve.resolve(request, using, **options)

    return resolve_with


def entry(name: str, tags: str = "py3-none-any", **more: Any) -> dict[str, Any]:
    url = f"{FIRST.removesuffix('/simple')}/files/{name}-1.0-{tags}.whl"
    return {"url": url, "size": 7, "hashes": {"sha256": "a" * 64}, **more}


def test_uv_is_asked_exactly_this(resolved: Resolve, using: Settings) -> None:
    previous = replace(
        planned().resolution,
        wheels=(
            wheel("leaf", "1.0"),
            replace(wheel("local", "1.0"), index=FIND_LINKS),
            replace(wheel("by-url", "1.0"), index="https://host.example/by_url-1.0.whl"),
        ),
    )
    (asked,), _ = resolved(
        FakeUv(),
        previous=previous,
        refresh=True,
        upgrade_packages=("vllm", "leaf"),
        constraints=("leaf<3", "numpy<4"),
    )
    assert asked.argv == (
        *(uv.find_uv_bin(), "pip", "compile", "requirements.in"),
        *("--override", "overrides.txt", "--output-file", "pylock.resolved.toml"),
        *("--python", sys.executable, "--python-version", "3.12"),
        *("--python-platform", "aarch64-manylinux_2_36", "--format", "pylock.toml"),
        *("--only-binary", ":all:", "--no-header", "--quiet", "--config-file", "uv.toml"),
        *("--default-index", f"imagefactory-0={FIRST}", "--index-strategy", "unsafe-best-match"),
        *("--index", f"imagefactory-1={SECOND}", "--find-links", str(using.find_links[0])),
        *("--upgrade-package", "vllm", "--upgrade-package", "leaf"),
        *("--constraint", "constraints.txt", "--refresh"),
    )
    kept = asked.files.pop("pylock.resolved.toml")
    assert asked.files == {
        "requirements.in": f"vllm==0.30\nzoo.Torch @ {PINNED}{OWN}\n",
        "overrides.txt": "numpy==2.3\nxformers; sys_platform == 'never'\n",
        "constraints.txt": "leaf<3\nnumpy<4\n",
        "uv.toml": tomli_w.dumps({"index": [{"name": "own", "url": OWN, "explicit": True}]}),
    }
    leaf = previous.wheels[0]
    url, hashes = f"{leaf.index}/{leaf.filename}", {"sha256": leaf.sha256}
    assert tomllib.loads(kept) == {
        "lock-version": "1.0",
        "created-by": "uv",
        "packages": [
            {"name": "leaf", "version": "1.0", "wheels": [{"url": url, "hashes": hashes}]}
        ],
    }
    assert asked.env == {
        **web.uv_environment(),
        "UV_INDEX_IMAGEFACTORY_1_USERNAME": "me",
        "UV_INDEX_IMAGEFACTORY_1_PASSWORD": "word",
        "UV_INDEX_OWN_USERNAME": "you",
        "UV_INDEX_OWN_PASSWORD": "other",
    }


def test_without_options_nothing_is_kept_limited_or_refreshed(resolved: Resolve) -> None:
    plain = replace(REQUEST, overrides=(), indexes=())
    (asked,), _ = resolved(FakeUv(), plain)
    assert not {"--refresh", "--constraint", "--upgrade-package"} & {*asked.argv}
    assert asked.files == {
        "requirements.in": "vllm==0.30\nzoo.Torch==2.1\n",
        "overrides.txt": "",
        "uv.toml": "",
    }


def test_every_part_of_a_request_changes_what_uv_is_asked(resolved: Resolve) -> None:
    fake = FakeUv()
    resolved(fake)
    for path, other in variants(REQUEST):
        if path == "indexes-" or path.startswith("indexes[].package"):
            continue  # without its requirement, no package is taken from the index
        resolved(fake, other)
        is_ignored = any(re.fullmatch(rule, path) for rule in NOT_ASKED)
        assert (fake.asked[-1] == fake.asked[0]) == is_ignored, path


def test_an_answer_becomes_wheels_with_the_best_tags_and_the_index_that_has_them(
    tmp_path: Path, resolved: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "a folder" / "local-1.0-py3-none-any.whl"
    local.parent.mkdir()
    local.write_bytes(b"12345")
    monkeypatch.setattr(web, "size_of", lambda url, account: len(url) + (account is not None))
    native = "cp312-cp312-manylinux_2_28_aarch64"
    best, plain = entry("leaf", native), entry("leaf")
    foreign, newer = (entry("leaf", f"cp312-cp312-{x}") for x in ("win32", "manylinux_2_39_x86_64"))
    second = entry("two")
    second["url"] = second["url"].replace("one.example", "two.example")
    elsewhere = {
        **entry("cdn"),
        "url": "https://cdn.example/x?y#z",
        "name": "cdn-1.0-py3-none-any.whl",
    }
    unsized = entry("unsized")
    del unsized["size"]
    by_url = entry("by_url")
    by_url["url"] = by_url["url"].replace("https://", "https://me:word@") + "#sha256=x"
    answer = FakeUv(
        {"name": "leaf", "version": "1.0", "wheels": [plain, foreign, best, newer]},
        {"name": "Two", "wheels": [second]},
        {"name": "cdn", "wheels": [elsewhere]},
        {"name": "un.sized", "wheels": [unsized]},
        {"name": "by-url", "archive": by_url},
        {"name": "local", "wheels": [{"url": local.as_uri(), "hashes": {"sha256": "b" * 64}}]},
    )
    _, found = resolved(answer)
    rows = {one.name: (one.filename, one.size, one.index) for one in found}
    assert rows == {
        "leaf": (f"leaf-1.0-{native}.whl", 7, FIRST),
        "two": ("two-1.0-py3-none-any.whl", 7, SECOND),
        "cdn": ("cdn-1.0-py3-none-any.whl", 7, FIRST),
        "un-sized": ("unsized-1.0-py3-none-any.whl", len(unsized["url"]), FIRST),
        "by-url": (
            "by_url-1.0-py3-none-any.whl",
            7,
            "https://one.example/files/by_url-1.0-py3-none-any.whl",
        ),
        "local": ("local-1.0-py3-none-any.whl", 5, FIND_LINKS),
    }
    assert {one.version for one in found} == {"1.0"}
    assert {one.sha256 for one in found} == {"a" * 64, "b" * 64}
    assert {one.name: url for one, url in found.items()}["leaf"] == best["url"]


def test_an_answer_without_a_wheel_for_the_target_is_an_error(resolved: Resolve) -> None:
    package = {"name": "leaf", "version": "1.0", "wheels": [entry("leaf", "cp312-cp312-win32")]}
    with pytest.raises(CheckFailedError) as caught:
        resolved(FakeUv(package))
    (problem,) = caught.value.problems
    assert problem.code == "lock-no-wheel"
    assert problem.what == "leaf 1.0 has no wheel for linux/arm64, Python 3.12"


#: What an index's page of the first package may say, and whether uv is asked all the same.
FAULTS = {
    **dict.fromkeys(("credentials", "proxy", "failing", "timeout", "tls"), False),
    **dict.fromkeys(("cut-off", "unreachable", "garbage"), False),
    **dict.fromkeys(("forbidden", "not-found", "empty", "hash", "corrupt"), True),
}


def test_every_fault_of_an_index_is_classified() -> None:
    assert {f"index-{name}" for name in FAULTS} == index_errors._FIXES.keys()


@pytest.mark.parametrize(("fault", "is_asked"), FAULTS.items())
def test_an_index_that_does_not_work_is_reported_instead_of_asking_uv(
    using: Settings, monkeypatch: pytest.MonkeyPatch, fault: str, is_asked: bool
) -> None:
    looked_up: list[tuple[str, list[str]]] = []

    def pages(index: str, names: list[str], _: Settings) -> dict[str, Page]:
        looked_up.append((index, names))
        error = Problem(code=f"index-{fault}", what="w", fix="f") if index == SECOND else None
        return dict.fromkeys(names, Page(error=error))

    fake = FakeUv()
    monkeypatch.setattr(shell, "run", fake)
    monkeypatch.setattr(indexes, "pages", pages)
    monkeypatch.setattr(named_indexes, "urls", lambda *_: {"zoo-torch": PINNED})
    refused = pytest.raises(SetupError, match=f"index-{fault}")
    with nullcontext() if is_asked else refused:
        resolve.resolve(REQUEST, using)
    assert bool(fake.asked) == is_asked
    # a package from an index of the matrix is not looked up on the machine's
    assert looked_up == [(FIRST, ["vllm"]), (SECOND, ["vllm"])]


def failure(
    resolved: Resolve, monkeypatch: pytest.MonkeyPatch, err: str, request: Request = REQUEST
) -> FactoryError:
    monkeypatch.setattr(indexes, "faults", lambda *_: [])
    monkeypatch.setattr(cures, "of_missing_wheel", lambda text, *_: text[:5] * ("cure" in text))
    with pytest.raises(FactoryError) as caught:
        resolved(FakeUv(err=err), request)
    return caught.value


def test_what_uv_says_is_reported_without_its_warnings_and_with_the_cure(
    resolved: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "warning: old\n\n  x  No solution:\n      because of leaf\n"
    error = failure(resolved, monkeypatch, said)
    (problem,) = error.problems
    assert isinstance(error, CheckFailedError)
    assert problem.code == "lock-unsatisfiable"
    asked = "vllm==0.30, zoo.Torch==2.1 for linux/arm64, Python 3.12"
    assert problem.what == f"{asked}: x  No solution: because of leaf"
    assert problem.where == "matrix.yaml:7"
    assert "override" in problem.fix
    assert failure(resolved, monkeypatch, "cure it").problems[0].fix == "cure "
    plain = replace(REQUEST, overrides=())
    assert failure(resolved, monkeypatch, "no", plain).problems[0].where is None
    assert len(failure(resolved, monkeypatch, "x" * 2000).problems[0].what) < 1000


def test_a_failure_of_an_index_is_no_failure_of_the_requirements(
    resolved: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = failure(resolved, monkeypatch, "dns error: no such host")
    assert isinstance(error, SetupError)
    assert [one.code for one in error.problems] == ["index-unreachable"]

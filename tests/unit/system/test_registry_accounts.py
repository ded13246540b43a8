"""With whose account a registry is asked, and where it comes from."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.registries import LAYERS, ask, basic, login, refused, server
from support.registry import FakeRegistry

from imagefactory.errors import SetupError
from imagefactory.system.registry import Registries

__all__ = ["ask", "server"]


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_the_account_of_docker_login_is_shown_when_the_registry_asks(
    server: FakeRegistry, ask: Registries, tmp_path: Path, scheme: str
) -> None:
    server.user, server.scheme = "me:secret", scheme
    login(tmp_path, auths={f"https://{server.address}/v1/": {"auth": basic("me:secret")}})
    server.put("me/x", "1", LAYERS)
    assert ask.manifest(f"{server.address}/me/x:1")
    assert server.authorized[0] is None
    asked = len(server.asked)
    assert ask.manifest(f"{server.address}/me/x:1")
    assert len(server.asked) == asked + 1, "it is asked for once"


def test_an_identity_token_buys_an_access_token(
    server: FakeRegistry, ask: Registries, tmp_path: Path
) -> None:
    server.user = "me:secret"
    login(tmp_path, auths={server.address: {"identitytoken": "long-lived"}})
    server.put("me/x", "1", LAYERS)
    assert ask.manifest(f"{server.address}/me/x:1")
    (form,) = server.forms
    assert form["grant_type"] == ["refresh_token"]
    assert form["refresh_token"] == ["long-lived"]
    assert form["scope"] == ["repository:x:pull"]


def helper(folder: Path, answer: str, code: int = 0) -> None:
    """A credential helper that notes what it was asked for."""
    program = folder / "docker-credential-test"
    program.write_text(
        f"#!/bin/sh\nread -r name; echo \"$1 $name\" >> {folder}/asked\nprintf '%s' '{answer}'\n"
        f"exit {code}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.programs
@pytest.mark.parametrize("of_one", [True, False])
def test_a_credential_helper_is_asked(
    server: FakeRegistry,
    ask: Registries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_one: bool,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    server.user = "me:secret"
    login(
        tmp_path,
        **({"credHelpers": {server.address: "test"}} if of_one else {"credsStore": "test"}),
    )
    helper(tmp_path, '{"Username": "me", "Secret": "secret"}')
    server.put("me/x", "1", LAYERS)
    assert ask.manifest(f"{server.address}/me/x:1")
    assert (tmp_path / "asked").read_text() == f"get {server.address}\n"


@pytest.mark.programs
def test_a_helper_that_has_no_account_is_no_error_and_a_broken_one_is(
    server: FakeRegistry, ask: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    server.user = "me:secret"
    login(tmp_path, credsStore="test")
    helper(tmp_path, "credentials not found in native keychain", code=1)
    assert refused(lambda: ask.tags(f"{server.address}/me/x"))[0] == "registry-login"
    helper(tmp_path, "the keychain is locked", code=1)
    code, what = refused(lambda: ask.tags(f"{server.address}/me/x"))
    assert (code, "the keychain is locked" in what) == ("registry-credentials", True)


def test_a_configuration_that_cannot_be_read_says_where_it_is(
    server: FakeRegistry, ask: Registries, tmp_path: Path
) -> None:
    server.user = "me:secret"
    (tmp_path / "config.json").write_text("{")
    code, what = refused(lambda: ask.tags(f"{server.address}/me/x"))
    assert (code, str(tmp_path / "config.json") in what) == ("registry-credentials", True)


@pytest.mark.parametrize("account", ["", "me:wrong"])
def test_without_the_right_account_it_says_to_log_in(
    server: FakeRegistry, ask: Registries, tmp_path: Path, account: str
) -> None:
    server.user = "me:secret"
    if account:
        login(tmp_path, auths={server.address: {"auth": basic(account)}})
    with pytest.raises(SetupError) as caught:
        ask.manifest(f"{server.address}/me/x:1")
    (problem,) = caught.value.problems
    assert problem.code == "registry-login"
    assert "who are you" in problem.what
    assert problem.fix == f"docker login {server.address}"


def test_an_account_for_another_registry_stays_here(
    server: FakeRegistry, ask: Registries, tmp_path: Path
) -> None:
    server.user = "me:secret"
    login(tmp_path, auths={"ghcr.io": {"auth": basic("me:secret")}})
    refused(lambda: ask.manifest(f"{server.address}/me/x:1"))
    assert set(server.authorized) == {None}


def test_a_password_in_netrc_is_not_sent(
    server: FakeRegistry, ask: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.put("me/x", "1", LAYERS)
    ask._session(server.address).trust_env = True  # as for a registry that is not on loopback
    ask.manifest(f"{server.address}/me/x:1")
    assert server.authorized == [None]

"""Keys and envelopes: how they are kept, which are refused, and that other tools read them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.signer import Key  # type: ignore[attr-defined]
from support.keys import signer

from imagefactory import redaction
from imagefactory.errors import InputError
from imagefactory.system import signing, strict_json
from imagefactory.system.signing import SignatureError

OWN, OTHER = signer(b"own"), signer(b"other")
KIND = "application/vnd.in-toto+json"
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def refused(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        signing.parse_keys(text, "trusted-keys")
    return [str(one.where) for one in caught.value.problems]


def test_a_key_in_the_environment_is_kept_from_other_programs(tmp_path: Path) -> None:
    made = signing.new_signer(tmp_path / "key", "ci")
    environ = {signing.VARIABLE: (tmp_path / "key").read_text(), "OTHER": "x"}
    signing.withhold(environ)
    assert environ == {"OTHER": "x"}
    found = signing.find_signer(environ)
    assert found is not None
    assert found.key == made.key
    named = {signing.VARIABLE: str(tmp_path / "key")}
    signing.withhold(named)
    assert [*named] == [signing.VARIABLE]
    assert signing.find_signer(environ | {"XDG_CONFIG_HOME": str(tmp_path / "none")}) is None


def test_an_envelope_is_opened_with_the_key_that_sealed_it_only() -> None:
    sealed = json.loads(signing.seal(b"payload", KIND, OWN))
    assert signing.unseal(sealed, KIND, [OTHER.key, OWN.key]) == (b"payload", OWN.key)
    for keys, kind in (([OTHER.key], KIND), ([], KIND), ([OWN.key], "other")):
        with pytest.raises(SignatureError):
            signing.unseal(sealed, kind, keys)
    sealed["payload"] = "cGF5bG9hZR=="  # the bits that base64 does not use are set
    with pytest.raises(SignatureError, match="base64"):
        signing.unseal(sealed, KIND, [OWN.key])


def test_another_implementation_of_dsse_accepts_an_envelope_and_refuses_it_edited() -> None:
    sealed = json.loads(signing.seal(b"payload", KIND, OWN))
    public = {"keyval": {"public": OWN.key.raw.hex()}, "scheme": "ed25519", "keytype": "ed25519"}
    key = Key.from_dict(OWN.key.id, public)
    assert set(Envelope.from_dict(json.loads(json.dumps(sealed))).verify([key], 1)) == {OWN.key.id}
    edited = Envelope.from_dict({**sealed, "payload": "AAAA"})
    with pytest.raises(Exception, match="Accepted signatures do not match"):
        edited.verify([key], 1)


def test_a_new_key_is_private_found_again_and_never_replaced(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = signing.key_file(environ)
    assert path is not None
    assert signing.find_signer(environ) is None
    made = signing.new_signer(path, "me@here")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = signing.find_signer(environ)
    assert found is not None
    assert str(found.key) == f"me@here ({made.key.id})"
    secret = path.read_text().splitlines()[1]
    assert secret not in repr(found)
    assert redaction.hide(f"a {secret} b") == "a *** b"
    with pytest.raises(InputError):
        signing.new_signer(path, "again")
    assert signing.find_signer(environ) == found
    assert sorted(one.name for one in path.parent.iterdir()) == ["signing.key", "signing.key.pub"]
    path.chmod(0o640)
    with pytest.raises(InputError, match="others may read it"):
        signing.find_signer(environ)


def test_a_key_of_openssl_or_ssh_keygen_may_be_in_a_variable_or_a_file_that_it_names(
    tmp_path: Path,
) -> None:
    private = Ed25519PrivateKey.generate()
    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.OpenSSH):
        text = private.private_bytes(PEM, form, PLAIN).decode()
        path = tmp_path / str(form).rpartition(".")[2]
        path.write_text(text)
        path.chmod(0o600)
        for value in (text, str(path)):
            found = signing.find_signer({signing.VARIABLE: value})
            assert found is not None
            assert found.key.raw == private.public_key().public_bytes_raw()


def bad_keys(folder: Path) -> Mapping[str, str]:
    own = Ed25519PrivateKey.generate()
    pkcs8 = serialization.PrivateFormat.PKCS8
    locked = own.private_bytes(PEM, pkcs8, serialization.BestAvailableEncryption(b"x")).decode()
    elliptic = generate_private_key(SECP256R1()).private_bytes(PEM, pkcs8, PLAIN).decode()
    whole = own.private_bytes(PEM, pkcs8, PLAIN).decode()
    return {
        "password": locked,
        "not an Ed25519": elliptic,
        "no private key": whole[: len(whole) // 2],
        "it is no private key": f"{whole[:40]}\udcb7{whole[41:]}",  # a byte that is not UTF-8
        "cannot be read": str(folder / "none"),
        "not a regular file": os.devnull,
        "File name too long": "A" * 300,
    }


def test_a_key_that_cannot_be_used_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    for said, value in bad_keys(tmp_path).items():
        with pytest.raises(InputError, match=said) as caught:
            signing.find_signer({signing.VARIABLE: value})
        assert not [part for part in value.split() if len(part) > 40 and part in str(caught.value)]


def test_keys_that_are_trusted_are_lines_as_ssh_keygen_writes_them() -> None:
    lines = f"# ours\n\n{OWN.key.line}\r\n  {OTHER.key.line} at CI\n{OWN.key.line}"
    keys = signing.parse_keys(lines, "")
    assert keys == (OWN.key, OTHER.key)
    assert keys[1].comment == "other at CI"
    assert OWN.key.line.startswith("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI")


def test_every_line_that_is_no_key_is_named() -> None:
    good = OWN.key.line.split()[1]
    bad = [f"ssh-rsa {good}", "ssh-ed25519", f"ssh-ed25519 {good[:-4]}", f"ssh-ed25519 {good}AAAA"]
    assert refused("\n".join([OWN.key.line, *bad, "\x1b[2J"])) == [
        f"trusted-keys:{number}" for number in range(2, 7)
    ]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', "NaN", "[" * 100_000, "1" * 99, "{"])
def test_json_that_two_readers_could_understand_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reasons differ
        strict_json.loads(text.encode(), 98 if text[0] == "1" else 1_000_000)

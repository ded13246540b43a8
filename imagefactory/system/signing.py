"""Signs and verifies: Ed25519 keys, and DSSE envelopes around what is signed.

Public keys are written as OpenSSH writes them, one a line with a comment, so that ``ssh-keygen -l``
lists a file of them. An envelope is that of in-toto, which other tools verify as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory import redaction
from imagefactory.errors import FactoryError, InputError, Problem, fail
from imagefactory.system import files, strict_json, temporary

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: What holds a private key, or names a file with one, instead of the user's own file.
VARIABLE = "IMAGEFACTORY_SIGNING_KEY"
KIND = "ssh-ed25519"
#: What precedes the 32 bytes of a key in a line: its kind, and their number.
_HEAD = len(KIND).to_bytes(4) + KIND.encode() + (32).to_bytes(4)
#: Bytes of an envelope, and of a file with keys, that no real one reaches.
LARGEST, LARGEST_KEYS = 20_000_000, 100_000
#: How a private key begins, in the form of openssl and cosign or in that of ssh-keygen.
_BEGIN = "-----BEGIN "


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key that signatures are verified with; ``comment`` says to people whose it is."""

    raw: bytes
    comment: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        """Its fingerprint, as ``ssh-keygen -l`` prints it."""
        found = base64.b64encode(hashlib.sha256(_HEAD + self.raw).digest()).decode()
        return f"SHA256:{found.rstrip('=')}"

    @property
    def line(self) -> str:
        """The key as a line of a file."""
        return f"{KIND} {base64.b64encode(_HEAD + self.raw).decode()} {self.comment}".rstrip()

    def __str__(self) -> str:
        return f"{self.comment} ({self.id})" if self.comment else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A private key, which is never shown."""

    key: PublicKey
    private: Ed25519PrivateKey = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose signatures count: those of the ``keys``, among them the ``signer``'s own."""

    keys: tuple[PublicKey, ...] = ()
    signer: Signer | None = None

    @property
    def wants_signatures(self) -> bool:
        """Whether what is unsigned does not count."""
        return bool(self.keys)


NOBODY = Trust()


class SignatureError(ValueError):
    """An envelope that is not one, or that nobody who is trusted has signed."""


def seal(payload: bytes, kind: str, signer: Signer) -> bytes:
    """The DSSE envelope of a payload of media type ``kind``."""
    signature = signer.private.sign(_authenticated(kind, payload))
    return strict_json.dumps(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": kind,
            "signatures": [
                {"keyid": signer.key.id, "sig": base64.b64encode(signature).decode()},
            ],
        }
    )


def is_envelope(value: object) -> bool:
    """Whether a JSON value is meant to be an envelope, be it a good one or not."""
    return isinstance(value, dict) and "payloadType" in value


def unseal(value: object, kind: str, keys: Iterable[PublicKey]) -> tuple[bytes, PublicKey]:
    """The payload of an envelope, and the key that signed it.

    Raises SignatureError unless it is of media type ``kind`` and all of its signatures, one at
    least, are right and by one of the ``keys``.
    """
    if not isinstance(value, dict) or value.keys() != {"payload", "payloadType", "signatures"}:
        raise SignatureError("it is no signed envelope")
    if value["payloadType"] != kind:
        raise SignatureError(f"what is signed is of another kind than {kind}")
    payload, known = _decoded(value["payload"]), {key.id: key for key in keys}
    signatures = value["signatures"]
    if not isinstance(signatures, list) or not 0 < len(signatures) < 100:
        raise SignatureError("it has no signatures")
    by = [_signed_by(one, _authenticated(kind, payload), known) for one in signatures]
    return payload, by[0]


def _signed_by(row: object, content: bytes, known: Mapping[str, PublicKey]) -> PublicKey:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - slow to load
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    if not isinstance(row, dict) or row.keys() != {"keyid", "sig"}:
        raise SignatureError("a signature is malformed")
    key = known.get(row["keyid"]) if isinstance(row["keyid"], str) else None
    if key is None:
        raise SignatureError(f"it is signed by {str(row['keyid'])[:60]!r}, who is not trusted here")
    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(_decoded(row["sig"]), content)
    except InvalidSignature:
        raise SignatureError(f"the signature of {key} is wrong: it was edited") from None
    return key


def _decoded(text: object) -> bytes:
    try:
        found = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        found = None
    # the unused bits of the last character could be changed unnoticed
    if found is None or base64.b64encode(found).decode() != text:
        raise SignatureError("a field is not base64")
    return found


def _authenticated(kind: str, payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding, version 1."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def key_file(environ: Mapping[str, str]) -> Path | None:
    """Where the user's private key is or would be; None without a home."""
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    return Path(config) / "imagefactory" / "signing.key" if config else None


#: The private key that was in the environment.
_withheld: list[str] = []


def withhold(environ: MutableMapping[str, str]) -> None:
    """Keep a private key from the programs that this one starts, which need none."""
    is_key = environ.get(VARIABLE, "").strip().startswith(_BEGIN)
    _withheld[:] = [environ.pop(VARIABLE)] if is_key else []


def find_signer(environ: Mapping[str, str]) -> Signer | None:
    """The signer of this machine, from the variable or the user's file; None without a key.

    Raises InputError for a key that cannot be used.
    """
    given = "".join(_withheld or environ.get(VARIABLE, "")).strip()
    if given.startswith(_BEGIN):
        return _signer(os.fsencode(given), VARIABLE, VARIABLE)
    path = Path(given) if given else key_file(environ)
    if path is None or not (given or path.exists()):
        return None
    try:
        content, mode = files.read(path, LARGEST_KEYS), path.stat().st_mode
    except OSError as error:
        # if the variable has a key in some other form, it is not shown
        where = VARIABLE if given else str(path)
        why = f"it cannot be read: {error.strerror}"
        raise _bad_key(where, why) from None
    if mode & 0o077:
        raise _bad_key(str(path), "others may read it", f"chmod 600 {path}, or make a new key")
    return _signer(content, str(path), _comment_of(path))


def _signer(content: bytes, where: str, comment: str) -> Signer:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - slow to load
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    lines = content.decode("utf-8", errors="replace").splitlines()
    redaction.remember(*(line for line in lines if line and not line.startswith("-----")))
    load = serialization.load_pem_private_key
    if b"OPENSSH" in content[:100]:
        load = serialization.load_ssh_private_key
    try:
        private = load(content, None)
    except TypeError:
        raise _bad_key(where, "it has a password, which nobody could enter at night") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _bad_key(where, "it is no private key") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise _bad_key(where, "it is not an Ed25519 key")
    raw = private.public_key().public_bytes_raw()
    return Signer(key=PublicKey(raw=raw, comment=comment), private=private)


def _bad_key(where: str, why: str, fix: str = "imagefactory key new makes one") -> FactoryError:
    return fail(InputError, "signing-key", f"the signing key: {why}", where=where, fix=fix)


def public_file(path: Path) -> Path:
    """The file with the public half of the private key in ``path``."""
    return path.with_name(f"{path.name}.pub")


def _comment_of(path: Path) -> str:
    try:
        (found,) = parse_keys(files.read_text(public_file(path), LARGEST_KEYS), "")
    except (OSError, ValueError, InputError):
        return ""
    return found.comment


def new_signer(path: Path, comment: str) -> Signer:
    """Make a key, and write both halves beside each other.

    Raises InputError if there is one: what it signed would be lost.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow to load
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    made = _signer(text, str(path), comment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = temporary.part_of(path)
    try:
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # which, unlike a rename, replaces nothing
    except FileExistsError:
        fix = f"keep it, or move it away: what it signed is verified with {public_file(path).name}"
        raise fail(InputError, "key-exists", "there is a key", where=str(path), fix=fix) from None
    finally:
        part.unlink(missing_ok=True)
    files.write_text(public_file(path), f"{made.key.line}\n")
    return made


def parse_keys(text: str, where: str) -> tuple[PublicKey, ...]:
    """The public keys of a file. Raises InputError with all lines that are none."""
    found, problems = list[PublicKey](), list[Problem]()
    for number, line in _lines(text):
        kind, _, rest = line.partition(" ")
        code, _, comment = rest.strip().partition(" ")
        try:
            blob = _decoded(code)
        except SignatureError:
            blob = b""
        if kind == KIND and blob.startswith(_HEAD) and len(blob) == len(_HEAD) + 32:
            found.append(PublicKey(raw=blob[len(_HEAD) :], comment=printable(comment)))
            continue
        what = f"no Ed25519 public key: {printable(line)[:40]!r}"
        fix = f"write {KIND} AAAA... COMMENT, as imagefactory key show prints it"
        problems.append(Problem(code="trusted-key", what=what, where=f"{where}:{number}", fix=fix))
    if problems:
        raise InputError(problems)
    return tuple(dict.fromkeys(found))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()


def printable(text: str) -> str:
    """``text`` without what a terminal would act on."""
    return "".join(sign for sign in text.strip() if sign.isprintable())[:200]


def read_keys(path: Path) -> tuple[PublicKey, ...]:
    """The public keys in a file; none if there is no file. Raises InputError if it is malformed."""
    try:
        text = files.read_text(path, LARGEST_KEYS)
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        what = f"the trusted keys cannot be read: {why}"
        raise fail(InputError, "trusted-key", what, where=str(path), fix="restore it") from None
    return parse_keys(text, str(path))


def trust(environ: Mapping[str, str], trusted: Path) -> Trust:
    """Whose signatures count here: the user's own key, and those in the file ``trusted``."""
    signer, keys = find_signer(environ), read_keys(trusted)
    return Trust(
        keys=tuple(dict.fromkeys((*((signer.key,) if signer else ()), *keys))), signer=signer
    )

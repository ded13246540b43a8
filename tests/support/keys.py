"""Keys for tests."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from imagefactory.system.signing import PublicKey, Signer, Trust


def signer(seed: bytes) -> Signer:
    """A signer that is made from ``seed``, which is its comment too."""
    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed).digest())
    raw = private.public_key().public_bytes_raw()
    return Signer(key=PublicKey(raw=raw, comment=seed.decode()), private=private)


def trusting(own: bytes, *others: bytes) -> Trust:
    """A machine with a key of its own that trusts those of others."""
    made = signer(own)
    return Trust(keys=(made.key, *(signer(one).key for one in others)), signer=made)

from __future__ import annotations

import pytest

from imagefactory.building.debian import certificates
from imagefactory.building.tree import Tree

#: Its subject has spaces in a row, capitals, letters beyond ASCII and a part with two attributes.
PEM = """\
-----BEGIN CERTIFICATE-----
MIIB4DCCAYWgAwIBAgIUbPgrhxeYT71zMp/JbqqdsDiZWBowCgYIKoZIzj0EAwIw
RDELMAkGA1UEBhMCREUxFzAVBgNVBAoMDlNvbWUgICBPcmcgIMOEMRwwCAYDVQQL
DAFhMBAGA1UEAwwJVGVzdCBST09UMCAXDTI2MTEyMjA1MTgwMloYDzIxMjYxMDI5
MDUxODAyWjBEMQswCQYDVQQGEwJERTEXMBUGA1UECgwOU29tZSAgIE9yZyAgw4Qx
HDAIBgNVBAsMAWEwEAYDVQQDDAlUZXN0IFJPT1QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS12jtIzlT5I1ZJcJENBgxUwyMSyXHW8SuQM4HtUKMdYD16h6WGIWpR
v37g/XY0uBgR8GKQDR2q488VX/H6kU7Wo1MwUTAdBgNVHQ4EFgQUeV97oQGevF6o
k4nsomrJfjEsSZAwHwYDVR0jBBgwFoAUeV97oQGevF6ok4nsomrJfjEsSZAwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEA9yi5OVAAVKEhTwjNVzzg
QbfJxCJrigz22uazuDldUi0CIQDF235GK70paFEUVlU47eOhmKIynT5ekIwqQgt6
TfIp6Q==
-----END CERTIFICATE-----
"""
#: As `openssl x509 -subject_hash` prints it.
HASH = "bf52a857"


def test_the_hash_of_a_subject_is_that_of_openssl() -> None:
    assert certificates.subject_hash(PEM.encode()) == HASH


def test_a_file_that_is_no_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="not a PEM certificate"):
        certificates.subject_hash(b"-----BEGIN KEY-----")


def test_certificates_are_linked_by_name_and_hash_and_bundled() -> None:
    tree = Tree()
    for name in ("b/Root (2), new", "a/Root"):
        tree.file(f"usr/share/ca-certificates/{name}.crt", PEM.rstrip())
    certificates.install(tree)
    links = {path: entry.target for path, entry in tree.below("etc/ssl/certs/") if entry.target}
    assert links == {
        "etc/ssl/certs/Root.pem": "/usr/share/ca-certificates/a/Root.crt",
        "etc/ssl/certs/Root_=2=__new.pem": "/usr/share/ca-certificates/b/Root (2), new.crt",
        f"etc/ssl/certs/{HASH}.0": "Root.pem",
        f"etc/ssl/certs/{HASH}.1": "Root_=2=__new.pem",
    }
    assert tree.text("etc/ssl/certs/ca-certificates.crt") == PEM + PEM
    listed = tree.text("etc/ca-certificates.conf").splitlines()
    assert listed[-2:] == ["a/Root.crt", "b/Root (2), new.crt"]

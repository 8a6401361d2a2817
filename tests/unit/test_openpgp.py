"""openpgp: what keyrings hold. The keys were made with gpg for these tests, which also told their fingerprints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.openpgp import KeyringError, dearmor, fingerprints

DATA = Path(__file__).with_name("data") / "openpgp"
FIRST, SECOND = (DATA / "first.asc").read_bytes(), (DATA / "second.asc").read_bytes()
FIRST_KEY, SECOND_KEY = "70784D4C222176657CA0458CCCAC31C458A455C6", "44604885FD846F699F18E034F67CC2E167E995A8"
SECRET = b"""\
-----BEGIN PGP PRIVATE KEY BLOCK-----

lFgEaw4GHhYJKwYBBAHaRw8BAQdAhDqMMTNbE7OQUtQFvy1SG4YG8kzPozsJ2kUo
9wS/hzgAAP4wABceoBk4KvKCjaNyZMZw8/JC6jE4qiiOZA0pKZfsJg50tClTVEFO
-----END PGP PRIVATE KEY BLOCK-----
"""


def body_of_first():
    """Return the body of the first packet, the public key itself."""
    return dearmor(FIRST)[2:][: dearmor(FIRST)[1]]


@pytest.mark.parametrize(
    ("armored", "keys"),
    [
        (FIRST, [FIRST_KEY]),
        (FIRST + b"\n" + SECOND, [FIRST_KEY, SECOND_KEY]),
        (b"\n" + FIRST.replace(b"\n", b"\r\n"), [FIRST_KEY]),
        (FIRST.replace(b"BLOCK-----\n\n", b"BLOCK-----\nVersion: GnuPG v1\nComment: x: y\n\n"), [FIRST_KEY]),
        (FIRST.replace(b"=hj/i\n", b""), [FIRST_KEY]),
    ],
)
def test_every_key_of_an_armored_file_is_found(armored, keys):
    assert fingerprints(dearmor(armored)) == keys


def test_a_binary_keyring_stays_as_it_is():
    assert dearmor(dearmor(FIRST)) == dearmor(FIRST)


@pytest.mark.parametrize(
    "length", [b"\x98\x33", b"\x99\x00\x33", b"\x9a\x00\x00\x00\x33", b"\xc6\x33", b"\xc6\xff\x00\x00\x00\x33"]
)
def test_every_form_of_a_length_is_read(length):
    assert fingerprints(length + body_of_first()) == [FIRST_KEY]


def test_a_length_of_two_octets_in_the_newer_format_is_read():
    padding = b"\xcd\xc1\x05" + b"x" * (192 + 256 + 5)
    assert fingerprints(padding + b"\xc6\x33" + body_of_first()) == [FIRST_KEY]


def test_subkeys_are_no_primary_keys():
    assert fingerprints(dearmor(FIRST) + b"\xce\x33" + body_of_first()) == [FIRST_KEY]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "no public key"),
        (b"<html>404 Not Found</html>", "neither an armored nor a binary"),
        (b"\x00\x00\x00\x20\x01\x01\x00\x02KBXf", "keybox"),
        (b"\xcd\x01x", "no public key"),
        (dearmor(FIRST)[:-1], "cut off"),
        (b"\xc6", "cut off"),
        (b"\xc6\xff\x00", "cut off"),
        (b"\xc6\xe5" + b"x" * 40, "in parts"),
        (b"\x9b" + b"x" * 40, "unknown length"),
        (b"\xc6\x02\x05x", "version 5"),
        (b"\xc6\x02\x06x", "version 6"),
        (b"\xc6\x02\x03x", "version 3"),
        (b"\xc6\x00", "version ?"),
        (dearmor(FIRST) + b"\xc6\x02\x06x", "version 6"),
    ],
)
def test_what_is_no_keyring_for_apt_is_refused_with_its_reason(data, fault):
    with pytest.raises(KeyringError) as error:
        fingerprints(data)
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("armored", "fault"),
    [
        (FIRST[:-20], "no complete key block"),
        (FIRST.replace(b"mDME", b"mD!E"), "damaged"),
        (FIRST.replace(b"mDME", b"mDM"), "damaged"),
        (FIRST.replace(b"KEY BLOCK", b"MESSAGE"), "no complete key block"),
    ],
)
def test_damaged_armor_is_refused(armored, fault):
    with pytest.raises(KeyringError, match=fault):
        dearmor(armored)


def test_a_secret_key_is_refused():
    with pytest.raises(KeyringError, match="secret key"):
        fingerprints(dearmor(SECRET))


@pytest.mark.skipif(not shutil.which("gpg"), reason="compares with gpg, which is not here")
def test_gpg_finds_the_same_keys(tmp_path):
    keyring = tmp_path / "keys.gpg"
    keyring.write_bytes(dearmor(FIRST + SECOND))
    command = ["gpg", "--homedir", str(tmp_path), "--batch", "--with-colons", "--show-keys", str(keyring)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:")] == fingerprints(keyring.read_bytes())

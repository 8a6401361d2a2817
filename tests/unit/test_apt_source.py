"""The module apt_source on a made-up root; a stand-in takes the place of apt-get, which prints what the real one printed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apt_source
import pytest
from ansible.module_utils import apt_sources
from ansible.module_utils.openpgp import dearmor

DATA = Path(__file__).with_name("data") / "openpgp"
FIRST, SECOND = (DATA / "first.asc").read_text(), (DATA / "second.asc").read_text()
FIRST_KEY, SECOND_KEY = "70784D4C222176657CA0458CCCAC31C458A455C6", "44604885FD846F699F18E034F67CC2E167E995A8"
URI = "https://mirror.example/cuda/debian12/x86_64"
SOURCES, KEYRING = "etc/apt/sources.list.d/groundwork-cuda.sources", "usr/share/keyrings/groundwork-cuda.gpg"
LIST = "mirror.example_cuda_debian12_x86%5f64_InRelease"
FOREIGN = "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://mirror.example/cuda/debian12/x86_64/ /\n"


class _Host:
    """A made-up root with a stand-in for apt-get: `refuses` is what it prints for the command of that name."""

    def __init__(self, root, run_module):
        self.root, self._run, self.calls, self.refuses, self.drafts = root, run_module, [], {}, ()

    def write(self, name, text, mode=0o644):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)

    def read(self, name):
        path = self.root / name
        return path.read_text() if path.exists() else None

    def files(self):
        """Return all files outside of /var with their contents and modes."""
        found = (path for path in self.root.rglob("*") if path.is_file() and "var" not in path.relative_to(self.root).parts)
        return {str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mode & 0o777) for path in found}

    def apt_get(self, argv, **_):
        command = argv[1]
        self.calls.append(command)
        if command == "update":
            draft = Path(next(word for word in argv if "sourcelist" in word).split("=")[1])
            self.drafts = draft.read_text(), draft.with_suffix(".gpg").read_bytes(), draft.parent.stat().st_mode & 0o777
            self.argv = argv
        said = self.refuses.get(command)
        if isinstance(said, list):
            said = said.pop(0) if said else None
        if command == "update" and not said:
            self.write(f"var/lib/apt/lists/{LIST}", "signed")
        return (100, "", said) if said else (0, "", "")

    def run(self, **options):
        key = {} if "key_url" in options else {"key": FIRST}
        return self._run(apt_source, **{"name": "cuda", "uris": [URI], "fingerprints": [FIRST_KEY], **key, **options})

    def remove(self, **options):
        return self._run(apt_source, name="cuda", state="absent", **options)


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    host = _Host(tmp_path / "root", run_module)
    monkeypatch.setattr(apt_source, "ROOT", host.root)
    monkeypatch.setattr(apt_source, "LOCKED_PAUSE", 0)
    monkeypatch.setattr(apt_source.AnsibleModule, "run_command", host.apt_get)
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    return host


def test_the_repository_is_declared_with_its_key_in_binary_form(host):
    result = host.run()
    assert host.read(SOURCES).splitlines()[1:] == [
        "Types: deb",
        f"URIs: {URI}",
        "Suites: /",
        "Signed-By: /usr/share/keyrings/groundwork-cuda.gpg",
    ]
    assert host.files()[KEYRING] == (dearmor(FIRST.encode()), 0o644)
    assert (result["changed"], result["refreshed"], result["fingerprints"]) == (True, True, [FIRST_KEY])
    assert (result["sources"], result["keyring"]) == (f"/{SOURCES}", f"/{KEYRING}")


def test_suites_with_components_and_architectures_are_declared(host):
    host.run(suites=["jammy", "jammy-updates"], components=["main", "restricted"], architectures=["amd64"])
    fields = dict(line.split(": ", 1) for line in host.read(SOURCES).splitlines()[1:])
    assert (fields["Suites"], fields["Components"], fields["Architectures"]) == (
        "jammy jammy-updates",
        "main restricted",
        "amd64",
    )


def test_apt_refreshes_this_repository_alone_and_before_anything_is_written(host):
    host.refuses["update"] = "E: no"
    host.run()
    text, keyring, mode = host.drafts
    assert f"URIs: {URI}\n" in text
    assert (keyring, mode) == (dearmor(FIRST.encode()), 0o755)
    assert {"Dir::Etc::sourceparts=-", "APT::Get::List-Cleanup=0", "APT::Update::Error-Mode=any"} < set(host.argv)
    assert host.files() == {}
    assert not Path(text.split("Signed-By: ")[1].strip()).exists(), "the drafts are still there"


def test_on_a_converged_host_nothing_is_run(host):
    host.run()
    before, host.calls = host.files(), []
    result = host.run()
    assert (result["changed"], result["diff"], host.calls, host.files()) == (False, [], [], before)


def test_check_mode_reports_what_the_run_does_and_does_nothing(host):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    before = host.files()
    planned = host.run(check=True)
    assert (host.files(), host.calls) == (before, [])
    assert planned == host.run()


def test_the_diff_names_keys_and_shows_the_source_file(host):
    keyring, sources, lists = host.run()["diff"]
    assert keyring["after"].splitlines()[0] == f"key {FIRST_KEY}"
    assert sources["after"] == host.read(SOURCES)
    assert (lists["before_header"], lists["after"]) == ("lists of apt", "fetched\n")


def test_missing_lists_are_fetched_again(host):
    host.run()
    (host.root / "var/lib/apt/lists" / LIST).unlink()
    host.calls = []
    assert host.run()["refreshed"]
    assert host.calls == ["update"]
    assert not host.run()["changed"]


@pytest.mark.parametrize(
    ("uri", "suite", "name"),
    [
        ("file:/srv/mirror/cuda", "/", "_srv_mirror_cuda_InRelease"),
        ("file:///srv/q/", "/", "_srv_q_Release"),
        ("file:/srv/q/x86_64~a+b=c,d@e^f", "t/", "_srv_q_x86%5f64%7ea+b%3dc,d%40e%5ef_t_InRelease"),
        ("https://nvidia.github.io/x/deb/$(ARCH)", "/", "nvidia.github.io_x_deb_amd64_InRelease"),
        ("http://127.0.0.1:8099/u", "jammy", "127.0.0.1:8099_u_dists_jammy_InRelease"),
    ],
)
def test_lists_are_known_by_the_names_that_apt_gives_them(tmp_path, uri, suite, name, monkeypatch):
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    repository = apt_sources.Repository("x", [uri], [suite], [], [])
    assert repository.lists_missing(tmp_path)
    (tmp_path / "var/lib/apt/lists").mkdir(parents=True)
    (tmp_path / "var/lib/apt/lists" / name).touch()
    assert not repository.lists_missing(tmp_path)


def test_another_mode_is_put_right(host):
    host.run()
    (host.root / KEYRING).chmod(0o600)
    assert host.run()["changed"]
    assert host.files()[KEYRING][1] == 0o644


def test_a_new_key_takes_the_place_of_the_old_one(host):
    host.run()
    result = host.run(key=SECOND, fingerprints=[FIRST_KEY, SECOND_KEY])
    assert (result["refreshed"], result["fingerprints"]) == (True, [SECOND_KEY])
    assert (result["diff"][0]["before"][:44], result["diff"][0]["after"][:44]) == (f"key {FIRST_KEY}", f"key {SECOND_KEY}")


# The key


def test_a_key_with_another_fingerprint_is_refused_by_both_names(host):
    message = host.run(key=SECOND)["msg"]
    assert f"`key` holds the key {SECOND_KEY}, and expected is {FIRST_KEY}" in message
    assert "`fingerprints`" in message
    assert (host.files(), host.calls) == ({}, [])


def test_a_second_key_in_the_file_is_not_let_in(host):
    assert f"holds the key {SECOND_KEY}, and expected" in host.run(key=FIRST + SECOND)["msg"]


def test_several_keys_are_accepted_if_all_are_expected(host):
    spaced = f"{SECOND_KEY[:20].lower()} {SECOND_KEY[20:]}"
    assert host.run(key=FIRST + SECOND, fingerprints=[FIRST_KEY, spaced])["fingerprints"] == [FIRST_KEY, SECOND_KEY]


def test_a_key_that_is_none_is_refused(host):
    assert "`key` is no usable key: it is neither" in host.run(key="<html>")["msg"]


@pytest.mark.parametrize("binary", [True, False])
def test_the_host_fetches_the_key_once(host, tmp_path, binary):
    file = tmp_path / "key.gpg"
    file.write_bytes(dearmor(FIRST.encode()) if binary else FIRST.encode())
    host.run(key_url=file.as_uri())
    file.unlink()
    assert not host.run(key_url=file.as_uri())["changed"]
    assert host.files()[KEYRING][0] == dearmor(FIRST.encode())


def test_a_new_checksum_fetches_the_key_again(host, tmp_path):
    (tmp_path / "key").write_text(FIRST)
    url = (tmp_path / "key").as_uri()
    host.run(key_url=url)
    (tmp_path / "key").write_text(SECOND)
    options = {"key_url": url, "fingerprints": [FIRST_KEY, SECOND_KEY]}
    assert not host.run(**options)["changed"]
    result = host.run(**options, key_sha256=hashlib.sha256(SECOND.encode()).hexdigest())
    assert result["fingerprints"] == [SECOND_KEY]


@pytest.mark.parametrize("present", [b"", b"\x98\x33damaged", dearmor(SECOND.encode())])
def test_a_keyring_that_is_not_good_is_fetched_again(host, tmp_path, present):
    (tmp_path / "key").write_text(FIRST)
    url = (tmp_path / "key").as_uri()
    host.run(key_url=url)
    host.write(KEYRING, present)
    assert host.run(key_url=url)["changed"]
    assert host.files()[KEYRING][0] == dearmor(FIRST.encode())


def test_a_key_with_another_checksum_is_refused(host, tmp_path):
    (tmp_path / "key").write_text(FIRST)
    message = host.run(key_url=(tmp_path / "key").as_uri(), key_sha256="0" * 64)["msg"]
    assert f"has the checksum {hashlib.sha256(FIRST.encode()).hexdigest()}, and expected is 000" in message
    assert host.files() == {}


def test_a_key_that_is_not_there_is_refused_with_the_other_way(host, tmp_path):
    message = host.run(key_url=(tmp_path / "none").as_uri())["msg"]
    assert "The key can't be fetched from file:///" in message
    assert "give its text as `key`" in message


# What others declared


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cuda.list", FOREIGN),
        ("cuda.list", f"# a comment\n\n{FOREIGN}deb-src {URI} /\n"),
        ("cuda.list", f"deb [arch=amd64] {URI} /"),
        ("cuda.sources", f"Enabled:\nTypes: deb\nURIs: http://x {URI}\nSuites: x /\n"),
        ("cuda.sources", f"Types: deb\nuris:\n {URI}/\nSuites: /\nSigned-By:\n -----BEGIN PGP\n"),
        (
            "cuda.sources",
            f"# first\nTypes: deb\nURIs: {URI}\n# why\nSuites: /\n\n\nEnabled: no\nURIs: http://x\nSuites: /\n",
        ),
    ],
)
def test_a_file_that_declares_the_same_repository_is_renamed_and_comes_back(host, name, text):
    host.write(f"etc/apt/sources.list.d/{name}", text, mode=0o600)
    before = host.files()
    notes = host.run()["notes"]
    kept = f"etc/apt/sources.list.d/{name}.groundwork-cuda.disabled"
    assert notes == [f"/etc/apt/sources.list.d/{name} is now /{kept}"]
    assert host.files()[kept] == (text.encode(), 0o600)
    assert host.read(f"etc/apt/sources.list.d/{name}") is None
    host.remove()
    assert host.files() == before


def test_in_a_file_with_other_entries_only_the_lines_are_marked_and_come_back(host):
    host.write("etc/apt/sources.list", f"deb http://debian.example.com/debian bookworm main\n{FOREIGN}# end", mode=0o640)
    host.write(
        "etc/apt/sources.list.d/mixed.sources",
        f"Types: deb\nURIs: {URI}\nSuites: /\n\nTypes: deb\nURIs: http://other.example\nSuites: /\n",
    )
    before = host.files()
    notes = host.run()["notes"]
    assert notes[0] == "/etc/apt/sources.list: its entries of this repository were disabled"
    assert host.read("etc/apt/sources.list").splitlines() == [
        "deb http://debian.example.com/debian bookworm main",
        f"#groundwork-cuda# {FOREIGN.strip()}",
        "# end",
    ]
    assert host.files()["etc/apt/sources.list"][1] == 0o640
    assert host.read("etc/apt/sources.list.d/mixed.sources").splitlines() == [
        "#groundwork-cuda# Types: deb",
        f"#groundwork-cuda# URIs: {URI}",
        "#groundwork-cuda# Suites: /",
        "",
        "Types: deb",
        "URIs: http://other.example",
        "Suites: /",
    ]
    assert not host.run()["changed"]
    host.remove()
    assert host.files() == before


def test_the_main_list_is_never_renamed(host):
    host.write("etc/apt/sources.list", FOREIGN)
    host.run()
    assert host.read("etc/apt/sources.list") == f"#groundwork-cuda# {FOREIGN}"


def test_addresses_that_fit_a_pattern_are_disabled_too(host):
    line = "deb https://nvidia.github.io/libnvidia-container/ubuntu22.04/$(ARCH) /\n"
    host.write("etc/apt/sources.list.d/nvidia-docker.list", line)
    assert host.run()["notes"] == []
    assert len(host.run(conflicts=["https://nvidia.github.io/libnvidia-container/*"])["notes"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"# {FOREIGN}",
        f"deb {URI} jammy main\n",
        f"deb {URI}/more /\n",
        "deb https://mirror.example/cuda/debian12/sbsa /\n",
        "deb cdrom:[Debian 12]/ bookworm main\n",
        "not a line of apt\n",
        "deb\n",
    ],
)
def test_other_declarations_are_left_alone(host, text):
    host.write("etc/apt/sources.list.d/other.list", text)
    assert host.run()["notes"] == []
    assert host.read("etc/apt/sources.list.d/other.list") == text


def test_the_architecture_in_an_address_is_the_same_as_its_variable(host):
    host.write("etc/apt/sources.list.d/ctk.list", "deb https://x.example/deb/amd64 /\n")
    assert len(host.run(uris=["https://x.example/deb/$(ARCH)"])["notes"]) == 1


def test_files_with_bytes_that_are_no_text_keep_them(host):
    text = b"# caf\xe9\n" + FOREIGN.encode()
    host.write("etc/apt/sources.list", text)
    host.run()
    host.remove()
    assert host.files()["etc/apt/sources.list"][0] == text


def test_a_file_that_came_again_is_not_renamed_over_the_first_one(host):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    host.run()
    host.write("etc/apt/sources.list.d/cuda.list", f"# new\n{FOREIGN}")
    before = host.files()
    message = host.run()["msg"]
    assert "/etc/apt/sources.list.d/cuda.list is to become /etc/apt/sources.list.d/cuda.list.groundwork-cuda.disabled" in message
    assert host.files() == before


def test_a_file_that_came_again_as_it_was_is_renamed_again(host):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    host.run()
    before = host.files()
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    assert host.run()["changed"]
    assert host.files() == before


def test_a_run_that_was_interrupted_before_the_source_file_is_completed(host):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    host.run()
    (host.root / SOURCES).unlink()
    result = host.run()
    assert [step["before_header"] for step in result["diff"]] == [f"/{SOURCES}", "lists of apt"]


# Obsolete keys


def test_a_file_with_an_obsolete_key_alone_is_renamed_and_comes_back(host):
    host.write("etc/apt/trusted.gpg.d/cuda.gpg", dearmor(SECOND.encode()))
    host.write("etc/apt/trusted.gpg.d/debian.asc", FIRST)
    before = host.files()
    host.run(obsolete_keys=[SECOND_KEY])
    assert "etc/apt/trusted.gpg.d/cuda.gpg" not in host.files()
    assert host.read("etc/apt/trusted.gpg.d/debian.asc") == FIRST
    host.remove()
    assert host.files() == before


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("trusted.gpg", dearmor(SECOND.encode())),
        ("trusted.gpg", b"\x00\x00\x00\x20\x01\x01\x00\x02KBXf" + bytes.fromhex(SECOND_KEY)),
        ("trusted.gpg.d/both.gpg", dearmor((FIRST + SECOND).encode())),
    ],
)
def test_an_obsolete_key_among_others_is_reported_with_the_command_that_removes_it(host, name, data):
    host.write(f"etc/apt/{name}", data)
    (note,) = host.run(obsolete_keys=[SECOND_KEY])["notes"]
    assert note.startswith(f"/etc/apt/{name} holds the obsolete key {SECOND_KEY}")
    assert f"--keyring /etc/apt/{name} --batch --yes --delete-keys {SECOND_KEY}`" in note
    assert host.files()[f"etc/apt/{name}"][0] == data
    assert not host.run(obsolete_keys=[SECOND_KEY])["changed"]


# Removal


def test_absent_removes_the_files_once(host):
    host.run()
    assert host.remove(check=True)["changed"]
    assert SOURCES in host.files()
    result = host.remove()
    assert (result["changed"], result["refreshed"], host.files()) == (True, False, {})
    assert not host.remove()["changed"]


def test_absent_keeps_what_has_a_successor(host):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    host.run()
    host.write("etc/apt/sources.list.d/cuda.list", "# new\n")
    kept = "etc/apt/sources.list.d/cuda.list.groundwork-cuda.disabled"
    assert host.remove()["notes"] == [
        f"/{kept} stays, since there is a new /etc/apt/sources.list.d/cuda.list; remove the one that you do not need"
    ]
    assert host.read(kept) == FOREIGN


def test_absent_leaves_what_another_repository_disabled(host):
    host.write("etc/apt/sources.list.d/x.list.groundwork-cuda-2.disabled", FOREIGN)
    host.write("etc/apt/sources.list", f"#groundwork-cuda-2# {FOREIGN}")
    before = host.files()
    assert not host.remove()["changed"]
    assert host.files() == before


# Refusals

SHA1 = (
    "W: OpenPGP signature verification failed: https://x  InRelease: Sub-process /usr/bin/sqv returned an error code (1), error "
    "message is: Signing key on EB693B3035CD5710E231E123A4B469963BF863CC is not bound:            No binding signature at time "
    "2026-11-30T23:18:32Z   because: Policy rejected non-revocation signature (PositiveCertification) requiring second pre-image "
    "resistance   because: SHA1 is not considered secure since 2026-02-01T00:00:00Z\nE: The repository 'x' is not signed."
)
REFUSALS = [
    (
        "W: GPG error: https://x  InRelease: The following signatures couldn't be verified because the public key is not "
        "available: NO_PUBKEY A4B469963BF863CC\nE: The repository 'https://x  InRelease' is not signed.",
        ["signed by the key A4B469963BF863CC", FIRST_KEY, "`fingerprints`"],
    ),
    (
        "W: OpenPGP signature verification failed: https://x  InRelease: Sub-process /usr/bin/sqv returned an error code (1), "
        "error message is: Missing key 02182E60104FCDC26EAE1B8597A5D4CB8793F200, which is needed to verify signature.",
        ["signed by the key 02182E60104FCDC26EAE1B8597A5D4CB8793F200", FIRST_KEY],
    ),
    (SHA1, ["the key EB693B3035CD5710E231E123A4B469963BF863CC", "SHA-1", "debian13", "8793F200"]),
    (SHA1.replace("   because", "\n because"), ["the key EB693B3035CD5710E231E123A4B469963BF863CC", "SHA-1"]),
    (
        "Err:2 http://x  Release\n  404  Not Found [IP: 127.0.0.1 80]\nE: The repository 'x' does not have a Release file.",
        ["404", "x86_64 and sbsa"],
    ),
    ("E: The repository 'file:/srv/x  Release' does not have a Release file.", ["nothing at that address", "mirror is mounted"]),
    ("E: Failed to fetch http://x/InRelease  Could not resolve 'x'", ["Could not resolve 'x'", "proxy"]),
    ("E: The repository 'http://x  Release' is not signed.", ["no signature", "unsigned repositories are not used"]),
    ("E: Release file for http://x is not valid yet (invalid for another 3h)", ["clock", "timedatectl"]),
    (
        "W: GPG error: x: The following signatures were invalid: EXPKEYSIG DDCAE044F796ECB0 NVIDIA",
        ["DDCAE044F796ECB0", "expired"],
    ),
    ("E: Repository 'x' changed its 'Origin' value", ["apt says: E: Repository 'x' changed its 'Origin' value"]),
    ("apt-get: not found", ["apt says: apt-get: not found"]),
]


@pytest.mark.parametrize(("said", "parts"), REFUSALS)
def test_a_refusal_of_apt_changes_nothing_and_is_told_with_its_remedy(host, said, parts):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    before = host.files()
    host.refuses["update"] = said
    result = host.run()
    assert result["msg"].startswith(f"Nothing was changed. apt refuses {URI}: ")
    assert [part for part in parts if part not in result["msg"]] == []
    assert (host.files(), result["stderr"]) == (before, said)


def test_a_refresh_waits_while_another_apt_works(host):
    host.refuses["update"] = ["E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"] * 2
    assert host.run()["changed"]
    assert host.calls == ["update"] * 3 + ["indextargets"]


def test_everything_is_put_back_if_apt_cannot_read_its_sources_afterwards(host):
    host.run()
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    host.write("etc/apt/sources.list", f"{FOREIGN}deb http://debian.example.com/debian bookworm main\n", mode=0o640)
    before = host.files()
    host.refuses["indextargets"] = "E: Conflicting values set for option Signed-By regarding source x: a != b"
    message = host.run(key=SECOND, fingerprints=[SECOND_KEY])["msg"]
    assert message.startswith("Everything was put back. As planned, apt can't read its sources: ")
    assert "with another Signed-By" in message
    assert host.files() == before


def test_everything_is_put_back_if_a_file_cannot_be_written(host, monkeypatch):
    host.write("etc/apt/sources.list.d/cuda.list", FOREIGN)
    before = host.files()
    write = apt_source.files.replace

    def full(path, data):
        if path.name.startswith("groundwork-cuda.sources"):
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(apt_source.files, "replace", full)
    assert "No space left on device" in host.run()["msg"]
    assert host.files() == before


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"name": "Cuda repo"}, "name: 'Cuda repo' becomes part of file names"),
        ({"name": "../x"}, "name: '../x' becomes part of file names"),
        ({"fingerprints": ["3BF863CC"]}, "'3BF863CC' is no fingerprint of 40 hexadecimal digits"),
        ({"obsolete_keys": ["7FA2AF80"]}, "'7FA2AF80' is no fingerprint of 40 hexadecimal digits"),
        ({"uris": ["mirror.example/cuda"]}, "'mirror.example/cuda' is no address"),
        ({"uris": ["https://mirror.example/a\nTrusted: yes"]}, "is not one word"),
        ({"uris": ["https://me:secret@mirror.example/a"]}, "put it into /etc/apt/auth.conf.d"),
        ({"suites": []}, "each needs at least one entry"),
        ({"components": ["main"]}, "the suite '/' is a folder"),
        ({"suites": ["jammy"]}, "the suite 'jammy' needs some"),
    ],
)
def test_a_wrong_declaration_is_refused_before_anything_is_done(host, options, fault):
    message = host.run(**options)["msg"]
    assert message.startswith("Nothing was changed. Correct first: ")
    assert fault in message
    assert (host.files(), host.calls) == ({}, [])


def test_all_faults_are_reported_together(host):
    message = host.run(name="X", fingerprints=["1"], suites=["jammy"])["msg"]
    assert all(part in message for part in ("name: 'X'", "'1' is no fingerprint", "'jammy' needs some"))


@pytest.mark.parametrize("options", [{"key": None}, {"key_url": None}, {"fingerprints": []}])
def test_a_repository_without_a_known_key_is_refused(host, options):
    assert "nobody knows who may sign" in host.run(**options)["msg"]
    assert (host.files(), host.calls) == ({}, [])


@pytest.mark.parametrize("options", [{"key_url": "file:///x"}, {"key_sha256": "0"}])
def test_options_that_do_not_go_together_are_refused(host, options):
    assert "mutually exclusive: key|" in host.run(**options, key=FIRST)["msg"]
    assert host.files() == {}

"""The connection to lab containers, with a stand-in for podman on PATH."""

from pathlib import Path

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader

PLUGINS = Path(__file__).parents[2] / "lab/connection_plugins"
STAND_IN = """#!/bin/sh
echo "$@" >> {calls}
[ "$1" = exec ] && cat
exit {code}
"""


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """Return a connection to a container, and podman's recorded calls."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def make(code=0):
        podman = tmp_path / "podman"
        podman.write_text(STAND_IN.format(calls=tmp_path / "calls", code=code))
        podman.chmod(0o755)
        connection_loader.add_directory(str(PLUGINS))
        connection = connection_loader.get("lab_podman", PlayContext(), "/dev/null")
        connection.set_options(direct={"remote_addr": "lab-gpu1"})
        return connection, lambda: (tmp_path / "calls").read_text().splitlines()

    return make


def test_a_command_is_one_call_and_gets_its_standard_input(connect):
    connection, calls = connect()
    assert connection.has_pipelining
    assert connection.exec_command("/bin/sh -c 'echo  two words'", in_data=b"module") == (0, b"module", b"")
    assert calls() == ["exec --interactive lab-gpu1 /bin/sh -c echo  two words"]


def test_the_exit_code_of_a_command_is_its_own(connect):
    connection, _ = connect(code=3)
    assert connection.exec_command("false")[0] == 3


def test_a_container_that_does_not_run_is_unreachable(connect):
    connection, _ = connect(code=125)
    with pytest.raises(AnsibleConnectionFailure, match="container lab-gpu1"):
        connection.exec_command("true")


def test_files_go_in_and_come_out(connect):
    connection, calls = connect()
    connection.put_file("/tmp/in", "/etc/in")  # noqa: S108 -- a name for a stand-in
    connection.fetch_file("/etc/out", "/tmp/out")  # noqa: S108
    assert calls() == ["cp /tmp/in lab-gpu1:/etc/in", "cp lab-gpu1:/etc/out /tmp/out"]


def test_a_failed_copy_names_both_ends(connect):
    connection, _ = connect(code=1)
    with pytest.raises(AnsibleConnectionFailure, match="/etc/in"):
        connection.put_file("here", "/etc/in")

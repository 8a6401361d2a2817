"""lab/machines.py: what it makes of the machine it runs on, and how it finds its own processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("lab_machines", Path(__file__).parents[2] / "lab/machines.py")
lab = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lab)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setattr(lab, "MACHINES", tmp_path / "vm")
    monkeypatch.setattr(lab, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(lab, "SSH_CONFIG", tmp_path / "vm/ssh_config")
    for folder in ("vm", "images"):
        (tmp_path / folder).mkdir()
    return tmp_path


def qemu(program):
    """A stand-in for QEMU: a shell program that finds the path of the console's log in $LOG."""

    def argv(_accel, log, _more):
        return ["sh", "-c", f"LOG={log}; {program}"]

    return argv


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("program", "usable"),
    [
        ("echo groundwork > $LOG; exec sleep 60", True),
        ("exit 1", False),  # as QEMU does that can't open the device
        ("kill -ABRT $$", False),  # as QEMU does that can't set a processor's register
    ],
)
def test_kvm_is_used_only_if_a_boot_loader_greets_through_it(monkeypatch, program, usable):
    monkeypatch.setattr(lab, "qemu_argv", qemu(program))
    assert lab.kvm_greets() is usable


@pytest.mark.usefixtures("cache")
def test_a_machine_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(lab, "qemu_argv", qemu("exec sleep 60"))
    monkeypatch.setattr(lab, "GREETING_SECONDS", 0.3)
    assert lab.kvm_greets() is False


@pytest.mark.usefixtures("cache")
def test_the_accelerator_is_tried_once_for_a_kernel_and_a_qemu(monkeypatch):
    tries = []
    monkeypatch.setattr(lab, "run", lambda *_: "QEMU emulator version 7.2\n")
    monkeypatch.setattr(lab.os, "access", lambda *_: True)
    monkeypatch.setattr(lab, "kvm_greets", lambda: bool(tries.append(1)) or True)
    assert [lab.accelerator(), lab.accelerator(), len(tries)] == ["kvm", "kvm", 1]


@pytest.mark.usefixtures("cache")
def test_a_user_without_the_device_emulates(monkeypatch):
    monkeypatch.setattr(lab, "run", lambda *_: "QEMU emulator version 7.2\n")
    monkeypatch.setattr(lab.os, "access", lambda *_: False)
    assert lab.accelerator() == "tcg"


def test_keys_are_made_once_and_the_host_key_is_known_to_ssh(cache):
    key, host_key = lab.make_keys()
    before = key.read_text()
    assert lab.make_keys() == (key, host_key)
    assert key.read_text() == before
    assert key.stat().st_mode & 0o777 == 0o600
    public = Path(f"{host_key}.pub").read_text().split()[1]
    assert (cache / "vm/known_hosts").read_text() == f"groundwork-lab ssh-ed25519 {public}\n"


def test_ssh_understands_the_settings_of_a_machine(cache):
    lab.make_keys()
    (cache / "vm/node-1").mkdir()
    (cache / "vm/node-1/ssh.conf").write_text(lab.ssh_config("node-1", 2201))
    shown = subprocess.run(["ssh", "-G", "-F", lab.SSH_CONFIG, "node-1"], capture_output=True, text=True, check=True).stdout
    settings = dict(line.split(" ", 1) for line in shown.splitlines())
    assert {name: settings[name] for name in ("hostname", "port", "user", "stricthostkeychecking", "hostkeyalias")} == {
        "hostname": "127.0.0.1",
        "port": "2201",
        "user": "root",
        "stricthostkeychecking": "true",
        "hostkeyalias": "groundwork-lab",
    }


def test_a_process_is_a_machine_only_by_its_name(cache):
    """A process id that was used again must not be killed."""
    (cache / "vm/node-1").mkdir()
    pid = cache / "vm/node-1/pid"
    assert lab.process_of("node-1") is None
    argv = [sys.executable, "-c", "print('up', flush=True); input()", "-name", "node-1"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # until then it may have no command line yet
        pid.write_text(f"{process.pid}\n")
        assert lab.process_of("node-1") == process.pid
        (cache / "vm/node-2").mkdir()
        (cache / "vm/node-2/pid").write_text(f"{process.pid}\n")
        assert lab.process_of("node-2") is None
        lab.stop("node-1")
        assert process.wait(timeout=5) == -9
    assert not (cache / "vm/node-1").exists()


def test_machines_that_start_together_make_the_boot_disk_once(cache, monkeypatch):
    calls = []

    def mkimage(*argv):
        calls.append(argv[0])
        time.sleep(0.2)
        output = next(word for word in argv if word.startswith("--output="))
        Path(output.removeprefix("--output=")).write_bytes(b"core")

    monkeypatch.setattr(lab, "run", mkimage)
    monkeypatch.setattr(lab, "BOOT_SECTOR", cache / "boot.img")
    (cache / "boot.img").write_bytes(b"boot")
    with ThreadPoolExecutor() as pool:
        disks = [future.result() for future in [pool.submit(lab.grub_disk) for _ in range(3)]]
    assert calls == ["grub-mkimage"]
    assert {disk.read_bytes()[:8] for disk in disks} == {b"bootcore"}


def test_a_running_machine_of_another_release_is_not_taken_for_the_wanted_one(cache, monkeypatch):
    (cache / "vm/node-1").mkdir()
    (cache / "vm/node-1/release").write_text("trixie")
    monkeypatch.setattr(lab, "process_of", lambda _: 1)
    with pytest.raises(lab.LabError, match=r"node-1 runs and is no bookworm; stop it first"):
        lab.start("node-1", "bookworm")


def test_all_machines_are_removed_and_nothing_else(cache):
    lab.make_keys()
    for name in ("node-1", "node-2"):
        (cache / "vm" / name).mkdir()
        (cache / "vm" / name / "ssh.conf").write_text("")
    lab.remove()
    assert [path.name for path in (cache / "vm").iterdir() if path.is_dir()] == []
    assert (cache / "vm/key").exists()


@pytest.mark.usefixtures("cache")
def test_the_name_of_an_image_changes_with_what_it_is_made_from(monkeypatch):
    keys = lab.make_keys()
    monkeypatch.setattr(lab, "grub_disk", lambda: Path("grub.img"))
    monkeypatch.setattr(lab, "run", lambda *_: "QEMU emulator version 7.2\n")
    monkeypatch.setattr(lab, "debian_sources", lambda release: (f"deb http://mirror.example.com/debian {release} main",))
    names = [lab.image_folder("bookworm", "tcg", keys), lab.image_folder("trixie", "tcg", keys)]
    names.append(lab.image_folder("bookworm", "kvm", keys))
    monkeypatch.setattr(lab, "IMAGE_PACKAGES", (*lab.IMAGE_PACKAGES, "htop"))
    names.append(lab.image_folder("bookworm", "tcg", keys))
    Path(f"{keys[0]}.pub").write_text("ssh-ed25519 another")
    names.append(lab.image_folder("bookworm", "tcg", keys))
    assert len(set(names)) == len(names)


def test_the_partition_table_leaves_room_for_the_root_file_system():
    assert f"start={lab.ROOT_OFFSET_MIB}MiB, size={lab.ROOT_MIB}MiB" in lab.PARTITIONS
    assert lab.ROOT_OFFSET_MIB + lab.ROOT_MIB + 3 * 32 < lab.DISK_MIB


@pytest.mark.parametrize("name", ["", "Node", "a_b", "../x", "-x", "x" * 64])
def test_a_machine_needs_a_host_name(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["machines.py", "start", name])
    with pytest.raises(SystemExit):
        lab.main()
    assert "is no host name" in capsys.readouterr().err or name.startswith("-")


def test_an_image_needs_root_and_says_so(cache, monkeypatch, capsys):
    monkeypatch.setattr(lab, "install_packages", lambda _: None)
    monkeypatch.setattr(lab, "accelerator", lambda: "tcg")
    monkeypatch.setattr(lab, "image_folder", lambda *_: cache / "images/vm-bookworm-1")
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["machines.py", "prepare", "bookworm"])
    assert lab.main() == 1
    assert "takes root" in capsys.readouterr().err

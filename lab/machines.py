#!/usr/bin/env python3
"""Lab hosts that are virtual machines: for what containers can't show, since they share the kernel of this machine.

A machine boots its own kernel and initramfs through GRUB, from a disk made of Debian packages alone. An image is built once
for each release: installed, booted, and frozen with its memory. A machine is a copy-on-write layer over that disk and goes
on from the frozen memory: it answers within seconds, also where QEMU must emulate the processor. ssh reaches the machines
on loopback by their names: `ssh -F <cache>/vm/ssh_config NAME`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from prepare import (
    CACHE,
    IMAGE_EXCLUDES,
    RELEASES,
    LabError,
    bootstrap,
    debian_sources,
    digest,
    install_packages,
    locked,
    run,
    say,
)

MACHINES = CACHE / "vm"
IMAGES = CACHE / "images"
SSH_CONFIG = MACHINES / "ssh_config"

BOOT_SECTOR = Path("/usr/lib/grub/i386-pc/boot.img")

# program that proves it is there -> package that brings it (the same names on Debian and Ubuntu)
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "sfdisk": "fdisk",
    "grub-mkimage": "grub-common",
    str(BOOT_SECTOR): "grub-pc-bin",
    "ssh": "openssh-client",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}

# A server installation of Debian with the full kernel: the one for clouds has no nouveau.
IMAGE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "python3", "python3-apt", "sudo", "ca-certificates", "iproute2", "procps",
    "kmod", "apt-utils", "openssh-server", "linux-image-amd64", "initramfs-tools", "zstd", "grub2-common", "fdisk", "e2fsprogs",
    # For the scenario swap_removal, which unmasks them: to install them takes an emulated processor more than a minute.
    "zram-tools", "systemd-zram-generator", "dphys-swapfile",
)  # fmt: skip
SWAP_UNITS = ("zramswap.service", "dphys-swapfile.service")
SWAP_GENERATOR = "/etc/systemd/system-generators/zram-generator"
# What nothing in a test needs and an emulated processor would be busy with.
IMAGE_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "getty@tty1.service", "grub-common.service", "serial-getty@ttyS0.service", "systemd-binfmt.service",
)  # fmt: skip
LABEL = "groundwork"
ROOT_OFFSET_MIB = 1
ROOT_MIB = 3500
DISK_MIB = 4096
MEMORY_MIB = 1024
# The partitions after the first are free for a scenario to make something of.
PARTITIONS = f"label: gpt\nstart={ROOT_OFFSET_MIB}MiB, size={ROOT_MIB}MiB, type=linux\n" + "size=32MiB, type=linux\n" * 3
IMAGE_FILES = {
    "/etc/hostname": "lab\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    # QEMU's user network never changes; a network manager would take a third of the boot.
    "/etc/systemd/system/lab-network.service": """\
[Unit]
Description=Network of the lab
DefaultDependencies=no
Before=network.target shutdown.target
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link set eth0 up
ExecStart=ip address add 10.0.2.15/24 dev eth0
ExecStart=ip route add default via 10.0.2.2
[Install]
WantedBy=multi-user.target
""",
    "/etc/resolv.conf": "nameserver 10.0.2.3\n",
    "/etc/ssh/sshd_config.d/lab.conf": "HostKey /etc/ssh/ssh_host_ed25519_key\nUseDNS no\n",
    "/etc/default/grub.d/lab.cfg": 'GRUB_TIMEOUT=0\nGRUB_TERMINAL=serial\nGRUB_CMDLINE_LINUX="console=ttyS0 net.ifnames=0"\n',
}
# A list of modules in place of all drivers makes an initramfs of 6 MB: a sixth of the time under emulation.
INITRAMFS_FILES = {
    "/etc/initramfs-tools/conf.d/lab": "MODULES=list\n",
    "/usr/share/initramfs-tools/modules.d/lab": "virtio_pci\nvirtio_blk\nvirtio_net\next4\n",
}
GRUB_MODULES = (
    "all_video", "biosdisk", "configfile", "echo", "ext2", "gzio", "linux", "loadenv", "minicmd", "normal", "part_gpt", "search",
    "search_fs_uuid", "search_label", "serial", "terminal", "test",
)  # fmt: skip
GRUB_EARLY = f"""\
serial
terminal_output serial
echo {LABEL}
search --set=root --label {LABEL}
set prefix=($root)/boot/grub
configfile ($root)/boot/grub/grub.cfg
"""
# Until update-grub writes the real one, at the first boot.
GRUB_FIRST = f"linux /vmlinuz root=LABEL={LABEL} ro console=ttyS0 net.ifnames=0\ninitrd /initrd.img\nboot\n"
BOOT_SECONDS = 900
GREETING_SECONDS = 10.0
SSH_FAILED = 255  # the exit code of ssh's own failures; others are the command's


def make_keys() -> tuple[Path, Path]:
    """Return the key that opens the machines and the one that proves them; both are made for this lab."""
    keys = (MACHINES / "key", MACHINES / "host_key")
    with locked(MACHINES / "lock"):
        for key in keys:
            if not key.exists():
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "groundwork-lab", "-f", str(key))
        public = " ".join((MACHINES / "host_key.pub").read_text().split()[:2])
        (MACHINES / "known_hosts").write_text(f"groundwork-lab {public}\n")
        SSH_CONFIG.write_text(f"Include {MACHINES}/*/ssh.conf\n")
    return keys


def ssh_config(name: str, port: int) -> str:
    """Return what ssh needs to know about one machine."""
    return f"""\
Host {name}
  HostName 127.0.0.1
  Port {port}
  User root
  IdentityFile {MACHINES}/key
  IdentitiesOnly yes
  UserKnownHostsFile {MACHINES}/known_hosts
  HostKeyAlias groundwork-lab
  StrictHostKeyChecking yes
  LogLevel ERROR
  # A handshake takes an emulated processor a second: one for all.
  ControlMaster auto
  ControlPath {MACHINES}/{name}/mux
  ControlPersist 120
  ServerAliveInterval 5
  ServerAliveCountMax 6
"""


def ssh_argv(name: str, command: str) -> list[str]:
    """Return the command line of one attempt to run a command on a machine."""
    return ["ssh", "-F", str(SSH_CONFIG), "-o", "ConnectTimeout=5", "-o", "BatchMode=yes", name, command]


def ssh(name: str, command: str, wait: float = 60) -> str:
    """Run a command on a machine, trying until it answers; LabError if it does not."""
    argv = ssh_argv(name, command)
    end = time.monotonic() + wait
    while True:
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return result.stdout
        if result.returncode != SSH_FAILED:
            raise LabError(f"`{command}` failed on {name}: {(result.stderr or result.stdout).strip()}")
        if time.monotonic() > end:
            log = MACHINES / name / "serial.log"
            raise LabError(f"{name} does not answer within {wait:.0f} s: {result.stderr.strip()}; its console: {log}")
        time.sleep(0.3)


def grub_disk() -> Path:
    """Return a disk of one sector and GRUB, which boots what the other disk's grub.cfg says."""
    disk = IMAGES / f"grub-{digest(GRUB_EARLY, *GRUB_MODULES)}.img"
    with locked(IMAGES / "grub.lock"):
        if not disk.exists():
            early, core, part = (disk.with_suffix(suffix) for suffix in (".cfg", ".core", ".part"))
            early.write_text(GRUB_EARLY)
            run("grub-mkimage", "--format=i386-pc", "--prefix=/boot/grub", f"--config={early}", f"--output={core}", *GRUB_MODULES)
            boot = BOOT_SECTOR.read_bytes() + core.read_bytes()
            part.write_bytes(boot.ljust(1024**2, b"\0"))
            part.rename(disk)
    return disk


def accelerator() -> str:
    """Tell whether QEMU can use this machine's virtualization (kvm) or must emulate (tcg).

    A device file proves nothing: nested virtualization often opens and then hangs. So GRUB has to greet through it.
    """
    version = run("qemu-system-x86_64", "--version").splitlines()[0]
    answer = MACHINES / f"accelerator-{digest(version, platform.release())}"
    with locked(MACHINES / "lock"):
        if not answer.exists():
            answer.write_text("kvm" if os.access("/dev/kvm", os.R_OK | os.W_OK) and kvm_greets() else "tcg")
            say(f"QEMU uses {answer.read_text()} on this machine")
    return answer.read_text()


def kvm_greets() -> bool:
    """Tell whether GRUB comes up under KVM within a few seconds."""
    log = MACHINES / "kvm.log"
    argv = qemu_argv("kvm", log, [])
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + GREETING_SECONDS
        while time.monotonic() < end and process.poll() is None and LABEL not in text(log):
            time.sleep(0.1)
        process.kill()
    return LABEL in text(log)


def text(path: Path) -> str:
    """Return what a log holds so far."""
    return path.read_text(errors="replace") if path.exists() else ""


def qemu_argv(accel: str, log: Path, more: list[str]) -> list[str]:
    """Return the command line of a machine; frozen memory goes on only on a machine of the same make."""
    emulated = ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]
    return [
        # No screen, no CD, no SATA: each device is a driver that an emulated processor loads at each boot.
        "qemu-system-x86_64", "-nodefaults", "-machine", "q35,sata=off,smbus=off",
        *(["-accel", "kvm", "-cpu", "host"] if accel == "kvm" else emulated),
        # With two, an emulated clock is not trusted and everything takes longer.
        "-smp", "1", "-m", str(MEMORY_MIB),
        "-display", "none", "-serial", f"file:{log}",
        "-drive", f"file={grub_disk()},if=none,id=grub,format=raw,readonly=on",
        "-device", "virtio-blk-pci,drive=grub,bootindex=0,addr=6",
        "-device", "virtio-rng-pci,addr=4",
        *more,
    ]  # fmt: skip


def launch(name: str, accel: str, disk: Path, more: list[str]) -> None:
    """Start QEMU for a machine whose disk is there, on a free port of loopback, and write its ssh settings."""
    folder = MACHINES / name
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "ssh.conf").write_text(ssh_config(name, port))
    run(
        *qemu_argv(accel, folder / "serial.log", [
            "-drive", f"file={disk},if=none,id=disk,format=qcow2,cache=unsafe,discard=unmap",
            "-device", "virtio-blk-pci,drive=disk,addr=3",
            "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22",
            "-device", "virtio-net-pci,netdev=net,addr=2",
            "-monitor", f"unix:{folder}/monitor,server,nowait",
            "-name", name, "-pidfile", f"{folder}/pid", "-daemonize",
            *more,
        ]),
    )  # fmt: skip


def monitor(name: str, command: str) -> str:
    """Give QEMU's monitor one command and return its answer."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(MACHINES / name / "monitor"))
        for line in ("", command):
            if line:
                connection.sendall(f"{line}\n".encode())
            answer = b""
            while not answer.endswith(b"(qemu) "):
                data = connection.recv(4096)
                if not data:
                    return answer.decode()
                answer += data
    return answer.decode()


def process_of(name: str) -> int | None:
    """Return the process id of a machine, or None if it does not run."""
    try:
        pid = int((MACHINES / name / "pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"-name" in command and command[command.index(b"-name") + 1] == name.encode() else None


def make_tree(release: str, tree: Path, keys: tuple[Path, Path]) -> None:
    """Install Debian into a directory."""
    options = []
    for path, content in INITRAMFS_FILES.items():  # before the kernel comes and makes its initramfs
        lines = " ".join(shlex.quote(line) for line in content.splitlines())
        options.append(f'--essential-hook=mkdir -p "$1{Path(path).parent}"; printf "%s\\n" {lines} > "$1{path}"')
    bootstrap(release, tree, IMAGE_PACKAGES, *options)
    files = {**IMAGE_FILES, "/etc/fstab": f"LABEL={LABEL} / ext4 errors=remount-ro 0 1\n", "/boot/grub/grub.cfg": GRUB_FIRST}
    for path, content in files.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(content)
    for path in (*(f"/etc/systemd/system/{unit}" for unit in (*IMAGE_MASKED, *SWAP_UNITS)), SWAP_GENERATOR):
        link = tree / path.lstrip("/")
        link.parent.mkdir(exist_ok=True)
        link.symlink_to("/dev/null")
    run("chroot", str(tree), "systemctl", "--quiet", "enable", "lab-network.service")
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    shutil.copy(keys[1], tree / "etc/ssh/ssh_host_ed25519_key")
    (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(f"{keys[0]}.pub", tree / "root/.ssh/authorized_keys")


def make_disk(tree: Path, disk: Path) -> None:
    """Make a partitioned disk from a directory; no mount and no loop device is needed."""
    raw = disk.with_suffix(".raw")
    with raw.open("wb") as file:
        file.truncate(DISK_MIB * 1024**2)
    run("sfdisk", "--quiet", str(raw), input=PARTITIONS)
    run("mkfs.ext4", "-q", "-F", "-d", str(tree), "-L", LABEL, "-U", str(uuid.uuid4()),
        "-E", f"offset={ROOT_OFFSET_MIB * 1024**2}", str(raw), f"{ROOT_MIB}M")  # fmt: skip
    run("qemu-img", "convert", "-O", "qcow2", str(raw), str(disk))
    raw.unlink()


def freeze(name: str, accel: str, folder: Path) -> None:
    """Boot a new disk for the first time and keep the memory of the running machine beside it."""
    launch(name, accel, folder / "disk.qcow2", [])
    try:
        started = time.monotonic()
        ssh(name, "true", wait=BOOT_SECONDS)
        say(f"{name}: from power on to ssh in {time.monotonic() - started:.0f} s")
        ssh(name, "update-grub 2>/dev/null && systemctl is-system-running --wait && sync")
        # The connection of the master would be part of the frozen memory.
        subprocess.run(["ssh", "-F", str(SSH_CONFIG), "-O", "exit", name], capture_output=True, check=False)
        monitor(name, "migrate_set_parameter max-bandwidth 8G")
        answer = monitor(name, f"migrate \"exec:cat > '{folder}/memory'\"")
        status = monitor(name, "info status")
        if "postmigrate" not in status:
            raise LabError(f"QEMU could not freeze {name}: {answer} {status}")
    finally:
        stop(name)


def image_folder(release: str, accel: str, keys: tuple[Path, Path]) -> Path:
    """Return the place of a release's image in the cache; its name changes with everything the image is made from."""
    recipe = (
        release, *qemu_argv(accel, Path("log"), []), *IMAGE_PACKAGES, *IMAGE_EXCLUDES, *IMAGE_MASKED, PARTITIONS, GRUB_FIRST,
        repr(IMAGE_FILES), repr(INITRAMFS_FILES), *debian_sources(release), *(Path(f"{key}.pub").read_text() for key in keys),
        run("qemu-system-x86_64", "--version"),
    )  # fmt: skip
    return IMAGES / f"vm-{release}-{digest(*recipe)}"


def image(release: str) -> Path:
    """Return the folder of a release's image, disk.qcow2 and memory; build it if it is not in the cache."""
    keys, accel = make_keys(), accelerator()
    folder = image_folder(release, accel, keys)
    with locked(IMAGES / f"vm-{release}.lock"):
        if not folder.exists():
            if os.geteuid() != 0:
                raise LabError(
                    f"to build the disk of a virtual machine takes root: `sudo GROUNDWORK_CACHE={CACHE} {sys.argv[0]} prepare`"
                )
            started = time.monotonic()
            say(f"building the virtual machine {release} from Debian packages (some minutes)")
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            make_tree(release, part / "tree", keys)
            make_disk(part / "tree", part / "disk.qcow2")
            shutil.rmtree(part / "tree")
            say(f"image {release}: disk made in {time.monotonic() - started:.0f} s")
            freeze(f"image-{release}", accel, part)
            for old in set(IMAGES.glob(f"vm-{release}-*")) - {part}:
                shutil.rmtree(old)
            part.rename(folder)
            say(f"image {release}: ready in {time.monotonic() - started:.0f} s")
    return folder


def start(name: str, release: str) -> None:
    """Start a machine and wait until it answers; one that runs goes on."""
    folder = MACHINES / name
    if process_of(name):
        if (folder / "release").read_text() != release:
            raise LabError(f"{name} runs and is no {release}; stop it first: `lab/machines.py stop {name}`")
    else:
        source = image(release)
        stop(name)
        folder.mkdir(parents=True)
        (folder / "release").write_text(release)
        disk = folder / "disk.qcow2"
        run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(source / "disk.qcow2"), "-F", "qcow2", str(disk))
        launch(name, accelerator(), disk, ["-incoming", f"exec:cat '{source}/memory'"])
    # The clock stands where the memory was frozen.
    ssh(name, f"date --set=@{time.time():.0f} >/dev/null && hostname {name} && echo {name} > /etc/hostname")


def reboot(name: str) -> None:
    """Boot a machine again and wait until its boot has ended."""
    ask = "cat /proc/sys/kernel/random/boot_id"
    before = ssh(name, ask)
    # The connection ends before the command does.
    subprocess.run(ssh_argv(name, "systemctl reboot"), capture_output=True, check=False)
    end = time.monotonic() + BOOT_SECONDS
    while ssh(name, ask, wait=BOOT_SECONDS) == before:
        if time.monotonic() > end:
            raise LabError(f"{name} did not reboot; its console: {MACHINES / name / 'serial.log'}")
        time.sleep(1)
    ssh(name, "systemctl is-system-running --wait || true")


def stop(name: str) -> None:
    """Switch a machine off and remove its disk; the images stay."""
    if pid := process_of(name):
        os.kill(pid, signal.SIGKILL)
        while process_of(name):
            time.sleep(0.02)
    shutil.rmtree(MACHINES / name, ignore_errors=True)


def remove() -> None:
    """Switch all machines off and remove them; the images stay in the cache."""
    for config in MACHINES.glob("*/ssh.conf"):
        stop(config.parent.name)


def main() -> int:
    """Run one command; a problem is one sentence, not a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="build the images that are missing").add_argument("release", nargs="*", default=RELEASES)
    starting = commands.add_parser("start", help="start a machine and wait until it answers")
    starting.add_argument("name")
    starting.add_argument("--release", default=RELEASES[0], choices=RELEASES, help="Debian release")
    commands.add_parser("reboot", help="boot a machine again and wait until it is up").add_argument("name")
    commands.add_parser("stop", help="switch a machine off and remove its disk").add_argument("name")
    commands.add_parser("remove", help="switch all machines off and remove them")
    arguments = parser.parse_args()
    if "name" in arguments and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", arguments.name):
        parser.error(f"{arguments.name!r} is no host name: lower-case letters, digits and hyphens")
    try:
        if arguments.command == "remove":
            remove()
            return 0
        if arguments.command in ("reboot", "stop"):
            (reboot if arguments.command == "reboot" else stop)(arguments.name)
            return 0
        with locked(MACHINES / "lock"):  # machines that start together would fight for dpkg's lock
            install_packages(PROGRAMS)
        if arguments.command == "start":
            start(arguments.name, arguments.release)
        else:
            for release in arguments.release:
                image(release)
    except LabError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which kernel boots next, and what would keep the host from coming back with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils import boot_target as decisions
from ansible.module_utils import grub_config
from ansible.module_utils.initramfs import Dracut

# What the /etc/grub.d scripts of these distributions wrote, for two kernels; the Ubuntu one with GRUB_DEFAULT=saved.
DATA = Path(__file__).parent / "data/grub"
UUID = "1b2c3d4e-0000-4000-8000-123456789abc"
NO_INITRAMFS = (
    "kernel 6.1.0-57-amd64 boots next without an initramfs; run `update-initramfs -c -k 6.1.0-57-amd64` and `update-grub` "
    "(on Ubuntu's cloud images, empty GRUB_FORCE_PARTUUID in /etc/default/grub.d first)"
)
LAB = """
serial --unit=0
terminal_output serial console
set timeout=0
menuentry "lab" {
  search --no-floppy --label root --set=root
  linux /vmlinuz root=LABEL=root ro console=ttyS0
  initrd /initrd.img
}
"""


def grubenv(**variables):
    """Return an environment block as grub-editenv writes it."""
    text = "# GRUB Environment Block\n" + "".join(f"{key}={value}\n" for key, value in variables.items())
    return text.ljust(1024, "#")


class Host:
    """A made-up root directory."""

    def __init__(self, root):
        """Keep the directory; no program is there yet."""
        self.root = root
        self.programs = {}
        self.builder = None

    def write(self, path, text="x"):
        """Write a file and return its path."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def kernel(self, version, *modules):
        """Install a kernel with these modules."""
        self.write(f"boot/vmlinuz-{version}")
        self.write(f"boot/initrd.img-{version}")
        self.write(f"lib/modules/{version}/modules.dep", "".join(f"{module}: kernel/lib/crc16.ko\n" for module in modules))

    def run(self, command):
        """Stand-in for the programs of the host: give the answers that a test put there."""
        return self.programs.get(command[0])

    def target(self, stated=None):
        """Return what boots next."""
        return decisions.boot_target(self.root, stated, self.run)

    def problems(self, running="6.1.0-49-amd64", stated=None):
        """Return what speaks against it."""
        return decisions.problems(self.root, self.target(stated), running, self.run, self.builder)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def debian(host):
    """A Debian 12 with two kernels, of which the newer boots next."""
    host.kernel("6.1.0-57-amd64", "kernel/fs/ext4/ext4.ko")
    host.kernel("6.1.0-49-amd64", "kernel/fs/ext4/ext4.ko")
    host.write("boot/grub/grub.cfg", (DATA / "debian-12.cfg").read_bytes())
    return host


# GRUB: which entry


@pytest.mark.parametrize("config", ["debian-12.cfg", "debian-13.cfg"])
@pytest.mark.parametrize(
    ("default", "kernel"),
    [
        ("0", "6.1.0-57-amd64"),
        ("Debian GNU/Linux", "6.1.0-57-amd64"),
        (f"gnulinux-simple-{UUID}", "6.1.0-57-amd64"),
        ("1", "6.1.0-57-amd64"),  # the submenu's first
        ("1>0", "6.1.0-57-amd64"),
        ("1>2", "6.1.0-49-amd64"),
        ("1>9", "6.1.0-57-amd64"),  # there is no such entry, and GRUB takes the first
        ("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-49-amd64", "6.1.0-49-amd64"),
        (f"gnulinux-advanced-{UUID}>gnulinux-6.1.0-49-amd64-advanced-{UUID}", "6.1.0-49-amd64"),
        (f"1>gnulinux-6.1.0-49-amd64-recovery-{UUID}", "6.1.0-49-amd64"),
        (f"gnulinux-6.1.0-49-amd64-advanced-{UUID}", "6.1.0-57-amd64"),  # not in the top menu, so the first
        ("removed-kernel", "6.1.0-57-amd64"),
    ],
)
def test_the_default_is_found_by_number_title_and_id(host, config, default, kernel):
    host.write("boot/grub/grub.cfg", (DATA / config).read_text().replace('set default="0"', f'set default="{default}"'))
    host.kernel("6.1.0-57-amd64")
    host.kernel("6.1.0-49-amd64")
    target = host.target()
    assert target.kernel == kernel
    assert (target.image, target.initramfs) == (
        host.root / f"boot/vmlinuz-{kernel}",
        [host.root / f"boot/initrd.img-{kernel}"],
    )


@pytest.mark.parametrize(
    ("config", "environment", "kernel"),
    [
        ("debian-12.cfg", {"next_entry": "1>2"}, "6.1.0-49-amd64"),
        ("debian-12.cfg", {"next_entry": ""}, "6.1.0-57-amd64"),
        ("debian-12.cfg", {"saved_entry": "1>2"}, "6.1.0-57-amd64"),  # its default is 0, whatever was saved
        ("ubuntu-saved.cfg", {}, "6.8.0-90-generic"),
        ("ubuntu-saved.cfg", {"saved_entry": "1>2"}, "6.8.0-87-generic"),
        ("ubuntu-saved.cfg", {"saved_entry": "1>2", "next_entry": "0"}, "6.8.0-90-generic"),
        ("ubuntu-saved.cfg", {"saved_entry": "0", "next_entry": f"gnulinux-advanced-{UUID}>2"}, "6.8.0-87-generic"),
        # Only now is what was saved before put back: GRUB has chosen the default by then, but expands nothing twice.
        ("ubuntu-saved.cfg", {"saved_entry": "1>2", "prev_saved_entry": "0", "recordfail": "1"}, "6.8.0-87-generic"),
    ],
)
def test_the_environment_block_counts_as_the_configuration_says(host, config, environment, kernel):
    host.write("boot/grub/grub.cfg", (DATA / config).read_bytes())
    host.write("boot/grub/grubenv", grubenv(**environment))
    assert host.target().kernel == kernel


@pytest.mark.skipif(not shutil.which("grub-editenv"), reason="grub-editenv is not here")
def test_a_block_that_grub_editenv_wrote_is_read(tmp_path):
    block, value = tmp_path / "grubenv", r"Advanced>a \ b=c"
    subprocess.run(["grub-editenv", block, "create"], check=True)
    subprocess.run(["grub-editenv", block, "set", f"saved_entry={value}", "recordfail=1"], check=True)
    assert grub_config.environment(block.read_text()) == {"saved_entry": value, "recordfail": "1"}


@pytest.mark.parametrize("efi", [True, False])
def test_ubuntus_list_of_graphics_adapters_does_not_confuse(host, efi):
    host.write("boot/grub/grub.cfg", (DATA / "ubuntu-saved.cfg").read_bytes())
    host.write("boot/grub/gfxblacklist.txt")
    if efi:
        host.write("sys/firmware/efi/fw_platform_size", "64")
    assert host.target().kernel == "6.8.0-90-generic"


def test_an_entry_of_custom_cfg_can_be_the_default(debian):
    debian.write("boot/grub/grubenv", grubenv(next_entry="mine"))
    debian.write("boot/grub/custom.cfg", "menuentry Mine --id mine { linux /boot/vmlinuz-6.1.0-49-amd64 ro }")
    assert debian.target().kernel == "6.1.0-49-amd64"


def test_the_firmware_entry_is_in_the_menu_on_efi_only(host):
    host.write("boot/grub/grub.cfg", (DATA / "debian-13.cfg").read_bytes())
    host.write("boot/grub/grubenv", grubenv(next_entry="uefi-firmware"))
    assert host.target().kernel == "6.1.0-57-amd64"
    host.write("sys/firmware/efi/fw_platform_size", "64")
    with pytest.raises(
        decisions.UnknownTargetError, match=r"'UEFI Firmware Settings', which /boot/grub/grub.cfg boots next, loads"
    ):
        host.target()


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("linux /boot/vmlinuz-1.0 ro\ninitrd /boot/initrd.img-1.0\nboot\n", "1.0"),
        ("set v=2.0\nmenuentry x { linux ($root)/boot/vmlinuz-$v ro; }", "2.0"),
        ("menuentry x $nothing 'y' { linux /boot/vmlinuz-\\\n3.0 }".replace("\\\n", ""), "3.0"),
        ("if false; then set default=1; elif true; then set default=2; else set default=0; fi\n" + "".join(
            f"menuentry {n} {{ linux /boot/vmlinuz-{n}.0 }}\n" for n in range(3)), "2.0"),
        ("function f { if [ $1 = a ]; then return; fi; set default=1; }\nf a\nf b\n" + "".join(
            f"menuentry {n} {{\n linux /boot/vmlinuz-{n}.0\n}}\n" for n in range(2)), "1.0"),
        ("default='a>>b'\nmenuentry 0 { linux /boot/vmlinuz-0.0 }\nmenuentry 'a>b' { linux /boot/vmlinuz-1.0 }", "1.0"),
        ('menuentry x { if [ -z "$a" -a "$b" != c ]; then linux /boot/vmlinuz-1.0; else linux /boot/vmlinuz-2.0; fi }', "1.0"),
        ('if [ ! -f /boot/nothing -o 2 -gt 3 ]; then k=4.0; fi # "comment\nmenuentry x { linux /boot/vmlinuz-"${k}" }', "4.0"),
        ("menuentry x { linux /boot/vmlinuz-1.0; initrd /boot/a /boot/b }", "1.0"),
    ],
)  # fmt: skip
def test_configurations_written_by_hand_are_run_as_grub_runs_them(host, text, kernel):
    host.write("boot/grub/grub.cfg", text)
    assert host.target().kernel == kernel


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("blscfg\n", "it uses 'blscfg'"),
        ("for k in /boot/vmlinuz-*; do echo; done", "it uses 'for'"),
        ("configfile /other.cfg", "it uses 'configfile'"),
        ("menuentry x { linux /boot/vmlinuz-1.0", "'}' is missing"),
        ("set a='never closed\n", "a quote is never closed"),
        ("if true; then set default=0", "'elif or else or fi' is missing"),
        ("set timeout=5\n", "it has no menu entry"),
        ("", "it has no menu entry"),
        ("true && set default=1", "GRUB accepts no '&& set default=1'"),
        ("function f { return; }\nf\nreturn", "it uses 'return' outside of a function"),
        ("source", "it uses 'source' without a file"),
        ("function f { f; }\nf", "a function or file of it calls itself"),
        ("source /boot/grub/grub.cfg", "a function or file of it calls itself"),
        ("menuentry x --source 'linux /boot/vmlinuz-1.0'", "a 'menuentry' has no block"),
        ("f=function\n$f { true; }", "it uses 'function' with a block"),
        ("if [ a -nt b ]; then set default=1; fi", "it uses the test a -nt b"),
        ("source /boot/grub/absent.cfg", "absent.cfg"),
    ],
)
def test_what_is_not_understood_is_not_guessed(host, text, reason):
    host.write("boot/grub/grub.cfg", text)
    with pytest.raises(decisions.UnknownTargetError) as error:
        host.target()
    assert reason in str(error.value)
    assert "set groundwork_reboot_kernel to the version of the kernel that does" in str(error.value)


@pytest.mark.parametrize(
    ("script", "accepted"),
    [
        ("menuentry 'a'{\nlinux /x\n}", True),
        ("menuentry a{\nlinux /x\n}", True),
        ("menuentry 'a' {linux /x}", True),
        ("menuentry a { if true; then linux /x; fi }", True),
        ("menuentry a { linux /x; };", True),
        ("function f\n{\nset a=1\n}\ntrue", True),
        ("function f{ set a=1; }\ntrue", True),
        ("echo ${a}b#c \\{ '}' \"<\" fi then", True),
        ("}", False),
        ("set a=1}", False),
        ("{ set a=1; }", False),
        ("menuentry a\n{\nlinux /x\n}", False),
        ("menuentry a { linux /x; } echo", False),
        ("menuentry a {\n}", False),
        ("if true; then echo; fi }", False),
        ("if true; then menuentry a { linux /x; } fi", False),
        ("if true; then fi", False),
        ("echo a > b", False),
        ("echo a<b", False),
        ("echo a&b", False),
        ("set a=b|c", False),
        ("echo $ a", False),
    ],
)
def test_a_script_is_accepted_as_grub_itself_accepts_it(tmp_path, script, accepted):
    (tmp_path / "grub.cfg").write_text(f"{script}\n")
    if shutil.which("grub-script-check"):
        done = subprocess.run(["grub-script-check", tmp_path / "grub.cfg"], capture_output=True, check=False)
        assert (done.returncode == 0) is accepted
    try:
        grub_config.parse(f"{script}\n")
    except grub_config.NotUnderstoodError:
        assert not accepted
    else:
        assert accepted


def test_a_brace_needs_no_blank_beside_it(host):
    host.write("boot/grub/grub.cfg", "menuentry 'a'{linux /boot/vmlinuz-1.0}\nmenuentry b{\nlinux /boot/vmlinuz-2.0\n}\n")
    assert host.target().kernel == "1.0"


# Whether it boots by itself


@pytest.mark.parametrize(
    ("timeout", "waits"),
    [
        ("set timeout=0", False),
        ("set timeout=5", False),
        ("set timeout='  5s'", False),  # as strtoul reads it
        ("set timeout_style=hidden\nset timeout=0", False),
        ("if sleep --interruptible 0 ; then set timeout=0; fi", False),
        ("", True),
        ("set timeout=5\nunset timeout", True),
        ("set timeout=-1", True),
        ("set timeout=", True),
        ("set timeout=never", True),
    ],
)
def test_a_menu_that_waits_for_a_person_is_a_problem(debian, timeout, waits):
    entry = "menuentry x { linux /boot/vmlinuz-6.1.0-57-amd64; initrd /boot/initrd.img-6.1.0-57-amd64 }"
    debian.write("boot/grub/grub.cfg", f"{timeout}\n{entry}\n")
    problems = debian.problems()
    assert bool(problems) is waits
    for problem in problems:
        assert problem.startswith("GRUB shows its menu until somebody chooses, since ")
        assert problem.endswith("; set GRUB_TIMEOUT to a number of seconds in /etc/default/grub and run `update-grub`")


def test_a_script_without_a_menu_needs_no_timeout(debian):
    debian.write("boot/grub/grub.cfg", "linux /boot/vmlinuz-6.1.0-57-amd64\ninitrd /boot/initrd.img-6.1.0-57-amd64\nboot\n")
    assert debian.problems() == []


@pytest.mark.parametrize(
    ("config", "environment"),
    [
        ("debian-12.cfg", {}),
        ("debian-13.cfg", {}),
        ("debian-12.cfg", {"next_entry": "1>2"}),
        ("debian-12.cfg", {"recordfail": "1"}),
        ("ubuntu-saved.cfg", {"recordfail": "1"}),
    ],
)
@pytest.mark.parametrize("seconds", ["0", "5"])
def test_generated_configurations_wait_for_nobody(debian, config, environment, seconds):
    text = (DATA / config).read_text().replace("set timeout=5", f"set timeout={seconds}")
    debian.write("boot/grub/grub.cfg", text)
    debian.write("boot/grub/grubenv", grubenv(**environment))
    assert debian.target().waits == ()


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ("set superusers=root\nmenuentry a { linux /boot/vmlinuz-1.0 }", ["a"]),
        ("set superusers=\nmenuentry a { linux /boot/vmlinuz-1.0 }", ["a"]),  # set, to nobody
        ("set superusers=root\nmenuentry a --users '' { linux /boot/vmlinuz-1.0 }", ["a"]),
        ("set superusers=root\nmenuentry a --unrestricted --users=eve { linux /boot/vmlinuz-1.0 }", ["a"]),
        ("set superusers=root\nmenuentry a --unrestricted { linux /boot/vmlinuz-1.0 }", []),
        ("set superusers=root\nunset superusers\nmenuentry a { linux /boot/vmlinuz-1.0 }", []),
        ("menuentry a --users eve { linux /boot/vmlinuz-1.0 }", []),
        # What is not exported does not reach a submenu.
        ("set superusers=root\nsubmenu s { menuentry a { linux /boot/vmlinuz-1.0 } }", ["s"]),
        (
            "set superusers=root\nexport superusers\nsubmenu s --unrestricted { menuentry a { linux /boot/vmlinuz-1.0 } }",
            ["a"],
        ),
    ],
)
def test_an_entry_behind_a_password_waits_for_a_person(host, config, asked):
    host.write("boot/grub/grub.cfg", f"set timeout=5\n{config}\n")
    assert host.target().waits == tuple(
        f"GRUB asks for a user and a password before it runs the entry '{title}', since superusers is set; add --unrestricted "
        f"to that entry (to CLASS in /etc/grub.d/10_linux) and run `update-grub`"
        for title in asked
    )


# What Ubuntu's 00_header and 10_linux write with GRUB_FORCE_PARTUUID, without the rest.
PARTUUID = """
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${initrdfail}" = 2 ]; then
  set initrdfail=
elif [ "${initrdfail}" = 1 ]; then
  set next_entry="${prev_entry}"
  set prev_entry=
  save_env prev_entry
  if [ "${next_entry}" ]; then
    set initrdfail=2
  fi
fi
if [ "${next_entry}" ] ; then
  set default="${next_entry}"
  set next_entry=
  save_env next_entry
  set boot_once=true
else
  set default="0"
fi
function initrdfail {
  if [ -n "${have_grubenv}" ]; then if [ -n "${partuuid}" ]; then
    if [ -z "${initrdfail}" ]; then
      set initrdfail=1
      if [ -n "${boot_once}" ]; then
        set prev_entry="${default}"
        save_env prev_entry
      fi
    fi
    save_env initrdfail
  fi; fi
}
set timeout=0
set partuuid=26f22d2b-892e-459e-ba29-0fdab351f296
menuentry 'Ubuntu' {
  if [ "${initrdfail}" = 1 ]; then
    linux /boot/vmlinuz-6.1.0-57-amd64 root=PARTUUID=26f22d2b-892e-459e-ba29-0fdab351f296 ro
    initrd /boot/initrd.img-6.1.0-57-amd64
  else
    linux /boot/vmlinuz-6.1.0-57-amd64 root=PARTUUID=26f22d2b-892e-459e-ba29-0fdab351f296 ro panic=-1
  fi
  initrdfail
}
submenu 'Advanced options for Ubuntu' {
  menuentry 'Ubuntu, with Linux 6.1.0-57-amd64' {
    if [ "${initrdfail}" = 1 ]; then
      linux /boot/vmlinuz-6.1.0-57-amd64 root=PARTUUID=26f22d2b-892e-459e-ba29-0fdab351f296 ro
      initrd /boot/initrd.img-6.1.0-57-amd64
    else
      linux /boot/vmlinuz-6.1.0-57-amd64 root=PARTUUID=26f22d2b-892e-459e-ba29-0fdab351f296 ro panic=-1
    fi
    initrdfail
  }
}
"""


def test_a_boot_that_falls_back_to_an_initramfs_is_judged_by_it(debian):
    debian.write("boot/grub/grub.cfg", PARTUUID)
    debian.write("boot/grub/grubenv", grubenv())
    assert debian.target().initramfs == [debian.root / "boot/initrd.img-6.1.0-57-amd64"]
    assert debian.problems() == []
    debian.write("boot/initrd.img-6.1.0-57-amd64", "")
    assert debian.problems()[0].startswith("/boot/initrd.img-6.1.0-57-amd64 is empty")


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(None, id="nowhere to note the failure"),
        pytest.param({"next_entry": "1>0"}, id="a submenu inherits no partuuid"),
    ],
)
def test_a_boot_without_initramfs_that_can_not_fall_back_names_the_setting(debian, environment):
    debian.write("boot/grub/grub.cfg", PARTUUID)
    if environment is not None:
        debian.write("boot/grub/grubenv", grubenv(**environment))
    assert debian.problems() == [NO_INITRAMFS]


# Where its files are


@pytest.mark.parametrize(
    ("linux", "where"),
    [
        ("/boot/vmlinuz-5.0", "boot/vmlinuz-5.0"),
        ("/vmlinuz-5.0", "boot/vmlinuz-5.0"),  # /boot is a file system of its own
        ("(hd0,gpt2)/boot/vmlinuz-5.0", "boot/vmlinuz-5.0"),
        ("/@/boot/vmlinuz-5.0", "boot/vmlinuz-5.0"),  # Btrfs
        ("/BOOT/ubuntu_abc@/vmlinuz-5.0", "boot/vmlinuz-5.0"),  # ZFS
        ("/boot/vmlinuz-5.0.efi.signed", "boot/vmlinuz-5.0.efi.signed"),
    ],
)
def test_a_path_of_grub_is_found_on_the_host(host, linux, where):
    image = host.write(where)
    host.write("boot/grub/grub.cfg", f"menuentry x {{\nlinux {linux} ro\n}}")
    assert (host.target().kernel, host.target().image) == ("5.0", image)


@pytest.mark.parametrize("link", ["boot/vmlinuz-6.1.0-57-amd64", "/boot/vmlinuz-6.1.0-57-amd64"])
def test_links_to_the_kernel_are_followed_within_the_host(debian, link):
    debian.write("boot/grub/grub.cfg", LAB)
    (debian.root / "vmlinuz").symlink_to(link)
    (debian.root / "initrd.img").symlink_to(link.replace("vmlinuz", "initrd.img"))
    assert debian.target() == decisions.Target(
        "6.1.0-57-amd64",
        "/boot/grub/grub.cfg, entry 'lab'",
        debian.root / "boot/vmlinuz-6.1.0-57-amd64",
        [debian.root / "boot/initrd.img-6.1.0-57-amd64"],
    )


def test_a_kernel_tells_its_version_itself_whatever_its_file_is_called(host):
    image = bytearray(0x400)
    image[0x202:0x206] = b"HdrS"
    image[0x20E:0x210] = (0x100).to_bytes(2, "little")
    image[0x300:0x340] = b"6.12.1-custom (me@build) #1 SMP".ljust(64, b"\0")
    host.write("boot/vmlinuz-latest", bytes(image))
    host.write("boot/grub/grub.cfg", "menuentry x { linux /boot/vmlinuz-latest }")
    assert host.target().kernel == "6.12.1-custom"


def test_a_header_that_points_to_no_version_leaves_it_to_the_name(host):
    image = bytearray(0x400)
    image[0x200:0x206] = b"\xebjHdrS"
    host.write("boot/vmlinuz-6.12.2", bytes(image))
    host.write("boot/grub/grub.cfg", "menuentry x { linux /boot/vmlinuz-6.12.2 }")
    assert host.target().kernel == "6.12.2"


def test_a_file_that_tells_no_version_is_not_guessed(host):
    host.write("boot/bzImage")
    host.write("boot/grub/grub.cfg", "menuentry x { linux /boot/bzImage }")
    with pytest.raises(decisions.UnknownTargetError, match=r"can't tell the version of .*bzImage"):
        host.target()


# Who says so


def test_a_host_without_a_boot_loader_is_unknown_unless_the_inventory_tells(host):
    with pytest.raises(
        decisions.UnknownTargetError, match=r"no configuration of GRUB or systemd-boot was found.*set groundwork_reb"
    ):
        host.target()
    assert host.target("6.1.0-57-amd64") == decisions.Target("6.1.0-57-amd64", "groundwork_reboot_kernel")


def test_an_inventory_that_contradicts_the_boot_loader_is_refused(debian):
    assert debian.target("6.1.0-57-amd64").source == "/boot/grub/grub.cfg, entry 'Debian GNU/Linux'"
    with pytest.raises(
        decisions.UnknownTargetError, match=r"says that 6.1.0-49-amd64 boots next, and /boot/grub/grub.cfg, entry"
    ):
        debian.target("6.1.0-49-amd64")


ENTRY = {
    "id": "abc-6.12.1.conf",
    "root": "/efi",
    "linux": "/abc/6.12.1/linux",
    "initrd": ["/abc/6.12.1/initrd"],
    "version": "6.12.1",
}
UNIFIED = {"id": "abc-6.12.1.efi", "root": "/efi", "path": "/efi/EFI/Linux/abc.efi", "version": "6.12.1"}


@pytest.mark.parametrize(
    ("entry", "image", "initramfs"),
    [
        ({**ENTRY, "linux": "/abc/vmlinuz-6.12.1"}, "efi/abc/vmlinuz-6.12.1", ["efi/abc/6.12.1/initrd"]),
        (UNIFIED, "efi/EFI/Linux/abc.efi", None),
    ],
)
def test_systemd_boot_tells_its_default_entry(host, entry, image, initramfs):
    host.write("efi/loader/entries/other.conf")
    # Stand-in: what bootctl of systemd 257 prints.
    listed = json.dumps([{"id": "old", "linux": "/x", "isDefault": False}, {**entry, "isDefault": True}])
    host.programs["bootctl"] = (0, listed, "")
    target = host.target()
    assert (target.kernel, target.source) == ("6.12.1", f"systemd-boot, entry {entry['id']}")
    assert target.image == host.root / image
    assert target.initramfs == (initramfs and [host.root / path for path in initramfs])


@pytest.mark.parametrize("answer", [None, (1, "", "no ESP"), (0, "[]", ""), (0, json.dumps([ENTRY]), "")])
def test_systemd_boot_that_names_no_default_is_unknown(host, answer):
    host.write("efi/loader/entries/other.conf")
    host.programs["bootctl"] = answer
    with pytest.raises(decisions.UnknownTargetError, match="names no default of systemd-boot"):
        host.target()


@pytest.mark.parametrize(("loader", "asked"), [("systemd-boot 257", True), ("GRUB 2.12", False)])
def test_with_two_boot_loaders_the_firmware_tells_which_one_ran(debian, loader, asked):
    debian.write("boot/loader/entries/a.conf")
    debian.write(decisions._LOADER_INFO, b"\6\0\0\0" + loader.encode("utf-16-le") + b"\0\0")
    debian.programs["bootctl"] = (0, json.dumps([{**UNIFIED, "isDefault": True}]), "")
    assert (debian.target().kernel == "6.12.1") is asked


# What would keep it from coming back


def test_a_sound_host_has_no_problems(debian):
    assert debian.problems() == []


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("boot/vmlinuz-6.1.0-57-amd64", None, "/boot/vmlinuz-6.1.0-57-amd64 does not exist"),
        ("boot/vmlinuz-6.1.0-57-amd64", "", "/boot/vmlinuz-6.1.0-57-amd64 is empty"),
        ("boot/initrd.img-6.1.0-57-amd64", None, "/boot/initrd.img-6.1.0-57-amd64 does not exist"),
        ("boot/initrd.img-6.1.0-57-amd64", "", "/boot/initrd.img-6.1.0-57-amd64 is empty"),
        ("lib/modules/6.1.0-57-amd64/modules.dep", None, "/lib/modules/6.1.0-57-amd64/modules.dep is missing"),
    ],
)
def test_each_missing_or_empty_file_of_the_next_kernel_is_a_problem(debian, file, content, fault):
    if content is None:
        (debian.root / file).unlink()
    else:
        debian.write(file, content)
    [problem] = debian.problems()
    assert problem.startswith(fault)
    assert "6.1.0-57-amd64`" in problem or "install the package of kernel 6.1.0-57-amd64 again" in problem


def test_the_files_of_a_kernel_that_does_not_boot_next_do_not_matter(debian):
    debian.write("boot/initrd.img-6.1.0-49-amd64", "")
    assert debian.problems() == []


def test_all_problems_are_told_at_once(debian):
    debian.write("boot/vmlinuz-6.1.0-57-amd64", "")
    debian.write("boot/initrd.img-6.1.0-57-amd64", "")
    (debian.root / "lib/modules/6.1.0-57-amd64/modules.dep").unlink()
    assert len(debian.problems()) == 3


@pytest.mark.parametrize(("existing", "option"), [(True, "-u"), (False, "-c")])
def test_the_remedy_writes_the_initramfs_anew_or_for_the_first_time(debian, existing, option):
    image = debian.write("boot/initrd.img-6.1.0-57-amd64", "")
    if not existing:
        image.unlink()
    assert debian.problems()[0].endswith(f"; run `update-initramfs {option} -k 6.1.0-57-amd64`")


def test_the_remedy_is_dracuts_where_dracut_writes_the_images(debian):
    debian.builder = Dracut(None, debian.root)
    debian.write("boot/initrd.img-6.1.0-57-amd64", "")
    assert debian.problems()[0].endswith("; run `dracut --force --kver 6.1.0-57-amd64`")


@pytest.mark.parametrize(("ramdisk_size", "refused"), [(0, False), (7667712, True), (None, True)])
def test_a_boot_without_initramfs_is_refused_unless_the_running_kernel_has_none_either(debian, ramdisk_size, refused):
    debian.write("boot/grub/grub.cfg", "set timeout=0\nmenuentry x { linux /boot/vmlinuz-6.1.0-57-amd64 root=/dev/vda }")
    if ramdisk_size is not None:
        debian.write("sys/kernel/boot_params/data", bytes(0x21C) + ramdisk_size.to_bytes(4, "little") + bytes(0x100))
    assert debian.problems() == ([NO_INITRAMFS] if refused else [])


def test_an_image_that_can_not_be_listed_is_damaged(debian):
    debian.programs["lsinitramfs"] = (2, "", "cpio: premature end of archive\n")
    [problem] = debian.problems()
    assert problem.startswith("/boot/initrd.img-6.1.0-57-amd64 is damaged (cpio: premature end of archive), and kernel")


def test_an_image_that_can_be_listed_is_sound(debian):
    debian.programs["lsinitramfs"] = (0, "init\n", "")
    assert debian.problems() == []


def cpio(*names, size=300):
    """Return a cpio archive as the kernel reads it (newc)."""
    archive = b""
    for name in (*names, "TRAILER!!!"):
        data = b"" if name == "TRAILER!!!" else b"d" * size
        fields = [0, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        archive += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        archive += bytes(-len(archive) % 4) + data
        archive += bytes(-len(archive) % 4)
    return archive + bytes(-len(archive) % 512)


@pytest.mark.parametrize(
    ("image", "plain"),
    [
        (cpio("sbin/x", "init"), True),
        (cpio("kernel/x86/microcode/AuthenticAMD.bin") + cpio("./init"), True),
        (cpio("kernel/x86/microcode/AuthenticAMD.bin"), False),  # nothing after the microcode
        (cpio("kernel/x86/microcode/AuthenticAMD.bin") + b"\x28\xb5\x2f\xfdcompressed", False),
        (cpio("init", "sbin/x", size=2000)[:2500], False),
        (cpio("init")[:400], False),
        (b"", False),
        (bytes(2048), False),
        (b"\x1f\x8b\x08compressed", False),
        (b"070701" + b"z" * 104 + cpio("init"), False),
        (b"070701" + b"-0000001" * 13 + cpio("init"), False),
        (cpio("init") + b"070701" + b"f" * 104, False),
    ],
)
def test_only_a_whole_archive_with_init_needs_no_lister(tmp_path, image, plain):
    (tmp_path / "image").write_bytes(image)
    assert decisions.is_plain_cpio(tmp_path / "image") is plain


def test_an_uncompressed_image_is_sound_although_the_lister_of_debian_12_refuses_it(debian):
    debian.write("boot/initrd.img-6.1.0-57-amd64", cpio("init"))
    debian.programs["lsinitramfs"] = (2, "", "cpio: premature end of archive\n")
    assert debian.problems() == []


@pytest.mark.skipif(not (shutil.which("lsinitramfs") and shutil.which("cpio")), reason="lsinitramfs and cpio are not here")
@pytest.mark.parametrize("microcode", [b"", cpio("kernel/x86/microcode/AuthenticAMD.bin")])
@pytest.mark.parametrize("cut", [0, 1, 500])
def test_the_real_lister_finds_a_truncated_image(debian, microcode, cut):
    packed = subprocess.run(["gzip", "-c"], input=cpio("init") + os.urandom(20000), capture_output=True, check=True).stdout
    whole = microcode + packed
    debian.write("boot/initrd.img-6.1.0-57-amd64", whole[: len(whole) - cut])

    def run(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    found = decisions.problems(debian.root, debian.target(), "6.1.0-49-amd64", run)
    assert [problem.partition(" (")[0] for problem in found] == (["/boot/initrd.img-6.1.0-57-amd64 is damaged"] if cut else [])


# The driver


@pytest.mark.parametrize(
    "module",
    [
        "updates/dkms/nvidia.ko",
        "updates/dkms/nvidia.ko.zst",
        "updates/dkms/nvidia-current.ko.xz",
        "updates/dkms/nvidia-current-open.ko.xz",
        "updates/dkms/nvidia-tesla-535.ko",
        "updates/dkms/nvidia-legacy-390xx.ko",
        "kernel/nvidia-580srv-open/nvidia.ko",
        "extra/nvidia.ko.gz",
    ],
)
def test_a_kernel_without_the_driver_that_another_has_is_refused(debian, module):
    debian.write("lib/modules/6.1.0-49-amd64/modules.dep", f"{module}:\n")
    [problem] = debian.problems()
    assert problem.startswith("kernel 6.1.0-57-amd64 boots next and has no nvidia module (6.1.0-49-amd64 has one)")
    assert "`dkms autoinstall -k 6.1.0-57-amd64`" in problem
    debian.write("lib/modules/6.1.0-57-amd64/modules.dep", f"{module}:\n")
    assert debian.problems() == []


@pytest.mark.parametrize(
    "module",
    [
        "updates/dkms/nvidia-drm.ko",
        "updates/dkms/nvidia-current-modeset.ko.xz",
        "updates/dkms/nvidia-tesla-535-uvm.ko",
        "updates/dkms/nvidia-peermem.ko",
        "kernel/drivers/i2c/busses/i2c-nvidia-gpu.ko",
        "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko",
        "kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko.xz",
        "kernel/drivers/gpu/drm/nouveau/nouveau.ko",
    ],
)
def test_a_helper_of_the_driver_or_a_module_of_the_kernel_is_not_the_driver(debian, module):
    debian.write("lib/modules/6.1.0-49-amd64/modules.dep", f"{module}:\n")
    assert debian.problems() == []


def test_a_loaded_driver_is_needed_after_the_reboot_too(debian):
    debian.write("proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 62 1 nvidia_uvm, Live 0x0\n")
    assert debian.problems()[0].startswith("kernel 6.1.0-57-amd64 boots next and has no nvidia module, so the GPUs would be lost")
    debian.write("proc/modules", "i2c_nvidia_gpu 1 0 - Live 0x0\nnvidiafb 62 1 - Live 0x0\n")
    assert debian.problems() == []


def test_what_dkms_left_of_a_removed_kernel_does_not_count(debian):
    debian.write("lib/modules/6.1.0-13-amd64/modules.dep", "updates/dkms/nvidia.ko:\n")
    assert debian.problems() == []


def test_a_module_that_depmod_does_not_know_would_not_load(debian):
    debian.write("lib/modules/6.1.0-49-amd64/modules.dep", "updates/dkms/nvidia.ko:\n")
    debian.write("lib/modules/6.1.0-57-amd64/updates/dkms/nvidia.ko")
    assert debian.problems() == [
        "kernel 6.1.0-57-amd64 boots next and its list of modules lacks the nvidia module; run `depmod 6.1.0-57-amd64`"
    ]


def test_a_kernel_that_the_inventory_names_needs_the_driver_too(host):
    host.write("lib/modules/6.1.0-49-amd64/modules.dep", "updates/dkms/nvidia.ko:\n")
    host.write("lib/modules/6.1.0-57-amd64/modules.dep", "")
    [problem] = host.problems(stated="6.1.0-57-amd64")
    assert problem.startswith("kernel 6.1.0-57-amd64 boots next and has no nvidia module")


# Packages


@pytest.mark.parametrize(
    ("line", "open_file", "at_work"),
    [
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:{inode} 0 EOF", "var/lib/dpkg/{file}", True),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:1{inode} 0 EOF", "var/lib/dpkg/{file}", False),
        ("1: -> POSIX  ADVISORY  WRITE 4711 fe:00:{inode} 0 EOF", "var/lib/dpkg/{file}", False),
        # The inode of another file system.
        ("1: POSIX  ADVISORY  WRITE 4711 fe:01:{inode} 0 EOF", "run/other", False),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:01:{inode} 0 EOF", "run/closed", False),
        ("", "var/lib/dpkg/{file}", False),
    ],
)
@pytest.mark.parametrize("file", ["lock", "lock-frontend"])
def test_no_reboot_while_packages_are_installed(debian, file, line, open_file, at_work):
    inode = debian.write(f"var/lib/dpkg/{file}", "").stat().st_ino
    debian.write("run/other")
    debian.write("proc/locks", line.format(inode=inode) + "\n2: FLOCK  ADVISORY  WRITE 1 00:19:99999999999 0 EOF\n")
    debian.write("proc/4711/comm", "unattended-upgr\n")
    (debian.root / "proc/4711/fd").mkdir()
    (debian.root / "proc/4711/fd/3").symlink_to("socket:[1]")
    (debian.root / "proc/4711/fd/4").symlink_to(debian.root / open_file.format(file=file))
    # While it is at work, what dpkg has to do is not what was interrupted.
    debian.write("var/lib/dpkg/updates/0001")
    told = "packages are being changed (unattended-upgr, process 4711); wait until that has ended"
    assert debian.problems()[0].startswith(told if at_work else "dpkg was interrupted")


@pytest.mark.parametrize(("file", "interrupted"), [("0003", True), ("tmp.i", False), (None, False)])
def test_no_reboot_after_an_interrupted_dpkg(debian, file, interrupted):
    (debian.root / "var/lib/dpkg/updates").mkdir(parents=True)
    if file:
        debian.write(f"var/lib/dpkg/updates/{file}")
    told = ["dpkg was interrupted (/var/lib/dpkg/updates is not empty); run `dpkg --configure -a`"]
    assert debian.problems() == (told if interrupted else [])

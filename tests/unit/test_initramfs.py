"""The module initramfs_current on a made-up /boot. Stand-ins take the place of the programs; what they say was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import initramfs_current
import pytest

FILE = "/etc/modprobe.d/groundwork-nouveau.conf"
WANTED = "blacklist nouveau\noptions nouveau modeset=0\n"
GENERIC, CLOUD = "6.1.0-57-amd64", "6.1.0-57-cloud-amd64"
NO_SPACE = {
    "update-initramfs": (
        1,
        "update-initramfs: Generating /boot/initrd.img-6.1.0-57-amd64\n",
        "zstd: error 70 : Write error : cannot write block : No space left on device\n"
        "E: mkinitramfs failure zstd -q -9 -T0 70\nupdate-initramfs: failed for /boot/initrd.img-6.1.0-57-amd64 with 1.\n",
    ),
    "dracut": (
        1,
        "",
        "cp: error writing '/boot/initrd.img-6.12.118+deb13-amd64.new': No space left on device\n"
        "dracut[F]: Creation of /boot/initrd.img-6.12.118+deb13-amd64.new failed\n",
    ),
}
HOOK_FAILED = (
    "cp: error writing '/efi/initrd': No space left on device\n"
    "run-parts: /etc/initramfs/post-update.d//systemd-boot exited with return code 1\n"
)
READ_ONLY = "W: /boot is ro mounted.\nW: update-initramfs: Not updating /boot/initrd.img-6.1.0-57-amd64\n"
SWITCHED_OFF = "update-initramfs: Not updating initramfs.\n"


class _Host:
    """A made-up host. An image is a JSON object of its files; one that is no JSON can't be read."""

    def __init__(self, root: Path, run_module):
        self.root, self._run_module = root, run_module
        self.builder = "initramfs-tools"  # the installed package, or None
        self.said = {}  # program -> what it answers in place of doing its work
        self.microcode = False  # whether images begin with microcode
        self.hooks_fail = False  # whether a hook of a boot loader ends with an error
        self.calls, self.environments = [], []
        self.write(FILE, WANTED)

    def path(self, name):
        return self.root / str(name).lstrip("/")

    def write(self, name, text):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def kernel(self, version, content=None, name="initrd.img-{}"):
        """Install a kernel whose image holds the file with this content, or not at all."""
        self.write(f"boot/vmlinuz-{version}", "")
        self.path(f"lib/modules/{version}").mkdir(parents=True)
        if name:
            self.write(f"boot/{name.format(version)}", json.dumps({} if content is None else {FILE: content}))
            self.image(version, name).chmod(0o644)

    def image(self, version, name="initrd.img-{}"):
        return self.path(f"boot/{name.format(version)}")

    def inside(self, version):
        return json.loads(self.image(version).read_text()).get(FILE)

    def built(self):
        """What a builder would put into an image now."""
        return json.dumps({FILE: self.path(FILE).read_text()} if self.path(FILE).exists() else {})

    def get_bin_path(self, program, **_):
        there = {"initramfs-tools": ["update-initramfs"], "dracut": ["dracut"], "both": ["update-initramfs", "dracut"], None: []}
        return f"/usr/sbin/{program}" if program in there[self.builder] else None

    def run_command(self, command, environ_update=None, **_):
        self.calls.append(command)
        self.environments.append(environ_update or {})
        program, *arguments = command
        if program in self.said:
            return self.said[program]
        return getattr(self, program.replace("-", "_"))(*arguments)

    def dpkg_query(self, *_):
        return (0, "installed", "") if self.builder == "dracut" else (1, "", "dpkg-query: no packages found matching dracut\n")

    def update_initramfs(self, _update, _kernel, version):
        self.image(version).write_text(self.built())
        code, _, error = self.run_parts()
        return code, f"update-initramfs: Generating /boot/initrd.img-{version}\n", error

    def unmkinitramfs(self, image, folder):
        try:
            files = json.loads(Path(image).read_text())
        except ValueError:
            return 2, "", "cpio: premature end of archive\n"
        for name, content in files.items():
            file = Path(folder, "main" if self.microcode else "", name.lstrip("/"))
            file.parent.mkdir(parents=True)
            file.write_text(content)
        return 0, "", ""

    def dracut(self, _quiet, _force, image, _version):
        Path(image).write_text(self.built())
        Path(image).chmod(0o600)
        return 0, "", ""

    def lsinitrd(self, _file, name, image):
        try:
            return 0, json.loads(Path(image).read_text()).get(f"/{name}", ""), ""
        except ValueError:
            return 1, "Need 'xzcat' to unpack the initramfs.\n", "/usr/bin/lsinitrd: line 459: xz: command not found\n"

    def run_parts(self, *_):
        return (1, "", HOOK_FAILED) if self.hooks_fail else (0, "", "")

    def run(self, **options):
        self.calls.clear()
        options = {"path": FILE, "content": WANTED, **options}
        return self._run_module(initramfs_current, **options)

    def is_current(self, **options):
        """Whether a run finds nothing to do; a failed one does not count."""
        result = self.run(**options)
        return "failed" not in result and not result["changed"]

    def programs(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    host = _Host(tmp_path / "root", run_module)
    monkeypatch.setattr(initramfs_current, "ROOT", host.root)
    monkeypatch.setattr(initramfs_current.AnsibleModule, "tmpdir", str(tmp_path))
    monkeypatch.setattr(initramfs_current.AnsibleModule, "run_command", lambda _, *args, **kw: host.run_command(*args, **kw))
    monkeypatch.setattr(initramfs_current.AnsibleModule, "get_bin_path", lambda _, *args, **kw: host.get_bin_path(*args, **kw))
    return host


each_builder = pytest.mark.parametrize("builder", ["initramfs-tools", "dracut"])


@each_builder
def test_only_images_without_the_file_are_rebuilt(host, builder):
    host.builder = builder
    host.kernel(GENERIC)
    host.kernel(CLOUD, WANTED)
    result = host.run()
    assert result["changed"]
    assert result["rebuilt"] == [str(host.image(GENERIC))]
    assert (host.inside(GENERIC), host.inside(CLOUD)) == (WANTED, WANTED)


@each_builder
def test_another_content_under_the_same_name_is_a_difference(host, builder):
    host.builder = builder
    host.kernel(GENERIC, "blacklist nouveau\n")
    result = host.run()
    assert result["rebuilt"] == [str(host.image(GENERIC))]
    assert (result["diff"][0]["before"], result["diff"][0]["after"]) == ("blacklist nouveau\n", WANTED)


@each_builder
def test_a_second_run_builds_nothing(host, builder):
    host.builder = builder
    host.kernel(GENERIC)
    host.kernel(CLOUD)
    assert len(host.run()["rebuilt"]) == 2
    result = host.run()
    assert (result["changed"], result["rebuilt"], result["diff"]) == (False, [], [])
    assert not {"update-initramfs", "dracut"}.intersection(host.programs())


@each_builder
def test_an_image_that_holds_the_file_is_rebuilt_where_it_must_not(host, builder):
    host.builder = builder
    host.kernel(GENERIC, WANTED)
    host.kernel(CLOUD)
    host.path(FILE).unlink()
    assert host.run(state="absent")["rebuilt"] == [str(host.image(GENERIC))]
    assert host.inside(GENERIC) is None
    assert host.is_current(state="absent")


@each_builder
def test_check_mode_names_the_images_before_the_file_exists(host, builder):
    host.builder = builder
    host.kernel(GENERIC)
    host.kernel(CLOUD)
    host.path(FILE).unlink()
    announced = host.run(check=True)
    assert not {"update-initramfs", "dracut"}.intersection(host.programs())
    host.write(FILE, WANTED)
    done = host.run()
    assert len(done["rebuilt"]) == 2
    assert [announced[key] for key in ("changed", "rebuilt", "diff")] == [done[key] for key in ("changed", "rebuilt", "diff")]


@each_builder
def test_an_image_that_cannot_be_read_is_rebuilt(host, builder):
    host.builder = builder
    host.kernel(GENERIC, WANTED)
    host.image(GENERIC).write_text("what a killed copy left")
    result = host.run()
    assert host.inside(GENERIC) == WANTED
    assert result["diff"][0]["before"].startswith("(the image can't be read: ")


@pytest.mark.parametrize("microcode", [True, False])
def test_the_file_is_found_behind_microcode_too(host, microcode):
    host.microcode = microcode
    host.kernel(GENERIC, WANTED)
    assert host.is_current()


def test_what_was_unpacked_is_removed(host, tmp_path):
    host.kernel(GENERIC, WANTED)
    host.run()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize(("given", "wanted"), [("a", "a\n"), ("a\n", "a\n"), ("a\nb\n\n", "a\nb\n")])
def test_the_content_ends_as_write_files_ends_it(host, given, wanted):
    host.kernel(GENERIC, wanted)
    assert host.is_current(content=given)


# Which builder


def test_the_package_dracut_decides_where_programs_of_both_are_installed(host):
    host.builder = "both"
    host.kernel(GENERIC)
    host.run()
    assert "update-initramfs" in host.programs()
    host.said["dpkg-query"] = (0, "installed", "")
    host.image(GENERIC).write_text("{}")
    host.run()
    assert "dracut" in host.programs()


def test_a_removed_dracut_whose_settings_stayed_does_not_decide(host):
    host.builder = "both"
    host.said["dpkg-query"] = (0, "config-files", "")
    host.kernel(GENERIC)
    host.run()
    assert "update-initramfs" in host.programs()


def test_images_that_nothing_can_build_are_an_error_with_the_remedy(host):
    host.builder = None
    host.kernel(GENERIC)
    result = host.run()
    assert result["failed"]
    assert f"boot/initrd.img-{GENERIC}: neither initramfs-tools nor dracut is installed" in result["msg"]


# Which kernels


def test_a_container_without_kernels_is_left_alone_with_a_note(host):
    host.builder = None
    result = host.run()
    assert (result["changed"], result["rebuilt"]) == (False, [])
    assert result["notes"] == ["no kernel is installed, so there is no initramfs to rebuild"]


def test_a_kernel_without_an_image_is_told_and_gets_none(host):
    host.kernel(GENERIC, name=None)
    host.kernel(CLOUD)
    result = host.run()
    assert result["rebuilt"] == [str(host.image(CLOUD))]
    assert result["notes"] == [f"kernel {GENERIC} has no initramfs, so there is nothing to rebuild"]
    assert not host.image(GENERIC).exists()


def test_the_rest_of_a_removed_kernel_is_told_and_not_rebuilt(host):
    host.kernel(GENERIC)
    host.path(f"lib/modules/{GENERIC}").rmdir()
    result = host.run()
    assert result["rebuilt"] == []
    assert result["notes"] == [
        f"kernel {GENERIC} has no modules in /lib/modules, so initrd.img-{GENERIC} can't be rebuilt: remove its rest"
    ]


def test_backups_and_drafts_of_images_are_not_looked_at(host):
    host.kernel(GENERIC, WANTED)
    for name in (f"initrd.img-{GENERIC}.new", f"initrd.img-{GENERIC}.dpkg-bak", "initrd.img.old"):
        host.write(f"boot/{name}", "{}")
    assert host.is_current()


def test_images_under_the_name_that_dracut_gives_them_are_found(host):
    host.builder = "dracut"
    host.kernel(GENERIC, name="initramfs-{}.img")
    assert host.run()["rebuilt"] == [str(host.image(GENERIC, "initramfs-{}.img"))]


# Failures


@each_builder
def test_a_full_disk_leaves_the_old_image_and_says_so(host, builder, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    host.builder = builder
    host.kernel(GENERIC)
    before = host.image(GENERIC).read_text()
    host.said.update(NO_SPACE)
    result = host.run()
    assert result["failed"]
    assert result["rebuilt"] == []
    assert ".." not in result["msg"]
    for part in (str(host.image(GENERIC)), "ended with 1", "No space left on device", "apt-get autoremove --purge"):
        assert part in result["msg"]
    assert host.image(GENERIC).read_text() == before


@each_builder
def test_a_kernel_that_fails_does_not_keep_the_next_one_from_its_image(host, builder):
    host.builder = builder
    host.kernel(GENERIC)
    host.kernel(CLOUD)
    work = host.run_command

    def run_command(command, **options):
        if command[0] in NO_SPACE and command[-1] == GENERIC:
            return NO_SPACE[command[0]]
        return work(command, **options)

    host.run_command = run_command
    result = host.run()
    assert result["failed"]
    assert result["rebuilt"] == [str(host.image(CLOUD))]
    assert host.inside(CLOUD) == WANTED


@pytest.mark.parametrize(
    ("output", "error", "reason"), [(SWITCHED_OFF, "", "Not updating initramfs."), ("", READ_ONLY, "W: /boot is ro mounted.")]
)
def test_a_builder_that_does_nothing_and_reports_success_is_seen_through(host, output, error, reason):
    host.kernel(GENERIC)
    host.said["update-initramfs"] = (0, output, error)
    result = host.run()
    assert result["failed"]
    assert f"the new image does not hold {FILE}" in result["msg"]
    assert reason in result["msg"]


def test_dracut_keeps_the_old_image_where_the_new_one_lacks_the_file(host):
    host.builder = "dracut"
    host.kernel(GENERIC, "old\n")
    host.path(FILE).unlink()  # dracut-install complains, and dracut still ends with 0
    result = host.run()
    assert result["failed"]
    assert "does not hold" in result["msg"]
    assert host.inside(GENERIC) == "old\n"
    assert not host.image(GENERIC).with_name(f"initrd.img-{GENERIC}.new").exists()


@each_builder
def test_an_image_that_a_boot_loader_has_not_taken_is_rebuilt_by_the_next_run(host, builder):
    host.builder, host.hooks_fail = builder, True
    host.path("etc/initramfs/post-update.d").mkdir(parents=True)
    host.kernel(GENERIC)
    host.kernel(CLOUD, WANTED)
    result = host.run()
    assert result["failed"]
    assert "systemd-boot exited with return code 1" in result["msg"]
    assert host.inside(GENERIC) == WANTED
    host.hooks_fail = False
    announced, done = host.run(check=True), host.run()
    for result in (announced, done):
        assert (result["changed"], result["rebuilt"]) == (True, [str(host.image(GENERIC))])
        assert result["diff"][0]["before"].startswith(f"{WANTED}(its last rebuild did not end, or a hook in ")
    assert host.is_current()


@each_builder
def test_a_rebuild_that_was_killed_before_its_hooks_ended_is_repeated(host, builder):
    host.builder = builder
    host.path("etc/initramfs/post-update.d").mkdir(parents=True)
    host.kernel(GENERIC)

    def run_parts(*_):
        raise KeyboardInterrupt

    host.run_parts = run_parts
    with pytest.raises(KeyboardInterrupt):
        host.run()
    assert host.inside(GENERIC) == WANTED
    del host.run_parts
    assert host.run()["rebuilt"] == [str(host.image(GENERIC))]
    assert host.is_current()


def test_a_rebuild_that_cannot_be_noted_is_not_begun(host):
    host.kernel(GENERIC)
    host.write("var/lib/groundwork", "a file in the way")
    result = host.run()
    assert result["failed"]
    assert "Not a directory" in result["msg"]
    assert host.inside(GENERIC) is None


#: As recorded with a full tmpfs: from unmkinitramfs of Debian 12 and 13, and from that of Debian 12 with microcode (nothing).
NO_ROOM = [
    (2, "", "cpio: write error: No space left on device\n"),
    (1, "", "cpio: write error: No space left on device\nunmkinitramfs: zstd failed\n"),
    (1, "", ""),
]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("answer", NO_ROOM)
def test_no_room_to_unpack_an_image_is_an_error_and_no_reason_to_rebuild_it(host, tmp_path, monkeypatch, answer, check):
    host.kernel(GENERIC, WANTED)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=host.image(GENERIC).stat().st_size - 1))
    host.said["unmkinitramfs"] = answer
    result = host.run(check=check)
    assert result["failed"]
    assert (result["rebuilt"], result["diff"]) == ([], [])
    assert "update-initramfs" not in host.programs()
    assert f"{host.image(GENERIC)}: there is no room to unpack it (0 MiB were left in {tmp_path}, " in result["msg"]
    assert "set ansible_remote_tmp to a directory" in result["msg"]


def test_everything_is_unpacked_below_the_temporary_directory_of_the_module(host, tmp_path):
    host.kernel(GENERIC, WANTED)
    host.run()
    unpacking = host.programs().index("unmkinitramfs")
    folder = host.calls[unpacking][2]
    assert Path(folder).parent == tmp_path
    assert host.environments[unpacking] == {"TMPDIR": folder}


# What dracut does otherwise than initramfs-tools


def test_dracut_never_writes_to_the_image_in_place(host):
    host.builder = "dracut"
    host.kernel(GENERIC)
    host.run()
    assert ["dracut", "--quiet", "--force", f"{host.image(GENERIC)}.new", GENERIC] in host.calls
    assert not host.image(GENERIC).with_name(f"initrd.img-{GENERIC}.new").exists()


def test_an_image_keeps_its_mode(host):
    host.builder = "dracut"
    host.kernel(GENERIC)
    host.run()
    assert host.image(GENERIC).stat().st_mode & 0o777 == 0o644


def test_hooks_of_boot_loaders_get_the_final_name(host):
    host.builder = "dracut"
    host.kernel(GENERIC)
    host.path("etc/initramfs/post-update.d").mkdir(parents=True)
    host.run()
    assert host.calls[-1] == [
        "run-parts",
        f"--arg={GENERIC}",
        f"--arg={host.image(GENERIC)}",
        str(host.path("etc/initramfs/post-update.d")),
    ]
    assert host.environments[host.programs().index("dracut")] == {"NO_POST_UPDATE_HOOKS": "1"}


# Options


@pytest.mark.parametrize("content", ["", "\n", "  \n"])
def test_an_empty_file_is_refused(host, content):
    host.kernel(GENERIC)
    assert "content: the images are searched for what the file holds, so it must not be empty" in host.run(content=content)["msg"]

"""The module sysctl_dropin and its decisions, on a made-up /etc and /proc/sys."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import sysctl_dropin
from ansible.module_utils import sysctl_files as decisions

OURS = "/etc/sysctl.d/90-groundwork.conf"
FILE_MAX = "9223372036854775807"
SHMMAX = "18446744073692774399"
LIVE = {
    "vm/swappiness": "60",
    "vm/vfs_cache_pressure": "100",
    "kernel/shmmax": SHMMAX,
    "kernel/core_pattern": "core",
    "fs/file-max": FILE_MAX,
    "net/core/somaxconn": "4096",
    "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "net/ipv4/ip_local_reserved_ports": "8080",
    "net/ipv4/conf/eth0.1/forwarding": "0",
}


class _Host:
    """A made-up root file system with a /proc/sys that takes every write."""

    def __init__(self, root: Path, run_module):
        self.root, self._run, self.warnings = root, run_module, []
        for key, value in LIVE.items():
            self.write(f"proc/sys/{key}", f"{value}\n")

    def path(self, name):
        return self.root / name.lstrip("/")

    def write(self, name, text):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def link(self, name, target):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).symlink_to(target)

    def live(self, key):
        return self.path(f"proc/sys/{key}").read_text().strip()

    def lines(self):
        return self.path(OURS).read_text().splitlines()[1:]

    def run(self, *parameters, **options):
        entries = [{"name": name, "value": value, "rule": (*rule, "exact")[0]} for name, value, *rule in parameters]
        return self._run(sysctl_dropin, parameters=entries, **options)


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    monkeypatch.setattr(sysctl_dropin, "ROOT", tmp_path)
    host = _Host(tmp_path, run_module)
    monkeypatch.setattr(sysctl_dropin.AnsibleModule, "warn", lambda _, text: host.warnings.append(text))
    return host


# Names


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("vm.swappiness", "vm/swappiness"),
        ("vm/swappiness", "vm/swappiness"),
        ("net.ipv4.conf.eth0/1.forwarding", "net/ipv4/conf/eth0.1/forwarding"),
        ("net/ipv4/conf/eth0.1/forwarding", "net/ipv4/conf/eth0.1/forwarding"),
        ("/vm//swappiness", "vm/swappiness"),
    ],
)
def test_the_first_separator_in_a_name_decides(name, path):
    assert decisions.key_path(name) == path


def test_the_file_names_keys_with_dots(host):
    host.run(("net/ipv4/conf/eth0.1/forwarding", 1))
    assert host.lines() == ["net.ipv4.conf.eth0/1.forwarding = 1"]


@pytest.mark.parametrize("name", ["net.ipv4.conf.*.rp_filter", "-vm.swappiness", "vm swappiness", "a=b", "/../etc/x", ""])
def test_a_name_that_is_not_one_key_is_refused(host, name):
    result = host.run((name, 1))
    assert result["failed"]
    assert "not the name of one key" in result["msg"]


def test_the_same_key_in_two_spellings_is_refused(host):
    assert "vm.swappiness is listed twice" in host.run(("vm.swappiness", 1), ("vm/swappiness", 1))["msg"]


def test_a_group_of_keys_is_refused(host):
    assert "net.ipv4: a group of keys" in host.run(("net.ipv4", 1))["msg"]


# File and live value


def test_file_and_live_value_are_written(host):
    result = host.run(("vm.swappiness", 1), ("net.core.somaxconn", "65535"))
    assert result["changed"]
    assert host.path(OURS).read_text() == (
        "# Managed by Groundwork (role sysctl_tuning). Changes here are overwritten.\n"
        "vm.swappiness = 1\n"
        "net.core.somaxconn = 65535\n"
    )
    assert host.path(OURS).stat().st_mode & 0o777 == 0o644
    assert (host.live("vm/swappiness"), host.live("net/core/somaxconn")) == ("1", "65535")


def test_the_second_run_changes_nothing_and_adds_no_line(host):
    host.run(("vm.swappiness", 1), ("fs.file-max", 2097152, "minimum"))
    before = host.lines()
    assert not host.run(("vm.swappiness", 1), ("fs.file-max", 2097152, "minimum"))["changed"]
    assert host.lines() == before


def test_without_apply_the_live_value_stays_and_is_no_difference(host):
    host.run(("vm.swappiness", 1), apply=False)
    assert host.live("vm/swappiness") == "60"
    assert not host.run(("vm.swappiness", 1), apply=False)["changed"]


def test_a_live_value_that_drifted_is_set_again(host):
    host.run(("vm.swappiness", 1))
    host.write("proc/sys/vm/swappiness", "60\n")
    assert host.run(("vm.swappiness", 1))["changed"]
    assert host.live("vm/swappiness") == "1"


def test_the_mode_of_the_file_is_put_right(host):
    host.run(("vm.swappiness", 1))
    host.path(OURS).chmod(0o600)
    assert host.run(("vm.swappiness", 1), check=True)["changed"]
    assert host.run(("vm.swappiness", 1))["changed"]
    assert host.path(OURS).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("apply", [True, False])
def test_check_mode_reports_what_the_run_does(host, apply):
    host.write(OURS, "vm.swappiness = 10\nkernel.core_pattern = core\n")
    wanted = (("vm.swappiness", 1), ("fs.file-max", 1, "minimum"), ("net.ipv4.tcp_tw_recycle", 1, "optional"))
    planned = host.run(*wanted, check=True, apply=apply)
    assert (host.live("vm/swappiness"), host.lines()) == ("60", ["kernel.core_pattern = core"])
    assert planned == host.run(*wanted, apply=apply)


def test_the_diff_shows_the_file_and_the_live_values(host):
    host.write(OURS, "vm.swappiness = 10\n")
    file, live = host.run(("vm.swappiness", 1))["diff"]
    assert (file["before"], file["after"]) == ("vm.swappiness = 10\n", decisions.HEADER + "vm.swappiness = 1\n")
    assert (live["before"], live["after"]) == ("vm.swappiness = 60\n", "vm.swappiness = 1\n")


def test_several_numbers_compare_whatever_separates_them(host):
    result = host.run(("net.ipv4.tcp_rmem", "4096  131072 6291456"))
    assert host.lines() == ["net.ipv4.tcp_rmem = 4096 131072 6291456"]
    assert result["diff"][1]["before"] == result["diff"][1]["after"]


def test_a_key_that_leaves_the_list_leaves_the_file_and_keeps_its_live_value(host):
    host.run(("vm.swappiness", 1), ("vm.vfs_cache_pressure", 50))
    result = host.run(("vm.swappiness", 1))
    assert host.lines() == ["vm.swappiness = 1"]
    assert host.live("vm/vfs_cache_pressure") == "50"
    assert result["released"] == ["vm.vfs_cache_pressure"]
    assert "default comes back at the next boot" in result["notes"][0]


def test_absent_removes_the_file_once_and_releases_its_keys(host):
    host.run(("vm.swappiness", 1))
    result = host.run(state="absent")
    assert (result["changed"], result["released"]) == (True, ["vm.swappiness"])
    assert not host.path(OURS).exists()
    assert host.live("vm/swappiness") == "1"
    assert not host.run(state="absent")["changed"]


def test_absent_in_check_mode_removes_nothing(host):
    host.run(("vm.swappiness", 1))
    assert host.run(state="absent", check=True)["changed"]
    assert host.path(OURS).exists()


@pytest.mark.parametrize(
    "path", ["/etc/sysctl.conf", "/etc/sysctl.d/90-groundwork", "/etc/sysctl.d/.x.conf", "/etc/90-groundwork.conf"]
)
@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_file_that_the_boot_does_not_read_is_refused(host, path, state):
    host.write(path, "")
    assert "systemd-sysctl does not read it" in host.run(("vm.swappiness", 1), path=path, state=state)["msg"]
    assert host.path(path).exists()


# Rules


@pytest.mark.parametrize(
    ("key", "name", "value"), [("fs/file-max", "fs.file-max", 2097152), ("kernel/shmmax", "kernel.shmmax", 2147483648)]
)
def test_a_minimum_never_lowers_what_the_kernel_has(host, key, name, value):
    host.run((name, value, "minimum"))
    assert host.live(key) == LIVE[key]
    assert host.lines() == ["# at least", f"{name} = {LIVE[key]}"]


def test_a_minimum_raises_a_lower_value(host):
    host.run(("net.core.somaxconn", 65535, "minimum"))
    assert (host.live("net/core/somaxconn"), host.lines()[1]) == ("65535", "net.core.somaxconn = 65535")


def test_a_minimum_compares_number_by_number(host):
    host.run(("net.ipv4.tcp_rmem", "8192 87380 33554432", "minimum"))
    assert host.live("net/ipv4/tcp_rmem") == "8192 131072 33554432"


def test_a_minimum_in_the_file_does_not_follow_a_rising_live_value(host):
    host.run(("net.core.somaxconn", 65535, "minimum"))
    host.write("proc/sys/net/core/somaxconn", "131072\n")
    assert not host.run(("net.core.somaxconn", 65535, "minimum"))["changed"]
    assert host.live("net/core/somaxconn") == "131072"


def test_a_minimum_in_the_file_that_is_too_low_is_raised(host):
    host.write(OURS, f"{decisions.HEADER}# at least\nnet.core.somaxconn = 1024\n")
    host.run(("net.core.somaxconn", 65535, "minimum"))
    assert host.lines()[1] == "net.core.somaxconn = 65535"


def test_an_exact_value_lowers(host):
    host.run(("net.core.somaxconn", 128))
    assert host.live("net/core/somaxconn") == "128"


@pytest.mark.parametrize("name", ["net.ipv4.tcp_tw_recycle", "dev.i915.enable_rc6"])
def test_an_optional_key_that_is_missing_is_left_out_and_said(host, name):
    result = host.run((name, 0, "optional"), ("vm.swappiness", 1))
    assert host.lines() == ["vm.swappiness = 1"]
    assert [item["name"] for item in result["missing"]] == [name]
    assert "skipped" not in result, "Ansible would take the whole task for skipped"
    assert result["notes"][0].startswith(f"{name} is skipped: /proc/sys/{name.replace('.', '/')} does not exist (")


def test_an_optional_key_that_exists_is_set(host):
    host.run(("vm.swappiness", 1, "optional"))
    assert host.live("vm/swappiness") == "1"


# Refusals


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("net.bridge.bridge-nf-call-iptables", "the module br_netfilter provides it"),
        ("net.netfilter.nf_conntrack_max", "the module nf_conntrack provides it"),
        ("net.ipv4.tcp_tw_recycle", "Linux 4.12 removed it"),
        ("random.key.that.doesnt.exist", "does not exist; load the module"),
    ],
)
@pytest.mark.parametrize("apply", [True, False])
def test_an_unknown_key_is_refused_with_its_path_and_reason(host, name, why, apply):
    message = host.run((name, 1), ("vm.swappiness", 1), apply=apply)["msg"]
    assert f"{name}: /proc/sys/{decisions.key_path(name)} does not exist" in message
    assert why in message
    assert "modules-load.d" in message
    assert not host.path(OURS).exists()
    assert host.live("vm/swappiness") == "60"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("vm.swappiness", "one", "'one' is not a decimal number"),
        ("vm.swappiness", True, "'True' is not a decimal number"),
        ("vm.swappiness", "0x10", "'0x10' is not a decimal number"),
        ("vm.swappiness", "010", "'010' is not a decimal number"),
        ("vm.swappiness", "", "the value is empty"),
        ("vm.swappiness", " ", "the value is empty"),
        ("vm.swappiness", None, "the value is empty"),
        ("vm.swappiness", "1\nfs.file-max = 1", "spans lines"),
        ("net.ipv4.tcp_rmem", "4096 131072", "holds 2 number(s)"),
    ],
)
def test_an_illegal_value_is_refused_before_anything_is_written(host, name, value, fault):
    result = host.run(("net.core.somaxconn", 65535), (name, value))
    assert f"{name}: " in result["msg"]
    assert fault in result["msg"]
    assert host.live("net/core/somaxconn") == "4096"
    assert not host.path(OURS).exists()


def test_a_minimum_of_a_text_is_refused(host):
    assert "rule minimum needs numbers" in host.run(("kernel.core_pattern", "core", "minimum"))["msg"]


@pytest.mark.parametrize(
    ("name", "value"), [("kernel.core_pattern", "|/bin/dump %p"), ("net.ipv4.ip_local_reserved_ports", "8080-8090")]
)
def test_texts_and_port_ranges_are_values_too(host, name, value):
    assert host.run((name, value))["settings"] == {name: value}


def test_all_faults_are_reported_together(host):
    host.write("etc/sysctl.d/99-site.conf", "vm.vfs_cache_pressure = 200\n")
    message = host.run(("vm.swappiness", "x"), ("no.such", 1), ("vm.vfs_cache_pressure", 50))["msg"]
    assert all(part in message for part in ("vm.swappiness: 'x'", "no.such: /proc/sys/no/such", "99-site.conf:1"))


def test_a_key_that_only_takes_writes_is_no_setting(host, monkeypatch):
    monkeypatch.setattr(decisions, "read_live", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert "vm.swappiness: its value cannot be read (Permission denied)" in host.run(("vm.swappiness", 1))["msg"]


def test_a_read_only_key_is_refused_only_if_it_would_be_written(host):
    host.link("proc/sys/kernel/ostype", "/proc/sys/kernel/ostype")
    assert "kernel.ostype: the live value is read-only here" in host.run(("kernel.ostype", "GNU"))["msg"]
    assert host.run(("kernel.ostype", "GNU"), apply=False)["changed"]


def test_a_value_that_the_kernel_refuses_puts_all_live_values_back(host):
    # A file of the test's own process, where the kernel refuses this value as it does for tcp_tw_reuse = 99.
    host.link("proc/sys/net/ipv4/tcp_tw_reuse", "/proc/self/oom_score_adj")
    host.write(OURS, "vm.swappiness = 10\n")
    result = host.run(("vm.swappiness", 1), ("net.ipv4.tcp_tw_reuse", 99999), ("vm.vfs_cache_pressure", 50))
    assert "net.ipv4.tcp_tw_reuse = 99999: the kernel refused the value (Invalid argument)" in result["msg"]
    assert (host.live("vm/swappiness"), host.live("vm/vfs_cache_pressure")) == ("60", "100")
    assert host.path(OURS).read_text() == "vm.swappiness = 10\n"


def test_a_value_that_the_kernel_alters_is_refused(host):
    host.path("proc/sys/vm/swappiness").unlink()
    host.link("proc/sys/vm/swappiness", "/dev/null")
    with pytest.raises(decisions.KernelRefusedError, match="the kernel made it ''"):
        decisions.write_live(host.root, [decisions.Change("vm/swappiness", "", "1")])


# Other files


def overrides(result):
    return [(item["key"], item["theirs"], item["file"], item["line"]) for item in result["overrides"]]


@pytest.mark.parametrize("directory", ["etc", "run", "usr/local/lib", "usr/lib"])
def test_a_later_file_that_sets_another_value_fails_the_run(host, directory):
    host.write(f"{directory}/sysctl.d/99-site.conf", "# site\nvm.swappiness=10\n")
    result = host.run(("vm.swappiness", 1))
    assert overrides(result) == [("vm.swappiness", "10", f"/{directory}/sysctl.d/99-site.conf", 2)]
    assert f"/{directory}/sysctl.d/99-site.conf:2 is read after this file and sets vm.swappiness to '10'" in result["msg"]
    assert not host.path(OURS).exists()
    assert host.live("vm/swappiness") == "60"


def test_the_override_is_a_warning_if_so_asked(host):
    host.write("etc/sysctl.d/99-site.conf", "vm.swappiness = 10\n")
    host.run(("vm.swappiness", 1), on_override="warn")
    assert "99-site.conf:1" in host.warnings[0]
    assert host.lines() == ["vm.swappiness = 1"]


def test_sysctl_conf_counts_where_a_link_brings_it_into_the_boot(host):
    host.write("etc/sysctl.conf", "vm.swappiness = 10\n")
    host.link("etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")
    assert overrides(host.run(("vm.swappiness", 1))) == [("vm.swappiness", "10", "/etc/sysctl.conf", 1)]


def test_sysctl_conf_without_the_link_is_only_warned_about(host):
    host.write("etc/sysctl.conf", "vm.swappiness = 10\n")
    result = host.run(("vm.swappiness", 1))
    assert (result["changed"], result["overrides"]) == (True, [])
    assert "/etc/sysctl.conf:1 sets vm.swappiness to '10'" in host.warnings[0]


@pytest.mark.parametrize(
    ("line", "theirs"),
    [
        ("-vm.swappiness = 10", "10"),
        ("vm/swappiness = 10", "10"),
        ("vm.swappiness = 1\nvm.swappiness = 10", "10"),
        ("-vm.swappiness", None),
    ],
)
def test_every_spelling_of_an_override_is_seen(host, line, theirs):
    host.write("etc/sysctl.d/99-site.conf", line)
    assert [item["theirs"] for item in host.run(("vm.swappiness", 1))["overrides"]] == [theirs]


@pytest.mark.parametrize(
    "line",
    [
        "vm.swappiness = 1",
        "vm.swapp* = 10",
        "; vm.swappiness = 10",
        "#vm.swappiness = 10",
        "vm.swappiness = 10\nvm.swappiness = 1",
    ],
)
def test_a_later_file_with_the_same_effect_is_no_override(host, line):
    host.write("etc/sysctl.d/99-site.conf", line)
    assert host.run(("vm.swappiness", 1))["overrides"] == []


def test_an_earlier_file_is_no_override(host):
    host.write("etc/sysctl.d/10-distribution.conf", "vm.swappiness = 10\n")
    assert host.run(("vm.swappiness", 1))["changed"]


@pytest.mark.parametrize("mask", ["/dev/null", None])
def test_a_masked_file_is_no_override(host, mask):
    host.write("usr/lib/sysctl.d/99-site.conf", "vm.swappiness = 10\n")
    if mask:
        host.link("etc/sysctl.d/99-site.conf", mask)
    else:
        host.write("etc/sysctl.d/99-site.conf", "vm.swappiness = 1\n")
    assert host.run(("vm.swappiness", 1))["overrides"] == []


@pytest.mark.parametrize("name", [".99-site.conf", "99-site.conf~", "99-site.conf.dpkg-old"])
def test_files_that_the_boot_passes_over_are_no_override(host, name):
    host.write(f"etc/sysctl.d/{name}", "vm.swappiness = 10\n")
    assert host.run(("vm.swappiness", 1))["overrides"] == []


@pytest.mark.parametrize(("theirs", "count"), [("1024", 1), ("65535", 0), ("131072", 0)])
def test_only_a_lower_value_overrides_a_minimum(host, theirs, count):
    host.write("etc/sysctl.d/99-site.conf", f"net.core.somaxconn = {theirs}\n")
    assert len(host.run(("net.core.somaxconn", 65535, "minimum"))["overrides"]) == count


def test_broken_lines_elsewhere_are_reported_and_do_not_fail(host):
    host.write("etc/sysctl.conf", "net.bridge.bridge-nf-call-iptables = 1\n-net.bridge.x = 1\nnet.bridge.* = 1\n")
    host.write("etc/sysctl.d/95-site.conf", "vm.swappiness 10\n= 1\n")
    result = host.run(("vm.swappiness", 1))
    assert result["changed"]
    assert result["foreign_faults"] == [
        "/etc/sysctl.d/95-site.conf:1: 'vm.swappiness 10' is not an assignment",
        "/etc/sysctl.d/95-site.conf:2: '= 1' is not an assignment",
        "/etc/sysctl.conf:1: /proc/sys/net/bridge/bridge-nf-call-iptables does not exist (the module br_netfilter provides it)",
    ]
    assert "95-site.conf:1" in host.warnings[0]

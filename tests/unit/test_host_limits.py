"""How wanted limits are fitted to a host, and the module host_limits_info."""

from __future__ import annotations

import host_limits_info
import pytest
from ansible.module_utils import host_limits as decisions
from ansible.module_utils.basic import AnsibleModule

MIB, GIB = 1024**2, 1024**3
WANTED = {
    "journal_max_use": "10G",
    "journal_keep_free": "4G",
    "journal_disk_share": 15,
    "shm_min": "2G",
    "nofile_soft": 65536,
    "nofile_hard": 524288,
    "memlock": None,
}


def host(**differences):
    usual = {"journal_disk": 500 * GIB, "shm": 32 * GIB, "memory": 64 * GIB, "nr_open": 1048576, "shm_options": None}
    return decisions.Host(**{**usual, **differences})


def faults(on=None, **differences):
    return decisions.make_plan({**WANTED, **differences}, on or host())[1]


def plan(on=None, **differences):
    fitted, found = decisions.make_plan({**WANTED, **differences}, on or host())
    assert found == []
    return fitted


# Sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("10G", 10 * GIB), ("512M", 512 * MIB), ("1t", 1024 * GIB), ("64K", 65536), ("4096", 4096), (" 2G ", 2 * GIB)],
)
def test_a_size_counts_in_powers_of_1024(text, size):
    assert decisions.size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0G", "-1G", "10GB", "1.5G", "10 G", "15%", "unlimited", "ten"])
def test_anything_else_is_no_size(text):
    with pytest.raises(ValueError, match="is no size; write a whole number with K, M, G or T"):
        decisions.size(text)


# Journal


@pytest.mark.parametrize(
    ("disk", "max_use", "keep_free"),
    [
        (500 * GIB, "10240M", "4096M"),
        (40 * GIB, "6144M", "4096M"),
        (12638253056, "1807M", "1807M"),
        (MIB, "1M", "1M"),
    ],
)
def test_the_journal_never_gets_more_than_its_share_of_the_disk(disk, max_use, keep_free):
    fitted = plan(host(journal_disk=disk))
    assert (fitted["journal_max_use"], fitted["journal_keep_free"]) == (max_use, keep_free)


# /dev/shm


@pytest.mark.parametrize("options", [None, "defaults", "size=50%", "nosuid,size=16g", "size=2G", "size=2147483648"])
def test_shared_memory_that_is_large_enough_is_left_alone(options):
    assert plan(host(shm_options=options))["shm_mount"] is None


def test_small_shared_memory_gets_a_line_with_the_options_of_systemd():
    assert plan(host(shm=64000 * 1024))["shm_mount"] == {"state": "mounted", "opts": "nosuid,nodev,size=2048M"}


def test_a_small_line_of_fstab_is_raised_and_keeps_its_other_options():
    fitted = plan(host(shm=512 * MIB, shm_options="defaults,SIZE=512m,noexec"))
    assert fitted["shm_mount"] == {"state": "mounted", "opts": "defaults,noexec,size=2048M"}


def test_a_small_line_of_fstab_does_not_shrink_what_is_mounted():
    fitted = plan(host(shm=32 * GIB, shm_options="size=512m"))
    assert fitted["shm_mount"] == {"state": "mounted", "opts": "size=32768M"}


@pytest.mark.parametrize("options", ["defaults,size=16G", "nosuid,size=50%", "defaults"])
def test_a_line_of_fstab_that_asks_for_enough_only_takes_effect(options):
    fitted = plan(host(shm=64 * MIB, shm_options=options))
    assert fitted["shm_mount"] == {"state": "remounted", "opts": options}


def test_a_size_between_two_mib_is_rounded_up_so_that_the_minimum_is_reached():
    assert plan(host(shm=MIB), shm_min="2500000")["shm_mount"]["opts"] == "nosuid,nodev,size=3M"


def test_what_the_plan_mounts_is_enough_on_the_next_run():
    first = plan(host(shm=64 * MIB))["shm_mount"]
    assert plan(host(shm=2 * GIB, shm_options=first["opts"]))["shm_mount"] is None


@pytest.mark.parametrize(
    ("fstab", "options"),
    [
        ("", None),
        ("# tmpfs /dev/shm tmpfs size=1G 0 0\n", None),
        ("tmpfs /dev/shm2 tmpfs size=1G 0 0\n", None),
        ("UUID=1 / ext4 defaults 0 1\nnone\t/dev/shm\ttmpfs\tsize=8G,nodev\t0\t0\n", "size=8G,nodev"),
        ("  tmpfs /dev/shm tmpfs defaults", "defaults"),
    ],
)
def test_the_line_of_shared_memory_is_found_in_fstab(fstab, options):
    assert decisions.shm_options(fstab) == options


# Open files and locked memory


@pytest.mark.parametrize(("memlock", "written"), [(None, None), ("unlimited", "unlimited"), ("8M", 8192)])
def test_locked_memory_is_written_in_kib(memlock, written):
    assert plan(memlock=memlock)["memlock"] == written


def test_the_hard_limit_may_be_as_high_as_the_kernel_allows():
    assert plan(nofile_hard=1048576)


# Refusals


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"journal_max_use": "10GB"}, "host_limits_journal_max_use: '10GB' is no size"),
        ({"journal_keep_free": "unlimited"}, "host_limits_journal_keep_free: 'unlimited' is no size"),
        ({"shm_min": "50%"}, "host_limits_shm_min: '50%' is no size"),
        ({"memlock": "none"}, "host_limits_memlock: 'none' is no size"),
        ({"journal_disk_share": 0}, "host_limits_journal_disk_share: 0 is no percentage"),
        ({"journal_disk_share": 101}, "host_limits_journal_disk_share: 101 is no percentage"),
        ({"nofile_soft": 0}, "host_limits_nofile_soft: 0 must be at least 1"),
        ({"nofile_soft": 600000}, "host_limits_nofile_soft: 600000 must be at least 1 and at most host_limits_nofile_hard"),
        ({"nofile_hard": 1048577}, "host_limits_nofile_hard: 1048577 is above the kernel's fs.nr_open (1048576)"),
    ],
)
def test_an_illegal_limit_is_refused_by_the_name_of_its_variable(wanted, message):
    [fault] = faults(**wanted)
    assert fault.startswith(message)


def test_all_illegal_limits_are_found_at_once():
    found = faults(journal_max_use="x", shm_min="y", nofile_hard=2**40)
    assert [fault.split(":")[0] for fault in found] == [
        "host_limits_shm_min",
        "host_limits_journal_max_use",
        "host_limits_nofile_hard",
    ]


# The module


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, text in {"proc/meminfo": "MemTotal:  65536 kB\nMemFree: 1 kB\n", "proc/sys/fs/nr_open": "1048576\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr(host_limits_info, "ROOT", tmp_path)
    return tmp_path


def test_a_host_without_fstab_and_journal_directory_is_read(root):
    found = decisions.read_host(root)
    assert (found.memory, found.nr_open, found.shm_options) == (64 * MIB, 1048576, None)
    assert found.journal_disk == found.shm > 0


def test_the_line_of_fstab_is_read_from_the_host(root):
    (root / "etc").mkdir()
    (root / "etc/fstab").write_text("tmpfs /dev/shm tmpfs size=8G 0 0\n")
    assert decisions.read_host(root).shm_options == "size=8G"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("check", [True, False])
def test_the_module_returns_the_plan_and_changes_nothing(run_module, check):
    result = run_module(host_limits_info, check=check, **{**WANTED, "shm_min": "1K"})
    assert result["plan"].keys() == {"journal_max_use", "journal_keep_free", "shm_mount", "memlock", "manager_outdated"}
    assert not result.get("changed", False)


@pytest.mark.usefixtures("root")
def test_the_module_fails_with_the_reasons(run_module):
    result = run_module(host_limits_info, **{**WANTED, "journal_max_use": "much"})
    assert result["failed"]
    assert "host_limits_journal_max_use: 'much' is no size" in result["msg"]


LATER = "systemd/system.conf.d/99-nofile.conf"
MASKED = "[Manager]\nDefaultLimitNOFILE=1024\n"


def write(root, **files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        (f"etc/{LATER}", "[Manager]\nDefaultLimitNOFILE=1024\n", "sets DefaultLimitNOFILE to '1024' where '65536:524288' is"),
        (f"usr/lib/{LATER}", "[Manager]\n DefaultLimitNOFILE = 65536\n", "sets DefaultLimitNOFILE to '65536' where"),
        (f"run/{LATER}", "[Manager]\nDefaultLimitNOFILE=\n", "sets DefaultLimitNOFILE to '' where"),
        (
            "etc/systemd/journald.conf.d/zz.conf",
            "[Journal]\nStorage=volatile\n",
            "sets Storage to 'volatile' where 'persistent' is",
        ),
        ("etc/systemd/journald.conf.d/zz.conf", "[Journal]\nSystemMaxUse=1M\n", "sets SystemMaxUse to '1M' where"),
    ],
)
def test_a_later_drop_in_is_refused_with_its_name_since_the_role_could_never_win(root, run_module, file, text, fault):
    write(root, **{file: text})
    result = run_module(host_limits_info, **WANTED)
    assert f"/{file} is read after 90-groundwork.conf and {fault}" in result["msg"]
    assert "remove that line, or give it that value" in result["msg"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (f"etc/{LATER}", "[Manager]\nDefaultLimitNOFILE=1024\nDefaultLimitNOFILE=65536:524288\n"),
        (f"etc/{LATER}", "[Manager]\n#DefaultLimitNOFILE=1024\nDefaultTasksMax=1024\n"),
        ("etc/systemd/system.conf.d/10-early.conf", MASKED),
        ("etc/systemd/system.conf.d/90-groundwork.conf", MASKED),
        ("usr/lib/systemd/system.conf.d/90-groundwork.conf", MASKED),
        ("etc/systemd/system.conf", MASKED),
        ("etc/systemd/system.conf.d/99-nofile.conf.dpkg-old", MASKED),
        ("usr/lib/systemd/journald.conf.d/syslog.conf", "[Journal]\nForwardToSyslog=yes\n"),
    ],
)
def test_a_drop_in_that_takes_nothing_back_is_left_alone(root, run_module, file, text):
    write(root, **{file: text})
    assert "plan" in run_module(host_limits_info, **WANTED)


def test_a_masked_drop_in_takes_nothing_back(root, run_module):
    write(root, **{f"usr/lib/{LATER}": MASKED, f"etc/{LATER}": ""})
    assert "plan" in run_module(host_limits_info, **WANTED)


@pytest.mark.usefixtures("root")
def test_illegal_limits_and_later_drop_ins_are_in_one_message(root, run_module):
    write(root, **{f"etc/{LATER}": MASKED})
    message = run_module(host_limits_info, **{**WANTED, "shm_min": "much"})["msg"]
    assert all(part in message for part in ("host_limits_shm_min", "99-nofile.conf"))


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("check", "refused"), [(True, False), (False, True)])
def test_an_fs_nr_open_that_an_earlier_task_raises_counts_in_check_mode_only(run_module, check, refused):
    wanted = {**WANTED, "nofile_hard": 2000000, "pending_nr_open": 2097152}
    assert run_module(host_limits_info, check=check, **wanted).get("failed", False) is refused


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("shown", "outdated"),
    [
        ("DefaultLimitNOFILE=524288\nDefaultLimitNOFILESoft=65536\n", False),
        ("DefaultLimitNOFILE=524288\nDefaultLimitNOFILESoft=1024\n", True),
    ],
)
def test_systemd_is_asked_for_the_limits_it_gives(run_module, monkeypatch, shown, outdated):
    """An interrupted run leaves the file written and the manager with its old limits."""
    monkeypatch.setattr(AnsibleModule, "run_command", lambda *_, **__: (0, shown, ""))
    result = run_module(host_limits_info, **{**WANTED, "nofile_soft": 65536, "nofile_hard": 524288})
    assert result["plan"]["manager_outdated"] is outdated

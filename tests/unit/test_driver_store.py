"""What is kept for the way back, and what is prepared before a change, on a stand-in (tests/standins/apt_host.py)."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils import apt_packages, driver_store
from ansible.module_utils.driver_host import DriverError, Host
from ansible.module_utils.driver_record import DriverSet, Record

sys.path.append(str(Path(__file__).parents[1] / "standins"))
standin = importlib.import_module("apt_host")
Deb = standin.Deb

MIB = 1024 * 1024
FIRST_KERNEL, SECOND_KERNEL = standin.KERNELS
TREE = "nvidia-kernel-dkms_535.261.03-1/nvidia-current/535.261.03"
CUDA = Deb("libcuda1", "535.261.03-1", size=2048)
DKMS = Deb("nvidia-kernel-dkms", "535.261.03-1", dkms=("nvidia-current", "535.261.03"), size=4096)


@pytest.fixture
def there(tmp_path):
    found = standin.DriverHost(tmp_path / "root")
    found.offered = [CUDA, DKMS]
    return found


@pytest.fixture
def host(there):
    return Host(there.root, there.run, there.kernels(), lock_timeout=0)


def wanted(*debs, **differences):
    return DriverSet(version="535.261.03", packages={deb.key: deb.version for deb in debs}, **differences)


def stored(host):
    return sorted(path.name for path in host.debs.iterdir())


def checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def space(monkeypatch):
    """Say how many MiB are free below a directory; elsewhere there is enough."""
    free = {}

    def usage(path):
        return SimpleNamespace(free=min([size * MIB for name, size in free.items() if Path(path).name == name], default=10**12))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return free


# Files


def test_files_are_downloaded_in_one_call_and_their_checksums_noted(host, there):
    goal = wanted(CUDA, DKMS)
    assert driver_store.fetch(host, goal, required=goal.packages) == []
    files = ["libcuda1_535.261.03-1_amd64.deb", "nvidia-kernel-dkms_535.261.03-1_amd64.deb"]
    assert stored(host) == files
    assert goal.debs == {
        "libcuda1": {"file": files[0], "sha256": checksum(host.debs / files[0])},
        "nvidia-kernel-dkms": {"file": files[1], "sha256": checksum(host.debs / files[1])},
    }
    assert len(there.ran("sh")) == 1


def test_a_second_time_needs_no_apt(host, there):
    goal = wanted(CUDA, DKMS)
    driver_store.fetch(host, goal, required=goal.packages)
    there.calls.clear()
    assert driver_store.fetch(host, goal, required=goal.packages) == []
    assert there.calls == []


def test_what_apt_has_in_its_cache_needs_no_network(host, there):
    there.offered = []
    deb = Deb("libcuda1", "1:535.261.03-1")
    there.save(deb, there.root / "var/cache/apt/archives")
    assert driver_store.fetch(host, wanted(deb), required=["libcuda1"]) == []
    assert stored(host) == ["libcuda1_1%3a535.261.03-1_amd64.deb"]
    assert there.calls == []


def test_the_file_of_another_architecture_is_its_own(host, there):
    foreign = Deb("libcuda1", "535.261.03-1", architecture="i386")
    there.offered.append(foreign)
    goal = wanted(CUDA, foreign)
    driver_store.fetch(host, goal, required=goal.packages)
    assert {name: deb["file"] for name, deb in goal.debs.items()} == {
        "libcuda1": "libcuda1_535.261.03-1_amd64.deb",
        "libcuda1:i386": "libcuda1_535.261.03-1_i386.deb",
    }


def test_a_file_that_was_damaged_is_fetched_again(host):
    goal = wanted(CUDA)
    driver_store.fetch(host, goal, required=["libcuda1"])
    file = host.debs / goal.debs["libcuda1"]["file"]
    good = checksum(file)
    file.write_text(file.read_text() + " ")
    assert driver_store.fetch(host, goal, required=["libcuda1"]) == []
    assert checksum(file) == good


def test_packages_that_are_not_installed_with_a_set_need_no_file(host, there):
    assert driver_store.fetch(host, DriverSet(packages={"libcuda1": None}), required=["libcuda1"]) == []
    assert there.calls == []


def test_one_file_that_no_source_has_does_not_take_the_others_along(host, there):
    there.offered = [DKMS]
    assert driver_store.fetch(host, wanted(CUDA, DKMS), required=[]) == ["libcuda1"]
    assert stored(host) == ["nvidia-kernel-dkms_535.261.03-1_amd64.deb"]


def test_a_required_file_that_no_source_has_is_refused_with_what_apt_said(host, there):
    there.offered = [DKMS]
    with pytest.raises(DriverError) as caught:
        driver_store.fetch(host, wanted(CUDA, DKMS), required=["libcuda1"])
    assert str(caught.value) == (
        "apt can't download libcuda1=535.261.03-1: E: Version '535.261.03-1' for 'libcuda1' was not found. Nothing was changed. "
        "Remedy: see that the source answers, and run `apt-get update`"
    )


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{}")], ids=["lost", "damaged"])
def test_a_file_that_the_set_knows_and_that_is_gone_counts_as_missing(host, there, spoil):
    """Or a change would begin that has no way back."""
    goal = wanted(CUDA, DKMS)
    driver_store.fetch(host, goal, required=goal.packages)
    there.offered = []
    spoil(host.debs / goal.debs["libcuda1"]["file"])
    assert driver_store.fetch(host, goal, required=[]) == ["libcuda1"]
    assert set(goal.debs) == {"nvidia-kernel-dkms"}


def test_a_set_that_knows_the_file_of_another_version_needs_that_of_its_own(host, there):
    """Somebody moved the package since: neither is the old file the way back, nor is the new one damaged."""
    goal = wanted(CUDA)
    driver_store.fetch(host, goal, required=["libcuda1"])
    moved = wanted(Deb("libcuda1", "535.274.02-1"), debs=goal.debs)
    there.offered = []
    assert driver_store.fetch(host, moved, required=[]) == ["libcuda1"]
    there.save(Deb("libcuda1", "535.274.02-1"), host.debs)
    moved.debs = goal.debs
    assert driver_store.fetch(host, moved, required=["libcuda1"]) == []
    assert moved.debs["libcuda1"]["file"] == "libcuda1_535.274.02-1_amd64.deb"
    assert set(goal.debs) == {"libcuda1"}
    assert goal.debs["libcuda1"]["file"] == "libcuda1_535.261.03-1_amd64.deb"


# Space


def test_a_download_that_does_not_fit_is_not_begun(host, there, space):
    there.offered = [Deb("libcuda1", "1-1", size=300 * MIB)]
    space["debs"] = 331
    with pytest.raises(DriverError) as caught:
        driver_store.fetch(host, wanted(*there.offered), required=[])
    assert str(caught.value).startswith(
        f"the packages need 332 MiB in {host.debs}, 331 MiB are free. Nothing was changed. Remedy: "
    )
    assert stored(host) == []
    space["debs"] = 332
    assert driver_store.fetch(host, wanted(*there.offered), required=[]) == []


def prepared(host, *debs, **differences):
    goal = wanted(*debs, **differences)
    driver_store.fetch(host, goal, required=goal.packages)
    return goal


@pytest.mark.parametrize(("free", "enough"), [(37, False), (38, True)])
def test_unpacked_packages_must_fit(host, space, free, enough):
    """2048 and 4096 KiB, and what apt and dpkg themselves write."""
    goal, space["usr"] = prepared(host, CUDA, DKMS), free
    if enough:
        driver_store.require_space(host, goal, {})
    else:
        with pytest.raises(DriverError, match=f"the unpacked packages need 38 MiB in {host.root}/usr, 37 MiB are free"):
            driver_store.require_space(host, goal, {})


def test_packages_that_stay_need_no_space(host, there, space):
    goal, space["usr"] = prepared(host, CUDA, DKMS), 34
    there.put(DKMS)
    driver_store.require_space(host, goal, apt_packages.installed(host.run))


def test_a_build_must_fit(host, space):
    goal, space["nvidia_driver"] = prepared(host, DKMS), 631
    with pytest.raises(DriverError, match=f"the modules and their build need 632 MiB in {host.store}, 631 MiB are free"):
        driver_store.require_space(host, goal, {})


def test_without_modules_to_build_there_need_be_no_space_for_it(host, space):
    goal, space["nvidia_driver"] = prepared(host, CUDA), 40
    driver_store.require_space(host, goal, {})


def test_modules_that_are_kept_need_no_space_for_a_build(host, space):
    """The way back must not fail on a disk that the newer driver has filled."""
    goal, space["nvidia_driver"] = prepared(host, DKMS), 700
    driver_store.build_modules(host, goal)
    space["nvidia_driver"] = 40
    driver_store.require_space(host, goal, {})
    shutil.rmtree(host.kept / TREE / SECOND_KERNEL)
    with pytest.raises(DriverError, match="the modules and their build need 632 MiB"):
        driver_store.require_space(host, goal, {})


# Modules


def test_modules_are_built_for_each_kernel_and_kept(host, there):
    goal = prepared(host, CUDA, DKMS)
    before = {name: text for name, text in there.tree().items() if not name.startswith("var/lib/groundwork")}
    driver_store.build_modules(host, goal)
    assert goal.sources == [["nvidia-current", "535.261.03"]]
    for kernel in (FIRST_KERNEL, SECOND_KERNEL):
        assert (host.kept / TREE / kernel / "x86_64/module/nvidia-current.ko").read_text() == "535.261.03"
    assert {name: text for name, text in there.tree().items() if not name.startswith("var/lib/groundwork")} == before
    assert not (host.store / "build").exists()


def test_modules_that_are_kept_are_not_built_again(host, there):
    goal = prepared(host, DKMS)
    driver_store.build_modules(host, goal)
    there.calls.clear()
    shutil.rmtree(host.kept / TREE / FIRST_KERNEL)
    driver_store.build_modules(host, goal)
    assert [call[call.index("-k") + 1] for call in there.ran("dkms", "build")] == [FIRST_KERNEL]


def test_open_and_proprietary_modules_of_one_version_are_kept_apart(host, there):
    """To DKMS both are nvidia 580.95.05."""
    flavours = [Deb(f"nvidia-kernel-{name}dkms", "580.95.05-1", dkms=("nvidia", "580.95.05")) for name in ("", "open-")]
    there.offered = flavours
    for goal in [prepared(host, deb) for deb in flavours]:
        driver_store.build_modules(host, goal)
    assert len(there.ran("dkms", "build")) == 2 * len(there.kernels())
    assert sorted(path.name for path in host.kept.iterdir()) == [
        "nvidia-kernel-dkms_580.95.05-1",
        "nvidia-kernel-open-dkms_580.95.05-1",
    ]


def test_kept_modules_need_no_headers(host, there):
    goal = prepared(host, DKMS)
    driver_store.build_modules(host, goal)
    (there.root / f"lib/modules/{FIRST_KERNEL}/build").rmdir()
    driver_store.build_modules(host, goal)


def test_a_kernel_without_headers_is_named(host, there):
    goal = prepared(host, DKMS)
    (there.root / f"lib/modules/{SECOND_KERNEL}/build").rmdir()
    with pytest.raises(DriverError) as caught:
        driver_store.build_modules(host, goal)
    assert str(caught.value) == (
        f"kernel {SECOND_KERNEL} may boot and has no headers, so no module can be built for it. Nothing was changed. "
        f"Remedy: install linux-headers-{SECOND_KERNEL}, or remove that kernel"
    )
    assert not (host.store / "build").exists()


def test_modules_that_do_not_build_are_refused_while_all_is_whole(host, there):
    """R14."""
    error = "Error! Bad return status for module build on kernel: x (x86_64)\n"
    goal = prepared(host, DKMS)
    there.fails = lambda argv: (10, "", error) if argv[:2] == ["dkms", "build"] else None
    with pytest.raises(DriverError) as caught:
        driver_store.build_modules(host, goal)
    assert str(caught.value).startswith(
        "the modules of driver 535.261.03 don't build, so no package was touched and the driver is as it was. Remedy: "
    )
    assert str(caught.value).endswith(error.strip())
    assert sorted(path.name for path in host.store.iterdir()) == ["debs"]


@pytest.mark.parametrize(
    "name", ["nvidia-kernel-dkms", "nvidia-dkms-580-server-open", "nvidia-kernel-source-580", "nvidia-kernel-open-source-580"]
)
def test_packages_with_sources_are_known_by_their_names(host, there, name):
    deb = Deb(name, "1-1", dkms=("nvidia", "1"))
    there.offered = [deb]
    goal = prepared(host, deb)
    driver_store.build_modules(host, goal)
    assert goal.sources == [["nvidia", "1"]]


@pytest.mark.parametrize("name", ["dkms", "libcuda1", "nvidia-kernel-common-580", "linux-modules-nvidia-580-generic"])
def test_other_packages_have_nothing_to_build(host, there, name):
    deb = Deb(name, "1-1", dkms=("nvidia", "1"))
    there.offered = [deb]
    goal = prepared(host, deb)
    driver_store.build_modules(host, goal)
    assert goal.sources == []
    assert there.ran("dpkg-deb") == []


def test_a_package_that_stays_and_whose_file_is_lost_is_not_built(host, there):
    """An installed driver that Groundwork takes over, of a version that its source no longer has."""
    there.offered = [CUDA]
    goal = wanted(CUDA, DKMS)
    assert driver_store.fetch(host, goal, required=["libcuda1"]) == ["nvidia-kernel-dkms"]
    driver_store.build_modules(host, goal)
    assert goal.sources == []


def test_remains_of_a_killed_build_are_removed(host):
    goal = prepared(host, DKMS)
    remains = host.store / "build/tree/nvidia-current/535.261.03/source"
    remains.parent.mkdir(parents=True)
    remains.symlink_to("/nowhere")
    driver_store.build_modules(host, goal)
    assert not (host.store / "build").exists()
    assert goal.sources == [["nvidia-current", "535.261.03"]]


# The lock


@pytest.fixture
def holder(there):
    lock = there.write("var/lib/dpkg/lock-frontend", "")
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        there.write(f"proc/{process.pid}/comm", "unattended-upgr\n")
        yield process
        process.kill()


def test_another_package_manager_is_waited_for_and_then_named(host, holder, monkeypatch):
    host.lock_timeout, waits = 3, []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("time.monotonic", lambda: 0.5 * len(waits))
    with pytest.raises(DriverError) as caught:
        driver_store.wait_for_lock(host)
    assert str(caught.value).startswith(
        f"unattended-upgr (process {holder.pid}) held the lock of dpkg for 3 s. Nothing was changed. Remedy: "
    )
    assert sum(waits) == 3.5


def test_a_lock_that_is_given_back_in_time_is_no_obstacle(host, holder, monkeypatch):
    def give_back(_):
        holder.stdin.close()
        holder.stdout.read()

    host.lock_timeout = 60
    monkeypatch.setattr("time.sleep", give_back)
    driver_store.wait_for_lock(host)
    assert apt_packages.lock_holder(host.root) is None


# Pruning


def test_only_what_the_two_sets_need_is_kept(host, there):
    third = Deb("nvidia-kernel-dkms", "580.95.05-1", dkms=("nvidia", "580.95.05"))
    second = Deb("nvidia-kernel-dkms", "535.309.01-1", dkms=("nvidia-current", "535.309.01"))
    there.offered += [second, third]
    sets = [prepared(host, deb) for deb in (DKMS, second, third)]
    for goal in sets:
        driver_store.build_modules(host, goal)
    for gone in ("5.10.0-1-amd64", f".{FIRST_KERNEL}.part"):
        (host.kept / "nvidia-kernel-dkms_535.309.01-1/nvidia-current/535.309.01" / gone).mkdir()
    driver_store.prune(host, Record(current=sets[1], previous=sets[0]))
    assert stored(host) == ["nvidia-kernel-dkms_535.261.03-1_amd64.deb", "nvidia-kernel-dkms_535.309.01-1_amd64.deb"]
    assert sorted(str(path.relative_to(host.kept)) for path in host.kept.glob("*/*/*/*")) == [
        f"nvidia-kernel-dkms_{version}-1/nvidia-current/{version}/{kernel}"
        for version in ("535.261.03", "535.309.01")
        for kernel in (FIRST_KERNEL, SECOND_KERNEL)
    ]
    assert len(list(host.kept.iterdir())) == 2


def test_pruning_for_no_sets_empties_the_store(host):
    driver_store.build_modules(host, prepared(host, DKMS))
    driver_store.prune(host, Record())
    assert [path for path in host.store.rglob("*") if path.is_file()] == []

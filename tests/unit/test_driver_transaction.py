"""All of a change or nothing of it, on a stand-in of dpkg, apt and DKMS (tests/standins/apt_host.py)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from ansible.module_utils import apt_packages, driver_plan, driver_record, driver_store, driver_transaction, files, gpu_catalog
from ansible.module_utils.driver_host import DriverError, Host
from ansible.module_utils.driver_plan import PREFERENCES, UNATTENDED, Wish
from ansible.module_utils.driver_record import DriverSet, Record

sys.path.append(str(Path(__file__).parents[1] / "standins"))
standin = importlib.import_module("apt_host")
Deb = standin.Deb

OLD, NEW = "535.261.03", "535.309.01"
KERNELS = standin.KERNELS
NAMES = ["libcuda1", "nvidia-kernel-dkms", "nvidia-smi"]
MARK = "etc/dkms/no-autoinstall"


def debs(version):
    return [
        Deb("libcuda1", f"{version}-1"),
        Deb("nvidia-kernel-dkms", f"{version}-1", dkms=("nvidia-current", version)),
        Deb("nvidia-smi", f"{version}-1"),
    ]


def wish(version):
    pins = [{"package": "src:nvidia-graphics-drivers", "version": f"{version}-*"}]
    return Wish(NAMES, pins, list(gpu_catalog.OWNED), version, ["nvidia-current"], "distribution")


class _Driver:
    """A host with one driver in use and another one prepared, and the change from one to the other."""

    def __init__(self, root, installed=OLD):
        self.there = standin.DriverHost(root)
        self.there.offered = [*debs(OLD), *debs(NEW)]
        self.host = Host(root, self.there.run, list(KERNELS))
        self.record = Record()
        for deb in debs(installed) if installed else ():
            self.there.put(deb)

    def prepare(self, version):
        packages = apt_packages.installed(self.there.run)
        after = driver_plan.new_set(wish(version), driver_plan.plan(self.host, wish(version), packages))
        before = driver_plan.present_set(self.host, after, wish(version), packages, self.record.current)
        for part in (before, after):
            driver_store.fetch(self.host, part, required=())
        driver_store.build_modules(self.host, after)
        self.there.calls.clear()
        return before, after

    def change(self, version, back=False):
        before, after = self.prepare(version)
        driver_transaction.exchange(self.host, self.record, before, after, back=back)
        return before, after

    def written(self):
        return driver_record.read(self.there.root)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """Records wait for a disk that others write to; test_driver_record.py looks at that."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def driver(tmp_path):
    return _Driver(tmp_path / "root")


@pytest.fixture
def bare(tmp_path):
    return _Driver(tmp_path / "root", installed=None)


def system(there):
    """Return the files of the system, without Groundwork's own."""
    return {name: text for name, text in there.tree().items() if not name.startswith(("var/lib/groundwork", "etc/dkms"))}


def in_place(there, version, state="hi"):
    assert there.versions() == dict.fromkeys(NAMES, f"{version}-1 {state}")
    assert {kernel: there.module(kernel) for kernel in KERNELS} == dict.fromkeys(KERNELS, version)
    assert [path.name for path in (there.root / "usr/src").iterdir()] == [f"nvidia-current-{version}"]
    assert not (there.root / MARK).exists()


# A change that succeeds


def test_packages_modules_holds_and_pins_change_together(driver):
    before, after = driver.change(NEW)
    in_place(driver.there, NEW)
    assert driver.there.read(PREFERENCES) == driver_plan.preferences(wish(NEW).pins)
    assert driver.there.read(UNATTENDED) == driver_plan.unattended(NAMES)
    assert sorted(
        f"/{name}" for name, text in driver.there.tree().items() if name.startswith("etc/apt") and text != "directory"
    ) == [
        UNATTENDED,
        PREFERENCES,
    ]
    assert driver.written() == driver.record == Record(current=after, previous=before)


def test_packages_are_exchanged_in_one_transaction_without_network_and_modules_without_a_build(driver):
    driver.change(NEW)
    assert len(driver.there.changed("apt-get")) == 1
    assert driver.there.ran("dkms", "build") == []
    words = driver.there.changed("apt-get")[0]
    assert [Path(word).name for word in words if word.endswith(".deb")] == [f"{name}_{NEW}-1_amd64.deb" for name in NAMES]
    assert "-oDir::Etc::SourceParts=/dev/null" in words


def test_the_record_of_the_change_is_written_before_anything_changes(driver, monkeypatch):
    """What a loss of power leaves behind can be undone only if it is known."""
    before, after = driver.prepare(NEW)
    whole, seen, write = system(driver.there), [], driver_record.write

    def note(root, record):
        seen.append(("write", system(driver.there) == whole))
        write(root, record)

    def look(argv):
        if driver.there.changed() and driver.there.changed()[-1] == argv and argv[1] in ("--yes", "hold", "install"):
            seen.append((argv[0], driver.written().transaction == {"before": before, "after": after}))

    monkeypatch.setattr(driver_record, "write", note)
    driver.there.fails = look
    driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert seen == [("write", True), ("apt-get", True), ("dkms", True), ("dkms", True), ("apt-mark", True), ("write", False)]


def test_scripts_of_packages_leave_the_modules_alone_meanwhile(driver):
    before, after = driver.prepare(NEW)
    marks = {}

    def look(argv):
        marks.setdefault(argv[0], driver.there.read(MARK))

    driver.there.fails = look
    driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert "Groundwork" in marks["apt-get"]
    assert marks["dkms"] is None
    assert driver.there.read(MARK) is None


@pytest.mark.parametrize("text", ["", "mine\n"])
def test_somebody_elses_mark_for_dkms_stays(driver, text):
    driver.there.write(MARK, text)
    driver.change(NEW)
    assert driver.there.read(MARK) == text


def test_the_mark_of_a_run_that_was_killed_is_taken_away(driver):
    before, after = driver.prepare(NEW)
    with driver_transaction._modules_left_alone(driver.there.root):
        text = driver.there.read(MARK)
    driver.there.write(MARK, text)
    driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert driver.there.read(MARK) is None


def test_modules_of_the_old_driver_are_kept_for_the_way_back(driver):
    driver.change(NEW)
    for kernel in KERNELS:
        kept = driver.host.kept / f"nvidia-kernel-dkms_{OLD}-1/nvidia-current/{OLD}/{kernel}/x86_64/module/nvidia-current.ko"
        assert kept.read_text() == OLD


def test_the_way_back_needs_neither_network_nor_compiler_nor_headers(driver):
    driver.change(NEW)
    driver.there.offered = []
    driver.there.fails = lambda argv: (1, "", "E: no") if argv[:2] == ["dkms", "build"] or "download" in argv else None
    for kernel in KERNELS:
        (driver.there.root / f"lib/modules/{kernel}/build").rmdir()
    current, previous = driver.record.current, driver.record.previous
    driver_transaction.exchange(driver.host, driver.record, current, previous, back=True)
    in_place(driver.there, OLD, state="ii")
    assert driver.there.read(PREFERENCES) is None
    assert (driver.record.current, driver.record.previous) == (previous, current)


def test_going_back_rejects_the_version_and_going_on_forgives_it(driver):
    driver.change(NEW)
    assert driver.record.rejected is None
    driver.change(OLD, back=True)
    assert driver.written().rejected["version"] == NEW
    driver.change(NEW)
    assert driver.written().rejected is None


def test_a_first_driver_has_no_driver_before_it(bare):
    bare.change(NEW)
    in_place(bare.there, NEW)
    assert bare.record.previous == DriverSet(
        packages=dict.fromkeys(NAMES), config={PREFERENCES: None, UNATTENDED: None}, modules=["nvidia-current"]
    )


def test_an_installed_driver_that_is_taken_over_is_not_its_own_way_back(driver):
    """Nothing moves but holds and pins; the driver before stays the one that was before."""
    driver.record.previous = DriverSet(version="525.147.05")
    driver.change(OLD)
    in_place(driver.there, OLD)
    assert driver.there.changed("apt-get") == []
    assert driver.written().previous == DriverSet(version="525.147.05")
    assert driver.written().current.version == OLD


def test_holds_that_somebody_cleared_are_set_again_and_nothing_else_moves(driver):
    """R07."""
    driver.change(NEW)
    driver.there.states["libcuda1"] = "ii"
    driver.change(NEW)
    in_place(driver.there, NEW)
    assert driver.there.changed("apt-mark") == [["apt-mark", "hold", "libcuda1"]]
    assert driver.there.changed("apt-get") == []


def test_holds_of_the_set_that_the_new_one_does_not_have_are_released(driver):
    driver.change(NEW)
    before, after = driver.prepare(NEW)
    after.holds = ["libcuda1"]
    driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert driver.there.changed("apt-mark") == [["apt-mark", "unhold", "nvidia-kernel-dkms", "nvidia-smi"]]


def test_holds_of_others_are_not_touched(driver):
    driver.there.put(Deb("cassandra", "4.1-1", source="cassandra"), "hi")
    driver.change(NEW)
    assert driver.there.versions()["cassandra"] == "4.1-1 hi"


# A change that fails


def fail(*beginning, answer=(1, "", "E: it broke\n"), times=1):
    """Return a stand-in's answer for the first commands that begin so."""
    left = [times]

    def answers(argv):
        if argv[: len(beginning)] == list(beginning) and "--simulate" not in argv and left[0]:
            left[0] -= 1
            return answer
        return None

    return answers


FAILURES = {
    "apt refuses": (("apt-get",), "E: it broke"),
    "apt is killed": (("apt-get",), "apt-get was killed by signal 9"),
    "DKMS can't add": (("dkms", "add"), "`dkms add` of nvidia-current 535.309.01 failed"),
    "DKMS can't install": (("dkms", "install"), "`dkms install` of nvidia-current 535.309.01 failed"),
    "a hold can't be set": (("apt-mark", "hold"), "E: it broke"),
}


@pytest.mark.parametrize(
    ("beginning", "cause", "managed"),
    [
        pytest.param(*failure, managed, id=f"{name}, {'a driver of Groundwork' if managed else 'a driver that was there'}")
        for name, failure in FAILURES.items()
        for managed in (True, False)
        # Holds outlast a change of version.
        if not (managed and "hold" in name)
    ],
)
def test_whatever_fails_the_driver_before_is_whole(tmp_path, beginning, cause, managed):
    driver = _Driver(tmp_path / "root")
    if managed:
        driver.change(OLD)
    before, after = driver.prepare(NEW)
    whole = system(driver.there)
    record = driver.written()
    driver.there.fails = fail(*beginning, answer=(-9 if "killed" in cause else 1, "", "E: it broke\nError! it broke\n"))
    with pytest.raises(DriverError) as caught:
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    message = str(caught.value)
    assert message.startswith(f"the change from driver {OLD} to driver {NEW} failed: {cause}")
    assert message.endswith(f"\ndriver {OLD} is in place again, in full. Remedy: remove the cause, and run this again")
    in_place(driver.there, OLD, "hi" if managed else "ii")
    assert {name: text for name, text in system(driver.there).items() if text != "directory"} == {
        name: text for name, text in whole.items() if text != "directory"
    }
    assert driver.written() == record
    assert driver.record.transaction is None


def test_a_change_that_ends_otherwise_than_planned_is_undone(driver):
    """A package's script removed the module again."""
    before, after = driver.prepare(NEW)
    module = driver.there.root / f"lib/modules/{KERNELS[0]}/updates/dkms/nvidia-current.ko"

    def interfere(argv):
        if argv[:2] == ["apt-mark", "hold"]:
            module.unlink(missing_ok=True)
            driver.there.fails = lambda _: None

    driver.there.fails = interfere
    with pytest.raises(DriverError, match=r"after the change the host is not as planned: kernel .* has no module") as caught:
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert "is in place again, in full" in str(caught.value)
    in_place(driver.there, OLD, "ii")


def test_packages_that_are_half_way_are_put_back_by_dpkg_where_apt_refuses(driver):
    before, after = driver.prepare(NEW)
    driver.there.half_way = "libcuda1"
    with pytest.raises(DriverError, match=f"driver {OLD} is in place again, in full"):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert len(driver.there.ran("dpkg", "--force-downgrade")) == 1
    in_place(driver.there, OLD, "ii")


def test_dpkg_alone_does_not_do_what_apt_refuses_on_a_host_in_order(driver):
    before, after = driver.prepare(NEW)
    way_on, way_back = fail("dkms", "install"), fail("apt-get")
    driver.there.fails = lambda argv: way_on(argv) or (way_back(argv) if OLD not in str(driver.there.versions()) else None)
    with pytest.raises(DriverError, match="did not succeed either: E: it broke"):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert driver.there.ran("dpkg", "--force-downgrade") == []


def test_a_first_driver_that_fails_leaves_a_host_without_driver(bare):
    before, after = bare.prepare(NEW)
    bare.there.fails = fail("dkms", "install")
    with pytest.raises(DriverError) as caught:
        driver_transaction.exchange(bare.host, bare.record, before, after, back=False)
    assert str(caught.value).startswith(f"the change from no driver to driver {NEW} failed: ")
    assert "\nThe host is as before, without a driver. Remedy: " in str(caught.value)
    assert bare.there.versions() == {}
    assert [bare.there.module(kernel) for kernel in KERNELS] == [None, None]
    assert (bare.there.read(PREFERENCES), bare.there.read(UNATTENDED)) == (None, None)
    assert bare.written() == Record()


def test_what_can_not_be_put_back_is_said_and_stays_on_record(driver):
    before, after = driver.prepare(NEW)
    driver.there.fails = fail("dkms", "install", answer=(6, "", "Error! No space left on device\n"), times=2)
    with pytest.raises(DriverError) as caught:
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert f"\nPutting driver {OLD} back did not succeed either: `dkms install` of nvidia-current {OLD} failed" in str(
        caught.value
    )
    assert driver.written().transaction == {"before": before, "after": after}
    assert driver_transaction.undo(driver.host, driver.record) == []
    in_place(driver.there, OLD, "ii")
    assert driver.written() == Record()


def test_a_disk_that_can_not_keep_the_old_modules_stops_the_change_before_it_begins(driver, monkeypatch):
    before, after = driver.prepare(NEW)
    whole = system(driver.there)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(DriverError, match=r"No space left on device\. Nothing was changed\. Remedy: "):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert system(driver.there) == whole
    assert driver.record.transaction is None
    assert not (driver.there.root / driver_record.RECORD).exists()


def test_a_full_disk_in_the_middle_is_a_failure_like_others(driver, monkeypatch):
    before, after = driver.prepare(NEW)
    real, left = files.replace, [1]

    def replace(path, *arguments, **options):
        if path.name == "groundwork-nvidia-driver" and left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        return real(path, *arguments, **options)

    monkeypatch.setattr(files, "replace", replace)
    with pytest.raises(DriverError, match=f"(?s)No space left on device.*driver {OLD} is in place again, in full"):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    in_place(driver.there, OLD, "ii")


@pytest.mark.parametrize("back", [False, True], ids=["on", "back"])
def test_others_that_need_the_present_driver_are_not_removed_on_the_way(driver, back):
    """Somebody installed them after apt was asked for the plan: for the way back, that was an upgrade ago."""
    driver.change(NEW)
    before, after = driver.prepare(OLD)
    driver.there.put(Deb("hashcat", "6.2.6-1", source="hashcat"))
    driver.there.users = {"libcuda1": ["hashcat"]}
    with pytest.raises(DriverError, match=f"(?s)apt would remove hashcat as well.*driver {NEW} is in place again, in full"):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=back)
    assert driver.there.versions().pop("hashcat") == "6.2.6-1 ii"
    del driver.there.installed["hashcat"], driver.there.states["hashcat"]
    in_place(driver.there, NEW)
    assert driver.record.rejected is None


def test_packages_that_came_along_may_still_be_removed_by_apt_later(driver):
    """To apt a package from a file is one that somebody asked for."""
    driver.there.automatic = {"libcuda1"}
    before, after = driver.prepare(NEW)
    after.wish["packages"] = ["nvidia-kernel-dkms", "nvidia-smi"]
    driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert driver.there.automatic == {"libcuda1"}
    driver_transaction.exchange(driver.host, driver.record, driver.record.current, driver.record.previous, back=True)
    assert driver.there.automatic == {"libcuda1"}


def test_what_is_asked_for_is_no_longer_what_came_along(driver):
    driver.there.automatic = {"libcuda1"}
    driver.change(OLD)
    assert driver.there.automatic == set()
    driver.there.automatic = {"libcuda1"}
    driver.there.states["libcuda1"] = "ii"
    driver.change(OLD)
    assert driver.there.automatic == set()


def test_a_failure_puts_the_marks_of_packages_back_too(driver):
    driver.there.automatic = {"libcuda1"}
    before, after = driver.prepare(NEW)
    driver.there.fails = fail("apt-mark", "hold")
    with pytest.raises(DriverError, match="is in place again, in full"):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    assert driver.there.automatic == {"libcuda1"}


# A change that was interrupted


STEPS = [("apt-get",), ("dkms", "add"), ("dkms", "install"), ("apt-mark", "hold")]


@pytest.mark.parametrize("beginning", STEPS, ids=" ".join)
@pytest.mark.parametrize("installed", [OLD, None], ids=["a driver before", "none before"])
def test_a_run_that_was_killed_is_undone_by_the_next(tmp_path, beginning, installed):
    driver = _Driver(tmp_path / "root", installed)
    before, after = driver.prepare(NEW)

    def kill(argv):
        if argv[: len(beginning)] == list(beginning):
            raise KeyboardInterrupt

    driver.there.fails = kill
    with pytest.raises(KeyboardInterrupt):
        driver_transaction.exchange(driver.host, driver.record, before, after, back=False)
    driver.there.fails = lambda _: None
    record = driver.written()
    assert record.transaction == {"before": before, "after": after}
    assert driver_transaction.undo(driver.host, record) == []
    if installed:
        in_place(driver.there, OLD, "ii")
    else:
        assert driver.there.versions() == {}
    assert driver.written() == Record()


def test_packages_that_the_interrupted_change_brought_are_removed(driver):
    before, after = driver.prepare(NEW)
    driver.there.put(Deb("nvidia-persistenced", "535.309.01-1"))
    before.packages["nvidia-persistenced"], after.packages["nvidia-persistenced"] = None, "535.309.01-1"
    driver.record.transaction = {"before": before, "after": after}
    assert driver_transaction.undo(driver.host, driver.record) == []
    assert "nvidia-persistenced" not in driver.there.versions()


def test_packages_that_only_wait_for_their_configuration_get_it_and_apt_does_the_rest(driver):
    before, after = driver.prepare(NEW)
    driver.there.put(debs(NEW)[0], "iU")
    driver.record.transaction = {"before": before, "after": after}
    assert driver_transaction.undo(driver.host, driver.record) == []
    assert driver.there.ran("dpkg", "--force-downgrade") == []
    in_place(driver.there, OLD, "ii")


def test_a_package_of_the_right_version_that_is_half_way_is_installed_anew(driver):
    before, after = driver.prepare(NEW)
    driver.there.states["libcuda1"], driver.there.half_way = "iF", "its own script fails"
    driver.record.transaction = {"before": before, "after": after}
    assert driver_transaction.undo(driver.host, driver.record) == []
    in_place(driver.there, OLD, "ii")


def test_nothing_to_undo_is_nothing_to_do(driver):
    assert driver_transaction.undo(driver.host, driver.record) == []
    assert driver.there.calls == []


def test_what_is_left_to_do_is_told(driver):
    """The file of a package is lost, and no source has it."""
    before, after = driver.prepare(NEW)
    driver.record.transaction = {"before": before, "after": after}
    driver.there._remove("libcuda1")
    (driver.host.debs / before.debs.pop("libcuda1")["file"]).unlink()
    driver.there.offered = []
    assert driver_transaction.undo(driver.host, driver.record) == [f"libcuda1 is not installed, {OLD}-1 is wanted"]
    assert driver.record.transaction is not None


def test_a_driver_whose_modules_were_missing_before_is_whole_without_them(driver):
    """A kernel for which the old driver never had modules is no reason to call the undoing a failure."""
    driver.there.run(["dkms", "remove", "-m", "nvidia-current", "-v", OLD, "--all"])
    driver.there.run(["dkms", "add", "-m", "nvidia-current", "-v", OLD])
    before, after = driver.prepare(NEW)
    driver.record.transaction = {"before": before, "after": after}
    assert before.sources == [["nvidia-current", OLD]]
    assert driver_transaction.undo(driver.host, driver.record) == []


def test_steps_are_measured_and_logged(driver):
    said = []
    driver.host.log = said.append
    driver.change(NEW)
    assert set(driver.host.seconds) == {"packages", "modules"}
    assert [line.partition(",")[0] for line in said if "building" not in line] == [
        "begin: packages",
        "end: packages",
        "begin: modules",
        "end: modules",
    ]

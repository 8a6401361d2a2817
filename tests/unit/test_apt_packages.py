"""What apt, dpkg and their lock say, as the real programs said it: apt 2.6 and 3.0, dpkg 1.21 and 1.22, in containers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ansible.module_utils import apt_packages
from ansible.module_utils.apt_packages import AptError, Change, Package

QUERY = """\
adduser\tall\t3.134\tadduser\tii \n\
dpkg\tamd64\t1.22.22\tdpkg\tii \n\
libcuda1\tamd64\t535.261.03-1\tnvidia-graphics-drivers\thi \n\
libcuda1\ti386\t535.261.03-1\tnvidia-graphics-drivers\tii \n\
nvidia-kernel-dkms\tamd64\t535.261.03-1\tnvidia-graphics-drivers\tiF \n\
nvidia-settings\tamd64\t535.171.04-1\tnvidia-settings\trc \n\
nvidia-smi\tamd64\t535.261.03-1\tnvidia-graphics-drivers\tiHR\n\
nvidia-utils\t\t\tnvidia-utils\tun \n\
nvidia-alternative\tamd64\t535.261.03-1\tnvidia-graphics-drivers\thc \n\
"""
DOWNGRADE = """\
Reading package lists...
Building dependency tree...
Reading state information...
The following packages will be REMOVED:
  tool
The following packages will be DOWNGRADED:
  libcuda1 libcuda1:i386
0 upgraded, 0 newly installed, 2 downgraded, 1 to remove and 0 not upgraded.
Remv tool [1]
Inst libcuda1 [2-1] (1-1 local-deb [amd64]) [libcuda1:amd64 on libcuda1:i386] [libcuda1:i386 on libcuda1:amd64] [libcuda1:i386 ]
Inst libcuda1:i386 [2-1] (1-1 local-deb [i386])
Conf libcuda1 (1-1 local-deb [amd64])
Conf libcuda1:i386 (1-1 local-deb [i386])
"""
BRANCH = """\
Remv nvidia-headless-570-server [570.133.20-1]
Remv nvidia-utils-570-server [570.133.20-1] [nvidia-headless-570-server:amd64 ]
Inst nvidia-utils-580-server (580.95.05-0ubuntu0.22.04.1 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64])
Inst nvidia-firmware-580-server (1:580.95.05-1 Ubuntu:22.04/jammy-updates [all])
Conf nvidia-utils-580-server (580.95.05-0ubuntu0.22.04.1 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64])
"""
UNMET = """\
Reading package lists...
Building dependency tree...
Some packages could not be installed. This may mean that you have
requested an impossible situation or if you are using the unstable
distribution that some required packages have not yet been created
or been moved out of Incoming.
The following information may help to resolve the situation:

The following packages have unmet dependencies:
 cuda-drivers : Depends: cuda-drivers-580 (= 580.95.05-1) but it is not going to be installed
"""
SOURCES = """\
Package files:
 100 /var/lib/dpkg/status
     release a=now
 600 file:/srv/repo/cuda-debian12  Packages
     release o=NVIDIA,l=NVIDIA CUDA,c=
 500 file:/srv/own ./ Packages
     release c=
 500 http://debian.example.com/debian trixie/non-free amd64 Packages
     release v=13.8,o=Debian,a=stable,n=trixie,l=Debian,c=non-free,b=amd64
     origin debian.example.com
Pinned packages:
     cuda-drivers -> 580.95.05-1 with priority 1001
"""
POLICY = """\
cuda-drivers:
  Installed: (none)
  Candidate: 610.57.04-1
  Version table:
     610.57.04-1 600
        600 file:/srv/repo/cuda-debian12  Packages
     580.95.05-1 600
        600 file:/srv/repo/cuda-debian12  Packages
libcuda1:i386:
  Installed: 570.133.20-1
  Candidate: 2:570.172.08-1
  Version table:
     2:570.172.08-1 500
        500 http://debian.example.com/debian trixie/non-free amd64 Packages
        600 file:/srv/repo/cuda-debian12  Packages
 *** 570.133.20-1 -1
        500 file:/srv/own ./ Packages
        100 /var/lib/dpkg/status
libvirtual:
  Installed: (none)
  Candidate: (none)
  Version table:
"""


def saying(*answers):
    """Return a stand-in that runs nothing and answers in turn, and the list of what it was asked."""
    rest, asked = list(answers), []

    def run(argv):
        asked.append(argv)
        answer = rest.pop(0) if len(rest) > 1 else rest[0]
        return answer if isinstance(answer, tuple) else (0, answer, "")

    return run, asked


# dpkg


def test_installed_packages_are_named_as_apt_names_them():
    assert apt_packages.installed(saying(QUERY)[0]) == {
        "adduser": Package("3.134", "adduser", "ii"),
        "dpkg": Package("1.22.22", "dpkg", "ii"),
        "libcuda1": Package("535.261.03-1", "nvidia-graphics-drivers", "hi"),
        "libcuda1:i386": Package("535.261.03-1", "nvidia-graphics-drivers", "ii"),
        "nvidia-kernel-dkms": Package("535.261.03-1", "nvidia-graphics-drivers", "iF"),
        "nvidia-smi": Package("535.261.03-1", "nvidia-graphics-drivers", "iHR"),
    }


@pytest.mark.parametrize(
    ("state", "held", "in_order"),
    [
        ("ii", False, True),
        ("hi", True, True),
        ("ri", False, True),
        ("iF", False, False),
        ("hF", True, False),
        ("iU", False, False),
        ("iW", False, False),
        ("it", False, False),
        ("iHR", False, False),
        ("iiR", False, False),
    ],
)
def test_a_state_of_dpkg_tells_of_hold_and_order(state, held, in_order):
    package = Package("1", "s", state)
    assert (package.held, package.in_order) == (held, in_order)


def test_what_dpkg_left_half_way_is_named_with_its_state():
    assert apt_packages.unfinished(apt_packages.installed(saying(QUERY)[0])) == ["nvidia-kernel-dkms (iF)", "nvidia-smi (iHR)"]


# apt's plans


def test_a_downgrade_that_takes_another_package_along_is_seen_in_full():
    assert apt_packages.parse_simulation(DOWNGRADE) == {
        "tool": Change("1", None),
        "libcuda1": Change("2-1", "1-1", "local-deb"),
        "libcuda1:i386": Change("2-1", "1-1", "local-deb"),
    }


def test_a_change_of_branch_has_removed_and_new_packages():
    origins = "Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security"
    assert apt_packages.parse_simulation(BRANCH) == {
        "nvidia-headless-570-server": Change("570.133.20-1", None),
        "nvidia-utils-570-server": Change("570.133.20-1", None),
        "nvidia-utils-580-server": Change(None, "580.95.05-0ubuntu0.22.04.1", origins),
        "nvidia-firmware-580-server": Change(None, "1:580.95.05-1", "Ubuntu:22.04/jammy-updates"),
    }


@pytest.mark.parametrize("line", ["Remv a [1]\nInst a [1] (2 x [amd64])\n", "Inst a [1] (2 x [amd64])\nRemv a [1]\n"])
def test_a_package_that_is_taken_off_and_put_back_changes_only(line):
    assert apt_packages.parse_simulation(line) == {"a": Change("1", "2", "x")}


def test_a_purge_is_a_removal():
    assert apt_packages.parse_simulation("Purg libcuda1:i386 [2-1]\n") == {"libcuda1:i386": Change("2-1", None)}


def test_a_simulation_asks_nobody_and_takes_its_settings():
    run, asked = saying(BRANCH)
    apt_packages.simulate(run, ["a", "b-"], ["Dir::Etc::PreferencesParts=/tmp/x"])
    assert asked[0][:3] == ["apt-get", "--simulate", "--yes"]
    assert asked[0][-4:] == ["-oDir::Etc::PreferencesParts=/tmp/x", "install", "a", "b-"]
    assert {"--allow-downgrades", "--allow-change-held-packages", "-oAPT::Get::AutomaticRemove=false"} <= set(asked[0])


def test_candidates_are_those_that_apt_would_install():
    run, asked = saying(POLICY)
    assert apt_packages.candidates(run, ["cuda-drivers", "libcuda1:i386", "libvirtual", "nosuch"], ["Dir::X=y"]) == {
        "cuda-drivers": "610.57.04-1",
        "libcuda1:i386": "2:570.172.08-1",
    }
    assert asked == [["apt-cache", "-oDir::X=y", "policy", "cuda-drivers", "libcuda1:i386", "libvirtual", "nosuch"]]


def test_offers_have_the_origin_of_each_source_and_not_what_only_dpkg_has():
    offers = apt_packages.offers(saying(SOURCES, POLICY)[0], ["cuda-drivers", "libcuda1:i386", "libvirtual", "nosuch"])
    assert offers == {
        "cuda-drivers": [{"version": "610.57.04-1", "origin": "NVIDIA"}, {"version": "580.95.05-1", "origin": "NVIDIA"}],
        # The same version from two sources (R08); a source without Origin, and /var/lib/dpkg/status, are none.
        "libcuda1:i386": [{"version": "2:570.172.08-1", "origin": "Debian"}, {"version": "2:570.172.08-1", "origin": "NVIDIA"}],
        "libvirtual": [],
        "nosuch": [],
    }


def test_two_packages_lists_of_one_source_are_one_offer():
    sources = SOURCES.replace("non-free amd64", "main amd64") + SOURCES
    policy = "a:\n     1 500\n        500 http://debian.example.com/debian trixie/main amd64 Packages\n"
    policy += "        500 http://debian.example.com/debian trixie/non-free amd64 Packages\n"
    assert apt_packages.offers(saying(sources, policy)[0], ["a"]) == {"a": [{"version": "1", "origin": "Debian"}]}


def test_no_question_needs_no_apt():
    run, asked = saying((1, "", "E: broken"))
    assert apt_packages.offers(run, []) == {}
    assert asked == []


# What programs say of failures


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (100, UNMET, "E: Unable to correct problems, you have held broken packages.\n"),
            "E: Unable to correct problems, you have held broken packages. "
            "cuda-drivers : Depends: cuda-drivers-580 (= 580.95.05-1) but it is not going to be installed",
        ),
        ((2, "", "dpkg: error: dpkg frontend lock is locked\n"), "dpkg: error: dpkg frontend lock is locked"),
        ((1, "one\ntwo\n", "three\nfour\nfive\nsix\n"), "two three four five six"),
        ((7, "", "\n \n"), "`apt-get` ended with 7"),
        (
            (-9, "Unpacking libcuda1\n", ""),
            "apt-get was killed by signal 9; `journalctl -k` tells if the kernel did it for lack of memory",
        ),
    ],
)
def test_a_failure_says_what_the_program_said(answer, message):
    with pytest.raises(AptError) as caught:
        apt_packages.checked(saying(answer)[0], ["apt-get", "x"])
    assert str(caught.value) == message


# Changes


def test_one_transaction_has_all_files_and_removals_and_no_source(tmp_path):
    run, asked = saying("")
    apt_packages.apply(run, [tmp_path / "b.deb", tmp_path / "a.deb"], ["old", "older"], 45)
    words = ["install", f"{tmp_path}/b.deb", f"{tmp_path}/a.deb", "old-", "older-"]
    assert [call[-5:] for call in asked] == [words, words]
    assert "--simulate" in asked[0]
    assert {
        "-oDPkg::Lock::Timeout=45",
        "-oDir::Etc::SourceList=/dev/null",
        "-oDir::Etc::SourceParts=/dev/null",
        "-oDpkg::Options::=--force-confold",
        "--allow-change-held-packages",
    } <= set(asked[1])
    assert "--simulate" not in asked[1]


def test_a_transaction_that_would_take_others_along_is_not_begun(tmp_path):
    """A package of somebody else needs the version that is about to go."""
    run, asked = saying(DOWNGRADE)
    with pytest.raises(AptError, match="apt would remove tool as well, which need what is about to change"):
        apt_packages.apply(run, [tmp_path / "libcuda1_1-1_amd64.deb"], [], 60)
    assert len(asked) == 1
    apt_packages.apply(run, [tmp_path / "libcuda1_1-1_amd64.deb"], ["tool"], 60)
    assert len(asked) == 3


def test_what_came_along_with_others_is_known_and_marked():
    run, asked = saying("libcuda1\nlibcuda1:i386\n")
    assert apt_packages.automatic(run) == {"libcuda1", "libcuda1:i386"}
    apt_packages.mark(run, {"b", "a"}, automatic=True)
    apt_packages.mark(run, {"c"}, automatic=False)
    apt_packages.mark(run, set(), automatic=True)
    assert asked == [["apt-mark", "showauto"], ["apt-mark", "auto", "a", "b"], ["apt-mark", "manual", "c"]]


def test_nothing_to_do_runs_nothing():
    run, asked = saying((1, "", ""))
    apt_packages.apply(run, [], [], 60)
    apt_packages.force(run, [], [])
    apt_packages.hold(run, set(), wanted=True)
    assert asked == []


def test_dpkg_alone_removes_first_and_then_installs_older_versions(tmp_path):
    run, asked = saying("")
    apt_packages.force(run, [tmp_path / "a.deb"], ["old"])
    assert [call[-2:] for call in asked] == [["--remove", "old"], ["--install", f"{tmp_path}/a.deb"]]
    assert "--force-remove-reinstreq" in asked[0]
    assert "--force-downgrade" in asked[1]


@pytest.mark.parametrize(("wanted", "word"), [(True, "hold"), (False, "unhold")])
def test_holds_are_set_in_one_call(wanted, word):
    run, asked = saying("")
    apt_packages.hold(run, {"b", "a"}, wanted=wanted)
    assert asked == [["apt-mark", word, "a", "b"]]


# The lock of dpkg's front ends, held by another process as apt holds it


HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "var/lib/dpkg/lock-frontend"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.fixture
def holder(lock):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_holder_of_the_lock_is_named(tmp_path, holder):
    comm = tmp_path / f"proc/{holder.pid}/comm"
    comm.parent.mkdir(parents=True)
    comm.write_text("unattended-upgr\n")
    assert apt_packages.lock_holder(tmp_path) == f"unattended-upgr (process {holder.pid})"


def test_a_holder_that_proc_does_not_show_is_outside_this_container(tmp_path, holder):
    assert apt_packages.lock_holder(tmp_path) == f"a process outside this container (process {holder.pid})"


def test_looking_at_the_lock_does_not_take_it(tmp_path, lock, holder):
    apt_packages.lock_holder(tmp_path)
    holder.stdin.close()
    holder.wait(10)
    assert apt_packages.lock_holder(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as next_one:
        assert next_one.stdout.readline() == "held\n"


@pytest.mark.usefixtures("lock")
def test_a_file_that_nobody_locks_is_free(tmp_path):
    assert apt_packages.lock_holder(tmp_path) is None


def test_a_host_without_the_file_is_free(tmp_path):
    assert apt_packages.lock_holder(tmp_path) is None

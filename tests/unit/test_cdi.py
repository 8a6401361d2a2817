"""CDI specs: what the module reads in them, when it makes a new one, and what it moves aside.

The tests put a made-up file tree in the place of the host, and stand-ins in the place of nvidia-ctk and systemctl.
"""

from __future__ import annotations

import cdi_spec
import pytest
from ansible.module_utils import cdi

LIB = "usr/lib/x86_64-linux-gnu"
#: In the style of nvidia-ctk 1.20.0, cut short.
SPEC = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              hostPath: /driver/dev/nvidia0
    - name: all
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              hostPath: /driver/dev/nvidia0
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
    deviceNodes:
        - path: /dev/nvidiactl
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args:
            - nvidia-cdi-hook
            - create-symlinks
            - --link
            - libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so
    mounts:
        - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
          containerPath: /container/libcuda.so.580.95.05
          options:
            - ro
"""
PATHS = ["/driver/dev/nvidia0", "/dev/nvidiactl", "/usr/bin/nvidia-cdi-hook", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"]


def spec(version="580.95.05", kind="nvidia.com/gpu"):
    return (
        f"---\ncdiVersion: 0.5.0\nkind: {kind}\ncontainerEdits:\n    mounts:\n"
        f"        - hostPath: /{LIB}/libcuda.so.{version}\n          containerPath: /libcuda.so\n"
    )


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def driver(root, version="580.95.05", library=None):
    """A host whose driver is loaded, with libraries of the same version or another."""
    library = library or version
    write(
        root,
        {
            "usr/bin/nvidia-smi": "",
            "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Aug 12 2026\n",
            f"{LIB}/libcuda.so.{library}": "",
            f"{LIB}/libnvidia-ml.so.{library}": "",
        },
    )
    (root / LIB / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{library}")


@pytest.fixture
def host(tmp_path, monkeypatch, run_module):
    """The stand-ins: `made` is what nvidia-ctk generates (None: it fails), `works` whether the service writes it."""

    class Host:
        root = tmp_path / "root"
        made: dict[str, str] | None = None
        works = True
        shown = "Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml\n"
        ctk: str | None = "/usr/bin/nvidia-ctk"

        def run_command(self, command, environ_update=None, **_):
            self.commands.append(command[:3])
            if command[1:3] == ["cdi", "generate"]:
                self.variables = environ_update
                if self.made is None:
                    return 1, "", "failed to initialize NVML: ERROR_DRIVER_NOT_LOADED"
                folder = cdi_spec.Path(command[3].partition("=")[2]).parent
                write(folder, self.made)
            if command[:2] == ["systemctl", "show"]:
                return 0, self.shown, ""
            if command[:2] == ["systemctl", "restart"] and self.works:
                write(self.root / "var/run/cdi", self.made)
            if command[0] == "journalctl":
                return 0, "nvidia-cdi-refresh.service: Skipped due to 'exec-condition'.\n", ""
            return 0, "", ""

        def apply(self, check=False):
            self.commands = []
            return run_module(cdi_spec, check=check)

        def both(self):
            """Return the result of the run, having checked that a dry run announced it and changed nothing."""
            before = self.files()
            announced = self.apply(check=True)
            assert self.files() == before
            assert [command for command in self.commands if command[:2] == ["systemctl", "restart"]] == []
            done = self.apply()
            assert announced == done
            assert done["changed"] is (self.files() != before)
            return done

        def files(self):
            found = [self.root / "etc/cdi", self.root / "var/run/cdi", self.root / "var/backups"]
            return {
                str(file.relative_to(self.root)): file.read_text()
                for folder in found
                for file in folder.rglob("*")
                if file.is_file()
            }

    stand_in = Host()
    stand_in.root.mkdir()
    monkeypatch.setattr(cdi_spec, "ROOT", stand_in.root)
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda _, *a, **k: stand_in.run_command(*a, **k))
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.get_bin_path", lambda *_, **__: stand_in.ctk)
    return stand_in


def actions(result):
    return [action.split(":")[0] for action in result["actions"]]


# What is read in a spec


def test_the_paths_of_a_spec_are_those_on_the_host():
    assert cdi.host_paths(SPEC) == PATHS


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("kind: nvidia.com/gpu\n", True),
        ('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}', True),
        ('{"kind": "example.com/gpu", "annotations": {"kind": "nvidia.com/gpu"}}', False),
        ('{"kind": "nvidia.com/gpu"', False),
        ("kind: 'nvidia.com/gpu'\n", True),
        ("kind: nvidia.com/gpu.coherent\n", True),
        ("kind: management.nvidia.com/gpu\n", False),
        ("kind: k8s.device-plugin.nvidia.com/gpu\n", False),
        ("kind: nvidia.com/gds\n", False),
        ("# kind: nvidia.com/gpu\nkind: example.com/gpu\n", False),
    ],
)
def test_only_specs_of_the_same_kind_are_in_the_way(tmp_path, text, counts):
    write(tmp_path, {"etc/cdi/x.yaml": text})
    assert cdi.others(tmp_path) == (["/etc/cdi/x.yaml"] if counts else [])


def test_engines_read_only_yaml_and_json_in_both_directories(tmp_path):
    names = ["etc/cdi/nvidia.yaml", "etc/cdi/old.bak", "var/run/cdi/nvidia.json", "var/run/cdi/nvidia.yaml"]
    write(tmp_path, dict.fromkeys(names, "kind: nvidia.com/gpu\n"))
    assert cdi.others(tmp_path) == ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.json"]


def test_the_environment_of_the_service_is_that_of_the_unit_and_then_of_its_file():
    shown = 'Environment=A=1 "B=two words" C=3\n'
    file = '# C=0\n\nC=4\nD="x y"\n; E=1\nbroken\n'
    assert cdi.environment(shown, file) == {"A": "1", "B": "two words", "C": "4", "D": "x y"}


# Hosts without a usable driver


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda _: None, "no nvidia-smi"),
        (lambda root: write(root, {"usr/bin/nvidia-smi": ""}), "the NVIDIA driver is not loaded"),
        (
            lambda root: driver(root, "580.95.05", "580.178.04"),
            "is 580.95.05 and its libraries are 580.178.04; reboot",
        ),
    ],
    ids=["no driver", "not loaded", "updated, not rebooted"],
)
def test_a_host_whose_driver_is_not_there_is_told_and_left_alone(host, prepare, words):
    prepare(host.root)
    result = host.both()
    assert (result["changed"], result["actions"]) == (False, [])
    assert words in result["notes"][0]
    assert host.commands == []


def test_a_driver_without_a_version_in_the_name_of_its_library_is_not_judged_by_it(host):
    driver(host.root)
    (host.root / LIB / "libnvidia-ml.so.1").unlink()
    host.made = {"nvidia.yaml": spec()}
    assert host.both()["notes"] == []


def test_the_spec_of_a_driver_that_is_gone_is_removed(host):
    write(host.root, {"var/run/cdi/nvidia.yaml": spec()})
    result = host.both()
    assert result["actions"] == [
        "remove /var/run/cdi/nvidia.yaml: it names files that do not exist (/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05)"
    ]
    assert host.files() == {}


def test_a_spec_whose_files_are_there_stays_while_the_driver_is_not_loaded(host):
    write(host.root, {"var/run/cdi/nvidia.yaml": spec(), f"{LIB}/libcuda.so.580.95.05": "", "usr/bin/nvidia-smi": ""})
    assert host.both()["actions"] == []


# Hosts with a driver


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ({}, "there is none"),
        (
            {"nvidia.yaml": spec("535.309.01")},
            "it names files that do not exist (/usr/lib/x86_64-linux-gnu/libcuda.so.535.309.01)",
        ),
        ({"nvidia.yaml": spec() + "# MIG"}, "it is not what the driver, its GPUs and the settings of the service make now"),
    ],
    ids=["none", "old driver", "other GPUs"],
)
def test_a_spec_that_is_not_of_this_driver_is_written_by_the_service(host, before, why):
    driver(host.root)
    write(host.root / "var/run/cdi", before)
    host.made = {"nvidia.yaml": spec()}
    result = host.both()
    assert result["actions"] == [f"write /var/run/cdi/nvidia.yaml anew: {why}"]
    assert result["diff"][0]["before"] == "".join(before.values())
    assert result["diff"][0]["after"] == spec()
    assert host.files() == {"var/run/cdi/nvidia.yaml": spec()}
    assert ["systemctl", "restart", "nvidia-cdi-refresh.service"] in host.commands


def test_a_current_spec_starts_nothing(host):
    driver(host.root)
    host.made = {"nvidia.yaml": spec()}
    write(host.root / "var/run/cdi", host.made)
    assert host.both()["changed"] is False


def test_no_more_than_three_missing_files_are_named(host):
    driver(host.root)
    host.made = {"nvidia.yaml": spec()}
    write(host.root, {"var/run/cdi/nvidia.yaml": "".join(f"    - hostPath: /gone/{number}\n" for number in range(5))})
    assert host.both()["actions"][0].endswith("(/gone/0, /gone/1, /gone/2, …)")


def test_a_spec_of_coherent_memory_goes_with_the_gpu_that_had_it(host):
    driver(host.root)
    host.made = {"nvidia.yaml": spec()}
    write(host.root / "var/run/cdi", {**host.made, "nvidia.coherent.yaml": spec(kind="nvidia.com/gpu.coherent")})
    assert actions(host.both()) == ["remove /var/run/cdi/nvidia.coherent.yaml"]
    assert list(host.files()) == ["var/run/cdi/nvidia.yaml"]


def test_the_spec_is_made_with_the_settings_of_the_service(host):
    driver(host.root)
    host.made = {"nvidia.yaml": spec()}
    host.shown = "Environment=NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=a\n"
    write(host.root, {"etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=b\n"})
    host.apply()
    assert host.variables == {"NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS": "b"}


def test_a_driver_that_does_not_answer_is_a_failure_that_changes_nothing(host):
    driver(host.root)
    write(host.root, {"etc/cdi/nvidia.yaml": spec("535.309.01")})
    before = host.files()
    result = host.apply()
    assert result["failed"] is True
    assert "ERROR_DRIVER_NOT_LOADED" in result["msg"]
    assert "`nvidia-smi` shows whether the driver answers" in result["msg"]
    assert host.files() == before


def test_a_service_that_writes_nothing_is_told_with_its_log_and_the_old_spec_stays(host):
    driver(host.root)
    host.made, host.works = {"nvidia.yaml": spec()}, False
    write(host.root, {"etc/cdi/nvidia.yaml": spec("535.309.01")})
    before = host.files()
    result = host.apply()
    assert "did not write /var/run/cdi/nvidia.yaml" in result["msg"]
    assert "Skipped due to 'exec-condition'" in result["msg"]
    assert host.files() == before


@pytest.mark.parametrize("check", [True, False])
def test_a_missing_nvidia_ctk_is_an_error_unless_the_dry_run_would_have_installed_it(host, check):
    driver(host.root)
    host.ctk = None
    result = host.apply(check=check)
    if check:
        assert result["actions"] == ["write /var/run/cdi/nvidia.yaml anew: there is none"]
    else:
        assert "nvidia-ctk is not installed" in result["msg"]


# A second spec


def test_a_spec_made_by_hand_is_kept_in_the_backups_and_told(host):
    """The report from the field: containers got the libraries of the driver before."""
    driver(host.root, "580.178.04")
    host.made = {"nvidia.yaml": spec("580.178.04")}
    write(host.root / "var/run/cdi", host.made)
    write(host.root, {"etc/cdi/nvidia.yaml": spec("580.95.05")})
    result = host.both()
    assert result["actions"] == [
        "move /etc/cdi/nvidia.yaml to /var/backups/groundwork/nvidia_container_toolkit: "
        "nvidia-cdi-refresh.service keeps the one spec of this host's GPUs"
    ]
    (kept,) = [name for name in host.files() if name.startswith("var/backups")]
    assert kept.endswith("/nvidia.yaml")
    assert host.files() == {"var/run/cdi/nvidia.yaml": spec("580.178.04"), kept: spec("580.95.05")}
    assert host.both()["changed"] is False


def test_two_specs_of_one_name_are_both_kept(host):
    write(host.root, {"etc/cdi/nvidia.yaml": spec("1.1")})
    host.apply()
    write(host.root, {"etc/cdi/nvidia.yaml": spec("2.2")})
    host.apply()
    assert sorted(host.files().values()) == [spec("1.1"), spec("2.2")]


def test_specs_of_other_programs_stay(host):
    others = {
        "etc/cdi/vendor.json": '{\n  "kind": "example.com/nic"\n}\n',
        "var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json": '{\n  "kind": "k8s.device-plugin.nvidia.com/gpu"\n}\n',
    }
    write(host.root, others)
    assert host.both()["changed"] is False

"""What the role nvidia_container_toolkit reads on a host, and what it lets nvidia-ctk do.

The outputs of nvidia-ctk are those of the real program, 1.20.0; a stand-in gives them, on a made-up file tree.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import container_toolkit_config
import container_toolkit_info
import pytest
import yaml
from ansible.module_utils import container_toolkit
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

CONFIG = "etc/nvidia-container-runtime/config.toml"
DROP_IN = 'version = 2\n\n[plugins]\n\n  [plugins."io.containerd.grpc.v1.cri"]\n'
TOP = 'imports = ["/etc/containerd/conf.d/*.toml"]\nversion = 2\n'
CRIO = "\n[crio]\n\n  [crio.runtime]\n\n    [crio.runtime.runtimes]\n\n      [crio.runtime.runtimes.nvidia]\n"
DOCKER = {"log-driver": "local", "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def dpkg_query(packages):
    """What dpkg-query prints of these packages, name -> version."""
    rows = {"dpkg": "1.21.22", **packages}
    return "".join(f"{name}\tamd64\t{version}\tsource\tii \n" for name, version in rows.items())


# container_toolkit_info


@pytest.fixture
def info(tmp_path, monkeypatch, run_module):
    """Run the module on a host with these packages and files."""
    monkeypatch.setattr(container_toolkit_info, "ROOT", tmp_path)

    def run(packages=(), **files):
        write(tmp_path, files)
        answer = dpkg_query(dict(packages))
        monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda *_, **__: (0, answer, ""))
        return run_module(container_toolkit_info)

    return run


@pytest.mark.parametrize("name", ["nvidia-docker2", "nvidia-container-runtime", "nvidia-container-runtime-hook"])
def test_a_package_that_the_toolkit_replaced_is_refused_with_the_remedy(info, name):
    message = info({name: "2.13.0-1"})["msg"]
    assert f"{name} 2.13.0-1 is installed, which the toolkit replaced; run `apt-get remove {name}`, without --purge" in message
    assert message.startswith("Nothing was changed")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("nvidia-docker.list", "deb https://nvidia.github.io/nvidia-docker/ubuntu18.04/$(ARCH) /\n"),
        ("x.list", "# a comment\ndeb [arch=amd64] https://nvidia.github.io/libnvidia-container/ubuntu22.04/amd64 /\n"),
        (
            "runtime.sources",
            "Types: deb\nURIs: https://nvidia.github.io/nvidia-container-runtime/stable/debian10/amd64\n",
        ),
    ],
)
def test_a_repository_that_was_given_up_is_refused_with_its_file(info, file, text):
    message = info(**{f"etc/apt/sources.list.d/{file}": text})["msg"]
    assert f"/etc/apt/sources.list.d/{file} names a repository that NVIDIA gave up" in message
    assert "delete the file, or the line" in message


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sources.list.d/good.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n"),
        ("sources.list.d/test.list", "deb https://nvidia.github.io/libnvidia-container/experimental/deb/$(ARCH) /\n"),
        ("sources.list.d/off.list", "#deb https://nvidia.github.io/nvidia-docker/ubuntu18.04/$(ARCH) /\n"),
        ("sources.list.d/off.sources", "Enabled: no\nTypes: deb\nURIs: https://nvidia.github.io/nvidia-docker/x\n"),
        ("sources.list.d/old.list.save", "deb https://nvidia.github.io/nvidia-docker/ubuntu18.04/$(ARCH) /\n"),
        ("sources.list", "deb http://mirror.example.com/debian bookworm main\n"),
    ],
)
def test_other_sources_are_none_of_its_business(info, file, text):
    assert "old_engines" in info(**{f"etc/apt/{file}": text})


def test_all_that_is_in_the_way_is_in_one_message(info):
    source = "deb https://nvidia.github.io/nvidia-docker/debian10/amd64 /\n"
    message = info({"nvidia-docker2": "2.13.0-1"}, **{"etc/apt/sources.list": source})["msg"]
    assert "nvidia-docker2" in message
    assert "/etc/apt/sources.list names" in message


@pytest.mark.parametrize(
    ("package", "version", "old"),
    [
        ("podman", "4.3.1+ds1-8+deb12u1+b1", True),
        ("podman", "4.9.3+ds1-1ubuntu0.2", True),
        ("podman", "5.1.0+ds1-1", False),
        ("podman", "5.4.2+ds1-2+b1", False),
        ("containerd", "1.6.20~ds1-1+deb12u1", True),
        ("containerd", "1.7.24~ds1-6", False),
        ("containerd.io", "1.7.15-1", True),
        ("containerd.io", "2.0.1-1", False),
        ("docker.io", "20.10.24+dfsg1-1+deb12u1", True),
        ("docker-ce", "5:26.0.2-1~debian.12~bookworm", True),
        ("docker-ce", "5:26.1.0-1~debian.12~bookworm", False),
        ("runc", "1.1.5", False),
    ],
)
def test_engines_that_cannot_read_new_specs_are_told_by_their_version(info, package, version, old):
    assert info({package: version})["old_engines"] == ([f"{package} {version}"] if old else [])


def test_the_packages_of_one_release_are_named(info):
    assert info()["packages"] == [
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    ]


@pytest.mark.parametrize(
    ("text", "blind"),
    [
        (None, False),
        ("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n", True),
        ('BinaryName = "/usr/bin/nvidia-container-runtime"\n', False),
    ],
    ids=["no K3s", "started before", "started after"],
)
def test_k3s_that_has_not_found_the_runtime_is_told(info, text, blind):
    files = {} if text is None else {"var/lib/rancher/k3s/agent/etc/containerd/config.toml": text}
    assert info(**files)["k3s_is_blind"] is blind


# Reading TOML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[nvidia-container-runtime]\nmode = "cdi"\n', "cdi"),
        ("[nvidia-container-runtime]\n  mode='legacy' # why\n", "legacy"),
        ('mode = "cdi"\n[nvidia-container-runtime]\nlog-level = "info"\n', None),
        ('[nvidia-container-runtime]\n#mode = "cdi"\n', None),
        ('[nvidia-container-runtime.modes.cdi]\nmode = "cdi"\n', None),
        ('[nvidia-container-cli]\nmode = "cdi"\n', None),
        ("", None),
    ],
)
def test_the_mode_is_read_in_its_table_only(text, value):
    assert container_toolkit.table_value(text, "nvidia-container-runtime", "mode") == value


# container_toolkit_config


@pytest.fixture
def host(tmp_path, monkeypatch, run_module):
    """The stand-in for nvidia-ctk; `commands` are those that may write."""

    class Host:
        root = tmp_path
        ctk: str | None = "/usr/bin/nvidia-ctk"
        forgets = False

        def run_command(self, command, **_):
            _, *arguments = command
            if arguments[0] == "config":
                mode = arguments[-1].rpartition("=")[2]
                return 0, f'[nvidia-container-runtime]\nlog-level = "info"\nmode = "{mode}"\n', ""
            engine, dry = arguments[2].rpartition("=")[2], "--dry-run" in arguments
            if not dry:
                self.commands.append(" ".join(arguments))
            if engine == "docker":
                old = json.loads((tmp_path / "etc/docker/daemon.json").read_text() or "{}")
                text = json.dumps({**old, "runtimes": DOCKER["runtimes"]}, indent=4)
                files = {"etc/docker/daemon.json": text}
            elif engine == "crio":
                text, files = f"{CRIO}\n", {"etc/crio/crio.conf.d/99-nvidia.toml": CRIO}
            else:
                text = f"{DROP_IN}\n{TOP}\n"
                files = {"etc/containerd/conf.d/99-nvidia.toml": DROP_IN, "etc/containerd/config.toml": TOP}
            if not dry and not self.forgets:
                write(tmp_path, files)
            return 0, text, ""

        def apply(self, check=False, **options):
            self.commands = []
            return run_module(container_toolkit_config, check=check, **{"mode": "auto", **options})

        def both(self, **options):
            """Return what the run changed, having checked that a dry run announced it and that a second run changes nothing."""
            before = self.files()
            announced = self.apply(check=True, **options)
            assert (self.files(), self.commands) == (before, [])
            done = self.apply(**options)
            assert announced == done
            again = self.apply(**options)
            assert (again["changed"], again["diff"], self.commands) == (False, [], [])
            return done["changed_paths"]

        def files(self):
            return {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}

        def backups(self):
            return [text for name, text in self.files().items() if name.startswith("var/backups")]

    stand_in = Host()
    monkeypatch.setattr(container_toolkit_config, "ROOT", tmp_path)
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda _, *a, **k: stand_in.run_command(*a, **k))
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.get_bin_path", lambda *_, **__: stand_in.ctk)
    return stand_in


@pytest.mark.parametrize("text", [None, '[nvidia-container-runtime]\nmode = "auto"\n', "# nothing\n"])
def test_the_mode_of_the_package_needs_no_file(host, text):
    write(host.root, {} if text is None else {CONFIG: text})
    assert host.both() == []


def test_another_mode_is_written_and_what_was_there_is_kept(host):
    old = '# by hand\n[nvidia-container-runtime]\nmode = "auto"\n'
    write(host.root, {CONFIG: old})
    assert host.both(mode="cdi") == [f"/{CONFIG}"]
    assert (host.root / CONFIG).read_text() == '[nvidia-container-runtime]\nlog-level = "info"\nmode = "cdi"\n'
    assert (host.root / CONFIG).stat().st_mode & 0o777 == 0o644
    assert host.backups() == [old]


def test_a_mode_can_be_set_where_there_is_no_file(host):
    (host.root / "etc").mkdir()
    assert host.both(mode="cdi") == [f"/{CONFIG}"]
    assert host.backups() == []


def test_the_mode_goes_back(host):
    write(host.root, {CONFIG: '[nvidia-container-runtime]\nmode = "legacy"\n'})
    assert host.both(mode="auto") == [f"/{CONFIG}"]


def test_containerd_gets_a_drop_in_and_imports_it(host):
    write(host.root, {"etc/containerd/config.toml": "# mine\nversion = 2\n"})
    assert host.both(engines=["containerd"]) == ["/etc/containerd/conf.d/99-nvidia.toml"]
    assert (host.root / "etc/containerd/config.toml").read_text() == TOP
    assert host.backups() == ["# mine\nversion = 2\n"]


@pytest.mark.parametrize(
    "files",
    [
        {"etc/containerd/conf.d/99-nvidia.toml": DROP_IN, "etc/containerd/config.toml": "version = 2\n"},
        {
            "etc/containerd/conf.d/99-nvidia.toml": DROP_IN,
            "etc/containerd/config.toml": '#imports = ["/etc/containerd/conf.d/*.toml"]',
        },
        {"etc/containerd/conf.d/99-nvidia.toml": "version = 1\n", "etc/containerd/config.toml": TOP},
        {"etc/containerd/conf.d/99-nvidia.toml": "", "etc/containerd/config.toml": TOP},
    ],
    ids=["not imported", "import is a comment", "another drop-in", "empty drop-in"],
)
def test_a_drop_in_that_does_not_reach_containerd_is_put_right(host, files):
    write(host.root, files)
    assert host.both(engines=["containerd"]) == ["/etc/containerd/conf.d/99-nvidia.toml"]


def test_comments_in_the_file_of_containerd_are_no_reason_to_write_it_again(host):
    top = '# why\nversion = 2\nimports = [\n  "/etc/mine/*.toml",\n  "/etc/containerd/conf.d/*.toml",\n]\n'
    write(host.root, {"etc/containerd/conf.d/99-nvidia.toml": DROP_IN, "etc/containerd/config.toml": top})
    assert host.both(engines=["containerd"]) == []


def test_crio_gets_a_drop_in_and_the_one_of_somebody_else_is_kept(host):
    write(host.root, {"etc/crio/crio.conf.d/99-nvidia.toml": "# by another tool\n"})
    assert host.both(engines=["crio"]) == ["/etc/crio/crio.conf.d/99-nvidia.toml"]
    assert host.backups() == ["# by another tool\n"]


@pytest.mark.parametrize("order", [False, True])
def test_the_settings_of_docker_are_merged_and_their_layout_does_not_count(host, order):
    write(host.root, {"etc/docker/daemon.json": '{"log-driver": "local"}'})
    assert host.both(engines=["docker"]) == ["/etc/docker/daemon.json"]
    assert json.loads((host.root / "etc/docker/daemon.json").read_text()) == DOCKER
    assert host.backups() == ['{"log-driver": "local"}']
    write(host.root, {"etc/docker/daemon.json": json.dumps(DOCKER, sort_keys=order)})
    assert host.both(engines=["docker"]) == []


def test_the_files_that_engines_read_at_their_start_are_told(host):
    write(host.root, {"etc/docker/daemon.json": "{}"})
    assert host.apply(engines=["containerd", "docker"])["read_paths"] == {
        "containerd": ["/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"],
        "docker": ["/etc/docker/daemon.json"],
    }


def test_nvidia_ctk_that_writes_something_else_than_it_announced_is_a_failure(host):
    host.forgets = True
    message = host.apply(engines=["crio"])["msg"]
    assert "`nvidia-ctk runtime configure --runtime=crio` did not write /etc/crio/crio.conf.d/99-nvidia.toml" in message


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({}, []),
        ({"mode": "cdi"}, [f"/{CONFIG}"]),
        ({"engines": ["crio", "docker"]}, ["/etc/crio/crio.conf.d/99-nvidia.toml", "/etc/docker/daemon.json"]),
    ],
)
def test_a_dry_run_before_the_installation_counts_on_the_package(host, options, paths):
    host.ctk = None
    assert host.apply(check=True, **options)["changed_paths"] == paths


# The role's own files


ROLE = Path(__file__).parents[2] / "roles/nvidia_container_toolkit"
VALIDATE = yaml.safe_load((ROLE / "tasks/validate.yml").read_text())[0]["ansible.builtin.assert"]


def templar(**settings):
    defaults = DataLoader().load_from_file(str(ROLE / "defaults/main.yml"), trusted_as_template=True)
    return Templar(loader=DataLoader(), variables={**defaults, "ansible_managed": "text", **settings})


def drop_in(distribution, engines):
    facts = {"ansible_facts": {"distribution": distribution}, "__nvidia_container_toolkit_host": {"old_engines": engines}}
    text = templar(**facts).template(trust_as_template((ROLE / "templates/nvidia-cdi-refresh.conf.j2").read_text()))
    return [line for line in text.splitlines() if line[:1] != "#"]


def test_the_service_is_changed_only_where_it_has_to_be():
    assert drop_in("Ubuntu", []) == ["[Service]"]


def test_old_engines_get_a_spec_that_they_can_read():
    assert drop_in("Ubuntu", ["podman 4.9.3"]) == [
        "[Service]",
        "Environment=NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes",
    ]


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("updates/dkms/nvidia.ko.xz:", True),
        ("updates/dkms/nvidia-current.ko:", True),
        ("updates/dkms/nvidia-current-open.ko.xz: updates/dkms/x.ko", True),
        ("updates/dkms/nvidia-tesla-535.ko:", True),
        ("kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko.xz:", False),
        ("kernel/drivers/video/fbdev/nvidia/nvidiafb.ko.xz:", False),
        ("updates/dkms/nvidia-uvm.ko:", False),
    ],
)
def test_the_service_knows_the_modules_of_debian(module, found):
    """The pattern is tried by grep itself, as the service does it."""
    header, reset, condition = drop_in("Debian", [])
    assert (header, reset) == ("[Service]", "ExecCondition=")
    pattern = re.search(r'-qE "([^"]+)"', condition)[1]
    assert (subprocess.run(["grep", "-qE", pattern], input=f"{module}\n", text=True, check=False).returncode == 0) is found


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({}, True),
        ({"nvidia_container_toolkit_version": "1.18.0-1"}, True),
        ({"nvidia_container_toolkit_version": "1.21.0~rc.1-1"}, True),
        ({"nvidia_container_toolkit_version": "1.17.8-1"}, False),
        ({"nvidia_container_toolkit_version": "1.20.0"}, False),
        ({"nvidia_container_toolkit_version": "1.20.*"}, False),
        ({"nvidia_container_toolkit_version": "latest"}, False),
        ({"nvidia_container_toolkit_mirror_fingerprints": ["C95B321B61E88C1809C4F759DDCAE044F796ECB0"]}, True),
        ({"nvidia_container_toolkit_mirror_fingerprints": ["DDCAE044F796ECB0"]}, False),
    ],
    ids=str,
)
def test_only_whole_versions_from_1_18_and_whole_fingerprints_are_accepted(settings, accepted):
    conditions = [trust_as_template(condition) for condition in VALIDATE["that"]]
    assert all(templar(**settings).evaluate_conditional(condition) for condition in conditions) is accepted


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("kind: nvidia.com/gpu", True),
        ('{"cdiVersion":"0.7.0"}', False),
        ('{"kind":"nvidia.com/gpu","devices":[]}', True),
        ('\t"kind": "nvidia.com/gpu",', True),
        ("kind: nvidia.com/gpux", False),
        ("skind: nvidia.com/gpu", False),
    ],
)
def test_the_test_of_hosts_finds_specs_of_gpus(line, found):
    """The pattern is tried by grep itself, as the test does it."""
    spec = importlib.util.spec_from_file_location("host_test", ROLE.parents[1] / "tests/host/test_nvidia_container_toolkit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    grep = subprocess.run(
        ["grep", "--extended-regexp", module.KIND], input=f"{line}\n", text=True, check=False, capture_output=True
    )
    assert (grep.returncode == 0) is found

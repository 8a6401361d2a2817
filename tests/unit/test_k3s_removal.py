"""What the removal of K3s takes and what it refuses: module_utils/k3s_remains.py and the module, on made-up trees."""

from __future__ import annotations

from types import SimpleNamespace

import k3s_removal
import pytest
from ansible.module_utils.k3s_remains import mounts, without_rules

PARTS = (
    "etc/systemd/system/k3s-agent.service",
    "etc/systemd/system/k3s-agent.service.env",
    "usr/local/bin/k3s",
    "var/lib/rancher/k3s/agent/client.key",
)
POD = "/var/lib/kubelet/pods/2f6c/volumes"


@pytest.mark.parametrize(
    ("line", "own", "foreign"),
    [
        pytest.param(f"tmpfs {POD}/kubernetes.io~projected/token tmpfs rw 0 0", True, None, id="projected token"),
        pytest.param("overlay /run/k3s/containerd/io/rootfs overlay rw 0 0", True, None, id="container"),
        pytest.param("nsfs /run/k3s/netns/cni-1 nsfs rw 0 0", True, None, id="network namespace"),
        pytest.param(
            "ceph /var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/globalmount ceph rw 0 0",
            False,
            "/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/globalmount (ceph of ceph)",
            id="volume of a CSI driver",
        ),
        pytest.param(
            f"nas:/models {POD}/kubernetes.io~nfs/models nfs4 rw 0 0",
            False,
            f"{POD}/kubernetes.io~nfs/models (nfs4 of nas:/models)",
            id="nfs volume",
        ),
        pytest.param(
            "/dev/nvme1n1 /var/lib/rancher/k3s ext4 rw 0 0", False, "/var/lib/rancher/k3s (ext4 of /dev/nvme1n1)", id="own disk"
        ),
        pytest.param(
            "/dev/sda1 /var/lib/rancher/k3s/my\\040models xfs rw 0 0",
            False,
            "/var/lib/rancher/k3s/my models (xfs of /dev/sda1)",
            id="path with a space",
        ),
        pytest.param("/dev/sda1 / ext4 rw 0 0", False, None, id="root"),
        pytest.param("/dev/sdb1 /var/lib/rancher ext4 rw 0 0", False, None, id="the directory above"),
        pytest.param("/dev/sdb1 /var/lib/kubelet-old ext4 rw 0 0", False, None, id="a similar name"),
    ],
)
def test_whose_a_mount_is(line, own, foreign):
    found_own, found_foreign = mounts(line + "\n")
    assert bool(found_own) is own
    assert found_foreign == ([foreign] if foreign else [])


def test_the_deepest_mount_is_unmounted_first():
    table = "tmpfs /run/k3s/a tmpfs rw 0 0\nshm /run/k3s/a/b/c tmpfs rw 0 0\noverlay /run/k3s/a/b overlay rw 0 0\n"
    assert mounts(table)[0] == ["/run/k3s/a/b/c", "/run/k3s/a/b", "/run/k3s/a"]


def test_only_rules_of_the_cluster_are_taken_out():
    saved = (
        "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A INPUT -p tcp --dport 22 -j ACCEPT\n"
        '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD\nCOMMIT\n'
    )
    assert without_rules(saved) == "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with an agent: its root and the commands that were run on it."""
    commands = []

    def run_command(_, command, **__):
        commands.append(" ".join(command))
        return 0, "", ""

    monkeypatch.setattr(k3s_removal, "ROOT", tmp_path)
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", run_command)
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.get_bin_path", lambda *_, **__: None)
    for path in (*PARTS, "proc/mounts", "etc/hostname"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    return SimpleNamespace(root=tmp_path, commands=commands)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_everything_of_k3s_goes_and_nothing_else(host, run_module):
    before = files(host.root)
    announced = run_module(k3s_removal, check=True)
    assert (files(host.root), host.commands) == (before, [])
    result = run_module(k3s_removal)
    assert announced == result
    units = ["/etc/systemd/system/k3s-agent.service", "/etc/systemd/system/k3s-agent.service.env"]
    assert result["removed"] == [*units, "/usr/local/bin/k3s", "/var/lib/rancher/k3s"]
    assert files(host.root) == ["etc/hostname", "proc/mounts"]
    assert not (host.root / "var/lib/rancher").exists()


def test_what_else_is_of_rancher_stays(host, run_module):
    (host.root / "etc/rancher/rke2").mkdir(parents=True)
    run_module(k3s_removal)
    assert (host.root / "etc/rancher/rke2").is_dir()


def test_the_service_is_stopped_before_and_forgotten_after(host, run_module):
    run_module(k3s_removal)
    assert host.commands == ["systemctl disable --now k3s-agent.service", "systemctl daemon-reload"]
    assert run_module(k3s_removal)["changed"] is False


def test_what_the_kubelet_mounted_is_unmounted_before(host, run_module):
    (host.root / "proc/mounts").write_text(f"tmpfs {POD}/token tmpfs rw 0 0\n")
    run_module(k3s_removal)
    assert host.commands[1] == f"umount --lazy {POD}/token"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(
            lambda root: (root / "proc/mounts").write_text(f"nas:/models {POD}/models nfs4 rw 0 0\n"),
            f"the mount {POD}/models (nfs4 of nas:/models)",
            id="mount",
        ),
        pytest.param(
            lambda root: (root / "var/lib/rancher/k3s/storage/pvc-1_default_data").mkdir(parents=True),
            "the volumes of pods in /var/lib/rancher/k3s/storage: pvc-1_default_data",
            id="volume",
        ),
    ],
)
def test_what_somebody_would_lose_stops_it_before_anything_is_touched(host, run_module, spoil, told):
    spoil(host.root)
    before = files(host.root)
    result = run_module(k3s_removal)
    assert result["failed"]
    assert result["msg"].startswith(f"K3s was not removed, since {told} would be destroyed. Remedy: ")
    assert (files(host.root), host.commands) == (before, [])


def test_volumes_can_be_given_up(host, run_module):
    (host.root / "var/lib/rancher/k3s/storage/pvc-1_default_data").mkdir(parents=True)
    assert run_module(k3s_removal, volumes=True)["changed"]
    assert not (host.root / "var/lib/rancher/k3s").exists()


def test_processes_of_pods_are_found_and_no_others(host):
    for process, group, command in (
        ("11", "0::/kubepods.slice/kubepods-burstable.slice/cri-1.scope", "python3\0serve.py\0"),
        ("12", "0::/system.slice/k3s-agent.service", "/var/lib/rancher/k3s/data/current/bin/containerd-shim-runc-v2\0-address\0"
         "/run/k3s/containerd/containerd.sock\0"),
        ("13", "0::/system.slice/docker.service", "/usr/bin/containerd-shim-runc-v2\0-address\0/run/containerd/c.sock\0"),
        ("14", "0::/user.slice", "vim\0/run/k3s/containerd/notes\0"),
    ):  # fmt: skip
        (host.root / "proc" / process).mkdir()
        (host.root / "proc" / process / "cgroup").write_text(group)
        (host.root / "proc" / process / "cmdline").write_text(command)
    assert sorted(k3s_removal.processes()) == [11, 12]

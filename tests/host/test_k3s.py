"""A node of a K3s cluster, whichever it is: who may read its secrets, and that its service is current."""

import pytest

SECRETS = ("/etc/rancher/k3s/token", "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/registries.yaml")


@pytest.fixture(scope="module")
def unit(host):
    return "k3s" if host.file("/etc/systemd/system/k3s.service").exists else "k3s-agent"


def test_the_service_runs_now_and_after_a_reboot(host, unit):
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


@pytest.mark.parametrize("path", SECRETS)
def test_only_root_reads_what_holds_secrets(host, path):
    assert (host.file(path).mode, host.file(path).user) == (0o600, "root")


def test_the_kubeconfig_of_an_administrator_is_roots_alone(host, unit):
    if unit == "k3s-agent":
        assert not host.file("/etc/rancher/k3s/k3s.yaml").exists
    else:
        assert host.file("/etc/rancher/k3s/k3s.yaml").mode & 0o007 == 0


def test_the_token_is_in_no_command_line_and_in_no_log(host):
    secret = host.file("/etc/rancher/k3s/token").content_string.strip().rsplit(":", 1)[-1]
    assert len(secret) >= 16
    assert secret not in host.check_output("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
    assert secret not in host.check_output("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '")
    assert secret not in host.check_output("journalctl --no-pager --output=cat")


def test_nothing_that_it_reads_is_newer_than_its_start(host, unit):
    started = host.check_output("systemctl show --property=ExecMainStartTimestamp --value %s", unit)
    newer = host.check_output("find /usr/local/bin/k3s /etc/rancher/k3s/config.yaml /etc/rancher/k3s/token -newermt %s", started)
    assert newer == ""


def test_systemd_finds_no_fault_in_the_unit(host, unit):
    assert host.run("systemd-analyze verify /etc/systemd/system/%s.service", unit).stderr == ""

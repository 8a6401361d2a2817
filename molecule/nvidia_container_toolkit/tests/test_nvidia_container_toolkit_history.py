"""What is left after all that side_effect.yml did."""

from __future__ import annotations


def test_the_host_went_back_to_the_version_that_was_asked_for(host):
    assert host.check_output("dpkg-query --show --showformat '${Version}' nvidia-container-toolkit") == "1.19.1-1"


def test_the_newer_version_does_not_come_by_itself(host):
    assert "1.20.0-1" in host.check_output("apt-cache policy nvidia-container-toolkit")
    assert "nvidia-container" not in host.check_output("apt-get --simulate dist-upgrade")


def test_the_mode_is_the_one_that_was_asked_for(host):
    assert 'mode = "cdi"' in host.file("/etc/nvidia-container-runtime/config.toml").content_string.splitlines()


def test_the_spec_made_by_hand_is_in_the_backups(host):
    kept = host.check_output("grep --recursive --files-with-matches 535.309.01 /var/backups/groundwork/nvidia_container_toolkit")
    assert kept.endswith("/nvidia.yaml")


def test_the_spec_is_of_the_last_driver(host):
    assert "libcuda.so.580.178.04" in host.file("/var/run/cdi/nvidia.yaml").content_string

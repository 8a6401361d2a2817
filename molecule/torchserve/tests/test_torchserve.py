"""placeholder."""


def test_unit_is_active(host):
    assert host.service("torchserve").is_running

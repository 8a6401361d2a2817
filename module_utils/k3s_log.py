"""What the log of K3s says about why a node does not come up, in words that help."""

from __future__ import annotations

import re

# Text in the log -> cause and remedy. The first that is found counts; the more telling ones stand first. These never mend
# themselves.
LASTING = (
    (
        r"401 Unauthorized|failed to validate token|token CA hash does not match",
        "the servers refuse its token",
        "compare k3s_token on the controller with /var/lib/rancher/k3s/server/token on a server, and run the play again",
    ),
    (
        r"Node password rejected",
        "the cluster has a node of this name with another password: another host, or this one before it was installed anew",
        "if it was installed anew, `k3s kubectl delete node NAME` on a server and run the play again; else give it another name",
    ),
    (
        r"different token",
        "its data was made with another token",
        "put back the token of the cluster in k3s_token",
    ),
    (
        r"critical configuration value mismatch(?: between servers)?:? *([^\"\s]*)",
        "a setting that must be alike on all servers differs: {0}",
        "move that key from host variables to k3s_server_config",
    ),
    (
        r"flag provided but not defined: -+([\w-]+)",
        "this K3s does not know the key {0}",
        "remove it from k3s_config, k3s_server_config or k3s_agent_config",
    ),
    (
        r"unknown flag: --([\w-]+)",
        "a component does not know the argument {0}",
        "remove it from the *-arg lists of the configuration",
    ),
    (
        r"unrecognized feature gate: (\w+)",
        "this Kubernetes has no feature gate {0}",
        "remove it from feature-gates in the *-arg lists of the configuration",
    ),
    (
        r"kubelet is configured to not run on a host using cgroup v1",
        "this kubelet does not run on cgroup v1",
        "boot the host with cgroup v2 (systemd.unified_cgroup_hierarchy=1)",
    ),
)
# These may: a server that is still starting, a port that is about to be free.
PASSING = (
    (
        r"too many learner members|etcd cluster join failed",
        "etcd takes one new member at a time, and another one is still joining",
        "wait until all servers are Ready and run the play again",
    ),
    (
        r"(?:failed to get CA certs|failed to retrieve configuration from server).*?"
        r"(connection refused|Connection refused|[Nn]o route to host|i/o timeout|timed out|no such host|not known)",
        "the server that it joins does not answer: {0}",
        "bring that server up first; port 6443 must be open from this host",
    ),
    (
        r"address already in use",
        "another program has one of its ports",
        "`ss -ltnp` on the host names it",
    ),
)


def explain(log: str) -> tuple[str, str, bool] | None:
    """Return cause, remedy and whether it lasts, for what a log ends with; None if nothing known is in it."""
    for causes in (LASTING, PASSING):
        for pattern, cause, remedy in causes:
            if found := re.search(pattern, log):
                groups = found.groups() or (found.group(),)
                return cause.format(*groups), remedy, causes is LASTING
    return None

#!/usr/bin/env python3
"""STAND-IN for the program `k3s`: its commands, files, texts and its protocol between nodes, without Kubernetes and without TLS.

What it does as the real one does, as far as the role k3s can see it:
- reads /etc/rancher/k3s/config.yaml and config.yaml.d, and ends at once on an unknown key;
- a first server makes a cluster with a CA and a token; others join with the token. A server that may not join ends, an agent that
  may not join logs `401 Unauthorized` and goes on;
- an etcd member is a learner at first, and the API answers only with a majority of the members;
- a node has the labels and taints of its first registration, a password of its own, and is Ready while its kubelet reports;
- `k3s kubectl` gets, patches, deletes and drains nodes; `k3s etcd-snapshot save` writes a file.
Pods, controllers, certificates and container runtimes it has none. A file is a version: VERSION below is what it says it is.

Nodes reach each other on port 6443 by HTTP. Times are those of a test: a node is lost after seconds, not after 40.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import http.client
import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

VERSION = "v1.36.3+k3s1"

CONFIG = Path("/etc/rancher/k3s/config.yaml")
KUBECONFIG = Path("/etc/rancher/k3s/k3s.yaml")
NODE_PASSWORD = Path("/etc/rancher/node/password")
DATA = Path("/var/lib/rancher/k3s")
PORT = 6443
HEARTBEAT_SECONDS = 0.5
LOST_SECONDS = 3.0
LEARNER_SECONDS = 1.0

COMMON_KEYS = {
    "data-dir", "debug", "default-runtime", "flannel-iface", "kube-proxy-arg", "kubelet-arg", "log", "node-external-ip",
    "node-ip", "node-label", "node-name", "node-taint", "nonroot-devices", "pause-image", "private-registry",
    "protect-kernel-defaults", "resolv-conf", "selinux", "server", "snapshotter", "token", "token-file", "with-node-id",
}  # fmt: skip
SERVER_KEYS = COMMON_KEYS | {
    "advertise-address", "agent-token", "agent-token-file", "bind-address", "cluster-cidr", "cluster-dns", "cluster-domain",
    "cluster-init", "datastore-endpoint", "default-local-storage-path", "disable", "disable-helm-controller",
    "disable-network-policy", "egress-selector-mode", "embedded-registry", "etcd-arg", "etcd-snapshot-retention",
    "etcd-snapshot-schedule-cron", "flannel-backend", "https-listen-port", "kube-apiserver-arg", "kube-controller-manager-arg",
    "kube-scheduler-arg", "secrets-encryption", "secrets-encryption-provider", "service-cidr", "service-node-port-range",
    "system-default-registry", "tls-san", "write-kubeconfig", "write-kubeconfig-group", "write-kubeconfig-mode",
}  # fmt: skip
# What all servers must have alike.
CRITICAL = ("cluster-cidr", "cluster-dns", "cluster-domain", "disable-helm-controller", "disable-network-policy",
            "flannel-backend", "secrets-encryption", "service-cidr")  # fmt: skip


def log(level: str, text: str) -> None:
    """Write one line as K3s writes them."""
    print(f'time="{time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}" level={level} msg={json.dumps(text)}', flush=True)


def die(text: str) -> NoReturn:
    """End as K3s does: one line, exit code 1."""
    log("fatal", text)
    sys.exit(1)


def scalar(text: str) -> str:
    """Read a YAML scalar: plain, or in single or double quotes."""
    if text.startswith('"'):
        return str(json.loads(text))
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def read_config(text: str) -> dict[str, Any]:
    """Read the YAML of a configuration: keys with scalars, or with lists of scalars; anything else is an error."""
    config: dict[str, Any] = {}
    key = None
    for line in text.splitlines():
        if not line.strip() or line.startswith(("#", "---")):
            continue
        if entry := re.fullmatch(r"\s*- (.*)", line):
            if key is None or not isinstance(config[key], list):
                die(f"yaml: no list begins before {line!r}")
            config[key].append(scalar(entry[1]))
        elif pair := re.fullmatch(r"([\w-]+\+?):(?: (.*))?", line):
            key = pair[1]
            value = (pair[2] or "").strip()
            config[key] = [] if value in ("", "[]") else scalar(value)
        else:
            die(f"yaml: the stand-in can't read {line!r}")
    return config


def configuration(kind: str) -> dict[str, Any]:
    """Return what the files say; a key that ends in + is added to the list before it."""
    config: dict[str, Any] = {}
    for path in [CONFIG, *sorted(CONFIG.with_name("config.yaml.d").glob("*.yaml"))]:
        for key, value in read_config(path.read_text()).items() if path.exists() else ():
            if key.endswith("+"):
                config.setdefault(key[:-1], []).extend(value if isinstance(value, list) else [value])
            else:
                config[key] = value
    for key in config:
        if key not in (SERVER_KEYS if kind == "server" else COMMON_KEYS):
            print(f"Incorrect Usage: flag provided but not defined: -{key}\n", flush=True)
            die(f"flag provided but not defined: -{key}")
    for argument in config.get("kubelet-arg", []):
        if argument.startswith("systemd-cgroup"):
            die("kubelet exited: failed to parse kubelet flag: unknown flag: --systemd-cgroup")
    return config


def token_of(config: dict[str, Any]) -> str:
    """Return the token that the configuration has."""
    return str(config.get("token") or (Path(config["token-file"]).read_text().strip() if "token-file" in config else ""))


def password_of(token: str) -> str:
    """Return the password in a token: `password`, or `K10<sha256 of the CA>::<user>:<password>`."""
    return token.rsplit(":", 1)[-1]


def call(address: str, request: str, body: Any = None, token: str = "", wait: float = 1.0) -> tuple[int, Any]:
    """Send a request such as `GET /readyz` to a server; return status and JSON answer. OSError if it does not answer."""
    method, path = request.split(" ", 1)
    connection = http.client.HTTPConnection(address, PORT, timeout=wait)
    try:
        connection.request(method, path, json.dumps(body), {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"no answer that can be read: {error}") from error
    finally:
        connection.close()


def write(path: Path, text: str, mode: int) -> None:
    """Write a file with a mode, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.touch(mode)
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


def node_password() -> str:
    """Return this node's password, made at its first start."""
    if not NODE_PASSWORD.exists():
        write(NODE_PASSWORD, secrets.token_hex(16), 0o600)
    return NODE_PASSWORD.read_text()


def own_address() -> str:
    """Return the address behind this host's name."""
    return socket.gethostbyname(socket.gethostname())


def notify_ready() -> None:
    """Tell systemd that the service has started."""
    target = os.environ.get("NOTIFY_SOCKET", "")
    if target:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", "\0" + target[1:] if target.startswith("@") else target)


def merged(document: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Cluster:
    """What a server knows: the nodes, the members of etcd, when a node last reported. Every change goes to all members."""

    FILE = DATA / "server/db/state.json"

    def __init__(self, state: dict[str, Any]) -> None:
        """Begin with a state, of the disk or of another server."""
        self.state = state
        self.seen: dict[str, float] = {}
        self.lock = threading.RLock()
        self.me = ""

    @classmethod
    def first(cls, password: str, critical: dict[str, Any]) -> Cluster:
        """Make a new cluster."""
        authority = f"-----BEGIN CERTIFICATE-----\nSTANDIN{secrets.token_hex(16)}\n-----END CERTIFICATE-----\n"
        return cls(
            {"revision": 0, "id": secrets.token_hex(8), "authority": authority, "password": password or secrets.token_hex(16),
             "admin": secrets.token_hex(16), "critical": critical, "members": {}, "nodes": {}, "passwords": {}}
        )  # fmt: skip

    def token(self) -> str:
        """Return the token in its secure form."""
        return f"K10{hashlib.sha256(self.state['authority'].encode()).hexdigest()}::server:{self.state['password']}"

    def save(self) -> None:
        """Keep the state on this disk."""
        write(self.FILE, json.dumps(self.state), 0o600)

    def changed(self) -> None:
        """Count a change, keep it and give it to the other members."""
        self.state["revision"] += 1
        self.save()
        for name, member in self.state["members"].items():
            if name != self.me:
                try:
                    call(member["address"], "POST /standin/state", self.state, self.state["password"])
                except OSError:
                    log("warning", f"etcd member {name} does not answer")

    def catch_up(self) -> None:
        """Take the newest state that another member has: this server may have been away."""
        for name, member in list(self.state["members"].items()):
            if name != self.me:
                with contextlib.suppress(OSError):
                    status, state = call(member["address"], "POST /standin/state", None, self.state["password"])
                    if status == 200 and state["revision"] > self.state["revision"]:
                        self.state = state

    def quorum(self) -> bool:
        """Tell whether a majority of the members of etcd answers."""
        alive = 0
        members = self.state["members"]
        for name, member in members.items():
            if name == self.me:
                alive += 1
                continue
            with contextlib.suppress(OSError):
                alive += call(member["address"], "GET /standin/ping")[0] == 200
        return alive > len(members) / 2

    def register(self, wish: dict[str, Any]) -> tuple[int, str]:
        """Take a node in, or back; return status and text."""
        with self.lock:
            name = wish["name"]
            known = self.state["passwords"].setdefault(name, wish["password"])
            if known != wish["password"]:
                return 403, (
                    "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server "
                    "node-passwd entry, try enabling a unique node name with the --with-node-id flag"
                )
            if wish["kind"] == "server":
                for key in CRITICAL:
                    if wish["critical"].get(key) != self.state["critical"].get(key):
                        return 400, f"critical configuration value mismatch between servers: {key}"
                if name not in self.state["members"] and not all(self.voting(member) for member in self.state["members"]):
                    return 400, "etcd cluster join failed: too many learner members in cluster"
                self.state["members"].setdefault(name, {"address": wish["address"], "since": time.time()})
            if name not in self.state["nodes"]:
                self.state["nodes"][name] = self.new_node(wish)
            self.state["nodes"][name]["status"]["nodeInfo"]["kubeletVersion"] = wish["version"]
            self.seen[name] = time.time()
            self.changed()
            return 200, ""

    @staticmethod
    def new_node(wish: dict[str, Any]) -> dict[str, Any]:
        """Return a node as its kubelet registers it."""
        labels = {"kubernetes.io/hostname": wish["name"], "kubernetes.io/os": "linux"}
        if wish["kind"] == "server":
            labels |= {"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"}
        labels |= dict(label.split("=", 1) for label in wish["labels"])
        taints = []
        for taint in wish["taints"]:
            key, _, rest = taint.partition("=")
            value, _, effect = rest.rpartition(":")
            taints.append({"key": key, "effect": effect, **({"value": value} if value else {})})
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": wish["name"], "resourceVersion": "1", "labels": labels, "annotations": {}},
            "spec": {"taints": taints} if taints else {},
            "status": {"nodeInfo": {"kubeletVersion": wish["version"]},
                       "addresses": [{"type": "InternalIP", "address": wish["address"]}]},
        }  # fmt: skip

    def voting(self, name: str) -> bool:
        """Tell whether a member votes: a learner becomes one."""
        return bool(time.time() - self.state["members"][name]["since"] > LEARNER_SECONDS)

    def last_seen(self, name: str) -> float:
        """Return when a node last reported to any of the servers."""
        latest = self.seen.get(name, 0.0)
        for member, data in self.state["members"].items():
            if member != self.me:
                with contextlib.suppress(OSError):
                    latest = max(latest, call(data["address"], f"GET /standin/seen/{name}")[1])
        return latest

    def view(self, name: str) -> dict[str, Any]:
        """Return a node as the API shows it."""
        node: dict[str, Any] = copy.deepcopy(self.state["nodes"][name])
        seen = self.last_seen(name)
        ready = time.time() - seen < LOST_SECONDS
        node["status"]["conditions"] = [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
            if ready
            else {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                  "message": "Kubelet stopped posting node status."}
        ]  # fmt: skip
        node["status"]["conditions"][0]["lastHeartbeatTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seen))
        if name in self.state["members"]:
            voter = self.voting(name)
            node["status"]["conditions"].append(
                {"type": "EtcdIsVoter", "status": str(voter), "reason": "MemberNotLearner" if voter else "MemberIsLearner"}
            )
        return node


class Handler(BaseHTTPRequestHandler):
    """The API of one server."""

    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing for each request."""

    def answer(self, status: int, body: Any) -> None:
        """Answer with JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_one(self) -> None:
        """Answer one request."""
        cluster = self.cluster
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        path = urllib.parse.unquote(self.path)
        if path == "/cacerts":
            self.answer(200, cluster.state["authority"])
        elif path.startswith("/standin/"):
            self.between_nodes(path, body, token)
        elif path in ("/readyz", "/healthz", "/livez") and not cluster.quorum():
            self.answer(500, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed")
        elif path in ("/readyz", "/healthz", "/livez"):
            self.answer(200, "ok")
        elif not cluster.quorum():
            self.answer(500, "etcdserver: request timed out")
        elif token != cluster.state["admin"] and not (path.startswith("/api/v1/nodes/") and self.command == "GET"):
            self.answer(401, "error: You must be logged in to the server (Unauthorized)")
        else:
            self.nodes(path, body)

    def between_nodes(self, path: str, body: Any, token: str) -> None:
        """Answer what the nodes of a cluster say to each other."""
        cluster = self.cluster
        if path == "/standin/ping":
            self.answer(200, {})
        elif path.startswith("/standin/seen/"):
            self.answer(200, cluster.seen.get(path.rsplit("/", 1)[1], 0.0))
        elif password_of(token) != cluster.state["password"]:
            self.answer(401, "401 Unauthorized")
        elif path == "/standin/state":
            with cluster.lock:
                if body and body["revision"] > cluster.state["revision"]:
                    cluster.state = body
                    cluster.save()
            self.answer(200, cluster.state)
        elif path == "/standin/register":
            status, text = cluster.register(body)
            self.answer(status, cluster.state if status == 200 else text)
        elif body["name"] in cluster.state["nodes"]:
            cluster.seen[body["name"]] = time.time()
            self.answer(200, {})
        else:
            self.answer(404, "the node was deleted")

    def nodes(self, path: str, body: Any) -> None:
        """Answer what is about nodes."""
        cluster = self.cluster
        name = path.removeprefix("/api/v1/nodes").strip("/")
        with cluster.lock:
            if name and name not in cluster.state["nodes"]:
                self.answer(404, f'Error from server (NotFound): nodes "{name}" not found')
                return
            if self.command == "PATCH":
                wanted = (body.get("metadata") or {}).pop("resourceVersion", None)
                if wanted not in (None, cluster.state["nodes"][name]["metadata"]["resourceVersion"]):
                    self.answer(409, "Error from server (Conflict): the object has been modified")
                    return
                cluster.state["nodes"][name] = merged(cluster.state["nodes"][name], body)
                cluster.state["nodes"][name]["metadata"]["resourceVersion"] = str(cluster.state["revision"] + 1)
                cluster.changed()
            elif self.command == "DELETE":
                for part in ("nodes", "passwords", "members"):
                    cluster.state[part].pop(name, None)
                cluster.changed()
                self.answer(200, {})
                return
        if name:
            self.answer(200, cluster.view(name))
        else:
            items = [cluster.view(each) for each in sorted(cluster.state["nodes"])]
            self.answer(200, {"apiVersion": "v1", "kind": "List", "items": items})

    do_GET = do_POST = do_PATCH = do_DELETE = handle_one  # noqa: N815 the names that http.server looks for


def wish_of(kind: str, config: dict[str, Any], address: str) -> dict[str, Any]:
    """Return what a node says of itself when it registers."""
    return {
        "name": config.get("node-name") or socket.gethostname(),
        "kind": kind,
        "address": config.get("node-ip") or address,
        "version": VERSION,
        "password": node_password(),
        "labels": config.get("node-label", []),
        "taints": config.get("node-taint", []),
        "critical": {key: config[key] for key in CRITICAL if key in config},
    }


def run_runtime() -> None:
    """Write containerd's configuration as far as roles look at it: the nvidia runtime, if it is found at the start."""
    path = os.environ.get("PATH", "")
    found = [folder for folder in path.split(":") if os.access(f"{folder}/nvidia-container-runtime", os.X_OK)]
    text = "version = 3\n"
    if found:
        table = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia'"
        text += f'[{table}]\n[{table}.options]\n  BinaryName = "{found[0]}/nvidia-container-runtime"\n'
    write(DATA / "agent/etc/containerd/config.toml", text, 0o600)


def run_server(_: list[str]) -> NoReturn:
    """Be a server until the end."""
    config = configuration("server")
    log("info", f"Starting k3s {VERSION} (stand-in)")
    join = urllib.parse.urlsplit(config.get("server", "")).hostname
    token = token_of(config)
    run_runtime()
    wish = wish_of("server", config, own_address())
    if Cluster.FILE.exists():
        cluster = Cluster(json.loads(Cluster.FILE.read_text()))
        if token and password_of(token) != cluster.state["password"]:
            die("starting kubernetes: preparing server: bootstrap data already found and encrypted with different token")
    elif join:
        if not token:
            die("starting kubernetes: preparing server: --token is required to join a cluster")
        try:
            status, answer = call(join, "POST /standin/register", wish, token, wait=5)
        except OSError as error:
            die(f'starting kubernetes: preparing server: failed to get CA certs: Get "https://{join}:{PORT}/cacerts": {error}')
        if status == 401:
            die("starting kubernetes: preparing server: failed to validate token: 401 Unauthorized")
        if status != 200:
            die(f"starting kubernetes: preparing server: {answer}")
        cluster = Cluster(answer)
    else:
        cluster = Cluster.first(password_of(token), wish["critical"])
    cluster.me = wish["name"]
    cluster.catch_up()
    if not join and cluster.me not in cluster.state["members"]:
        cluster.register(wish)
    cluster.save()
    Handler.cluster = cluster
    server = ThreadingHTTPServer(("", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubeconfig = {"users": [{"name": "default", "user": {"token": cluster.state["admin"]}}]}
    write(KUBECONFIG, json.dumps(kubeconfig), int(str(config.get("write-kubeconfig-mode", "0600")), 8))
    write(DATA / "server/tls/server-ca.crt", cluster.state["authority"], 0o644)
    write(DATA / "server/token", cluster.token() + "\n", 0o600)
    (DATA / "server/manifests").mkdir(parents=True, exist_ok=True)
    follow("server", wish, ["127.0.0.1"], cluster.state["password"])


def run_agent(_: list[str]) -> NoReturn:
    """Be an agent until the end."""
    config = configuration("agent")
    join = urllib.parse.urlsplit(config.get("server", "")).hostname
    if not join:
        die("--server is required")
    if not token_of(config):
        die("--token is required")
    log("info", f"Starting k3s agent {VERSION} (stand-in)")
    run_runtime()
    follow("agent", wish_of("agent", config, own_address()), [join], token_of(config))


def follow(kind: str, wish: dict[str, Any], servers: list[str], token: str) -> NoReturn:
    """Register, and report for ever; another server takes over from one that does not answer."""
    registered = announced = False
    while True:
        for server in list(servers):
            try:
                if not registered:
                    status, answer = call(server, "POST /standin/register", wish, token, wait=5)
                else:
                    status, answer = call(server, "POST /standin/report", {"name": wish["name"]}, token)
            except OSError as error:
                log("error", f'failed to retrieve configuration from server: Get "https://127.0.0.1:6444/v1-k3s/config": {error}')
                continue
            if status == 200:
                if not registered:
                    log("info", f"Node {wish['name']} registered")
                    addresses = [member["address"] for member in answer["members"].values()]
                    if kind == "agent":
                        servers = list(dict.fromkeys([server, *addresses]))
                        write(DATA / "agent/kubelet.kubeconfig", json.dumps({"servers": servers}), 0o600)
                registered = True
                break
            if status == 404:  # somebody deleted the node: the kubelet registers it again
                registered = False
            elif status == 401:
                log("error", "Failed to configure agent: failed to retrieve configuration from server: "
                    "https://127.0.0.1:6444/v1-k3s/config: 401 Unauthorized")  # fmt: skip
            else:
                log("info", f"Waiting to retrieve agent configuration; server is not ready: {answer}")
        if registered and not announced:
            notify_ready()
            announced = True
        time.sleep(HEARTBEAT_SECONDS)


def api(method: str, path: str, body: Any, kubeconfig: Path, *, missing_ok: bool = False) -> Any:
    """Ask the API with a kubeconfig; end as kubectl does if it says no. None for what is not there, if that is no error."""
    if not kubeconfig.exists():
        sys.exit(f'error: error loading config file "{kubeconfig}": open {kubeconfig}: no such file or directory')
    data = json.loads(kubeconfig.read_text())
    token = data["users"][0]["user"]["token"] if "users" in data else ""
    last: OSError | None = None
    for server in data.get("servers", ["127.0.0.1"]):
        try:
            status, answer = call(server, f"{method} {path}", body, token, wait=10)
        except OSError as error:
            last = error
            continue
        if status == 404 and missing_ok:
            return None
        if status != 200:
            sys.exit(answer if str(answer).startswith("Error") else f"Error from server: {answer}")
        return answer
    sys.exit(f"The connection to the server 127.0.0.1:{PORT} was refused - did you specify the right host or port? ({last})")


def run_kubectl(arguments: list[str]) -> int:
    """Answer the calls of kubectl that roles make."""
    parser = argparse.ArgumentParser(prog="k3s kubectl (stand-in)")
    parser.add_argument("--kubeconfig", type=Path, default=KUBECONFIG)
    parser.add_argument("--request-timeout")
    verbs = parser.add_subparsers(dest="verb", required=True)
    get = verbs.add_parser("get")
    get.add_argument("kind", nargs="?", choices=("node", "nodes"))
    get.add_argument("name", nargs="?")
    get.add_argument("--raw")
    get.add_argument("--ignore-not-found", action="store_true")
    get.add_argument("--output", "-o", choices=("json",))
    patch = verbs.add_parser("patch")
    patch.add_argument("kind", choices=("node",))
    patch.add_argument("name")
    patch.add_argument("--type", choices=("merge",), required=True)
    patch.add_argument("--patch", "-p", required=True)
    delete = verbs.add_parser("delete")
    delete.add_argument("kind", choices=("node",))
    delete.add_argument("name")
    delete.add_argument("--ignore-not-found", action="store_true")
    delete.add_argument("--timeout")
    drain = verbs.add_parser("drain")
    drain.add_argument("name")
    for flag in ("--ignore-daemonsets", "--delete-emptydir-data", "--disable-eviction", "--force"):
        drain.add_argument(flag, action="store_true")
    drain.add_argument("--timeout")
    drain.add_argument("--grace-period")
    wish = parser.parse_args(arguments)
    if wish.verb == "get" and wish.raw:
        print(api("GET", wish.raw, None, wish.kubeconfig))
        return 0
    path = f"/api/v1/nodes/{wish.name}" if wish.name else "/api/v1/nodes"
    if wish.verb == "get":
        found = api("GET", path, None, wish.kubeconfig, missing_ok=wish.ignore_not_found)
        if found is not None:
            print(json.dumps(found))
    elif wish.verb == "patch":
        api("PATCH", path, json.loads(wish.patch), wish.kubeconfig)
        print(f"node/{wish.name} patched")
    elif wish.verb == "delete":
        if api("DELETE", path, None, wish.kubeconfig, missing_ok=wish.ignore_not_found) is not None:
            print(f'node "{wish.name}" deleted')
    else:
        node = api("PATCH", path, {"spec": {"unschedulable": True}}, wish.kubeconfig)
        print(f"node/{wish.name} cordoned")
        # A test says so where a pod may not be evicted.
        pod = node["metadata"]["annotations"].get("stand-in/pod-that-stays")
        if pod:
            sys.exit(
                f"error when evicting pods/{pod!r} (will retry after 5s): Cannot evict pod as it would violate the pod's "
                f"disruption budget.\nerror: unable to drain node {wish.name!r}: global timeout reached: {wish.timeout}"
            )
        print(f"node/{wish.name} drained")
    return 0


def run_snapshot(arguments: list[str]) -> int:
    """Save a snapshot of etcd: the state in a file."""
    parser = argparse.ArgumentParser(prog="k3s etcd-snapshot (stand-in)")
    parser.add_argument("action", choices=("save",))
    parser.add_argument("--name", required=True)
    wish = parser.parse_args(arguments)
    api("GET", "/api/v1/nodes", None, KUBECONFIG)
    path = DATA / "server/db/snapshots" / f"{wish.name}-{socket.gethostname()}-{int(time.time())}"
    write(path, Cluster.FILE.read_text(), 0o600)
    log("info", f"Snapshot {path.name} saved.")
    return 0


def main() -> int:
    """Run one command."""
    commands = {"server": run_server, "agent": run_agent, "kubectl": run_kubectl, "etcd-snapshot": run_snapshot}
    if sys.argv[1:] == ["--version"]:
        print(f"k3s version {VERSION} (stand-in)\ngo version none")
        return 0
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(f"No help topic for {sys.argv[1:2]}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return commands[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

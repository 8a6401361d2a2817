"""The module cuda_toolkits on a made-up root; what compiles and what is fetched is a stand-in (tests/standins)."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path

import cuda_toolkits
import pytest
from ansible.module_utils import cuda_trees, cuda_verify

STANDINS = Path(__file__).parents[1] / "standins/cuda_archives.py"
spec = importlib.util.spec_from_file_location("cuda_archives", STANDINS)
standins = importlib.util.module_from_spec(spec)
spec.loader.exec_module(standins)

GROUP = "Name: cuda\nLink: /usr/local/cuda\nStatus: {}\nBest: {}\nValue: {}\n\nAlternative: {}\nPriority: 128\n"
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc makes the stand-in for libcudnn")


def wheel(files):
    """Return a wheel with files: path -> (text, mode)."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as output:
        for path, (text, mode) in files.items():
            info = zipfile.ZipInfo(path)
            info.external_attr = (stat.S_IFREG | mode) << 16
            output.writestr(info, text)
    return stream.getvalue()


def nvcc_wheel(version):
    return wheel(
        {
            "nvidia/cu13/bin/nvcc": (standins.nvcc(version), 0o755),
            "nvidia/cu13/lib/libcudart.so.13": ("stand-in", 0o644),
            "nvidia/cu13/.metadata/provenance.txt": ("x", 0o644),
            "nvidia/__init__.py": ("", 0o644),
            "nvidia_cuda_nvcc-13.dist-info/licenses/License.txt": ("terms", 0o644),
        }
    )


class _Host:
    """A made-up root; nvcc runs for real, update-alternatives and installers are stand-ins that this class plays."""

    def __init__(self, root, run_module, served):
        self.root, self._run, self.served = root, run_module, served
        self.group, self.cache, self.calls, self.on_install = None, "", [], None
        self.path("/usr/local").mkdir(parents=True)

    def path(self, name):
        return self.root / name.lstrip("/")

    def write(self, name, text):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def link(self):
        return str(self.path("/usr/local/cuda").readlink())

    def listing(self):
        return sorted(path.name for path in self.path("/usr/local").iterdir())

    def command(self, command, **_):
        self.calls.append(command)
        if command[0] == "update-alternatives":
            if command[1] == "--query":
                return (0, self.group, "") if self.group else (2, "", "no alternatives for cuda")
            if command[1] == "--set":
                self.path("/usr/local/cuda").unlink(missing_ok=True)
                self.path("/usr/local/cuda").symlink_to("/etc/alternatives/cuda")
                self.group = GROUP.format("manual", command[3], command[3], command[3])
            return 0, "", ""
        if command[0] == "ldconfig":
            return 0, self.cache, ""
        if command[0] == "sh":
            return self.on_install(command)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout, result.stderr

    def wheels(self, version, content=None, sha256=None):
        """Bring an archive of wheels to the host; return the toolkit's entry."""
        content = content or nvcc_wheel(version)
        series = ".".join(version.split(".")[:2])
        archive = self.path(f"/var/cache/groundwork/cuda/cuda-{series}.tar")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w") as output:
            member = tarfile.TarInfo("nvidia_cuda_nvcc-13-py3-none-any.whl")
            member.size = len(content)
            output.addfile(member, io.BytesIO(content))
        return {
            "version": version,
            "method": "wheel",
            "wheels": f"/var/cache/groundwork/cuda/cuda-{series}.tar",
            "sha256s": [sha256 or hashlib.sha256(content).hexdigest()],
        }

    def run(self, *toolkits, **options):
        return self._run(cuda_toolkits, toolkits=list(toolkits), **options)


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    host = _Host(tmp_path / "root", run_module, tmp_path / "served")
    monkeypatch.setattr(cuda_toolkits, "ROOT", host.root)
    monkeypatch.setattr(
        cuda_toolkits.AnsibleModule, "run_command", lambda _, command, **options: host.command(command, **options)
    )
    return host


@pytest.fixture
def cudnn(host):
    """Make the archive of a cuDNN for CUDA 12; return its entry."""

    def make(version, **changes):
        made = standins.cudnn(host.served, version, "12")
        return {"version": version, "cuda": "12", "method": "redist", "url": made["url"], "sha256": made["sha256"], **changes}

    return make


@pytest.fixture
def toolkit(host):
    """Make the archives of a toolkit; return its entry."""

    def make(version="12.4.1", **changes):
        made = standins.redist(host.served, version)
        return {"version": version, "method": "redist", "url": made["url"], "sha256": made["sha256"], **changes}

    return make


# Trees


def test_two_toolkits_lie_side_by_side(host):
    result = host.run(host.wheels("13.0.2"), host.wheels("13.5.0"))
    assert result["changed"]
    assert host.listing() == ["cuda", "cuda-13.0", "cuda-13.5"]
    assert result["trees"]["/usr/local/cuda-13.5"]["compiler"] == "nvcc"
    assert result["trees"]["/usr/local/cuda-13.0"]["verified"] == "sm_80"


def test_a_tree_of_wheels_has_the_shape_of_a_toolkit(host):
    host.run(host.wheels("13.0.2"))
    tree = host.path("/usr/local/cuda-13.0")
    assert (tree / "bin/nvcc").stat().st_mode & 0o777 == 0o755
    assert str((tree / "lib64").readlink()) == "lib"
    assert (tree / "lib64/libcudart.so").read_text() == "stand-in"
    assert (tree / "licenses/nvidia_cuda_nvcc.txt").read_text() == "terms"
    assert not list(tree.rglob("__init__.py")) + list(tree.rglob(".metadata"))


def test_the_second_run_changes_nothing_and_needs_no_archive(host):
    wished = host.wheels("13.0.2")
    host.run(wished)
    assert not host.path(wished["wheels"]).exists(), "the archive is not kept"
    host.calls.clear()
    result = host.run(wished)
    assert (result["changed"], result["diff"]) == (False, [])
    assert host.calls == [["update-alternatives", "--query", "cuda"]] * 2, "what was proved is not compiled again"


def test_check_mode_tells_the_plan_before_any_archive_is_there(host):
    wished = host.wheels("13.0.2")
    archive = host.path(wished["wheels"]).read_bytes()
    host.path(wished["wheels"]).unlink()
    planned = host.run(wished, check=True)
    assert planned["missing"] == ["cuda-13.0"]
    assert host.listing() == []
    host.path(wished["wheels"]).write_bytes(archive)
    done = host.run(wished)
    assert (planned["changed"], planned["diff"]) == (done["changed"], done["diff"])
    assert done["diff"][0]["after"] == (
        "/usr/local/cuda: /usr/local/cuda-13.0 (plain link)\n/usr/local/cuda-13.0: 13.0.2 by wheel, compiles for sm_80\n"
    )


def test_an_archive_that_was_not_brought_is_named(host):
    wished = {**host.wheels("13.0.2"), "wheels": "/nowhere.tar"}
    assert "CUDA 13.0.2: /nowhere.tar is not there" in host.run(wished)["msg"]


def test_a_wheel_that_no_lock_file_knows_is_refused(host):
    result = host.run(host.wheels("13.0.2", sha256="0" * 64))
    assert "nvidia_cuda_nvcc-13-py3-none-any.whl, which is not in the role's lock file" in result["msg"]
    assert host.listing() == []


def test_a_compiler_of_another_version_is_refused_and_leaves_nothing(host):
    """The trap of unpinned wheels: 13.0 was asked for, 13.5 was fetched."""
    result = host.run(host.wheels("13.0.2", content=nvcc_wheel("13.5.0")))
    assert "/usr/local/cuda-13.0/bin/nvcc is not that of CUDA 13.0.2" in result["msg"]
    assert host.listing() == []


def test_a_compiler_that_fails_leaves_the_tree_that_was_there(host):
    host.run(host.wheels("13.0.1"))
    broken = wheel({"nvidia/cu13/bin/nvcc": ("#!/bin/sh\necho 'ptxas fatal: stand-in' >&2; exit 1\n", 0o755)})
    result = host.run(host.wheels("13.0.2", content=broken))
    assert "CUDA 13.0.2 can't compile for sm_80: ptxas fatal: stand-in" in result["msg"]
    assert "release 13.0, V13.0.1" in host.command([str(host.path("/usr/local/cuda-13.0/bin/nvcc")), "--version"])[1]
    assert host.listing() == ["cuda", "cuda-13.0"]


def test_another_patch_release_takes_the_place_of_the_tree(host):
    host.run(host.wheels("13.0.1"))
    assert host.run(host.wheels("13.0.2"))["trees"]["/usr/local/cuda-13.0"]["version"] == "13.0.2"
    assert host.listing() == ["cuda", "cuda-13.0"]


def test_an_interrupted_run_is_completed(host):
    wished = host.wheels("13.0.2")
    host.run(wished)
    host.path("/usr/local/cuda-13.0").rename(host.path("/usr/local/cuda-13.0.old"))
    host.write("/usr/local/cuda-13.0.part/bin/nvcc", "half")
    assert not host.run(wished)["changed"]
    assert host.listing() == ["cuda", "cuda-13.0"]


def test_a_tree_of_somebody_else_is_refused(host):
    host.write("/usr/local/cuda-13.0/bin/nvcc", "theirs")
    result = host.run(host.wheels("13.0.2"))
    assert "/usr/local/cuda-13.0 is there and was not made by this role" in result["msg"]
    assert host.path("/usr/local/cuda-13.0/bin/nvcc").read_text() == "theirs"


def test_a_tree_that_does_not_fit_on_the_disk_is_refused(host, monkeypatch):
    usage = shutil.disk_usage(host.root)._replace(free=10)
    monkeypatch.setattr(cuda_trees.shutil, "disk_usage", lambda _: usage)
    assert "free space first" in host.run(host.wheels("13.0.2"))["msg"]
    assert host.listing() == []


def test_packages_bring_the_tree_and_the_module_proves_it_once(host):
    wished = {"version": "13.0.2", "method": "apt"}
    assert "install cuda-toolkit-13-0 by apt first" in host.run(wished)["msg"]
    assert host.run(wished, check=True)["changed"]
    host.write("/usr/local/cuda-13.0/bin/nvcc", standins.nvcc("13.0.2"))
    host.path("/usr/local/cuda-13.0/bin/nvcc").chmod(0o755)
    assert host.run(wished)["trees"]["/usr/local/cuda-13.0"]["verified"] == "sm_80"
    assert not host.run(wished)["changed"]


def test_apt_does_not_mix_its_files_into_a_tree_of_the_role(host):
    host.run(host.wheels("13.0.2"))
    assert "apt would mix its files into it" in host.run({"version": "13.0.2", "method": "apt"})["msg"]


def test_another_architecture_is_proved_again(host):
    wished = host.wheels("13.0.2")
    host.run(wished)
    assert host.run(wished, architecture="sm_90")["trees"]["/usr/local/cuda-13.0"]["verified"] == "sm_90"
    assert any("-arch=sm_90" in command for command in host.calls)


# Redistributable archives and the runfile


def test_redist_takes_the_compiler_parts_that_the_manifest_has(host, toolkit):
    result = host.run(toolkit())
    assert host.path("/usr/local/cuda-12.4/include/cuda_runtime_api.h").exists()
    assert not host.path("/usr/local/cuda-12.4/bin/nsys").exists()
    assert result["trees"]["/usr/local/cuda-12.4"]["compiler"] == "nvcc"
    assert list(host.path("/var/cache/groundwork/cuda").iterdir()) == []


def test_redist_takes_the_components_that_are_named(host, toolkit):
    host.run(toolkit(components=["nsight_systems"]))
    assert host.path("/usr/local/cuda-12.4/bin/nsys").exists()


def test_a_component_that_the_manifest_does_not_have_is_named(host, toolkit):
    message = host.run(toolkit(components=["cuda_nvc"]))["msg"]
    assert "has no cuda_nvc for linux-x86_64; it has: cuda_cudart, cuda_nvcc, nsight_systems" in message


def test_a_manifest_with_another_checksum_is_refused(host, toolkit):
    result = host.run(toolkit(sha256="1" * 64))
    assert "expected " + "1" * 64 in result["msg"]
    assert host.listing() == []


def test_an_archive_with_another_checksum_is_refused(host, toolkit):
    wished = toolkit()
    archive = next(host.served.rglob("cuda_nvcc-*.tar.xz"))
    archive.write_bytes(archive.read_bytes() + b"\0")
    result = host.run(wished)
    assert f"{archive.name} has the sha256" in result["msg"]
    assert host.listing() == []


def test_an_address_without_an_answer_is_named(host, toolkit):
    result = host.run(toolkit(url="file:///no/such/redistrib.json"))
    assert "file:///no/such/redistrib.json can't be fetched" in result["msg"]


@pytest.mark.parametrize("name", ["top/../../../evil", "top//evil/../../../x"])
def test_an_archive_can_not_leave_its_tree(tmp_path, name):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as output:
        output.addfile(tarfile.TarInfo(name))
    with pytest.raises(cuda_trees.CudaError, match="would leave the tree"):
        cuda_trees.unpack_archive(archive, tmp_path / "tree")


def installer(host, version="12.8.1"):
    """Play the stand-in for the installer inside the made-up root; return the toolkit's entry."""

    def install(command):
        prefix = Path(command[4].removeprefix("--toolkitpath="))
        for path, text in {"bin/nvcc": standins.nvcc(version), "lib64/pkgconfig/cudart.pc": f"cudaroot={prefix}\n"}.items():
            (prefix / path).parent.mkdir(parents=True, exist_ok=True)
            (prefix / path).write_text(text)
            (prefix / path).chmod(0o755)
        (prefix / "version.json").write_text(json.dumps({"cuda": {"version": version}}))
        host.write("/etc/ld.so.conf.d/cuda-12-8.conf", str(prefix))
        host.path("/usr/local/cuda").unlink(missing_ok=True)
        host.path("/usr/local/cuda").symlink_to(prefix)
        return 0, "", ""

    host.on_install = install
    made = standins.runfile(host.served, version)
    return {"version": version, "method": "runfile", "url": made["url"], "sha256": made["sha256"]}


def test_the_runfile_installs_the_toolkit_alone_and_keeps_no_global_trace(host):
    host.write("/etc/ld.so.conf.d/theirs.conf", "/opt/lib\n")
    result = host.run(host.wheels("13.0.2"), installer(host))
    (call,) = [command for command in host.calls if command[0] == "sh"]
    assert call[2:4] == ["--silent", "--toolkit"]
    assert not [option for option in call if "driver" in option]
    assert host.link() == "/usr/local/cuda-13.0", "the installer had taken the link"
    assert [path.name for path in host.path("/etc/ld.so.conf.d").iterdir()] == ["theirs.conf"]
    assert host.path("/usr/local/cuda-12.8/lib64/pkgconfig/cudart.pc").read_text() == "cudaroot=/usr/local/cuda-12.8\n"
    assert "cuda-12-8.conf for the loader was removed" in result["notes"][0]
    assert ["ldconfig"] in host.calls, "the loader forgets the libraries of the unfinished tree"
    assert list(host.path("/var/cache/groundwork/cuda").iterdir()) == []


def test_the_path_of_the_unfinished_tree_is_nowhere_in_a_text_or_a_link(tmp_path):
    tree = tmp_path / "cuda-12.8.part"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/uninstall").write_text(f"rm -r {tree}/bin {tree}\n")
    (tree / "bin/uninstall").chmod(0o755)
    program = f"\x7fELF\0{tree}\0".encode()
    (tree / "bin/program").write_bytes(program)
    (tree / "include").symlink_to(tree / "targets/include")
    (tree / "lib64").symlink_to("lib")
    cuda_trees.relocate(tree, "/usr/local/cuda-12.8")
    assert (tree / "bin/uninstall").read_text() == "rm -r /usr/local/cuda-12.8/bin /usr/local/cuda-12.8\n"
    assert (tree / "bin/uninstall").stat().st_mode & 0o777 == 0o755
    assert (tree / "bin/program").read_bytes() == program
    assert [str((tree / name).readlink()) for name in ("include", "lib64")] == ["/usr/local/cuda-12.8/targets/include", "lib"]


def test_an_md5_of_nvidia_is_accepted_and_said(host):
    wished = installer(host)
    md5 = standins.runfile(host.served, "12.8.1")["md5"]
    result = host.run({**wished, "sha256": None, "md5": md5})
    assert "compared with the MD5 that NVIDIA gives" in result["notes"][0]


def test_an_installer_that_brought_another_version_is_refused(host):
    wished = installer(host, "12.9.1")
    assert "its version.json says that it is 12.9.1" in host.run({**wished, "version": "12.8.1"})["msg"]
    assert [name for name in host.listing() if name != "cuda"] == []


def test_an_installer_that_fails_is_quoted(host):
    wished = installer(host)
    host.on_install = lambda _: (1, "", "stand-in: no room")
    assert "the installer of CUDA 12.8.1 failed (see /var/log/cuda-installer.log): stand-in: no room" in host.run(wished)["msg"]
    assert host.listing() == []


# The link


def test_a_flipped_plain_link_is_put_back_and_said(host):
    toolkits = [host.wheels("13.0.2"), host.wheels("13.5.0")]
    host.run(*toolkits)
    host.path("/usr/local/cuda").unlink()
    host.path("/usr/local/cuda").symlink_to("/usr/local/cuda-13.5")
    result = host.run(*toolkits)
    assert host.link() == "/usr/local/cuda-13.0"
    assert "/usr/local/cuda: /usr/local/cuda-13.5 (plain link)\n" in result["diff"][0]["before"]
    assert result["notes"] == [
        "/usr/local/cuda led to /usr/local/cuda-13.5 (plain link); it leads to /usr/local/cuda-13.0 (plain link) now"
    ]


def test_the_link_leads_to_the_default_or_else_to_the_first_toolkit(host):
    toolkits = host.wheels("13.0.2"), host.wheels("13.5.0")
    host.run(*toolkits)
    assert host.link() == "/usr/local/cuda-13.0"
    host.run(*toolkits, default="13.5")
    assert host.link() == "/usr/local/cuda-13.5"


def test_a_group_of_alternatives_is_set_in_manual_mode(host):
    wished = host.wheels("13.0.2")
    host.run(wished)
    host.path("/usr/local/cuda").unlink()
    host.path("/usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    host.group = GROUP.format("auto", "/usr/local/cuda-12.8", "/usr/local/cuda-12.8", "/usr/local/cuda-12.8")
    result = host.run(wished)
    assert host.calls[-2:] == [
        ["update-alternatives", "--install", "/usr/local/cuda", "cuda", "/usr/local/cuda-13.0", "1"],
        ["update-alternatives", "--set", "cuda", "/usr/local/cuda-13.0"],
    ]
    assert "/usr/local/cuda: /usr/local/cuda-12.8 (alternatives, auto)\n" in result["diff"][0]["before"]
    assert "/usr/local/cuda: /usr/local/cuda-13.0 (alternatives, manual)\n" in result["diff"][0]["after"]
    assert not host.run(wished)["changed"]


def test_a_link_that_was_written_over_the_alternatives_is_put_back(host):
    wished = host.wheels("13.0.2")
    host.group = GROUP.format("manual", *["/usr/local/cuda-13.0"] * 3)
    host.run(wished)
    host.path("/usr/local/cuda").unlink()
    host.path("/usr/local/cuda").symlink_to("/usr/local/cuda-13.0")
    assert host.run(wished)["changed"]
    assert host.link() == "/etc/alternatives/cuda"


def test_automatic_mode_is_ended_even_if_it_points_to_the_default(host):
    wished = host.wheels("13.0.2")
    host.path("/usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    host.group = GROUP.format("auto", *["/usr/local/cuda-13.0"] * 3)
    assert host.run(wished)["changed"]
    assert "Status: manual" in host.group


def test_a_directory_in_the_place_of_the_link_is_refused(host):
    host.write("/usr/local/cuda/bin/nvcc", "theirs")
    assert "/usr/local/cuda is no link but holds files of its own" in host.run(host.wheels("13.0.2"))["msg"]
    assert host.listing() == ["cuda"]


# Environment files


def test_each_toolkit_has_an_environment_file(host):
    host.run({**host.wheels("13.0.2"), "host_compiler": "g++-12"})
    assert host.path("/etc/groundwork/cuda/13.0.env").read_text().splitlines()[1:] == [
        "CUDA_HOME=/usr/local/cuda-13.0",
        "PATH=/usr/local/cuda-13.0/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH=/usr/local/cuda-13.0/lib64",
        "NVCC_CCBIN=g++-12",
    ]
    assert host.path("/etc/groundwork/cuda/13.0.env").stat().st_mode & 0o777 == 0o644


@needs_gcc
def test_the_first_cudnn_goes_into_the_file_of_the_toolkit_and_others_get_their_own(host, toolkit, cudnn):
    result = host.run(toolkit(), cudnn=[cudnn("9.27.0.42"), cudnn("9.13.0.50")])
    assert result["libraries"] == {
        "/etc/groundwork/cuda/12.4.env": "/usr/local/cudnn-9.27.0.42-cuda12/lib/libcudnn.so.9",
        "/etc/groundwork/cuda/12.4-cudnn-9.13.0.50.env": "/usr/local/cudnn-9.13.0.50-cuda12/lib/libcudnn.so.9",
    }


# cuDNN


@needs_gcc
@pytest.mark.parametrize("part", ["library", "header"])
def test_a_cudnn_that_is_another_version_is_refused(host, toolkit, cudnn, monkeypatch, part):
    if part == "library":
        monkeypatch.setattr(standins, "libcudnn", lambda _, make=standins.libcudnn: make("9.13.0.50"))
    else:
        monkeypatch.setattr(
            standins, "CUDNN_HEADER", "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 13\n#define CUDNN_PATCHLEVEL 0\n"
        )
    result = host.run(toolkit(), cudnn=[cudnn("9.27.0.42")])
    assert f"the {part} says that it is 9.13.0, expected 9.27.0" in result["msg"]
    assert "cudnn-9.27.0.42-cuda12" not in host.listing()


@needs_gcc
def test_a_copy_that_wins_over_the_wished_cudnn_is_refused(host, toolkit, cudnn):
    wished = toolkit(), cudnn("9.27.0.42")
    host.run(wished[0], cudnn=[wished[1]])
    host.write("/usr/local/cuda-12.4/lib64/libcudnn.so.9", "copied by hand")
    message = host.run(wished[0], cudnn=[wished[1]])["msg"]
    assert "/usr/local/cuda-12.4/lib64/libcudnn.so.9 is found before the libcudnn.so.9 of" in message


@needs_gcc
def test_another_version_in_the_loader_cache_is_named(host, toolkit, cudnn):
    host.path("/usr/lib").mkdir(parents=True)
    host.path("/usr/lib/libcudnn.so.9").write_bytes(standins.libcudnn("9.13.0.50"))
    host.cache = "1 libs found in cache\n\tlibcudnn.so.9 (libc6,x86-64) => /usr/lib/libcudnn.so.9\n"
    notes = host.run(toolkit(), cudnn=[cudnn("9.27.0.42")])["notes"]
    assert any("a program gets cuDNN 9.13.0 from /usr/lib/libcudnn.so.9" in note for note in notes)


@needs_gcc
def test_a_missing_cublas_is_said(host, toolkit, cudnn):
    notes = host.run(toolkit(), cudnn=[cudnn("9.27.0.42")])["notes"]
    assert any("cuDNN loads libcublasLt.so.12 when it works, and no toolkit or package here has it" in note for note in notes)


def test_a_library_that_can_not_be_loaded_is_named(tmp_path):
    (tmp_path / "libcudnn.so.9").write_text("no library" * 100)
    with pytest.raises(cuda_verify.CudaError, match=r"libcudnn\.so\.9 can't be used: .*invalid ELF header"):
        cuda_verify.cudnn_version(tmp_path / "libcudnn.so.9")


# Removal


def test_a_toolkit_that_leaves_the_list_stays_and_is_named(host):
    both = host.wheels("13.0.2"), host.wheels("13.5.0")
    host.run(*both)
    result = host.run(both[0])
    assert (result["changed"], result["unlisted"]) == (False, [{"name": "cuda-13.5", "version": "13.5.0", "method": "wheel"}])
    assert "/usr/local/cuda-13.5 is no longer listed and stays" in result["notes"][0]
    assert host.path("/etc/groundwork/cuda/13.5.env").exists()


@pytest.mark.parametrize("check", [True, False])
def test_prune_removes_what_the_module_made_and_nothing_else(host, check):
    both = host.wheels("13.0.2"), host.wheels("13.5.0")
    host.run(*both)
    host.write("/usr/local/cuda-11.8/bin/nvcc", "theirs")
    result = host.run(both[0], prune=True, check=check)
    assert result["changed"]
    assert result["diff"][0]["after"].splitlines()[1:] == ["/usr/local/cuda-13.0: 13.0.2 by wheel, compiles for sm_80"]
    assert host.listing() == ["cuda", "cuda-11.8", "cuda-13.0", *(["cuda-13.5"] if check else [])]
    assert host.path("/etc/groundwork/cuda/13.5.env").exists() is check


@pytest.mark.parametrize("left", [True, False])
def test_prune_after_the_packages_went_takes_their_empty_folder(host, left):
    packaged, kept = {"version": "13.0.2", "method": "apt"}, host.wheels("13.5.0")
    host.write("/usr/local/cuda-13.0/bin/nvcc", standins.nvcc("13.0.2"))
    host.path("/usr/local/cuda-13.0/bin/nvcc").chmod(0o755)
    host.run(kept, packaged)
    if not left:
        shutil.rmtree(host.path("/usr/local/cuda-13.0/bin"))
    host.run(kept, prune=True)
    assert host.listing() == ["cuda", *(["cuda-13.0"] if left else []), "cuda-13.5"]
    assert not host.path("/usr/local/cuda-13.0/.groundwork.json").exists()


def test_a_link_of_packages_to_a_tree_is_no_tree(host):
    wished = host.wheels("13.0.2")
    host.run(wished)
    host.path("/usr/local/cuda-13").symlink_to("cuda-13.0")
    assert host.run(wished, prune=True)["unlisted"] == []
    assert host.listing() == ["cuda", "cuda-13", "cuda-13.0"]


def test_prune_of_everything_takes_the_link_too(host):
    host.run(host.wheels("13.0.2"))
    assert host.run(prune=True)["changed"]
    assert (host.listing(), list(host.path("/etc/groundwork/cuda").iterdir())) == ([], [])
    assert not host.run(prune=True)["changed"]

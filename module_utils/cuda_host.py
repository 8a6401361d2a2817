"""What the module cuda_toolkits does on a host, and remembers of it."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from ansible.module_utils import cuda_plan as plan
from ansible.module_utils import cuda_trees as trees
from ansible.module_utils import cuda_verify as verify
from ansible.module_utils import files
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.cuda_link import GROUP, LINK, Link, commands, parse_group, read_link, wanted_link, write_link
from ansible.module_utils.cuda_plan import Stamp, Tree
from ansible.module_utils.cuda_trees import CudaError


class Host:
    """The host, and what was done to it so far."""

    def __init__(self, module: AnsibleModule, root: Path) -> None:
        """Read what a run must know before it changes anything."""
        self.module, self.root, self.check = module, root, bool(module.check_mode)
        self.toolkits = plan.read_trees(module.params["toolkits"])
        self.cudnn = plan.read_trees(module.params["cudnn"])
        self.architecture = module.params["architecture"]
        self.staging = self.root / module.params["staging"].lstrip("/")
        self.notes: list[str] = []
        self.stamps = plan.stamped(self.root)
        self.before = self.listing()

    def folder(self, tree: Tree) -> Path:
        """Return the directory of a tree."""
        return self.root.joinpath(plan.HOME, tree.name)

    def listing(self) -> dict[str, str]:
        """Return prefix -> description of the trees, as the stamps have them."""
        return {f"/{plan.HOME}/{name}": stamp.describe() for name, stamp in self.stamps.items()}

    def run(self, command: list[str], what: str) -> str:
        """Run a command that must succeed."""
        code, out, error = self.module.run_command(command)
        if code != 0:
            raise CudaError(f"{what}: {(error or out).strip()[-1500:]}")
        return str(out)

    # Trees

    def install(self, tree: Tree) -> None:
        """Make one tree and prove it; under its name there is never a half one."""
        if not self.check:
            self.staging.mkdir(parents=True, exist_ok=True)
            with trees.replacement(self.folder(tree)) as part:
                if tree.method == "wheel":
                    trees.unpack_wheels(self.root / tree.wheels.lstrip("/"), set(tree.sha256s), part)
                elif tree.method == "redist":
                    machine = {"x86_64": "linux-x86_64", "aarch64": "linux-sbsa"}[platform.machine()]
                    trees.unpack_redist(tree, self.staging, part, machine)
                else:
                    self.run_installer(tree, part)
                trees.finish(part)
                plan.write_stamp(part, self.proved(tree, part))
            if tree.method == "wheel":
                (self.root / tree.wheels.lstrip("/")).unlink()
        self.stamps[tree.name] = self.stamp_of(tree)

    def run_installer(self, tree: Tree, part: Path) -> None:
        """Run NVIDIA's installer for the toolkit alone, and take back what it writes outside of the tree."""
        file = self.staging / f"{tree.name}.run"
        algorithm = "sha256" if tree.sha256 else "md5"
        trees.fetch(tree.url, file, algorithm, tree.sha256 or tree.md5)
        if algorithm == "md5":
            self.notes.append(
                f"{tree.label}: the file was compared with the MD5 that NVIDIA gives, which shows damage but no forgery; "
                "set sha256 to be sure"
            )
        scratch = self.staging / f"{tree.name}.tmp"
        scratch.mkdir(exist_ok=True)
        size = file.stat().st_size
        trees.need(scratch, 3 * size, f"The installer of {tree.label}")
        trees.need(part, 2 * size, tree.label)
        known = set((self.root / "etc/ld.so.conf.d").glob("*"))
        # Without --toolkit a silent run of most versions would install a driver.
        command = ["sh", str(file), "--silent", "--toolkit", f"--toolkitpath={part}", "--override", "--no-man-page"]
        try:
            self.run([*command, f"--tmpdir={scratch}"], f"the installer of {tree.label} failed (see /var/log/cuda-installer.log)")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        trees.relocate(part, tree.prefix)
        if added := set((self.root / "etc/ld.so.conf.d").glob("*")) - known:
            for entry in added:
                entry.unlink()
                self.notes.append(f"The installer's {entry.name} for the loader was removed: it would decide for every service")
            # The installer has entered its libraries in the cache as well.
            self.run(["ldconfig"], "The loader's cache can't be renewed")
        file.unlink()

    def proved(self, tree: Tree, folder: Path) -> Stamp:
        """Return the stamp of a tree that works; CudaError for one that does not."""
        if tree.cuda:
            self.prove_cudnn(tree, folder)
            return self.stamp_of(tree, folder)
        told = verify.told_version(folder)
        if told and not f"{told}.".startswith(f"{tree.series}."):
            raise CudaError(f"{tree.label}: its version.json says that it is {told}")
        if self.architecture:
            self.prove_compiler(tree, folder)
        return self.stamp_of(tree, folder)

    def stamp_of(self, tree: Tree, folder: Path | None = None) -> Stamp:
        """Return the stamp that a tree has once it is made."""
        folder = folder or self.folder(tree)
        # In a dry run there is nothing to look into yet.
        kind = "none" if tree.cuda else verify.compiler(folder) if not self.check else "nvcc"
        return Stamp(tree.version, tree.method, tree.components, kind, self.architecture if kind != "none" else "")

    def prove_compiler(self, tree: Tree, folder: Path) -> None:
        """Compile a kernel to machine code."""
        kind, why = verify.compiler(folder), f"{tree.label} can't compile for {self.architecture}"
        with tempfile.TemporaryDirectory(dir=self.module.tmpdir) as name:
            source, intermediate, cubin = (Path(name) / f"groundwork.{suffix}" for suffix in ("cu", "ptx", "cubin"))
            source.write_text(verify.SOURCE)
            target = [f"-arch={self.architecture}", "-o", str(cubin)]
            if kind == "nvcc":
                told = self.run([str(folder / "bin/nvcc"), "--version"], why)
                if f"release {tree.series}," not in told:
                    raise CudaError(f"{tree.prefix}/bin/nvcc is not that of {tree.label}: {told.strip()}")
                host = [f"-ccbin={tree.host_compiler}"] if tree.host_compiler else []
                self.run([str(folder / "bin/nvcc"), "-cubin", *target, *host, str(source)], why)
            elif kind == "nvrtc":
                library = verify.library(folder, "nvrtc")
                intermediate.write_bytes(verify.apart(verify.ptx, library, verify.SOURCE, self.architecture))
                self.run([str(folder / "bin/ptxas"), *target, str(intermediate)], why)
            else:
                self.notes.append(f"{tree.label} has no compiler, so it was not tried")
                return
            if not verify.is_cubin(cubin):
                raise CudaError(f"{why}: {kind} said nothing, and left no machine code")

    def prove_cudnn(self, tree: Tree, folder: Path) -> None:
        """Compare what was asked for with what the library and the header say."""
        wanted = ".".join(tree.version.split(".")[:3])
        library = verify.library(folder, "cudnn")
        if library is None:
            raise CudaError(f"{tree.label}: no lib/libcudnn.so.{wanted.split('.')[0]} in what was fetched")
        for what, found in (("library", verify.cudnn_version(library)), ("header", verify.header_version(folder))):
            if found != wanted:
                raise CudaError(f"{tree.label}: the {what} says that it is {found or 'unknown'}, expected {wanted}")

    def take_over(self, tree: Tree) -> None:
        """Prove a tree that packages brought, once for each version."""
        folder = self.folder(tree)
        if not folder.exists():
            if not self.check:
                raise CudaError(f"{tree.prefix} is not there: install cuda-toolkit-{tree.series.replace('.', '-')} by apt first")
        elif not self.check:
            plan.write_stamp(folder, self.proved(tree, folder))
        self.stamps[tree.name] = self.stamp_of(tree)

    def make_trees(self) -> list[str]:
        """Make what is missing or other than wished; return the archives of wheels that are still missing (check mode)."""
        missing = []
        for tree in [*self.toolkits, *self.cudnn]:
            if not self.check:
                trees.restore(self.folder(tree))
            stamp = self.stamps.get(tree.name)
            if stamp and stamp.is_of(tree):
                if self.architecture and stamp.compiler != "none" and stamp.verified != self.architecture:
                    self.take_over(tree)
            elif tree.method == "apt":
                self.take_over(tree)
            else:
                if tree.method == "wheel" and not (self.root / tree.wheels.lstrip("/")).exists():
                    if not self.check:
                        raise CudaError(f"{tree.label}: {tree.wheels} is not there; bring the archive to the host first")
                    missing.append(tree.name)
                self.install(tree)
        return missing

    def unlisted(self) -> list[dict[str, str]]:
        """Remove or name the trees that are no longer wished."""
        listed = {tree.name for tree in [*self.toolkits, *self.cudnn]}
        gone = {name: stamp for name, stamp in self.stamps.items() if name not in listed}
        for name, stamp in gone.items():
            if not self.module.params["prune"]:
                self.notes.append(f"/{plan.HOME}/{name} is no longer listed and stays; cuda_toolkit_prune: true removes it")
                continue
            del self.stamps[name]
            if not self.check:
                self.remove(self.root / plan.HOME / name, stamp)
        return [{"name": name, "version": stamp.version, "method": stamp.method} for name, stamp in gone.items()]

    def remove(self, folder: Path, stamp: Stamp) -> None:
        """Remove a tree; one that packages brought is theirs, save for the stamp in it."""
        if stamp.method != "apt" or [path.name for path in folder.iterdir()] == [plan.STAMP]:
            trees.remove(folder)
        else:
            (folder / plan.STAMP).unlink()

    # The link

    def link(self) -> Link:
        """Read the link and its group."""
        code, out, _ = self.module.run_command(["update-alternatives", "--query", GROUP])
        return Link(read_link(self.root), parse_group(out) if code == 0 else None)

    def own_link(self, first: Link) -> Link:
        """Let /usr/local/cuda lead to the default; `first` is how it was before anything was installed."""
        if not self.toolkits:
            return first
        series = self.module.params["default"] or self.toolkits[0].series
        wanted = next(tree.prefix for tree in self.toolkits if tree.series == series)
        link = self.link()
        after = wanted_link(link, wanted)
        if first.holds and first != wanted_link(first, wanted):
            self.notes.append(f"/usr/local/cuda led to {first.describe()}; it leads to {after.describe()} now")
        if not self.check:
            for command in commands(link, wanted):
                self.run(["update-alternatives", *command], "The alternatives of /usr/local/cuda can't be set")
            if not link.group and link != after:
                write_link(self.root, wanted)
        return after

    def forget(self, link: Link, removed: list[str]) -> Link:
        """Let neither the link nor its group lead to trees that are gone."""
        for path in removed:
            if link.group and path in link.group.choices and not self.check:
                self.run(["update-alternatives", "--remove", GROUP, path], f"{path} can't be taken out of the alternatives")
        if link.group or link.holds not in removed:
            return link
        if not self.check:
            (self.root / LINK.lstrip("/")).unlink()
        return Link(None, None)

    # Files and libraries

    def write_environments(self) -> list[dict[str, str]]:
        """Write the environment files, and remove those of trees that are gone; return the differences."""
        wanted, changes = plan.environments(self.toolkits, self.cudnn), []
        home = self.root / plan.ENVIRONMENTS.lstrip("/")
        # Without prune a tree that is no longer listed stays, and a service may still name its file.
        old = sorted(home.glob("*.env")) if self.module.params["prune"] else []
        for path, text in {**{f"{plan.ENVIRONMENTS}/{file.name}": "" for file in old}, **wanted}.items():
            file = self.root / path.lstrip("/")
            before = file.read_text() if file.exists() else ""
            if before != text:
                changes.append({"before_header": path, "after_header": path, "before": before, "after": text})
                if text and not self.check:
                    files.replace(file, text)
                elif not self.check:
                    file.unlink()
        return changes

    def libraries(self) -> dict[str, str]:
        """Say which libcudnn wins for each environment file; CudaError where it is not the wished one."""
        if self.check or not self.cudnn:
            return {}
        cache = self.run(["ldconfig", "-p"], "The loader's cache can't be read")
        winners = {}
        for path, text in plan.environments(self.toolkits, self.cudnn).items():
            search = dict(line.split("=", 1) for line in text.splitlines()[1:])["LD_LIBRARY_PATH"].split(":")
            wished = next((tree for tree in self.cudnn if f"{tree.prefix}/lib" in search), None)
            if not wished:
                continue
            soname, blas = f"libcudnn.so.{wished.version.split('.')[0]}", f"libcublasLt.so.{wished.cuda}"
            winners[path] = str(verify.winner(self.root, search, cache, soname))
            if not winners[path].startswith(f"{wished.prefix}/"):
                raise CudaError(
                    f"with {path}, {winners[path]} is found before the {soname} of {wished.prefix}; remove that copy, so that "
                    f"{wished.label} is used"
                )
            if verify.winner(self.root, search, cache, blas) is None:
                self.notes.append(
                    f"{path}: cuDNN loads {blas} when it works, and no toolkit or package here has it; bring cuBLAS"
                )
            self.name_foreign(path, wished, cache, soname)
        return winners

    def name_foreign(self, path: str, wished: Tree, cache: str, soname: str) -> None:
        """Say what a program gets that is started without the environment file."""
        for file in verify.cached(cache, soname)[:1]:
            found, wanted = verify.cudnn_version(self.root / file.lstrip("/")), ".".join(wished.version.split(".")[:3])
            if found != wanted:
                self.notes.append(f"Without {path} a program gets cuDNN {found} from {file}, which is not the wished {wanted}")

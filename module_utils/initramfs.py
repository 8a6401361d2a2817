"""Find the initramfs images of a host, and read and rebuild them with the distribution's own programs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

#: Where an image of a kernel can be: Debian and Ubuntu (with dracut too), and dracut's own name for it.
IMAGES = ("initrd.img-{}", "initramfs-{}.img")
#: Bootloaders that keep copies of an image, such as systemd-boot, are told here (Debian's initramfs policy).
HOOKS = "etc/initramfs/post-update.d"
#: Holds an empty file with the name of an image while that is rebuilt. What lies there tells of a rebuild that did not end.
PENDING = "var/lib/groundwork/initramfs-pending"


class ImageError(Exception):
    """An image that can't be read or built; the text is the reason."""


class NoRoomError(ImageError):
    """There is no room to unpack an image; that tells nothing about the image."""


@dataclass(frozen=True)
class Kernel:
    """An installed kernel and its image."""

    version: str
    image: Path


def find_kernels(root: Path) -> tuple[list[Kernel], list[str]]:
    """Return the kernels that have an image, and sentences about what has none or can't be rebuilt."""
    kernels, notes = [], []
    for vmlinuz in sorted((root / "boot").glob("vmlinuz-*")):
        version = vmlinuz.name[len("vmlinuz-") :]
        image = next((file for name in IMAGES if (file := root / "boot" / name.format(version)).exists()), None)
        if image is None:
            notes.append(f"kernel {version} has no initramfs, so there is nothing to rebuild")
        elif not (root / "lib/modules" / version).is_dir():
            notes.append(f"kernel {version} has no modules in /lib/modules, so {image.name} can't be rebuilt: remove its rest")
        else:
            kernels.append(Kernel(version, image))
    return kernels, notes if kernels or notes else ["no kernel is installed, so there is no initramfs to rebuild"]


def find_builder(module: AnsibleModule, root: Path) -> Builder | None:
    """Return what builds the images of this host.

    Programs alone don't tell: initramfs-tools-core stays installed where dracut took over, and dracut-core may come as a mere
    dependency beside initramfs-tools. The package dracut is what hooks it into kernel updates.
    """
    dracut = module.get_bin_path("dracut")
    hooked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", "dracut"]
    if dracut and module.run_command(hooked)[1] == "installed":
        return Dracut(module, root)
    if module.get_bin_path("update-initramfs"):
        return InitramfsTools(module, root)
    return Dracut(module, root) if dracut else None


class Builder:
    """What the two have in common; `module` runs the programs."""

    def __init__(self, module: AnsibleModule, root: Path) -> None:
        """Keep the module and the root of the host."""
        self.module, self.root = module, root

    def run(self, *command: str, **environment: str) -> str:
        """Run a program and return its standard output; ImageError with the end of what it said if it fails."""
        code, output, error = self.module.run_command(list(command), environ_update=environment)
        if code != 0:
            raise ImageError(f"`{' '.join(command)}` ended with {code}: {last_lines(output, error)}")
        return str(output)

    def read(self, image: Path, path: str) -> str:
        """Return the content of a file inside an image, or nothing if it isn't there."""
        raise NotImplementedError

    def rebuild(self, kernel: Kernel, path: str, wanted: str) -> None:
        """Build the image anew; ImageError if the file in it is then not as wanted."""
        raise NotImplementedError

    def verify(self, image: Path, path: str, wanted: str, said: str) -> None:
        """Look into a new image."""
        found = self.read(image, path)
        if found != wanted:
            fault = "still holds" if not wanted else "holds another" if found else "does not hold"
            raise ImageError(f"the new image {fault} {path}; its builder said: {said or 'nothing'}")


class InitramfsTools(Builder):
    """Debian's and Ubuntu's initramfs-tools."""

    def read(self, image: Path, path: str) -> str:
        """Unpack the image: its program can't pick a file, and takes 1 to 2 s for an image of 30 MB."""
        with tempfile.TemporaryDirectory(dir=self.module.tmpdir) as folder:
            try:
                # It would put a copy into /var/tmp, and fail without a word if there is no room (initramfs-tools 0.142).
                self.run("unmkinitramfs", str(image), folder, TMPDIR=folder)
            except ImageError as error:
                # The copy is gone by now, but what is free then did not suffice for it.
                free, size = shutil.disk_usage(folder).free, image.stat().st_size
                if free >= size:
                    raise
                raise NoRoomError(
                    f"there is no room to unpack it ({free // 1024**2} MiB were left in {self.module.tmpdir}, and it takes "
                    f"several times its {size // 1024**2} MiB): make room, or set ansible_remote_tmp to a directory that has it"
                ) from error
            # With microcode in front of it, the image proper is unpacked into `main`.
            files = [Path(folder, part, path.lstrip("/")) for part in ("", "main")]
            return next((file.read_text(errors="surrogateescape") for file in files if file.is_file()), "")

    def rebuild(self, kernel: Kernel, path: str, wanted: str) -> None:
        """Let update-initramfs do it: it builds beside the old image and replaces it at the end."""
        code, output, error = self.module.run_command(["update-initramfs", "-u", "-k", kernel.version])
        said = last_lines(output, error)
        if code != 0:
            raise ImageError(f"`update-initramfs -u -k {kernel.version}` ended with {code}: {said}")
        self.verify(kernel.image, path, wanted, said)


class Dracut(Builder):
    """The images of dracut."""

    def read(self, image: Path, path: str) -> str:
        """Ask dracut's program for the file."""
        return self.run("lsinitrd", "--file", path.lstrip("/"), str(image))

    def rebuild(self, kernel: Kernel, path: str, wanted: str) -> None:
        """Build beside the old image: dracut itself writes over it, and removes it if the disk is full (dracut 059 to 106)."""
        new = kernel.image.with_name(f"{kernel.image.name}.new")
        command = ["dracut", "--quiet", "--force", str(new), kernel.version]
        try:
            # The hooks of bootloaders would be given the name of the draft.
            code, output, error = self.module.run_command(command, environ_update={"NO_POST_UPDATE_HOOKS": "1"})
            said = last_lines(output, error)
            if code != 0:
                raise ImageError(f"`{' '.join(command)}` ended with {code}: {said}")
            self.verify(new, path, wanted, said)
            shutil.copymode(kernel.image, new)
            new.replace(kernel.image)
        finally:
            new.unlink(missing_ok=True)
        hooks = self.root / HOOKS
        if hooks.is_dir():
            self.run("run-parts", f"--arg={kernel.version}", f"--arg={kernel.image}", str(hooks))


def last_lines(output: str, error: str) -> str:
    """Return the end of what a program said; the reason of a failure stands there."""
    return " | ".join([line.strip() for line in f"{output}\n{error}".splitlines() if line.strip()][-3:]).rstrip(".")


def little_space(kernel: Kernel) -> str:
    """Return a hint if the file system of the image can't hold another one of its size."""
    free, size = shutil.disk_usage(kernel.image.parent).free, kernel.image.stat().st_size
    if free >= size:
        return ""
    return (
        f" Only {free // 1024**2} MiB are free in {kernel.image.parent}, and an image takes about {size // 1024**2} MiB: "
        "remove kernels that are no longer needed (`apt-get autoremove --purge`)."
    )

"""Images: built by buildah on this machine and pushed to a cluster's registry.

buildah works in namespaces of its own, so that its processes and mounts end with the process that asked for
them. It runs the steps of a Dockerfile with `chroot`: no daemon, and no network but this machine's.

What is not on this machine can't be pulled either. Base images are made here instead (`debian`), under the
names that Dockerfiles and pods use. They are kept in the user's cache; what is built of them is the cluster's
and removed with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from devcluster.build import locked, say
from devcluster.kubelet.config import SANDBOX_IMAGE
from devcluster.paths import cache_dir

BUSYBOX = "docker.io/library/busybox:1.37"

_LABEL = "devcluster.made-of"
_BUILD_SECONDS = 7200.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The first process of a namespace takes all others with it, and itself ends with the one that started it.
_ALONE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc", "--fork"]
_ALONE += ["--kill-child=KILL", "--"]
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Quicker to write and to unpack, and nothing leaves the machine.
_UNCOMPRESSED = ["--disable-compression", "--tls-verify=false"]


class ImageError(RuntimeError):
    """An image could not be made; the message has the end of what was said."""


class Images:
    """The images of this machine, and the registry HOST:PORT of one cluster."""

    def __init__(self, registry: str, folder: Path) -> None:
        """`folder` is made, for what is of this cluster alone."""
        self.registry = registry
        folder.mkdir()
        self._folder = folder
        self._store = store = cache_dir() / "images"
        store.mkdir(parents=True, exist_ok=True)
        self._base_storage = self._write_storage("bases", store / "storage")
        registries = folder / "registries.conf"
        registries.write_text("")
        self._policy = folder / "policy.json"
        self._policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        credentials = folder / "auth.json"
        credentials.write_text("{}")
        self.environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(self._write_storage("own", folder / "storage", store / "storage")),
            "CONTAINERS_REGISTRIES_CONF": str(registries),
            "REGISTRY_AUTH_FILE": str(credentials),
        }
        # buildah makes the cache's folders; where they are only read from they must be there.
        self._run(["buildah", "images", "--quiet"], self._bases)

    # Making them

    def build(self, dockerfile: Path, context: Path, name: str, **arguments: str) -> None:
        """Build an image; `arguments` are the Dockerfile's. Raises ImageError if a step fails."""
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        command = ["bud", "--pull-never", "--layers=false", *given, "--tag", name]
        self._buildah([*command, "--file", str(dockerfile), str(context)])

    def derive(self, name: str, base: str, instructions: str) -> None:
        """An image like `base` after these instructions of a Dockerfile."""
        file = self._folder / "Containerfile"
        file.write_text(f"FROM {base}\n{instructions}\n")
        self.build(file, self._folder, name)

    def busybox(self, name: str, command: Sequence[str] = ("sh",)) -> None:
        """An image of busybox alone, from this machine's, if there is none of this name yet."""
        program = Path(shutil.which("busybox") or "/bin/busybox")
        recipe = [program.read_bytes().hex(), *command]
        with self._unless_made(name, recipe) as folder:
            if folder is None:
                return
            root = folder / "root"
            for name_of_folder in ("bin", "etc", "root", "tmp"):
                (root / name_of_folder).mkdir(parents=True)
            (root / "tmp").chmod(0o1777)
            shutil.copy(program, root / "bin" / "busybox")
            listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
            for applet in listed.stdout.split():
                with contextlib.suppress(FileExistsError):
                    (root / "bin" / applet).symlink_to("busybox")
            (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
            (root / "etc" / "group").write_text("root:x:0:\n")
            self._from_root(name, root, command, recipe)

    def debian(
        self,
        name: str,
        suite: str,
        packages: Sequence[str],
        script: str = "",
        command: Sequence[str] = ("sh",),
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        """An image of these packages of Debian, if there is none of this name made in the same way yet.

        `script` is run by sh in the image when they are installed, and when `folders` of this machine are
        copied to their names in the image's root. It trusts whom this machine trusts, so
        that package indices can be reached from it in the same way.
        """
        copied = folders or {}
        recipe = [suite, *packages, script, *command, *(f"{to}={source}" for to, source in copied.items())]
        with self._unless_made(name, recipe) as folder:
            if folder is None:
                return
            root = folder / "root"
            wanted = ["ca-certificates", "netbase", "tzdata", *packages]
            # debootstrap takes twice as long: it downloads, unpacks and syncs one package after the other.
            self._run(["mmdebstrap", "--variant=minbase", f"--include={','.join(wanted)}", suite, str(root)])
            if _CERTIFICATES.exists():
                shutil.copy(_CERTIFICATES, root / str(_CERTIFICATES).lstrip("/"))
            for to, source in copied.items():
                shutil.copytree(source, root / to, symlinks=True)
            if script:
                self._run(["chroot", str(root), "sh", "-euc", script])
            for waste in ("var/cache/apt", "var/lib/apt/lists"):
                shutil.rmtree(root / waste, ignore_errors=True)
            self._from_root(name, root, command, recipe)

    def docker(self, folder: Path) -> Path:
        """A program `docker` in `folder`, for commands of documents: `build` and `push`, done by buildah."""
        file = folder / "docker"
        buildah = f'exec {" ".join(_ALONE)} buildah --signature-policy "{self._policy}"'
        file.write_text(
            "#!/bin/sh\nset -eu\nverb=$1; shift\ncase $verb in\n"
            f'build) {buildah} bud --pull-never --layers=false "$@";;\n'
            f'push) {buildah} push {" ".join(_UNCOMPRESSED)} "$@";;\n'
            '*) echo "no docker here: only build and push" >&2; exit 2;;\nesac\n'
        )
        file.chmod(0o755)
        return file

    # Bringing them to the cluster

    def push(self, name: str, target: str | None = None) -> str:
        """Push an image under its name without the registry's, or as `target`; returns the name to pull.

        Nodes that are told to pull `docker.io/library/busybox` ask the cluster's registry for
        `library/busybox`.
        """
        path = target or name.removeprefix("docker.io/")
        full = path if path.startswith(f"{self.registry}/") else f"{self.registry}/{path}"
        self._buildah(["push", *_UNCOMPRESSED, name, f"docker://{full}"])
        return full

    def push_basic(self) -> None:
        """What every node needs to run anything, and busybox."""
        self.busybox(f"localhost/{SANDBOX_IMAGE}", ["tail", "-f", "/dev/null"])
        self.busybox(BUSYBOX)
        self.push(f"localhost/{SANDBOX_IMAGE}", SANDBOX_IMAGE)
        self.push(BUSYBOX)

    # Parts

    @contextlib.contextmanager
    def _unless_made(self, name: str, recipe: Sequence[str]) -> Iterator[Path | None]:
        """Yields a folder to make it in, None if it is there."""
        if self._made_of(name) == _digest(recipe):
            yield None
            return
        with locked(self._store / f"{_digest([name])}.lock", f"the image {name}"):
            if self._made_of(name) == _digest(recipe):
                yield None
                return
            say(f"making the image {name}")
            began = time.monotonic()
            with tempfile.TemporaryDirectory(dir=self._store, prefix="making-") as folder:
                yield Path(folder)
            say(f"  done in {time.monotonic() - began:.0f} s")

    def _made_of(self, name: str) -> str:
        wanted = f'{{{{index .OCIv1.Config.Labels "{_LABEL}"}}}}'
        command = ["buildah", "inspect", "--type", "image", "--format", wanted, name]
        return self._start(command, self._bases).stdout.strip()

    def _from_root(self, name: str, root: Path, command: Sequence[str], recipe: Sequence[str]) -> None:
        file = root.parent / "Containerfile"
        file.write_text(
            f"FROM scratch\nCOPY . /\nENV PATH={_PATH} LANG=C.UTF-8\n"
            f"LABEL {_LABEL}={_digest(recipe)}\nCMD {json.dumps(list(command))}\n"
        )
        arguments = ["bud", "--layers=false", "--tag", name, "--file", str(file), str(root)]
        self._buildah(arguments, self._bases)

    def _write_storage(self, name: str, images: Path, *bases: Path) -> Path:
        """Tell buildah to keep what it makes in `images`, and to find other images in `bases`."""
        file = self._folder / f"{name}.conf"
        file.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{images}"\n'
            f'runroot = "{self._folder / "run" / name}"\n'
            f"[storage.options]\nadditionalimagestores = {json.dumps([str(base) for base in bases])}\n"
        )
        return file

    @property
    def _bases(self) -> Mapping[str, str]:
        """The environment for images that are kept."""
        return {**self.environment, "CONTAINERS_STORAGE_CONF": str(self._base_storage)}

    def _buildah(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._run(["buildah", "--signature-policy", str(self._policy), *arguments], environment)

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        done = self._start(command, environment)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-3000:]
            raise ImageError(f"`{' '.join(command[:4])} ...` ended with {done.returncode}:\n{said}")

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_ALONE, *command],
            env=environment or self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )


def _digest(recipe: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]

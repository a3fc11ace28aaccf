"""A process in the root file system that an image of ours has: what stands for a container runtime.

As kubelet and runc start it with a read-only root: /etc/passwd does not know the image's user, there is no
capability, the environment has what is given and nothing else, no file can be written outside of /dev/shm.
Linux and root only. The kernel's part (seccomp, cgroups) is not there, and the network is the machine's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.dockerfile import HOME, Build

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

# $1 becomes the root, on a file system that no other process sees; what follows `--` is bound to where it is.
_PREAMBLE = r"""
set -eu
root=$1; shift
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$root"
bind() {  # SOURCE TARGET
  mkdir -p "$(dirname "$root$2")"
  if [ -d "$1" ]; then mkdir -p "$root$2"; else touch "$root$2"; fi
  mount --rbind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
}
for name in bin sbin lib lib32 lib64 libx32; do
  if [ -L "/$name" ]; then cp -P "/$name" "$root/$name"; elif [ -d "/$name" ]; then bind "/$name" "/$name"; fi
done
bind /usr /usr
mkdir -p "$root/etc" "$root/tmp" "$root/proc" "$root/dev/shm"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
cp /etc/hosts "$root/etc/hosts"
if [ -e /etc/ld.so.cache ]; then cp /etc/ld.so.cache "$root/etc"; fi
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for device in null zero full random urandom; do
  touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
while [ "$1" != -- ]; do bind "$1" "$2"; shift 2; done
shift
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""


def start(
    image: Build,
    folder: Path,
    command: list[str],
    env: Mapping[str, str],
    mounts: Mapping[str, Path],
    log: IO[bytes],
    user: str = "",
) -> subprocess.Popen[bytes]:
    """Start ``command`` in the image as its user, or as ``user`` (``UID:GID``).

    ``folder`` is empty and stays so. ``env`` comes on top of the image's; ``mounts`` are further folders,
    read-only, by where the process has them. The process that is returned is the command itself.
    """
    python = image.python.resolve()
    interpreter = Path((python / "bin/python").resolve()).parent.parent
    places = [(interpreter, str(interpreter)), (python, str(python)), (image.home, HOME)]
    places += [(source, target) for target, source in mounts.items()]
    uid, _, gid = (user or image.user).partition(":")
    whole = {"PATH": f"{python}/bin:/usr/bin:/bin", **image.env, **env}
    words = ["unshare", "--mount", "--propagation=unchanged", "sh", "-c", _PREAMBLE, "sh", str(folder)]
    for source, target in places:
        words += [str(source), target]
    words += ["--", "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    words += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    words += ["env", "-i", *(f"{name}={value}" for name, value in whole.items()), *command]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd="/")

"""The first process of a node: it makes the node's namespaces and is the parent of all that runs in them.

Two processes. The outer one, a child of the cluster's supervisor, enters the node's control groups, makes the
namespaces and waits. The inner one is number 1 in there: it prepares the file system, listens on a socket
for what to start (the protocol of `devcluster.supervisor`), and collects orphans. When either of them ends,
the kernel kills all that runs on the node: that is how its power is taken.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

from devcluster import linux
from devcluster.kubelet import cgroups, config
from devcluster.supervisor import TICK_SECONDS, Supervisor, answer

SOCKET = Path("/run/init.sock")
"""In the node's file system."""
PID_FILE = "init.pid"

# Kernel parameters that kubelet sets, for the whole machine. It shall believe that it has.
_KEPT_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# Runs in the new namespaces. /run is what a machine forgets when it is switched off.
_PREPARE = """\
set -eu
mount --make-rprivate /
mount --make-rshared /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
{cgroups}
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/kept {disk}
mount --bind "$1" {disk}
mount --bind {disk}/hosts /etc/hosts
for name in {sysctls}; do
  file=/run/kept/$(echo $name | tr / -)
  cat /proc/sys/$name >$file
  mount --bind $file /proc/sys/$name
done
echo {boot_id} >/run/kept/boot_id
mount --bind /run/kept/boot_id /proc/sys/kernel/random/boot_id
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
"""


def main() -> None:
    """Be a node until this process is ended."""
    parser = argparse.ArgumentParser(prog="python -m devcluster.kubelet.init")
    parser.add_argument("--name", required=True, help="the node's host name")
    parser.add_argument("--groups", required=True, help="the name of its control groups, which are there")
    parser.add_argument("--folder", type=Path, required=True, help="its disk")
    options = parser.parse_args()
    cgroups.NodeGroups(options.groups).join()
    mounts = cgroups.mount_script()
    linux.unshare(
        linux.CLONE_NEWCGROUP
        | linux.CLONE_NEWIPC
        | linux.CLONE_NEWNET
        | linux.CLONE_NEWNS
        | linux.CLONE_NEWPID
        | linux.CLONE_NEWUTS
    )
    inner = os.fork()
    if inner == 0:
        _run(options.name, options.folder, mounts)
    _write(options.folder / PID_FILE, str(inner))
    _, status = os.waitpid(inner, 0)
    sys.exit(f"the node's first process ended with {os.waitstatus_to_exitcode(status)}")


def _run(name: str, folder: Path, mounts: str) -> None:
    """The inner process; does not return."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.sethostname(name)
    script = _PREPARE.format(
        cgroups=mounts, disk=config.DISK, sysctls=" ".join(_KEPT_SYSCTLS), boot_id=uuid.uuid4()
    )
    subprocess.run(["sh", "-c", script, "sh", str(folder)], check=True)
    supervisor = Supervisor()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(SOCKET))
        listener.listen()
        listener.settimeout(TICK_SECONDS)
        while True:
            supervisor.reap()
            try:
                control, _ = listener.accept()
            except TimeoutError:
                continue
            _serve(supervisor, control)


def _serve(supervisor: Supervisor, control: socket.socket) -> None:
    with control:
        control.settimeout(TICK_SECONDS)
        try:
            while answer(supervisor, control):
                pass
        except OSError:
            pass  # the client has died; another one may connect


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


if __name__ == "__main__":
    main()

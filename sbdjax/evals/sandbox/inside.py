"""Runs in the new namespaces: closes them off, tries that they are closed, then runs the program.

Started by `outside.py` as a script of its own, so it imports nothing but the standard library. It
says "ready" and its process id outside once everything is in force, and then "passed" or what went wrong.
"""

import ctypes
import json
import os
import resource
import sys

# include/uapi/linux: mount.h, prctl.h, capability.h; numbers of asm-generic/unistd.h.
_BIND, _REC, _PRIVATE, _NOSUID, _NODEV, _DETACH = 4096, 16384, 1 << 18, 2, 4, 2
_MOUNT_SETATTR, _AT_RECURSIVE, _RDONLY, _AT_FDCWD = 442, 0x8000, 1, -100
_NO_NEW_PRIVS, _DROP_BOUNDING, _LAST_CAPABILITY = 38, 24, 63
_CAPABILITY_VERSION = 0x20080522
_NOBODY = 65534
_HOME = "/sandbox"

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
  """The program must not be run; the message says why."""


def call(what, name, *args):
  """A function of libc that gives 0. Raises Refused."""
  try:
    function = getattr(_libc, name)
  except AttributeError:
    raise Refused(f"{what}: libc has no {name}") from None
  if function(*args) != 0:
    raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(what, source, target, kind, flags, data=None):
  encode = lambda x: None if x is None else x.encode()
  call(what, "mount", encode(source), encode(target), encode(kind), flags, encode(data))


def check_namespaces(outside):
  for name, number in outside.items():
    if os.readlink(f"/proc/self/ns/{name}") == number:
      raise Refused(f"the {name} namespace is shared with the system")


def new_root(folders, disk):
  """A root folder with `folders`, read-only, and an empty one in memory, which becomes current."""
  root = "/tmp"
  mount("a private mount namespace", None, "/", None, _REC | _PRIVATE)
  links = {folder: os.readlink(folder) for folder in folders if os.path.islink(folder)}
  kept = {folder: os.open(folder, os.O_PATH) for folder in folders if folder not in links}
  mount("a root folder in memory", "none", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
  for folder, descriptor in kept.items():
    os.makedirs(root + folder, exist_ok=True)
    # By descriptor: the new root may hide the path.
    source = f"/proc/self/fd/{descriptor}"
    mount(f"{folder} in the new root", source, root + folder, None, _BIND | _REC)
    os.close(descriptor)
  for folder, target in links.items():
    if not os.path.lexists(root + folder):
      os.symlink(target, root + folder)
  os.mkdir(root + _HOME)
  os.mkdir(root + "/dev")
  os.close(os.open(root + "/dev/null", os.O_CREAT | os.O_WRONLY))
  mount("/dev/null", "/dev/null", root + "/dev/null", None, _BIND)
  attributes = (ctypes.c_uint64 * 4)(_RDONLY, 0, 0, 0)
  number, at = ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD)
  recursive, size = ctypes.c_uint(_AT_RECURSIVE), ctypes.c_size_t(32)
  call("read-only folders", "syscall", number, at, root.encode(), recursive, attributes, size)
  settings = f"size={disk},nr_inodes=1000,mode=777"
  mount("an empty folder", "none", root + _HOME, "tmpfs", _NOSUID | _NODEV, settings)
  os.chdir(root)
  call("a new root", "pivot_root", b".", b".")
  call("the old root's end", "umount2", b".", _DETACH)
  os.chdir(_HOME)


def no_more_users():
  """No user namespaces inside this one, which has its own count of them."""
  with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")


def drop_privileges(as_root):
  if as_root:
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
  else:
    for capability in range(_LAST_CAPABILITY + 1):
      _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)  # fails beyond the last one there is
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    call("no capabilities", "capset", header, (ctypes.c_uint32 * 6)())
  call("no new privileges", "prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)


def set_limits(memory, disk, cpu_seconds):
  limits = {
    resource.RLIMIT_AS: memory,
    resource.RLIMIT_CPU: cpu_seconds,
    resource.RLIMIT_FSIZE: disk,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 1,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
  }
  for limit, value in limits.items():
    resource.setrlimit(limit, (value, value))


def check_limits():
  """Tries what the program must not be able to do."""
  try:
    child = os.fork()
  except OSError:
    pass
  else:
    if child == 0:
      os._exit(0)
    os.waitpid(child, 0)
    raise Refused("the number of processes cannot be limited (for root it is not)")
  for place in ("/", "/usr", "/dev"):
    try:
      os.close(os.open(f"{place}/written", os.O_CREAT | os.O_WRONLY))
    except OSError:
      continue
    raise Refused(f"files in {place} can be written")
  if os.listdir(_HOME):
    raise Refused("the folder of the program is not empty")


def be_quiet():
  """The program's output goes nowhere."""
  nowhere = os.open("/dev/null", os.O_RDWR)
  for descriptor in (0, 1, 2):
    os.dup2(nowhere, descriptor)
  os.close(nowhere)


def close_off(orders):
  """Everything that keeps the program apart. Raises Refused or OSError."""
  check_namespaces(orders["namespaces"])
  if not orders["as_root"]:
    no_more_users()
  new_root(orders["folders"], orders["disk"])
  be_quiet()
  drop_privileges(orders["as_root"])
  set_limits(orders["memory"], orders["disk"], orders["cpu_seconds"])
  check_limits()


def outcome(program):
  """ "passed", or what the program raised, in one line."""
  try:
    exec(compile(program, "program", "exec"), {})
  except BaseException as error:  # SystemExit too: the program has not come to its end
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
  return "passed"


def main():
  orders = json.loads(sys.stdin.buffer.read())
  descriptor = os.dup(1)
  say = lambda text: os.write(descriptor, text.encode() + b"\n")
  try:
    process = os.readlink("/proc/self")  # /proc is still the one outside
    close_off(orders)
  except (Refused, OSError, ValueError) as error:
    say(f"refused: {error}")
    return
  say(f"ready {process}")
  say(outcome(orders["program"]))
  os._exit(0)


if __name__ == "__main__":
  main()

"""The filter of system calls as a profile of Docker's, with the same rules as bubblewrap's.

The engine's own profile depends on its version: older ones leave VM sockets and io_uring open, none refuses the
kernel's ciphers, and the network `none` is to have no Internet sockets at all.
"""

import errno
import functools
import json
from collections.abc import Sequence
from typing import Any

from gymhost.envs.sandbox.bubblewrap.seccomp import (
    CLONE_FLAGS,
    INTERNET_FAMILIES,
    LAST_FAMILY,
    LOCAL_FAMILIES,
    PERSONALITIES,
    REFUSED,
    TIOCLINUX,
    TIOCSTI,
)
from gymhost.envs.sandbox.spec import Network

__all__ = ["profile"]

# The kernel looks at no more than this of most arguments, whatever is in the upper half.
_LOWER_HALF = 0xFFFFFFFF


@functools.cache
def profile(network: Network) -> str:
    """Returns the profile. It names no architecture, so that the calls of any but the machine's own end the process."""
    families = {*LOCAL_FAMILIES, *(INTERNET_FAMILIES if network == "loopback" else ())}
    rules = [
        _refuse(REFUSED),
        # With a new namespace among its flags.
        *(_refuse(["clone"], argument=_masked(0, flag, flag)) for flag in CLONE_FLAGS),
        # Its flags lie in memory, where no filter can look: C libraries fall back to `clone`.
        _refuse(["clone3"], errno.ENOSYS),
        *(_refuse(["ioctl"], argument=_masked(1, _LOWER_HALF, request)) for request in (TIOCSTI, TIOCLINUX)),
        *(_refuse(["personality"], argument=_masked(0, mask, value)) for mask, value in PERSONALITIES),
        _refuse(["socket"], errno.EAFNOSUPPORT, {"index": 0, "value": LAST_FAMILY, "op": "SCMP_CMP_GT"}),
        *(
            _refuse(["socket"], errno.EAFNOSUPPORT, _masked(0, _LOWER_HALF, family))
            for family in range(LAST_FAMILY + 1)
            if family not in families
        ),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _refuse(calls: Sequence[str], error: int = errno.EPERM, argument: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "names": list(calls),
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": error,
        "args": [argument] if argument is not None else [],
    }


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}

"""`python -m gymhost.server` with a clock that can be set, where libfaketime is installed."""

import os
import sys

from chaos.arena import FAKETIME
from gymhost.server.__main__ import main

PRELOAD = "LD_PRELOAD"

if __name__ == "__main__":
    if FAKETIME is not None and PRELOAD not in os.environ:
        os.environ[PRELOAD] = str(FAKETIME)
        os.execv(sys.executable, [sys.executable, "-m", "chaos.clocked_server", *sys.argv[1:]])
    os.environ.pop(PRELOAD, None)  # it stays in this process, and workers don't get it
    main()

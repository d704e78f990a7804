"""`python -m runtime.hub`: the process that looks after models; with words after it, `qwenchat models …`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        from runtime.hub.service import main

        sys.exit(main())
    from runtime.hub.shell import run

    sys.exit(run(sys.argv[1:]))

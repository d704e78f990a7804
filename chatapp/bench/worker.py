"""An engine of nothing but timing: `python -m chatapp.bench.worker` streams tokens at a steady rate.

It speaks the worker's protocol, so that all of the chat is measured and none of a model.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path

from runtime import protocol
from runtime.protocol import Cancel, Delta, Event, Finished, Generate, Load, ModelInfo, Ready, Sampling, Shutdown, Stats

RATE = 500.0
"""Tokens per second."""
PAGE = """\
A paragraph of the reply with **bold words**, some `code` and no more than that, as models write them.

```python
def area(width: float, height: float) -> float:
    return width * height  # of a rectangle
```

- an item of a list
- and another, *somewhat* longer than the first

| one | two |
|-----|----:|
| a   |   1 |

"""


def main() -> None:
    cancelled: set[str] = set()
    for line in sys.stdin.buffer:
        match protocol.decode_command(line):
            case Load(path=path):
                presets = {"thinking": Sampling(), "non-thinking": Sampling()}
                name = Path(path).stem
                _emit(Ready(ModelInfo(path, name, "none", 0, 0, 100_000, 100_000, False, False, "none", presets)))
            case Generate(request_id=request):
                threading.Thread(target=_stream, args=(request, cancelled), daemon=True).start()
            case Cancel(request_id=request):
                cancelled.add(request)
            case Shutdown():
                break
            case _:
                pass
    os._exit(0)


def _stream(request: str, cancelled: set[str]) -> None:
    pieces = [PAGE[at : at + 4] for at in range(0, len(PAGE), 4)]
    begun = time.monotonic()
    for number, piece in enumerate(itertools.cycle(pieces)):
        if request in cancelled:
            break
        time.sleep(max(begun + number / RATE - time.monotonic(), 0))
        _emit(Delta(request, "answer", piece, 1))
    _emit(Finished(request, "cancelled", Stats()))


def _emit(event: Event) -> None:
    sys.stdout.buffer.write(protocol.encode(event))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""A file that is mapped by a process of its own. Orders, a line each, and their answers:

    map PATH           done
    store OFFSET BYTE  done
    load OFFSET        the byte
    sync               done
"""

import mmap
import os
import sys

mapped = None
for line in sys.stdin:
    order, *words = line.split()
    answer = "done"
    if order == "map":
        mapped = mmap.mmap(os.open(words[0], os.O_RDWR), 0)
    elif order == "store":
        mapped[int(words[0])] = int(words[1])
    elif order == "load":
        answer = mapped[int(words[0])]
    elif order == "sync":
        mapped.flush()
    print(answer, flush=True)

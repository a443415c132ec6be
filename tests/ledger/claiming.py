"""A process that claims keys in a ledger: `python claiming.py DIRECTORY KEYS NAME GATE`."""

import sys
import time
from pathlib import Path

from trainwright.ledger import DirectoryLedger


def main(directory, keys, name, gate):
    ledger = DirectoryLedger(directory)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not Path(gate).exists():
        time.sleep(0.001)
    for key in range(int(keys)):
        sys.stdout.write(ledger.claim(f"number/{key}", name) + "\n")
        time.sleep(0.001)  # or the first to wake has them all before a processor is free for another


if __name__ == "__main__":
    main(*sys.argv[1:])

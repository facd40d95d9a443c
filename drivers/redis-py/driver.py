"""The driver of redis-py: `driver.py interop URL` or `driver.py bench URL`. The protocols are in ../README.md."""

import importlib
import sys


def main():
    role, url = sys.argv[1:3]
    if role not in ("interop", "bench"):
        sys.exit(f"there is no role {role}: there are interop, bench")
    importlib.import_module(role).serve(url)


main()

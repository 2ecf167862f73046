"""Run the ``diffscope`` command by ``python -m diffscope``."""

import sys

from diffscope.cli import main

if __name__ == "__main__":
    sys.exit(main())

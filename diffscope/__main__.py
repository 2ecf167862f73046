"""``python -m diffscope`` is the ``diffscope`` command."""

import sys

from diffscope.cli import main

if __name__ == "__main__":
    sys.exit(main())

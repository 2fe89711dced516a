"""`python -m terrace.sweep`: sweeps as a command. From Python it is the function `terrace.sweep`."""

import sys

from ._sweeps import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m terrace.fleet`: fleets as a command. From Python it is the function `terrace.fleet`."""

import sys

from ._fleets import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m brim`."""

from brim.cli import main

main()

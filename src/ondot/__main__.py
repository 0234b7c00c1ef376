"""`python -m ondot`."""

from ondot.cli import main

main()

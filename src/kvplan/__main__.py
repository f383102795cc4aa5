"""`python -m kvplan` is the command line."""

from kvplan.faces.cli import main

main()

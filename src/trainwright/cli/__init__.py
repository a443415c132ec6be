"""The command line: parsing and printing only; everything else is the public API's."""

from trainwright.cli.main import main

__all__ = ["main"]

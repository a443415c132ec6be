"""The live page over ledgers: studies as they run, in a browser, read only."""

from trainwright.ui.serving import serve_page

__all__ = ["serve_page"]

"""The live page over ledgers: studies as they run, in a browser, read only."""

from trainwright.ui.server_load import ServerLoad
from trainwright.ui.serving import serve_page
from trainwright.ui.study_follower import Follower
from trainwright.ui.study_registry import Shelf

__all__ = ["Follower", "ServerLoad", "Shelf", "serve_page"]

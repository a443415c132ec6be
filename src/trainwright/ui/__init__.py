"""The live page over ledgers: studies as they run, in a browser, read only."""

from trainwright.ui.server_load import ServerLoad
from trainwright.ui.serving import serve_page
from trainwright.ui.study_follower import StudyFollower
from trainwright.ui.study_registry import StudyRegistry

__all__ = ["ServerLoad", "StudyFollower", "StudyRegistry", "serve_page"]

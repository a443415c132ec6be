"""Serves the live page: studies as JSON, a stream of server-sent events for each, and the page's files.

All of it is read only: there is no other method than GET, and no address that changes anything.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse

from trainwright.errors import InputError
from trainwright.files import plain
from trainwright.ui.figure_views import VIEWS, FigureViews, compare_studies
from trainwright.ui.study_details import MOST_ROWS, log_tail, study_summary, trial_page, window
from trainwright.ui.study_details import Query as Rows
from trainwright.ui.study_follower import StudyFollower, StudyRegistry

__all__ = ["POLICY", "application"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own files, and nothing in line."""

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_SHARED = ("pens.js", "scales.js", "chart.js", "page.css")  # the report's, used by both
_OWN = ("index.html", "app.js", "views.js", "trials.js", "trial.js", "words.js", "app.css", "mark.svg")
_MOST_STREAMS, _MOST_COMPARED = 64, 18
_BEAT_SECONDS, _READ_SECONDS, _LOOK_SECONDS = 10.0, 1.0, 0.1


def application(registry: StudyRegistry) -> FastAPI:
    """Return the ASGI application over the studies of a shelf, without a guard in front."""
    app = FastAPI(title="Trainwright", docs_url=None, redoc_url=None, openapi_url=None)
    drawings: dict[str, FigureViews] = {}
    streams = _Streams()

    def found(study: str) -> StudyFollower:
        follower = registry.find(study)
        if follower is None:
            raise HTTPException(404, "no such study here")
        return follower

    def drawn(study: str) -> FigureViews:
        follower = found(study)
        return drawings.setdefault(study, FigureViews(follower))

    @app.get("/api/studies")
    def studies() -> Response:
        followers = registry.studies()
        # Following takes a thread a study: with very many, only those that are opened.
        for follower in followers.values() if len(followers) <= _MOST_STREAMS else ():
            follower.want()
        return _send_json(
            {
                "single": registry.single,
                "studies": [{"id": key, **_summarise_study(follower)} for key, follower in followers.items()],
            }
        )

    @app.get("/api/studies/{study}")
    def summary(study: str) -> Response:
        return _send_json(study_summary(found(study)))

    @app.get("/api/studies/{study}/trials")
    def trials(
        study: str,
        words: Annotated[str, Query(max_length=300)] = "",
        sort: Annotated[str, Query(max_length=100)] = "trial",
        *,
        descending: bool = False,
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Annotated[int, Query(ge=0, le=MOST_ROWS)] = 100,
    ) -> Response:
        rows = Rows(words=words, sort=sort, descending=descending, offset=offset, limit=limit)
        with found(study).reading() as overview:
            return _send_json(window(overview, rows))

    @app.get("/api/studies/{study}/trials/{number}")
    def trial(study: str, number: int) -> Response:
        with found(study).reading() as overview:
            table = trial_page(overview, number)
        if table is None:
            raise HTTPException(404, "the study has no trial of that number")
        return _send_json(table)

    @app.get("/api/studies/{study}/trials/{number}/log")
    def log(
        study: str,
        number: Annotated[int, PathParameter(ge=0, le=10**9)],
        lease: Annotated[int, Query(ge=1, le=10**9)] = 1,
        rank: Annotated[int, Query(ge=0, le=10**6)] = 0,
    ) -> Response:
        folder = found(study).directory
        table = None if folder is None else log_tail(folder, number, lease, rank)
        return _send_json(table or {"text": "", "bytes": 0, "whole": True})

    @app.get("/api/studies/{study}/views/{name}")
    def view(
        study: str,
        name: str,
        words: Annotated[str, Query(max_length=300)] = "",
        across: Annotated[str, Query(max_length=100)] = "",
        up: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        if name not in VIEWS:
            raise HTTPException(404, f"no such view; allowed: {', '.join(VIEWS)}")
        return _send_json(drawn(study).view(name, words, (across, up)))

    @app.get("/api/views/comparison")
    def compare(studies: Annotated[str, Query(max_length=2000)]) -> Response:
        chosen = sorted(set(studies.split(",")))[:_MOST_COMPARED]
        return _send_json(compare_studies([found(study) for study in chosen]))

    @app.get("/api/studies/{study}/events")
    async def events(study: str, request: Request) -> Response:
        follower = await asyncio.to_thread(found, study)
        if not streams.enter():
            raise HTTPException(503, f"{_MOST_STREAMS} pages are open already; close one")
        return StreamingResponse(
            streams.of(follower, request), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    _add_files(app)
    return app


def _add_files(app: FastAPI) -> None:
    """Add the page with its scripts and styles, and what a refused input is answered with."""
    files = _read_files()

    @app.get("/")
    def page() -> Response:
        return _send_file(files, "index.html")

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        return _send_file(files, name)

    @app.exception_handler(InputError)
    async def refused(_request: Request, error: InputError) -> Response:
        return _send_json({"error": str(error)}, status=400)


class _Streams:
    """The streams of events that are open: at most so many, each a few bytes when its study has changed."""

    def __init__(self) -> None:
        self._open = 0

    def enter(self) -> bool:
        if self._open >= _MOST_STREAMS:
            return False
        self._open += 1
        return True

    async def of(self, follower: StudyFollower, request: Request) -> AsyncIterator[str]:
        seen, quiet = -1, 0.0
        try:
            while not await request.is_disconnected():
                follower.want()
                # A sign of life at least every few seconds, so that proxies keep the stream open.
                if follower.revision != seen or quiet >= (_BEAT_SECONDS if follower.loaded else _READ_SECONDS):
                    seen, quiet = follower.revision, 0.0
                    summary = await asyncio.to_thread(study_summary, follower)
                    yield f"data: {_send_text(summary)}\n\n"
                await asyncio.sleep(_LOOK_SECONDS)
                quiet += _LOOK_SECONDS
        finally:
            self._open -= 1


def _summarise_study(follower: StudyFollower) -> Mapping[str, Any]:
    table = study_summary(follower)
    names = ("name", "loaded", "records", "error", "objectives", "metrics", "counts", "trials", "results", "best")
    return {name: table[name] for name in (*names, "front", "created_at")}


def _read_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the page's files by name: nothing else can be asked for."""
    places = {name: resources.files("trainwright.report").joinpath("assets", name) for name in _SHARED}
    places |= {name: resources.files("trainwright.ui").joinpath("assets", name) for name in _OWN}
    return {name: (place.read_bytes(), _TYPES[name.rpartition(".")[2]]) for name, place in places.items()}


def _send_file(files: Mapping[str, tuple[bytes, str]], name: str) -> Response:
    if name not in files:
        raise HTTPException(404, "there is no such file")
    content, kind = files[name]
    return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": "no-cache"})


def _send_json(content: Any, *, status: int = 200) -> Response:
    return Response(
        _send_text(content), status_code=status, media_type="application/json", headers={"cache-control": "no-store"}
    )


def _send_text(content: Any) -> str:
    """Return JSON; what is not finite becomes null, for JSON has none."""
    return json.dumps(plain(content), separators=(",", ":"), allow_nan=False, default=str)

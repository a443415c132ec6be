"""HTTP: a served ensemble by the Open Inference Protocol, version 2, on FastAPI and uvicorn."""

from trainwright.serve.http.limits import Limits
from trainwright.serve.http.server import Server

__all__ = ["Limits", "Server"]

"""Serving: an ensemble placed on devices, the runtimes that compute it, and what carries its answers to users."""

from trainwright.serve.deployment import Deployment
from trainwright.serve.http.client import Client
from trainwright.serve.http.model_folders import ModelFolders
from trainwright.serve.http.server import Server
from trainwright.serve.placement.allocate import allocate
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.placement.units import TimeTables
from trainwright.serve.service import DeploymentSettings, Options, Response

__all__ = [
    "Client",
    "Deployment",
    "DeploymentPlan",
    "DeploymentSettings",
    "ModelFolders",
    "Options",
    "Response",
    "Server",
    "TimeTables",
    "allocate",
]

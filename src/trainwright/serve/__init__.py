"""Serving: an ensemble placed on devices, the runtimes that compute it, and what carries its answers to users."""

from trainwright.serve.deployment import Deployment
from trainwright.serve.http.client import Client
from trainwright.serve.http.limits import Limits
from trainwright.serve.http.load import LoadTest
from trainwright.serve.http.server import Server
from trainwright.serve.placement.allocate import allocate
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.placement.devices import Device, parse_devices
from trainwright.serve.placement.objectives import P99, Throughput
from trainwright.serve.placement.time_tables import TimeTables
from trainwright.serve.placement.units import Unit
from trainwright.serve.runtime.settings import DeploymentSettings
from trainwright.serve.service import Options, Response

__all__ = [
    "P99",
    "Client",
    "Deployment",
    "DeploymentPlan",
    "DeploymentSettings",
    "Device",
    "Limits",
    "LoadTest",
    "Options",
    "Response",
    "Server",
    "Throughput",
    "TimeTables",
    "Unit",
    "allocate",
    "parse_devices",
]

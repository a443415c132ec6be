"""Serving: an ensemble placed on devices, worker processes that compute it, and what carries its answers to users."""

from trainwright.serve.client import Client
from trainwright.serve.deployment import Deployment
from trainwright.serve.devices import Device, found_devices, parse_devices, simulated_devices
from trainwright.serve.http import Limits, Server
from trainwright.serve.inline import Inline
from trainwright.serve.load import Load, LoadResult
from trainwright.serve.matrix import Instance, Plan
from trainwright.serve.service import Answer, Options, Service
from trainwright.serve.settings import Settings
from trainwright.serve.units import Unit

__all__ = [
    "Answer",
    "Client",
    "Deployment",
    "Device",
    "Inline",
    "Instance",
    "Limits",
    "Load",
    "LoadResult",
    "Options",
    "Plan",
    "Server",
    "Service",
    "Settings",
    "Unit",
    "found_devices",
    "parse_devices",
    "simulated_devices",
]

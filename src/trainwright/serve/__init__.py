"""Serving: an ensemble placed on devices, worker processes that compute it, and what carries its answers to users."""

from trainwright.serve.adaptive import AIMD
from trainwright.serve.cascade import Cascade, Saved, fit_cascade, saved_by
from trainwright.serve.client import Client
from trainwright.serve.deployment import Deployment
from trainwright.serve.devices import Device, found_devices, parse_devices, simulated_devices
from trainwright.serve.gears import Gear, Gears
from trainwright.serve.http import Limits, Server
from trainwright.serve.inline import Inline
from trainwright.serve.load import Load, LoadResult
from trainwright.serve.matrix import Instance, Plan
from trainwright.serve.service import Answer, Options, Service
from trainwright.serve.settings import Settings
from trainwright.serve.units import Unit

__all__ = [
    "AIMD",
    "Answer",
    "Cascade",
    "Client",
    "Deployment",
    "Device",
    "Gear",
    "Gears",
    "Inline",
    "Instance",
    "Limits",
    "Load",
    "LoadResult",
    "Options",
    "Plan",
    "Saved",
    "Server",
    "Service",
    "Settings",
    "Unit",
    "fit_cascade",
    "found_devices",
    "parse_devices",
    "saved_by",
    "simulated_devices",
]

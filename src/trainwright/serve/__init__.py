"""Serving: an ensemble placed on devices, worker processes that compute it, and what carries its answers to users."""

from trainwright.serve.deployment import Deployment
from trainwright.serve.devices import Device, found_devices, parse_devices, simulated_devices
from trainwright.serve.matrix import Instance, Plan
from trainwright.serve.service import Answer, Options, Service
from trainwright.serve.settings import Settings
from trainwright.serve.units import Unit

__all__ = [
    "Answer",
    "Deployment",
    "Device",
    "Instance",
    "Options",
    "Plan",
    "Service",
    "Settings",
    "Unit",
    "found_devices",
    "parse_devices",
    "simulated_devices",
]

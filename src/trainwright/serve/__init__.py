"""Serving: an ensemble placed on devices, worker processes that compute it, and what carries its answers to users."""

from trainwright.serve.allocate import allocate, placed
from trainwright.serve.client import Client
from trainwright.serve.cost import Cost, InjectedCost, Measurement
from trainwright.serve.deployment import Deployment
from trainwright.serve.devices import Device, found_devices, parse_devices, simulated_devices
from trainwright.serve.greedy import BoundedGreedy
from trainwright.serve.http import Limits, Server
from trainwright.serve.load import Load, LoadResult
from trainwright.serve.matrix import Instance, Plan
from trainwright.serve.memory import Footprint, MemoryModel
from trainwright.serve.objectives import P99, Throughput, objective_of
from trainwright.serve.placement import Placement
from trainwright.serve.profile_cost import ProfileCost
from trainwright.serve.real_cost import RealCost
from trainwright.serve.service import Answer, Options, Service
from trainwright.serve.settings import Settings
from trainwright.serve.tables import TimeTables
from trainwright.serve.units import Unit

__all__ = [
    "P99",
    "Answer",
    "BoundedGreedy",
    "Client",
    "Cost",
    "Deployment",
    "Device",
    "Footprint",
    "InjectedCost",
    "Instance",
    "Limits",
    "Load",
    "LoadResult",
    "Measurement",
    "MemoryModel",
    "Options",
    "Placement",
    "Plan",
    "ProfileCost",
    "RealCost",
    "Server",
    "Service",
    "Settings",
    "Throughput",
    "TimeTables",
    "Unit",
    "allocate",
    "found_devices",
    "objective_of",
    "parse_devices",
    "placed",
    "simulated_devices",
]

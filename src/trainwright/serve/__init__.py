"""Serving: an ensemble placed on devices, worker processes that compute it, and what carries its answers to users."""

from trainwright.serve.deployment import Deployment
from trainwright.serve.http.client import Client
from trainwright.serve.http.limits import Limits
from trainwright.serve.http.load import Load, LoadResult
from trainwright.serve.http.server import Server
from trainwright.serve.placement.allocate import allocate, placed
from trainwright.serve.placement.cost import Cost, InjectedCost, Measurement
from trainwright.serve.placement.deployment_plan import Instance, Plan
from trainwright.serve.placement.devices import Device, found_devices, parse_devices, simulated_devices
from trainwright.serve.placement.greedy import BoundedGreedy
from trainwright.serve.placement.memory_model import Footprint, MemoryModel
from trainwright.serve.placement.objectives import P99, Throughput, objective_of
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.real_cost import RealCost
from trainwright.serve.placement.time_tables import TimeTables
from trainwright.serve.placement.units import Unit
from trainwright.serve.runtime.settings import Settings
from trainwright.serve.service import Answer, Options, Service

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

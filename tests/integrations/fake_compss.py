"""A stand-in for PyCOMPSs with the parts of its documented API that the engine uses.

"sequential" is what PyCOMPSs does without its runtime: a task is a call, and waiting returns what it is given.
"deferred" returns futures: a task runs with copies of its arguments, in a thread of its own.
"""

import pickle
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from types import ModuleType

TASK = "trainwright.integrations._pycompss_task"


class Runtime:
    def __init__(self, *, deferred):
        self.deferred = deferred
        self.constraints = {}
        self.tasks = 0
        self.threads = ThreadPoolExecutor(64)

    def task(self, *, returns):
        assert returns == 1

        def decorate(function):
            def call(*arguments):
                self.tasks += 1
                if not self.deferred:
                    return function(*arguments)
                return self.threads.submit(copied, function, pickle.dumps(arguments))

            return call

        return decorate

    def constraint(self, **constraints):
        self.constraints = constraints
        return lambda function: function

    def wait_on(self, value):
        return value.result() if isinstance(value, Future) else value


def copied(function, arguments):
    return pickle.loads(pickle.dumps(function(*pickle.loads(arguments))))


def install(monkeypatch, *, deferred):
    """Put it where `import pycompss` looks, and return it."""
    runtime = Runtime(deferred=deferred)
    members = {
        "pycompss": {},
        "pycompss.api": {},
        "pycompss.api.task": {"task": runtime.task},
        "pycompss.api.constraint": {"constraint": runtime.constraint},
        "pycompss.api.api": {"compss_wait_on": runtime.wait_on},
    }
    for name, contents in members.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, TASK, raising=False)
    for name in ("TRAINWRIGHT_CPUS", "TRAINWRIGHT_GPUS"):
        monkeypatch.setenv(name, "")
    return runtime

"""Limits of control groups of both versions, of a process and of the groups above it."""

import pytest

from trainwright.cluster.visible_devices import cgroup_cores, cgroup_memory_bytes


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, None, None),
        ({"proc/self/cgroup": "0::/\n"}, None, None),
        (  # version 2: the parent's limit counts where it is less
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
                "sys/fs/cgroup/job/memory.max": "1073741824\n",
                "sys/fs/cgroup/job/step/memory.max": "2147483648\n",
            },
            1.5,
            1 << 30,
        ),
        (  # a container sees its own group as the topmost
            {
                "proc/self/cgroup": "0::/../elsewhere\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/memory.max": "max\n",
            },
            0.5,
            None,
        ),
        (  # version 1: a folder for each controller, and nearly 2^63 for no limit
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "8589934592\n",
            },
            4.0,
            8 << 30,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
            None,
        ),
    ],
)
def test_limits(tmp_path, files, cores, memory):
    write(tmp_path, files)
    assert cgroup_cores(tmp_path) == cores
    assert cgroup_memory_bytes(tmp_path) == memory

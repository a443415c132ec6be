"""A chain of jobs under Slurm on two nodes, each ended otherwise: nothing is lost, blamed or given up."""

import pytest
from benchmarks.schedule.chain import KINDS, REPEATED, SHAPES, run_chain
from clusters import missing_for_slurm, slurm_of


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_chain_of_jobs(tmp_path, torch, shape):
    """Trials on one rank, on two of one node, and on one of each node."""
    if why := missing_for_slurm():
        pytest.skip(why)
    (tmp_path / "slurm").mkdir()
    with slurm_of(tmp_path / "slurm", nodes=2) as slurm:
        costs = run_chain(tmp_path, slurm, shape)
    assert costs["jobs"] == len(KINDS)
    assert costs["equal"]
    assert not costs["blamed"]
    assert not costs["abandoned"]
    assert costs["repeated_most"] <= REPEATED
    killed = sum(KINDS.count(kind) for kind in ("node killed", "node lost"))
    assert costs["repeated"] <= REPEATED * killed

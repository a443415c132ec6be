"""The rows of torchtitan's tables are read off their captions."""

import pytest
from benchmarks.plan import torchtitan

TABLE = (
    '"Table 1 1D Parallelism (FSDP). Llama 3.1 8B model. 8 GPUs. Local batch size 2, global batch size 16. '
    'Selective activation checkpointing."'
)
DEEP = (
    '"Table 6 4D parallelism (FSDP + TP + PP + CP) + torch.compile + Float8 + AsyncTP + 1F1B. Llama 3.1 405B model. '
    '512 GPUs (TP 8, PP8). Local batch size 8. Full activation checkpointing."'
)
ASYNC = '"Llama3 70b on 256 H100s with FSDP=32, TP=8, torch.compile, full AC,  local batch size 16"'
ROWS = f"""source,table,row_kind,row,quantity,value
async_2025-06.md,{ASYNC},Quantization,float8 tensorwise,Vanilla TP tokens/sec,809.8
async_2025-06.md,{ASYNC},Quantization,float8 tensorwise,Async TP tokens/sec,942.4
async_2025-06.md,{ASYNC},Quantization,float8 tensorwise,Async TP speedup,1.16
llama3-8b_h200_202506.md,Results,NUM_NODES,4,TPS/GPU,10938
llama3-8b_h200_202506.md,Results,NUM_NODES,4,Memory(GiB),47.96
h100_202412.md,{TABLE},Techniques,FSDP,TPS/GPU,5762
h100_202412.md,{TABLE},Techniques,FSDP,Memory(GiB),82.4
h100_202412.md,{DEEP},Parallelism,"FSDP 2, CP 4",Sequence Length,131072
h100_202412.md,{DEEP},Parallelism,"FSDP 2, CP 4",TPS/GPU,31
"""


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(ROWS)
    return torchtitan.read(path)


def test_degrees_and_techniques(runs):
    vanilla, asynchronous, h200, plain, deep = runs
    assert (vanilla.model, vanilla.devices, vanilla.data, vanilla.tensor, vanilla.local) == ("70b", 256, 32, 8, 16)
    assert (vanilla.asynchronous, asynchronous.asynchronous) == (False, True)
    assert (vanilla.float8, vanilla.recompute, vanilla.compiled, vanilla.loss_compiled) == (
        *("tensorwise", "full", True, True),
    )
    assert (h200.gpu, h200.devices, h200.local, h200.recompute, h200.float8) == (
        "h200",
        32,
        2,
        "operators",
        "tensorwise",
    )
    assert (plain.compiled, plain.float8, plain.recompute, plain.gib, plain.sequence) == (
        *(False, "", "operators", 82.4, 8192),
    )
    assert (deep.data, deep.context, deep.pipeline, deep.tensor, deep.sequence) == (2, 4, 8, 8, 131072)
    assert [run.fitted for run in runs] == [False, False, False, True, False]


@pytest.mark.slow
def test_rows_are_predicted_in_their_order(runs):
    """Traced from the module, with the presets as they are: the order is right, and memory within a third."""
    tokens = [run.tokens for run in runs]
    plans = [torchtitan.plan_of(run) for run in runs]
    seconds = [run.local * run.data * run.sequence / run.devices / plan.seconds_per_iteration
               for run, plan in zip(runs, plans, strict=True)]  # fmt: skip
    assert sorted(range(5), key=tokens.__getitem__) == sorted(range(5), key=seconds.__getitem__)
    assert all(plan.degrees.devices == run.devices for run, plan in zip(runs, plans, strict=True))
    for place in (2, 3):
        assert plans[place].reserved_bytes / 2**30 == pytest.approx(runs[place].gib, rel=0.15)

"""A Ray cluster of several nodes on this machine, told what to do on its standard input; and a study that runs there.

    python ray_cluster.py cluster 2 2      # two nodes of two CPUs; prints its address, then answers lines
    python ray_cluster.py study ADDRESS DIRECTORY TRIALS

| line | answer |
|---|---|
| `kill N` | node N is killed |
| `replace N` | the same, and a new node takes its place |
| `left` | the names of placement groups and actors that are there, as JSON |
"""

import json
import os
import sys
import time

__all__ = ["steps"]


def steps(trial):
    """Train for five epochs of 0.3 s."""
    for epoch in trial.epochs(5):
        time.sleep(0.3)
        trial.report(val_loss=trial.params["x"] / epoch, pid=os.getpid())


def _cluster(cpus):
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False})
    nodes = [cluster.head_node, *(cluster.add_node(num_cpus=count) for count in cpus[1:])]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.wait_for_nodes()
    _answer(cluster.address)
    for line in sys.stdin:
        word, *rest = line.split()
        answer = None
        if word in {"kill", "replace"}:
            place = int(rest[0])
            cluster.remove_node(nodes[place], allow_graceful=False)
            if word == "replace":
                nodes[place] = cluster.add_node(num_cpus=cpus[place])
        elif word == "left":
            groups = ray.util.placement_group_table().values()
            answer = [group["name"] for group in groups if group["state"] != "REMOVED"]
            answer += [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        _answer(answer)
    ray.shutdown()
    cluster.shutdown()


def _answer(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _study(address, directory, trials):
    import trainwright as tw

    space = tw.Space(x=tw.Float(0, 1))
    study = tw.Study(space, "min val_loss", directory=directory, seed=0)
    study.run(steps, trials=int(trials), engine=tw.Ray(address=address), searcher=tw.RandomSearcher(), progress=False)


if __name__ == "__main__":
    if sys.argv[1] == "cluster":
        _cluster([int(count) for count in sys.argv[2:]])
    else:
        _study(*sys.argv[2:])

"""A stranger's twenty questions are each answered by the first hit of a search for the question's own words."""

import re

import pytest

from source_files import FILES, ROOT

# The question, a pattern as `grep -rniE` takes it, and the module that answers.
QUESTIONS = (
    ("Where is the heartbeat sent?", r"sends?.*heartbeat", "study/driver/heartbeat"),
    ("What retries a full disk?", r"retr(y|ies).*full disk", "study/study_log"),
    ("Where do requests become batches?", r"requests.*become batches", "serve/runtime/batching"),
    ("Where is the learning rate rescaled?", r"rescales?.*learning rate", "train/batching"),
    ("What detects a dead worker?", r"detects?.*dead worker", "ledger/writers"),
    ("What takes over the trials of a dead driver?", r"takes? over.*dead driver", "study/driver/trial_queue"),
    ("Where are files published atomically?", r"atomically", "publishing"),
    ("What verifies the digests on restore?", r"verif(y|ies) all digests", "checkpoint/restore/restored"),
    ("What quarantines a damaged checkpoint?", r"quarantines?.*damaged", "checkpoint/restore/restored"),
    ("Where are activations recomputed?", r"recomputes?.*activations", "train/parallel/recompute/interpreter"),
    ("Where is a model cut into stages?", r"cuts?.*model into stages", "model/cut/stages"),
    ("Where are gradients accumulated?", r"accumulates? gradients", "train/batch_slicing"),
    ("What refuses a request under overload?", r"refuses?.*request.*overload", "serve/runtime/admission"),
    ("What is done at failover?", r"failover:", "serve/placement/deployment_plan"),
    ("Where is the Pareto front computed?", r"pareto fronts? of", "pareto"),
    ("What handles SIGTERM?", r"^\W*handles?.*SIGTERM", "checkpoint/policy/signals"),
    ("Where is a job requeued under Slurm?", r"requeues?.*slurm", "checkpoint/policy/signals"),
    ("Where are plug-ins loaded?", r"loads?.*plug-ins", "plugins"),
    ("Where is expected improvement computed?", r"computes?.*expected improvement", "search/bayes/improvement"),
    ("Where is an ensemble selected greedily?", r"greedy.*forward selection", "ensemble/selection/greedy"),
)


def hits(pattern):
    """Return the modules with a line in which the pattern is found, in the order of their names, with repeats."""
    found = re.compile(pattern, re.IGNORECASE)
    for path in sorted(FILES):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield from [str(path.relative_to(ROOT).with_suffix("")) for line in lines if found.search(line)]


@pytest.mark.parametrize(("question", "pattern", "answer"), QUESTIONS, ids=[row[0] for row in QUESTIONS])
def test_the_first_hit_answers(question, pattern, answer):
    assert next(hits(pattern), None) == answer, question


def test_most_have_no_other_hits():
    """Directories are read in any order: so nearly all questions are answered by every hit."""
    alone = [question for question, pattern, answer in QUESTIONS if {*hits(pattern)} == {answer}]
    assert len(alone) >= 18, sorted({row[0] for row in QUESTIONS} - {*alone})

"""Each plug-in of this folder goes through the conformance class of its kind: `python -m pytest test_plugins.py`."""

import pytest
from own_combination import Trimmed
from own_format import Plain
from own_policy import Upgrade
from own_rule import Race
from own_strategy import Ulysses

import trainwright as tw
from trainwright.ensemble.combine import rules
from trainwright.ledger import Ledger, MemoryLedger
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import precision_of
from trainwright.profile import describe_transformer
from trainwright.testing.checkpoint_format import FormatConformance
from trainwright.testing.combination import CombinationConformance
from trainwright.testing.engine import EngineConformance
from trainwright.testing.ledger import LedgerConformance
from trainwright.testing.policy import PolicyConformance
from trainwright.testing.rule import RuleConformance
from trainwright.testing.strategy import StrategyConformance


class TestRace(RuleConformance):
    def make_rule(self) -> Race:
        return Race(margin=2.0, max_epochs=27)


class TestUpgrade(PolicyConformance):
    def make_policy(self) -> Upgrade:
        return Upgrade(start=1, size=2)


class TestUlysses(StrategyConformance):
    def make_strategy(self) -> Ulysses:
        return Ulysses()

    def make_work(self) -> ModelArrays:
        model = describe_transformer(hidden=64, layers=2, heads=8, sequence=32, vocabulary=100)
        return ModelArrays(model, precision_of("fp32"))


class TestPlain(FormatConformance):
    many = 200  # small tensors in one file; the class asks for 10,000

    def make(self) -> Plain:
        return Plain()


class TestTrimmed(CombinationConformance):
    @pytest.fixture(autouse=True)
    def entered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the rule known by its name, as its entry point would."""
        monkeypatch.setattr(rules, "RULES", {**rules.RULES, "trimmed": Trimmed()})

    def make_rule(self) -> Trimmed:
        return Trimmed()


class TestMemoryLedger(LedgerConformance):
    examples = 5

    def make(self) -> Ledger:
        return MemoryLedger()

    def another(self, ledger: Ledger) -> Ledger:
        assert isinstance(ledger, MemoryLedger)
        return MemoryLedger(of=ledger)


class TestLocalEngine(EngineConformance):
    def make_engine(self) -> tw.Local:
        return tw.Local(workers=2)

"""Every rule and policy that ships keeps the promises of its kind."""

from fractions import Fraction

from trainwright.schedule import ASHA, AnyOf, Fixed, FixedEpochs, Median, Scheduler
from trainwright.schedule.conformance import PolicyConformance, RuleConformance


class TestFixedEpochs(RuleConformance):
    rank_based = True

    def make_rule(self):
        return FixedEpochs(9)


class TestFixedEpochsWithoutLength(RuleConformance):
    def make_rule(self):
        return FixedEpochs()


class TestMedian(RuleConformance):
    def make_rule(self):
        return Median(min_epochs=2, interval=3, min_trials=2, max_epochs=20)


class TestAshaByRank(RuleConformance):
    rank_based = True

    def make_rule(self):
        return ASHA(max_epochs=27)


class TestAshaByRankWithFractionalEta(RuleConformance):
    rank_based = True

    def make_rule(self):
        return ASHA(max_epochs=30, min_epochs=2, eta=Fraction(3, 2))


class TestAshaByQuantile(RuleConformance):
    def make_rule(self):
        return ASHA(max_epochs=16, eta=2, cutoff="quantile")


class TestAnyOf(RuleConformance):
    def make_rule(self):
        return AnyOf(ASHA(max_epochs=27), Median(interval=2))


class TestFixed(PolicyConformance):
    def make_policy(self):
        return Fixed()


class TestFixedPairs(PolicyConformance):
    slots = (2, 3, 8)

    def make_policy(self):
        return Fixed(2)


def test_a_rule_times_a_policy_is_a_value():
    assert Scheduler(ASHA(max_epochs=9), Fixed(2)) == Scheduler(ASHA(max_epochs=9), Fixed(2))

"""Every rule and policy that ships keeps the promises of its kind."""

from fractions import Fraction

from trainwright.schedule import (
    ASHA,
    PASHA,
    AnyOf,
    Fixed,
    FixedEpochs,
    Hyperband,
    IEpoch,
    Median,
    MultiObjectiveASHA,
    Patience,
    Plateau,
    PopulationBasedTraining,
    Scheduler,
    SuccessiveHalving,
)
from trainwright.testing.policy import PolicyConformance
from trainwright.testing.rule import RuleConformance


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


class TestAshaWithAdaptiveCut(RuleConformance):
    def make_rule(self):
        return ASHA(max_epochs=27, cutoff="adaptive")


class TestAshaOfPromotions(RuleConformance):
    rank_based = True

    def make_rule(self):
        return ASHA(max_epochs=27, eta=2, kind="promotion")


class TestIEpoch(RuleConformance):
    rank_based = True

    def make_rule(self):
        return IEpoch(epochs=2, top_k=3, max_epochs=9)


class TestIEpochWithQuorum(RuleConformance):
    rank_based = True

    def make_rule(self):
        return IEpoch(top_k=0.2, max_epochs=9, quorum=0.5)


class TestSuccessiveHalving(RuleConformance):
    rank_based = True

    def make_rule(self):
        return SuccessiveHalving(n=9, max_epochs=9, eta=2)


class TestHyperband(RuleConformance):
    rank_based = True

    def make_rule(self):
        return Hyperband(max_epochs=20)


class TestHyperbandOfPromotions(RuleConformance):
    rank_based = True

    def make_rule(self):
        return Hyperband(max_epochs=16, eta=2, kind="promotion")


class TestPasha(RuleConformance):
    def make_rule(self):
        return PASHA(max_epochs=27, eta=2)


class TestPatience(RuleConformance):
    rank_based = True

    def make_rule(self):
        return Patience(epochs=3, max_epochs=20)


class TestPlateau(RuleConformance):
    rank_based = True

    def make_rule(self):
        return Plateau(window=3, tolerance=0.05)


class TestMultiObjectiveAsha(RuleConformance):
    rank_based = True
    objectives = 2
    streams = 5

    def make_rule(self):
        return MultiObjectiveASHA(max_epochs=9)


class TestMultiObjectiveAshaOfPromotions(RuleConformance):
    rank_based = True
    objectives = 3
    streams = 5

    def make_rule(self):
        return MultiObjectiveASHA(max_epochs=9, eta=2, kind="promotion")


class TestPopulationBasedTraining(RuleConformance):
    rank_based = True

    def make_rule(self):
        return PopulationBasedTraining(max_epochs=20, perturb=("lr",), population=6, interval=2)


class TestPopulationWithMedian(RuleConformance):
    def make_rule(self):
        population = PopulationBasedTraining(max_epochs=12, perturb=("lr",), population=4)
        return AnyOf(population, Median(interval=3, min_trials=3))


class TestAnyOf(RuleConformance):
    def make_rule(self):
        return AnyOf(ASHA(max_epochs=27), Median(interval=2))


class TestFixed(PolicyConformance):
    def make_policy(self):
        return Fixed()


class TestFixedPairs(PolicyConformance):
    engines = ((2, 2), (3, 3), (8, 8), (12, 4))

    def make_policy(self):
        return Fixed(2)


def test_a_rule_times_a_policy_is_a_value():
    assert Scheduler(ASHA(max_epochs=9), Fixed(2)) == Scheduler(ASHA(max_epochs=9), Fixed(2))

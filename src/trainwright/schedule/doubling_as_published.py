"""RASDA's allocation as its authors published it, with its faults: the baseline of all others."""

from dataclasses import dataclass, field

from trainwright.errors import ScheduleError
from trainwright.schedule._resizing import Resizing, check_factor, check_start
from trainwright.schedule._rule import PromotionRule
from trainwright.schedule.desk import Desk, Seat

__all__ = ["DoublingAsPublished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DoublingAsPublished(Resizing):
    """Double whoever passes a rung, without cap, fallback or shrink (RASDA, Aach et al., arXiv 2412.02729).

    A trial that passes the k-th rung at exactly that epoch gives everything back and waits until all of
    start * factor^(k+1) devices are free at once; new trials are served before it. A wait that cannot end stalls the
    study. `lost_resize=True` keeps a fault of the scheduler below it as well: of several trials that are to grow at
    one time, only the first does, and the others go on as they are. With `strict` a study is refused that can come to
    such a wait; else it is said before the study starts. Kept for comparisons; use `Doubling` instead.
    """

    start: int = 1
    factor: int = 2
    lost_resize: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        check_start("DoublingAsPublished", self.start)
        check_factor("DoublingAsPublished", self.factor)

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> str | None:
        """Refuse an engine that is too small for a new trial, or warn that it is for one that passes all rungs."""
        Resizing.check(self, slots, slots_per_node, rule)
        wanted = self.start * self.factor ** len(getattr(rule, "rungs", ()))
        if wanted <= slots:
            return None
        sentence = (
            f"DoublingAsPublished: a trial that passes all rungs wants {wanted} devices, the engine has {slots}: it "
            "would wait for ever (SchedulerStalled); use Doubling, fewer rungs, or a larger engine"
        )
        if self.strict:
            raise ScheduleError(sentence)
        return sentence

    def planner(self) -> "_Planner":
        """Return a planner."""
        return _Planner(self)


@dataclass
class _Planner:
    policy: DoublingAsPublished
    queues: dict[int, dict[int, int]] = field(default_factory=dict)  # devices wanted -> trial -> its place in the line
    came: int = 0

    def plan(self, desk: Desk) -> None:
        seat = desk.changed
        if seat is not None and self._doubles(desk, seat):
            size = self.policy.start * self.policy.factor**seat.rungs
            self.came += 1
            for queue in self.queues.values():
                queue.pop(seat.trial, None)  # its wait before was cut short: its devices died, or its run
            self.queues.setdefault(size, {})[seat.trial] = self.came
            desk.rest(seat, size)
        while desk.free >= self.policy.start and desk.begin():
            pass
        self._serve(desk)

    def _serve(self, desk: Desk) -> None:
        """Let those go on whose devices are free, first come, first served; O(sizes) for each, however many wait."""
        sizes = {size for size, queue in self.queues.items() if queue}
        while heads := [(*head, size) for size in sizes if size <= desk.free and (head := self._head(desk, size))]:
            _, trial, size = min(heads)
            if desk.again(trial, size):
                del self.queues[size][trial]
            else:
                sizes.remove(size)  # so many are free, but not in one block

    def _head(self, desk: Desk, size: int) -> tuple[int, int] | None:
        """Return who waits for so many devices first: its turn, and its number."""
        waits = ((place, trial) for trial, place in self.queues[size].items() if trial in desk.resting)
        return next(waits, None)

    def _doubles(self, desk: Desk, seat: Seat) -> bool:
        """Whether the report was at a rung, neither late nor at the last epoch."""
        if seat.epoch != seat.rung_epoch or not seat.settled:
            return False
        return not (self.policy.lost_resize and desk.resting)

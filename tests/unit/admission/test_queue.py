"""The admission queue: who goes first, who gives way, and that nothing is lost or held too long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.admission.queue import Outcome, Queue, Waiting


def one(priority: int = 50, tenant: str = "", pool: str = "p", size: int = 10, until: float = 10.0) -> Waiting:
    return Waiting(pool, priority, tenant, size, until)


def test_the_important_go_first_and_among_equals_who_came_first() -> None:
    queue = Queue(10, 1000)
    low, first, second, top = one(10), one(50), one(50), one(100)
    for waiting in (low, first, second, top):
        assert queue.offer(waiting, 0.0) is None
    assert queue.release("p", 3) == [top, first, second]
    assert queue.release("other", 3) == []
    assert queue.release("p", 3) == [low]
    assert [w.outcome for w in (low, first, second, top)] == [Outcome.ADMITTED] * 4
    assert (len(queue), queue.bytes) == (0, 0)


def test_tenants_take_turns() -> None:
    queue = Queue(100, 10_000)
    loud = [one(tenant="loud") for _ in range(6)]
    for waiting in loud:
        queue.offer(waiting, 0.0)
    quiet = [one(tenant="quiet") for _ in range(2)]
    for waiting in quiet:
        queue.offer(waiting, 0.0)
    assert queue.release("p", 4) == [loud[0], quiet[0], loud[1], quiet[1]]
    assert queue.release("p", 9) == loud[2:]


def test_when_it_is_full_the_least_important_gives_way_and_equals_do_not() -> None:
    queue = Queue(2, 1000)
    older, newer = one(10), one(10, until=11.0)
    queue.offer(older, 0.0)
    queue.offer(newer, 0.0)
    assert queue.offer(one(10), 0.0) is Outcome.FULL
    assert queue.offer(one(50), 0.0) is None
    assert (older.outcome, newer.outcome) == (None, Outcome.EVICTED)
    assert queue.offer(one(1), 0.0) is Outcome.FULL


def test_bytes_are_bounded_too() -> None:
    queue = Queue(100, 100)
    assert queue.offer(one(size=101), 0.0) is Outcome.FULL
    small = one(10, size=60)
    assert queue.offer(small, 0.0) is None
    assert queue.offer(one(10, size=60), 0.0) is Outcome.FULL
    assert queue.offer(one(90, size=60), 0.0) is None
    assert small.outcome is Outcome.EVICTED
    assert queue.bytes == 60


def test_nobody_waits_longer_than_allowed() -> None:
    queue = Queue(10, 1000)
    soon, late = one(until=1.0), one(until=5.0)
    queue.offer(late, 0.0)
    queue.offer(soon, 0.0)
    assert queue.offer(one(until=0.0), 0.0) is Outcome.FULL  # a class that never waits
    assert queue.expire(0.5) == 1.0
    assert queue.expire(1.0) == 5.0
    assert (soon.outcome, late.outcome) == (Outcome.EXPIRED, None)
    assert queue.release("p", 5) == [late]
    assert queue.expire(9.0) is None


def test_who_leaves_is_not_let_in_and_who_listens_late_is_told() -> None:
    queue = Queue(10, 1000)
    gone, stays = one(), one()
    queue.offer(gone, 0.0)
    queue.offer(stays, 0.0)
    queue.leave(gone)
    queue.leave(gone)
    assert queue.release("p", 5) == [stays]
    heard: list[Outcome] = []
    stays.listen(heard.append)
    assert heard == [Outcome.ADMITTED]
    queue.offer(last := one(), 0.0)
    last.listen(heard.append)
    queue.stop()
    assert heard[-1] is Outcome.STOPPED


def test_a_newcomer_overtakes_only_the_less_important() -> None:
    queue = Queue(10, 1000)
    queue.offer(one(50), 0.0)
    assert queue.ahead("p", 50)
    assert queue.ahead("p", 10)
    assert not queue.ahead("p", 51)
    assert not queue.ahead("q", 0)


def test_those_who_left_leave_nothing_behind() -> None:
    queue = Queue(10_000, 1_000_000)
    stays = one(until=1000.0)
    queue.offer(stays, 0.0)
    for number in range(2_000):
        gone = one(tenant=f"t{number % 7}", pool=f"p{number % 3}", until=900.0)
        queue.offer(gone, 0.0)
        queue.leave(gone)
        assert len(queue._deadlines) <= 70
    assert queue.pools == ["p"]
    assert (len(queue), queue.bytes, queue.waiting("p"), queue.waiting("p1")) == (1, 10, 1, 0)
    assert queue.expire(950.0) == 1000.0


def test_those_who_were_let_in_leave_nothing_behind() -> None:
    queue = Queue(10_000, 1_000_000)
    queue.offer(one(priority=0, until=800.0), 0.0)  # is never let in, and its time is over first
    for _ in range(2_000):
        queue.offer(one(priority=9, until=900.0), 0.0)
        queue.release("p", 1)
        assert len(queue._deadlines) <= 70
    assert len(queue) == 1


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 3), st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 9)),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 50)),
        st.tuples(st.just("time"), st.integers(1, 3)),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_everybody_gets_exactly_one_answer_and_the_bounds_hold(actions: list[tuple[object, ...]]) -> None:
    queue = Queue(5, 100)
    now = 0.0
    told: dict[Waiting, list[Outcome]] = {}
    left: set[Waiting] = set()
    for kind, *arguments in actions:
        if kind == "offer":
            priority, tenant, size, wait = arguments
            waiting = one(int(str(priority)), str(tenant), size=int(str(size)), until=now + int(str(wait)))
            refused = queue.offer(waiting, now)
            if refused is None:
                waiting.listen(told.setdefault(waiting, []).append)
        elif kind == "release":
            before = sorted((w.priority for w, heard in told.items() if not heard and w not in left), reverse=True)
            room = int(str(arguments[0]))
            assert [w.priority for w in queue.release("p", room)] == before[:room]
        elif kind == "leave" and told:
            waiting = list(told)[int(str(arguments[0])) % len(told)]
            if not told[waiting]:
                left.add(waiting)
            queue.leave(waiting)
        elif kind == "time":
            now += int(str(arguments[0]))
            queue.expire(now)
            assert all(heard or w in left or w.until > now for w, heard in told.items())
        open_ones = [w for w, heard in told.items() if not heard and w not in left]
        assert len(queue) == len(open_ones) <= 5
        assert queue.bytes == sum(w.size for w in open_ones) <= 100
    queue.stop()
    assert all(len(heard) == (w not in left) for w, heard in told.items())
    assert (len(queue), queue.bytes) == (0, 0)

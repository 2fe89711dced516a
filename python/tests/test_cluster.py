"""Work in many small units, on a substitute for Ray whose workers die as they are asked to."""

import types

import pytest

from terrace import Refused, _cluster


class Died(Exception):
    """What Ray raises where a worker has died."""


class Substitute:
    """As much of Ray as is used: tasks are run when their results are asked for, the last handed out
    first."""

    exceptions = types.SimpleNamespace(RayError=Died)

    def __init__(self, deadly=(), processors=2):
        self.deadly, self.processors = set(deadly), processors
        self.handed_out, self.most, self.cancelled = [], 0, []

    def cluster_resources(self):
        return {"CPU": self.processors}

    def remote(self, **_):
        def wrapped(work):
            def remote(whats, *arguments):
                reference = object()
                self.handed_out.append(list(whats))
                self.tasks = {**getattr(self, "tasks", {}), reference: (work, whats, arguments)}
                self.most = max(self.most, len(self.tasks))
                return reference

            return types.SimpleNamespace(remote=remote)

        return wrapped

    def wait(self, references, num_returns):
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference):
        work, whats, arguments = self.tasks.pop(reference)
        if self.deadly & set(whats):
            raise Died("the worker died")
        return work(whats, *arguments)

    def cancel(self, reference, force):
        self.cancelled.append(reference)
        raise Died("it had ended")


def spread(ray, whats, work, retries=1, **more):
    units = [w if w is None else _cluster.Unit(i, w) for i, w in enumerate(whats)]
    ended = []
    _cluster.spread(
        ray, work, units, len(whats), lambda *e: ended.append(e), retries=retries, **more
    )
    return ended


def done(whats):
    return [("done", what * 10, 0.01) for what in whats]


def test_every_unit_ends_once_and_few_wait_at_a_time():
    ray = Substitute()
    whats = [None if n % 10 == 3 else n for n in range(1000)]
    ended = spread(ray, whats, done)
    assert sorted(e[2] for e in ended) == [10 * n for n in whats if n is not None]
    assert ray.most <= 4, "two processors, two tasks each"
    # About a second of work at once, and small tasks at both ends.
    sizes = [len(whats) for whats in ray.handed_out]
    assert max(sizes) == 64 and sizes[0] == sizes[-1] == 1 and len(sizes) < 100, sizes


def test_a_unit_whose_worker_dies_each_time_is_given_up_and_the_others_end():
    ray = Substitute(deadly=[7, 500])
    ended = spread(ray, range(600), done)
    assert sorted(e[0].index for e in ended) == list(range(600))
    failed = {e[0].index: (e[1], e[2], e[0].attempt) for e in ended if e[1] != "done"}
    reason = ("failed", "Died: the worker died", 2)
    assert failed == {7: reason, 500: reason}


def test_what_fails_is_tried_again_and_what_is_refused_is_not():
    tries = []

    def work(whats):
        tries.extend(whats)
        return [("failed" if what == "weak" else "refused", what, 0.0) for what in whats]

    ended = spread(Substitute(), ["weak", "wrong"], work, retries=2)
    assert [(e[1], e[2]) for e in sorted(ended, key=lambda e: e[0].index)] == [
        ("failed", "weak"),
        ("refused", "wrong"),
    ]
    assert sorted(tries) == ["weak"] * 3 + ["wrong"]


def test_arguments_go_with_the_units_that_need_them():
    ended = spread(
        Substitute(),
        [1, 2, 3],
        lambda whats, files: [("done", files[what], 0.0) for what in whats],
        arguments=lambda some: ({unit.what: f"file {unit.what}" for unit in some},),
    )
    assert sorted(e[2] for e in ended) == ["file 1", "file 2", "file 3"]


def test_nothing_is_left_under_way_when_a_refusal_ends_it():
    ray = Substitute()

    def ended(*_):
        raise Refused("another version")

    units = map(_cluster.Unit, range(50), range(50))
    with pytest.raises(Refused, match="another version"):
        _cluster.spread(ray, done, units, 50, ended, retries=1)
    assert len(ray.cancelled) == len(ray.tasks) == 3

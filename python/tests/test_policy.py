"""Policies written in Python."""

import numpy as np
import pyarrow as pa
import pytest

import terrace


class Lru:
    """The most recently accessed pages, as Terrace's own `lru` of experiments shorter than 64
    periods, whose ages are exact."""

    name = "my-lru"

    def __init__(self):
        self.age = np.empty(0, np.uint8)

    def decide(self, scan, budget):
        if scan.pages_changed:
            self.age = scan.remap(self.age, fresh=127)
        known = self.age < 127
        self.age[known] += 1
        self.age[scan.accessed] = 0
        return terrace.select(scan, budget, self.age)


def column(table, name):
    return pa.table(table).column(name).to_pylist()


def test_the_same_rule_in_python_decides_like_terraces_own(small):
    results = small.run(policies=["lru", Lru])
    periods = pa.table(results.periods)
    by_run = {
        run: periods.filter(pa.compute.equal(periods["run"], run)).drop_columns(
            ["run", "policy", "applied"]
        )
        for run in ("lru", "my-lru")
    }
    assert by_run["lru"].num_rows == 40
    assert by_run["lru"].equals(by_run["my-lru"])
    assert sum(by_run["lru"]["promoted_pages"].to_pylist()) > 0
    assert set(column(results.runs, "policy")) == {"lru", "my-lru"}


def test_indices_masks_and_nothing_may_be_returned(small):
    class Swap:
        """The first page that is used and slow for the first that is fast and not used."""

        def __init__(self, how):
            self.how = how

        def decide(self, scan, budget):
            up = np.flatnonzero(scan.accessed & ~scan.fast)[:1]
            down = np.flatnonzero(scan.fast & ~scan.accessed)[: len(up)]
            up = up[: len(down)]
            if self.how == "nothing":
                return None
            if self.how == "indices":
                return list(up), list(down)
            masks = np.zeros((2, scan.pages), bool)
            masks[0, up] = masks[1, down] = True
            return masks[0], masks[1]

    runs = {how: small.run(Swap(how)) for how in ("indices", "masks", "nothing")}
    moved = {how: column(r.periods, "promoted_pages") for how, r in runs.items()}
    assert moved["indices"] == moved["masks"]
    assert max(moved["indices"]) == 1
    assert set(moved["nothing"]) == {0}


def test_a_scan_shows_what_is_there_and_cannot_be_changed(small):
    seen = []

    class Look:
        def decide(self, scan, budget):
            assert scan.accessed.dtype == bool and scan.accessed.base is not None
            assert scan.accessed.shape == scan.fast.shape == (scan.pages,)
            assert len(scan.addresses) == scan.pages
            assert scan.addresses[1] - scan.addresses[0] == scan.page_size_bytes == 4096
            bits = np.unpackbits(scan.accessed_words.view(np.uint8), bitorder="little")
            assert (bits[: scan.pages].astype(bool) == scan.accessed).all()
            bits = np.unpackbits(scan.fast_words.view(np.uint8), bitorder="little")
            assert (bits[: scan.pages].astype(bool) == scan.fast).all()
            assert int(scan.fast.sum()) <= budget.fast_pages
            with pytest.raises(ValueError):
                scan.fast[0] = True
            seen.append((scan.period, scan.pages, scan.accessed))

    results = small.run(Look())
    rows = pa.table(results.periods)
    assert [s[0] for s in seen] == rows["period"].to_pylist()
    # The arrays outlive the scan, and keep its values.
    assert [int(s[2].sum()) for s in seen] == rows["accessed_pages"].to_pylist()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda s, b: 3, "expected None, (promote, demote)"),
        (lambda s, b: ([-1], []), "promote has page -1, expected 0 to"),
        (lambda s, b: ([], [s.pages]), "demote has page"),
        (lambda s, b: ([0.5], []), "an array of float64"),
        (lambda s, b: (np.ones(3, bool), []), "a mask of 3 pages"),
        (lambda s, b: (np.flatnonzero(s.fast)[:1], []), "which is in fast memory already"),
        (lambda s, b: ([], np.flatnonzero(~s.fast)[:1]), "which is in slow memory already"),
        (lambda s, b: (np.flatnonzero(~s.fast)[[0, 0]], []), "twice"),
        (lambda s, b: (~s.fast, []), "pages in fast memory, expected at most"),
        (lambda s, b: terrace.select(s, b, np.zeros(3, np.uint8)), "3 keys, expected one for each"),
        (lambda s, b: terrace.select(s, b, np.full(s.pages, 200, np.uint8)), "a key of 200"),
    ],
)
def test_answers_that_make_no_sense_are_refused_in_a_line(small, tmp_path, answer, message):
    class Wrong:
        def decide(self, scan, budget):
            return answer(scan, budget)

    out = tmp_path / "out"
    with pytest.raises(terrace.Refused) as error:
        small.run(Wrong(), out=out)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(out.rglob("*.parquet")), "nothing half-written stays"


def test_moves_are_bounded(small):
    bounded = small.with_keys(moved_pages_per_period=6)

    class Greedy:
        def decide(self, scan, budget):
            assert budget.moved_pages == 6
            return np.flatnonzero(~scan.fast)[:4], np.flatnonzero(scan.fast)[:4]

    with pytest.raises(terrace.Refused, match="8 moves, expected at most 6"):
        bounded.run(Greedy())
    moved = column(bounded.run(Lru).periods, "promoted_pages")
    assert 0 < max(moved) <= 6


def test_an_exception_of_a_policy_ends_the_run(small, tmp_path):
    class Boom:
        def decide(self, scan, budget):
            if scan.period == 3:
                raise KeyError("no such page")

    with pytest.raises(KeyError, match="no such page"):
        small.run(["lru", Boom()], out=tmp_path / "out")
    left = sorted(path.name for path in (tmp_path / "out" / "recordings").iterdir())
    assert left == ["lru.trec"], "and no part of a recording is left"

    class Stopped:
        def decide(self, scan, budget):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.run(Stopped())
    assert small.run("lru").runs.num_rows == 1, "the next run is not affected"


def test_every_group_and_run_has_a_policy_of_its_own():
    group = lambda name: terrace.Group(
        name, terrace.Workload("zipf", footprint_mib=8), fast_ratio=0.5, page_size="4K"
    )
    two = terrace.Experiment(name="two", period_ms=100, periods=3, groups=[group("a"), group("b")])

    class Counts:
        seeds = []

        def __init__(self):
            self.calls = 0

        def start(self, seed):
            self.seeds.append(seed)

        def decide(self, scan, budget):
            self.calls += 1
            assert self.calls == scan.period + 1

    prototype = Counts()
    two.with_keys(seed=7).run(prototype)
    assert prototype.calls == 0
    assert Counts.seeds == [7, 7]


def test_names_and_kinds_of_policies_are_checked(small):
    class Named:
        name = "lru"

        def decide(self, scan, budget):
            return None

    with pytest.raises(terrace.Refused, match="named 'lru' like one of Terrace's"):
        small.run(Named())
    with pytest.raises(terrace.Refused, match="method decide"):
        small.run(object())
    with pytest.raises(terrace.Refused, match="no policy is named 'lfo'"):
        small.run("lfo")

    class Nowhere(Named):
        name = "nowhere"
        allocation = "slow"

    with pytest.raises(terrace.Refused, match="expected 'fast-first' or 'interleave'"):
        small.run(Nowhere())


def test_a_policy_runs_in_trace_driven_simulation_and_follows_its_pages():
    reference = terrace.Experiment(
        name="reference",
        period_ms=1,
        periods=1000,
        machine=terrace.Machine.preset("server-ddr5-cxl", fast="64M", slow="64M"),
        groups=[
            terrace.Group(
                "g",
                terrace.Workload("program", name="gups", footprint_mib=2),
                fast_ratio=0.5,
                page_size="4K",
            )
        ],
    )
    grown = []

    class Follow(Lru):
        name = "follow"

        def decide(self, scan, budget):
            grown.append((scan.pages, scan.pages_changed))
            moves = super().decide(scan, budget)
            assert len(self.age) == scan.pages
            return moves

    runs = pa.table(reference.run(Follow).runs)
    assert runs["slowdown"][0].as_py() > 0.99
    assert runs["references"][0].as_py() > 100_000
    changed = [now != before for (now, _), (before, _) in zip(grown[1:], grown)]
    assert grown[0][1] and [was for _, was in grown[1:]] == changed

"""Tables, results and errors as users of Python expect them."""

import inspect
import json
import subprocess
import typing

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import terrace
from terrace import _names, experiment


@pytest.fixture
def results(small):
    return small.run(["lru", "lfu"])


def test_a_column_is_an_array_of_its_kind(results):
    periods = results.periods
    arrow = pa.table(periods)
    for name, kind in [("hit_ratio", "f8"), ("accessed_pages", "i8")]:
        assert periods[name].dtype == kind
        assert periods[name].tolist() == arrow[name].to_pylist()
    assert periods["policy"].tolist() == ["lru"] * 40 + ["lfu"] * 40
    assert results.runs["emulated"].dtype == bool
    # Numbers that are missing are NaN, texts None.
    assert np.isnan(results.runs["slowdown"]).all()
    assert results.runs["kernel"].tolist() == [None, None]
    with pytest.raises(ValueError, match="read-only"):
        periods["hit_ratio"][0] = 1


def test_rows_are_taken_as_of_a_list_and_by_masks(results):
    periods = results.periods
    assert periods.shape == (80, len(periods.columns)) and len(periods) == 80
    assert periods.columns == periods.column_names == pa.table(periods).column_names
    assert "hit_ratio" in periods and "nothing" not in periods
    some = periods[["period", "policy", "hit_ratio"]]
    assert some.columns == ["period", "policy", "hit_ratio"] and len(some) == 80
    assert some[0] == {"period": 0, "policy": "lru", "hit_ratio": periods["hit_ratio"][0]}
    assert some[-1]["policy"] == "lfu" and some[-1]["period"] == 39
    assert some[38:42]["period"].tolist() == [38, 39, 0, 1]
    assert some[::-1]["period"].tolist() == some["period"].tolist()[::-1]
    assert some[5:3].shape == (0, 3) and some.head(2)["period"].tolist() == [0, 1]
    lfu = periods[periods["policy"] == "lfu"]
    assert lfu.shape == (40, len(periods.columns)) and set(lfu["policy"]) == {"lfu"}
    assert some[np.array([3, -1])]["period"].tolist() == [3, 39]
    assert [row["period"] for row in some] == some["period"].tolist()
    assert pa.table(lfu).equals(pa.table(periods).slice(40).combine_chunks())
    for row in (80, -81):
        with pytest.raises(IndexError, match="expected one of 80 rows"):
            some[row]
    with pytest.raises(terrace.Refused, match="a mask of 3 rows, expected one of 80"):
        some[np.ones(3, bool)]
    with pytest.raises(TypeError, match="expected a column's name"):
        _ = some[0.5]


def test_an_unknown_column_is_a_key_error_that_names_the_one_that_was_meant(results):
    for wrong in (lambda: results.runs["hit_rato"], lambda: results.runs[["policy", "hit_rato"]]):
        with pytest.raises(KeyError) as error:
            wrong()
        assert isinstance(error.value, terrace.Refused)
        assert str(error.value).startswith("no column is named 'hit_rato'; expected one of run, ")
        assert str(error.value).endswith("; did you mean 'hit_ratio'?")


def test_libraries_of_tables_read_them(results):
    periods = results.periods
    frame = pd.DataFrame(periods)
    assert list(frame.columns) == periods.columns and len(frame) == 80
    assert frame["hit_ratio"].tolist() == periods["hit_ratio"].tolist()
    assert frame.groupby("policy")["promoted_pages"].sum().to_dict() == {
        name: int(results[name].periods["promoted_pages"].sum()) for name in ("lru", "lfu")
    }
    assert pl.DataFrame(periods[10:20]).equals(pl.DataFrame(periods)[10:20])
    assert pa.table(periods[["run"]]).num_rows == 80


def test_tables_and_results_show_themselves(results, small):
    text = repr(results.periods)
    lines = text.splitlines()
    assert lines[0] == f"<terrace.Table of 80 rows, {len(results.periods.columns)} columns>"
    assert lines[1].split()[:3] == ["run", "experiment", "machine"]
    assert lines[2].split()[:3] == ["lru", "small", "sim"]
    assert lines[-1].startswith("... 70 more rows, ") and len(lines) == 13
    assert max(map(len, lines)) <= 100
    html = results.periods[["policy", "hit_ratio"]]._repr_html_()
    assert html.count("<tr>") == 11 and "<th>hit_ratio</th>" in html and "70 more rows" in html
    shown = repr(results)
    assert shown.startswith("<terrace.Results of 'small'>\n")
    assert repr(terrace.Results.read(results.path)).startswith(
        f"<terrace.Results of 'small' in {results.path}>\n"
    )
    for word in ("policy", "hit_ratio", "promoted_pages", "lru", "lfu"):
        assert word in shown and word in results._repr_html_()
    # What is nowhere counted is not shown.
    assert "slowdown" not in shown
    assert repr(small).splitlines() == [
        "<terrace.Experiment 'small': 40 periods of 100 ms>",
        "group 'a': kind zipf, footprint_mib 32; fast_ratio 0.4, policy lru",
    ]


def test_html_shows_texts_as_they_are(small, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"a<b": ["<script>", 'x & "y"']}), tmp_path / "t.parquet", compression="zstd"
    )
    html = terrace.Table.read(tmp_path / "t.parquet")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "a&lt;b" in html
    assert "x &amp; &quot;y&quot;" in html


def test_results_are_named_by_policies_and_groups(small):
    class Still:
        def decide(self, scan, budget):
            return None

    results = small.run(["lru", Still])
    assert list(results) == results.policies == ["lru", "Still"]
    assert len(results) == 2 and "lru" in results and "amp" not in results
    lru = results["lru"]
    assert lru.hit_ratio == results.runs["hit_ratio"][0] and lru.policy == "lru"
    assert isinstance(lru.promoted_pages, int) and lru.slowdown is None
    assert len(lru.periods) == 40 and set(lru.periods["policy"]) == {"lru"}
    assert set(lru.heat["run"]) == {"lru"} and lru.hardware is None
    assert results["Still"].promoted_pages == 0 < lru.promoted_pages
    assert "terrace.Run of policy 'lru'" in repr(lru) and "hit_ratio" in repr(lru)
    assert {"hit_ratio", "periods", "groups"} <= set(dir(lru))
    with pytest.raises(KeyError, match="no policy of these results is named 'lur'.*did you mean"):
        results["lur"]
    with pytest.raises(AttributeError, match="a run has no 'hit_rate'; did you mean 'hit_ratio'"):
        _ = lru.hit_rate


def test_a_run_of_several_groups_has_each_by_its_name(small):
    group = small.keys["groups"][0]
    two = terrace.Experiment(
        "two", period_ms=100, periods=5, groups=[group, {**group, "name": "b"}]
    )
    run = two.run("lfu")["lfu"]
    assert run.groups == ["a", "b"] and len(run.periods) == 10
    assert run["b"].hit_ratio == run.runs["hit_ratio"][1] and len(run["b"].periods) == 5
    with pytest.raises(AttributeError, match=r"'hit_ratio' of 2 groups.*run\[\"a\"\].hit_ratio"):
        _ = run.hit_ratio
    with pytest.raises(KeyError, match="no group is named 'c'"):
        run["c"]


def test_a_plan_is_named_and_shows_itself(small, tmp_path):
    [path] = small.run("lru", out=tmp_path).recordings
    # One recording, one policy: no list is needed.
    plan = terrace.plan(path, 1.10, policies="lru")
    [answer] = plan.recommended
    assert answer.policy == "lru" and answer.fast_bytes > 0
    assert answer.slowdown_low <= answer.slowdown <= answer.slowdown_high
    assert answer.fast_share == pytest.approx(plan.answers["fast_share"][0])
    assert repr(plan).startswith("<terrace.Plan for a slowdown of at most 1.1>\n")
    assert all(line in repr(plan) for line in plan.words)
    assert "<table>" in plan._repr_html_()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda e: terrace.Machine(slow_latency=3), "did you mean 'slow_latency_ns'?"),
        (lambda e: terrace.Machine.preset("server-ddr5-cx"), "did you mean 'server-ddr5-cxl'?"),
        (lambda e: terrace.Workload("zpif"), "no kind of workload is named 'zpif'"),
        (lambda e: terrace.Workload("zipf", footprint=3), "did you mean 'footprint_mib'?"),
        (
            lambda e: terrace.Group("a", terrace.Workload("zipf"), fast_ration=0.5),
            "Group has no argument 'fast_ration'",
        ),
        (lambda e: terrace.Group("a", "zipf", fast_ratio=0.5), "expected a terrace.Workload"),
        (
            lambda e: terrace.Group("a", terrace.Workload("zipf"), fast=1, fast_ratio=0.5),
            "expected one of them",
        ),
        (
            lambda e: terrace.Experiment("e", period_ms=1, periods=1, groups=3),
            "groups = 3: expected a list of terrace.Group",
        ),
        (
            lambda e: terrace.Experiment("e", period_ms=1, periods=1, groups=[], machine="big"),
            "machine = 'big': expected a terrace.Machine",
        ),
        (lambda e: terrace.Experiment("e", period=1, groups=[]), "did you mean 'period"),
        (lambda e: e.run("lur"), "no policy is named 'lur'"),
        (lambda e: e.run("lru", jobs=0), "jobs = 0: expected a whole number, 1 or more"),
        (lambda e: terrace.plan([3], 1.05), "recordings has 3: expected a path"),
        (lambda e: terrace.plan(3, 1.05), "recordings = 3: expected a path"),
        (lambda e: terrace.plan("x", "5 %"), "slowdown = '5 %': expected a number"),
        (lambda e: terrace.plan("x", 1.1, policies=["lur"]), "did you mean 'lru'?"),
        (lambda e: terrace.plan("x", 1.1, seeds=-1), "seeds = -1: expected a whole number"),
        (lambda e: terrace.plan("x", 1.1, machine=["a"]), "did you mean 'machines'?"),
        (
            lambda e: terrace.Experiment("e", period_ms=1, periods=1, groups=[object()]),
            "expected a terrace.Group",
        ),
        (lambda e: e.with_keys(machine={"fast": "1K"}), "machine.fast: expected at least"),
    ],
)
def test_errors_are_in_the_words_of_the_call(small, wrong, words):
    with pytest.raises(terrace.Refused) as error:
        wrong(small)
    text = str(error.value)
    assert words in text and "\n" not in text
    for foreign in ("[[", "serde", "Can't extract", ".rs", "`"):
        assert foreign not in text


def test_arguments_are_the_keys_of_the_file(command):
    """Those that completion offers are those that there are."""
    schema = json.loads(
        subprocess.run(
            [command, "schema", "experiment"], check=True, capture_output=True, text=True
        ).stdout
    )
    definitions = json.dumps(schema)
    arguments = lambda kind: set(inspect.signature(kind.__init__).parameters) - {"self"}
    machine = schema["properties"]["machine"]["properties"]
    assert arguments(terrace.Machine) == set(machine), definitions[:200]
    group = schema["properties"]["groups"]["items"]["properties"]
    assert arguments(terrace.Group) == set(group)
    assert arguments(terrace.Experiment) - {"folder"} == set(schema["properties"])


def test_types_have_every_name_there_is():
    names = lambda kind: set(typing.get_args(kind))
    assert names(_names.PolicyName) == {p["name"] for p in terrace.policies()}
    assert names(_names.WorkloadKind) == {w["name"] for w in terrace.workloads()}
    assert names(_names.MachineName) == {m["name"] for m in terrace.machines()}


def test_columns_of_a_run_are_declared_with_their_kinds(results):
    import ast
    from pathlib import Path

    tree = ast.parse((Path(terrace.__file__).parent / "_terrace.pyi").read_text())
    [run] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Run"]
    declared = {n.target.id for n in run.body if isinstance(n, ast.AnnAssign)}
    # `policy` and `periods` of a run are more than the columns of these names.
    assert declared | {"policy", "periods"} == set(results.runs.columns)


def test_what_was_given_can_be_read_back():
    group = terrace.Group("a", terrace.Workload("zipf", footprint_mib=8), fast_ratio=0.5)
    assert group.fast_ratio == 0.5 and group.workload.footprint_mib == 8
    assert "fast_ratio" in dir(group)
    assert eval(repr(group), vars(terrace)) == group
    with pytest.raises(AttributeError, match="Group was given no 'fast'; it has name, workload"):
        _ = group.fast
    assert experiment._plain({"a": np.int64(3)}) == {"a": 3}

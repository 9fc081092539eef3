"""Sweeps from end to end: numbers, refusals, files, and going on after an interruption."""

from __future__ import annotations

import csv
import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from costproof.ledger import environment
from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput, Bug, Incomplete
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.schema import json_schema, load
from costproof.models.target import Exportable
from costproof.parametric.evaluator import Evaluator
from costproof.run import sweep_files, sweep_parts
from costproof.run.operands import read_operand
from costproof.run.sweep import Sweep, ValidatedPoint, graph_evaluator, sweep
from costproof.tracers.peaks.calls import calls, graph_timeline
from costproof.views.files import SWEEP
from tests.support.running import costproof

OVER = {"hidden": "64,128,100", "batch": "1,3", "text_tokens": "5,700"}
SMALL = {"layers": "2", "heads": "4", "kv_heads": "2", "head_dim": "16", "vocab": "100", "intermediate": "96"}


def by_hand(hidden: int, batch: int, tokens: int) -> int:
    """Headline FLOPs of a prefill: projections 4 heads wide, three of the MLP, QK^T and PV, the output projection."""
    width, kv, layer = 4 * 16, 2 * 16, 0
    rows = batch * tokens
    layer += 2 * rows * hidden * (width + 2 * kv) + 2 * rows * width * hidden
    layer += 3 * 2 * rows * hidden * 96
    layer += 2 * 2 * batch * 4 * tokens * tokens * 16
    return 2 * layer + 2 * rows * hidden * 100


def test_every_point_by_hand() -> None:
    frame = sweep("llama", {**OVER, **SMALL}, metrics=["flops"], stages=["prefill"]).frame()
    want = [(h, b, t) for h, b, t in product((64, 128, 100), (1, 3), (5, 700))]
    assert list(zip(frame.hidden, frame.batch, frame.text_tokens, strict=True)) == want
    assert list(frame["prefill.flops"]) == [by_hand(*point) for point in want]


def test_what_is_refused_and_why() -> None:
    made = sweep("llama", {"heads": "4:8", "kv_heads": "2,4", "hidden": "64"}, metrics=["flops"])
    tally = made.count()
    # 64 is a multiple of 4 and 8; of 5, 6 and 7 not, twice each.
    assert (tally.points, tally.rows) == (10, 4)
    assert len(made.frame()) == 4
    ((reason, one), *others) = tally.refused.items()
    assert reason.startswith("the heads must divide the width")
    assert one["example"] == {"heads": 5, "kv_heads": 2, "hidden": 64}
    assert one["count"] + sum(o["count"] for o in (o for _, o in others)) == 6


def test_numbers_longer_than_64_bits() -> None:
    made = sweep("llama", {"text_tokens": [100_000, 131_000], "batch": "1,1024", "layers": "126"}, metrics=["flops"])
    frame = made.frame()
    points = Evaluator.of("llama")
    for row in frame.to_dict("records"):
        settings = {"text_tokens": row["text_tokens"], "batch": row["batch"]}
        assert row["flops"] == points.at({"layers": 126}, settings=settings).totals["", "flops"]
    assert max(frame["flops"]) > 2**63


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_files_hold_what_the_frame_holds(kind: str, tmp_path: Path) -> None:
    if kind == "parquet" and installed("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the extra [sweep]")
    import pandas

    over: dict[str, Any] = {"text_tokens": [5, 131_000], "batch": "1,1024,2000", "layers": "126", "tied": "true,false"}
    made = sweep("llama", over, metrics=["flops", "params"], size=4)
    path = tmp_path / f"sweep.{kind}"
    tally = made.write(path)
    assert (tally.points, tally.rows) == (12, 8)
    assert sum(one["count"] for one in tally.refused.values()) == 4
    frame = made.frame()
    if kind == "parquet":
        found = pandas.read_parquet(path)
        rows = [
            [str(v).lower() if i == 3 else int(v) for i, v in enumerate(row)] for row in found.itertuples(index=False)
        ]
    elif kind == "json":
        data = json.loads(path.read_text())
        assert (data["schema"], data["points"], data["rows"]) == ("costproof/sweep", 12, 8)
        assert data["columns"] == list(frame.columns)
        assert data["refused"] == tally.refused
        jsonschema.Draft202012Validator(json_schema(SWEEP)).validate(data)
        read = load(path, SWEEP, make_again="costproof sweep")
        assert [list(row) for row in read.data] == data["data"]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(json_schema(SWEEP)).validate({**data, "rows": "8"})
        rows = [[str(v).lower() if i == 3 else v for i, v in enumerate(row)] for row in data["data"]]
    else:
        lines = list(csv.reader(path.read_text().splitlines()))
        assert lines[0] == [*frame.columns, "counted"]
        assert [line[-1] for line in lines[1:]] == [made.counted, *["" for _ in lines[2:]]]
        rows = [[v if i == 3 else int(v) for i, v in enumerate(line[:-1])] for line in lines[1:]]
    assert rows == [[str(v).lower() if i == 3 else v for i, v in enumerate(row)] for row in frame.values.tolist()]
    assert not path.with_name(path.name + ".parts").exists()


def test_without_the_extra_each_step_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "installed", lambda name: None)
    line = ("sweep", "llama", "--over", "batch=1,2", "--metric", "flops")
    for more, packages in (
        (("-o", "x.parquet"), ["pyarrow"]),
        (("--validate", "1"), ["joblib"]),
        (("--validate", "1", "--cluster", "tcp://127.0.0.1:1"), ["dask", "distributed", "joblib"]),
    ):
        done = costproof(*line, *more, cwd=tmp_path)
        assert (done.code, done.stdout) == (3, "")
        assert f"got:      no {', no '.join(packages)}\n" in done.stderr
        assert "fix:      pip install '" + packages[0] in done.stderr
    with pytest.raises(Incomplete, match="drawing pictures needs"):
        sweep("llama", {"batch": "1,2"}).plot(tmp_path / "x.svg")
    assert not [*tmp_path.iterdir()], "nothing is written before it is known that it can be"


def test_metrics_may_be_named_one_by_one(tmp_path: Path) -> None:
    line = ("sweep", "llama", "--over", "batch=1", "--stage", "decode")
    heads = [
        costproof(*line, *more, cwd=tmp_path).stdout.splitlines()[0]
        for more in (("--metric", "flops", "--metric", "params"), ("--metric", "flops,params"))
    ]
    assert heads == 2 * ["batch,flops,decode.flops,params,decode.params,counted"]


def test_a_sweep_is_written_and_validated_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Sweep, "validate", lambda self, points, **how: (ValidatedPoint({"a": (2, 5), "batch": 2}, "explained"),)
    )
    line = ("sweep", "llama", "--over", "batch=1,2", "--metric", "flops", "--validate", "1")
    done = costproof(*line, "-o", "x.csv", "--no-plot", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "explained: a 2+5, batch 2\n")
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1 + 2
    assert costproof(*line, cwd=tmp_path).stdout == "explained: a 2+5, batch 2\n", (
        "rows are not printed among the points"
    )


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.csv", tmp_path / "some.csv"
    over = {"batch": "1:5", "text_tokens": "1:10"}
    sweep("llama", over, size=7).write(whole)
    made: list[int] = []
    usual = sweep_files.csv_text

    def counted(part: sweep_parts.SweepPart, names: Any) -> str:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(part.points)
        return usual(part, names)

    monkeypatch.setattr(sweep_files, "csv_text", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep("llama", over, size=7).write(path)
    assert not path.exists()
    monkeypatch.setattr(sweep_files, "csv_text", partial(_noted, usual, made))
    tally = sweep("llama", over, size=7).write(path)
    assert sum(made) == tally.points == 50, "every point was computed once"
    assert path.read_bytes() == whole.read_bytes()


def _noted(usual: Any, made: list[int], part: sweep_parts.SweepPart, names: Any) -> str:
    made.append(part.points)
    text: str = usual(part, names)
    return text


@pytest.mark.parametrize("name", [".part", ".json"])
@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[]", b"1,2,3\n"])
def test_a_damaged_part_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None
) -> None:
    path = tmp_path / "some.csv"
    monkeypatch.setattr(sweep_files, "remove_parts", lambda *_: None)  # as if it were stopped at the very end
    sweep("llama", {"batch": "1:5"}, size=2).write(path)
    sure, damaged = (
        path.read_bytes(),
        sorted((tmp_path / "some.csv.parts").glob(f"*{name}"))[1 if name == ".part" else -2],
    )
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    path.unlink()
    assert sweep("llama", {"batch": "1:5"}, size=2).write(path).rows == 5
    assert path.read_bytes() == sure


def test_two_sweeps_at_once_never_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, usual = tmp_path / "some.csv", sweep_files.csv_text
    began: list[int] = []

    def other(part: sweep_parts.SweepPart, names: Any) -> str:
        if not began:
            began.append(1)  # another sweep is begun in the same file
            with pytest.raises(BadInput, match="another sweep is being written"):
                sweep("llama", {"batch": "7:9"}, size=1).write(path)
        return usual(part, names)

    monkeypatch.setattr(sweep_files, "csv_text", other)
    assert sweep("llama", {"batch": "1:4"}, size=1).write(path).rows == 4
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["batch", "1", "2", "3", "4"]
    assert [p.name for p in tmp_path.iterdir()] == ["some.csv"]


def test_parts_of_another_sweep_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.csv"

    def stop(part: sweep_parts.SweepPart, names: Any) -> str:
        if part.varied["batch"][0] == 2:
            raise KeyboardInterrupt
        return "1,2,3\n"

    monkeypatch.setattr(sweep_files, "csv_text", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep("llama", {"batch": "1,2"}, size=1).write(path)
    monkeypatch.undo()
    sweep("llama", {"batch": "3"}, metrics=["params"], stages=[]).write(path)
    assert path.read_text().startswith('batch,params,counted\n3,8030261248,"Counted: ')
    (tmp_path / "other.csv.parts").mkdir()
    with pytest.raises(BadInput, match="costproof did not make it"):
        sweep("llama", {"batch": "3"}).write(tmp_path / "other.csv")
    with pytest.raises(BadInput, match="selects the format of the table"):
        sweep("llama", {"batch": "3"}).write(tmp_path / "other.xls")


def test_a_compiled_formula_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_parts, "last_of", lambda column: 1)
    with pytest.raises(Bug, match="compiled formula"):
        sweep("llama", {"batch": "1,2"}).frame()


def test_points_of_which_a_metric_is_unknown_are_refused() -> None:
    # Bytes of fp8 parameters of which a rank stores parts are not known. One device stores the 688,574,839,360 bytes of
    # the checkpoint of DeepSeek-V3 without the 15,424,227,552 of its MTP module.
    made = sweep("deepseek-v3", {"fsdp": "1,2,4"}, metrics=["stored_bytes", "flops"], batch=4, new_tokens=1)
    assert list(made.frame()["stored_bytes"]) == [688_574_839_360 - 15_424_227_552]
    ((one,),) = (part.refused for part in made.parts() if part.refused)
    assert one.reason == "the analytic ledger leaves this metric unknown (--metric)"
    assert (one.count, one.example) == (2, {"fsdp": 2})
    assert len(sweep("llama", {"fsdp": "1,2,4"}, metrics=["flops"], batch=4, new_tokens=1).frame()) == 3


def test_a_setting_that_is_varied_cannot_be_fixed() -> None:
    with pytest.raises(BadInput, match="both varied and fixed"):
        sweep("llama", {"batch": "1,2"}, batch=3)
    with pytest.raises(BadInput, match="no such metric"):
        sweep("llama", {"batch": "1,2"}, metrics=["flop"])
    with pytest.raises(BadInput, match="this peak cannot be swept"):
        sweep("llama", {"batch": "1,2"}, metrics=["eager_peak_bytes"])
    for varied in ("hidden", "layers"):
        with pytest.raises(BadInput, match="a graph peak has no formula in this parameter"):
            sweep("llama", {"batch": "1,2", varied: "64"}, metrics=["graph_peak_bytes"])
    with pytest.raises(BadInput, match="a graph peak has no formula in this parameter"):
        sweep("deepseek-ocr", {"base_size": "640,1024"}, metrics=["graph_peak_bytes"])


@pytest.mark.slow
def test_graph_peaks_are_those_of_the_graph_of_every_point(tmp_path: Path) -> None:
    """By the liveness of a graph that is exported at the sizes of the point."""
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 16, "intermediate_size": 96, "vocab_size": 100, "sliding_window": 48}
    kind = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "max_position_embeddings": 4096}
    file.write_text(json.dumps({**kind, **sizes}))
    lengths = (5, 45, 46, 60)
    over = {"batch": "3", "text_tokens": list(lengths)}
    made = sweep("mistral", over, metrics=["graph_peak_bytes", "kv_cache_bytes"], config=file, new_tokens=1)
    frame = made.frame()
    # The window fills at 48: one before, a mask is another, and the graph says where it ends.
    rows = list(zip(frame.batch, frame.text_tokens, strict=True))
    left = set(product((3,), lengths)) - set(rows)
    assert {tokens for _, tokens in left} <= {46}
    for batch, tokens in rows[1:]:
        run = read_operand(f"mistral,batch={batch},text_tokens={tokens},new_tokens=1", config=file)
        found: dict[str, int] = {}
        for _, job in calls(cast(Exportable, run.origin), run.baseline.workload):
            found[job.stage] = max(found.get(job.stage, 0), *graph_timeline(job, {}).held())
        row = frame.loc[rows.index((batch, tokens))]
        assert {stage: row[f"{stage}.graph_peak_bytes"] for stage in found} == found
        assert row["graph_peak_bytes"] == max(found.values())
    tally = made.write(tmp_path / "peaks.csv")
    assert (tally.points, tally.rows) == (4, len(rows))
    assert all(reason.startswith("the exported graph does not hold at these points") for reason in tally.refused)
    assert sum(one["count"] for one in tally.refused.values()) == len(left)


def test_where_no_graph_is_in_symbols_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    known, why = (
        CallPeaks("decode", "steps", "", None, None, form="B"),
        ("graph peak not known in symbols: of this test",),
    )
    calls = (CallPeaks("prefill", "prompt", "", None, None, notes=why), known)
    monkeypatch.setattr("costproof.run.sweep_parts.measure_peaks", lambda *_, **__: calls)
    tally = sweep("llama", {"batch": "1:3"}, metrics=["graph_peak_bytes"]).stream(lambda _: None)
    ((reason, one),) = tally.refused.items()
    assert (tally.rows, one["count"], reason) == (
        0,
        3,
        "the graph peak of a call has no formula in the swept settings (prefill prompt)",
    )
    assert "of this test" in one["says"]


def test_graph_peaks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    forms: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    forms = (("prefill", "prompt", "Max(1000*B, 10*B*S)", ("200 - S",)), ("decode", "steps", "P*B + 600", ()))
    # Of the points at which graphs are asked: the last, and of those with batch 1 and of the others the first.
    peaks: dict[tuple[int, int], tuple[int, ...]] = {(2, 201): (4020, 1002), (1, 7): (1000, 607), (2, 7): (2000, 614)}

    def measured(target: Any, workload: Any, **_: bool) -> tuple[CallPeaks, ...]:
        made = []
        for (stage, call, form, holds), size in zip(forms, peaks[workload.batch, workload.text_tokens], strict=True):
            graph = Peak(size, "", "", ())
            made.append(CallPeaks(stage, call, "", graph, None, form=form, holds=holds))
        return tuple(made)

    monkeypatch.setattr("costproof.run.sweep_parts.measure_peaks", measured)
    over = {"batch": "1,2", "text_tokens": "7,150,201"}
    made = sweep("llama", over, metrics=["graph_peak_bytes"])
    frame = made.frame()
    assert list(zip(frame.batch, frame.text_tokens, strict=True)) == [(1, 7), (1, 150), (2, 7), (2, 150)]
    assert list(frame["prefill.graph_peak_bytes"]) == [1000, 1500, 2000, 3000]
    assert list(frame["decode.graph_peak_bytes"]) == [607, 750, 614, 900]
    assert list(frame["graph_peak_bytes"]) == [1000, 1500, 2000, 3000]
    ((reason, one),) = made.stream(lambda _: None).refused.items()
    assert (one["count"], one["example"]) == (2, {"batch": 1, "text_tokens": 201})
    assert "200 - S" in one["says"]
    # Of one sequence another graph is exported: these points have no row, and the others do.
    peaks[1, 7] = (1000, 606)
    made = sweep("llama", over, metrics=["graph_peak_bytes"])
    assert list(made.frame().batch) == [2, 2]
    (one,) = (o for r, o in made.stream(lambda _: None).refused.items() if "another peak than the one exported" in r)
    assert one["count"] == 2
    assert "got decode: 607 by the one in symbols, 606 by that one" in one["says"]
    # Calls that are not those of the run are not its graphs.
    forms = forms[:1]
    peaks[2, 201] = (4020,)
    (reason,) = sweep("llama", over, metrics=["graph_peak_bytes"]).stream(lambda _: None).refused
    assert reason.startswith("not every call of the run has a graph")


def test_the_command(tmp_path: Path) -> None:
    words = ("sweep", "llama", "--over", "hidden=64,100", "--over", "heads=8,16", "--metric", "params")
    done = costproof(*words, cwd=tmp_path)
    assert done.code == 0
    assert done.stdout.splitlines()[0] == "hidden,heads,params,prefill.params,decode.params,counted"
    assert len(done.stdout.splitlines()) == 3
    assert (
        "refused 2: the heads must divide the width ($.num_attention_heads); such as hidden 100, heads 8: "
        in done.stderr
    )
    dry = costproof(*words, "--dry-run", cwd=tmp_path)
    assert dry.stdout.startswith("4 points, 2 of them are models; each row has 3 costs\nrefused 2: the heads")
    again = costproof(*words, "-o", "a.csv", "--batch", "2", cwd=tmp_path)
    assert (again.code, again.stdout) == (0, "")
    assert (tmp_path / "a.csv").read_text() == done.stdout
    none = costproof("sweep", "llama", "--over", "heads=5", "--metric", "params", cwd=tmp_path)
    assert (none.code, none.stdout.splitlines()[1:]) == (3, [])
    wrong = costproof("sweep", "llama", "--over", "hidden", cwd=tmp_path)
    assert (wrong.code, "NAME=VALUES" in wrong.stderr) == (2, True)


OLMO2: dict[str, Any] = {
    "model_type": "olmo2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_a_model_without_formulas_is_counted_by_graphs_at_every_point(tmp_path: Path) -> None:
    """A layer has 4 x 32 x 32 + 3 x 32 x 48 weights in matrices, the head 32 x 64, a cached token 2 x 32 x 2 bytes."""
    (tmp_path / "c.json").write_text(json.dumps(OLMO2))
    made = sweep(f"hf:{tmp_path}/c.json", {"batch": [1, 2], "seq_len": [8, 200]}, metrics=["flops", "kv_cache_bytes"])
    frame, weights = made.frame(), 4 * 32 * 32 + 3 * 32 * 48 + 32 * 64
    assert list(zip(frame.batch, frame.seq_len, strict=True)) == [(1, 8), (2, 8)]
    assert list(frame["prefill.flops"]) == [b * (8 * 2 * weights + 4 * 32 * 8 * 8) for b in (1, 2)]
    assert list(frame["decode.flops"]) == [b * (2 * weights + 4 * 32 * 9) for b in (1, 2)]
    assert list(frame.kv_cache_bytes) == [b * 9 * 128 for b in (1, 2)]
    ((reason, one),) = made.count().refused.items()
    assert (reason[:39], one["count"]) == ("the run is longer than the model's cont", 2)


def test_a_sweep_by_graphs_is_checked_before_anything_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.tracers.static.static_ledger", None)
    with pytest.raises(BadInput, match="too many points"):
        sweep("hf:opt", {"batch": "1:2000"})
    with pytest.raises(BadInput, match="no such setting") as caught:
        sweep("hf:opt", {"hidden_size": [1, 2]})
    assert caught.value.what == "no such setting"
    assert str(caught.value.fix).startswith("did you mean image_size? A model without formulas takes its configuration")
    with pytest.raises(BadInput, match="neither formulas nor graphs"):
        graph_evaluator(object(), "x", ())

"""A snapshot folder is recognised by its files, and none of its code runs unasked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costproof import api
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.progress import silent
from costproof.ledger.run import run_options
from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr
from costproof.models.families.deepseek_ocr.vendor_code import REQUIRED, read_snapshot
from costproof.models.registry import load_target
from tests.models.vendor import SNAPSHOT, copied, rewritten, tree
from tests.support.running import costproof, files


def test_the_folder_is_recognised() -> None:
    found = read_snapshot(SNAPSHOT)
    assert (found.config_class, found.model_class) == (
        "modeling_deepseekocr.DeepseekOCRConfig",
        "modeling_deepseekocr.DeepseekOCRForCausalLM",
    )
    assert (found.config.text.hidden, found.config.text.experts, found.config.sam.layers) == (40, 12, 3)
    info = RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True).info()
    assert (info.name, info.implementation) == ("deepseek-ocr", "vendor")
    assert info.symbols["clip_patch"] == 14
    assert str(SNAPSHOT) not in repr(info)


@pytest.mark.parametrize("name", REQUIRED)
def test_every_file_of_the_code_must_be_there(name: str, tmp_path: Path) -> None:
    snapshot = copied(tmp_path)
    (snapshot / name).unlink()
    with pytest.raises(BadInput) as error:
        read_snapshot(snapshot)
    assert error.value.what == "not a whole snapshot of DeepSeek-OCR"
    assert error.value.got == f"no {name}"


@pytest.mark.parametrize("value", [None, "os.system", "modeling_deepseekocr", "modeling_deepseekocr.a.b", 3])
def test_the_classes_must_lie_in_the_remote_code(value: object, tmp_path: Path) -> None:
    snapshot = rewritten(copied(tmp_path), auto_map={"AutoConfig": "modeling_deepseekocr.X", "AutoModel": value})
    with pytest.raises(Problems) as error:
        read_snapshot(snapshot)
    (problem,) = error.value.problems
    assert problem.where == "$.auto_map.AutoModel"


def test_a_configuration_that_lies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problems) as error:
        read_snapshot(rewritten(copied(tmp_path), model_type="bert", tile_tag=None, extra=1))
    assert {p.where for p in error.value.problems} == {"$.model_type", "$.extra"}


def test_no_code_runs_without_the_flag(tmp_path: Path) -> None:
    snapshot = copied(tmp_path)
    mark = tmp_path / "ran"
    (snapshot / "modeling_deepseekocr.py").write_text(f"open({str(mark)!r}, 'w')\n")
    before = tree(snapshot)
    result = costproof("report", "snapshot", cwd=tmp_path)
    assert result.code == 2
    assert result.stderr.endswith(
        "error: counting this snapshot runs the Python code in its folder\n"
        "  where:    snapshot\n"
        "  expected: --trust-remote-code\n"
        "  fix:      read the code, then add --trust-remote-code; or count its configuration on the native "
        "classes: costproof report deepseek-ocr --config FOLDER/config.json\n"
    )
    assert not mark.exists()
    assert tree(snapshot) == before
    assert all(name.startswith("snapshot") for name in files(tmp_path))


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    result = costproof("report", "no/such", "--trust-remote-code", cwd=tmp_path)
    assert (result.code, files(tmp_path)) == (2, [])
    assert "there is no such folder" in result.stderr
    (tmp_path / "empty").mkdir()
    result = costproof("report", "empty", "--trust-remote-code", cwd=tmp_path)
    assert result.code == 2
    assert "no target reads this folder" in result.stderr
    (tmp_path / "empty" / "deepencoder.py").touch()
    result = costproof("report", "empty", "--trust-remote-code", cwd=tmp_path)
    assert result.code == 2
    assert "no config.json, modeling_deepseekocr.py, modeling_deepseekv2.py" in result.stderr


def test_a_file_that_the_code_imports_must_be_there(tmp_path: Path) -> None:
    snapshot = copied(tmp_path)
    path = snapshot / "modeling_deepseekocr.py"
    path.write_text("from .conversation import get_conv_template\n" + path.read_text())
    with pytest.raises(BadInput) as error:
        read_snapshot(snapshot)
    assert (error.value.what, error.value.got) == ("not a whole snapshot of DeepSeek-OCR", "no conversation.py")
    (snapshot / "conversation.py").write_text("from . import templates\n")
    with pytest.raises(BadInput) as error:
        read_snapshot(snapshot)
    assert error.value.got == "no templates.py"


def test_shared_key_value_heads_are_no_matter_of_an_option() -> None:
    snapshot = read_snapshot(SNAPSHOT)
    config = replace(snapshot.config, text=replace(snapshot.config.text, kv_heads=1))
    target = RemoteCodeOcr(config, snapshot=snapshot)
    target.check(target.workload())


def test_rows_are_counted_on_the_native_classes() -> None:
    with pytest.raises(Problems) as caught:
        RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True).workload(rows="40, 3x1+8")
    (problem,) = caught.value.problems
    assert (problem.where, problem.got) == ("--rows", "40, 3x1+8")
    assert "--config FOLDER/config.json --rows" in str(problem.fix)


def test_ranks_are_counted_on_the_native_classes() -> None:
    target = RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True)
    with pytest.raises(Problems) as caught:
        target.workload(tp=2, ep=2)
    (problem,) = caught.value.problems
    assert (problem.what, problem.where) == ("the vendor's code has no plan by which devices share it", "--tp, --ep")
    assert "--config FOLDER/config.json --tp" in str(problem.fix)
    assert not {"tp", "rank", "plan"} & {setting.name for setting in target.settings()}


def test_a_snapshot_brings_its_own_configuration() -> None:
    with pytest.raises(BadInput, match="has its own configuration"):
        load_target(str(SNAPSHOT), SNAPSHOT / "config.json", trusted=True)


def test_packages_that_cannot_run_the_code(tmp_path: Path) -> None:
    snapshot = rewritten(copied(tmp_path), transformers_version="4.46.3")
    path = snapshot / "modeling_deepseekv2.py"
    wanted = "from transformers.models.llama.modeling_llama import LlamaFlashAttention2\n"
    path.write_text(path.read_text().replace("import math\n", "import math\n" + wanted, 1))
    before = tree(snapshot)
    result = costproof(
        "report", "snapshot", "--trust-remote-code", "--sources", "dynamic", "--base-size", "128", cwd=tmp_path
    )
    assert result.code == 2
    assert "error: the installed packages cannot run this snapshot" in result.stderr
    assert "transformers 4.46.3" in result.stderr
    assert "LlamaFlashAttention2" in result.stderr
    assert "make vendor-env" in result.stderr
    assert tree(snapshot) == before


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"attention": "sdpa"}, "--attention"),
        ({"experts": "grouped_mm"}, "--experts"),
        ({"logits": "last"}, "--logits"),
        ({"batch": 2}, "--batch"),
        ({"new_tokens": 17}, "--new-tokens"),
        ({"preset": "text-only", "text_tokens": 1}, "--text-tokens"),
    ],
)
def test_what_the_code_cannot_do(settings: dict[str, object], where: str) -> None:
    with pytest.raises(Problems) as error:
        api.capture(str(SNAPSHOT), trust_remote_code=True, **settings)  # type: ignore[arg-type]
    assert [p.where for p in error.value.problems] == [where]


def test_run_options() -> None:
    target = RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True)
    options = run_options({"run": None, "layers": 2})
    cut = target.with_options(options)
    assert cut.options.device == "cpu"
    assert cut.info().cut == {"decoder layers": "2 of 3"}
    raised = target.with_options(run_options({"layers": 1}))  # one of each kind
    assert raised.info().cut == {"decoder layers": "2 of 3 (1 asked: one of each kind of layer)"}
    with pytest.raises(BadInput):
        target.with_options(run_options({"layers": 4}))
    chosen = target.with_options(run_options({"run": "cpu", "weights": str(SNAPSHOT)}))
    with pytest.raises(BadInput, match="the folder holds no checkpoint"):
        chosen.build_run(chosen.workload(), silent)

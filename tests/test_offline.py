"""Nothing leaves the machine: in runs, in the processes that they start, whatever a configuration names."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

import costproof
from costproof.cli.main import run
from costproof.ledger.errors import BadInput, CostproofError, Incomplete
from costproof.ledger.offline import OFFLINE, no_network, offline
from costproof.models.generic.huggingface import HuggingFace, huggingface
from costproof.processes import Pool
from tests.oracles.network import KERNEL, REPOSITORY, configurations, counted, outcome
from tests.support.running import costproof as command

OPT = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 64, "ffn_dim": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 256, "word_embed_proj_dim": 64,
}  # fmt: skip
FACTORY = """
import json, os, pathlib, torch
from huggingface_hub import constants
def make():
    told = constants.HF_HUB_OFFLINE, os.environ.get("HF_HUB_OFFLINE"), os.getpid()
    with pathlib.Path({!r}).open("a") as file:
        file.write(json.dumps(told) + "\\n")
    return torch.nn.Linear(2, 3), torch.zeros(4, 2)
"""


def state() -> dict[str, Any]:
    """What a run may not leave changed."""
    own = {n for n in ("connect", "connect_ex") if n in vars(socket.socket)}
    return {
        "env": {n: os.environ.get(n) for n in OFFLINE}, "hub": constants.HF_HUB_OFFLINE, "socket": own,
        "telemetry": constants.HF_HUB_DISABLE_TELEMETRY, "lookup": socket.getaddrinfo,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has imported the libraries, and is online."""
    for name in OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_libraries_are_switched_off_and_back_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    before = state()
    with offline():
        assert constants.HF_HUB_OFFLINE
        assert huggingface_hub.is_offline_mode()
        assert OFFLINE.items() <= os.environ.items()
        with pytest.raises(ZeroDivisionError), offline():
            1 / 0  # noqa: B018
        assert constants.HF_HUB_OFFLINE, "the inner one has switched it on"
    assert state() == before


def test_a_library_that_is_imported_meanwhile_is_online_afterwards(tmp_path: Path) -> None:
    code = """
import os
from costproof.ledger.offline import offline
with offline():
    from huggingface_hub import constants
    assert constants.HF_HUB_OFFLINE and constants.HF_HUB_DISABLE_TELEMETRY
assert constants.HF_HUB_OFFLINE is {0} and not constants.HF_HUB_DISABLE_TELEMETRY
"""
    for said, after in ((None, False), ("0", False), ("1", True)):
        given = {k: v for k, v in os.environ.items() if k not in OFFLINE} | ({"HF_HUB_OFFLINE": said} if said else {})
        subprocess.run([sys.executable, "-c", code.format(after)], check=True, env=given)


def test_threads_that_end_in_any_order_leave_it_off_until_the_last() -> None:
    ready, go = threading.Event(), threading.Event()

    def long() -> None:
        with offline():
            ready.set()
            go.wait()
        ended.append(constants.HF_HUB_OFFLINE)

    ended: list[bool] = []
    other = threading.Thread(target=long)
    with offline():
        other.start()
        ready.wait()
    assert constants.HF_HUB_OFFLINE
    go.set()
    other.join()
    assert ended == [False]


def test_no_other_machine_can_be_reached() -> None:
    before = state()
    server = socket.create_server(("127.0.0.1", 0))
    with server, no_network():
        socket.create_connection(server.getsockname()).close()
        for address in (("192.0.2.1", 80), ("2001:db8::1", 80), ("huggingface.co", 443)):
            with pytest.raises(OSError, match="costproof is offline, and this asks for"):
                socket.create_connection(address, timeout=1)
        with pytest.raises(OSError, match="costproof is offline"):
            socket.socket().connect_ex(("192.0.2.1", 80))
        told: list[str] = []

        def elsewhere() -> None:
            try:
                socket.create_connection(("127.0.0.1", 1), timeout=1)
            except OSError as error:
                told.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "costproof" not in told[0]
    assert state() == before


@pytest.mark.parametrize("how", ["capture", "derive", "peaks", "command"])
def test_every_verb_is_offline_and_its_processes_are(how: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / f"f_{how}.py").write_text(FACTORY.format(str(log)))
    target, before = f"{tmp_path}/f_{how}.py:make", state()
    if how == "command":
        assert command("capture", target, "--sources", "static", "-o", "c.json", cwd=tmp_path).code == 0
    else:
        choices = {"sources": ["static"], "counters": ["FlopCounterMode"]} if how == "capture" else {}
        getattr(costproof, how)(target, **choices)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(hub, variable) for hub, variable, _ in told} == {(True, "1")}
    if how == "capture":
        assert any(process != os.getpid() for *_, process in told)
    assert state() == before


class _Asks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert constants.HF_HUB_OFFLINE
        return x + 1


def test_the_user_is_online_again_after_a_count() -> None:
    before = state()
    costproof.count(_Asks(), torch.zeros(2))
    assert state() == before


def _environment(say: object) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in OFFLINE}


@pytest.mark.parametrize("ready", [(), ("json",)])
def test_other_processes_begin_offline(ready: tuple[str, ...]) -> None:
    with Pool[dict[str, str]](1, ready=ready) as pool:
        assert [o.result() for o in pool.results({"a": _environment})] == [OFFLINE]


def test_a_backbone_of_the_hub_is_not_asked_for(tmp_path: Path) -> None:
    """In a process of its own, as a command, with a Hub on this machine."""
    config = {
        "model_type": "detr",
        "backbone": REPOSITORY,
        "use_pretrained_backbone": False,
        "use_timm_backbone": False,
    }
    (tmp_path / "detr.json").write_text(json.dumps(config))
    with counted() as (address, asked):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "costproof", "report", "hf:detr.json"],
            cwd=tmp_path, env={**os.environ, "HF_ENDPOINT": address}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert asked == []
    assert done.returncode == 2
    assert "$.backbone in detr.json" in done.stderr
    assert "would have to be downloaded" in done.stderr


def test_kernels_of_the_hub_are_left_out_with_a_note() -> None:
    text = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {
        "model_type": "llava", "attn_implementation": {"": "eager", "text_config": f"{KERNEL}@v1:flash"},
        "text_config": {"model_type": "llama", "vocab_size": 40000, **text, "_attn_implementation": KERNEL},
        "vision_config": {"model_type": "clip_vision_model", **text, "experts_implementation": REPOSITORY},
    }  # fmt: skip
    made = HuggingFace(json.dumps(config), "x")
    read = made.config()
    assert "/" not in json.dumps([c._attn_implementation for c in (read, read.text_config, read.vision_config)])
    assert [n.partition(",")[0] for n in made.make(None, None).notes if "kernel" in n] == [
        f"$.attn_implementation names {KERNEL}@v1:flash",
        f"$.text_config._attn_implementation names {KERNEL}",
        f"$.vision_config.experts_implementation names {REPOSITORY}",
    ]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The package ``kernels``, as if it were installed; what it is asked for is listed."""
    import transformers.integrations.hub_kernels as hub
    import transformers.modeling_utils as modeling
    from transformers.utils import import_utils

    asked: list[str] = []
    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=lambda name, **_: asked.append(name)))
    monkeypatch.setattr(hub, "get_kernel_hub", lambda name, **_: asked.append(name), raising=False)
    for module in (hub, modeling, import_utils):
        monkeypatch.setattr(module, "is_kernels_available", lambda *_: True)
    return asked


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "paged|flash_attention_2", KERNEL])
def test_flash_attention_of_a_configuration_is_not_fetched(kernels: list[str], key: str, name: str) -> None:
    made = HuggingFace(json.dumps({**OPT, key: name}), "x").make(None, None)
    config: Any = made.module.config
    assert (kernels, config._attn_implementation) == ([], "sdpa")
    assert [note for note in made.notes if note.startswith(f"$.{key} ")]


def test_flash_attention_that_is_asked_for_is_not_fetched(kernels: list[str]) -> None:
    with pytest.raises(Incomplete, match="cannot build this model"):
        HuggingFace(json.dumps(OPT), "x").make(None, "flash_attention_2")
    assert kernels == []


PART = """
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.resnet import ResNetConfig
class Config(PretrainedConfig):
    model_type = "own"
    sub_configs = {"text_config": ResNetConfig}
    def __init__(self, text_config=None, **rest):
        self.text_config = ResNetConfig(**(text_config or {}))
        super().__init__(**rest)
class Model(PreTrainedModel):
    config_class = Config
    _supports_sdpa = _supports_flash_attn = True
    def __init__(self, config):
        super().__init__(config)
        if hasattr(config.text_config, "auto_map"):
            self.part = AutoModelForCausalLM.from_config(config.text_config)
        self.post_init()
"""


@pytest.mark.parametrize("part", [{}, {"auto_map": {"AutoModelForCausalLM": "own.Model"}}])
def test_trusted_code_is_not_asked_about_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: list[str], part: dict[str, Any]
) -> None:
    asked: list[str] = []

    def answered(text: str = "") -> str:
        asked.append(text)
        return "n"

    monkeypatch.setattr("builtins.input", answered)
    (tmp_path / "own.py").write_text(PART)
    code = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    own = {"model_type": "own", "auto_map": code, "_attn_implementation": "flash_attention_2"}
    (tmp_path / "config.json").write_text(json.dumps({**own, "text_config": {**part, "name_or_path": str(tmp_path)}}))
    maker = huggingface("", tmp_path, trusted=True)
    if part:
        with pytest.raises(CostproofError):
            maker.make(None, None)
    else:
        config: Any = maker.make(None, None).module.config
        assert config._attn_implementation == "sdpa"
    assert (asked, kernels) == ([], [])


def test_weights_of_a_backbone_are_never_loaded() -> None:
    """The published configurations of DETR ask for them; timm takes some of them from addresses of their own."""
    config = {"model_type": "timm_backbone", "backbone": "resnet50", "use_pretrained_backbone": True}
    assert HuggingFace(json.dumps(config), "x").config().use_pretrained_backbone is False


def test_files_of_weights_are_no_arguments_of_timm() -> None:
    """Its ``create_model`` loads ``checkpoint_path``, and older versions unpickle it."""
    arguments = {"checkpoint_path": "w.pth", "pretrained_cfg": {"file": "w.pth"}, "depth": 3}
    config = {"model_type": "timm_wrapper", "architecture": "resnet18", "model_args": arguments}
    assert HuggingFace(json.dumps(config), "x").config().model_args == {"depth": 3}


def test_code_that_a_part_names_is_neither_run_nor_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that transformers has no class for in that place: it would ask stdin whether to run the code."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'MARK')!r}, 'w')\nclass Model: pass\n")

    def answered(asked: str = "") -> str:
        (tmp_path / "ASKED").touch()
        return "y"

    monkeypatch.setattr("builtins.input", answered)
    code = {"auto_map": {"AutoModelForCausalLM": "evil.Model"}, "name_or_path": str(tmp_path)}
    vit = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "vision-encoder-decoder", "encoder": vit, "decoder": {"model_type": "resnet", **code}}
    (tmp_path / "c.json").write_text(json.dumps(config))
    assert run(["report", f"hf:{tmp_path / 'c.json'}", "--dry-run"]) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "evil.py"]
    # One that it has a class for is built by that class.
    config["decoder"] = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 1, **code}
    module: Any = HuggingFace(json.dumps(config), "x").make(None, None).module
    assert module.decoder.config.model_type == "gpt2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "evil.py"]


def test_trusted_code_lies_beside_its_configuration(tmp_path: Path) -> None:
    config = {"model_type": "x", "auto_map": {"AutoModel": f"{REPOSITORY}--modeling_x.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="nothing is downloaded") as error:
        huggingface("", tmp_path, trusted=True)
    assert str(error.value.where).startswith("$.auto_map.AutoModel in ")


def _with_backbones() -> list[str]:
    from transformers import CONFIG_MAPPING

    return [t for t in CONFIG_MAPPING if hasattr(CONFIG_MAPPING[t], "backbone_config")]


OTHERS = ("opt", "gpt_oss", "mamba", "llava", "clip", "timm_backbone", "timm_wrapper", "encoder-decoder", "rag", "bark")


@pytest.mark.slow
def test_types_that_have_backbones_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All types: ``python -m benchmarks.network``."""
    types = _with_backbones()
    assert len(types) > 30
    with counted() as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        for name in (*types, *OTHERS):
            for i, config in enumerate(configurations(name)):
                outcome(config, build=i == 0 and name in OTHERS)
        assert asked == []


@pytest.mark.thorough
@pytest.mark.slow
def test_all_types_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import CONFIG_MAPPING

    with counted() as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        for name in CONFIG_MAPPING:
            for i, config in enumerate(configurations(name)):
                outcome(config, build=i == 0)
        assert asked == []


def test_formulas_take_the_attention_of_the_run_whatever_a_configuration_asks_for(tmp_path: Path) -> None:
    plain = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 1024}  # fmt: skip
    found = []
    for name, more in (("plain", {}), ("asks", {"attn_implementation": KERNEL, "_attn_implementation": REPOSITORY})):
        (tmp_path / f"{name}.json").write_text(json.dumps({**plain, **more}))
        made = costproof.capture(f"hf:{tmp_path}/{name}.json", sources=["analytic"])
        found.append(made.ledgers[0].total("flops"))
        assert {f"$.{key}" for key in more} <= made.target.waived.keys()
    assert found[0] == found[1]

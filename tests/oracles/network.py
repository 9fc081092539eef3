"""Name hosts in configurations of all model types and count the requests that arrive."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

REPOSITORY: Final = "someone/some-repo"


KERNEL: Final = "kernels-community/flash-attn2"


_COMMON: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("_name_or_path", "name_or_path", "tokenizer_class", "processor_class"), REPOSITORY),
    **dict.fromkeys(("adapter_name_or_path", "base_model_name_or_path", "pretrained_model_name_or_path"), REPOSITORY),
    "adapters": {"default": REPOSITORY},
    "peft_config": {"base_model_name_or_path": REPOSITORY},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [REPOSITORY]},
    "use_kernels": True,
    "kernel_config": {"kernel_mapping": {"RMSNorm": f"{REPOSITORY}:RMSNorm"}},
    "attn_implementation": KERNEL,
    "_attn_implementation": f"paged|{KERNEL}",
    "experts_implementation": REPOSITORY,
}


_BACKBONE: Final = {"backbone_config": None, "use_pretrained_backbone": True}


HOSTILE: Final[Mapping[str, Mapping[str, Any]]] = {
    "names": _COMMON,
    "a model of the Hub": {**_COMMON, **_BACKBONE, "backbone": REPOSITORY, "use_timm_backbone": False},
    "timm from the Hub": {**_COMMON, **_BACKBONE, "backbone": f"hf-hub:{REPOSITORY}", "use_timm_backbone": True},
    "timm": {**_COMMON, **_BACKBONE, "backbone": "resnet50", "use_timm_backbone": True, "backbone_kwargs": {"a": 1}},
}


def configurations(model_type: str) -> Iterator[dict[str, Any]]:
    """Yield configurations of a type with hostile names in it, and in each of its parts."""
    from transformers import CONFIG_MAPPING

    parts = [name for name in getattr(CONFIG_MAPPING[model_type], "sub_configs", {}) if name != "backbone_config"]
    for names in HOSTILE.values():
        yield {"model_type": model_type, **names, **{part: dict(_COMMON) for part in parts}}


class _Counting(BaseHTTPRequestHandler):
    asked: Final[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.send_error(404)

    do_HEAD = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def counted() -> Iterator[tuple[str, list[str]]]:
    """A server's address, and the list of what it and other machines are asked for meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Counting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked = _Counting.asked
    asked.clear()
    lookup, connect = socket.getaddrinfo, socket.socket.connect

    def looked_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", None):
            asked.append(f"look up {host!r}")
            raise socket.gaierror("no such host")
        return lookup(host, *args, **kwargs)

    def connected(sock: socket.socket, address: Any) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and address[0] != "127.0.0.1":
            asked.append(f"connect {address}")
            raise ConnectionRefusedError
        connect(sock, address)

    socket.getaddrinfo, socket.socket.connect = looked_up, connected  # type: ignore[method-assign, assignment]
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        socket.getaddrinfo, socket.socket.connect = lookup, connect  # type: ignore[method-assign]
        server.shutdown()
        server.server_close()


def outcome(config: Mapping[str, Any], *, build: bool) -> str:
    """Read a configuration, and build its model on meta; say what came of it, in one word."""
    from costproof.ledger.errors import CostproofError
    from costproof.models.generic.huggingface import HuggingFace

    made = HuggingFace(json.dumps(config), "config.json")
    try:
        made.config()
        if build:
            made.make(None, None)
    except CostproofError as error:
        return type(error).__name__
    return "built" if build else "read"

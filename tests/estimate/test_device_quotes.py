"""The figures of device files, read a second time from their quotes: the number, its unit, and its column.

A quote says what it is about by a key (``memory_bw=3350``), by the columns of a table, or by a number with its unit. It
is read so, and compared with the figure; a rate in another unit, in both directions together, of another device or with
sparsity is another figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import pytest

from costproof import api

G, T, P = (Fraction(10) ** n for n in (9, 12, 15))
UNITS: Final = {
    "rate": {"GB/sec": G, "GB/s": G, "GBps": G, "Go/s": G, "TB per second": T, "TB/sec": T, "TB/s": T},
    "memory": {"GB": G, "Go": G},
    "flops": {"TFLOPS": T, "TFLOPs": T, "TF": T, "PFLOPS": P, "PF": P},
    "clock": {"MHz": Fraction(10**6)},
}
KINDS: Final = {"bandwidth": "rate", "interconnect": "rate", "network": "rate", "memory": "memory", "clock": "clock"}
N: Final = r"(\d[\d,]*(?:\.\d+)?(?:e\d+)?)"
DTYPES: Final = {
    "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "fp8": "float8",
    "tf32": "tf32", "fp32": "float32", "fp64": "float64", "int8": "int8",
    "fp4": "float4",
}  # fmt: skip
KEYS: Final[list[tuple[str, str, int | Fraction]]] = [
    ("bandwidth", rf"memory_bw={N}", G),
    ("bandwidth", rf"\bmem_bw: {N}", 1),
    ("bandwidth", rf'"hbm_bw_gbps": {N}', G),
    ("bandwidth", rf"mem_bw_bytes_per_second=int\({N}\)", 1),
    ("interconnect", rf"intra_node_bw_per_device={N}", G),
    ("interconnect", rf"intra_node_bw: {N} ", 1),
    ("interconnect", rf"nvl_bw_table = .* 2: {N}", G),  # of NVLink 2, in one direction
    ("interconnect", rf"NVLink: {N}GB/秒|vs\. {N} GB/sec for V100", G / 2),  # both directions together
    ("network", rf"inter_node_bw_per_device(?:: int )?= ?{N}", G),
    ("network", rf"inter_node_bw: {N} ", 1),
    ("network", rf'"host_network_card_count": "\d+x {N}Gb', G / 8),  # a card for each device, in bits
    ("network", rf'"host_networking": "8x .* {N}Gb/s \+', G / 8),
    ("network", rf"NVIDIA Quantum-2 IB \| 8x{N} \|", G / 8),
    ("memory", rf"memory_budget_per_device={N}", G),
    ("memory", rf"GB of HBM3 memory – {N}GB per card", G),
    ("memory", rf"mem_capacity: {N} ", 1),
    ("memory", rf"VRAM \(GiB\) .* - {N}$", 2**30),
    ("node", rf'(?:num_gpus_per_(?:node|rack): |"accelerators_per_node": ){N}', 1),
    ("node", rf"(?:connected |board of ){N}(?:-GPU| accelerators)", 1),
    ("node", rf"(?:TPU Pod size \| |GB[23]00 NVL|Most compute nodes contain ){N}", 1),
    ("links", rf'"{N}x 4th Gen NVLink', 1),
    ("links", rf"ICI ports per chip \| {N}", 1),
]
COLUMN: Final = {
    "h100-sxm": 0, "h100-pcie": 1, "l40": 0, "l40s": 1, "v100-sxm2-16gb": 1, "v100-sxm2-32gb": 1,
    "a100-sxm-40gb": 2, "a100-sxm-80gb": 2, "a100-pcie-40gb": 2, "a100-pcie-80gb": 2, "a10": 0,
}  # fmt: skip
"""Column of a device in tables that compare devices."""
LABELS: Final = {"bandwidth": "andwidth|帯域幅|Пропускная", "memory": "Memory|メモリ", "clock": "Boost Clock"}


def number(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def with_unit(text: str, kind: str) -> Iterator[Fraction]:
    """Yield the numbers of a text that stand before a unit of a kind, in the unit without prefix."""
    units = UNITS[kind]
    names = "|".join(sorted(map(re.escape, units), key=len, reverse=True))
    for found, unit in re.findall(rf"(\d[\d,\u00a0 ]*(?:\.\d+)?) ?({names})(?![\w/])", text):
        yield number(re.sub(r"[\u00a0 ]", "", found)) * units[unit]


def cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.strip(" |").split(" | ")]


def figure_in(name: str, what: str, text: str, others: str) -> Fraction | None:
    """Read a figure of a device from a quote; ``None`` if it does not say it.

    Args:
        others: all quotes of the figure, in which headers and notes of tables stand.
    """
    for about, pattern, scale in KEYS:
        if about == what and (found := re.search(pattern, text)):
            return number(next(filter(None, found.groups()))) * scale
    if what == "interconnect" and (lane := re.search(r'intra_node_bw_per_device=_bandwidths\["(PCIe-\d)"\]', text)):
        row = re.search(rf'"{lane[1]}": {N}', others)
        return number(row[1]) * G if row else None
    row_cells = cells(text)
    if what in ("links", "interconnect") and re.match(r"(NVLink \d|MI\d+X) \|", text):
        header = next(cells(line) for line in others.splitlines() if line.startswith("Interconnect | "))
        title = "Links" if what == "links" else "Unidirection"
        cell = next(c for h, c in zip(header, row_cells, strict=True) if h.startswith(title))
        return number(cell.removesuffix(" GBps")) * (1 if what == "links" else G)
    said: Fraction | None
    if what in KINDS:
        several = name in COLUMN and len(row_cells) > 2
        if several and re.search(LABELS.get(what, "$^"), row_cells[0]):
            every = [*with_unit(row_cells[1 + COLUMN[name]], KINDS[what])]
            said = next((n for n in every if f"-{n / G}gb" in name), every[0])  # "32 GB / 16 GB" are two devices
        else:
            said = None if several else next(with_unit(text, KINDS[what]), None)
        return said / 2 if said and re.search("[Bb]idirectional", text) else said
    return None if what in ("links", "node") else peak_in(name, what, text, others)


def peak_in(name: str, what: str, text: str, others: str) -> Fraction | None:
    """Read a peak: the dtype from a key or a label, density from its column or from a note."""
    dtype, density, unit = what.split()
    dense, row = density == "dense", cells(text)
    table = re.match(r'"[\w-]+": ClusterInfo\(|_math_throughputs = ', text)
    if table and unit == "matrix":
        key = {"tf32": "float32", "float8": "fp8"}.get(dtype, dtype)
        found = re.search(rf"\b(?<!b){key}={N}", text)
        return number(found[1]) * T if found else None
    for key, of in DTYPES.items():
        if of != dtype or unit != "matrix" or not dense:
            continue
        if found := re.search(rf'^{key}_tc_flops: {N}|"{key}": {N}|{key}_ops_per_second=int\({N}\)', text):
            raw, scaled, rate = found.groups()
            return number(scaled) * T if scaled else number(raw or rate)
    titles = cells(next((line for line in others.splitlines() if line.startswith("Accelerator \\ ")), ""))
    short = {"bfloat16": "bf16", "float16": "fp16", "float8": "fp8", "float4": "fp4"}.get(dtype, dtype)
    if len(row) == len(titles) and short in titles and row != titles and "TFLOPS" in titles[0]:
        return number(row[titles.index(short)]) * T
    label = re.match(
        r"(?:Peak |.*Производительность )?(Matrix |Vector )?(BFLOAT16|[BT]?F[P]?(?:4|8|16|32|64))(?= |:)( Tensor)?",
        text,
    )
    if label is None:
        found = re.search(rf"\(bf16\) \| {N} TFLOPs", text) if dtype == "bfloat16" else None
        return number(found[1]) * T if found else None
    matrix = label[1] == "Matrix " or label[3] is not None or label[2] not in ("FP32", "FP64")
    if DTYPES[label[2].lower()] != dtype or matrix != (unit == "matrix"):
        return None
    if amd := re.fullmatch(rf".* - \d+ - {N}", text):
        return number(amd[1]) * T if "Peak TFLOPS" in others else None
    if "| Sparse |" in others:  # Matrix, Sparse
        return number(row[-2 if dense else -1]) * T
    if "with sparsity: " in text or ":" in text:
        first, _, sparse = text.partition(", with sparsity: ")
        return next(with_unit(first if dense else sparse, "flops"), None)
    if "| | L40 | L40S |" in others:
        each = (len(row) - 1) // 2
        cell = row[1 + each * COLUMN[name] + (not dense)]
        return number(cell.rstrip("*")) * T if cell.endswith("*") != dense else None
    if text.endswith("| Sparsity"):
        sparse_peak = next(with_unit(text, "flops"))
        return sparse_peak / 2 if dense else sparse_peak
    cell = row[1 + COLUMN.get(name, 0)]
    if "TFLOPS" in row[0]:
        both = re.fullmatch(r"([\d.]+)(?:/([\d.]+)3)?", cell)  # the 3 is that of a footnote on sparsity
        assert both is not None
        return number(both[1 if dense else 2]) * T
    said = next(with_unit(cell.rstrip("*"), "flops"), None)
    return said / 2 if said and cell.endswith("*") and dense else said


def quoted(name: str) -> Iterator[tuple[str, int, str, Fraction | None]]:
    """Yield (figure, its value, a quote, the figure as the quote says it) of a device."""
    device = api.machine(name)
    figures = {f"{p.dtype} {p.sparsity} {p.unit}": (p.flops, p.quotes) for p in device.peaks}
    figures |= {what: (figure.value, figure.quotes) for what, figure in device.figures().items()}
    for what, (value, quotes) in figures.items():
        others = "\n".join(quote.text for quote in quotes)
        for quote in quotes:
            yield what, value, quote.text, figure_in(name, what, quote.text, others)


TF: Final = 10**12
OTHERWISE: Final[dict[tuple[str, str], set[int]]] = {
    # Rounded, in one of the sources or by halving.
    ("a10", "bandwidth"): {600_200 * 10**6},
    ("h100-sxm", "bfloat16 dense matrix"): {989_500 * 10**9},
    ("h100-sxm", "float16 dense matrix"): {989_500 * 10**9},
    ("h100-pcie", "bfloat16 dense matrix"): {756_500 * 10**9},
    ("h100-pcie", "float16 dense matrix"): {756_500 * 10**9},
    ("h200-sxm", "float16 dense matrix"): {989_400 * 10**9},
    ("h200-sxm", "bfloat16 sparse matrix"): {1_978_900 * 10**9},
    ("l40", "bfloat16 dense matrix"): {181 * TF},
    ("l40", "float16 dense matrix"): {181 * TF},
    ("l40", "tf32 dense matrix"): {90 * TF},
    ("l40s", "bfloat16 dense matrix"): {362 * TF},
    ("l40s", "float16 dense matrix"): {362 * TF},
    ("mi355x", "float16 dense matrix"): {2500 * TF},
    ("mi355x", "float8 dense matrix"): {5000 * TF},
    ("mi355x", "float4 dense matrix"): {10_000 * TF},
    ("tpu-v5e", "bandwidth"): {820 * 10**9},
    ("tpu-v6e", "bandwidth"): {1640 * 10**9},
    ("tpu-v6e", "bfloat16 dense matrix"): {920 * TF},
    ("tpu-v6e", "float8 dense matrix"): {920 * TF},
    # With sparsity, in a table that has no column for it.
    ("h200-sxm", "bfloat16 dense matrix"): {1979 * TF},
    ("h200-sxm", "float8 dense matrix"): {3958 * TF},
    # Nodes with cards of 200 Gb/s.
    ("h20", "network"): {25 * 10**9},
    ("h200-sxm", "network"): {25 * 10**9},
}
"""What other quotes of a figure say; each is known, and none is the figure."""
NO_FIGURES: Final = (
    # Headers of tables, and notes on columns
    "| Type | AMD", "| | L40 | L40S |", "Data Type | VFMA", "Data Center GPU |",
    "GPU Board Form Factor", "Accelerator \\ TF",
    "Interconnect | Lane", "Interconnect | Link", "The HGX variant", "The following are theoretical",
    "The tables below",
    "The third column", "Peak-performance capabilities",
    "theoretical peak TFLOPS", "``hbm_bw_gbps`` is", "3) Effective", "1) Peak rates", "* With Sparsity", "* Shown with",
    # References to another line of a source
    '"A100-PCIe-40GB": ClusterInfo(… math', '"A100-PCIe-80GB": ClusterInfo(… math',
    '"A100-SXM-40GB": ClusterInfo(… math',
    '"A100-SXM-80GB": ClusterInfo(… math', '"mi325x": {… "peak_tflops"', "_bandwidths = ", "H200 GPUs are the same",
    # Other figures, which show how a source counts: rates by clock, integers, other links, the shape of a node
    "(8, 6): MathThroughput", "NVIDIA A10 PCIe vs NVIDIA Quadro RTX 4000 … Буст", '"L4": ClusterInfo(… int8',
    "INT8 Tensor",
    "AMD publishes `2.5 PFLOPS`", "NVIDIA NVLink 4 |", "NVIDIA DGX A100 has 6", "I run the nccl-tests",
    "inter_node_bw: 9000",
    "Interconnect topology |",
)  # fmt: skip
"""Beginnings of the quotes that do not say the figure by themselves."""


@pytest.mark.parametrize("name", api.machines())
def test_every_figure_is_what_its_quotes_say(name: str) -> None:
    read: dict[str, set[Fraction]] = {}
    values = {}
    for what, value, _, said in quoted(name):
        values[what] = value
        read.setdefault(what, set()).update(() if said is None else (said,))
    for what, value in values.items():
        assert read[what] == {value} | OTHERWISE.get((name, what), set()), what


def test_every_quote_is_read_or_listed() -> None:
    unread = {text for name in api.machines() for _, _, text, said in quoted(name) if said is None}
    assert sorted(text for text in unread if not text.startswith(NO_FIGURES)) == []
    assert [begin for begin in NO_FIGURES if not any(text.startswith(begin) for text in unread)] == []


def test_units_directions_and_columns_decide() -> None:
    """Read by hand: bytes in place of bits, one direction of two, a device's column, dense in place of sparse."""
    assert figure_in("h100-sxm", "network", '"host_network_card_count": "8x 400Gb Infiniband"', "") == 50 * G
    ici = "Bidirectional inter-chip interconnect (ICI) bandwidth (per chip) | 400 GBps"
    assert figure_in("tpu-v5e", "interconnect", ici, "") == 200 * G
    bandwidth = "GPU メモリ帯域幅 | 3,350 GB/sec | 2000 GB/sec"
    assert [figure_in(x, "bandwidth", bandwidth, "") for x in ("h100-sxm", "h100-pcie")] == [3350 * G, 2000 * G]
    tf32 = "TF32 Tensor コア | 989 TFLOPS* | 756 TFLOPS*"
    assert figure_in("h100-sxm", "tf32 dense matrix", tf32, "") == Fraction(989, 2) * T
    assert figure_in("h100-sxm", "tf32 sparse matrix", tf32, "") == 989 * T
    assert figure_in("rtx-5090", "bandwidth", "une bande passante maximale de 1 792 Go/s", "") == 1792 * G
    assert figure_in("rtx-5090", "memory", "une bande passante maximale de 1 792 Go/s", "") is None

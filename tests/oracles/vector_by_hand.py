"""Vector work of every operator that can give some, by hand: the operators, a call, its FLOPs, and why.

A product of numbers is written as it is derived: what is done to an element times the elements, and what is done to a
row times the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from costproof.opgraph.graph import OpCall, Value
from tests.support.opcalls import call, value

X: Final = (2, 3)
"""Of most inputs and results: 2 rows of 3, 6 elements."""


class Case(NamedTuple):
    """One call of one operator."""

    name: str
    op: OpCall
    flops: int
    why: str


ELEMENTS: Final = {
    1: {
        "one primitive": (
            "add sub rsub mul div pow float_power square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin "
            "cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfinv relu relu6 maximum "
            "minimum fmax fmin clamp clamp_min clamp_max floor ceil round trunc frac sign sgn remainder fmod "
            "floor_divide hypot copysign abs angle neg"
        ),
        "x pi / 180, or x 180 / pi: a product with a constant": "deg2rad rad2deg",
        "x > t ? x : v: a comparison": "threshold",
        "a product of a pair": "outer kron",
    },
    2: {
        "x sigmoid(x): sigmoid, multiply": "silu",
        "x > 0 ? x : a x: compare, multiply": "leaky_relu rrelu rrelu_with_noise prelu _prelu_kernel",
        "|x| > l ? x : 0: absolute value, compare": "hardshrink",
        "x - tanh(x): tanh, subtract": "tanhshrink",
        "x log(y): log, multiply": "xlogy",
        "a sigmoid(b) for the halves a and b: sigmoid, multiply": "glu",
        "t + a b, or t + a / b: multiply or divide, add": "addcmul addcdiv",
        "a product of a pair, and an addition": "addr",
    },
    3: {
        "clamp(x + 3, 0, 6) / 6: add, clamp, divide": "hardsigmoid",
        "x / (1 + |x|): absolute value, add, divide": "softsign",
        "log(x / (1 - x)): subtract, divide, log": "logit",
        "a + w (b - a): subtract, multiply, add": "lerp",
        "sin(pi x) / (pi x): multiply, sin, divide": "sinc",
        "a1 b2 - a2 b1: two products, subtract": "cross linalg_cross",
        "compared with itself and with both infinities": "nan_to_num",
    },
    4: {
        "x > 0 ? x : a (exp(x) - 1): compare, exp, subtract, multiply": "elu",
        "x clamp(x + 3, 0, 6) / 6: add, clamp, multiply, divide": "hardswish",
        "|x| > l ? x - sign(x) l : 0: absolute value, compare, multiply, subtract": "softshrink",
        "x > t ? x : log(1 + exp(x)): compare, exp, add, log": "softplus",
        "-log(1 + exp(-x)): negate, exp, add, log; the sign in front goes into the sum":
            "logsigmoid log_sigmoid log_sigmoid_forward",
        "log(exp(a) + exp(b)): two exponentials, add, log": "logaddexp",
    },
    5: {
        "exp(x - max) / sum: max, subtract, exp, sum, divide": "softmax _softmax _safe_softmax",
        "s (x > 0 ? x : a (exp(x) - 1)): compare, exp, subtract, two products": "selu",
        "x > 0 ? x : a (exp(x / a) - 1): compare, divide, exp, subtract, multiply": "celu",
        "x 0.5 (1 + erf(x / sqrt 2)): divide, erf, add, two products": "gelu",
    },
    6: {
        "x - max - log(sum(exp(x - max))): max, subtract, exp, sum, log, subtract": "log_softmax _log_softmax",
        "a softmax of -x: negate, and 5": "softmin",
        "x tanh(softplus(x)): 4, tanh, multiply": "mish",
    },
}  # fmt: skip
"""FLOPs of an element of the result -> why -> operators."""

COMPARED: Final = "eq ne lt le gt ge isnan isinf isfinite isclose signbit heaviside"
"""1 for an element of the result, which is yes or no."""

READ: Final = {
    (1, 0): {
        "add": "sum cumsum",
        "multiply": "prod cumprod",
        "add; a division for a row is not counted apart": "mean",
        "compare": "amax amin cummax cummin max min",
        "compare with 0": "any all _is_all_true _is_any_true count_nonzero",
        "compare, by convention once": "topk sort argsort msort argmax argmin kthvalue median nanmedian mode unique "
                                       "_unique _unique2 unique_consecutive unique_dim multinomial",
        "add a weight where its number says": "bincount",
    },
    (2, 0): {"compare, add": "nansum", "compare twice": "aminmax"},
    (4, 0): {
        "mean, subtract, square, mean": "var var_mean",
        "compare, exp, add, log": "logcumsumexp",
    },
    (4, 1): {"mean, subtract, square, mean; a root": "std std_mean"},
    (4, 2): {"max, subtract, exp, sum; log, add": "logsumexp"},
    (2, 1): {"square, add; a root": "norm linalg_vector_norm frobenius_norm linalg_norm linalg_matrix_norm"},
    (7, 0): {"two ends looked for; compare with both, subtract, multiply, add": "histc"},
}  # fmt: skip
"""FLOPs of an element that is read and of a result -> why -> operators."""


def _named(op: str, out: Value, attrs: Mapping[str, Any] | None = None, /, **tensors: Value) -> OpCall:
    return call(op, list(tensors.values()), [out], attrs, tensors)


def cases() -> Iterator[Case]:
    """Yield a case for every operator, and more for those of several ways."""
    x, row = value(*X), value(2)
    for each, kinds in ELEMENTS.items():
        for why, names in kinds.items():
            for name in names.split():
                given = [x, x, x] if name in ("addcmul", "addcdiv") else [x, x]
                yield Case(name, call(name, given, [x]), each * 6, why)
    for name in COMPARED.split():
        yield Case(name, call(name, [x, x], [value(*X, dtype="bool")]), 6, "compare")
    for (each, more), kinds in READ.items():
        for why, names in kinds.items():
            for name in names.split():
                yield Case(name, call(name, [x], [row]), each * 6 + more * 2, why)
    for source in (_more_of_elements, _norms, _distances, _attention, _spectra, _matrices, _windows, _recurrent, _rest):
        yield from source()


def _more_of_elements() -> Iterator[Case]:
    x, y = value(*X), value(2, 4)
    yield Case(
        "gelu",
        call("gelu", [x], [x], {"approximate": "tanh"}),
        8 * 6,
        "0.5 x (1 + tanh(c (x + a x^3))): a cube, four products, two additions, tanh",
    )
    yield Case("polar", call("polar", [x, x], [value(*X, dtype="complex64")]), 4 * 6, "cos, sin, two products")
    yield Case("ldexp", call("ldexp", [x, value(2, 1, dtype="int32")], [x]), 6 + 2, "x 2^n: a product each, 2 powers")
    yield Case("diff", call("diff", [y], [x]), 6, "3 differences in each of 2 rows of 4")
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"):
        yield Case(name, call(name, [x], [x], {"training": True}), 2 * 6, "mask, scale")
    yield Case("native_dropout", call("native_dropout", [x], [x]), 2 * 6, "mask, scale; it trains unless it is told")
    yield Case("bernoulli", call("bernoulli", [x], [x]), 6, "compare a draw with its probability")
    yield Case("normal", call("normal", [x, x], [x]), 2 * 6, "mean + deviation * draw: multiply, add")
    for name in ("allclose", "equal"):
        yield Case(name, call(name, [x, x], [value(dtype="bool")]), 6, "compare a pair")
    yield Case("trace", call("trace", [x], [value()]), 2, "2 elements on the diagonal of 2 x 3: add")


def _norms() -> Iterator[Case]:
    x, w, image = value(*X), value(3), value(2, 6, 5)
    of_row, channel = {"input": x, "weight": w, "bias": w}, value(6)
    for name in ("layer_norm", "native_layer_norm"):
        yield Case(
            name,
            _named(name, x, {"normalized_shape": [3]}, **of_row),
            7 * 6 + 2 * 2,
            "mean, subtract, square, mean, normalise, scale, shift; for a row add epsilon, root",
        )
    for name in ("rms_norm", "_fused_rms_norm"):
        yield Case(
            name,
            _named(name, x, {"normalized_shape": [3]}, input=x, weight=w),
            4 * 6 + 2 * 2,
            "square, mean, normalise, scale; for a row add epsilon, root",
        )
    for name in ("group_norm", "native_group_norm"):
        of_group = {"input": image, "weight": channel, "bias": channel}
        yield Case(
            name,
            _named(name, image, {"num_groups": 3}, **of_group),
            7 * 60 + 2 * (2 * 3),
            "as a layer norm, in rows of 2 samples and 3 groups",
        )
    yield Case(
        "instance_norm",
        call("instance_norm", [image], [image]),
        5 * 60 + 2 * (2 * 6),
        "as a layer norm without scale and shift, in rows of 2 samples and 6 channels",
    )
    stored = {"input": image, "weight": channel, "bias": channel}
    for name in ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"):
        yield Case(
            name,
            _named(name, image, {"training": True}, **stored),
            7 * 60 + 2 * 6,
            "mean, subtract, square; subtract, normalise, scale, shift; for a channel add epsilon, root",
        )
    for name in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update"):
        yield Case(
            name,
            _named(name, image, **stored),
            4 * 60 + 2 * 6,
            "statistics are stored: subtract, normalise, scale, shift; for a channel add epsilon, root",
        )
    yield Case(
        "_batch_norm_with_update",
        _named("_batch_norm_with_update", image, **stored),
        7 * 60 + 2 * 6,
        "it trains: as a batch norm that makes its statistics",
    )
    for name in ("_weight_norm", "_weight_norm_interface"):
        yield Case(
            name,
            _named(name, x, v=x, g=value(2, 1)),
            3 * 6 + 2 * 2,
            "square, add, multiply; for a row a root and a division",
        )
    yield Case("norm_except_dim", call("norm_except_dim", [x], [value(2, 1)]), 2 * 6 + 2, "square, add; a root a row")


def _distances() -> Iterator[Case]:
    x, y = value(*X), value(4, 3)
    yield Case("dist", call("dist", [x, x], [value()]), 3 * 6 + 1, "subtract, square, add; a root")
    yield Case(
        "pairwise_distance",
        call("pairwise_distance", [x, x], [value(2)]),
        4 * 6 + 2,
        "subtract, add epsilon, square, add; a root for a pair of rows",
    )
    yield Case(
        "cosine_similarity",
        call("cosine_similarity", [x, x], [value(2)]),
        6 * 6 + 6 * 2,
        "three sums of products; two roots, two comparisons, a product, a division for a pair of rows",
    )
    for name in ("cdist", "_cdist_forward", "_euclidean_dist"):
        yield Case(
            name,
            _named(name, value(2, 4), x1=x, x2=y),
            3 * (8 * 3) + 8,
            "8 pairs of rows of 3: subtract, square, add; a root for a pair",
        )
    for name in ("pdist", "_pdist_forward"):
        yield Case(
            name,
            _named(name, value(6), input=y),
            3 * (6 * 3) + 6,
            "6 pairs of 4 rows of 3: subtract, square, add; a root for a pair",
        )


SDPA: Final = (
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable"
)
FIXED: Final = (
    "_flash_attention_forward _flash_attention_forward_no_dropout_inplace _efficient_attention_forward "
    "flash_attn._flash_attn_forward flash_attn.flash_attn_func "
    "flash_attn.fwd flash_attn2.fwd flash_attn_func _vllm_fa3_C.fwd flash_attn3.fwd flash_attn_3._flash_attn_forward "
    "flash_attn_3.fwd vllm_flash_attn3.fwd"
)
PACKED: Final = (
    "_vllm_fa2_C.varlen_fwd flash_attn._flash_attn_varlen_forward flash_attn.flash_attn_varlen_func "
    "flash_attn.varlen_fwd flash_attn2.varlen_fwd flash_attn_varlen_func"
)
CACHED: Final = (
    "_vllm_fa2_C.fwd_kvcache flash_attn.flash_attn_with_kvcache flash_attn.fwd_kvcache flash_attn2.fwd_kvcache "
    "flash_attn_with_kvcache"
)


def _attention() -> Iterator[Case]:
    why = "for a score: scale, and a softmax of 5"
    for name in SDPA.split():
        q, k = value(1, 2, 5, 4), value(1, 2, 7, 4)
        yield Case(name, call(name, [q, k, k], [q]), 6 * (2 * 5 * 7), why)
        masked = _named(name, q, query=q, key=k, value=k, attn_mask=value(5, 7))
        yield Case(name, masked, 7 * (2 * 5 * 7), f"{why}, and the addition of a mask")
    heads_first = {"query": value(1, 2, 5, 4), "key": value(1, 2, 7, 4), "value": value(1, 2, 7, 4)}
    yield Case("_cudnn_attention_forward", _named("_cudnn_attention_forward", q, **heads_first), 6 * (2 * 5 * 7), why)
    triton = {"q": heads_first["query"], "k": heads_first["key"], "v": heads_first["value"]}
    yield Case("_triton_scaled_dot_attention", _named("_triton_scaled_dot_attention", q, **triton), 420, why)
    flexible = _named("costproof.flex_attention", q, {"kept": 30, "score_flops": 3}, **heads_first)
    more = f"{why}, and 3 of the function of scores"
    yield Case("costproof.flex_attention", flexible, 9 * (2 * 5 * 7), more)
    for name in ("torch_attn._varlen_attn", "torch_attn._varlen_attn_out", "costproof.nested_attention"):
        starts, rows, keys = value(2, dtype="int32"), value(5, 2, 4), value(7, 2, 4)
        packed = {"query": rows, "key": keys, "value": keys, "cu_seq_q": starts, "cu_seq_k": starts}
        yield Case(name, _named(name, rows, {"max_q": 5, "max_k": 7}, **packed), 6 * (2 * 5 * 7), why)
    q, k = value(1, 5, 2, 4), value(1, 7, 2, 4)
    for name in FIXED.split():
        torch_s = name.startswith(("_flash_attention", "_efficient"))
        tensors = {"query": q, "key": k, "value": k} if torch_s else {"q": q, "k": k, "v": k}
        yield Case(name, _named(name, q, **tensors), 6 * (2 * 5 * 7), why)
    for name in PACKED.split():
        q, k, starts = value(5, 2, 4), value(7, 2, 4), value(2, dtype="int32")
        tensors = {"q": q, "k": k, "v": k, "cu_seqlens_q": starts, "cu_seqlens_k": starts}
        yield Case(name, _named(name, q, {"max_seqlen_q": 5, "max_seqlen_k": 7}, **tensors), 6 * (2 * 5 * 7), why)
    for name in CACHED.split():
        q, k = value(1, 1, 2, 4), value(1, 7, 2, 4)
        cache = {"k_cache": k, "v_cache": k} if name.endswith("with_kvcache") else {"kcache": k, "vcache": k}
        yield Case(name, _named(name, q, {}, q=q, **cache), 6 * (2 * 1 * 7), why)


def _spectra() -> Iterator[Case]:
    # 5 n log2 n for n complex numbers: 5 * 8 * 3 of a row of 8, 5 * 32 * (2 + 3) of 4 x 8; half of it with real ones.
    full, half = value(4, 8, dtype="complex64"), value(4, 5, dtype="complex64")
    real, each, whole = value(4, 8), 4 * 5 * 8 * 3, 5 * 32 * 5
    for end, flops in (("", each), ("2", whole), ("n", whole)):
        for kind in ("fft", "ifft"):
            name = f"fft_{kind}{end}"
            yield Case(name, _named(f"aten.{name}", full, {}, self=full), flops, "5 n log2 n")
        for kind in ("rfft", "ihfft"):
            name = f"fft_{kind}{end}"
            yield Case(name, _named(f"aten.{name}", half, {}, self=real), flops // 2, "half of 5 n log2 n")
        for kind in ("irfft", "hfft"):
            name = f"fft_{kind}{end}"
            yield Case(name, _named(f"aten.{name}", real, {}, self=half), flops // 2, "half of 5 n log2 n")
    both = {"dim": [0, 1]}
    yield Case("_fft_c2c", _named("aten._fft_c2c", full, both, self=full), whole, "5 n log2 n")
    yield Case("_fft_r2c", _named("aten._fft_r2c", half, both, self=real), whole // 2, "half of 5 n log2 n")
    yield Case("_fft_c2r", _named("aten._fft_c2r", real, both, self=half), whole // 2, "half of 5 n log2 n")
    frames = _named("stft", value(5, 3, dtype="complex64"), {"n_fft": 8}, self=value(24), window=value(8))
    yield Case("stft", frames, 3 * (5 * 8 * 3 // 2 + 8), "3 frames of 8 real numbers, each times a window")


def _matrices() -> Iterator[Case]:
    # LU of 3 rows: 2 + 1 quotients, 4 + 1 products and as many differences, 13.
    a, b, lu = value(3, 3), value(3, 2), 3 + 5 + 5
    for name in ("linalg_lu_factor", "linalg_lu_factor_ex"):
        yield Case(name, call(name, [a], [a]), lu, "2 + 1 quotients, 4 + 1 products, as many differences")
    for name in ("linalg_det", "_linalg_det", "det"):
        yield Case(name, call(name, [a], [value()]), lu + 2, "LU, and two products along the diagonal")
    for name in ("linalg_solve", "linalg_solve_ex", "_linalg_solve_ex"):
        yield Case(
            name,
            call(name, [a, b], [b]),
            lu + 2 * (9 + 6),
            "LU; for each of 2 columns 9 for one triangle and 6 for that with a diagonal of 1",
        )
    for name in ("linalg_inv", "linalg_inv_ex", "inverse"):
        yield Case(name, call(name, [a], [a]), lu + 3 * (9 + 6), "a system with 3 right-hand sides")
    yield Case(
        "linalg_solve_triangular",
        _named("linalg_solve_triangular", b, {}, self=a, B=b),
        2 * 9,
        "1 + 3 + 5 for each of 2 columns: quotients 3, products 3, differences 3",
    )
    yield Case("triangular_solve", _named("triangular_solve", b, {}, self=b, A=a), 2 * 9, "9 for each of 2 columns")
    for name in ("linalg_cholesky", "linalg_cholesky_ex", "cholesky"):
        yield Case(
            name,
            call(name, [a], [a]),
            3 + 3 + 4 + 4,
            "3 roots, 3 quotients; on the diagonal 3 products and 3 differences, below it one of each",
        )
    pair = [value(3), value(4, 1)]
    yield Case(
        "einsum",
        call("einsum", [value(2, 3), value(4)], [value(2, 4)], {"equation": "ij,k->ik"}),
        6,
        "an index of the first operand alone is summed before: add",
    )
    yield Case(
        "tensordot",
        call("tensordot", pair, [value(4)], {"dims": [[0], [1]]}),
        3,
        "a row of 3 meets a length of 1: it is summed before, add",
    )


def _windows() -> Iterator[Case]:
    for names, shape, each in (
        ("upsample_linear1d", (2, 1, 10), 3),
        ("upsample_bilinear2d _upsample_bilinear2d_aa", (1, 1, 4, 5), 7),
        ("upsample_bicubic2d _upsample_bicubic2d_aa", (1, 1, 4, 5), 31),
        ("upsample_trilinear3d", (1, 1, 1, 4, 5), 15),
    ):
        for name in names.split():
            op = call(name, [value(*shape)], [value(*shape)])
            yield Case(name, op, each * 20, "a product for each of 2, 4, 16 or 8 taps, and a sum of them")
    image, volume = value(1, 1, 4, 5), value(1, 1, 1, 4, 5)
    for name in ("interpolate", "upsample"):
        yield Case(name, call(name, [image], [image], {"mode": "bilinear"}), 7 * 20, "4 products, 3 additions")
    for name in ("grid_sampler", "grid_sampler_2d", "cudnn_grid_sampler", "_grid_sampler_2d_cpu_fallback"):
        yield Case(name, call(name, [image, value(1, 4, 5, 2)], [image]), 7 * 20, "4 products, 3 additions")
    places = value(1, 1, 4, 5, 3)
    yield Case(
        "grid_sampler_3d", call("grid_sampler_3d", [volume, places], [volume]), 15 * 20, "8 products, 7 additions"
    )
    for kind in ("avg", "max"):
        for d, taps in ((1, 2), (2, 4), (3, 8)):
            out = value(1, 1, *(2,) * d)
            for name in (f"{kind}_pool{d}d", *([f"max_pool{d}d_with_indices"] * (kind == "max"))):
                op = call(name, [value(1, 1, *(4,) * d)], [out], {"kernel_size": 2})
                yield Case(name, op, taps * 2**d, "an addition or a comparison for each of 2 taps a side")
                adaptive = call(f"adaptive_{name}", [value(1, 1, *(4,) * d)], [out])
                yield Case(f"adaptive_{name}", adaptive, taps * 2**d, "4 into 2: 2 taps a side")
    for name in ("fold", "col2im"):
        yield Case(name, call(name, [value(1, 6, 4)], [value(1, 1, 4, 5)]), 24, "add each of 6 x 4 elements")


def _recurrent() -> Iterator[Case]:
    # 10 rows (5 steps of 2 sequences) and 3 hidden units.
    data, h = value(5, 2, 4), value(1, 2, 3)
    for kind, gates, each, state, why in (
        ("lstm", 4, 13, [h, h], "4 sums of gates, 3 sigmoids, tanh; f c + i g: 3; tanh(c), times o"),
        ("gru", 3, 11, [h], "2 sums of gates and 2 sigmoids; a + r b, tanh: 3; (1 - z) n + z h: 4"),
        ("rnn_tanh", 1, 2, [h], "add, tanh"),
        ("rnn_relu", 1, 2, [h], "add, relu"),
    ):
        weights = [value(3 * gates, 4), value(3 * gates, 3)]
        for name, rows in ((kind, data), (f"{kind}_cell", value(10, 4))):
            yield Case(name, call(name, [rows, *state, *weights], [rows]), each * 10 * 3, why)


def _rest() -> Iterator[Case]:
    x, i, i4 = value(*X), value(*X, dtype="int64"), value(4, dtype="int64")
    table, out = value(10, 3), value(1, 3)
    for name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"):
        yield Case(name, _named(name, out, {}, weight=table, indices=i4), 4 * 3, "add each of 4 rows of 3")
    for name in ("scatter", "scatter_reduce"):
        yield Case(name, _named(name, x, {"reduce": "sum"}, self=x, index=i, src=x), 6, "add where a number says")
    yield Case("scatter_add", _named("scatter_add", x, {}, self=x, index=i, src=x), 6, "add where a number says")
    for name in ("index_add", "index_reduce"):
        yield Case(name, _named(name, table, {}, self=table, index=value(2, dtype="int64"), source=x), 6, "add a row")
    yield Case("put", _named("put", x, {"accumulate": True}, self=x, index=i4, source=value(4)), 4, "add each of 4")
    rows = {"self": table, "indices": value(2, dtype="int64"), "values": x}
    yield Case("index_put", _named("index_put", table, {"accumulate": True}, **rows), 6, "add 2 rows of 3")
    for name, given in (("searchsorted", "sorted_sequence"), ("bucketize", "boundaries")):
        yield Case(name, _named(name, i, {}, **{given: value(7), "self": x}), 3 * 6, "7 places: 3 comparisons a value")
    for name in ("mse_loss", "l1_loss"):
        yield Case(name, _named(name, value(), {}, input=x, target=x), 3 * 6, "subtract, square or absolute value, add")
    for name in ("cross_entropy", "cross_entropy_loss"):
        classes = value(2, dtype="int64")
        yield Case(
            name, _named(name, value(), {}, input=x, target=classes), 6 * 6 + 2, "a log-softmax of 6; add for a row"
        )

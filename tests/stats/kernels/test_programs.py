"""The compiler, which needs no GPU, takes what the interpreter takes, and what it makes of it fits."""

import inspect

import pytest

from diffscope.stats.kernels import rows

triton = pytest.importorskip("triton")

OF = {
    "i64": "queries map_of key_of first_of second_of bins n",
    "fp32": "largest over_z sink gain lam threshold",
    "i32": "lowest",
    "fp64": "out levels sizes",
}
POINTERS = {name: f"*{dtype}" for dtype, names in OF.items() for name in names.split()}
SWITCHES = {"BOTH": True, "CAPPED": True, "SINK": True, **dict.fromkeys(rows._SWITCHES, True)}
SIZES = {"KIND": 2, "LEVELS": 4, "SIZES": 3, "ROWS": 1}
CASES = [
    ("branch", 90, "bf16", 128),
    ("signed", 90, "fp16", 256),
    ("signed", 89, "bf16", 256),
    ("signed", 89, "fp32", 256),
    ("brackets", 90, "fp32", 128),
]


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="Triton interprets in this process")
@pytest.mark.parametrize("name, capability, dtype, d", CASES)
def test_programs_compile_and_fit(name, capability, dtype, d, tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from diffscope.stats.kernels import histogram_programs as brackets
    from diffscope.stats.kernels import programs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shared = {90: 227, 89: 99}[capability] * 1024
    tiles = rows._tiles(shared, d, dtype == "fp32")
    options = {option: tiles.pop(option) for option in ("num_warps", "num_stages")} | {"enable_fp_fusion": True}
    program = getattr(brackets if name == "brackets" else programs, name)
    names = list(inspect.signature(program.fn).parameters)
    constants = {**SWITCHES, **SIZES, **tiles, "BLOCK_D": d, "WIDEN": dtype == "fp32", "q_d": 1, "k_d": 1}
    constants = {name: x for name, x in constants.items() if name in names}
    known = {
        **POINTERS,
        "q": f"*{dtype}",
        "k": f"*{dtype}",
        "factor": "fp32",
        "cap": "fp32",
        **dict.fromkeys(constants, "constexpr"),
    }
    divided = [name for name in names if known.get(name, "")[0:1] == "*" or name in ("q_map", "q_query", "k_map", "k_key")]
    source = ASTSource(
        program,
        {name: known.get(name, "i32") for name in names},
        {(names.index(name),): x for name, x in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in divided},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.metadata.shared <= shared

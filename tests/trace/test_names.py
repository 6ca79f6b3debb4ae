"""Every tool's spelling of a kernel comes down to one base name."""

import lzma
import re
import sqlite3
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.parsers.profiles import read_profile
from depgraph.trace import names
from depgraph.trace.names import base_name, demangle

MANGLED = "_ZN2at6native11tanh_kernelILi4EfEEvPKfi"


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("saxpy", "saxpy"),
        ("saxpy(float, const float *, float *)", "saxpy"),
        ("void saxpy<float>(float, float const*)", "saxpy"),
        ("void at::native::(anonymous namespace)::k<4, float>(int)", "k"),
        ("void at::native::<unnamed>::k<(int)4, float>(int)", "k"),
        ("<unnamed>::k(float, const float *)", "k"),
        ("(anonymous namespace)::k(float, float const*)", "k"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_align1>(cutlass_80_align1::Params)",
            "Kernel2",
        ),
        ("sm80_xmma_gemm_f32f32_tn_n_tilesize32x64x8__5x_cublas",) * 2,
        ("void f<g()::{lambda(float)#1}::operator()() const>(int, g()::{lambda(float)#1})", "f"),
        ("void f<(4>3), (2<3)>(int*)", "f"),
        ("void f<&(g<int>(int))>(int)", "f"),
        ("std::enable_if<((a)<(b)), void>::type n::f<int>(int)", "f"),
        ("void f(void (*)(int))", "f"),
        ("int *f(int)", "f"),
        ("f(int) [clone .kd]", "f"),
        ("f.kd", "f"),
        ("f[abi:v1](int)", "f"),
        ("a::operator<< <int>(int)", "operator<<"),
        ("void g(int)::{lambda()#1}::operator()() const", "operator()"),
        ("void g(int)::[lambda() (instance 1)]::operator ()() const", "operator()"),
        ("a::operator bool() const", "operator bool"),
        ("void f<int, cut in the mid", "f"),
        ("  f  ", "f"),
        ("", ""),
        ("::", "::"),
        (MANGLED, "tanh_kernel"),
        ("_Z6vecAddPdS_S_i", "vecAdd"),
    ],
)
def test_base_name(spelling, expected):
    assert base_name(spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("f" + "<" * 200_000 + "0)]}" * 50_000 + ">" * 200_000, "f"),
        ("f" + " " * 200_000 + "g", "g"),
        ("f" + "[clone " * 100_000, "f"),
        ("f(" + "(" * 100_000 + "]" * 100_000, "f"),
    ],
)
def test_damaged_names_of_any_length_take_no_longer_than_their_length(spelling, expected):
    assert base_name(spelling) == expected


def test_demangle_spells_out_what_is_mangled_and_leaves_the_rest():
    assert demangle("_Z5saxpyifPfS_") == "saxpy(int, float, float*, float*)"
    assert demangle("saxpy") == "saxpy"
    assert demangle("_Znonsense") == "_Znonsense"
    assert demangle("_Z\N{GREEK SMALL LETTER MU}") == "_Z\N{GREEK SMALL LETTER MU}"


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        (MANGLED, "tanh_kernel"),
        ("_Z11EAM_Force_25sim_t", "EAM_Force_2"),
        ("_ZSt4copyv", "copy"),
        ("_ZN3fooE", "foo"),
        ("_Z999999a", "_Z999999a"),
        ("_ZN", "_ZN"),
    ],
)
def test_base_name_without_a_demangler(monkeypatch, mangled, expected):
    monkeypatch.setattr(names, "_cxa_demangle", cache(lambda: None))
    demangle.cache_clear()
    base_name.cache_clear()
    try:
        assert demangle(mangled) == mangled
        assert base_name(mangled) == expected
    finally:
        demangle.cache_clear()
        base_name.cache_clear()


def test_a_name_too_long_to_demangle_still_has_a_base_name():
    long = "_ZN2at1kI" + "i" * 3000 + "EEvv"
    assert base_name(long) == "k"


@given(st.text(st.sampled_from("_ZNEI1234567890aPKfv<>(){}[]:, operator&*-"), max_size=60))
def test_any_text_has_a_base_name(name):
    assert isinstance(base_name(name), str)
    assert isinstance(base_name("_Z" + name), str)


def test_nsys_spells_demangled_short_and_mangled_alike(shared_data):
    path = shared_data / "public" / "timing" / "nsys_h100_2gpu.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        spellings = connection.execute(
            "SELECT DISTINCT d.value, s.value, m.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName "
            "JOIN StringIds m ON m.id = k.mangledName"
        ).fetchall()
    connection.close()
    assert len(spellings) == 41
    for demangled, short, mangled in spellings:
        assert base_name(demangled) == base_name(mangled) == base_name(demangle(mangled)) == short


def test_accelsim_and_kineto_agree_on_names_grids_and_blocks(shared_data):
    profile = read_profile(shared_data / "timing" / "streams4.kineto.json")
    folder = shared_data / "accelsim" / "streams4"
    for kernel in range(len(profile)):
        with lzma.open(folder / f"kernel-{kernel + 1}.traceg.xz", "rt") as trace:
            header = "".join(next(trace) for _ in range(8))
        traced = re.search(r"-kernel name = (.*)", header)[1]
        assert base_name(profile.name[kernel]) == base_name(traced)
        for what, column in (("grid", profile.grid), ("block", profile.block)):
            sizes = re.search(rf"-{what} dim = \((.*)\)", header)[1].split(",")
            assert column[kernel].tolist() == [int(size) for size in sizes]


def test_nvbit_and_accelsim_agree_on_names(shared_data):
    with lzma.open(shared_data / "nvbit" / "gru_train.log.xz", "rt", errors="replace") as log:
        launches = [line for line in log if " - LAUNCH - " in line]
    assert len(launches) == 25
    for kernel, launch in enumerate(launches):
        nvbit = re.search(r"Kernel name (.*) - grid launch id", launch)[1]
        folder = shared_data / "accelsim" / "gru_train"
        with lzma.open(folder / f"kernel-{kernel + 1}.traceg.xz", "rt") as trace:
            mangled = next(trace).split(" = ")[1].strip()
        assert demangle(mangled) == nvbit
        assert base_name(mangled) == base_name(nvbit)

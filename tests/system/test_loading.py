"""Object files that are put into memory without LLVM."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from depgraph.system.loading import NotLinkableError, address_in_libc, link, load, names_outside

llvm = pytest.importorskip("llvmlite.binding")
if llvm.llvm_version_info[0] < 17:
    pytest.skip("LLVM writes pointers in another way", allow_module_level=True)
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

CALLER = """
@texts = internal constant [2 x ptr] [ptr @first, ptr @second]
@first = internal constant [2 x i8] c"1\\00"
@second = internal constant [3 x i8] c"22\\00"
declare i64 @strlen(ptr)
declare i64 @tenfold(i64)
define i64 @measure(i64 %which) {
  %place = getelementptr [2 x ptr], ptr @texts, i64 0, i64 %which
  %text = load ptr, ptr %place
  %length = call i64 @strlen(ptr %text)
  %result = call i64 @tenfold(i64 %length)
  ret i64 %result
}
"""
CALLED = """
define i64 @unused() {
  ret i64 1
}
define i64 @tenfold(i64 %x) {
  %result = mul i64 %x, 10
  ret i64 %result
}
"""
OF_ITS_OWN = """
define internal i64 @strlen(ptr %text) noinline {
  ret i64 77
}
define i64 @lengths(ptr %text) {
  %result = call i64 @strlen(ptr %text)
  ret i64 %result
}
define i64 @tenfold(i64 %x) {
  ret i64 %x
}
"""
CHOSEN_AS_IT_RUNS = """
@measure = ifunc i64 (), ptr @choose
define internal ptr @choose() {
  ret ptr null
}
"""
ALIGNED = """
@far = constant i64 7, align 65536
define ptr @measure() {
  ret ptr @far
}
"""
WRITTEN = """
@count = global i64 7
define ptr @measure() {
  ret ptr @count
}
"""


def compiled(text, triple="x86_64-pc-linux-gnu", model="large"):
    module = llvm.parse_assembly(text)
    module.triple = triple
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(codemodel=model, reloc="static").emit_object(module)


def test_what_a_file_needs_of_others_is_known():
    assert names_outside(compiled(CALLER)) == {"strlen", "tenfold"}
    assert names_outside(compiled(CALLED)) == set()


def test_files_refer_to_one_another_and_to_the_c_library():
    if compiled(CALLER) != compiled(CALLER, llvm.get_process_triple()):
        pytest.skip("this processor runs other code")
    linked = link([compiled(CALLER), compiled(CALLED)], "measure")
    assert {name for _, name in linked.outside} == {"strlen"}
    held, address = load(linked)
    measure = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
    assert [measure(0), measure(1)] == [10, 20]
    assert rights_at(ctypes.addressof(held)) == "r-xp"


def test_what_a_file_keeps_to_itself_is_nothing_to_others():
    linked = link([compiled(CALLER), compiled(OF_ITS_OWN)], "measure")
    assert {name for _, name in linked.outside} == {"strlen"}


def rights_at(address):
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_ = line.split()
        begin, end = (int(number, 16) for number in place.split("-"))
        if begin <= address < end:
            return rights
    return None


@pytest.mark.parametrize(
    "file",
    [
        compiled(CALLED, "aarch64-linux-gnu"),
        compiled(CALLED, "x86_64-apple-darwin"),
        compiled(CALLER, model="small"),
        compiled(WRITTEN),
        compiled(CHOSEN_AS_IT_RUNS),
        compiled(ALIGNED),
        compiled(CALLED),
        b"",
    ],
    ids=[
        "other processor",
        "other format",
        "near addresses",
        "written",
        "chosen as it runs",
        "aligned to more than a page",
        "no such function",
        "empty",
    ],
)
def test_what_leaves_open_more_than_addresses_is_left_to_llvm(file):
    with pytest.raises(NotLinkableError):
        link([file], "measure")


def test_what_the_c_library_lacks_has_no_address():
    assert address_in_libc("strlen")
    assert address_in_libc("no_such_function") is None

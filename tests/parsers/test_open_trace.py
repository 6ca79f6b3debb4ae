"""Opening a trace: the format is told by content, and what is none is refused by name."""

import io
import lzma
import os
import pickle
import subprocess
import sys
import tarfile
import threading

import pytest
from kernel_texts import Form, header_text
from programs import BASE, access_line, launch_line

from depgraph import parsers
from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse

NVBIT = launch_line(0) + access_line(0, 1, "STG.E", [BASE])
KERNEL = (
    header_text(Form(), grid=(1, 1, 1))
    + "#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 1\n"
    + f"0090 00000001 0 STG.E 2 R4 R6 4 1 0x{BASE:x} 0 0 \n#END_TB\n"
).encode()
SIMLOG = (
    b"-kernel name = k\n-grid dim = (1,1,1)\n-block dim = (1,1,1)\nnext\n"
    b"  mf: uid=1 sid=3 warp=2 (15) addr=0x7f4e34a00000, load , size=32, GLOBAL_R 0x00b0 "
    b"cta=0,0,0 kernel=1 active_threads=01\n"
)
TEXTS = {"nvbit": NVBIT, "accelsim": KERNEL, "simlog": b"simulator\n" + SIMLOG}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_the_format_is_told_by_content(tmp_path, name, pack):
    path = tmp_path / "no.suffix"
    path.write_bytes(pack(TEXTS[name]))
    trace = parsers.open_trace(path)
    assert trace.format == name
    assert len(analyse(trace).kernels) == 1
    assert parsers.open_trace(str(path)).format == name


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_standard_input(monkeypatch, name, pack):
    data = io.BytesIO(pack(TEXTS[name]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(data)))
    trace = parsers.open_trace("-")
    assert (trace.format, trace.input_bytes, trace.sources.paths) == (name, None, [])
    assert len(analyse(trace).kernels) == 1


@pytest.mark.parametrize("name", TEXTS)
def test_parts_may_be_sent_to_another_machine(tmp_path, name):
    path = tmp_path / "trace"
    path.write_bytes(TEXTS[name])
    for task in parsers.open_trace(path).tasks():
        sent = pickle.loads(pickle.dumps(task))  # noqa: S301
        part, expected = pickle.loads(pickle.dumps(sent.scan())), task.scan()  # noqa: S301
        assert part.launches == expected.launches
        assert part.touches.start.tolist() == expected.touches.start.tolist()


@pytest.mark.parametrize("name", TEXTS)
def test_a_pipe(tmp_path, name):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(TEXTS[name],))
    writer.start()
    trace = parsers.open_trace(path)
    assert len(analyse(trace).kernels) == 1
    writer.join()
    assert trace.input_bytes is None


def test_a_trace_behind_a_long_preamble(tmp_path):
    path = tmp_path / "talkative.log"
    path.write_bytes(b"loading weights ...\n" * 200_000 + NVBIT)
    assert parsers.open_trace(path).format == "nvbit"


def test_a_banner_is_enough_for_a_log_without_kernels(tmp_path):
    path = tmp_path / "nothing.log"
    path.write_bytes(b"--- NVBit (NVidia Binary Instrumentation Tool v1.7.6) Loaded ---\nhello\n")
    trace = parsers.open_trace(path)
    with pytest.raises(TraceError, match="no kernel launch in 2 lines"):
        analyse(trace)


ELF = b"\x7fELF\x02\x01\x01" + bytes(100)
SNOOPIE = b'{"op": "LDG.E", "kernel_name": "k", "addr": "0x7f0000000000"}\n'
CUTRACER = b"CTX 0x5a46d0 - CTA 0,0,0 - warp 0 - LDC R1, c[0x0][0x28] ;:\n  * Reg0_T00: 0x1\n"
OMNIPROBE = (
    b'ADDRESS_MESSAGE,timestamp,kernel,src_line,dispatch,exec_mask\nADDRESS_MESSAGE,1,"k",3\n'
)
REG_VALS = b"CTA 0,0,0 - warp 0 - IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;:\n  * Reg0_T0: 0x00\n"
COUNTS = b"kernel 0 - vecAdd(double*) - #thread-blocks 98, kernel instructions 50077, total 50077\n"
KINETO = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel"}]}'
NSYS = (
    b"Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    b"DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
)
STATS = b"kernel id, kernel mangled name, grid_dimX\nkernel-1.trace, _Z1kv, 1\n"
GPUCACHESIM = (
    b'[\n  {\n "cuda_ctx": 9,\n "instr_opcode": "LDG.E.CG",\n "addrs": [140703922388992]}]'
)
COMMANDS = b'[{"MemcpyHtoD": {"dest_device_addr": 139826641764352, "num_bytes": 400}}]'
ROCPROFV3 = b'{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "buffer_records": {}}]}'
ROCPROF = b'{"traceEvents": [{"args": {"name": "0 CPU HIP API"}, "ph": "M", "pid": 2}]}'
ROCPROF_CSV = b'"Index","KernelName","gpu-id","queue-id"\n0,"k(int)",1,0\n'
SIMULATOR = b"GPGPU-Sim PTX: pushing kernel 'k' to stream 0\ngpu_sim_cycle = 5\n"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "the file is empty; trace the program again"),
        (b"\n \n", "the file is empty"),
        (ELF, "is a program; run it under NVBit's mem_trace"),
        (b"SQLite format 3\0" + bytes(90), "is an SQLite file, as nsys exports it; .*--timing"),
        (b"PAR1" + bytes(90), "is a Parquet file"),
        (b"%PDF-1.7\n", "is a PDF file"),
        (SNOOPIE, "is the output of snoopie, whose lines name no thread block; trace the program"),
        (CUTRACER, "is the text that CUTracer prints, .*; trace again with CUTRACER_INSTRUMENT"),
        (OMNIPROBE, "is omniprobe's CSV, which names no thread block; trace again with: omniprobe"),
        (REG_VALS, "is the output of NVBit's record_reg_vals, which has registers but no"),
        (COUNTS, "is the output of an NVBit tool that counts instructions; trace the program"),
        (
            GPUCACHESIM,
            "is a trace of gpucachesim .*; trace the program again with NVBit's mem_trace",
        ),
        (COMMANDS, "is a trace of gpucachesim"),
        (ROCPROFV3, "is a profile of rocprof, of an AMD GPU; it has times but no memory accesses"),
        (ROCPROF, "is a profile of rocprof"),
        (ROCPROF_CSV, "is a profile of rocprof"),
        (KINETO, "is a PyTorch profiler trace; it has times but no memory accesses: .*--timing"),
        (NSYS, "is a profile of nsys; .*--timing"),
        (STATS, "is the statistics file of an Accel-Sim trace; give the kernelslist beside it"),
        (SIMULATOR, "is a simulator's log without memory lines .*--timing"),
        (bytes(range(256)) * 4, "is binary, and no trace"),
        (b"hello\n", "is not a memory-access trace; give the standard output of a program under"),
        (b"{}", "is not a memory-access trace"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_what_is_no_trace_is_said_to_be_what_it_looks_like(tmp_path, content, found, pack):
    path = tmp_path / "some.file"
    path.write_bytes(pack(content))
    with pytest.raises(TraceError, match=found) as caught:
        parsers.open_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_archives(tmp_path):
    path = tmp_path / "traces.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "kernelslist.g")
    with pytest.raises(TraceError, match="is a tar archive; unpack it, and give the folder"):
        parsers.open_trace(path)
    path.write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(TraceError, match="is a zip archive; unpack it first"):
        parsers.open_trace(path)


def test_a_list_alone(tmp_path, monkeypatch):
    entries = b"MemcpyHtoD,0x00007f0000000000,4\nkernel-1.traceg\nkernel-2.traceg\n"
    path = tmp_path / "renamed"
    path.write_bytes(entries)
    with pytest.raises(TraceError, match=r":2: none of its 2 kernel files is here .* put the"):
        parsers.open_trace(path)
    (tmp_path / "kernel-1.traceg").write_bytes(KERNEL)
    assert parsers.open_trace(path).format == "accelsim"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(entries))))
    with pytest.raises(TraceError, match="is a kernelslist without its kernel files; give its"):
        parsers.open_trace("-")


def test_a_store_is_no_trace(sample_store):
    with pytest.raises(TraceError, match="is a depgraph store, not a trace"):
        parsers.open_trace(sample_store.path)


def test_no_such_file(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        parsers.open_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="no trace is given"):
        parsers.open_trace([])


def test_files_of_several_traces_are_not_mixed(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel-1.traceg").write_bytes(KERNEL)
        (tmp_path / folder / "kernelslist.g").write_text("kernel-1.traceg\n")
    mixed = {
        "is a trace of another format": [tmp_path / "nvbit", tmp_path / "accelsim"],
        "belongs to another trace": [tmp_path / "one", tmp_path / "two"],
        "give one folder, or one kernelslist": [tmp_path / "one", tmp_path / "nvbit"],
        "is not beside": [tmp_path / "one" / "kernelslist.g", tmp_path / "nvbit"],
        "standard input comes alone": ["-", tmp_path / "nvbit"],
    }
    for found, paths in mixed.items():
        with pytest.raises(TraceError, match=found):
            parsers.open_trace(paths)


def test_a_pipe_among_kernel_files(tmp_path):
    os.mkfifo(tmp_path / "kernel-2.traceg")
    (tmp_path / "kernel-1.traceg").write_bytes(KERNEL)
    with pytest.raises(TraceError, match="one of them is a pipe"):
        parsers.open_trace([tmp_path / "kernel-1.traceg", tmp_path / "kernel-2.traceg"])


def test_importing_the_parsers_compiles_nothing():
    code = "import sys, depgraph.parsers; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

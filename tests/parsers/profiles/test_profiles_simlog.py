"""Logs of GPGPU-Sim and Accel-Sim: cycles of kernels, and of blocks where all are printed."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import kernels_of
from text_files import writes

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.timing.fit import fit_profile
from depgraph.timing.profile import BlockProfile, KernelProfile

OPTIONS = """\
        *** GPGPU-Sim Simulator Version 4.2.0  [build x] ***
-gpgpu_n_clusters                      40 # number of processing clusters
-gpgpu_n_cores_per_cluster                    2 # number of simd cores per cluster
-gpgpu_clock_domains   1312:1312:1312:877 # Clock Domain Frequencies in MhZ
"""


def header(name, stream=0, grid="(2,1,1)"):
    return (
        f"Processing kernel ./traces/k.traceg\n-kernel name = {name}\n-kernel id = 1\n"
        f"-grid dim = {grid}\n-block dim = (64,2,1)\n-shmem = 128\n-nregs = 12\n"
        f"-binary version = 70\n-cuda stream id = {stream}\n"
        "Header info loaded for kernel command : ./traces/k.traceg\n"
    )


def launch(name, uid):
    return f"launching kernel name: {name} uid: {uid} cuda_stream_id: 0\n"


def ends(uid):
    return f"Destroy streams for kernel {uid}: size 0\n"


def statistics(cycles, total, names="", uids=""):
    return (
        f"kernel_name = {names} \nkernel_launch_uid = {uids} \nkernel_stream_id = 0\n"
        f"gpu_sim_cycle = {cycles}\ngpu_sim_insn = 7\ngpu_tot_sim_cycle = {total}\n"
        f"gpu_tot_sim_insn = 7\n"
    )


log = writes("sim.log")


def test_kernels_one_after_another(log):
    profile = read_profile(
        log(
            OPTIONS,
            header("_Z1av") + launch("_Z1av", 1) + ends(1) + statistics(100, 100, "_Z1av", "1"),
            header("_Z1bv", 3) + launch("_Z1bv", 2) + ends(2) + statistics(50, 150, "_Z1bv", "2"),
        )
    )
    assert isinstance(profile, KernelProfile)
    assert (profile.format, profile.unit) == ("simlog", "cycles")
    assert profile.name == ("_Z1av", "_Z1bv")
    assert profile.duration.tolist() == [100.0, 50.0]
    assert profile.start.tolist() == [0, 100]
    assert profile.kernel.tolist() == [0, 1]
    assert profile.grid.tolist() == [[2, 1, 1]] * 2
    assert profile.block.tolist() == [[64, 2, 1]] * 2
    assert profile.registers.tolist() == [12, 12]
    assert profile.shared_bytes.tolist() == [128, 128]
    assert profile.stream.tolist() == [0, 3]
    assert profile.measured_sms.tolist() == [80, 80]
    assert profile.clock_mhz == 1312.0


def test_alu_utilization_is_what_was_issued_of_what_could_be(log):
    # 80 SMs of 2 schedulers issue 80 * 2 * 32 instructions of threads in a cycle.
    more = "-gpgpu_num_sched_per_core 2 # schedulers\n-gpgpu_kernel_launch_latency 20 # cycles\n"
    half = statistics(120, 120, "a", "1").replace("sim_insn = 7", "sim_insn = 256000")
    profile = read_profile(
        log(
            OPTIONS, more, header("a") + launch("a", 1) + ends(1) + half,
            header("b") + launch("b", 2) + header("c") + launch("c", 3),
            ends(2) + statistics(50, 170), ends(3) + statistics(50, 220),
        )
    )  # fmt: skip
    assert "schedulers of all SMs" in profile.alu_counter
    # Of kernels that ran beside others nothing is said.
    assert profile.alu_utilization.tolist() == [5000, 0, -1]


def test_headers_are_echoed_for_a_window_of_kernels(log):
    profile = read_profile(
        log(
            header("a", 0, "(1,1,1)") + header("b", 1, "(2,1,1)") + header("c", 0, "(3,1,1)"),
            launch("a", 1) + launch("b", 2) + ends(1) + statistics(100, 100, "a b", "1 2"),
            launch("c", 3) + ends(2) + statistics(20, 120),
            ends(3) + statistics(30, 150),
        )
    )
    assert profile.name == ("a", "b", "c")
    assert profile.grid[:, 0].tolist() == [1, 2, 3]
    assert profile.start.tolist() == [0, 0, 100]
    assert profile.duration.tolist() == [100.0, 120.0, 50.0]


def test_older_launch_lines_count_from_one(log):
    old = "launching memcpy command : MemcpyHtoD,0x7f,64\n" + header("a")
    old += "launching kernel command : ./traces/kernel-1.traceg\n"
    old += "GPGPU-Sim uArch: Shader 0 bind to kernel 1 'a'\n"
    profile = read_profile(log(old, ends(1), statistics(9793, 9793, "a", "1")))
    assert profile.name == ("a",)
    assert profile.duration.tolist() == [9793.0]


def test_a_run_that_breaks_off_loses_its_last_kernel(log):
    done = header("a") + launch("a", 1) + ends(1) + statistics(100, 100, "a", "1")
    profile = read_profile(log(done, header("b"), launch("b", 2), "Killed\n"))
    assert profile.name == ("a",)
    assert profile.skipped == {"kernels that did not end, or ended together with others": 1}


def test_a_number_that_is_cut_is_not_read(log):
    text = header("a") + launch("a", 1) + ends(1) + "gpu_sim_cycle = 9793\ngpu_tot_sim_cycle = 97"
    with pytest.raises(ProfileError, match="no kernel with a time"):
        read_profile(log(text))


def test_the_launch_latency_is_mentioned(log):
    latency = "-gpgpu_kernel_launch_latency     5000 # Kernel launch latency in cycles.\n"
    profile = read_profile(log(latency, launch("a", 1), ends(1), statistics(6000, 6000)))
    assert profile.notes == ("kernel times include a simulated launch latency of 5000 cycles",)


def test_cycles_that_the_simulator_states_for_a_kernel_win(log):
    update = (
        "gpgpu_sim::update_stats() last_streamID=0, last_uid=1, start_cycle=0, end_cycle=9575, "
        "sim cycle for this kernel is 9576\n"
    )
    profile = read_profile(log(launch("a", 1), ends(1), statistics(9999, 9999), update))
    assert profile.duration.tolist() == [9576.0]


def test_execution_driven_kernels_without_destruction_lines(log):
    push = (
        "GPGPU-Sim PTX: pushing kernel '_Z1av' to stream 2, "
        "gridDim= (216,1,1) blockDim = (14,1,1) \n"
        "kernel '_Z1av' transfer to GPU hardware scheduler\n"
    )
    profile = read_profile(log(push, statistics(7546, 7546, "_Z1av", "1"), statistics(0, 7546)))
    assert profile.duration.tolist() == [7546.0]
    assert profile.grid.tolist() == [[216, 1, 1]]
    assert profile.stream.tolist() == [2]


def test_kernels_that_share_their_statistics_have_no_time(log):
    push = "GPGPU-Sim PTX: pushing kernel 'a' to stream 0, gridDim= (1,1,1) blockDim = (1,1,1)\n"
    with pytest.raises(
        ProfileError, match="kernels that did not end, or ended together with others: 2"
    ):
        read_profile(log(push, push, statistics(900, 900, "a a", "1 2")))


def bind(shader, uid, name):
    return f"GPGPU-Sim uArch: Shader {shader} bind to kernel {uid} '{name}'\n"


def begins(core, slot, cycle, base=0):
    return f"GPGPU-Sim uArch: core: {core:2}, cta: {slot} initialized @({cycle},{base})\n"


def finishes(core, slot, cycle, base=0):
    return f"GPGPU-Sim uArch: Shader {core} finished CTA #{slot} ({cycle},{base}), 0 CTAs running\n"


def test_blocks_of_gpgpu_sim_3(log):
    push = "GPGPU-Sim PTX: pushing kernel '{}' to stream 0, gridDim= ({},1,1) blockDim = (8,1,1) \n"
    profile = read_profile(
        log(
            push.format("a", 3) + bind(1, 1, "a") + begins(1, 0, 1) + bind(2, 1, "a"),
            begins(2, 0, 2) + finishes(2, 0, 50) + begins(2, 0, 60),
            finishes(1, 0, 90) + finishes(2, 0, 100),
            push.format("b", 1) + bind(0, 2, "b") + begins(0, 0, 1, 101) + finishes(0, 0, 9, 101),
        )
    )
    assert isinstance(profile, BlockProfile)
    assert profile.unit == "cycles"
    assert profile.kernel.tolist() == [0, 0, 0, 1]
    assert profile.block.tolist() == [0, 1, 2, 0]
    assert profile.start.tolist() == [1, 2, 60, 102]
    assert profile.duration.tolist() == [89, 48, 40, 8]
    assert profile.kernels.name == ("a", "b")
    assert profile.kernels.duration.tolist() == [99.0, 8.0]


def test_blocks_of_gpgpu_sim_4(log):
    core = "GPGPU-Sim Cycle {}: LIVENESS - Core {} - GPGPU-Sim uArch: "
    began = core + "cta: {}, start_tid:   0, end_tid: 256, initialized @({},0)"
    began += ", kernel_uid:1, kernel_name:a\n"
    ended = core + "Finished CTA #{} ({},0), 3 CTAs running\n"
    text = header("a") + launch("a", 1)
    text += began.format(5, 0, 0, 5) + began.format(6, 1, 0, 6)
    text += ended.format(90, 1, 0, 90) + ended.format(95, 0, 0, 95)
    profile = read_profile(log(text, ends(1), statistics(99, 99, "a", "1")))
    assert profile.block.tolist() == [0, 1]
    assert profile.duration.tolist() == [90, 84]
    assert profile.kernels.duration.tolist() == [99.0]


def test_times_of_some_blocks_only_are_not_used(log):
    text = header("a") + launch("a", 1) + bind(0, 1, "a") + begins(0, 0, 5) + finishes(0, 0, 9)
    profile = read_profile(log(text, ends(1), statistics(99, 99, "a", "1")))
    assert isinstance(profile, KernelProfile)
    assert "kernels with times of only some blocks: 1" in profile.notes[0]


def test_block_lines_that_do_not_pair_are_counted(log):
    text = launch("a", 1) + begins(0, 0, 5) + finishes(3, 0, 9)
    profile = read_profile(log(text, ends(1), statistics(99, 99, "a", "1")))
    assert profile.skipped == {
        "blocks of an unknown kernel": 1,
        "ends of blocks without a beginning": 1,
    }


def test_blocks_with_coordinates(log):
    began = "thread block = {0}\nGPGPU-Sim uArch: Started CTA (0,0,0) #0 ({1},7), 1 CTAs running, "
    began += "kernel=0\n"
    ended = "GPGPU-Sim uArch: Finished CTA ({0}) #0 ({1},7), 0 CTAs running, kernel=1\n"
    text = header("a", grid="(1,2,1)") + launch("a", 1)
    text += began.format("0,1,0", 10) + began.format("0,0,0", 20)
    text += ended.format("0,1,0", 110) + ended.format("0,0,0", 100)
    profile = read_profile(log(text, ends(1), statistics(200, 200, "a", "1")))
    assert profile.block.tolist() == [0, 1]
    assert profile.start.tolist() == [27, 17]
    assert profile.duration.tolist() == [80, 100]


def test_a_block_outside_its_grid_has_no_time(log):
    text = header("a", grid="(1,1,1)") + launch("a", 1)
    text += "thread block = 0,1,0\nGPGPU-Sim uArch: Started CTA (0,0,0) #0 (5,0), kernel=0\n"
    text += "GPGPU-Sim uArch: Finished CTA (0,1,0) #0 (9,0), 0 CTAs running, kernel=1\n"
    profile = read_profile(log(text, ends(1), statistics(99, 99, "a", "1")))
    assert profile.skipped == {"blocks outside the grid of their kernel": 1}
    assert profile.duration.tolist() == [99.0]


def test_a_kernel_of_no_block_has_no_block_times(log):
    text = header("a", grid="(0,1,1)") + launch("a", 1)
    profile = read_profile(log(text, ends(1), statistics(99, 99, "a", "1")))
    assert isinstance(profile, KernelProfile)
    with pytest.raises(ProfileError, match="no kernel with a time"):
        read_profile(log(text))


def numbered(name, kernel_id, grid):
    return header(name, grid=grid).replace("-kernel id = 1", f"-kernel id = {kernel_id}")


def issued(block, core, slot, cycle, uid):
    named = "thread block = {},{},{}\n".format(*block)
    began = f"GPGPU-Sim uArch: core: {core}, cta: {slot}, start_tid: 0, end_tid: 7"
    return f"{named}{began}, initialized @({cycle},0), kernel_uid:{uid}, kernel_name:x\n"


@given(st.permutations(range(6)), st.permutations([(3, 2), (7, 5), (8, 9)]))
def test_blocks_of_a_rule_run_are_read_by_number(order, listed):
    """Blocks begin in any order, kernels side by side, the list in another order than the trace."""
    text, expected = "", {}
    for uid, (kernel_id, _) in enumerate(listed, 1):
        text += numbered(f"k{kernel_id}", kernel_id, "(2,3,1)") + launch(f"k{kernel_id}", uid)
    slots = []
    for place, block in enumerate(order):
        for uid, (kernel_id, duration) in enumerate(listed, 1):
            begin = 100 * place + 10 * uid
            text += issued((block % 2, block // 2, 0), len(slots), 0, begin, uid)
            slots.append(finishes(len(slots), 0, begin + duration))
            expected[[3, 7, 8].index(kernel_id), block] = (begin, duration)
    text += "".join(slots)
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "sim.log").write_text(text)
        profile = read_profile(path)
    found = {
        (k, b): (start, duration)
        for k, b, start, duration in zip(
            profile.kernel.tolist(), profile.block.tolist(), profile.start.tolist(),
            profile.duration.tolist(), strict=True,
        )
    }  # fmt: skip
    assert found == expected


def test_a_block_named_outside_its_grid_is_counted(log):
    text = header("a") + launch("a", 1) + issued((5, 0, 0), 0, 0, 3, 1) + finishes(0, 0, 9)
    profile = read_profile(log(text, ends(1), statistics(99, 99, "a", "1")))
    assert profile.skipped["blocks outside the grid of their kernel"] == 1


def test_a_log_of_fewer_kernels_than_the_trace_is_refused(log):
    text = header("a") + launch("a", 1) + ends(1) + statistics(99, 99, "a", "1")
    kernels = kernels_of([2, 2], ["a", "a"])
    kernels = [replace(k, grid_x=2, block_x=64, block_y=2) for k in kernels]
    fit = fit_profile(read_profile(log(text)), kernels)
    with pytest.raises(ProfileError, match=r"1 kernels ended .*, and the store has 2.*0842752"):
        fit.check()
    fit.check(allow_mismatch=True)
    fit_profile(read_profile(log(text)), kernels[:1]).check()

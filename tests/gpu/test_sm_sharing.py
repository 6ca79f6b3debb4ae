"""Kernels fill an SM as soon as others of their class do."""

from dataclasses import replace

import numpy as np
import pytest

from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_sharing import clusters_of, contention_of

H100 = load_gpu("H100 SXM")
PRODUCT, CONVOLUTION, USUAL = H100.contention_gemm32, H100.contention_convolution, H100.contention
ATTENTION, NORM, ROWS = (
    H100.contention_attention, H100.contention_norm, H100.contention_rows,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma", CONVOLUTION),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", PRODUCT),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_tensor16x8x8", USUAL),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw", CONVOLUTION),
        ("void gemmSN_TN_kernel<float, 128>(cublasGemmSmallNParams<float>)", ROWS),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", ROWS),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", USUAL),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor>", USUAL),
        ("convert_to_half", USUAL),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", ATTENTION),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", ATTENTION),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp>", ROWS),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 10>", ROWS),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", NORM),
        ("cuApplyLayerNorm_float", NORM),
        ("void at::native::batch_norm_transform_input_kernel", ROWS),
    ],
)
def test_a_name_tells_the_class(name, expected):
    assert contention_of([name], H100).tolist() == [expected]


def test_a_gpu_with_one_constant_has_no_classes():
    plain = replace(H100, contention_gemm32=None, contention_rows=None)
    names = ["sgemm", "softmax"]
    assert contention_of(names, plain).tolist() == [USUAL, USUAL]


def test_norms_are_as_other_rows_where_a_gpu_does_not_tell_them_apart():
    plain = replace(H100, contention_norm=None)
    assert contention_of(["layer_norm"], plain).tolist() == [ROWS]


@pytest.mark.parametrize(
    ("name", "blocks", "expected"),
    [
        ("nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT", 96, 8),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 96, 2),
        ("nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT", 48, 1),  # two blocks of the grid as one
        ("nvjet_sm90_tst_64x48_64x15_4x4_h_bz_NNT", 96, 1),  # more than every GPU can place
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3", 96, 1),
        ("", 96, 1),
    ],
)
def test_names_of_matrix_products_tell_their_clusters(name, blocks, expected):
    grid = np.array([[8, 12, 1]])
    assert clusters_of([name], grid, np.array([blocks]), H100).tolist() == [expected]


def test_gpus_before_hopper_have_no_clusters():
    name, grid = "nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT", np.array([[8, 12, 1]])
    assert clusters_of([name], grid, np.array([96]), load_gpu("V100")).tolist() == [1]

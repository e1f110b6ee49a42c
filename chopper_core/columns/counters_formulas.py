"""The figures that counters give: clock, waves, the units that compute, caches, the way to memory.

Each is `name | unit | title | source`, its definition, and `= scale * part / whole` where the
definition doesn't end with the formula (`formulas`).
Sources that are panels are those of rocprof-compute for gfx942.
"""

from __future__ import annotations

from chopper_core.columns.counters import formulas

formulas("""\
counter_mhz | MHz | count.MHz | rocprof-compute gfx942 GRBM_GUI_ACTIVE_PER_XCD
    Shader clock in the counter run: GPU cycles (GRBM_GUI_ACTIVE / XCCs) / duration; missing above
    1.1 x the GPU's highest clock: in kernels of a few µs the counted cycles outlast the kernel.
    = 1000 / xccs * GRBM_GUI_ACTIVE / counter_duration_ns
gpu_util_pct | % | GPU % | panel 0600; rocprofiler-sdk GPU_UTIL
    Share of the cycles in which the GPU was active: 100 x GRBM_GUI_ACTIVE / GRBM_COUNT.
cu_util_pct | % | CU % | panel 0200
    Share of the CUs' cycles in which the CU had waves: 100 x SQ_BUSY_CU_CYCLES / (GPU cycles x
    CUs).
active_cus | CUs | act. CUs | panel 0200
    Active CUs by AMD's rule: n/32 x 8 + min(n mod 32, 8), at most all of them, with n = 4 x
    SQ_BUSY_CU_CYCLES / GPU cycles, rounded.
    = xccs * 4 SQ_BUSY_CU_CYCLES / GRBM_GUI_ACTIVE
waves |  | waves | panel 0700
    Number of waves launched: SQ_WAVES.
resident_waves | waves | res. waves | panel 0200
    Mean number of waves on the GPU at a time: SQ_LEVEL_WAVES accumulated over the cycles / GPU
    cycles.
occupancy_pct | % | occup. % | rocprofiler-sdk OccupancyPercent
    Waves on the GPU in % of its wave slots: 400 x SQ_WAVE_CYCLES / (GPU cycles x CUs x 8 waves
    per SIMD).
    = 400 xccs / compute_units simds_per_cu 8 * SQ_WAVE_CYCLES / GRBM_GUI_ACTIVE
mfma_util_pct | % | MFMA % | panel 0200; rocprofiler-sdk MfmaUtil
    Share of the cycles in which the matrix units were busy: 100 x SQ_VALU_MFMA_BUSY_CYCLES / (GPU
    cycles x CUs x SIMDs).
mfma_flop | FLOP | MFMA FLOP | panel 1100
    Floating-point operations of the matrix units: 512 x the sum of SQ_INSTS_VALU_MFMA_MOPS_… over
    the architecture's floating-point types.
    = MATRIX_FLOP
mfma_tflops | TFLOP/s | MFMA TF/s | panel 1100
    Floating-point operations of the matrix units, of all types, per second: mfma_flop / duration.
mfma_peak_pct | % | MFMA peak% | panel 0200, types added up
    Time of the matrix operations at the published peaks of their types, in % of the duration.
    = 1e5 / clock_mhz * MATRIX_CYCLES / counter_duration_ns
mfma_efficiency_pct | % | MFMA eff.% | UnaryLab/chopper MFMA Flop Cycles, for every type
    Cycles of the matrix operations at the peaks of their types, in % of the GPU cycles: the share
    of the peak at the actual clock.
    = 100 xccs * MATRIX_CYCLES / GRBM_GUI_ACTIVE
mfma_inst_cycles | cycles | MFMA cyc. | panel 1100
    Mean cycles of a matrix instruction: SQ_VALU_MFMA_BUSY_CYCLES / SQ_INSTS_MFMA.
""")

_TYPES = ("bf16", "f16", "f8", "f32", "f64")
_TFLOPS = """
mfma_{name}_tflops | TFLOP/s | MFMA {type} | panel 0200
    Matrix operations in {type} per time: 512 x SQ_INSTS_VALU_MFMA_MOPS_{type} / duration.
"""
_PEAK = """
mfma_{name}_peak_pct | % | {type} peak% | panel 0200
    Matrix operations in {type} per time, in % of the published peak of the type.
    = 100 / {type}_flop_per_clk clock_mhz 1e-3 * 512 SQ_INSTS_VALU_MFMA_MOPS_{type} /
      counter_duration_ns
"""
formulas("".join(_TFLOPS.format(name=each, type=each.upper()) for each in _TYPES))
formulas(_TFLOPS.format(name="i8", type="I8").replace("FLOP", "OP").replace("flops", "ops"))
formulas("".join(_PEAK.format(name=each, type=each.upper()) for each in _TYPES[:3]))

formulas("""\
valu_tflops | TFLOP/s | VALU TF/s | panel 0200
    Floating-point operations of the vector units per time: 64 x (adds + multiplies +
    transcendentals + 2 x FMAs) in F16, F32 and F64 / duration.
    = 0.001 * 64 SQ_INSTS_VALU_ADD_F16 + 64 SQ_INSTS_VALU_MUL_F16 + 64 SQ_INSTS_VALU_TRANS_F16 +
      128 SQ_INSTS_VALU_FMA_F16 + 64 SQ_INSTS_VALU_ADD_F32 + 64 SQ_INSTS_VALU_MUL_F32 + 64
      SQ_INSTS_VALU_TRANS_F32 + 128 SQ_INSTS_VALU_FMA_F32 + 64 SQ_INSTS_VALU_ADD_F64 + 64
      SQ_INSTS_VALU_MUL_F64 + 64 SQ_INSTS_VALU_TRANS_F64 + 128 SQ_INSTS_VALU_FMA_F64 /
      counter_duration_ns
valu_util_pct | % | VALU % | panel 0200
    Share of the CUs' cycles in which the vector unit worked: 100 x SQ_ACTIVE_INST_VALU / (GPU
    cycles x CUs).
salu_util_pct | % | SALU % | panel 0200
    Share of the CUs' cycles in which the scalar unit worked: 100 x SQ_ACTIVE_INST_SCA / (GPU
    cycles x CUs).
vmem_util_pct | % | VMEM % | panel 0200
    Share of the CUs' cycles in which vector memory instructions were issued: 100 x
    (SQ_ACTIVE_INST_FLAT + SQ_ACTIVE_INST_VMEM) / (GPU cycles x CUs).
branch_util_pct | % | branch % | panel 0200
    Share of the CUs' cycles in which the branch unit worked: 100 x SQ_ACTIVE_INST_MISC / (GPU
    cycles x CUs).
valu_threads | threads | VALU thr. | panel 0200; rocprofiler-sdk VALUUtilization
    Mean number of active threads of a vector instruction, of 64: SQ_THREAD_CYCLES_VALU /
    SQ_ACTIVE_INST_VALU.
ipc |  | IPC | panel 0200
    Instructions per cycle of a busy CU: SQ_INSTS / SQ_BUSY_CU_CYCLES.
ipc_issued |  | IPC issued | panel 1100
    Instructions per cycle in which any was issued: (VALU + VMEM + SALU + SMEM + branches +
    messages + skipped ones + LDS) / SQ_ACTIVE_INST_ANY.
    = SQ_INSTS_VALU + SQ_INSTS_VMEM + SQ_INSTS_SALU + SQ_INSTS_SMEM + SQ_INSTS_BRANCH +
      SQ_INSTS_SENDMSG + SQ_INSTS_VSKIPPED + SQ_INSTS_LDS / SQ_ACTIVE_INST_ANY
mix_valu_pct | % | mix VALU% | panel 1000
    Vector instructions other than matrix ones in % of all instructions: 100 x (SQ_INSTS_VALU -
    SQ_INSTS_MFMA) / SQ_INSTS.
mix_mfma_pct | % | mix MFMA% | panel 1000
    Matrix instructions in % of all instructions: 100 x SQ_INSTS_MFMA / SQ_INSTS.
mix_vmem_pct | % | mix VMEM% | panel 1000
    Vector memory instructions in % of all instructions: 100 x SQ_INSTS_VMEM / SQ_INSTS.
mix_lds_pct | % | mix LDS% | panel 1000
    LDS instructions in % of all instructions: 100 x SQ_INSTS_LDS / SQ_INSTS.
mix_salu_pct | % | mix SALU% | panel 1000
    Scalar instructions in % of all instructions: 100 x SQ_INSTS_SALU / SQ_INSTS.
wave_cycles | cycles | wave cyc. | panel 0700
    Cycles that a wave lived, on average: 4 x SQ_WAVE_CYCLES / SQ_WAVES.
wave_active_cycles | cycles | wave act. | panel 0700
    Cycles that a wave worked, on average: 4 x SQ_ACTIVE_INST_ANY / SQ_WAVES.
wave_wait_cycles | cycles | wave wait | panel 0700
    Cycles that a wave waited for anything, on average: 4 x SQ_WAIT_ANY / SQ_WAVES.
wave_issue_wait_cycles | cycles | issue wait | panel 0700
    Cycles that a wave waited to issue, on average: 4 x SQ_WAIT_INST_ANY / SQ_WAVES.
not_scheduled_pct | % | not sched. | panel 0600
    Share of the cycles in which the workgroup manager could not place a workgroup: 100 x
    SPI_RA_REQ_NO_ALLOC_CSN / (GRBM_SPI_BUSY per XCC x shader engines).
pipe_stall_pct | % | pipe stall | panel 0600
    Share of the cycles in which a scheduler pipe stalled for resources: 100 x
    SPI_RA_RES_STALL_CSN / (GRBM_SPI_BUSY per XCC x shader engines).
vgpr_full_pct | % | VGPR full | panel 0600
    Share of the CUs' cycles in which workgroups waited because VGPRs were too few: 100 x
    SPI_RA_VGPR_SIMD_FULL_CSN / (GPU cycles x CUs).
lds_full_pct | % | LDS full | panel 0600
    Share of the CUs' cycles in which workgroups waited because LDS was too small: 400 x
    SPI_RA_LDS_CU_FULL_CSN / (GPU cycles x CUs).
slots_full_pct | % | slots full | panel 0600
    Share of the CUs' cycles in which workgroups waited because wave slots were taken: 100 x
    SPI_RA_WAVE_SIMD_FULL_CSN / (GPU cycles x CUs).
cpc_util_pct | % | CPC % | panel 0500
    Share of the time in which the command processor's packet processor was busy: 100 x
    CPC_CPC_STAT_BUSY / (CPC_CPC_STAT_BUSY + CPC_CPC_STAT_IDLE).
cpf_util_pct | % | CPF % | panel 0500
    Share of the time in which the command processor's fetcher was busy: 100 x CPF_CPF_STAT_BUSY /
    (CPF_CPF_STAT_BUSY + CPF_CPF_STAT_IDLE).
lds_gbps | GB/s | LDS GB/s | panel 0200
    Bandwidth of the LDS, if every access is full: 128 x (SQ_LDS_IDX_ACTIVE -
    SQ_LDS_BANK_CONFLICT) / duration.
lds_util_pct | % | LDS % | panel 1200
    Share of the cycles in which the LDS worked: 100 x SQ_LDS_IDX_ACTIVE / (GPU cycles x CUs).
lds_conflict_pct | % | LDS conf.% | panel 1200
    Conflict cycles per access in % of the worst case, 32: 100 / 32 x SQ_LDS_BANK_CONFLICT /
    (SQ_LDS_IDX_ACTIVE - SQ_LDS_BANK_CONFLICT).
    = 3.125 SQ_LDS_BANK_CONFLICT / SQ_LDS_IDX_ACTIVE - SQ_LDS_BANK_CONFLICT
lds_conflict_stall_pct | % | LDS stall% | rocprofiler-sdk LDSBankConflict
    Share of the cycles in which the LDS was stalled by bank conflicts: 100 x SQ_LDS_BANK_CONFLICT
    / (GPU cycles x CUs).
lds_latency_cycles | cycles | LDS lat. | panel 1200; rocprofiler-sdk LdsLatency
    Mean cycles of an LDS instruction: SQ_INST_LEVEL_LDS accumulated over the cycles /
    SQ_INSTS_LDS.
vmem_latency_cycles | cycles | VMEM lat. | panel 1100
    Mean cycles of a vector memory instruction: SQ_INST_LEVEL_VMEM accumulated over the cycles /
    SQ_INSTS_VMEM.
ta_busy_pct | % | TA % | panel 1500
    Share of the cycles in which the address units were busy: 100 x TA_TA_BUSY_sum / (GPU cycles x
    CUs).
vl1d_hit_pct | % | vL1D hit% | panel 0200
    Share of the vector L1 caches' accesses that needed no request to the L2 cache: 100 - 100 x
    requests to L2 / TCP_TOTAL_CACHE_ACCESSES_sum.
    = 100 * TCP_TOTAL_CACHE_ACCESSES_sum - TCP_TCC_READ_REQ_sum - TCP_TCC_WRITE_REQ_sum -
      TCP_TCC_ATOMIC_WITH_RET_REQ_sum - TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum /
      TCP_TOTAL_CACHE_ACCESSES_sum
vl1d_gbps | GB/s | vL1D GB/s | panel 0200
    Bandwidth of the vector L1 caches, if every access is a full line:
    TCP_TOTAL_CACHE_ACCESSES_sum x 128 B (gfx90a: 64 B) / duration.
    = l1_line_bytes * TCP_TOTAL_CACHE_ACCESSES_sum / counter_duration_ns
coalescing_pct | % | coalesc.% | panel 1600
    Coalescing of the threads' addresses, in % of the best case: 100 x 64 x
    TA_TOTAL_WAVEFRONTS_sum / (4 x TCP_TOTAL_ACCESSES_sum).
    = 100 * 64 TA_TOTAL_WAVEFRONTS_sum / 4 TCP_TOTAL_ACCESSES_sum
l1_l2_gbps | GB/s | L1-L2 GB/s | panel 1600
    Bandwidth from the vector L1 caches to L2: (reads x 128 B (gfx90a: 64 B) + (writes + atomics)
    x 64 B) / duration.
    = L1_L2_BYTES / counter_duration_ns
vl1d_data_stall_pct | % | vL1D stall | panel 1600
    Share of the vector L1 caches' cycles in which they waited for data from L2: 100 x
    TCP_PENDING_STALL_CYCLES_sum / TCP_GATE_EN1_sum.
sl1d_hit_pct | % | sL1D hit% | panels 1300 and 1400
    Share of the requests to the scalar L1 data caches that hit: 100 x SQC_DCACHE_HITS / (hits +
    misses + misses of lines already on their way).
    = 100 * SQC_DCACHE_HITS / SQC_DCACHE_HITS + SQC_DCACHE_MISSES + SQC_DCACHE_MISSES_DUPLICATE
sl1d_l2_peak_pct | % | sL1D-L2 % | panel 1400
    Requests from the scalar L1 data caches to L2 over the duration, in % of two per cycle and
    cache at the published clock.
    = 100 / 2 clock_mhz 1e-3 scalar_caches * SQC_TC_DATA_READ_REQ + SQC_TC_DATA_WRITE_REQ +
      SQC_TC_DATA_ATOMIC_REQ / counter_duration_ns
l1i_hit_pct | % | L1I hit% | panels 1300 and 1400
    Share of the requests to the L1 instruction caches that hit: 100 x SQC_ICACHE_HITS / (hits +
    misses + misses of lines already on their way).
    = 100 * SQC_ICACHE_HITS / SQC_ICACHE_HITS + SQC_ICACHE_MISSES + SQC_ICACHE_MISSES_DUPLICATE
l2_hit_pct | % | L2 hit% | panel 0200
    Share of the L2 caches' requests that hit: 100 x TCC_HIT_sum / (TCC_HIT_sum + TCC_MISS_sum).
l2_gbps | GB/s | L2 GB/s | panel 0200
    Bandwidth of the L2 caches, if every request is a full line: 128 x TCC_REQ_sum / duration.
l2_util_pct | % | L2 % | panel 1700
    Share of the cycles in which the L2 caches' channels were busy: 100 x TCC_BUSY_sum / (GPU
    cycles x channels).
fabric_read_bytes | B | fab.rd B | panel 0200; rocprofiler-sdk FETCH_SIZE
    Bytes of the L2 caches' reads over the fabric: 128 x TCC_BUBBLE_sum + 64 x (reads -
    TCC_BUBBLE_sum - reads of 32 B) + 32 x reads of 32 B; gfx90a has none of 128 B.
    = 128 TCC_BUBBLE_sum + 64 TCC_EA0_RDREQ_sum - 64 TCC_BUBBLE_sum - 64 TCC_EA0_RDREQ_32B_sum +
      32 TCC_EA0_RDREQ_32B_sum
fabric_read_gbps | GB/s | fab.rdGB/s | panel 0200
    Bandwidth of the L2 caches' reads over the fabric, to HBM and elsewhere: fabric_read_bytes /
    duration.
fabric_read_peak_pct | % | fab.rd pk% | panel 0200
    fabric_read_gbps in % of the memory's published bandwidth.
    = 100 / memory_gbps * fabric_read_bytes / counter_duration_ns
fabric_write_bytes | B | fab.wr B | panel 0200; rocprofiler-sdk WRITE_SIZE
    Bytes of the L2 caches' writes over the fabric: 64 x writes of 64 B + 32 x the other writes
    and atomics.
    = 64 TCC_EA0_WRREQ_64B_sum + 32 TCC_EA0_WRREQ_sum - 32 TCC_EA0_WRREQ_64B_sum
fabric_write_gbps | GB/s | fab.wrGB/s | panel 0200
    Bandwidth of the L2 caches' writes over the fabric, to HBM and elsewhere: fabric_write_bytes /
    duration.
fabric_write_peak_pct | % | fab.wr pk% | panel 0200
    fabric_write_gbps in % of the memory's published bandwidth.
    = 100 / memory_gbps * fabric_write_bytes / counter_duration_ns
fabric_read_latency_cycles | cycles | fab.rd lat | panel 0200
    Cycles of the L2 caches' reads over the fabric, mean: TCC_EA0_RDREQ_LEVEL_sum /
    TCC_EA0_RDREQ_sum.
fabric_write_latency_cycles | cycles | fab.wr lat | panel 0200
    Cycles of the L2 caches' writes over the fabric, mean: TCC_EA0_WRREQ_LEVEL_sum /
    TCC_EA0_WRREQ_sum.
hbm_read_pct | % | HBM rd% | panel 1700
    Share of the reads over the fabric that went to the GPU's own memory: 100 x
    TCC_EA0_RDREQ_DRAM_sum / TCC_EA0_RDREQ_sum.
remote_read_pct | % | remote rd% | panel 1700
    Share of the reads over the fabric that went elsewhere: 100 x (TCC_EA0_RDREQ_sum -
    TCC_EA0_RDREQ_DRAM_sum) / TCC_EA0_RDREQ_sum, not below 0.
    = 100 * TCC_EA0_RDREQ_sum - TCC_EA0_RDREQ_DRAM_sum / TCC_EA0_RDREQ_sum
""")

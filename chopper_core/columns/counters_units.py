"""The rest of the figures that counters give, unit by unit: instructions, LDS, the caches and their
address and data units, the fabric, the workgroup manager, the command processor.

With those of `counters_formulas` they are the original's `rocm_metrics.py`, by AMD's definitions
where the original's differ. What it can't have computed either is left out: its MFMA utilisation of
busy compute units, for which no counter exists.
"""

from __future__ import annotations

from chopper_core.columns.counters import formulas

_TYPES = ("f16", "bf16", "f32", "f64")
_VALU = ("f16", "f32", "f64")

formulas("""\
nominal_ns | ns | at nominal | UnaryLab/chopper Reported Duration
    Time of the GPU's cycles at its published clock: GRBM_GUI_ACTIVE / XCCs / clock.
    = 1e3 / xccs clock_mhz * GRBM_GUI_ACTIVE
nominal_gap_pct | % | clock gap% | UnaryLab/chopper Reported Duration Difference
    Duration beyond nominal_ns, in % of the duration: 100 - 100 x nominal_ns / duration; missing
    where the cycles would need 1.1 x the highest clock.
    = 1e5 / xccs clock_mhz * GRBM_GUI_ACTIVE / counter_duration_ns
""")
_MFMA = """
mfma_{name}_flop | FLOP | {type} FLOP | panel 1000
    Floating-point operations of the matrix units in {type}: 512 x SQ_INSTS_VALU_MFMA_MOPS_{type}.
    = 512 SQ_INSTS_VALU_MFMA_MOPS_{type}
"""
formulas("".join(_MFMA.format(name=each, type=each.upper()) for each in _TYPES))
_ISSUED = """
mfma_{name}_insts |  | {type} MFMAs | panel 1000
    Matrix instructions in {type}: SQ_INSTS_VALU_MFMA_{type}.
"""
formulas(
    "".join(_ISSUED.format(name=each, type=each.upper()) for each in ("i8", "f16", "f32", "f64"))
)
_OF_VALU = """
valu_{name}_flop | FLOP | VALU {type} | panel 1000
    Floating-point operations of the vector units in {type}: 64 x (adds + multiplies +
    transcendentals + 2 x FMAs).
    = 64 SQ_INSTS_VALU_ADD_{type} + 64 SQ_INSTS_VALU_MUL_{type} + 64 SQ_INSTS_VALU_TRANS_{type} +
      128 SQ_INSTS_VALU_FMA_{type}
valu_{name}_tflops | TFLOP/s | VALU {type}/s | panel 1000
    valu_{name}_flop per time.
    = 0.001 * valu_{name}_flop / counter_duration_ns
"""
formulas("".join(_OF_VALU.format(name=each, type=each.upper()) for each in _VALU))
formulas("""\
mfma_i8_op |  | I8 ops | panel 1000
    Integer operations of the matrix units: 512 x SQ_INSTS_VALU_MFMA_MOPS_I8.
    = 512 SQ_INSTS_VALU_MFMA_MOPS_I8
valu_f32_util_pct | % | VALU F32 % | UnaryLab/chopper VALU F32 FLOPs Util
    Operations in F32 of the vector units in % of 256 per cycle and CU.
    = 100 xccs / compute_units 256 * 64 SQ_INSTS_VALU_ADD_F32 + 64 SQ_INSTS_VALU_MUL_F32 + 64
      SQ_INSTS_VALU_TRANS_F32 + 128 SQ_INSTS_VALU_FMA_F32 / GRBM_GUI_ACTIVE
valu_cycles | cycles | VALU cyc. | UnaryLab/chopper VALU Cycles
    Cycles in which the vector unit of a CU worked, mean of the CUs: SQ_ACTIVE_INST_VALU / CUs.
    = 1 / compute_units * SQ_ACTIVE_INST_VALU
salu_insts |  | SALU | panel 1000
    Scalar instructions: SQ_INSTS_SALU.
smem_insts |  | SMEM | panel 1000
    Scalar memory instructions: SQ_INSTS_SMEM.
flat_insts |  | flat | UnaryLab/chopper Flat Issued
    Flat memory instructions: SQ_INSTS_FLAT.
vmem_insts |  | VMEM | panel 1000
    Vector memory instructions: SQ_INSTS_VMEM.
branch_insts |  | branches | panel 1000
    Branches: SQ_INSTS_BRANCH.
message_insts |  | messages | panel 1000
    Messages: SQ_INSTS_SENDMSG.
lds_moved_bytes | B | LDS moved | panel 0200
    Bytes of the LDS, if every access is full: 128 x (SQ_LDS_IDX_ACTIVE - SQ_LDS_BANK_CONFLICT).
    = 128 SQ_LDS_IDX_ACTIVE - 128 SQ_LDS_BANK_CONFLICT
lds_peak_pct | % | LDS peak% | panel 0200
    lds_gbps in % of 128 B per cycle and CU at the published clock.
    = 100 / clock_mhz 1e-3 compute_units 128 * lds_moved_bytes / counter_duration_ns
lds_clean_pct | % | LDS clean% | UnaryLab/chopper LDS Bank Conflicts/Access
    Share of the LDS's cycles without a bank conflict: 100 x (SQ_LDS_IDX_ACTIVE -
    SQ_LDS_BANK_CONFLICT) / SQ_LDS_IDX_ACTIVE.
lds_access_pct | % | LDS acc.% | panel 1200
    Access rate of the LDS: 200 x SQ_ACTIVE_INST_LDS / (GPU cycles x CUs).
utcl1_hit_pct | % | UTCL1 hit% | panel 1600
    Share of the vector L1 caches' address translations that hit: 100 x
    TCP_UTCL1_TRANSLATION_HIT_sum / TCP_UTCL1_REQUEST_sum.
vl1d_bytes | B | vL1D B | panel 0200
    Bytes of the vector L1 caches, if every access is a full line.
    = l1_line_bytes * TCP_TOTAL_CACHE_ACCESSES_sum
vl1d_peak_pct | % | vL1D peak% | panel 0200
    vl1d_gbps in % of a line per cycle and CU at the published clock.
    = 100 / clock_mhz 1e-3 compute_units * TCP_TOTAL_CACHE_ACCESSES_sum / counter_duration_ns
vl1d_util_pct | % | vL1D % | panel 1600
    Share of the vector L1 caches' cycles in which they worked: 100 x TCP_GATE_EN2_sum /
    TCP_GATE_EN1_sum.
vl1d_request_stall_pct | % | vL1D rq. | panel 1600
    Share of the vector L1 caches' cycles in which their requests to L2 waited: 100 x
    TCP_TCR_TCP_STALL_CYCLES_sum / TCP_GATE_EN1_sum.
vl1d_tag_read_stall_pct | % | tag rd | panel 1600
    Share of the vector L1 caches' cycles stalled by tag conflicts of reads: 100 x
    TCP_READ_TAGCONFLICT_STALL_CYCLES_sum / TCP_GATE_EN1_sum.
vl1d_tag_write_stall_pct | % | tag wr | panel 1600
    Share of the vector L1 caches' cycles stalled by tag conflicts of writes: 100 x
    TCP_WRITE_TAGCONFLICT_STALL_CYCLES_sum / TCP_GATE_EN1_sum.
vl1d_tag_atomic_stall_pct | % | tag at. | panel 1600
    Share of the vector L1 caches' cycles stalled by tag conflicts of atomics: 100 x
    TCP_ATOMIC_TAGCONFLICT_STALL_CYCLES_sum / TCP_GATE_EN1_sum.
vl1d_uncached |  | vL1D UC | panel 1600
    Uncached requests from the vector L1 caches to L2: reads + writes + atomics.
    = TCP_TCC_UC_READ_REQ_sum + TCP_TCC_UC_WRITE_REQ_sum + TCP_TCC_UC_ATOMIC_REQ_sum
ta_address_stall_pct | % | TA addr. | panel 1500
    Share of the cycles in which an address unit's addresses waited for the vector L1 cache: 100 x
    TA_ADDR_STALLED_BY_TC_CYCLES_sum / (GPU cycles x CUs).
ta_data_stall_pct | % | TA data | panel 1500
    Share of the cycles in which an address unit's data waited for the vector L1 cache: 100 x
    TA_DATA_STALLED_BY_TC_CYCLES_sum / (GPU cycles x CUs).
ta_td_stall_pct | % | TA-TD | panel 1500
    Share of the cycles in which an address unit waited for the data unit: 100 x
    TA_ADDR_STALLED_BY_TD_CYCLES_sum / (GPU cycles x CUs).
td_busy_pct | % | TD % | panel 1500
    Share of the cycles in which the data units were busy: 100 x TD_TD_BUSY_sum / (GPU cycles x
    CUs).
td_cache_stall_pct | % | TD cache | panel 1500
    Share of the cycles in which a data unit waited for the vector L1 cache: 100 x
    TD_TC_STALL_sum / (GPU cycles x CUs).
td_spi_stall_pct | % | TD SPI | panel 1500
    Share of the cycles in which a data unit waited for the workgroup manager: 100 x
    TD_SPI_STALL_sum / (GPU cycles x CUs).
l1_l2_read_gbps | GB/s | L2-L1 GB/s | panel 1600
    Bandwidth of the vector L1 caches' reads from L2: a line (128 B, gfx90a: 64 B) per request /
    duration.
    = l1_line_bytes * TCP_TCC_READ_REQ_sum / counter_duration_ns
l1_l2_write_gbps | GB/s | L1-L2 wr. | panel 1600
    Bandwidth of the vector L1 caches' writes and atomics to L2: 64 B per request / duration.
    = 64 * TCP_TCC_WRITE_REQ_sum + TCP_TCC_ATOMIC_WITH_RET_REQ_sum +
      TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum / counter_duration_ns
l2_bytes | B | L2 B | panel 0200
    Bytes of the L2 caches, if every request is a full line: 128 x TCC_REQ_sum.
    = 128 TCC_REQ_sum
l2_peak_pct | % | L2 peak% | panel 0200
    l2_gbps in % of 128 B per cycle and channel at the published clock.
    = 100 / clock_mhz 1e-3 l2_channels * TCC_REQ_sum / counter_duration_ns
l2_busy_pct | % | L2 busy% | UnaryLab/chopper My L2 Util
    Share of the L2 channels' own cycles in which they were busy: 100 x TCC_BUSY_sum /
    TCC_CYCLE_sum.
l2_streaming |  | L2 stream | panel 1700
    Streaming requests to the L2 caches: TCC_STREAMING_REQ_sum.
l2_uncached |  | L2 UC | panel 1700
    Uncached requests to the L2 caches: TCC_UC_REQ_sum.
sl1d_peak_pct | % | sL1D peak% | panel 1400
    Requests to the scalar L1 data caches over the duration, in % of one per cycle and cache at the
    published clock.
    = 100 / clock_mhz 1e-3 scalar_caches * SQC_DCACHE_REQ / counter_duration_ns
sl1d_l2_gbps | GB/s | sL1D-L2 | panel 1400
    Bandwidth between the scalar L1 data caches and L2: 64 B per request / duration.
    = 64 * SQC_TC_DATA_READ_REQ + SQC_TC_DATA_WRITE_REQ + SQC_TC_DATA_ATOMIC_REQ /
      counter_duration_ns
l1i_l2_gbps | GB/s | L1I-L2 | panel 1300
    Bandwidth from L2 to the L1 instruction caches: 64 x SQC_TC_INST_REQ / duration.
l1i_l2_peak_pct | % | L1I-L2 % | panel 1300
    Requests from the L1 instruction caches to L2 over the duration, in % of two per cycle and
    cache at the published clock.
    = 100 / 2 clock_mhz 1e-3 scalar_caches * SQC_TC_INST_REQ / counter_duration_ns
fabric_32b |  | fab. 32 B | panel 1700
    Requests of 32 B over the fabric, reads and writes.
    = TCC_EA0_RDREQ_32B_sum + TCC_EA0_WRREQ_sum - TCC_EA0_WRREQ_64B_sum
fabric_64b |  | fab. 64 B | panel 1700
    Requests of 64 B over the fabric, reads and writes.
    = TCC_EA0_RDREQ_sum - TCC_BUBBLE_sum - TCC_EA0_RDREQ_32B_sum + TCC_EA0_WRREQ_64B_sum
fabric_128b |  | fab. 128 B | panel 1700
    Reads of 128 B over the fabric: TCC_BUBBLE_sum.
fabric_bytes | B | fab. B | panel 0200
    Bytes over the fabric: fabric_read_bytes + fabric_write_bytes.
    = 64 TCC_BUBBLE_sum + 64 TCC_EA0_RDREQ_sum - 32 TCC_EA0_RDREQ_32B_sum + 32
      TCC_EA0_WRREQ_64B_sum + 32 TCC_EA0_WRREQ_sum
fabric_gbps | GB/s | fab. GB/s | panel 0200
    Bandwidth over the fabric, reads and writes: fabric_bytes / duration.
fabric_uncached_bytes | B | fab. UC B | UnaryLab/chopper EA Uncached Bytes
    Uncached bytes over the fabric, in units of 32 B.
    = 32 TCC_EA0_WR_UNCACHED_32B_sum + 32 TCC_EA0_RD_UNCACHED_32B_sum
pipe_not_scheduled_pct | % | pipe n.s. | panel 0600
    Share of the cycles in which a scheduler pipe could place nothing: 100 x SPI_RA_REQ_NO_ALLOC /
    (GRBM_SPI_BUSY per XCC x shader engines).
scratch_stall_pct | % | scratch | panel 0600
    Share of the cycles in which workgroups waited for scratch memory: 100 x
    SPI_RA_TMP_STALL_CSN / (GRBM_SPI_BUSY per XCC x shader engines).
sgpr_full_pct | % | SGPR full | panel 0600
    Share of the CUs' cycles in which workgroups waited because SGPRs were too few: 100 x
    SPI_RA_SGPR_SIMD_FULL_CSN / (GPU cycles x CUs).
barriers_full_pct | % | bar. full | panel 0600
    Share of the CUs' cycles in which workgroups waited because barriers were too few: 400 x
    SPI_RA_BAR_CU_FULL_CSN / (GPU cycles x CUs).
workgroups_full_pct | % | WG full | panel 0600
    Share of the CUs' cycles in which workgroups waited because of the CU's limit of workgroups: 400
    x SPI_RA_TGLIM_CU_FULL_CSN / (GPU cycles x CUs).
waves_full_pct | % | wave limit | panel 0600
    Share of the CUs' cycles in which workgroups waited because of the CU's limit of waves: 400 x
    SPI_RA_WVLIM_STALL_CSN / (GPU cycles x CUs).
vgpr_write_cycles | cycles | VGPR init | panel 0600
    Cycles of writing a wave's first VGPRs, mean: 4 x SPI_VWC_CSC_WR / SPI_CSN_WAVE.
cpf_stall_pct | % | CPF stall | panel 0500
    Share of the fetcher's busy time in which it stalled: 100 x CPF_CPF_STAT_STALL /
    CPF_CPF_STAT_BUSY.
cpf_l2_util_pct | % | CPF-L2 % | panel 0500
    Share of the time in which the fetcher's path to L2 was busy: 100 x CPF_CPF_TCIU_BUSY /
    (CPF_CPF_TCIU_BUSY + CPF_CPF_TCIU_IDLE).
cpf_l2_stall_pct | % | CPF-L2 st. | panel 0500
    Share of its busy time in which the fetcher's path to L2 stalled: 100 x CPF_CPF_TCIU_STALL /
    CPF_CPF_TCIU_BUSY.
cpf_utcl1_stall_pct | % | CPF UTCL1 | panel 0500
    Share of the fetcher's busy time in which it waited for address translation: 100 x
    CPF_CMP_UTCL1_STALL_ON_TRANSLATION / CPF_CPF_STAT_BUSY.
cpc_stall_pct | % | CPC stall | panel 0500
    Share of the packet processor's busy time in which it stalled: 100 x CPC_CPC_STAT_STALL /
    CPC_CPC_STAT_BUSY.
cpc_decode_pct | % | CPC decode | panel 0500
    Share of the packet processor's busy time in which it decoded packets: 100 x
    CPC_ME1_BUSY_FOR_PACKET_DECODE / CPC_CPC_STAT_BUSY.
cpc_dispatch_pct | % | CPC disp. | panel 0500
    Share of the packet processor's busy time in which it fed the workgroup manager: 100 x
    CPC_ME1_DC0_SPI_BUSY / CPC_CPC_STAT_BUSY.
cpc_l2_util_pct | % | CPC-L2 % | panel 0500
    Share of the time in which the packet processor's path to L2 was busy: 100 x CPC_CPC_TCIU_BUSY /
    (CPC_CPC_TCIU_BUSY + CPC_CPC_TCIU_IDLE).
cpc_utcl1_stall_pct | % | CPC UTCL1 | panel 0500
    Share of the packet processor's busy time in which it waited for address translation: 100 x
    CPC_UTCL1_STALL_ON_TRANSLATION / CPC_CPC_STAT_BUSY.
cpc_utcl2_util_pct | % | CPC UTCL2 | panel 0500
    Share of the time in which the packet processor's second level of address translation was busy:
    100 x CPC_CPC_UTCL2IU_BUSY / (CPC_CPC_UTCL2IU_BUSY + CPC_CPC_UTCL2IU_IDLE).
""")

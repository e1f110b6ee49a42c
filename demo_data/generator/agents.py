"""The devices of the node as rocprofv3 describes them in agent_info.csv."""

from __future__ import annotations

from generator.kineto import FIRST_NODE

BUSES = (0x0C, 0x22, 0x38, 0x5C, 0x9F, 0xAF, 0xBF, 0xDF)
COLUMN_NAMES = (
    "Node_Id Logical_Node_Id Agent_Type Cpu_Cores_Count Simd_Count Cpu_Core_Id_Base Simd_Id_Base "
    "Max_Waves_Per_Simd Lds_Size_In_Kb Gds_Size_In_Kb Num_Gws Wave_Front_Size Num_Xcc Cu_Count "
    "Array_Count Num_Shader_Banks Simd_Arrays_Per_Engine Cu_Per_Simd_Array Simd_Per_Cu "
    "Max_Slots_Scratch_Cu Gfx_Target_Version Vendor_Id Device_Id Location_Id Domain "
    "Drm_Render_Minor Num_Sdma_Engines Num_Sdma_Xgmi_Engines Num_Sdma_Queues_Per_Engine "
    "Num_Cp_Queues Max_Engine_Clk_Ccompute Max_Engine_Clk_Fcompute Sdma_Fw_Version Fw_Version "
    "Capability Cu_Per_Engine Max_Waves_Per_Cu Family_Id Workgroup_Max_Size Grid_Max_Size "
    "Local_Mem_Size Hive_Id Gpu_Id Workgroup_Max_Dim_X Workgroup_Max_Dim_Y Workgroup_Max_Dim_Z "
    "Grid_Max_Dim_X Grid_Max_Dim_Y Grid_Max_Dim_Z Name Vendor_Name Product_Name Model_Name"
)
COLUMNS = COLUMN_NAMES.split()

CPU: dict[str, int | str] = {
    "Agent_Type": "CPU",
    "Cpu_Cores_Count": 96,
    "Max_Engine_Clk_Ccompute": 3700,
    "Name": "AMD EPYC 9654 96-Core Processor",
    "Vendor_Name": "CPU",
    "Product_Name": "AMD EPYC 9654 96-Core Processor",
}
GPU: dict[str, int | str] = {
    "Agent_Type": "GPU",
    "Simd_Count": 1216,
    "Max_Waves_Per_Simd": 8,
    "Lds_Size_In_Kb": 64,
    "Num_Gws": 64,
    "Wave_Front_Size": 64,
    "Num_Xcc": 8,
    "Cu_Count": 304,
    "Array_Count": 32,
    "Num_Shader_Banks": 32,
    "Simd_Arrays_Per_Engine": 1,
    "Cu_Per_Simd_Array": 10,
    "Simd_Per_Cu": 4,
    "Max_Slots_Scratch_Cu": 32,
    "Gfx_Target_Version": 90402,
    "Vendor_Id": 4098,
    "Device_Id": 29857,
    "Num_Sdma_Engines": 2,
    "Num_Sdma_Xgmi_Engines": 14,
    "Num_Sdma_Queues_Per_Engine": 8,
    "Num_Cp_Queues": 24,
    "Max_Engine_Clk_Ccompute": 3700,
    "Max_Engine_Clk_Fcompute": 2100,
    "Sdma_Fw_Version": 22,
    "Fw_Version": 177,
    "Capability": 950_208_128,
    "Cu_Per_Engine": 10,
    "Max_Waves_Per_Cu": 32,
    "Family_Id": 145,
    "Workgroup_Max_Size": 1024,
    "Grid_Max_Size": 4_294_967_295,
    "Workgroup_Max_Dim_X": 1024,
    "Workgroup_Max_Dim_Y": 1024,
    "Workgroup_Max_Dim_Z": 1024,
    "Grid_Max_Dim_X": 2_147_483_647,
    "Grid_Max_Dim_Y": 65_535,
    "Grid_Max_Dim_Z": 65_535,
    "Name": "gfx942",
    "Vendor_Name": "AMD",
    "Product_Name": "AMD Instinct MI300X",
    "Model_Name": "ip discovery",
}


def agents_csv() -> str:
    """Two processors and eight GPUs, whose nodes come after the processors'."""
    rows: list[dict[str, int | str]] = [
        {**CPU, "Cpu_Core_Id_Base": 96 * socket} for socket in range(FIRST_NODE)
    ]
    for index, bus in enumerate(BUSES):
        place = {"Location_Id": bus << 8, "Drm_Render_Minor": 128 + 8 * index}
        rows.append({**GPU, **place, "Gpu_Id": 20_011 + 4_099 * index})
    lines = [_line({**row, "Node_Id": n, "Logical_Node_Id": n}) for n, row in enumerate(rows)]
    return ",".join(f'"{name}"' for name in COLUMNS) + "\n" + "".join(lines)


def _line(row: dict[str, int | str]) -> str:
    cells = (row.get(name, "" if name == "Model_Name" else 0) for name in COLUMNS)
    return ",".join(f'"{cell}"' if isinstance(cell, str) else str(cell) for cell in cells) + "\n"

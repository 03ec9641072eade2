#!/usr/bin/env python3
"""Prints what the kernels of a run cost on GPUs that need not be there: registers, stack, spills, shared memory, resident
warps, and the arithmetic in the hottest loop.

    cargo install naga-cli                     # translates WGSL
    benches/gpu_static.py                      # the fused kernels of fruit and catch, for an H100 (sm_90)
    benches/gpu_static.py --arch sm_89 --run fruit --set policy.hidden=[256,256]
    benches/gpu_static.py --radv /usr/lib/x86_64-linux-gnu/libvulkan_radeon.so    # and for an AMD card (Mesa 25 or newer)

A run of one iteration on a software adapter (VK_DRIVER_FILES, by default SwiftShader's) makes CubeCL log its kernels in
WGSL. For NVIDIA, naga turns them into Metal's C++, a header makes CUDA of that, and nvrtc and ptxas, from NVIDIA's Python
wheels (135 MB, installed into --cache), compile it. CubeCL's own CUDA kernels are near that but not the same text, so the
numbers are estimates. For AMD, naga turns them into SPIR-V, and Mesa's driver compiles it for a card that is not there. The
columns are those of a thread (registers, stack and spills in bytes), of a block (threads, bytes of shared memory), the
share of a multiprocessor's warps or of a SIMD's waves that can be resident, and the instructions of the innermost loop
that has most multiply-adds, with their share. Exit status: 0 if every kernel was compiled.
"""

import argparse
import collections
import ctypes
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWIFTSHADER = "/usr/lib/chromium/vk_swiftshader_icd.json"
WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvdisasm")
# Runs whose kernels are shown unless another is named: perceptrons of one and two layers, narrow and wide, and a board.
RUNS = (
    ("fruit", "policy.hidden=[64]"),
    ("fruit", "policy.hidden=[64,64]"),
    ("fruit", "policy.hidden=[256,256]"),
    ("catch", "policy.hidden=[128]"),
)
# The beginnings of the names of Burn's own kernels, which are left out.
BURN = ("full_", "kernel_", "slice_", "reduce_", "gather_", "matmul_")
# A multiprocessor: registers, warps, bytes of shared memory, bytes that the driver takes of a block.
MULTIPROCESSORS = {
    "sm_80": (65_536, 64, 164 << 10, 1 << 10),
    "sm_86": (65_536, 48, 100 << 10, 1 << 10),
    "sm_89": (65_536, 48, 100 << 10, 1 << 10),
    "sm_90": (65_536, 64, 228 << 10, 1 << 10),
}
# Metal's names in CUDA. Qualifiers of address spaces vanish, since everything is inlined into a kernel with pointers.
HEADER = """
#define device
#define constant const
#define threadgroup
#define thread
#define kernel static __device__ __forceinline__
typedef unsigned int uint;
namespace metal {
typedef unsigned int uint;
using ::float2; using ::float3; using ::float4; using ::uint2; using ::uint3; using ::uint4; using ::int2; using ::int4;
struct mem_flags { enum kind { mem_none, mem_device, mem_threadgroup }; };
#define INLINE __device__ __forceinline__
INLINE void threadgroup_barrier(mem_flags::kind) { __syncthreads(); }
INLINE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
INLINE float exp(float x) { return __expf(x); }
INLINE float log(float x) { return __logf(x); }
INLINE float sqrt(float x) { return sqrtf(x); }
INLINE float rsqrt(float x) { return rsqrtf(x); }
INLINE float tanh(float x) { return tanhf(x); }
INLINE float pow(float x, float y) { return powf(x, y); }
INLINE float floor(float x) { return floorf(x); }
INLINE float ceil(float x) { return ceilf(x); }
INLINE float abs(float x) { return fabsf(x); }
INLINE int abs(int x) { return x < 0 ? -x : x; }
INLINE float max(float a, float b) { return fmaxf(a, b); }
INLINE float min(float a, float b) { return fminf(a, b); }
template <class T> INLINE T max(T a, T b) { return a > b ? a : b; }
template <class T> INLINE T min(T a, T b) { return a < b ? a : b; }
template <class T> INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <class T> INLINE T select(T no, T yes, bool is) { return is ? yes : no; }
INLINE uint mulhi(uint a, uint b) { return __umulhi(a, b); }
INLINE bool isnan(float x) { return x != x; }
}
template <class T, class F> INLINE T as_type(F from) {
    static_assert(sizeof(T) == sizeof(F), "one size");
    union { F from; T to; } both;
    both.from = from;
    return both.to;
}
"""
# CUDA's expressions for Metal's attributes of a parameter.
BUILTINS = {
    "thread_index_in_threadgroup": "threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)",
    "thread_position_in_threadgroup": "make_uint3(threadIdx.x, threadIdx.y, threadIdx.z)",
    "threadgroup_position_in_grid": "make_uint3(blockIdx.x, blockIdx.y, blockIdx.z)",
    "threadgroups_per_grid": "make_uint3(gridDim.x, gridDim.y, gridDim.z)",
    "thread_position_in_grid": "make_uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, "
    "blockIdx.z * blockDim.z + threadIdx.z)",
}


def logged_kernels(program, game, changes):
    """Grove's kernels of one iteration, as WGSL by their names."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "kernels.log"
        command = [program, "train", game, "--device", "wgpu:0", "--iterations", "1", "--run-dir", f"{folder}/run"]
        for change in changes:
            command += ["--set", change]
        environment = {"VK_DRIVER_FILES": SWIFTSHADER, **os.environ, "CUBECL_DEBUG_LOG": str(log)}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{ran.stderr[-2000:]}")
        text = log.read_text(errors="replace")
    kernels = {}
    for source in re.findall(r"```wgsl\n(.*?)```", text, re.S):
        name = re.search(r"@compute[^{]*?fn (\w+)\(", source, re.S)
        if not name[1].startswith(BURN):
            kernels.setdefault(name[1], source)
    return kernels


def metal(wgsl):
    """The kernel in Metal's C++, without naga's guards: CubeCL turns off bounded loops and the zeroing of memory."""
    with tempfile.TemporaryDirectory() as folder:
        ends = [Path(folder) / f"kernel.{end}" for end in ("wgsl", "metal")]
        ends[0].write_text(wgsl)
        subprocess.run(["naga", *map(str, ends), "--metal-version", "2.4"], check=True, capture_output=True, text=True)
        text = ends[1].read_text()
    text = re.sub(r"^(#include|using).*\n|.*\bloop_bound.*\n|\[\[max_total_threads.*?\]\] ", "", text, flags=re.M)
    zeroed = r" *if \(\w+ == 0u\) \{\n(?: *\w+ = \{\};\n)+ *\}\n *metal::threadgroup_barrier\(metal::mem_flags::mem_threadgroup\);\n"
    return re.sub(zeroed, "", text, count=1)


def cuda(wgsl):
    """CUDA C++ with an entry that calls the kernel, and the threads of a block."""
    text = metal(wgsl)
    size = [int(number) for number in re.search(r"@workgroup_size\((\d+)[,\s]*(\d+)?[,\s]*(\d+)?", wgsl).groups("1")]
    threads = size[0] * size[1] * size[2]
    head = re.search(r"kernel void (\w+)\(\n(.*?)\n\) \{", text, re.S)
    name, inside = head.groups()
    parameters, pointers, shared, values = [], [], [], []
    for parameter in re.split(r"\n, ", inside.strip()):
        attribute = (re.search(r"\[\[(\w+)", parameter) or [None, ""])[1]
        plain = re.sub(r"\s*\[\[.*?\]\]", "", parameter).strip()
        parameters.append(plain)
        kind, variable = re.match(r"(?:device |constant |threadgroup )?(.*?)[&\s]*(\w+)$", plain).groups()
        is_const = plain.startswith("constant ") or kind.endswith(" const")
        kind = kind.removesuffix(" const")
        if attribute in BUILTINS:
            values.append(BUILTINS[attribute])
        elif plain.startswith("threadgroup "):
            shared.append(f"__shared__ __align__(16) {kind} {variable};")
            values.append(variable)
        elif kind == "info_st":
            # CubeCL passes sizes and scalars by value.
            pointers.append(f"const __grid_constant__ {kind} {variable}")
            values.append(variable)
        else:
            pointers.append(f"{'const ' if is_const else ''}{kind}* __restrict__ {variable}")
            values.append(f"*{variable}")
    entry = (
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}_entry({", ".join(pointers)}) {{\n'
        f"{chr(10).join(shared)}\n{name}({', '.join(values)});\n}}\n"
    )
    text = text[: head.start()] + f"kernel void {name}({', '.join(parameters)}) {{" + text[head.end() :]
    # Metal's numbers are single precision, and its functions are called by the kernel alone.
    text = re.sub(r"(?<![\w.])(\d+\.\d*(?:e[-+]?\d+)?)(?![\w.])", r"\1f", text)
    text = re.sub(r"^([\w:]+) (naga_\w+)\(", r"static __device__ __forceinline__ \1 \2(", text, flags=re.M)
    return HEADER + text + entry, threads


class Toolkit:
    """NVIDIA's compiler, assembler and disassembler."""

    def __init__(self, cache):
        if not glob.glob(f"{cache}/**/ptxas", recursive=True):
            cache.mkdir(parents=True, exist_ok=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(cache), *WHEELS]
            subprocess.run(pip, check=True)
        find = lambda name: next(iter(sorted(glob.glob(f"{cache}/**/{name}", recursive=True), key=len)))
        self.ptxas, self.nvdisasm = find("ptxas"), find("nvdisasm")
        for tool in (self.ptxas, self.nvdisasm):
            os.chmod(tool, 0o755)
        ctypes.CDLL(find("libnvrtc-builtins.so.*"), mode=ctypes.RTLD_GLOBAL)
        self.nvrtc = ctypes.CDLL(find("libnvrtc.so.*"))

    def ptx(self, source, arch):
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        flags = [f"--gpu-architecture={arch.replace('sm', 'compute')}".encode(), b"--std=c++17", b"-default-device"]
        failed = self.nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        kind = "ProgramLog" if failed else "PTX"
        getattr(self.nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.nvrtc, f"nvrtcGet{kind}")(program, text)
        self.nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        if failed:
            raise ValueError(text.value.decode())
        return text.value

    def assemble(self, source, arch):
        """Assembles a kernel; returns ptxas's report and the instructions."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "k.ptx").write_bytes(self.ptx(source, arch))
            assembled = subprocess.run([self.ptxas, "-arch", arch, "-v", "k.ptx", "-o", "k.cubin"], cwd=folder, check=True, capture_output=True, text=True)
            code = subprocess.run([self.nvdisasm, "-c", "k.cubin"], cwd=folder, check=True, capture_output=True, text=True)
        return assembled.stderr + assembled.stdout, code.stdout


def hottest_loop(code):
    """Instructions of the innermost loop that has most arithmetic, counted by their names."""
    instructions, labels = [], {}
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?);", line):
            instructions.append(found[1])
    loops = set()
    for at, instruction in enumerate(instructions):
        target = re.match(r"BRA.*\((\.L_x_\d+)\)", instruction)
        if target and labels[target[1]] <= at:
            loops.add((labels[target[1]], at))
    innermost = [(a, b) for a, b in loops if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in loops)]
    counts = [collections.Counter(word.split(".")[0].split()[0] for word in instructions[a : b + 1]) for a, b in innermost]
    return max(counts, key=arithmetic, default=collections.Counter())


def arithmetic(counts):
    return counts["FFMA"] + counts["HMMA"] + counts["HFMA2"]


def resident(arch, threads, registers, shared):
    """Share of a multiprocessor's warps that blocks of a kernel keep busy."""
    all_registers, all_warps, all_shared, own = MULTIPROCESSORS[arch]
    warps = -(-threads // 32)
    # Registers are given to a warp in steps of 256.
    by_registers = all_registers // (warps * -(-registers * 32 // 256) * 256)
    blocks = min(by_registers, all_warps // warps, all_shared // (shared + own), 32)
    return blocks * warps / all_warps


def nvidia(toolkit, kernels, arch):
    for name, wgsl in kernels.items():
        source, threads = cuda(wgsl)
        said, code = toolkit.assemble(source, arch)
        number = lambda pattern: int((re.search(pattern, said) or [0, 0])[1])
        loop = hottest_loop(code)
        registers, shared = number(r"Used (\d+) registers"), number(r"(\d+) bytes smem")
        yield {
            "kernel": name,
            "threads": threads,
            "registers": registers,
            "stack": number(r"(\d+) bytes stack frame"),
            "spills": number(r"(\d+) bytes spill stores"),
            "shared": shared,
            "warps": f"{resident(arch, threads, registers, shared):.0%}",
            "loop": sum(loop.values()),
            "multiply-adds": f"{arithmetic(loop) / max(sum(loop.values()), 1):.0%}",
        }


def amd(kernels, driver, family):
    with tempfile.TemporaryDirectory() as folder:
        icd, spirv = Path(folder) / "icd.json", Path(folder) / "kernel.spv"
        icd.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(driver), "api_version": "1.3.0"}}))
        environment = {**os.environ, "VK_DRIVER_FILES": str(icd), "RADV_FORCE_FAMILY": family, "RADV_DEBUG": "shaderstats,nocache"}
        for name, wgsl in kernels.items():
            (Path(folder) / "kernel.wgsl").write_text(wgsl)
            subprocess.run(["naga", f"{folder}/kernel.wgsl", str(spirv)], check=True, capture_output=True, text=True)
            bindings = dict(re.findall(r"@binding\((\d+)\) var<(\w)", wgsl))
            letters = "".join(bindings[str(at)] for at in range(len(bindings)))
            command = [sys.executable, ROOT / "benches/vulkan_pipeline.py", spirv, name, letters]
            said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr
            number = lambda label: int(re.search(rf"^{label}: (\d+)", said, re.M)[1])
            yield {
                "VGPRs": number("VGPRs"),
                "scratch": number("Scratch size"),
                "spilled": number("Spilled VGPRs") + number("Spilled SGPRs"),
                "LDS": number("LDS size"),
                "waves": number("Subgroups per SIMD"),
            }


def table(rows):
    """Rows as an aligned table."""
    columns = list(rows[0])
    widths = [max(len(str(row[column])) for row in (dict(zip(columns, columns)), *rows)) for column in columns]
    for row in (dict(zip(columns, columns)), *rows):
        cells = (str(row[column]) for column in columns)
        print("  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(cells, widths))))
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grove", default=ROOT / "target/release/grove", help="the program")
    parser.add_argument("--run", metavar="GAME", help="the game to train, instead of four runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of that run")
    parser.add_argument("--arch", default="sm_90", choices=sorted(MULTIPROCESSORS), help="the NVIDIA architecture")
    parser.add_argument("--radv", metavar="LIBRARY", help="Mesa's libvulkan_radeon.so of version 25 or newer")
    parser.add_argument("--family", default="navi31", help="the AMD card, as RADV_FORCE_FAMILY names it")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the kernels in WGSL")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/grove/gpu-static", help="NVIDIA's tools")
    args = parser.parse_args()
    runs = [(args.run, args.set)] if args.run else [(game, [change]) for game, change in RUNS]
    toolkit = Toolkit(args.cache)
    for game, changes in runs:
        kernels = logged_kernels(args.grove, game, changes)
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            for name, wgsl in kernels.items():
                (args.keep / f"{name}.wgsl").write_text(wgsl)
        print(f"{game} {' '.join(changes)}: {args.arch}{f' and {args.family}' if args.radv else ''}")
        rows = list(nvidia(toolkit, kernels, args.arch))
        if args.radv:
            rows = [{**row, **other} for row, other in zip(rows, amd(kernels, args.radv, args.family))]
        table(rows)


if __name__ == "__main__":
    main()

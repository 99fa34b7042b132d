#!/usr/bin/env python3
"""Makes deliberate mistakes in copies of the declarations, and asks whether tests/abi.rs sees each.

Needs the headers that headers.py lays out; with --matrix, the mistakes that only the whole matrix
can see are made as well (headers.py --all). Ends with the count, and 1 if one was not seen.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NCCL, CONFIG, TYPES = "nccl/ffi.rs", "nccl/config.rs", "nccl/types.rs"
CUDA, CUDA_TYPES = "cuda/ffi.rs", "cuda/types.rs"


# In place of a new text: the old one goes, with its doc and attributes.
LEFT_OUT = None


def fn(name):
    return f"pub fn {name}("


# What it is, the file, where to start, and then pairs: the next `old` becomes `new`.
MISTAKES = [
    # Functions
    ("arguments of two types swapped", NCCL, fn("ncclAllReduce"),
     "count: usize,\n        datatype: NcclDataType,", "datatype: NcclDataType,\n        count: usize,"),
    ("arguments of one type swapped", NCCL, fn("ncclCommInitRank"),
     "nranks: i32,\n        comm_id: NcclUniqueId,\n        rank: i32,",
     "rank: i32,\n        comm_id: NcclUniqueId,\n        nranks: i32,"),
    ("signal and context swapped", NCCL, fn("ncclPutSignal"),
     "sig_idx: i32,\n        ctx: i32,", "ctx: i32,\n        sig_idx: i32,"),
    ("an argument missing", NCCL, fn("ncclAllReduce"), "        op: NcclRedOp,\n", ""),
    ("the last argument missing", NCCL, fn("ncclBroadcast"), "        stream: CuStream,\n", ""),
    ("an argument too many", NCCL, fn("ncclCommDestroy"), "comm: NcclComm", "comm: NcclComm, flags: i32"),
    ("an argument where there is none", NCCL, fn("ncclGroupStart"), "()", "(flags: i32)"),
    ("const lost", NCCL, fn("ncclAllReduce"), "sendbuff: *const", "sendbuff: *mut"),
    ("const added", NCCL, fn("ncclAllReduce"), "recvbuff: *mut", "recvbuff: *const"),
    ("const lost within", NCCL, fn("ncclParamGetStr"), "*mut *const c_char", "*mut *mut c_char"),
    ("unsigned for signed", NCCL, fn("ncclCommInitRank"), "nranks: i32", "nranks: u32"),
    ("signed for unsigned", NCCL, fn("ncclSignal"), "flags: u32", "flags: i32"),
    ("a number too short", NCCL, fn("ncclSend"), "count: usize", "count: u32"),
    ("u64 for size_t", NCCL, fn("ncclSend"), "count: usize", "count: u64"),
    ("usize for uint64_t", NCCL, fn("ncclCommMemStats"), "value: *mut u64", "value: *mut usize"),
    ("int64_t for uint64_t", NCCL, fn("ncclParamGetU64"), "*mut u64", "*mut i64"),
    ("int8_t for uint8_t", NCCL, fn("ncclParamGetU8"), "*mut u8", "*mut i8"),
    ("a pointer for a value", NCCL, fn("ncclCommInitRank"), "comm_id: NcclUniqueId",
     "comm_id: *const NcclUniqueId"),
    ("a value for a pointer", NCCL, fn("ncclCommCount"), "count: *mut i32", "count: i32"),
    ("one pointer too few", NCCL, fn("ncclMemAlloc"), "*mut *mut c_void", "*mut c_void"),
    ("one pointer too many", NCCL, fn("ncclCommAbort"), "comm: NcclComm", "comm: *mut NcclComm"),
    ("a bare u64 for a stream", NCCL, fn("ncclAllReduce"), "stream: CuStream", "stream: u64"),
    ("an event for a stream", NCCL, fn("ncclAllReduce"), "stream: CuStream", "stream: CuEvent"),
    ("a window for a communicator", NCCL, fn("ncclCommFinalize"), "NcclComm", "NcclWindow"),
    ("another enum", NCCL, fn("ncclAllReduce"), "op: NcclRedOp", "op: NcclDataType"),
    ("an int for an enum", NCCL, fn("ncclAllReduce"), "datatype: NcclDataType", "datatype: i32"),
    ("another struct", NCCL, fn("ncclAllReduceConfig"), "*const NcclCollConfig", "*const NcclConfig"),
    ("another result", NCCL, fn("ncclGetErrorString"), "-> *const c_char", "-> NcclResult"),
    ("a result too few", NCCL, fn("ncclGetVersion"), " -> NcclResult", ""),
    ("a result too many", NCCL, fn("ncclParamDumpAll"), "()", "() -> NcclResult"),
    ("a name misspelt", NCCL, "", "ncclAlltoAll(", "ncclAllToAll("),
    ("a function left out", NCCL, "", "pub fn ncclGroupEnd() -> NcclResult;", LEFT_OUT),
    ("a function too many", NCCL, "", "pub fn ncclGroupEnd",
     "pub fn ncclGroupAbort() -> NcclResult;\n\n    pub fn ncclGroupEnd"),
    ("a parameter misnamed", NCCL, fn("ncclScatter"), "root: i32", "rank: i32"),
    # Structs
    ("fields swapped", CONFIG, "pub struct NcclConfig {",
     "pub magic: u32,", "pub version: u32,", "pub version: u32,", "pub magic: u32,"),
    ("C names of fields swapped", CONFIG, "pub struct NcclConfig {",
     '"minCTAs"', '"maxCTAs"', '"maxCTAs"', '"minCTAs"'),
    ("Rust names of fields swapped", CONFIG, "pub struct NcclConfig {",
     "pub min_ctas", "pub max_ctas", "pub max_ctas:", "pub min_ctas:"),
    ("an unsigned field", CONFIG, "pub struct NcclConfig {", "pub blocking: i32", "pub blocking: u32"),
    ("a field too long", CONFIG, "pub struct NcclConfig {", "pub nvls_host_mode: i32", "pub nvls_host_mode: i64"),
    ("a field too short", CONFIG, "pub struct NcclCollConfig {", "pub size: usize", "pub size: u32"),
    ("const lost in a field", CONFIG, "pub struct NcclConfig {", "net_name: *const", "net_name: *mut"),
    ("usize for a field of uint64_t", CONFIG, "", "user_profiler_tag: u64", "user_profiler_tag: usize"),
    ("a bare u64 for a field's event", CONFIG, "", "launch_completion_event: CuEvent", "launch_completion_event: u64"),
    ("a field missing", CONFIG, "pub struct NcclConfig {", "pub num_rma_sig: i32,", LEFT_OUT),
    ("a field missing before padding", CONFIG, "", "pub nvls_host_mode: i32,", LEFT_OUT),
    ("a field too many, in padding", CONFIG, "", "pub nvls_host_mode: i32,",
     "pub nvls_host_mode: i32,\n    pub spare: i32,"),
    ("a member of a union missing", CONFIG, "pub union", "pub s: *const c_char,", LEFT_OUT),
    ("a struct for a union", CONFIG, "", "pub union", "pub struct"),
    ("fields of an inner struct swapped", CONFIG, "pub struct NcclConfigExtKey",
     '"vendorId"', '"optionId"', '"optionId"', '"vendorId"'),
    ("an array too short", TYPES, "", "NCCL_UNIQUE_ID_BYTES: usize = 128", "NCCL_UNIQUE_ID_BYTES: usize = 127"),
    ("a number for a fraction", TYPES, "pub struct NcclSimInfo", "estimated_time: f32", "estimated_time: u32"),
    ("repr(C) lost", TYPES, 'alias = "ncclSimInfo_t"', "#[repr(C)]\n", ""),
    ("a struct under another name", TYPES, "", '"ncclSimInfo_t"', '"ncclSimInfo"'),
    # Handles
    ("a handle too short", CUDA_TYPES, "", "CuStream = u64", "CuStream = u32"),
    ("a signed device pointer", CUDA_TYPES, "", "CuDevicePtr = u64", "CuDevicePtr = i64"),
    ("a device too long", CUDA_TYPES, "", "CuDevice = i32", "CuDevice = u64"),
    ("a communicator as a number", TYPES, "", "NcclComm = *mut c_void", "NcclComm = u32"),
    ("C names of handles swapped", CUDA_TYPES, "", '"CUevent"', '"CUstream"', '"CUstream")', '"CUevent")'),
    ("a callback of another form", CUDA_TYPES, "pub type CuHostFn", "user_data: *mut c_void", ""),
    # Values
    ("a wrong value", TYPES, "", '"ncclFloat32" as Float32 = 7', '"ncclFloat32" as Float32 = 8'),
    ("a wrong constant", TYPES, "", '"ncclUint8" as Uint8', '"ncclUint8" as Int8'),
    ("two constants swapped", TYPES, "", '"ncclMax" as Max', '"ncclMax" as Min'),
    ("C names of values swapped", TYPES, "", '"ncclMax"', '"ncclMin"', '"ncclMin" as', '"ncclMax" as'),
    ("a value's name misspelt", TYPES, "", '"ncclBfloat16"', '"ncclBFloat16"'),
    ("a value left out", TYPES, "", '"ncclTimeout" as Timeout = 8,', LEFT_OUT),
    ("a value too many", TYPES, "", '"ncclTimeout" as Timeout = 8,',
     '"ncclTimeout" as Timeout = 8,\n        "ncclLost" as Lost = 9,'),
    ("a wrong second name", TYPES, "", "Char: Self = Self::Int8", "Char: Self = Self::Uint8"),
    ("a wrong count", TYPES, "", "NumTypes: Self = Self(12)", "NumTypes: Self = Self(11)"),
    ("a wrong greatest value", TYPES, "", "MaxRedOp: Self = Self(i32::MAX)", "MaxRedOp: Self = Self(i32::MIN)"),
    ("a wrong flag", TYPES, "", "NCCL_WIN_GIN_ONLY: i32 = 0x04", "NCCL_WIN_GIN_ONLY: i32 = 0x08"),
    ("a wrong sign", TYPES, "", "NCCL_SPLIT_NOCOLOR: i32 = -1", "NCCL_SPLIT_NOCOLOR: i32 = 1"),
    ("a wrong fraction", TYPES, "", "NCCL_UNDEF_FLOAT: f32 = -1.0", "NCCL_UNDEF_FLOAT: f32 = 1.0"),
    ("a wrong magic number", TYPES, "", "0xcafe_beef", "0xcafe_babe"),
    ("a wrong unset value", TYPES, "", "NCCL_CONFIG_UNDEF_INT: i32 = i32::MIN", "NCCL_CONFIG_UNDEF_INT: i32 = i32::MAX"),
    ("a wrong release", TYPES, "", "NCCL_PATCH: i32 = 3", "NCCL_PATCH: i32 = 2"),
    ("a constant left out", TYPES, "", "pub const NCCL_SHRINK_ABORT: i32 = 0x01;", LEFT_OUT),
    ("a constructor's value", CONFIG, "", "force_alg_selection: 1,", "force_alg_selection: 0,"),
    ("a constructor's magic number", TYPES, "", "magic: 0x7468_5283", "magic: NCCL_API_MAGIC"),
    # cuda.h
    ("a wrong error code", CUDA_TYPES, "", '"CUDA_ERROR_NOT_READY" as NotReady = 600', '"CUDA_ERROR_NOT_READY" as NotReady = 601'),
    ("an error code left out", CUDA_TYPES, "", '"CUDA_ERROR_NOT_READY" as NotReady = 600,', LEFT_OUT),
    ("a wrong flag of streams", CUDA_TYPES, "", "CU_STREAM_NON_BLOCKING: u32 = 0x1", "CU_STREAM_NON_BLOCKING: u32 = 0x2"),
    ("a wrong special stream", CUDA_TYPES, "", "CU_STREAM_LEGACY: CuStream = 0x1", "CU_STREAM_LEGACY: CuStream = 0x2"),
    ("a wrong device attribute", CUDA_TYPES, "", "as WarpSize = 10", "as WarpSize = 11"),
    ("an older symbol of other types", CUDA, "", fn("cuMemAlloc_v2"), fn("cuMemAlloc")),
    ("an older symbol of the same types", CUDA, "", fn("cuStreamDestroy_v2"), fn("cuStreamDestroy")),
    ("a stream function left out", CUDA, "", "pub fn cuStreamGetPriority(stream: CuStream, priority: *mut i32) -> CuResult;", LEFT_OUT),
    ("flags of another sign", CUDA, fn("cuEventCreate"), "flags: u32", "flags: i32"),
    ("a value for a pointer in cuda.h", CUDA, fn("cuStreamCreate"), "stream: *mut CuStream", "stream: CuStream"),
    ("events swapped", CUDA, fn("cuEventElapsedTime"), "start: CuEvent, end: CuEvent", "end: CuEvent, start: CuEvent"),
    ("a double for a float", CUDA, fn("cuEventElapsedTime"), "*mut f32", "*mut f64"),
    ("uint64_t for unsigned long long", CUDA, fn("cuStreamGetId"), "*mut c_ulonglong", "*mut u64"),
    ("a wrong error name", CUDA_TYPES, "", '"CUDA_ERROR_LAUNCH_TIMEOUT"', '"CUDA_ERROR_LAUNCH_TIMED_OUT"'),
    ("a byte's place in edge data", CUDA_TYPES, "pub struct CuGraphEdgeData", "pub reserved: [u8; 5]", "pub reserved: [u8; 6]"),
    # Since
    ("a wrong release of a function", NCCL, "Since NCCL 2.28.\n    pub fn ncclAlltoAll", "2.28", "2.27"),
    ("a release where none is due", NCCL, "", "    pub fn ncclAllReduce(", "    ///\n    /// Since NCCL 2.4.\n    pub fn ncclAllReduce("),
    ("no release of a function", NCCL, "", "    ///\n    /// Since NCCL 2.28.7.\n    pub fn ncclCommRevoke", "    pub fn ncclCommRevoke"),
    ("a patch number lost", NCCL, "", "Since NCCL 2.28.7.\n    pub fn ncclCommRevoke", "Since NCCL 2.28.\n    pub fn ncclCommRevoke"),
    ("a release not in a line of its own", NCCL, "", "    ///\n    /// Since NCCL 2.28.7.\n    pub fn ncclCommRevoke", "    /// Since NCCL 2.28.7.\n    pub fn ncclCommRevoke"),
    ("2.32 for 2.31", NCCL, "", "Since NCCL 2.31.\n    pub fn ncclAllReduceConfig", "Since NCCL 2.32.\n    pub fn ncclAllReduceConfig"),
    ("a wrong release of a field", CONFIG, "", 'Since NCCL 2.26.\n    #[doc(alias = "trafficClass")]', 'Since NCCL 2.25.\n    #[doc(alias = "trafficClass")]'),
    ("no release of a younger field", CONFIG, "", '    ///\n    /// Since NCCL 2.32.\n    #[doc(alias = "launchCompletionEvent")]', '    #[doc(alias = "launchCompletionEvent")]'),
    ("a wrong release of a value", TYPES, "", 'Since NCCL 2.30.\n        "ncclTimeout"', 'Since NCCL 2.29.\n        "ncclTimeout"'),
    ("a wrong release of a constant", TYPES, "", "Since NCCL 2.29.7.\npub const NCCL_SUSPEND_MEM", "Since NCCL 2.29.\npub const NCCL_SUSPEND_MEM"),
    ("a CUDA release too early", CUDA, "", "Since CUDA 12.3.\n    pub fn cuStreamBeginCaptureToGraph", "Since CUDA 12.1.\n    pub fn cuStreamBeginCaptureToGraph"),
    ("a CUDA release where none is due", CUDA, "", "    pub fn cuStreamQuery(", "    ///\n    /// Since CUDA 12.3.\n    pub fn cuStreamQuery("),
]
# Seen with the headers of every release only.
MATRIX = [
    ("a CUDA release one too early", CUDA, "", "Since CUDA 12.3.\n    pub fn cuStreamBeginCaptureToGraph", "Since CUDA 12.2.\n    pub fn cuStreamBeginCaptureToGraph"),
    ("a CUDA release one too late", CUDA, "", "Since CUDA 12.3.\n    pub fn cuStreamBeginCaptureToGraph", "Since CUDA 12.4.\n    pub fn cuStreamBeginCaptureToGraph"),
]


def make(source, start, pairs):
    place = source.index(start)
    for old, new in zip(pairs[::2], pairs[1::2]):
        at = source.index(old, place)
        before, after = source[:at], source[at + len(old):]
        if new is LEFT_OUT:
            lines = before.split("\n")
            while lines[-2].lstrip().startswith(("///", "#[")):
                del lines[-2]
            before, new = "\n".join(lines), ""
        source = before + new + after
        place = len(before) + len(new)
    return source


def build():
    command = ["cargo", "test", "--test", "abi", "--no-run", "--message-format=json"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [m["executable"] for m in messages
            if m.get("target", {}).get("name") == "abi" and m.get("executable")][-1]


def run(test, sources, matrix):
    """The names of the trials that failed, None if the test ended in another way."""
    environment = dict(os.environ, METRALE_ABI_SOURCES=sources, METRALE_REQUIRE_ABI="1")
    environment.pop("METRALE_ABI_MATRIX", None)
    if matrix:
        environment["METRALE_ABI_MATRIX"] = "1"
    result = subprocess.run([test, "--color", "never"], cwd=ROOT, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = result.stdout.splitlines()
    failed = sorted(line.split("...")[0][5:].strip() for line in lines
                    if line.startswith("test ") and line.endswith("FAILED"))
    ended = any(line.startswith("test result:") for line in lines)
    if not ended or bool(failed) != bool(result.returncode):
        sys.exit(f"the test broke down:\n{result.stdout}")
    return failed, result.stdout


def main(arguments):
    test = build()
    mistakes = [(mistake, False) for mistake in MISTAKES]
    if arguments == ["--matrix"]:
        mistakes += [(mistake, True) for mistake in MATRIX]
    missed = []
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copytree(ROOT / "src", Path(temporary) / "src")
        failed, output = run(test, temporary, bool(arguments))
        if failed:
            sys.exit(f"the declarations as they are do not pass:\n{output}")
        for (what, name, start, *pairs), matrix in mistakes:
            path = Path(temporary) / "src" / name
            source = path.read_text()
            try:
                path.write_text(make(source, start, pairs))
            except ValueError:
                sys.exit(f"{what}: src/{name} does not have the text to change")
            failed, _ = run(test, temporary, matrix)
            path.write_text(source)
            print(f"{what}: {', '.join(failed) or 'NOT SEEN'}", flush=True)
            if not failed:
                missed.append(what)
    print(f"{len(mistakes) - len(missed)} of {len(mistakes)} mistakes seen"
          + (f"; not seen: {'; '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

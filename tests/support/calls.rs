//! The C functions that the cases call.
//!
//! They are safe functions here, so that a case reads as a table of calls and codes. What the
//! compiler does not check the suite vouches for: every pointer that a case passes holds what the
//! call asks for, or is one that the real libraries were seen to refuse. Whatever crashes or hangs
//! them is passed to the emulator alone.
//!
//! Functions younger than NCCL 2.18 are looked up by name, so that this program starts with an older
//! library; cases that call them say so by [`Need::calls`](crate::world::Need::calls).

#![allow(dead_code, non_snake_case, clippy::too_many_arguments)]

use std::ffi::{CStr, c_char, c_void};

pub use metrale_gpu_sys::cuda::*;
pub use metrale_gpu_sys::nccl::*;

macro_rules! calls {
    (
        from $library:ident;
        $(fn $name:ident($($parameter:ident: $kind:ty),* $(,)?) -> $answer:ty;)*
    ) => {
        $(
            pub fn $name($($parameter: $kind),*) -> $answer {
                // SAFETY: as the top of this file says.
                unsafe { metrale_gpu_sys::$library::$name($($parameter),*) }
            }
        )*
    };
}

macro_rules! younger_calls {
    ($(fn $name:ident($($parameter:ident: $kind:ty),* $(,)?) -> $answer:ty;)*) => {
        $(
            pub fn $name($($parameter: $kind),*) -> $answer {
                type Function = unsafe extern "C" fn($($kind),*) -> $answer;
                // Only a linked program cannot mention what its library lacks. The others prove each type
                // against its declaration.
                #[cfg(any(feature = "emulator", feature = "dlopen"))]
                let function: Function = metrale_gpu_sys::nccl::$name;
                #[cfg(not(any(feature = "emulator", feature = "dlopen")))]
                // SAFETY: the symbol is the function of this name, whose type is proved above.
                let function: Function = unsafe {
                    std::mem::transmute::<*mut c_void, Function>(look_up(stringify!($name)))
                };
                // SAFETY: as the top of this file says.
                unsafe { function($($parameter),*) }
            }
        )*
    };
}

/// The address of a function of the loaded NCCL.
#[cfg(not(any(feature = "emulator", feature = "dlopen")))]
fn look_up(name: &str) -> *mut c_void {
    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    let c_name = std::ffi::CString::new(name).expect("a C name holds no zero byte");
    // SAFETY: the name ends with a zero byte; a null handle is the default search.
    let address = unsafe { dlsym(std::ptr::null_mut(), c_name.as_ptr()) };
    assert!(
        !address.is_null(),
        "the case calls {name} and does not say that it needs it"
    );
    address
}

/// A text that a library gave, and that lives as long as the library; empty for null.
pub fn c_text(text: *const c_char) -> &'static CStr {
    if text.is_null() {
        return c"";
    }
    // SAFETY: as the top of this file says.
    unsafe { CStr::from_ptr(text) }
}

/// Whether the NCCL in use has the function.
pub fn has(name: &str) -> bool {
    cfg!(feature = "emulator") || metrale_gpu_sys::nccl::has_function(name)
}

calls! {
    from nccl;
    fn ncclGetVersion(version: *mut i32) -> NcclResult;
    fn ncclGetUniqueId(unique_id: *mut NcclUniqueId) -> NcclResult;
    fn ncclCommInitRankConfig(comm: *mut NcclComm, nranks: i32, comm_id: NcclUniqueId, rank: i32, config: *const NcclConfig) -> NcclResult;
    fn ncclCommInitRank(comm: *mut NcclComm, nranks: i32, comm_id: NcclUniqueId, rank: i32) -> NcclResult;
    fn ncclCommInitAll(comm: *mut NcclComm, ndev: i32, devlist: *const i32) -> NcclResult;
    fn ncclCommFinalize(comm: NcclComm) -> NcclResult;
    fn ncclCommDestroy(comm: NcclComm) -> NcclResult;
    fn ncclCommAbort(comm: NcclComm) -> NcclResult;
    fn ncclCommSplit(comm: NcclComm, color: i32, key: i32, newcomm: *mut NcclComm, config: *const NcclConfig) -> NcclResult;
    fn ncclGetErrorString(result: NcclResult) -> *const c_char;
    fn ncclGetLastError(comm: NcclComm) -> *const c_char;
    fn ncclCommGetAsyncError(comm: NcclComm, async_error: *mut NcclResult) -> NcclResult;
    fn ncclCommCount(comm: NcclComm, count: *mut i32) -> NcclResult;
    fn ncclCommCuDevice(comm: NcclComm, device: *mut i32) -> NcclResult;
    fn ncclCommUserRank(comm: NcclComm, rank: *mut i32) -> NcclResult;
    fn ncclRedOpCreatePreMulSum(op: *mut NcclRedOp, scalar: *mut c_void, datatype: NcclDataType, residence: NcclScalarResidence, comm: NcclComm) -> NcclResult;
    fn ncclRedOpDestroy(op: NcclRedOp, comm: NcclComm) -> NcclResult;
    fn ncclReduce(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, op: NcclRedOp, root: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclBcast(buff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclBroadcast(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclAllReduce(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, op: NcclRedOp, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclReduceScatter(sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: NcclDataType, op: NcclRedOp, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclAllGather(sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: NcclDataType, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclSend(sendbuff: *const c_void, count: usize, datatype: NcclDataType, peer: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclRecv(recvbuff: *mut c_void, count: usize, datatype: NcclDataType, peer: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclGroupStart() -> NcclResult;
    fn ncclGroupEnd() -> NcclResult;
}

younger_calls! {
    fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> NcclResult;
    fn ncclMemFree(ptr: *mut c_void) -> NcclResult;
    fn ncclCommRegister(comm: NcclComm, buff: *mut c_void, size: usize, handle: *mut *mut c_void) -> NcclResult;
    fn ncclCommDeregister(comm: NcclComm, handle: *mut c_void) -> NcclResult;
    fn ncclGroupSimulateEnd(sim_info: *mut NcclSimInfo) -> NcclResult;
    fn ncclCommInitRankScalable(newcomm: *mut NcclComm, nranks: i32, myrank: i32, n_id: i32, comm_ids: *mut NcclUniqueId, config: *const NcclConfig) -> NcclResult;
    fn ncclCommShrink(comm: NcclComm, exclude_ranks_list: *mut i32, exclude_ranks_count: i32, newcomm: *mut NcclComm, config: *const NcclConfig, shrink_flags: i32) -> NcclResult;
    fn ncclCommWindowRegister(comm: NcclComm, buff: *mut c_void, size: usize, win: *mut NcclWindow, win_flags: i32) -> NcclResult;
    fn ncclCommWindowDeregister(comm: NcclComm, win: NcclWindow) -> NcclResult;
    fn ncclAlltoAll(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclGather(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclScatter(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclCommRevoke(comm: NcclComm, revoke_flags: i32) -> NcclResult;
    fn ncclCommGetUniqueId(comm: NcclComm, unique_id: *mut NcclUniqueId) -> NcclResult;
    fn ncclCommGrow(comm: NcclComm, n_ranks: i32, unique_id: *const NcclUniqueId, rank: i32, newcomm: *mut NcclComm, config: *const NcclConfig) -> NcclResult;
    fn ncclPutSignal(localbuff: *const c_void, count: usize, datatype: NcclDataType, peer: i32, peer_win: NcclWindow, peer_win_offset: usize, sig_idx: i32, ctx: i32, flags: u32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclSignal(peer: i32, sig_idx: i32, ctx: i32, flags: u32, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclWaitSignal(n_desc: i32, signal_descs: *mut NcclWaitSignalDesc, comm: NcclComm, stream: CuStream) -> NcclResult;
    fn ncclWinGetUserPtr(comm: NcclComm, win: NcclWindow, out_user_ptr: *mut *mut c_void) -> NcclResult;
    fn ncclCommSuspend(comm: NcclComm, flags: i32) -> NcclResult;
    fn ncclCommResume(comm: NcclComm) -> NcclResult;
    fn ncclCommMemStats(comm: NcclComm, stat: NcclCommMemStat, value: *mut u64) -> NcclResult;
    fn ncclParamBind(out: *mut NcclParamHandle, key: *const c_char) -> NcclResult;
    fn ncclParamGetI8(h: NcclParamHandle, out: *mut i8) -> NcclResult;
    fn ncclParamGetI16(h: NcclParamHandle, out: *mut i16) -> NcclResult;
    fn ncclParamGetI32(h: NcclParamHandle, out: *mut i32) -> NcclResult;
    fn ncclParamGetI64(h: NcclParamHandle, out: *mut i64) -> NcclResult;
    fn ncclParamGetU8(h: NcclParamHandle, out: *mut u8) -> NcclResult;
    fn ncclParamGetU16(h: NcclParamHandle, out: *mut u16) -> NcclResult;
    fn ncclParamGetU32(h: NcclParamHandle, out: *mut u32) -> NcclResult;
    fn ncclParamGetU64(h: NcclParamHandle, out: *mut u64) -> NcclResult;
    fn ncclParamGetStr(h: NcclParamHandle, out: *mut *const c_char) -> NcclResult;
    fn ncclParamGet(h: NcclParamHandle, out: *mut c_void, max_len: i32, len: *mut i32) -> NcclResult;
    fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, value_len: *mut i32) -> NcclResult;
    fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, table_len: *mut i32) -> NcclResult;
    fn ncclAllReduceConfig(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, op: NcclRedOp, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclBroadcastConfig(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclReduceConfig(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, op: NcclRedOp, root: i32, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclAllGatherConfig(sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: NcclDataType, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclReduceScatterConfig(sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: NcclDataType, op: NcclRedOp, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclAlltoAllConfig(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclGatherConfig(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclScatterConfig(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: NcclDataType, root: i32, comm: NcclComm, stream: CuStream, config: *const NcclCollConfig) -> NcclResult;
    fn ncclSetEncryption(config: *const NcclEncryptionConfig) -> NcclResult;
}

calls! {
    from cuda;
    fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult;
    fn cuGetErrorName(error: CuResult, text: *mut *const c_char) -> CuResult;
    fn cuInit(flags: u32) -> CuResult;
    fn cuDriverGetVersion(driver_version: *mut i32) -> CuResult;
    fn cuDeviceGet(device: *mut CuDevice, ordinal: i32) -> CuResult;
    fn cuDeviceGetCount(count: *mut i32) -> CuResult;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CuDevice) -> CuResult;
    fn cuDeviceGetByPCIBusId(dev: *mut CuDevice, pci_bus_id: *const c_char) -> CuResult;
    fn cuDevicePrimaryCtxRetain(ctx: *mut CuContext, dev: CuDevice) -> CuResult;
    fn cuDevicePrimaryCtxRelease_v2(dev: CuDevice) -> CuResult;
    fn cuDevicePrimaryCtxGetState(dev: CuDevice, flags: *mut u32, active: *mut i32) -> CuResult;
    fn cuCtxPushCurrent_v2(ctx: CuContext) -> CuResult;
    fn cuCtxPopCurrent_v2(ctx: *mut CuContext) -> CuResult;
    fn cuCtxSetCurrent(ctx: CuContext) -> CuResult;
    fn cuCtxGetCurrent(ctx: *mut CuContext) -> CuResult;
    fn cuCtxGetDevice(device: *mut CuDevice) -> CuResult;
    fn cuCtxSynchronize() -> CuResult;
    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> CuResult;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult;
    fn cuMemAlloc_v2(dptr: *mut CuDevicePtr, bytesize: usize) -> CuResult;
    fn cuMemFree_v2(dptr: CuDevicePtr) -> CuResult;
    fn cuMemGetAddressRange_v2(base: *mut CuDevicePtr, size: *mut usize, dptr: CuDevicePtr) -> CuResult;
    fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CuResult;
    fn cuMemFreeHost(p: *mut c_void) -> CuResult;
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: u32) -> CuResult;
    fn cuMemHostGetDevicePointer_v2(dptr: *mut CuDevicePtr, p: *mut c_void, flags: u32) -> CuResult;
    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) -> CuResult;
    fn cuMemHostUnregister(p: *mut c_void) -> CuResult;
    fn cuMemcpy(dst: CuDevicePtr, src: CuDevicePtr, byte_count: usize) -> CuResult;
    fn cuMemcpyAsync(dst: CuDevicePtr, src: CuDevicePtr, byte_count: usize, stream: CuStream) -> CuResult;
    fn cuMemcpyPeer(dst_device: CuDevicePtr, dst_context: CuContext, src_device: CuDevicePtr, src_context: CuContext, byte_count: usize) -> CuResult;
    fn cuMemcpyPeerAsync(dst_device: CuDevicePtr, dst_context: CuContext, src_device: CuDevicePtr, src_context: CuContext, byte_count: usize, stream: CuStream) -> CuResult;
    fn cuMemcpyHtoD_v2(dst_device: CuDevicePtr, src_host: *const c_void, byte_count: usize) -> CuResult;
    fn cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CuDevicePtr, byte_count: usize) -> CuResult;
    fn cuMemcpyDtoD_v2(dst_device: CuDevicePtr, src_device: CuDevicePtr, byte_count: usize) -> CuResult;
    fn cuMemcpyHtoDAsync_v2(dst_device: CuDevicePtr, src_host: *const c_void, byte_count: usize, stream: CuStream) -> CuResult;
    fn cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CuDevicePtr, byte_count: usize, stream: CuStream) -> CuResult;
    fn cuMemcpyDtoDAsync_v2(dst_device: CuDevicePtr, src_device: CuDevicePtr, byte_count: usize, stream: CuStream) -> CuResult;
    fn cuMemsetD8_v2(dst_device: CuDevicePtr, value: u8, n: usize) -> CuResult;
    fn cuMemsetD16_v2(dst_device: CuDevicePtr, value: u16, n: usize) -> CuResult;
    fn cuMemsetD32_v2(dst_device: CuDevicePtr, value: u32, n: usize) -> CuResult;
    fn cuMemsetD8Async(dst_device: CuDevicePtr, value: u8, n: usize, stream: CuStream) -> CuResult;
    fn cuMemsetD16Async(dst_device: CuDevicePtr, value: u16, n: usize, stream: CuStream) -> CuResult;
    fn cuMemsetD32Async(dst_device: CuDevicePtr, value: u32, n: usize, stream: CuStream) -> CuResult;
    fn cuMemFreeAsync(dptr: CuDevicePtr, stream: CuStream) -> CuResult;
    fn cuMemAllocAsync(dptr: *mut CuDevicePtr, bytesize: usize, stream: CuStream) -> CuResult;
    fn cuPointerGetAttribute(data: *mut c_void, attribute: CuPointerAttribute, ptr: CuDevicePtr) -> CuResult;
    fn cuStreamCreate(stream: *mut CuStream, flags: u32) -> CuResult;
    fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: u32, priority: i32) -> CuResult;
    fn cuStreamGetPriority(stream: CuStream, priority: *mut i32) -> CuResult;
    fn cuStreamGetFlags(stream: CuStream, flags: *mut u32) -> CuResult;
    fn cuStreamGetCtx(stream: CuStream, ctx: *mut CuContext) -> CuResult;
    fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32) -> CuResult;
    fn cuStreamAddCallback(stream: CuStream, callback: CuStreamCallback, user_data: *mut c_void, flags: u32) -> CuResult;
    fn cuStreamBeginCapture_v2(stream: CuStream, mode: CuStreamCaptureMode) -> CuResult;
    fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) -> CuResult;
    fn cuStreamIsCapturing(stream: CuStream, status: *mut CuStreamCaptureStatus) -> CuResult;
    fn cuStreamQuery(stream: CuStream) -> CuResult;
    fn cuStreamSynchronize(stream: CuStream) -> CuResult;
    fn cuStreamDestroy_v2(stream: CuStream) -> CuResult;
    fn cuEventCreate(event: *mut CuEvent, flags: u32) -> CuResult;
    fn cuEventRecord(event: CuEvent, stream: CuStream) -> CuResult;
    fn cuEventQuery(event: CuEvent) -> CuResult;
    fn cuEventSynchronize(event: CuEvent) -> CuResult;
    fn cuEventDestroy_v2(event: CuEvent) -> CuResult;
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> CuResult;
    fn cuLaunchHostFunc(stream: CuStream, function: CuHostFn, user_data: *mut c_void) -> CuResult;
    fn cuGraphGetNodes(graph: CuGraph, nodes: *mut CuGraphNode, num_nodes: *mut usize) -> CuResult;
    fn cuGraphInstantiateWithFlags(graph_exec: *mut CuGraphExec, graph: CuGraph, flags: std::ffi::c_ulonglong) -> CuResult;
    fn cuGraphUpload(graph_exec: CuGraphExec, stream: CuStream) -> CuResult;
    fn cuGraphLaunch(graph_exec: CuGraphExec, stream: CuStream) -> CuResult;
    fn cuGraphExecDestroy(graph_exec: CuGraphExec) -> CuResult;
    fn cuGraphDestroy(graph: CuGraph) -> CuResult;
    fn cuModuleLoadData(module: *mut CuModule, image: *const c_void) -> CuResult;
    fn cuModuleLoadDataEx(module: *mut CuModule, image: *const c_void, num_options: u32, options: *mut CuJitOption, option_values: *mut *mut c_void) -> CuResult;
    fn cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char) -> CuResult;
    fn cuModuleUnload(module: CuModule) -> CuResult;
    fn cuLaunchKernel(f: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: CuStream, parameters: *mut *mut c_void, extra: *mut *mut c_void) -> CuResult;
}

/// Fails unless a call answers as expected.
#[macro_export]
macro_rules! expect {
    ($call:expr, $expected:expr) => {
        match (&$call, &$expected) {
            (got, expected) => anyhow::ensure!(
                *got == *expected,
                "{} is {got:?}, expected {expected:?} ({}:{})",
                stringify!($call)
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" "),
                file!(),
                line!()
            ),
        }
    };
}

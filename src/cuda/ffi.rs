//! The driver functions, in the order of `cuda.h`.
//!
//! Where the header maps a name to a newer form of it (`cuStreamDestroy` to `cuStreamDestroy_v2`),
//! the form is what stands here, since that is the name of the symbol. The forms for one default
//! stream a thread (`_ptsz`, `_ptds`) are left out: stream 0 is the legacy stream everywhere.
//!
//! Every function but `cuInit`, `cuDriverGetVersion` and the two for error texts may also return
//! `NotInitialized` before `cuInit`, `Deinitialized` while the process exits, and the failure of
//! work enqueued earlier. The docs below leave these out.

use std::ffi::{c_char, c_ulonglong, c_void};

use super::types::*;
use crate::bind::bind;

bind! {
    library cuda;

    // Errors

    /// Sets `str` to the sentence for `error`, a static string that ends with a zero byte.
    ///
    /// Works before `cuInit`. `InvalidValue`, and a null string, for a code that the driver does
    /// not know.
    pub fn cuGetErrorString(error: CuResult, str: *mut *const c_char) -> CuResult;

    /// Sets `str` to the C name of `error`, a static string that ends with a zero byte.
    ///
    /// Works before `cuInit`. `InvalidValue`, and a null string, for a code that the driver does
    /// not know.
    pub fn cuGetErrorName(error: CuResult, str: *mut *const c_char) -> CuResult;

    // Initialization

    /// Initializes the driver for this process. Calling it again does nothing.
    ///
    /// `flags` must be 0, else `InvalidValue`. `NoDevice` without a device, `StubLibrary` if the
    /// loaded libcuda is a stub, `SystemDriverMismatch` if it does not fit the kernel driver,
    /// `CompatNotSupportedOnDevice` if it is a forward-compatibility one that this device does not
    /// support. A child of `fork` cannot use the driver that its parent initialized.
    pub fn cuInit(flags: u32) -> CuResult;

    // Version

    /// Sets `driver_version` to the newest CUDA release that the driver supports, 1000 for each
    /// major and 10 for each minor number: 13000 is 13.0. Works before `cuInit`.
    pub fn cuDriverGetVersion(driver_version: *mut i32) -> CuResult;

    // Devices

    /// Sets `device` to the device of number `ordinal`, from 0.
    ///
    /// `InvalidDevice` if there is none.
    pub fn cuDeviceGet(device: *mut CuDevice, ordinal: i32) -> CuResult;

    /// Sets `count` to the number of devices that `CUDA_VISIBLE_DEVICES` leaves.
    pub fn cuDeviceGetCount(count: *mut i32) -> CuResult;

    /// Writes the name of the device's model to `name`, `len` bytes with the closing zero; a longer
    /// one is cut.
    pub fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CuDevice) -> CuResult;

    /// Sets `uuid` to the identity of the device, or of the MIG instance in its place.
    ///
    /// Since CUDA 11.4.
    pub fn cuDeviceGetUuid_v2(uuid: *mut CuUuid, dev: CuDevice) -> CuResult;

    /// Sets `bytes` to the size of the device's memory.
    pub fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CuDevice) -> CuResult;

    /// Sets `pi` to what `attrib` asks about the device.
    ///
    /// `InvalidValue` for an attribute newer than the driver.
    pub fn cuDeviceGetAttribute(pi: *mut i32, attrib: CuDeviceAttribute, dev: CuDevice) -> CuResult;

    // Primary contexts

    /// Sets `ctx` to the device's primary context, the one that the CUDA runtime uses, and creates
    /// it if need be.
    ///
    /// Each call must be met by one `cuDevicePrimaryCtxRelease_v2`. The context does not become
    /// current. `InvalidDevice` for a wrong device; `Unknown` or `DeviceUnavailable` where its
    /// compute mode forbids it.
    pub fn cuDevicePrimaryCtxRetain(ctx: *mut CuContext, dev: CuDevice) -> CuResult;

    /// Gives one retention back; the last one destroys the context with all its memory, streams and
    /// modules.
    ///
    /// It stays current on the threads where it was, and calls there then return
    /// `ContextIsDestroyed`. `InvalidContext` if it was not retained.
    pub fn cuDevicePrimaryCtxRelease_v2(dev: CuDevice) -> CuResult;

    /// Sets the `CU_CTX_*` flags of the device's primary context, such as how threads wait for the
    /// device.
    pub fn cuDevicePrimaryCtxSetFlags_v2(dev: CuDevice, flags: u32) -> CuResult;

    /// Sets `flags` to the flags of the device's primary context, and `active` to 1 if it exists,
    /// else to 0.
    pub fn cuDevicePrimaryCtxGetState(dev: CuDevice, flags: *mut u32, active: *mut i32) -> CuResult;

    /// Destroys everything in the device's primary context, whoever in this process made it.
    /// Retentions stay.
    pub fn cuDevicePrimaryCtxReset_v2(dev: CuDevice) -> CuResult;

    // The current context

    /// Puts `ctx` on the calling thread's stack of contexts; the top one is current.
    pub fn cuCtxPushCurrent_v2(ctx: CuContext) -> CuResult;

    /// Takes the top off the calling thread's stack of contexts and sets `ctx` to it; the one below
    /// becomes current.
    ///
    /// `InvalidContext` if the stack is empty.
    pub fn cuCtxPopCurrent_v2(ctx: *mut CuContext) -> CuResult;

    /// Makes `ctx` current on the calling thread, in the place of the top of its stack; 0 takes the
    /// top off.
    pub fn cuCtxSetCurrent(ctx: CuContext) -> CuResult;

    /// Sets `ctx` to the calling thread's current context, 0 if there is none.
    pub fn cuCtxGetCurrent(ctx: *mut CuContext) -> CuResult;

    /// Sets `device` to the device of the current context.
    ///
    /// `InvalidContext` if there is none.
    pub fn cuCtxGetDevice(device: *mut CuDevice) -> CuResult;

    /// Waits until all work in the current context is done, in every stream.
    ///
    /// Returns the failure of any of it. `InvalidContext` without a context;
    /// `StreamCaptureUnsupported` during a capture.
    pub fn cuCtxSynchronize() -> CuResult;

    /// Sets the lowest and the highest priority that streams of the current context can have.
    ///
    /// Smaller numbers go first: the lowest is 0, the highest is negative. Either pointer may be
    /// null.
    pub fn cuCtxGetStreamPriorityRange(
        least_priority: *mut i32,
        greatest_priority: *mut i32,
    ) -> CuResult;

    // Modules

    /// Loads the file `fname` (a cubin, PTX or fat binary) into the current context and sets
    /// `module`.
    ///
    /// `fname` ends with a zero byte. `FileNotFound`; otherwise as `cuModuleLoadDataEx`.
    pub fn cuModuleLoad(module: *mut CuModule, fname: *const c_char) -> CuResult;

    /// Loads `image` into the current context and sets `module`: `cuModuleLoadDataEx` without
    /// options.
    pub fn cuModuleLoadData(module: *mut CuModule, image: *const c_void) -> CuResult;

    /// Loads `image` into the current context and sets `module`.
    ///
    /// `image` is a whole cubin or fat binary, or PTX text that ends with a zero byte. `options`
    /// and `option_values` hold `num_options` entries each; a value that is a number stands in its
    /// pointer's place. `InvalidPtx` or `UnsupportedPtxVersion` for text that does not compile
    /// here, `NoBinaryForGpu` if no code in it suits the device.
    pub fn cuModuleLoadDataEx(
        module: *mut CuModule,
        image: *const c_void,
        num_options: u32,
        options: *mut CuJitOption,
        option_values: *mut *mut c_void,
    ) -> CuResult;

    /// Unloads the module from the current context. Its functions and variables are gone with it.
    pub fn cuModuleUnload(module: CuModule) -> CuResult;

    /// Sets `func` to the kernel `name` of the module.
    ///
    /// `name` ends with a zero byte and is the mangled name. `NotFound` if there is none.
    pub fn cuModuleGetFunction(
        func: *mut CuFunction,
        module: CuModule,
        name: *const c_char,
    ) -> CuResult;

    /// Sets `dptr` and `bytes` to place and size of the variable `name` of the module.
    ///
    /// `name` ends with a zero byte. Either pointer may be null, not both. `NotFound` if there is
    /// none.
    pub fn cuModuleGetGlobal_v2(
        dptr: *mut CuDevicePtr,
        bytes: *mut usize,
        module: CuModule,
        name: *const c_char,
    ) -> CuResult;

    // Memory

    /// Sets `free` and `total` to the bytes of the current context's device that are free, and that
    /// there are.
    ///
    /// Other processes take from the free ones too.
    pub fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult;

    /// Allocates `bytesize` bytes on the current context's device and sets `dptr`, aligned for any
    /// type.
    ///
    /// `InvalidValue` for 0 bytes, with `dptr` set to 0; `OutOfMemory`; `InvalidContext` without a
    /// context. May wait for the device.
    pub fn cuMemAlloc_v2(dptr: *mut CuDevicePtr, bytesize: usize) -> CuResult;

    /// Frees what an allocating function returned. 0 is ignored, even without a context.
    ///
    /// `InvalidValue` for any other address: one inside an allocation, or one freed before. May
    /// wait for the device; after `cuMemAllocAsync` it waits for nothing, and the work on the
    /// memory must be done.
    pub fn cuMemFree_v2(dptr: CuDevicePtr) -> CuResult;

    /// Sets `base` and `size` to start and bytes of the allocation that `dptr` lies in. Either may
    /// be null.
    ///
    /// `NotFound` or `InvalidValue` if it lies in none.
    pub fn cuMemGetAddressRange_v2(
        base: *mut CuDevicePtr,
        size: *mut usize,
        dptr: CuDevicePtr,
    ) -> CuResult;

    /// Allocates `bytesize` bytes of pinned host memory and sets `pp`.
    ///
    /// With unified addressing every device reaches it by the same address. Free it with
    /// `cuMemFreeHost`.
    pub fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CuResult;

    /// Frees what `cuMemAllocHost_v2` or `cuMemHostAlloc` returned.
    pub fn cuMemFreeHost(p: *mut c_void) -> CuResult;

    /// Allocates `bytesize` bytes of pinned host memory as the `CU_MEMHOSTALLOC_*` flags say, and
    /// sets `pp`.
    ///
    /// Free it with `cuMemFreeHost`.
    pub fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: u32) -> CuResult;

    /// Sets `dptr` to the device's address for the mapped pinned host memory at `p`.
    ///
    /// `flags` must be 0. `InvalidValue` if the memory is not mapped.
    pub fn cuMemHostGetDevicePointer_v2(
        dptr: *mut CuDevicePtr,
        p: *mut c_void,
        flags: u32,
    ) -> CuResult;

    /// Sets `dev` to the device at the PCI address `pci_bus_id`, such as `0000:3b:00.0`, which ends
    /// with a zero byte.
    ///
    /// The domain or the function may be left out. `InvalidDevice` if there is none.
    pub fn cuDeviceGetByPCIBusId(dev: *mut CuDevice, pci_bus_id: *const c_char) -> CuResult;

    /// Writes the device's PCI address, such as `0000:3B:00.0`, to `pci_bus_id`: `len` bytes with
    /// the closing zero, 13 of which suffice.
    pub fn cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: i32, dev: CuDevice) -> CuResult;

    /// Pins the `bytesize` bytes of ordinary host memory at `p`, as the `CU_MEMHOSTREGISTER_*`
    /// flags say.
    ///
    /// `HostMemoryAlreadyRegistered` where a part of it is. Unregister it before it is freed.
    pub fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) -> CuResult;

    /// Ends the pinning of what was registered at `p`.
    ///
    /// `HostMemoryNotRegistered` if nothing was.
    pub fn cuMemHostUnregister(p: *mut c_void) -> CuResult;

    /// Copies `byte_count` bytes between any two places, host or device, told apart by their
    /// addresses.
    ///
    /// Otherwise as the copy of that direction below.
    pub fn cuMemcpy(dst: CuDevicePtr, src: CuDevicePtr, byte_count: usize) -> CuResult;

    /// Copies `byte_count` bytes from one context's device memory to another's.
    ///
    /// As `cuMemcpyDtoD_v2`: the host may go on before it is done.
    pub fn cuMemcpyPeer(
        dst_device: CuDevicePtr,
        dst_context: CuContext,
        src_device: CuDevicePtr,
        src_context: CuContext,
        byte_count: usize,
    ) -> CuResult;

    /// Copies `byte_count` bytes from the host to the device, in order with the legacy stream.
    ///
    /// `src_host` may be changed or freed on return. From memory that is not pinned the last bytes
    /// may then still be on their way: a non-blocking stream must not read them before the legacy
    /// stream has passed. `InvalidValue` for a range beyond its allocation, and for a freed, null
    /// or unknown address.
    pub fn cuMemcpyHtoD_v2(
        dst_device: CuDevicePtr,
        src_host: *const c_void,
        byte_count: usize,
    ) -> CuResult;

    /// Copies `byte_count` bytes from the device to the host, in order with the legacy stream.
    ///
    /// Done on return. Work of a non-blocking stream that writes the source must be waited for
    /// first. `InvalidValue` as `cuMemcpyHtoD_v2`.
    pub fn cuMemcpyDtoH_v2(
        dst_host: *mut c_void,
        src_device: CuDevicePtr,
        byte_count: usize,
    ) -> CuResult;

    /// Copies `byte_count` bytes within the device, in order with the legacy stream.
    ///
    /// The host may go on before it is done, and a non-blocking stream does not wait for it.
    /// `InvalidValue` as `cuMemcpyHtoD_v2`.
    pub fn cuMemcpyDtoD_v2(
        dst_device: CuDevicePtr,
        src_device: CuDevicePtr,
        byte_count: usize,
    ) -> CuResult;

    /// Enqueues `cuMemcpy` on `stream`.
    ///
    /// Both places must stay as they are until the stream has passed this point.
    pub fn cuMemcpyAsync(
        dst: CuDevicePtr,
        src: CuDevicePtr,
        byte_count: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Enqueues `cuMemcpyPeer` on `stream`.
    pub fn cuMemcpyPeerAsync(
        dst_device: CuDevicePtr,
        dst_context: CuContext,
        src_device: CuDevicePtr,
        src_context: CuContext,
        byte_count: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Enqueues a copy of `byte_count` bytes from the host to the device on `stream`.
    ///
    /// Pinned memory at `src_host` must stay as it is until the stream has passed this point; other
    /// memory is read before the call returns, which may take as long as the copy.
    pub fn cuMemcpyHtoDAsync_v2(
        dst_device: CuDevicePtr,
        src_host: *const c_void,
        byte_count: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Enqueues a copy of `byte_count` bytes from the device to the host on `stream`.
    ///
    /// Pinned memory at `dst_host` holds the result once the stream has passed this point; for
    /// other memory the call waits until it is done.
    pub fn cuMemcpyDtoHAsync_v2(
        dst_host: *mut c_void,
        src_device: CuDevicePtr,
        byte_count: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Enqueues a copy of `byte_count` bytes within the device on `stream`.
    pub fn cuMemcpyDtoDAsync_v2(
        dst_device: CuDevicePtr,
        src_device: CuDevicePtr,
        byte_count: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Sets `n` bytes at `dst_device` to `uc`, in order with the legacy stream.
    ///
    /// The host may go on before it is done, and a non-blocking stream does not wait for it.
    /// `InvalidValue` for a range beyond its allocation.
    pub fn cuMemsetD8_v2(dst_device: CuDevicePtr, uc: u8, n: usize) -> CuResult;

    /// Sets `n` values of 16 bits at `dst_device` to `us`; else as `cuMemsetD8_v2`.
    ///
    /// `InvalidValue` also if the address is not a multiple of 2.
    pub fn cuMemsetD16_v2(dst_device: CuDevicePtr, us: u16, n: usize) -> CuResult;

    /// Sets `n` values of 32 bits at `dst_device` to `ui`; else as `cuMemsetD8_v2`.
    ///
    /// `InvalidValue` also if the address is not a multiple of 4.
    pub fn cuMemsetD32_v2(dst_device: CuDevicePtr, ui: u32, n: usize) -> CuResult;

    /// Enqueues `cuMemsetD8_v2` on `stream`.
    pub fn cuMemsetD8Async(
        dst_device: CuDevicePtr,
        uc: u8,
        n: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Enqueues `cuMemsetD16_v2` on `stream`.
    pub fn cuMemsetD16Async(
        dst_device: CuDevicePtr,
        us: u16,
        n: usize,
        stream: CuStream,
    ) -> CuResult;

    /// Enqueues `cuMemsetD32_v2` on `stream`.
    pub fn cuMemsetD32Async(
        dst_device: CuDevicePtr,
        ui: u32,
        n: usize,
        stream: CuStream,
    ) -> CuResult;

    // Stream-ordered memory

    /// Frees `dptr`, which `cuMemAllocAsync` or `cuMemAlloc_v2` returned, once `stream` has passed
    /// this point.
    ///
    /// No work may use it after that, in any stream.
    ///
    /// Since CUDA 11.2.
    pub fn cuMemFreeAsync(dptr: CuDevicePtr, stream: CuStream) -> CuResult;

    /// Allocates `bytesize` bytes from the device's current memory pool and sets `dptr` at once.
    ///
    /// The memory may be used by work enqueued on `stream` after this, and by other streams once
    /// that has passed this point. `NotSupported` where [`CuDeviceAttribute::MemoryPoolsSupported`]
    /// is 0.
    ///
    /// Since CUDA 11.2.
    pub fn cuMemAllocAsync(dptr: *mut CuDevicePtr, bytesize: usize, stream: CuStream) -> CuResult;

    // Unified addressing

    /// Writes what `attribute` asks about the address `ptr` to `data`, which must have room for its
    /// type.
    ///
    /// `InvalidValue` for an address that the driver does not know, such as ordinary host memory.
    pub fn cuPointerGetAttribute(
        data: *mut c_void,
        attribute: CuPointerAttribute,
        ptr: CuDevicePtr,
    ) -> CuResult;

    // Streams

    /// Creates a stream in the current context and sets `stream`.
    ///
    /// `flags` is [`CU_STREAM_DEFAULT`] or [`CU_STREAM_NON_BLOCKING`]; `InvalidValue` for any
    /// other, `InvalidContext` without a context.
    pub fn cuStreamCreate(stream: *mut CuStream, flags: u32) -> CuResult;

    /// Creates a stream of that priority in the current context and sets `stream`.
    ///
    /// Smaller numbers go first; one out of `cuCtxGetStreamPriorityRange` is moved to the nearer
    /// end without an error. It is a hint for kernels only. `flags` as `cuStreamCreate`.
    pub fn cuStreamCreateWithPriority(
        stream: *mut CuStream,
        flags: u32,
        priority: i32,
    ) -> CuResult;

    /// Begins to record what is enqueued on `stream` into a command list of a graphics program.
    ///
    /// The context must have been created for that, else `InvalidContext`.
    ///
    /// Since CUDA 13.2.
    pub fn cuStreamBeginCaptureToCig(
        stream: CuStream,
        stream_cig_capture_params: *mut CuStreamCigCaptureParams,
    ) -> CuResult;

    /// Ends what `cuStreamBeginCaptureToCig` began. The stream must outlive the command list.
    ///
    /// Since CUDA 13.2.
    pub fn cuStreamEndCaptureToCig(stream: CuStream) -> CuResult;

    /// Sets `priority` to the priority that the stream got.
    pub fn cuStreamGetPriority(stream: CuStream, priority: *mut i32) -> CuResult;

    /// Sets `device` to the stream's device.
    ///
    /// Since CUDA 12.8.
    pub fn cuStreamGetDevice(stream: CuStream, device: *mut CuDevice) -> CuResult;

    /// Sets `flags` to the flags that the stream was created with; 0 for the legacy stream.
    pub fn cuStreamGetFlags(stream: CuStream, flags: *mut u32) -> CuResult;

    /// Sets `stream_id` to a number that no other stream of this process has or will have.
    ///
    /// Since CUDA 12.0.
    pub fn cuStreamGetId(stream: CuStream, stream_id: *mut c_ulonglong) -> CuResult;

    /// Sets `ctx` to the context that the stream belongs to; for a special stream, to the current
    /// one.
    ///
    /// `InvalidContext` for a special stream without a context.
    pub fn cuStreamGetCtx(stream: CuStream, ctx: *mut CuContext) -> CuResult;

    /// As `cuStreamGetCtx`, and sets `green_ctx` to the green context of the stream, 0 if it has
    /// none.
    ///
    /// For a stream with one, `ctx` is its device's primary context.
    ///
    /// Since CUDA 12.5.
    pub fn cuStreamGetCtx_v2(
        stream: CuStream,
        ctx: *mut CuContext,
        green_ctx: *mut CuGreenCtx,
    ) -> CuResult;

    /// Makes all work enqueued on `stream` after this wait for what `event` stands for now.
    ///
    /// That is its last record before this call: a later one does not matter, and without any
    /// nothing is waited for. The two may belong to different devices. `flags` is
    /// [`CU_EVENT_WAIT_DEFAULT`] or, in a capture, [`CU_EVENT_WAIT_EXTERNAL`]; `InvalidValue` for
    /// any other, `InvalidHandle` for event 0.
    pub fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32) -> CuResult;

    /// Calls `callback` on a host thread once all earlier work of the stream is done; later work
    /// waits for it.
    ///
    /// It is called even when that work failed. `flags` must be 0. To be deprecated, and not for
    /// captures: prefer `cuLaunchHostFunc`.
    pub fn cuStreamAddCallback(
        stream: CuStream,
        callback: CuStreamCallback,
        user_data: *mut c_void,
        flags: u32,
    ) -> CuResult;

    /// Begins to capture: what is enqueued on `stream` from now on goes into a graph and does not
    /// run.
    ///
    /// Streams that wait for an event recorded here join the capture. `IllegalState` if the stream
    /// is being captured already, `StreamCaptureUnsupported` for the legacy stream. Until the end,
    /// queries and synchronization of the stream are refused and, as `mode` says, calls such as
    /// `cuMemAlloc_v2`; each of them also spoils the capture.
    pub fn cuStreamBeginCapture_v2(stream: CuStream, mode: CuStreamCaptureMode) -> CuResult;

    /// Begins to capture into a graph that was captured before, whose nodes take over the new
    /// parameters.
    ///
    /// The same nodes must be captured in the same order. `callback_func`, called with `user_data`,
    /// decides about each node that differs. If it fails the graph is only good for being
    /// destroyed.
    ///
    /// Since CUDA 13.3.
    pub fn cuStreamBeginRecaptureToGraph(
        stream: CuStream,
        mode: CuStreamCaptureMode,
        graph: CuGraph,
        callback_func: CuGraphRecaptureCallback,
        user_data: *mut c_void,
    ) -> CuResult;

    /// Begins to capture into `graph`, which keeps the nodes that it has.
    ///
    /// The first captured node depends on the `num_dependencies` nodes at `dependencies`, with as
    /// many edges at `dependency_data`, or null for ordinary ones. Otherwise as
    /// `cuStreamBeginCapture_v2`.
    ///
    /// Since CUDA 12.3.
    pub fn cuStreamBeginCaptureToGraph(
        stream: CuStream,
        graph: CuGraph,
        dependencies: *const CuGraphNode,
        dependency_data: *const CuGraphEdgeData,
        num_dependencies: usize,
        mode: CuStreamCaptureMode,
    ) -> CuResult;

    /// Swaps `mode` with the calling thread's own mode, which is global until it is changed.
    ///
    /// A relaxed thread may make unsafe calls while a capture runs elsewhere. Call it again to
    /// restore the old one.
    pub fn cuThreadExchangeStreamCaptureMode(mode: *mut CuStreamCaptureMode) -> CuResult;

    /// Ends the capture that began on `stream` and sets `graph`, to be destroyed by the caller.
    ///
    /// On the thread that began it, unless its mode is relaxed: else `StreamCaptureWrongThread`.
    /// `StreamCaptureInvalidated`, with `graph` 0, if an error spoiled it; `StreamCaptureUnjoined`
    /// if a stream that joined did not come back; `IllegalState` if none began.
    pub fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) -> CuResult;

    /// Sets `capture_status` to whether the stream is being captured. Allowed at any time.
    ///
    /// `StreamCaptureImplicit` for the legacy stream while a blocking stream is being captured.
    pub fn cuStreamIsCapturing(
        stream: CuStream,
        capture_status: *mut CuStreamCaptureStatus,
    ) -> CuResult;

    /// Sets what there is to know about the capture of a stream; any pointer but the first may be
    /// null.
    ///
    /// Only with `Success` and an active capture do the others hold something: a number of the
    /// capture, unique in this process; the graph, still the capture's; and the nodes that the next
    /// one will depend on, with their edges, as arrays of `num_dependencies_out` that are the
    /// driver's and valid until the next call about this stream. `LossyQuery` if the edges matter
    /// and were not asked for.
    ///
    /// Since CUDA 12.3.
    pub fn cuStreamGetCaptureInfo_v3(
        stream: CuStream,
        capture_status_out: *mut CuStreamCaptureStatus,
        id_out: *mut u64,
        graph_out: *mut CuGraph,
        dependencies_out: *mut *const CuGraphNode,
        edge_data_out: *mut *const CuGraphEdgeData,
        num_dependencies_out: *mut usize,
    ) -> CuResult;

    /// Adds to or replaces the nodes that the next captured one will depend on.
    ///
    /// `num_dependencies` of them at `dependencies`, with as many edges at `dependency_data` or
    /// null. `flags` is [`CU_STREAM_ADD_CAPTURE_DEPENDENCIES`] or
    /// [`CU_STREAM_SET_CAPTURE_DEPENDENCIES`]. `IllegalState` if the stream is not being captured.
    ///
    /// Since CUDA 12.3.
    pub fn cuStreamUpdateCaptureDependencies_v2(
        stream: CuStream,
        dependencies: *mut CuGraphNode,
        dependency_data: *const CuGraphEdgeData,
        num_dependencies: usize,
        flags: u32,
    ) -> CuResult;

    /// Says from this point of the stream on who uses `length` bytes of managed memory at `dptr`.
    ///
    /// `flags` is one `CU_MEM_ATTACH_*`. `length` is 0 or all of the allocation; pageable host
    /// memory has to be given its length.
    pub fn cuStreamAttachMemAsync(
        stream: CuStream,
        dptr: CuDevicePtr,
        length: usize,
        flags: u32,
    ) -> CuResult;

    /// Whether all work of the stream is done: `Success` if so, `NotReady` if not. Any other code
    /// is a failure.
    ///
    /// Works on a thread without a context, but for stream 0. `StreamCaptureUnsupported` for a
    /// stream that is being captured, which spoils the capture.
    pub fn cuStreamQuery(stream: CuStream) -> CuResult;

    /// Waits until all work of the stream is done, and returns its failure if there is one.
    ///
    /// Works on a thread without a context, but for stream 0. `StreamCaptureUnsupported` for a
    /// stream that is being captured, which spoils the capture.
    pub fn cuStreamSynchronize(stream: CuStream) -> CuResult;

    /// Destroys the stream. Returns at once; what is enqueued still runs.
    ///
    /// `InvalidHandle` for 0 and the other special streams. A stream destroyed before crashes the
    /// process.
    pub fn cuStreamDestroy_v2(stream: CuStream) -> CuResult;

    /// Gives the stream `dst` all attributes of `src`, a stream of the same context.
    pub fn cuStreamCopyAttributes(dst: CuStream, src: CuStream) -> CuResult;

    /// Sets `value_out` to an attribute of the stream.
    pub fn cuStreamGetAttribute(
        stream: CuStream,
        attr: CuStreamAttrId,
        value_out: *mut CuStreamAttrValue,
    ) -> CuResult;

    /// Sets an attribute of the stream, for the work enqueued after this.
    pub fn cuStreamSetAttribute(
        stream: CuStream,
        attr: CuStreamAttrId,
        value: *const CuStreamAttrValue,
    ) -> CuResult;

    // Events

    /// Creates an event in the current context and sets `event`.
    ///
    /// `flags` is a sum of `CU_EVENT_*`; `InvalidValue` for any other bit, and for
    /// [`CU_EVENT_INTERPROCESS`] without [`CU_EVENT_DISABLE_TIMING`]. `InvalidContext` without a
    /// context.
    pub fn cuEventCreate(event: *mut CuEvent, flags: u32) -> CuResult;

    /// Marks this point of the stream: from now on the event stands for all work enqueued before.
    ///
    /// What it stood for is forgotten, but waits enqueued before keep to it. Both must be of one
    /// context, else `InvalidHandle`; so for event 0. In a capture the event can then be waited for
    /// by captured streams only.
    pub fn cuEventRecord(event: CuEvent, stream: CuStream) -> CuResult;

    /// As `cuEventRecord`, with [`CU_EVENT_RECORD_DEFAULT`] or, in a capture,
    /// [`CU_EVENT_RECORD_EXTERNAL`].
    ///
    /// Since CUDA 11.1.
    pub fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: u32) -> CuResult;

    /// Whether the work that the event stands for is done: `Success` if so or if it was never
    /// recorded, `NotReady` if not. Any other code is a failure: `InvalidHandle` for 0,
    /// `CapturedEvent` if a capture holds it.
    pub fn cuEventQuery(event: CuEvent) -> CuResult;

    /// Waits until the work that the event stands for is done; returns at once if it was never
    /// recorded.
    ///
    /// `InvalidHandle` for 0, `CapturedEvent` if a capture holds it.
    pub fn cuEventSynchronize(event: CuEvent) -> CuResult;

    /// Destroys the event. Returns at once; waits enqueued before are kept.
    ///
    /// `InvalidHandle` for 0. An event destroyed before crashes the process.
    pub fn cuEventDestroy_v2(event: CuEvent) -> CuResult;

    /// Sets `milliseconds` to the time from `start` to `end`, to about half a microsecond; negative
    /// if they are the other way round.
    ///
    /// `InvalidHandle` if either was never recorded or takes no times
    /// ([`CU_EVENT_DISABLE_TIMING`]); `NotReady` if either is still pending. The first form of this
    /// function, which every driver has.
    pub fn cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> CuResult;

    /// As `cuEventElapsedTime`; a failure of earlier work need not show here.
    ///
    /// Since CUDA 12.8.
    pub fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> CuResult;

    // Stream memory operations

    /// Makes the stream wait until the 32-bit word at `addr` compares with `value` as `flags` says.
    ///
    /// `flags` is one of the four `CU_STREAM_WAIT_VALUE_*`, with or without
    /// [`CU_STREAM_WAIT_VALUE_FLUSH`]. Not for managed memory. The driver does not see this
    /// dependency: order the work by events as well, or it may deadlock.
    ///
    /// Since CUDA 11.7.
    pub fn cuStreamWaitValue32_v2(
        stream: CuStream,
        addr: CuDevicePtr,
        value: u32,
        flags: u32,
    ) -> CuResult;

    /// As `cuStreamWaitValue32_v2` for a word of 64 bits.
    ///
    /// `NotSupported` where [`CuDeviceAttribute::CanUse64BitStreamMemOps`] is 0.
    ///
    /// Since CUDA 11.7.
    pub fn cuStreamWaitValue64_v2(
        stream: CuStream,
        addr: CuDevicePtr,
        value: u64,
        flags: u32,
    ) -> CuResult;

    /// Writes `value` to the 32-bit word at `addr` when the stream gets here, after all that it
    /// wrote before.
    ///
    /// `flags` is [`CU_STREAM_WRITE_VALUE_DEFAULT`]. Not for managed memory.
    ///
    /// Since CUDA 11.7.
    pub fn cuStreamWriteValue32_v2(
        stream: CuStream,
        addr: CuDevicePtr,
        value: u32,
        flags: u32,
    ) -> CuResult;

    /// As `cuStreamWriteValue32_v2` for a word of 64 bits.
    ///
    /// `NotSupported` where [`CuDeviceAttribute::CanUse64BitStreamMemOps`] is 0.
    ///
    /// Since CUDA 11.7.
    pub fn cuStreamWriteValue64_v2(
        stream: CuStream,
        addr: CuDevicePtr,
        value: u64,
        flags: u32,
    ) -> CuResult;

    /// Enqueues the `count` memory operations at `param_array`, fewer than 256, in their order.
    ///
    /// `flags` must be 0.
    ///
    /// Since CUDA 11.7.
    pub fn cuStreamBatchMemOp_v2(
        stream: CuStream,
        count: u32,
        param_array: *mut CuStreamBatchMemOpParams,
        flags: u32,
    ) -> CuResult;

    // Execution

    /// Enqueues a kernel on `stream`: a grid of blocks of threads, with `shared_mem_bytes` of
    /// dynamic shared memory each block.
    ///
    /// `kernel_params` points to one pointer for each of the kernel's arguments, read before the
    /// call returns; their number and sizes are the kernel's own and are not checked. Or it is
    /// null, and `extra` is a list that names one buffer with all arguments and ends with
    /// [`CU_LAUNCH_PARAM_END`]. `InvalidValue` for both at once and for sizes that the device does
    /// not have, `LaunchOutOfResources` for too many threads for the kernel. What the kernel itself
    /// does wrong shows in a later call.
    pub fn cuLaunchKernel(
        f: CuFunction,
        grid_dim_x: u32,
        grid_dim_y: u32,
        grid_dim_z: u32,
        block_dim_x: u32,
        block_dim_y: u32,
        block_dim_z: u32,
        shared_mem_bytes: u32,
        stream: CuStream,
        kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CuResult;

    /// Calls `function` with `user_data` on a host thread once all earlier work of the stream is
    /// done; later work waits for it.
    ///
    /// Any call to CUDA in it gives `NotPermitted`. It is not called if that work failed.
    pub fn cuLaunchHostFunc(
        stream: CuStream,
        function: CuHostFn,
        user_data: *mut c_void,
    ) -> CuResult;

    // Graphs

    /// Creates an empty graph and sets `graph`. `flags` must be 0.
    pub fn cuGraphCreate(graph: *mut CuGraph, flags: u32) -> CuResult;

    /// Writes the graph's nodes to `nodes`, which has room for `num_nodes`, and sets that to their
    /// number.
    ///
    /// With `nodes` null it only sets the number. Room to spare is filled with 0.
    pub fn cuGraphGetNodes(
        graph: CuGraph,
        nodes: *mut CuGraphNode,
        num_nodes: *mut usize,
    ) -> CuResult;

    /// Makes an executable graph of `graph` and sets `graph_exec`, to be destroyed by the caller.
    ///
    /// It keeps nothing of `graph`, which may be destroyed or changed. `flags` is a sum of
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`, or 0.
    ///
    /// Since CUDA 11.4.
    pub fn cuGraphInstantiateWithFlags(
        graph_exec: *mut CuGraphExec,
        graph: CuGraph,
        flags: c_ulonglong,
    ) -> CuResult;

    /// Enqueues on `stream` what the first launch would do to bring the graph to the device, and no
    /// more.
    ///
    /// Since CUDA 11.1.
    pub fn cuGraphUpload(graph_exec: CuGraphExec, stream: CuStream) -> CuResult;

    /// Enqueues the executable graph on `stream`, after the stream's earlier work and the graph's
    /// earlier launches.
    ///
    /// Addresses and values are those of the capture: the memory must still be there.
    pub fn cuGraphLaunch(graph_exec: CuGraphExec, stream: CuStream) -> CuResult;

    /// Destroys the executable graph; a launch that runs still ends.
    pub fn cuGraphExecDestroy(graph_exec: CuGraphExec) -> CuResult;

    /// Destroys the graph and its nodes. Executable graphs made of it stay.
    pub fn cuGraphDestroy(graph: CuGraph) -> CuResult;

    /// Gives the executable graph the parameters of `graph`, which must have the same nodes and
    /// edges.
    ///
    /// Much cheaper than making a new one. `GraphExecUpdateFailure` if it cannot take them over,
    /// with the reason in `result_info`; it is then unchanged.
    ///
    /// Since CUDA 12.0.
    pub fn cuGraphExecUpdate_v2(
        graph_exec: CuGraphExec,
        graph: CuGraph,
        result_info: *mut CuGraphExecUpdateResultInfo,
    ) -> CuResult;

    // Peer access

    /// Sets `can_access_peer` to 1 if `dev` can reach memory of `peer_dev` directly, else to 0.
    ///
    /// `InvalidDevice` if either is wrong. Ask about two different devices.
    pub fn cuDeviceCanAccessPeer(
        can_access_peer: *mut i32,
        dev: CuDevice,
        peer_dev: CuDevice,
    ) -> CuResult;

    /// Lets the current context reach all memory of `peer_context`, now and later. One way only.
    ///
    /// `flags` must be 0. `PeerAccessUnsupported` where the devices cannot,
    /// `PeerAccessAlreadyEnabled` the second time, `InvalidContext` for the current context itself.
    pub fn cuCtxEnablePeerAccess(peer_context: CuContext, flags: u32) -> CuResult;

    /// Ends what `cuCtxEnablePeerAccess` began.
    ///
    /// `PeerAccessNotEnabled` if nothing did.
    pub fn cuCtxDisablePeerAccess(peer_context: CuContext) -> CuResult;

    /// Sets `value` to what `attrib` asks about the link from `src_device` to `dst_device`.
    ///
    /// `InvalidDevice` if either is wrong, or if they are the same.
    pub fn cuDeviceGetP2PAttribute(
        value: *mut i32,
        attrib: CuDeviceP2PAttribute,
        src_device: CuDevice,
        dst_device: CuDevice,
    ) -> CuResult;

    // Green contexts

    /// Sets `ctx` to the green context that the stream belongs to, 0 if to none.
    ///
    /// Since CUDA 12.4.
    pub fn cuStreamGetGreenCtx(stream: CuStream, ctx: *mut CuGreenCtx) -> CuResult;

    /// Sets `resource` to the resources of kind `kind` that the stream has.
    ///
    /// `InvalidResourceType` for the work queues.
    ///
    /// Since CUDA 13.1.
    pub fn cuStreamGetDevResource(
        stream: CuStream,
        resource: *mut CuDevResource,
        kind: CuDevResourceType,
    ) -> CuResult;
}

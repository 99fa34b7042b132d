//! The C functions, in the order in which `src/cuda/ffi.rs` declares them: what each checks, and
//! who does the work.

use std::ffi::{CStr, c_char, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::capture;
use super::context::{self, Context};
use super::memory::{self, End, Kind, Value};
use super::stream::{self, Stream};
use super::word::{self, MemOp};
use super::{device, error, event, graph, kernel};
use crate::cuda::*;

type Result<T = (), E = CuResult> = std::result::Result<T, E>;

/// The functions of a list, each checked at compile time to be what its declaration says.
macro_rules! api {
    ($(fn $name:ident($($parameter:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($parameter: $kind),*) -> CuResult {
                // SAFETY: the caller keeps to the function's contract, which says what each pointer
                // holds and for how long; the body does nothing with them that the contract does
                // not say.
                #[allow(unused_unsafe)]
                answer(|| unsafe { $body })
            }

            const _: unsafe extern "C" fn($($kind),*) -> CuResult = crate::cuda::$name;
        )*

        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Runs the body of a call. A panic must not cross into C.
fn answer(body: impl FnOnce() -> Result) -> CuResult {
    crate::emulator::announce();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CuResult::Success,
        Ok(Err(code)) => code,
        Err(_) => CuResult::Unknown,
    }
}

/// For calls that also host functions may make.
fn ready() -> Result {
    match context::is_initialized() {
        true => Ok(()),
        false => Err(CuResult::NotInitialized),
    }
}

/// For calls that host functions and kernels may not make.
fn outside() -> Result {
    ready()?;
    match context::in_callback() {
        true => Err(CuResult::NotPermitted),
        false => Ok(()),
    }
}

/// The current context, for a call that host functions and kernels may not make.
fn current() -> Result<Arc<Context>> {
    outside()?;
    context::current()
}

fn given<T>(pointer: *const T) -> Result {
    match pointer.is_null() {
        true => Err(CuResult::InvalidValue),
        false => Ok(()),
    }
}

/// Writes an answer.
///
/// # Safety
///
/// `out` is null, which is refused, or has room for it.
unsafe fn put<T>(out: *mut T, value: T) -> Result {
    given(out)?;
    // SAFETY: not null, and as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes an answer that the caller need not want.
///
/// # Safety
///
/// `out` is null or has room for it.
unsafe fn offer<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, and as the caller promises.
        unsafe { out.write(value) };
    }
}

/// Writes `text` with a closing zero, cut to `len` bytes.
///
/// # Safety
///
/// `out` is null, which is refused, or has room for `len` bytes.
unsafe fn put_text(out: *mut c_char, len: i32, text: &str) -> Result {
    given(out)?;
    let room = usize::try_from(len).unwrap_or(0);
    let length = text
        .len()
        .min(room.checked_sub(1).ok_or(CuResult::InvalidValue)?);
    // SAFETY: not null, and at most `len` bytes as the caller promises.
    unsafe {
        out.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), length);
        out.add(length).write(0);
    }
    Ok(())
}

/// A name that a program gives.
///
/// # Safety
///
/// `name` is null, which is refused, or ends with a zero byte and lives as long as the answer is
/// used.
unsafe fn name<'a>(name: *const c_char) -> Result<&'a CStr> {
    given(name)?;
    // SAFETY: not null, and as the caller promises.
    Ok(unsafe { CStr::from_ptr(name) })
}

/// Copies without a stream are in order with the legacy one.
fn legacy() -> Result<Arc<Stream>> {
    current()?;
    stream::resolve(CU_STREAM_LEGACY)
}

/// Contexts of a copy between two say no more than the addresses do; 0 will do.
fn check_contexts(contexts: [CuContext; 2]) -> Result {
    for handle in contexts {
        if handle != 0 {
            context::primary(context::device_of(handle)?)?;
        }
    }
    Ok(())
}

/// Pinned memory of the current context.
fn allocate_pinned(size: usize) -> Result<*mut c_void> {
    outside()?;
    capture::check_unsafe()?;
    let device = context::current()?.device;
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    let address = memory::allocate(device, size, Kind::Pinned)?;
    Ok(memory::pointer(address).cast())
}

/// Frees memory, with or without a context; a current one that has failed refuses even 0.
fn free(address: CuDevicePtr, kind: Kind) -> Result {
    match context::current() {
        Ok(_) | Err(CuResult::InvalidContext) => {}
        Err(failure) => return Err(failure),
    }
    match address {
        0 => Ok(()),
        _ => memory::release(address, kind),
    }
}

fn fill(dst: CuDevicePtr, value: Value, count: usize) -> Result {
    memory::fill_async(&legacy()?, dst, value, count)
}

fn fill_async(dst: CuDevicePtr, value: Value, count: usize, stream: CuStream) -> Result {
    ready()?;
    memory::fill_async(&stream::resolve(stream)?, dst, value, count)
}

fn copy_async(dst: (u64, End), src: (u64, End), count: usize, stream: CuStream) -> Result {
    ready()?;
    memory::copy_async(&stream::resolve(stream)?, dst, src, count)
}

/// Begins a capture into a program's graph.
///
/// # Safety
///
/// `dependencies` holds `count` nodes.
unsafe fn begin_to_graph(
    stream: CuStream,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    mode: CuStreamCaptureMode,
) -> Result {
    ready()?;
    let graph = graph::find(graph)?;
    // SAFETY: as the caller promises.
    let dependencies = graph.places(unsafe { slice(dependencies, count) }?)?;
    let stream = stream::resolve_quietly(stream)?;
    capture::begin(&stream, mode, Some((graph, dependencies)))
}

/// # Safety
///
/// `pointer` holds `count` values that live as long as the answer is used; it may be null if there
/// are none.
unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    given(pointer)?;
    // SAFETY: not null, and as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Where a launch has its arguments.
///
/// # Safety
///
/// `extra` is null or a list as `cuLaunchKernel` takes it.
unsafe fn arguments(
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<kernel::Arguments> {
    if extra.is_null() {
        return Ok(kernel::Arguments::Each(kernel_params));
    }
    if !kernel_params.is_null() {
        return Err(CuResult::InvalidValue);
    }
    let (mut buffer, mut bytes) = (std::ptr::null(), 0);
    let mut entry = extra;
    // SAFETY: the list is pairs of a name and a pointer up to its end, and the size is behind a
    // pointer.
    unsafe {
        while *entry != CU_LAUNCH_PARAM_END {
            let value = *entry.add(1);
            if *entry == CU_LAUNCH_PARAM_BUFFER_POINTER {
                buffer = value.cast_const().cast();
            } else if *entry == CU_LAUNCH_PARAM_BUFFER_SIZE {
                given(value)?;
                bytes = value.cast::<usize>().read();
            } else {
                return Err(CuResult::InvalidValue);
            }
            entry = entry.add(2);
        }
    }
    given(buffer)?;
    Ok(kernel::Arguments::Buffer(buffer, bytes))
}

/// Answers what `attribute` asks about known memory.
///
/// # Safety
///
/// `data` has room for the attribute's type.
unsafe fn pointer_attribute(
    data: *mut c_void,
    attribute: CuPointerAttribute,
    address: CuDevicePtr,
) -> Result {
    use CuPointerAttribute as A;
    let range = memory::find(address).ok_or(CuResult::InvalidValue)?;
    let on_device = range.kind.is_device();
    let memory_type = match on_device {
        true => CuMemoryType::Device,
        false => CuMemoryType::Host,
    };
    // SAFETY: the type that each attribute has, as the caller promises.
    unsafe {
        match attribute {
            A::Context => put(data.cast(), super::table::context_handle(range.device)),
            A::MemoryType => put(data.cast(), memory_type),
            A::DevicePointer => put(data.cast(), address),
            A::HostPointer if on_device => {
                put(data.cast(), 0u64)?;
                Err(CuResult::InvalidValue)
            }
            A::HostPointer => put(data.cast(), address),
            A::SyncMemops => put(data.cast(), i32::from(on_device)),
            A::BufferId | A::MemoryBlockId => put(data.cast(), memory::id(address).unwrap_or(0)),
            A::DeviceOrdinal => put(data.cast(), range.device),
            A::RangeStartAddr | A::MappingBaseAddr => put(data.cast(), range.base),
            A::RangeSize | A::MappingSize => put(data.cast(), range.size),
            A::Mapped => put(data.cast(), 1i32),
            A::IsManaged
            | A::IsLegacyCudaIpcCapable
            | A::IsGpuDirectRdmaCapable
            | A::IsHwDecompressCapable => put(data.cast(), 0i32),
            A::AllowedHandleTypes => put(data.cast(), 0u64),
            // Readable and writable.
            A::AccessFlags => put(data.cast(), 3i32),
            A::MempoolHandle => put::<CuMemoryPool>(data.cast(), 0),
            _ if attribute.c_name().is_some() => Err(CuResult::NotSupported),
            _ => Err(CuResult::InvalidValue),
        }
    }
}

api! {
    fn cuGetErrorString(error: CuResult, str: *mut *const c_char) {
        let text = error::sentence(error);
        put(str, text.map_or(std::ptr::null(), CStr::as_ptr))?;
        text.map(drop).ok_or(CuResult::InvalidValue)
    }

    fn cuGetErrorName(error: CuResult, str: *mut *const c_char) {
        let text = error::name(error);
        put(str, text.map_or(std::ptr::null(), CStr::as_ptr))?;
        text.map(drop).ok_or(CuResult::InvalidValue)
    }

    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CuResult::InvalidValue);
        }
        context::initialize();
        Ok(())
    }

    fn cuDriverGetVersion(driver_version: *mut i32) {
        put(driver_version, CUDA_VERSION)
    }

    fn cuDeviceGet(device: *mut CuDevice, ordinal: i32) {
        outside()?;
        given(device)?;
        device::get(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetCount(count: *mut i32) {
        outside()?;
        put(count, device::device_count())
    }

    fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CuDevice) {
        outside()?;
        device::get(dev)?;
        put_text(name, len, device::NAME)
    }

    fn cuDeviceGetUuid_v2(uuid: *mut CuUuid, dev: CuDevice) {
        outside()?;
        device::get(dev)?;
        put(uuid, device::uuid(dev))
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CuDevice) {
        outside()?;
        device::get(dev)?;
        put(bytes, device::MEMORY)
    }

    fn cuDeviceGetAttribute(pi: *mut i32, attrib: CuDeviceAttribute, dev: CuDevice) {
        outside()?;
        given(pi)?;
        device::get(dev)?;
        put(pi, device::attribute(attrib, dev)?)
    }

    fn cuDevicePrimaryCtxRetain(ctx: *mut CuContext, dev: CuDevice) {
        outside()?;
        given(ctx)?;
        put(ctx, context::retain(dev)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CuDevice) {
        outside()?;
        context::give_back(dev)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: CuDevice, flags: u32) {
        outside()?;
        context::set_flags(dev, flags)
    }

    fn cuDevicePrimaryCtxGetState(dev: CuDevice, flags: *mut u32, active: *mut i32) {
        outside()?;
        given(flags)?;
        given(active)?;
        let primary = super::read(&device::get(dev)?.primary);
        put(flags, primary.flags)?;
        put(active, i32::from(primary.context.is_some()))
    }

    fn cuDevicePrimaryCtxReset_v2(dev: CuDevice) {
        outside()?;
        context::reset(dev)
    }

    fn cuCtxPushCurrent_v2(ctx: CuContext) {
        outside()?;
        if ctx == 0 {
            return Err(CuResult::InvalidValue);
        }
        let device = context::device_of(ctx)?;
        context::primary(device)?;
        context::push_current(device);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(ctx: *mut CuContext) {
        outside()?;
        let device = context::pop_current().ok_or(CuResult::InvalidContext)?;
        offer(ctx, super::table::context_handle(device));
        Ok(())
    }

    fn cuCtxSetCurrent(ctx: CuContext) {
        outside()?;
        let device = match ctx {
            0 => None,
            _ => {
                let device = context::device_of(ctx)?;
                context::primary(device)?;
                Some(device)
            }
        };
        context::set_current(device);
        Ok(())
    }

    fn cuCtxGetCurrent(ctx: *mut CuContext) {
        outside()?;
        put(ctx, context::current_device().map_or(0, super::table::context_handle))
    }

    fn cuCtxGetDevice(device: *mut CuDevice) {
        outside()?;
        given(device)?;
        put(device, context::current_device().ok_or(CuResult::InvalidContext)?)
    }

    fn cuCtxSynchronize() {
        outside()?;
        let context = current()?;
        capture::check_unsafe()?;
        capture::check_whole(&context)?;
        context.synchronize();
        context.check()
    }

    fn cuCtxGetStreamPriorityRange(least_priority: *mut i32, greatest_priority: *mut i32) {
        current()?;
        offer(least_priority, stream::PRIORITIES.0);
        offer(greatest_priority, stream::PRIORITIES.1);
        Ok(())
    }

    fn cuModuleLoad(module: *mut CuModule, fname: *const c_char) {
        let context = current()?;
        given(module)?;
        let path = name(fname)?;
        let path = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path.to_bytes());
        if !std::path::Path::new(path).is_file() {
            return Err(CuResult::FileNotFound);
        }
        put(module, kernel::load(&context))
    }

    fn cuModuleLoadData(module: *mut CuModule, image: *const c_void) {
        let context = current()?;
        given(module)?;
        given(image)?;
        put(module, kernel::load(&context))
    }

    fn cuModuleLoadDataEx(
        module: *mut CuModule,
        image: *const c_void,
        num_options: u32,
        options: *mut CuJitOption,
        option_values: *mut *mut c_void,
    ) {
        let context = current()?;
        given(module)?;
        given(image)?;
        if num_options > 0 {
            given(options)?;
            given(option_values)?;
        }
        put(module, kernel::load(&context))
    }

    fn cuModuleUnload(module: CuModule) {
        outside()?;
        capture::check_unsafe()?;
        kernel::unload(module)
    }

    fn cuModuleGetFunction(func: *mut CuFunction, module: CuModule, fname: *const c_char) {
        outside()?;
        given(func)?;
        let wanted = name(fname)?;
        if wanted.is_empty() {
            return Err(CuResult::InvalidValue);
        }
        kernel::check_module(module)?;
        put(func, 0)?;
        put(func, kernel::function(module, &wanted.to_string_lossy())?)
    }

    fn cuModuleGetGlobal_v2(
        dptr: *mut CuDevicePtr,
        bytes: *mut usize,
        module: CuModule,
        fname: *const c_char,
    ) {
        outside()?;
        if dptr.is_null() && bytes.is_null() {
            return Err(CuResult::InvalidValue);
        }
        name(fname)?;
        kernel::check_module(module)?;
        // Modules here have kernels alone.
        Err(CuResult::NotFound)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let info = memory::info(current()?.device)?;
        offer(free, info.0);
        offer(total, info.1);
        Ok(())
    }

    fn cuMemAlloc_v2(dptr: *mut CuDevicePtr, bytesize: usize) {
        outside()?;
        capture::check_unsafe()?;
        let context = context::current()?;
        put(dptr, 0)?;
        if bytesize == 0 {
            return Err(CuResult::InvalidValue);
        }
        put(dptr, memory::allocate(context.device, bytesize, Kind::Device)?)
    }

    fn cuMemFree_v2(dptr: CuDevicePtr) {
        outside()?;
        capture::check_unsafe()?;
        free(dptr, Kind::Device)
    }

    fn cuMemGetAddressRange_v2(base: *mut CuDevicePtr, size: *mut usize, dptr: CuDevicePtr) {
        outside()?;
        if base.is_null() && size.is_null() {
            return Ok(());
        }
        context::current()?;
        let range = memory::find(dptr).ok_or(CuResult::NotFound)?;
        offer(base, range.base);
        offer(size, range.size);
        Ok(())
    }

    fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) {
        given(pp)?;
        put(pp, allocate_pinned(bytesize)?)
    }

    fn cuMemFreeHost(p: *mut c_void) {
        outside()?;
        capture::check_unsafe()?;
        free(p.expose_provenance() as u64, Kind::Pinned)
    }

    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: u32) {
        const ALL: u32 =
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        given(pp)?;
        if flags & !ALL != 0 {
            outside()?;
            return Err(CuResult::InvalidValue);
        }
        put(pp, allocate_pinned(bytesize)?)
    }

    fn cuMemHostGetDevicePointer_v2(dptr: *mut CuDevicePtr, p: *mut c_void, flags: u32) {
        current()?;
        let address = p.expose_provenance() as u64;
        let range = memory::find(address).ok_or(CuResult::InvalidValue)?;
        if flags != 0 || range.kind.is_device() {
            return Err(CuResult::InvalidValue);
        }
        put(dptr, address)
    }

    fn cuDeviceGetByPCIBusId(dev: *mut CuDevice, pci_bus_id: *const c_char) {
        outside()?;
        given(dev)?;
        let address = name(pci_bus_id)?.to_string_lossy();
        put(dev, device::at_pci_address(&address)?)
    }

    fn cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: i32, dev: CuDevice) {
        outside()?;
        device::get(dev)?;
        let address = device::pci_address(dev);
        // Part of an address is of no use.
        if usize::try_from(len).unwrap_or(0) <= address.len() {
            return Err(CuResult::InvalidValue);
        }
        put_text(pci_bus_id, len, &address)
    }

    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) {
        const ALL: u32 = CU_MEMHOSTREGISTER_PORTABLE
            | CU_MEMHOSTREGISTER_DEVICEMAP
            | CU_MEMHOSTREGISTER_IOMEMORY
            | CU_MEMHOSTREGISTER_READ_ONLY;
        outside()?;
        capture::check_unsafe()?;
        let context = context::current()?;
        given(p)?;
        if bytesize == 0 || flags & !ALL != 0 {
            return Err(CuResult::InvalidValue);
        }
        memory::register(p.expose_provenance() as u64, bytesize, context.device)
    }

    fn cuMemHostUnregister(p: *mut c_void) {
        outside()?;
        capture::check_unsafe()?;
        context::current()?;
        given(p)?;
        memory::unregister(p.expose_provenance() as u64)
    }

    fn cuMemcpy(dst: CuDevicePtr, src: CuDevicePtr, byte_count: usize) {
        memory::copy(&legacy()?, (dst, End::Any), (src, End::Any), byte_count)
    }

    fn cuMemcpyPeer(
        dst_device: CuDevicePtr,
        dst_context: CuContext,
        src_device: CuDevicePtr,
        src_context: CuContext,
        byte_count: usize,
    ) {
        let stream = legacy()?;
        check_contexts([dst_context, src_context])?;
        memory::copy(&stream, (dst_device, End::Known), (src_device, End::Known), byte_count)
    }

    fn cuMemcpyHtoD_v2(dst_device: CuDevicePtr, src_host: *const c_void, byte_count: usize) {
        let src = src_host.expose_provenance() as u64;
        memory::copy(&legacy()?, (dst_device, End::Known), (src, End::Any), byte_count)
    }

    fn cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CuDevicePtr, byte_count: usize) {
        let dst = dst_host.expose_provenance() as u64;
        memory::copy(&legacy()?, (dst, End::Any), (src_device, End::Known), byte_count)
    }

    fn cuMemcpyDtoD_v2(dst_device: CuDevicePtr, src_device: CuDevicePtr, byte_count: usize) {
        memory::copy(&legacy()?, (dst_device, End::Known), (src_device, End::Known), byte_count)
    }

    fn cuMemcpyAsync(dst: CuDevicePtr, src: CuDevicePtr, byte_count: usize, stream: CuStream) {
        copy_async((dst, End::Any), (src, End::Any), byte_count, stream)
    }

    fn cuMemcpyPeerAsync(
        dst_device: CuDevicePtr,
        dst_context: CuContext,
        src_device: CuDevicePtr,
        src_context: CuContext,
        byte_count: usize,
        stream: CuStream,
    ) {
        ready()?;
        check_contexts([dst_context, src_context])?;
        copy_async((dst_device, End::Known), (src_device, End::Known), byte_count, stream)
    }

    fn cuMemcpyHtoDAsync_v2(
        dst_device: CuDevicePtr,
        src_host: *const c_void,
        byte_count: usize,
        stream: CuStream,
    ) {
        let src = src_host.expose_provenance() as u64;
        copy_async((dst_device, End::Known), (src, End::Any), byte_count, stream)
    }

    fn cuMemcpyDtoHAsync_v2(
        dst_host: *mut c_void,
        src_device: CuDevicePtr,
        byte_count: usize,
        stream: CuStream,
    ) {
        let dst = dst_host.expose_provenance() as u64;
        copy_async((dst, End::Any), (src_device, End::Known), byte_count, stream)
    }

    fn cuMemcpyDtoDAsync_v2(
        dst_device: CuDevicePtr,
        src_device: CuDevicePtr,
        byte_count: usize,
        stream: CuStream,
    ) {
        copy_async((dst_device, End::Known), (src_device, End::Known), byte_count, stream)
    }

    fn cuMemsetD8_v2(dst_device: CuDevicePtr, uc: u8, n: usize) {
        fill(dst_device, Value::Byte(uc), n)
    }

    fn cuMemsetD16_v2(dst_device: CuDevicePtr, us: u16, n: usize) {
        fill(dst_device, Value::Half(us), n)
    }

    fn cuMemsetD32_v2(dst_device: CuDevicePtr, ui: u32, n: usize) {
        fill(dst_device, Value::Word(ui), n)
    }

    fn cuMemsetD8Async(dst_device: CuDevicePtr, uc: u8, n: usize, stream: CuStream) {
        fill_async(dst_device, Value::Byte(uc), n, stream)
    }

    fn cuMemsetD16Async(dst_device: CuDevicePtr, us: u16, n: usize, stream: CuStream) {
        fill_async(dst_device, Value::Half(us), n, stream)
    }

    fn cuMemsetD32Async(dst_device: CuDevicePtr, ui: u32, n: usize, stream: CuStream) {
        fill_async(dst_device, Value::Word(ui), n, stream)
    }

    fn cuMemFreeAsync(dptr: CuDevicePtr, stream: CuStream) {
        outside()?;
        let stream = stream::resolve(stream)?;
        if dptr == 0 {
            return Ok(());
        }
        memory::release_async(dptr, &stream)
    }

    fn cuMemAllocAsync(dptr: *mut CuDevicePtr, bytesize: usize, stream: CuStream) {
        outside()?;
        let stream = stream::resolve(stream)?;
        // A captured stream takes the allocation into its graph; any other call is as unsafe as a
        // plain allocation.
        if stream.captured().is_none() {
            capture::check_unsafe()?;
        }
        given(dptr)?;
        let address = match bytesize {
            0 => 0,
            _ => memory::allocate_async(&stream, bytesize)?,
        };
        put(dptr, address)
    }

    fn cuPointerGetAttribute(data: *mut c_void, attribute: CuPointerAttribute, ptr: CuDevicePtr) {
        outside()?;
        given(data)?;
        pointer_attribute(data, attribute, ptr)
    }

    fn cuStreamCreate(stream: *mut CuStream, flags: u32) {
        outside()?;
        given(stream)?;
        if flags & !CU_STREAM_NON_BLOCKING != 0 {
            return Err(CuResult::InvalidValue);
        }
        put(stream, stream::create(&context::current()?, flags, 0)?)
    }

    fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: u32, priority: i32) {
        outside()?;
        given(stream)?;
        if flags & !CU_STREAM_NON_BLOCKING != 0 {
            return Err(CuResult::InvalidValue);
        }
        put(stream, stream::create(&context::current()?, flags, priority)?)
    }

    fn cuStreamBeginCaptureToCig(
        stream: CuStream,
        stream_cig_capture_params: *mut CuStreamCigCaptureParams,
    ) {
        ready()?;
        stream::resolve(stream)?;
        given(stream_cig_capture_params)?;
        // No context here belongs to a graphics program.
        Err(CuResult::InvalidContext)
    }

    fn cuStreamEndCaptureToCig(stream: CuStream) {
        ready()?;
        stream::resolve(stream)?;
        Err(CuResult::InvalidContext)
    }

    fn cuStreamGetPriority(stream: CuStream, priority: *mut i32) {
        ready()?;
        let stream = stream::resolve(stream)?;
        let attributes = *super::lock(&stream.attributes);
        put(priority, attributes.priority)
    }

    fn cuStreamGetDevice(stream: CuStream, device: *mut CuDevice) {
        ready()?;
        put(device, stream::resolve(stream)?.context.device)
    }

    fn cuStreamGetFlags(stream: CuStream, flags: *mut u32) {
        ready()?;
        put(flags, stream::resolve(stream)?.flags())
    }

    fn cuStreamGetId(stream: CuStream, stream_id: *mut c_ulonglong) {
        ready()?;
        let stream = stream::resolve(stream)?;
        capture::check_captured(&stream)?;
        put(stream_id, stream.id)
    }

    fn cuStreamGetCtx(stream: CuStream, ctx: *mut CuContext) {
        ready()?;
        put(ctx, stream::resolve(stream)?.context.handle())
    }

    fn cuStreamGetCtx_v2(stream: CuStream, ctx: *mut CuContext, green_ctx: *mut CuGreenCtx) {
        ready()?;
        put(ctx, stream::resolve(stream)?.context.handle())?;
        offer(green_ctx, 0);
        Ok(())
    }

    fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32) {
        ready()?;
        if flags > CU_EVENT_WAIT_EXTERNAL {
            return Err(CuResult::InvalidValue);
        }
        let event = event::find(event)?;
        let stream = match stream::resolve_quietly(stream)? {
            // To wait for a capture spoils it by itself.
            stream if event.is_captured() => stream,
            stream => {
                capture::check_implicit(&stream)?;
                stream
            }
        };
        event::wait(&stream, &event, flags == CU_EVENT_WAIT_EXTERNAL)
    }

    fn cuStreamAddCallback(
        stream: CuStream,
        callback: CuStreamCallback,
        user_data: *mut c_void,
        flags: u32,
    ) {
        ready()?;
        let found = stream::resolve(stream)?;
        if flags != 0 || callback.is_none() {
            return Err(CuResult::InvalidValue);
        }
        capture::check_captured(&found)?;
        kernel::add_callback(&found, stream, callback, user_data)
    }

    fn cuStreamBeginCapture_v2(stream: CuStream, mode: CuStreamCaptureMode) {
        ready()?;
        let stream = stream::resolve_quietly(stream)?;
        capture::check_implicit(&stream)?;
        capture::begin(&stream, mode, None)
    }

    fn cuStreamBeginRecaptureToGraph(
        stream: CuStream,
        mode: CuStreamCaptureMode,
        graph: CuGraph,
        callback_func: CuGraphRecaptureCallback,
        user_data: *mut c_void,
    ) {
        let _ = user_data;
        ready()?;
        stream::resolve_quietly(stream)?;
        graph::find(graph)?;
        if mode.c_name().is_none() || callback_func.is_none() {
            return Err(CuResult::InvalidValue);
        }
        Err(CuResult::NotSupported)
    }

    fn cuStreamBeginCaptureToGraph(
        stream: CuStream,
        graph: CuGraph,
        dependencies: *const CuGraphNode,
        dependency_data: *const CuGraphEdgeData,
        num_dependencies: usize,
        mode: CuStreamCaptureMode,
    ) {
        // Edges of every kind are plain ones here, which never begin too early.
        let _ = dependency_data;
        begin_to_graph(stream, graph, dependencies, num_dependencies, mode)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut CuStreamCaptureMode) {
        ready()?;
        given(mode)?;
        let old = context::exchange_capture_mode(mode.read().0);
        put(mode, CuStreamCaptureMode(old))
    }

    fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) {
        ready()?;
        let stream = stream::resolve_quietly(stream)?;
        capture::check_implicit(&stream)?;
        let captured = capture::end(&stream);
        offer(graph, captured.as_ref().map_or(0, |captured| captured.handle));
        let captured = captured?;
        if graph.is_null() {
            graph::forget(&captured);
        }
        Ok(())
    }

    fn cuStreamIsCapturing(stream: CuStream, capture_status: *mut CuStreamCaptureStatus) {
        ready()?;
        let stream = stream::resolve_quietly(stream)?;
        capture::refuse_implicit(&stream)?;
        put(capture_status, capture::status(&stream))
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CuStream,
        capture_status_out: *mut CuStreamCaptureStatus,
        id_out: *mut u64,
        graph_out: *mut CuGraph,
        dependencies_out: *mut *const CuGraphNode,
        edge_data_out: *mut *const CuGraphEdgeData,
        num_dependencies_out: *mut usize,
    ) {
        ready()?;
        let stream = stream::resolve_quietly(stream)?;
        capture::refuse_implicit(&stream)?;
        put(capture_status_out, capture::status(&stream))?;
        let Some(info) = capture::info(&stream) else {
            return Ok(());
        };
        offer(id_out, info.id);
        offer(graph_out, info.graph);
        offer(num_dependencies_out, info.nodes.len());
        if !dependencies_out.is_null() || !edge_data_out.is_null() {
            let mut answer = super::lock(&stream.answered);
            answer.edges = vec![CuGraphEdgeData::default(); info.nodes.len()];
            answer.nodes = info.nodes;
            offer(dependencies_out, answer.nodes.as_ptr());
            offer(edge_data_out, answer.edges.as_ptr());
        }
        Ok(())
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CuStream,
        dependencies: *mut CuGraphNode,
        dependency_data: *const CuGraphEdgeData,
        num_dependencies: usize,
        flags: u32,
    ) {
        let _ = dependency_data;
        ready()?;
        let stream = stream::resolve_quietly(stream)?;
        let nodes = slice(dependencies.cast_const(), num_dependencies)?;
        capture::update(&stream, nodes, flags)
    }

    fn cuStreamAttachMemAsync(stream: CuStream, dptr: CuDevicePtr, length: usize, flags: u32) {
        let _ = (dptr, length, flags);
        ready()?;
        let stream = stream::resolve(stream)?;
        capture::check_captured(&stream)?;
        // No memory here is managed.
        Err(CuResult::InvalidValue)
    }

    fn cuStreamQuery(stream: CuStream) {
        ready()?;
        let stream = stream::resolve_uncaptured(stream)?;
        if !stream.is_idle() {
            return Err(CuResult::NotReady);
        }
        stream.context.check()
    }

    fn cuStreamSynchronize(stream: CuStream) {
        ready()?;
        let stream = stream::resolve_uncaptured(stream)?;
        stream.synchronize();
        stream.context.check()
    }

    fn cuStreamDestroy_v2(stream: CuStream) {
        ready()?;
        if matches!(stream, CU_STREAM_LEGACY | CU_STREAM_PER_THREAD) {
            context::current()?;
        }
        let stream = stream::find(stream).ok_or(CuResult::InvalidHandle)?;
        stream.context.check()?;
        stream.destroy();
        Ok(())
    }

    fn cuStreamCopyAttributes(dst: CuStream, src: CuStream) {
        ready()?;
        let (dst, src) = (stream::resolve(dst)?, stream::resolve(src)?);
        if !Arc::ptr_eq(&dst.context, &src.context) {
            return Err(CuResult::InvalidValue);
        }
        let attributes = *super::lock(&src.attributes);
        *super::lock(&dst.attributes) = attributes;
        Ok(())
    }

    fn cuStreamGetAttribute(
        stream: CuStream,
        attr: CuStreamAttrId,
        value_out: *mut CuStreamAttrValue,
    ) {
        ready()?;
        let stream = stream::resolve(stream)?;
        let attributes = *super::lock(&stream.attributes);
        match attr {
            // An empty window: the address, the size, the ratio and two properties.
            CuStreamAttrId::AccessPolicyWindow => put(value_out.cast(), [0u64; 4]),
            CuStreamAttrId::SynchronizationPolicy => {
                put(value_out.cast(), attributes.synchronization_policy)
            }
            CuStreamAttrId::Priority => put(value_out.cast(), attributes.priority),
            CuStreamAttrId::MemSyncDomainMap => put(value_out.cast(), attributes.domain_map),
            CuStreamAttrId::MemSyncDomain => put(value_out.cast(), attributes.domain),
            _ => Err(CuResult::InvalidValue),
        }
    }

    fn cuStreamSetAttribute(
        stream: CuStream,
        attr: CuStreamAttrId,
        value: *const CuStreamAttrValue,
    ) {
        ready()?;
        let stream = stream::resolve(stream)?;
        given(value)?;
        let mut attributes = super::lock(&stream.attributes);
        match attr {
            // A hint for a cache that is not there.
            CuStreamAttrId::AccessPolicyWindow => {}
            CuStreamAttrId::SynchronizationPolicy => {
                attributes.synchronization_policy = value.cast::<i32>().read();
            }
            CuStreamAttrId::Priority => {
                let (least, greatest) = stream::PRIORITIES;
                attributes.priority = value.cast::<i32>().read().clamp(greatest, least);
            }
            CuStreamAttrId::MemSyncDomainMap => {
                attributes.domain_map = value.cast::<[u8; 2]>().read();
            }
            CuStreamAttrId::MemSyncDomain => attributes.domain = value.cast::<i32>().read(),
            _ => return Err(CuResult::InvalidValue),
        }
        Ok(())
    }

    fn cuEventCreate(event: *mut CuEvent, flags: u32) {
        let context = current()?;
        given(event)?;
        put(event, event::create(&context, flags)?)
    }

    fn cuEventRecord(event: CuEvent, stream: CuStream) {
        ready()?;
        let event = event::find(event)?;
        event::record(&event, &stream::resolve(stream)?, false)
    }

    fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: u32) {
        ready()?;
        let event = event::find(event)?;
        if flags > CU_EVENT_RECORD_EXTERNAL {
            return Err(CuResult::InvalidValue);
        }
        event::record(&event, &stream::resolve(stream)?, flags == CU_EVENT_RECORD_EXTERNAL)
    }

    fn cuEventQuery(event: CuEvent) {
        ready()?;
        capture::check_unsafe()?;
        event::query(&*event::find(event)?)
    }

    fn cuEventSynchronize(event: CuEvent) {
        ready()?;
        capture::check_unsafe()?;
        event::synchronize(&*event::find(event)?)
    }

    fn cuEventDestroy_v2(event: CuEvent) {
        ready()?;
        event::destroy(event)
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent) {
        ready()?;
        let elapsed = event::elapsed(&*event::find(start)?, &*event::find(end)?)?;
        put(milliseconds, elapsed)
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CuEvent, end: CuEvent) {
        ready()?;
        let elapsed = event::elapsed(&*event::find(start)?, &*event::find(end)?)?;
        put(milliseconds, elapsed)
    }

    fn cuStreamWaitValue32_v2(stream: CuStream, addr: CuDevicePtr, value: u32, flags: u32) {
        ready()?;
        word::wait_value(stream, addr, u64::from(value), 4, flags)
    }

    fn cuStreamWaitValue64_v2(stream: CuStream, addr: CuDevicePtr, value: u64, flags: u32) {
        ready()?;
        word::wait_value(stream, addr, value, 8, flags)
    }

    fn cuStreamWriteValue32_v2(stream: CuStream, addr: CuDevicePtr, value: u32, flags: u32) {
        ready()?;
        word::write_value(stream, addr, u64::from(value), 4, flags)
    }

    fn cuStreamWriteValue64_v2(stream: CuStream, addr: CuDevicePtr, value: u64, flags: u32) {
        ready()?;
        word::write_value(stream, addr, value, 8, flags)
    }

    fn cuStreamBatchMemOp_v2(
        stream: CuStream,
        count: u32,
        param_array: *mut CuStreamBatchMemOpParams,
        flags: u32,
    ) {
        ready()?;
        let stream = stream::resolve(stream)?;
        if flags != 0 || count > 255 {
            return Err(CuResult::InvalidValue);
        }
        let operations = slice(param_array.cast_const().cast::<MemOp>(), count as usize)?;
        operations.iter().try_for_each(|operation| operation.check(&stream))?;
        operations.iter().try_for_each(|operation| operation.submit(&stream))
    }

    fn cuLaunchKernel(
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
    ) {
        ready()?;
        let function = kernel::find(f)?;
        let stream = stream::resolve(stream)?;
        let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
        let block = [block_dim_x, block_dim_y, block_dim_z];
        let arguments = arguments(kernel_params, extra)?;
        kernel::launch(&function, grid, block, shared_mem_bytes, &stream, &arguments)
    }

    fn cuLaunchHostFunc(stream: CuStream, function: CuHostFn, user_data: *mut c_void) {
        ready()?;
        kernel::launch_host(&stream::resolve(stream)?, function, user_data)
    }

    fn cuGraphCreate(graph: *mut CuGraph, flags: u32) {
        outside()?;
        given(graph)?;
        if flags != 0 {
            return Err(CuResult::InvalidValue);
        }
        put(graph, graph::create().handle)
    }

    fn cuGraphGetNodes(graph: CuGraph, nodes: *mut CuGraphNode, num_nodes: *mut usize) {
        outside()?;
        given(num_nodes)?;
        let all = graph::find(graph)?.all_handles();
        if nodes.is_null() {
            return put(num_nodes, all.len());
        }
        let room = num_nodes.read();
        for place in 0..room {
            put(nodes.add(place), all.get(place).copied().unwrap_or(0))?;
        }
        put(num_nodes, room.min(all.len()))
    }

    fn cuGraphInstantiateWithFlags(
        graph_exec: *mut CuGraphExec,
        graph: CuGraph,
        flags: c_ulonglong,
    ) {
        const ALL: c_ulonglong = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
            | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        outside()?;
        capture::check_unsafe()?;
        let context = context::current()?;
        given(graph_exec)?;
        let graph = graph::find(graph)?;
        if flags & !ALL != 0 {
            return Err(CuResult::InvalidValue);
        }
        let frees = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0;
        put(graph_exec, graph::instantiate(&graph, &context, frees))
    }

    fn cuGraphUpload(graph_exec: CuGraphExec, stream: CuStream) {
        ready()?;
        graph::find_exec(graph_exec)?;
        stream::resolve(stream).map(drop)
    }

    fn cuGraphLaunch(graph_exec: CuGraphExec, stream: CuStream) {
        ready()?;
        let exec = graph::find_exec(graph_exec)?;
        let stream = stream::resolve(stream)?;
        capture::check_captured(&stream)?;
        exec.launch(&stream)
    }

    fn cuGraphExecDestroy(graph_exec: CuGraphExec) {
        outside()?;
        capture::check_unsafe()?;
        graph::destroy_exec(graph_exec)
    }

    fn cuGraphDestroy(graph: CuGraph) {
        outside()?;
        graph::destroy(graph)
    }

    fn cuGraphExecUpdate_v2(
        graph_exec: CuGraphExec,
        graph: CuGraph,
        result_info: *mut CuGraphExecUpdateResultInfo,
    ) {
        outside()?;
        let exec = graph::find_exec(graph_exec)?;
        let info = exec.update(&*graph::find(graph)?);
        offer(result_info, info);
        match info.result {
            CuGraphExecUpdateResult::Success => Ok(()),
            _ => Err(CuResult::GraphExecUpdateFailure),
        }
    }

    fn cuDeviceCanAccessPeer(can_access_peer: *mut i32, dev: CuDevice, peer_dev: CuDevice) {
        outside()?;
        given(can_access_peer)?;
        device::get(dev)?;
        device::get(peer_dev)?;
        put(can_access_peer, i32::from(dev != peer_dev))
    }

    fn cuCtxEnablePeerAccess(peer_context: CuContext, flags: u32) {
        outside()?;
        capture::check_unsafe()?;
        let context = context::current()?;
        if flags != 0 {
            return Err(CuResult::InvalidValue);
        }
        let peer = context::device_of(peer_context)?;
        context::primary(peer)?;
        if peer == context.device {
            return Err(CuResult::PeerAccessUnsupported);
        }
        let new = super::lock(&context.peers).insert(peer);
        match new {
            true => Ok(()),
            false => Err(CuResult::PeerAccessAlreadyEnabled),
        }
    }

    fn cuCtxDisablePeerAccess(peer_context: CuContext) {
        outside()?;
        capture::check_unsafe()?;
        let context = context::current()?;
        let peer = context::device_of(peer_context)?;
        let known = super::lock(&context.peers).remove(&peer);
        match known {
            true => Ok(()),
            false => Err(CuResult::PeerAccessNotEnabled),
        }
    }

    fn cuDeviceGetP2PAttribute(
        value: *mut i32,
        attrib: CuDeviceP2PAttribute,
        src_device: CuDevice,
        dst_device: CuDevice,
    ) {
        outside()?;
        given(value)?;
        device::get(src_device)?;
        device::get(dst_device)?;
        if src_device == dst_device {
            return Err(CuResult::InvalidDevice);
        }
        put(value, match attrib {
            CuDeviceP2PAttribute::AccessSupported
            | CuDeviceP2PAttribute::NativeAtomicSupported => 1,
            _ if attrib.c_name().is_some() => 0,
            _ => return Err(CuResult::InvalidValue),
        })
    }

    fn cuStreamGetGreenCtx(stream: CuStream, ctx: *mut CuGreenCtx) {
        ready()?;
        stream::resolve(stream)?;
        put(ctx, 0)
    }

    fn cuStreamGetDevResource(
        stream: CuStream,
        resource: *mut CuDevResource,
        kind: CuDevResourceType,
    ) {
        ready()?;
        stream::resolve(stream)?;
        given(resource)?;
        match kind {
            CuDevResourceType::Sm => Err(CuResult::NotSupported),
            _ => Err(CuResult::InvalidResourceType),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_function_is_here_in_its_place() {
        assert_eq!(NAMES, crate::cuda::FUNCTIONS);
    }
}

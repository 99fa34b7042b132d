//! What the wrappers do, one rank at a time; nothing here needs a release of NCCL newer than 2.19.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metrale_gpu_sys::cuda::*;
use metrale_gpu_sys::nccl::NcclScalarResidence;
use metrale_gpu_sys::nccl::{
    NcclComm, NcclConfig, NcclDataType, NcclRedOp, NcclResult, check_nccl, check_started,
    nccl_mem_alloc, nccl_mem_free, ncclAllGather, ncclAllReduce, ncclBroadcast, ncclCommAbort,
    ncclCommCount, ncclCommCuDevice, ncclCommDeregister, ncclCommDestroy, ncclCommInitRank,
    ncclCommInitRankConfig, ncclCommRegister, ncclCommUserRank, ncclGroupEnd, ncclGroupStart,
    ncclRecv, ncclRedOpCreatePreMulSum, ncclRedOpDestroy, ncclReduce, ncclReduceScatter, ncclSend,
    unique_id, wait_ready,
};

use crate::cases::Cases;
use crate::world::ANY;

pub fn add(cases: &mut Cases) {
    cases.subject("wrappers");
    cases.solo("devices_describe_themselves", ANY, devices);
    cases.solo(
        "contexts_are_retained_and_current_per_thread",
        ANY,
        contexts,
    );
    cases.solo("memory_is_copied_and_set", ANY, memory);
    cases.solo("memory_errors_have_the_driver_codes", ANY, memory_errors);
    cases.solo(
        "memory_is_allocated_in_stream_order",
        ANY,
        stream_ordered_memory,
    );
    cases.solo("pinned_memory_is_known_to_the_driver", ANY, pinned_memory);
    cases.solo("queries_tell_pending_from_done_from_error", ANY, queries);
    cases.solo("streams_have_priorities", ANY, priorities);
    cases.solo("events_order_streams_and_measure", ANY, events);
    cases.solo("kernels_run", ANY, kernels);
    cases.solo("a_captured_stream_replays", ANY, capture);
    cases.solo("every_collective_on_one_rank", ANY, collectives);
    cases.solo("communicators_describe_themselves", ANY, communicators);
    cases.solo("memory_is_registered", ANY, registration);
    cases.solo("operators_are_made_and_used", ANY, operators);
    cases.solo("configs_are_accepted_field_by_field", ANY, configs);
    cases.solo(
        "a_peer_that_never_comes_ends_in_a_deadline",
        ANY,
        missing_peer,
    );
}

/// A thread's context on the first device, and a stream of its own.
fn stream() -> Result<CuStream> {
    use_device(0)?;
    create_stream()
}

/// A code inside an error of this crate.
fn code(error: &anyhow::Error) -> Option<CuResult> {
    error.downcast_ref::<CudaError>().map(|error| error.code)
}

/// Keeps a stream busy for as many milliseconds as `wait` holds.
///
/// # Safety
///
/// `wait` points to a `u64` that lives until the stream has passed this point.
unsafe extern "C" fn pause(wait: *mut c_void) {
    // SAFETY: the caller of cuLaunchHostFunc vouches for it.
    std::thread::sleep(Duration::from_millis(unsafe { *wait.cast::<u64>() }));
}

fn keep_busy(stream: CuStream, wait: &'static u64) -> Result<()> {
    // SAFETY: the number is static, and `pause` calls nothing of CUDA.
    let result =
        unsafe { cuLaunchHostFunc(stream, Some(pause), (&raw const *wait) as *mut c_void) };
    check_cuda(result, "cuLaunchHostFunc")
}

fn devices() -> Result<()> {
    init()?;
    ensure!(driver_version()? >= 11000);
    // Where a call writes nothing, the identity is all zeros.
    let mut uuids = vec![CuUuid::default()];
    for device in 0..device_count()? {
        ensure!(!device_name(device)?.is_empty());
        ensure!(device_total_memory(device)? > 1 << 30);
        let uuid = device_uuid(device)?;
        ensure!(!uuids.contains(&uuid), "{device}: {uuid:?} in {uuids:?}");
        uuids.push(uuid);
        let pci = device_pci_bus_id(device)?;
        ensure!(pci.matches(':').count() == 2, "{pci}");
        ensure!(device_attribute(device, CuDeviceAttribute::ComputeCapabilityMajor)? >= 5);
        ensure!(device_attribute(device, CuDeviceAttribute::WarpSize)? == 32);
        ensure!(!can_access_peer(device, device)?);
    }
    let error = device_name(device_count()?).unwrap_err();
    ensure!(code(&error) == Some(CuResult::InvalidDevice), "{error}");
    Ok(())
}

fn contexts() -> Result<()> {
    std::thread::spawn(|| {
        init()?;
        let error = create_stream().unwrap_err();
        ensure!(code(&error) == Some(CuResult::InvalidContext), "{error}");
        ensure!(error.to_string().contains("use_device"), "{error}");
        ensure!(current_context()? == 0);
        let context = use_device(0)?;
        ensure!(current_context()? == context);
        ensure!(retain_primary_context(0)? == context);
        release_primary_context(0)?;
        set_current_context(0)?;
        ensure!(current_context()? == 0);
        set_current_context(context)?;
        sync_context()?;
        release_primary_context(0)
    })
    .join()
    .expect("no panic")
}

fn memory() -> Result<()> {
    let stream = stream()?;
    let numbers: Vec<u32> = (0..1000).map(|i| i * i).collect();
    let bytes = size_of_val(&*numbers);
    let (a, b) = (mem_alloc(bytes)?, mem_alloc(bytes)?);
    let (free, total) = mem_info()?;
    ensure!(free < total);
    let mut back = vec![0u32; numbers.len()];
    // SAFETY: both buffers hold `bytes` bytes, and the host memory lives past each wait.
    unsafe {
        memcpy_htod(a, &numbers)?;
        memcpy_dtod(b, a, bytes)?;
        memcpy_dtoh(&mut back, b)?;
        ensure!(back == numbers);
        memset_d8(a, 0xab, bytes)?;
        memcpy_dtoh(&mut back, a)?;
        ensure!(back.iter().all(|&word| word == 0xabab_abab));
        memset_d32(a, 7, numbers.len() / 2)?;
        memcpy_dtoh(&mut back, a)?;
        ensure!(back[..500].iter().all(|&word| word == 7) && back[500] == 0xabab_abab);

        memcpy_htod_async(a, &numbers, stream)?;
        memset_d8_async(b, 1, bytes, stream)?;
        memset_d32_async(b, 9, 500, stream)?;
        memcpy_dtod_async(b, a, 400, stream)?;
        memcpy_dtoh_async(&mut back, b, stream)?;
        sync_stream(stream)?;
        ensure!(back[..100] == numbers[..100] && back[100] == 9 && back[999] == 0x0101_0101);
        mem_free(a)?;
        mem_free(b)?;
        mem_free(0)?;
    }
    destroy_stream(stream);
    Ok(())
}

fn memory_errors() -> Result<()> {
    use_device(0)?;
    ensure!(code(&mem_alloc(0).unwrap_err()) == Some(CuResult::InvalidValue));
    ensure!(code(&mem_alloc(1 << 50).unwrap_err()) == Some(CuResult::OutOfMemory));
    let small = mem_alloc(1024)?;
    // SAFETY: the driver knows the bounds of its allocations and refuses these.
    unsafe {
        ensure!(code(&mem_free(small + 256).unwrap_err()) == Some(CuResult::InvalidValue));
        ensure!(
            code(&memcpy_htod(small, &[0u8; 4096]).unwrap_err()) == Some(CuResult::InvalidValue)
        );
        mem_free(small)?;
        ensure!(code(&mem_free(small).unwrap_err()) == Some(CuResult::InvalidValue));
    }
    Ok(())
}

fn stream_ordered_memory() -> Result<()> {
    let stream = stream()?;
    let mut memory: CuDevicePtr = 0;
    let mut back = [0u8; 64];
    // SAFETY: `memory` is used on the stream alone, between its allocation and its release.
    unsafe {
        check_cuda(cuMemAllocAsync(&mut memory, 64, stream), "cuMemAllocAsync")?;
        memset_d8_async(memory, 5, 64, stream)?;
        memcpy_dtoh_async(&mut back, memory, stream)?;
        check_cuda(cuMemFreeAsync(memory, stream), "cuMemFreeAsync")?;
    }
    sync_stream(stream)?;
    ensure!(back == [5; 64]);
    destroy_stream(stream);
    Ok(())
}

fn pinned_memory() -> Result<()> {
    use_device(0)?;
    let mut host: *mut c_void = null_mut();
    let mut kind = CuMemoryType(0);
    // SAFETY: each out pointer takes what its call writes, and the memory is freed once.
    unsafe {
        check_cuda(cuMemAllocHost_v2(&mut host, 4096), "cuMemAllocHost_v2")?;
        let asked = cuPointerGetAttribute(
            (&raw mut kind).cast(),
            CuPointerAttribute::MemoryType,
            host as CuDevicePtr,
        );
        check_cuda(asked, "cuPointerGetAttribute")?;
        check_cuda(cuMemFreeHost(host), "cuMemFreeHost")?;
    }
    ensure!(kind == CuMemoryType::Host, "{kind:?}");
    Ok(())
}

fn queries() -> Result<()> {
    let stream = stream()?;
    let event = create_event()?;
    ensure!(
        event_ready(event)?,
        "an event that was never recorded is ready"
    );
    ensure!(stream_ready(stream)?, "an empty stream is ready");
    keep_busy(stream, &100)?;
    record_event(event, stream)?;
    ensure!(
        !stream_ready(stream)? && !event_ready(event)?,
        "pending work is no error"
    );
    sync_event(event)?;
    ensure!(event_ready(event)? && stream_ready(stream)?);
    ensure!(code(&event_ready(0).unwrap_err()) == Some(CuResult::InvalidHandle));
    // SAFETY: the capture is ended at once.
    unsafe {
        let began = cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Relaxed);
        check_cuda(began, "cuStreamBeginCapture_v2")?;
        let error = stream_ready(stream).unwrap_err();
        ensure!(
            code(&error) == Some(CuResult::StreamCaptureUnsupported),
            "{error}"
        );
        let mut graph: CuGraph = 0;
        ensure!(cuStreamEndCapture(stream, &mut graph) == CuResult::StreamCaptureInvalidated);
    }
    destroy_event(event);
    destroy_stream(stream);
    Ok(())
}

fn priorities() -> Result<()> {
    use_device(0)?;
    let (least, greatest) = stream_priority_range()?;
    ensure!(greatest <= least, "{least} {greatest}");
    for asked in [least, greatest] {
        let stream = create_stream_with_priority(asked)?;
        let (mut priority, mut flags) = (1, 0);
        // SAFETY: each number takes what its call writes.
        unsafe {
            check_cuda(
                cuStreamGetPriority(stream, &mut priority),
                "cuStreamGetPriority",
            )?;
            check_cuda(cuStreamGetFlags(stream, &mut flags), "cuStreamGetFlags")?;
        }
        ensure!(priority == asked && flags == CU_STREAM_NON_BLOCKING);
        destroy_stream(stream);
    }
    Ok(())
}

fn events() -> Result<()> {
    let first = stream()?;
    let second = create_stream()?;
    let (start, end, plain) = (
        create_timing_event()?,
        create_timing_event()?,
        create_event()?,
    );
    record_event(start, first)?;
    keep_busy(first, &50)?;
    record_event(end, first)?;
    record_event(plain, first)?;
    // The second stream waits for the first one's work.
    stream_wait_event(second, plain)?;
    ensure!(!stream_ready(second)?);
    ensure!(code(&elapsed_ms(start, end).unwrap_err()) == Some(CuResult::NotReady));
    sync_stream(second)?;
    ensure!(event_ready(plain)?);
    let ms = elapsed_ms(start, end)?;
    ensure!((45.0..500.0).contains(&ms), "{ms}");
    ensure!(code(&elapsed_ms(start, plain).unwrap_err()) == Some(CuResult::InvalidHandle));
    for event in [start, end, plain] {
        destroy_event(event);
    }
    destroy_stream(first);
    destroy_stream(second);
    Ok(())
}

/// Adds one to each of n words.
const ADD_ONE: &CStr = c"
.version 6.0
.target sm_50
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [data];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra done;
    mul.wide.u32 %d1, %r4, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r5, [%d2];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d2], %r5;
done:
    ret;
}
";

/// What the emulator runs in its place.
#[cfg(feature = "emulator")]
fn register_add_one() {
    metrale_gpu_sys::emulator::register_kernel("add_one", &[8, 4], |launch| {
        // SAFETY: the test passes the address of as many words as it says.
        let words = unsafe {
            let (data, n) = (launch.parameter::<*mut u32>(0), launch.parameter::<u32>(1));
            std::slice::from_raw_parts_mut(data, n as usize)
        };
        words
            .iter_mut()
            .take(launch.threads() as usize)
            .for_each(|word| *word += 1);
    });
}

fn kernels() -> Result<()> {
    #[cfg(feature = "emulator")]
    register_add_one();
    let stream = stream()?;
    let numbers: Vec<u32> = (0..1000).collect();
    let mut back = vec![0u32; 1000];
    let (mut module, mut function): (CuModule, CuFunction) = (0, 0);
    let mut data = mem_alloc(4000)?;
    let mut count = 1000u32;
    // SAFETY: the text ends with a zero byte; the parameters match the kernel's, and live past the launch.
    unsafe {
        check_cuda(
            cuModuleLoadData(&mut module, ADD_ONE.as_ptr().cast()),
            "cuModuleLoadData",
        )?;
        let found = cuModuleGetFunction(&mut function, module, c"add_one".as_ptr());
        check_cuda(found, "cuModuleGetFunction")?;
        memcpy_htod_async(data, &numbers, stream)?;
        let mut parameters: [*mut c_void; 2] = [(&raw mut data).cast(), (&raw mut count).cast()];
        let launched = cuLaunchKernel(
            function,
            8,
            1,
            1,
            128,
            1,
            1,
            0,
            stream,
            parameters.as_mut_ptr(),
            null_mut(),
        );
        check_cuda(launched, "cuLaunchKernel")?;
        memcpy_dtoh_async(&mut back, data, stream)?;
        sync_stream(stream)?;
        ensure!(
            cuModuleGetFunction(&mut function, module, c"no_such".as_ptr()) == CuResult::NotFound
        );
        check_cuda(cuModuleUnload(module), "cuModuleUnload")?;
        mem_free(data)?;
    }
    ensure!(
        back.iter()
            .zip(&numbers)
            .all(|(after, before)| *after == before + 1)
    );
    destroy_stream(stream);
    Ok(())
}

fn capture() -> Result<()> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn count(_: *mut c_void) {
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    let stream = stream()?;
    let (mut graph, mut exec): (CuGraph, CuGraphExec) = (0, 0);
    let mut status = CuStreamCaptureStatus(-1);
    // SAFETY: each out pointer takes what its call writes; the graph outlives its launches.
    unsafe {
        let began = cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::ThreadLocal);
        check_cuda(began, "cuStreamBeginCapture_v2")?;
        check_cuda(
            cuStreamIsCapturing(stream, &mut status),
            "cuStreamIsCapturing",
        )?;
        ensure!(status == CuStreamCaptureStatus::Active, "{status:?}");
        check_cuda(
            cuLaunchHostFunc(stream, Some(count), null_mut()),
            "cuLaunchHostFunc",
        )?;
        check_cuda(cuStreamEndCapture(stream, &mut graph), "cuStreamEndCapture")?;
        ensure!(
            CALLS.load(Ordering::SeqCst) == 0,
            "captured work does not run"
        );
        let made = cuGraphInstantiateWithFlags(&mut exec, graph, 0);
        check_cuda(made, "cuGraphInstantiateWithFlags")?;
        for _ in 0..3 {
            check_cuda(cuGraphLaunch(exec, stream), "cuGraphLaunch")?;
        }
        sync_stream(stream)?;
        check_cuda(cuGraphExecDestroy(exec), "cuGraphExecDestroy")?;
        check_cuda(cuGraphDestroy(graph), "cuGraphDestroy")?;
    }
    ensure!(CALLS.load(Ordering::SeqCst) == 3);
    destroy_stream(stream);
    Ok(())
}

/// A communicator of one rank.
fn one_rank() -> Result<NcclComm> {
    let mut comm = null_mut();
    // SAFETY: `comm` takes one communicator.
    let result = unsafe { ncclCommInitRank(&mut comm, 1, unique_id()?, 0) };
    check_nccl(result, "ncclCommInitRank")?;
    Ok(comm)
}

fn collectives() -> Result<()> {
    type Call = fn(*const c_void, *mut c_void, NcclComm, CuStream) -> NcclResult;
    const F32: NcclDataType = NcclDataType::Float32;
    const SUM: NcclRedOp = NcclRedOp::Sum;
    // SAFETY: both buffers hold 256 floats on the communicator's device.
    let calls: [(&str, Call); 6] = unsafe {
        [
            ("all_reduce", |s, r, c, stream| {
                ncclAllReduce(s, r, 256, F32, SUM, c, stream)
            }),
            ("broadcast", |s, r, c, stream| {
                ncclBroadcast(s, r, 256, F32, 0, c, stream)
            }),
            ("reduce", |s, r, c, stream| {
                ncclReduce(s, r, 256, F32, SUM, 0, c, stream)
            }),
            ("all_gather", |s, r, c, stream| {
                ncclAllGather(s, r, 256, F32, c, stream)
            }),
            ("reduce_scatter", |s, r, c, stream| {
                ncclReduceScatter(s, r, 256, F32, SUM, c, stream)
            }),
            ("send_recv", |s, r, c, stream| {
                ncclGroupStart();
                ncclSend(s, 256, F32, 0, c, stream);
                ncclRecv(r, 256, F32, 0, c, stream);
                ncclGroupEnd()
            }),
        ]
    };
    let stream = stream()?;
    let comm = one_rank()?;
    let numbers: Vec<f32> = (0..256).map(|i| i as f32 - 100.0).collect();
    let (send, recv) = (mem_alloc(1024)?, mem_alloc(1024)?);
    // SAFETY: both buffers hold 1024 bytes, and the host memory lives past each wait.
    unsafe {
        memcpy_htod(send, &numbers)?;
        for (name, call) in calls {
            memset_d8_async(recv, 0xff, 1024, stream)?;
            check_nccl(
                call(send as *const c_void, recv as *mut c_void, comm, stream),
                name,
            )?;
            let mut back = vec![0f32; 256];
            memcpy_dtoh_async(&mut back, recv, stream)?;
            sync_stream(stream)?;
            ensure!(back == numbers, "{name}");
        }
        check_nccl(ncclCommDestroy(comm), "ncclCommDestroy")?;
        mem_free(send)?;
        mem_free(recv)?;
    }
    destroy_stream(stream);
    Ok(())
}

fn communicators() -> Result<()> {
    use_device(0)?;
    let comm = one_rank()?;
    let (mut count, mut rank, mut device) = (0, -1, -1);
    // SAFETY: the communicator is live, and each number takes one int.
    unsafe {
        check_nccl(ncclCommCount(comm, &mut count), "ncclCommCount")?;
        check_nccl(ncclCommUserRank(comm, &mut rank), "ncclCommUserRank")?;
        check_nccl(ncclCommCuDevice(comm, &mut device), "ncclCommCuDevice")?;
        ensure!((count, rank, device) == (1, 0, 0));
        // Ready at once, also with no time to wait.
        wait_ready(comm, Duration::ZERO)?;
        check_nccl(ncclCommDestroy(comm), "ncclCommDestroy")?;
        // The order of a group's error: the call itself, then the end.
        check_nccl(ncclGroupStart(), "ncclGroupStart")?;
        let bad = ncclAllReduce(
            null(),
            null_mut(),
            1,
            NcclDataType::Float32,
            NcclRedOp::Sum,
            null_mut(),
            0,
        );
        ensure!(bad == NcclResult::InvalidArgument);
        ensure!(ncclGroupEnd() == NcclResult::InvalidArgument);
        ensure!(ncclGroupEnd() == NcclResult::InvalidUsage);
    }
    Ok(())
}

fn registration() -> Result<()> {
    use_device(0)?;
    let comm = one_rank()?;
    // SAFETY: the memory is deregistered, then freed once, and unused.
    unsafe {
        let memory = nccl_mem_alloc(1 << 20)?;
        let mut handle = null_mut();
        check_nccl(
            ncclCommRegister(comm, memory, 1 << 20, &mut handle),
            "ncclCommRegister",
        )?;
        check_nccl(ncclCommDeregister(comm, handle), "ncclCommDeregister")?;
        nccl_mem_free(memory)?;
        nccl_mem_free(null_mut())?;
        let error = nccl_mem_alloc(1 << 50).unwrap_err();
        ensure!(error.to_string().contains("ncclMemAlloc failed"), "{error}");
        check_nccl(ncclCommDestroy(comm), "ncclCommDestroy")
    }
}

fn operators() -> Result<()> {
    let stream = stream()?;
    let comm = one_rank()?;
    let data = mem_alloc(8)?;
    let mut scalar = 3.0f32;
    let mut op = NcclRedOp(-1);
    let mut back = [0f32; 2];
    // SAFETY: the scalar is read before the call returns; the buffer holds two floats.
    unsafe {
        let made = ncclRedOpCreatePreMulSum(
            &mut op,
            (&raw mut scalar).cast(),
            NcclDataType::Float32,
            NcclScalarResidence::HostImmediate,
            comm,
        );
        check_nccl(made, "ncclRedOpCreatePreMulSum")?;
        ensure!(
            op.0 >= NcclRedOp::NumOps.0 && op.c_name().is_none(),
            "{op:?}"
        );
        memcpy_htod(data, &[1.0f32, 2.0])?;
        let p = data as *mut c_void;
        check_nccl(
            ncclAllReduce(p, p, 2, NcclDataType::Float32, op, comm, stream),
            "ncclAllReduce",
        )?;
        check_nccl(ncclRedOpDestroy(op, comm), "ncclRedOpDestroy")?;
        memcpy_dtoh_async(&mut back, data, stream)?;
        sync_stream(stream)?;
        ensure!(back == [3.0, 6.0], "{back:?}");
        // Unknown types and operators are passed on, and refused by NCCL.
        for (datatype, op) in [(99, 0), (12, 0), (7, 5), (7, -1)] {
            let (datatype, op) = (NcclDataType(datatype), NcclRedOp(op));
            let refused = ncclAllReduce(p, p, 2, datatype, op, comm, stream);
            ensure!(
                refused == NcclResult::InvalidArgument,
                "{datatype:?} {op:?} {refused:?}"
            );
        }
        check_nccl(ncclCommDestroy(comm), "ncclCommDestroy")?;
        mem_free(data)?;
    }
    destroy_stream(stream);
    Ok(())
}

/// A valid value in each field, alone; a library that is older than the field ignores it.
fn configs() -> Result<()> {
    use_device(0)?;
    const NEW: NcclConfig = NcclConfig::new();
    let name = c"metrale";
    let configs = [
        ("new", NEW),
        ("blocking", NcclConfig { blocking: 1, ..NEW }),
        (
            "cga_cluster_size",
            NcclConfig {
                cga_cluster_size: 2,
                ..NEW
            },
        ),
        ("max_ctas", NcclConfig { max_ctas: 4, ..NEW }),
        (
            "min_ctas and max_ctas",
            NcclConfig {
                min_ctas: 2,
                max_ctas: 4,
                ..NEW
            },
        ),
        (
            "split_share",
            NcclConfig {
                split_share: 1,
                ..NEW
            },
        ),
        (
            "traffic_class",
            NcclConfig {
                traffic_class: 1,
                ..NEW
            },
        ),
        (
            "comm_name",
            NcclConfig {
                comm_name: name.as_ptr(),
                ..NEW
            },
        ),
        (
            "collnet_enable",
            NcclConfig {
                collnet_enable: 0,
                ..NEW
            },
        ),
        (
            "cta_policy",
            NcclConfig {
                cta_policy: 1,
                ..NEW
            },
        ),
        (
            "shrink_share",
            NcclConfig {
                shrink_share: 1,
                ..NEW
            },
        ),
        (
            "nvls_ctas",
            NcclConfig {
                nvls_ctas: 4,
                ..NEW
            },
        ),
        (
            "n_channels_per_net_peer",
            NcclConfig {
                n_channels_per_net_peer: 2,
                ..NEW
            },
        ),
        (
            "nvlink_centric_sched",
            NcclConfig {
                nvlink_centric_sched: 1,
                ..NEW
            },
        ),
        (
            "graph_usage_mode",
            NcclConfig {
                graph_usage_mode: 1,
                ..NEW
            },
        ),
        (
            "num_rma_ctx",
            NcclConfig {
                num_rma_ctx: 1,
                ..NEW
            },
        ),
        (
            "max_p2p_peers",
            NcclConfig {
                max_p2p_peers: 8,
                ..NEW
            },
        ),
        (
            "graph_stream_ordering",
            NcclConfig {
                graph_stream_ordering: 1,
                ..NEW
            },
        ),
        (
            "launch_order_implicit",
            NcclConfig {
                launch_order_implicit: 1,
                ..NEW
            },
        ),
        (
            "num_rma_sig",
            NcclConfig {
                num_rma_sig: 1,
                ..NEW
            },
        ),
        (
            "rma_eager_init",
            NcclConfig {
                rma_eager_init: 1,
                ..NEW
            },
        ),
        (
            "host_cft_mode",
            NcclConfig {
                host_cft_mode: 2,
                ..NEW
            },
        ),
        (
            "nvls_host_mode",
            NcclConfig {
                nvls_host_mode: 0,
                ..NEW
            },
        ),
    ];
    for (field, config) in configs {
        let mut comm = null_mut();
        // SAFETY: `comm` takes one communicator, and the config and its strings outlive it.
        unsafe {
            let result = ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, &config);
            check_nccl(result, "ncclCommInitRankConfig").context(field)?;
            check_nccl(ncclCommDestroy(comm), "ncclCommDestroy").context(field)?;
        }
    }
    let mut comm = null_mut();
    let bad = NcclConfig { max_ctas: 0, ..NEW };
    // SAFETY: as above; NCCL refuses the config.
    let refused = unsafe { ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, &bad) };
    ensure!(refused == NcclResult::InvalidArgument, "{refused:?}");
    Ok(())
}

fn missing_peer() -> Result<()> {
    use_device(0)?;
    let mut comm = null_mut();
    let config = NcclConfig::non_blocking();
    // SAFETY: `comm` takes one communicator, which is aborted in the end.
    unsafe {
        let result = ncclCommInitRankConfig(&mut comm, 2, unique_id()?, 0, &config);
        check_started(result, "ncclCommInitRankConfig")?;
        let start = Instant::now();
        let error = wait_ready(comm, Duration::from_millis(300)).unwrap_err();
        let waited = start.elapsed();
        ensure!(
            waited >= Duration::from_millis(300) && waited < Duration::from_secs(3),
            "{waited:?}"
        );
        let text = error.to_string();
        ensure!(text.contains("ms waited"), "{text}");
        ensure!(text.contains("ncclInProgress (7)"), "{text}");
        check_nccl(ncclCommAbort(comm), "ncclCommAbort")
    }
}

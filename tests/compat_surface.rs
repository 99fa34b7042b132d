//! Code written against an earlier form of module `nccl`, item by item, must compile unchanged.
//!
//! The assignments with a stated type are the test: a changed signature does not compile.

use std::ffi::{CStr, c_char, c_void};
use std::hint::black_box;

use metrale_gpu_sys::nccl::{
    NcclComm, NcclConfig, NcclDataType, NcclRedOp, NcclResult, NcclUniqueId, check_nccl,
    create_event, create_stream, destroy_event, destroy_stream, is_available, nccl_mem_alloc,
    nccl_mem_free, ncclAllGather, ncclAllReduce, ncclBroadcast, ncclCommAbort, ncclCommDeregister,
    ncclCommDestroy, ncclCommGetAsyncError, ncclCommInitRank, ncclCommInitRankConfig,
    ncclCommRegister, ncclGetErrorString, ncclGetUniqueId, ncclGroupEnd, ncclGroupStart,
    ncclMemAlloc, ncclMemFree, ncclRecv, ncclReduceScatter, ncclSend, record_event, stream_ready,
    stream_wait_event, sync_stream,
};
use metrale_gpu_sys::{BINDING, Binding};
use object::{Object, ObjectSymbol};

// No link attribute: the crate brings libcuda.
unsafe extern "C" {
    fn cuMemAlloc_v2(dptr: *mut u64, bytesize: usize) -> u32;
    fn cuMemFree_v2(dptr: u64) -> u32;
    fn cuLaunchKernel(
        f: *mut c_void,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_mem_bytes: u32,
        stream: u64,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
}

/// What old code looks like: a ring of collectives on one communicator.
///
/// # Safety
///
/// Never called; it has only to compile and link, and is kept in the program for that.
unsafe fn old_code(rank: i32, nranks: i32) -> anyhow::Result<()> {
    let mut id = NcclUniqueId {
        internal: [0u8; 128],
    };
    let mut comm: NcclComm = std::ptr::null_mut();
    let (root, peer, count) = (0i32, (rank + 1) % nranks, 16usize);
    let mut device: u64 = 0;
    // SAFETY: as above.
    unsafe {
        check_nccl(ncclGetUniqueId(&mut id), "ncclGetUniqueId")?;
        check_nccl(
            ncclCommInitRank(&mut comm, nranks, id, rank),
            "ncclCommInitRank",
        )?;
        let config = NcclConfig::non_blocking();
        let started = ncclCommInitRankConfig(&mut comm, nranks, id, rank, &config);
        if started != NcclResult::Success && started != NcclResult::InProgress {
            check_nccl(started, "ncclCommInitRankConfig")?;
        }
        let mut state = NcclResult::Success;
        check_nccl(
            ncclCommGetAsyncError(comm, &mut state),
            "ncclCommGetAsyncError",
        )?;

        let stream: u64 = create_stream()?;
        let event: u64 = create_event()?;
        assert_eq!(cuMemAlloc_v2(&mut device, 64), 0);
        let (send, recv) = (device as *const c_void, device as *mut c_void);
        let (f32s, sum) = (NcclDataType::Float32, NcclRedOp::Sum);
        check_nccl(
            ncclAllReduce(send, recv, count, f32s, sum, comm, stream),
            "all_reduce",
        )?;
        check_nccl(
            ncclBroadcast(send, recv, count, f32s, root, comm, stream),
            "broadcast",
        )?;
        check_nccl(
            ncclAllGather(send, recv, count, f32s, comm, stream),
            "all_gather",
        )?;
        check_nccl(
            ncclReduceScatter(send, recv, count, f32s, sum, comm, stream),
            "reduce_scatter",
        )?;
        check_nccl(ncclGroupStart(), "ncclGroupStart")?;
        check_nccl(ncclSend(send, count, f32s, peer, comm, stream), "ncclSend")?;
        check_nccl(ncclRecv(recv, count, f32s, peer, comm, stream), "ncclRecv")?;
        check_nccl(ncclGroupEnd(), "ncclGroupEnd")?;

        let mut handle: *mut c_void = std::ptr::null_mut();
        check_nccl(
            ncclCommRegister(comm, recv, 64, &mut handle),
            "ncclCommRegister",
        )?;
        check_nccl(ncclCommDeregister(comm, handle), "ncclCommDeregister")?;
        let mut raw: *mut c_void = std::ptr::null_mut();
        check_nccl(ncclMemAlloc(&mut raw, 64), "ncclMemAlloc")?;
        check_nccl(ncclMemFree(raw), "ncclMemFree")?;
        let memory: *mut c_void = nccl_mem_alloc(64)?;
        nccl_mem_free(memory)?;

        record_event(event, stream)?;
        stream_wait_event(stream, event)?;
        let mut params: [*mut c_void; 1] = [(&raw mut device).cast()];
        let launched = cuLaunchKernel(
            std::ptr::null_mut(),
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            stream,
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        );
        assert_eq!(launched, 0);
        while !stream_ready(stream)? {}
        sync_stream(stream)?;
        destroy_event(event);
        destroy_stream(stream);
        assert_eq!(cuMemFree_v2(device), 0);
        let text: *const c_char = ncclGetErrorString(NcclResult::Success);
        println!("{}", CStr::from_ptr(text).to_string_lossy());
        ncclCommDestroy(comm);
        ncclCommAbort(comm);
    }
    Ok(())
}

#[test]
fn functions_have_the_forms_that_old_code_calls() {
    let _: fn() -> anyhow::Result<u64> = create_stream;
    let _: fn() -> anyhow::Result<u64> = create_event;
    let _: fn(u64, u64) -> anyhow::Result<()> = record_event;
    let _: fn(u64, u64) -> anyhow::Result<()> = stream_wait_event;
    let _: fn(u64) = destroy_event;
    let _: fn(u64) = destroy_stream;
    let _: fn(u64) -> anyhow::Result<()> = sync_stream;
    let _: fn(u64) -> anyhow::Result<bool> = stream_ready;
    let _: unsafe fn(usize) -> anyhow::Result<*mut c_void> = nccl_mem_alloc;
    let _: unsafe fn(*mut c_void) -> anyhow::Result<()> = nccl_mem_free;
    let _: fn(NcclResult, &str) -> anyhow::Result<()> = check_nccl;
}

#[test]
fn functions_that_old_code_declares_for_itself_come_with_the_crate() {
    black_box(old_code as unsafe fn(i32, i32) -> anyhow::Result<()>);
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let program = object::File::parse(&*bytes).unwrap();
    let imports: Vec<&str> = program
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    let defined: Vec<&str> = program
        .symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    // From the library, or else from the crate itself.
    let linked = BINDING == Binding::Linked;
    for name in [
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuLaunchKernel",
        "ncclAllReduce",
    ] {
        assert_eq!(imports.contains(&name), linked, "{name}: {imports:?}");
        assert_eq!(defined.contains(&name), !linked, "{name}");
    }
}

#[test]
fn every_result_has_a_name_that_debug_prints() {
    let named = [
        (NcclResult::Success, "Success"),
        (NcclResult::UnhandledCudaError, "UnhandledCudaError"),
        (NcclResult::SystemError, "SystemError"),
        (NcclResult::InternalError, "InternalError"),
        (NcclResult::InvalidArgument, "InvalidArgument"),
        (NcclResult::InvalidUsage, "InvalidUsage"),
        (NcclResult::RemoteError, "RemoteError"),
        (NcclResult::InProgress, "InProgress"),
    ];
    for (result, name) in named {
        let copy = result;
        assert_eq!(format!("{copy:?}"), name);
        assert!(result == copy);
    }
    // Constants serve as patterns, as enum variants do.
    match NcclResult::InProgress {
        NcclResult::Success => unreachable!(),
        NcclResult::InProgress => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_data_type_and_operator_has_its_name() {
    let types = [
        NcclDataType::Int8,
        NcclDataType::Uint8,
        NcclDataType::Int32,
        NcclDataType::Uint32,
        NcclDataType::Int64,
        NcclDataType::Uint64,
        NcclDataType::Float16,
        NcclDataType::Float32,
        NcclDataType::Float64,
        NcclDataType::Bfloat16,
    ];
    assert_eq!(
        format!("{types:?}"),
        "[Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16]"
    );
    let operators = [
        NcclRedOp::Sum,
        NcclRedOp::Prod,
        NcclRedOp::Max,
        NcclRedOp::Min,
        NcclRedOp::Avg,
    ];
    assert_eq!(format!("{operators:?}"), "[Sum, Prod, Max, Min, Avg]");
}

#[test]
fn an_id_is_plain_unsigned_bytes() {
    let mut bytes = [0u8; 128];
    bytes[..4].copy_from_slice(&[0x00, 0x7f, 0x80, 0xff]);
    let id = NcclUniqueId { internal: bytes };
    let copy = id;
    #[allow(clippy::clone_on_copy)]
    let clone = id.clone();
    assert_eq!(copy.internal, bytes);
    assert_eq!(clone.internal, bytes);
    assert_eq!(std::mem::size_of::<NcclUniqueId>(), 128);
}

#[test]
fn an_error_names_the_context_the_text_and_the_code() {
    assert!(check_nccl(NcclResult::Success, "ncclAllReduce").is_ok());
    let error = check_nccl(NcclResult::InvalidArgument, "all-reduce of layer 3").unwrap_err();
    let text = error.to_string();
    // SAFETY: any code may be asked for.
    let own = unsafe { ncclGetErrorString(NcclResult::InvalidArgument) };
    assert!(text.contains("all-reduce of layer 3"), "{text}");
    // Null where a library that is opened at run time is not there.
    assert_eq!(own.is_null(), BINDING == Binding::Dlopen && !is_available());
    if !own.is_null() {
        // SAFETY: NCCL, or the import stub, answers with a static string.
        let own = unsafe { CStr::from_ptr(own) };
        assert!(text.contains(own.to_str().unwrap()), "{text}");
    }
    assert!(text.contains("ncclInvalidArgument (4)"), "{text}");
}

//! What every user of a communicator writes otherwise.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

// Code that was written against an earlier form of this module finds them here.
#[doc(no_inline)]
pub use crate::cuda::{
    create_event, create_stream, destroy_event, destroy_stream, record_event, stream_ready,
    stream_wait_event, sync_stream,
};
use crate::nccl::{
    NcclComm, NcclError, NcclResult, NcclUniqueId, NcclVersion, check_nccl, ncclCommCount,
    ncclCommGetAsyncError, ncclCommUserRank, ncclGetUniqueId, ncclGetVersion, ncclMemAlloc,
    ncclMemFree,
};

/// The release of the loaded library (`ncclGetVersion`), which need not be the one that was there
/// when the program was built.
#[inline]
pub fn version() -> anyhow::Result<NcclVersion> {
    let mut code: c_int = 0;
    // SAFETY: `code` takes one int.
    check_nccl(unsafe { ncclGetVersion(&mut code) }, "ncclGetVersion")?;
    Ok(NcclVersion::from_code(code))
}

/// A new unique id (`ncclGetUniqueId`), to be made by one rank and handed to all. It serves one
/// communicator.
#[inline]
pub fn unique_id() -> anyhow::Result<NcclUniqueId> {
    let mut id = NcclUniqueId { internal: [0; 128] };
    // SAFETY: `id` takes one unique id.
    check_nccl(unsafe { ncclGetUniqueId(&mut id) }, "ncclGetUniqueId")?;
    Ok(id)
}

/// Device memory of at least `size` bytes on the current device, of the kind that NCCL can register
/// (`ncclMemAlloc`); its true size is rounded up, to 2 MiB on current GPUs.
///
/// Since NCCL 2.19.
///
/// # Safety
///
/// A context is current on this thread. The memory is given back by [`nccl_mem_free`] alone.
#[inline]
pub unsafe fn nccl_mem_alloc(size: usize) -> anyhow::Result<*mut c_void> {
    let mut ptr = std::ptr::null_mut();
    // SAFETY: `ptr` takes one pointer; the caller vouches for the context.
    check_nccl(unsafe { ncclMemAlloc(&mut ptr, size) }, "ncclMemAlloc")?;
    Ok(ptr)
}

/// Gives back memory of [`nccl_mem_alloc`] (`ncclMemFree`). Null is fine.
///
/// Since NCCL 2.19.
///
/// # Safety
///
/// `ptr` is null or came from [`nccl_mem_alloc`] and was not freed; no enqueued work uses it, and it
/// is registered with no communicator.
#[inline]
pub unsafe fn nccl_mem_free(ptr: *mut c_void) -> anyhow::Result<()> {
    // SAFETY: the caller vouches for the pointer.
    check_nccl(unsafe { ncclMemFree(ptr) }, "ncclMemFree")
}

/// Waits until a non-blocking communicator has finished what it was last asked to do.
///
/// Polls `ncclCommGetAsyncError`, with pauses that grow from 10 microseconds to 10 milliseconds,
/// until the state leaves [`NcclResult::InProgress`] or `timeout` has passed. Ready at once on a
/// blocking communicator. The state is asked at least once, also with a timeout of zero.
///
/// An error carries an [`NcclError`] with the state that was found: `InProgress` when the time was
/// up. The communicator is then still busy; `ncclCommAbort` is the call that ends it in any state.
///
/// # Safety
///
/// `comm` is a live communicator, and no other thread uses it meanwhile, except to abort it after
/// this call has returned.
pub unsafe fn wait_ready(comm: NcclComm, timeout: Duration) -> anyhow::Result<()> {
    const LONGEST_PAUSE: Duration = Duration::from_millis(10);
    let start = Instant::now();
    let mut pause = Duration::from_micros(10);
    loop {
        let mut state = NcclResult::Success;
        // SAFETY: the caller vouches for `comm`, and `state` takes one code.
        let asked = unsafe { ncclCommGetAsyncError(comm, &mut state) };
        check_nccl(asked, "ncclCommGetAsyncError")?;
        let waited = start.elapsed();
        if state == NcclResult::Success {
            return Ok(());
        }
        if state != NcclResult::InProgress || waited >= timeout {
            // SAFETY: the caller vouches for `comm`.
            return Err(unsafe { not_ready(comm, state, waited) }.into());
        }
        std::thread::sleep(pause.min(timeout - waited));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The error of [`wait_ready`].
///
/// # Safety
///
/// `comm` is a live communicator.
#[cold]
unsafe fn not_ready(comm: NcclComm, state: NcclResult, waited: Duration) -> NcclError {
    // First of all, since a call that NCCL refuses overwrites its latest message.
    let mut error = NcclError::new(state, String::new());
    let (mut rank, mut nranks) = (0, 0);
    // SAFETY: the caller vouches for `comm`, and each number takes one int.
    let known = unsafe {
        ncclCommUserRank(comm, &mut rank) == NcclResult::Success
            && ncclCommCount(comm, &mut nranks) == NcclResult::Success
    };
    let who = if known {
        format!("rank {rank} of {nranks}")
    } else {
        // The usual case: NCCL refuses both while a communicator is not ready.
        "rank not known yet".to_owned()
    };
    error.context = format!("wait_ready ({who}, {waited:.1?} waited)");
    error
}

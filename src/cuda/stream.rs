//! Streams.
//!
//! A handle is an integer that may be copied to any thread; nothing destroys it by itself. Using a
//! destroyed one crashes the process in the driver, which is the caller's to avoid: see the safety
//! contract on the front page.

use super::check::check_cuda;
use super::ffi::*;
use super::types::*;

/// Creates a stream on the current context's device that does not wait for the legacy stream.
///
/// The caller destroys it. Fails with `InvalidContext` on a thread that has no current context:
/// [`use_device`](super::use_device) gives it one.
#[doc(alias = "cuStreamCreate")]
#[inline]
pub fn create_stream() -> anyhow::Result<CuStream> {
    let mut stream = 0;
    // SAFETY: `stream` is live and is all that the call writes.
    let result = unsafe { cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING) };
    check_cuda(result, "cuStreamCreate")?;
    Ok(stream)
}

/// As [`create_stream`], with a priority: 0 is the lowest, smaller numbers go first.
///
/// One outside of [`stream_priority_range`] is moved to its nearer end. A running kernel is never
/// interrupted, and copies have no priority.
#[doc(alias = "cuStreamCreateWithPriority")]
#[inline]
pub fn create_stream_with_priority(priority: i32) -> anyhow::Result<CuStream> {
    let mut stream = 0;
    // SAFETY: `stream` is live and is all that the call writes.
    let result =
        unsafe { cuStreamCreateWithPriority(&mut stream, CU_STREAM_NON_BLOCKING, priority) };
    check_cuda(result, "cuStreamCreateWithPriority")?;
    Ok(stream)
}

/// The least and the greatest priority that streams of the current context can have, such as `(0,
/// -5)`. Both are 0 on a device without priorities.
#[doc(alias = "cuCtxGetStreamPriorityRange")]
#[inline]
pub fn stream_priority_range() -> anyhow::Result<(i32, i32)> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both are live and are all that the call writes.
    let result = unsafe { cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
    check_cuda(result, "cuCtxGetStreamPriorityRange")?;
    Ok((least, greatest))
}

/// Makes all work enqueued on `stream` after this wait for the work that `event` stands for now.
///
/// The host does not wait. Recording the event again later changes nothing for this stream; an
/// event that was never recorded is not waited for. Stream and event may be of different devices.
#[doc(alias = "cuStreamWaitEvent")]
#[inline]
pub fn stream_wait_event(stream: CuStream, event: CuEvent) -> anyhow::Result<()> {
    // SAFETY: takes no pointer; that both handles are live is the caller's part of the contract.
    let result = unsafe { cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT) };
    check_cuda(result, "cuStreamWaitEvent")
}

/// Whether all work of `stream` is done. Never waits.
///
/// Fails if some of it failed, and during a capture of the stream, which it spoils. Works on a
/// thread without a current context, but for stream 0.
#[doc(alias = "cuStreamQuery")]
#[inline]
pub fn stream_ready(stream: CuStream) -> anyhow::Result<bool> {
    // SAFETY: takes no pointer; that the handle is live is the caller's part of the contract.
    let result = unsafe { cuStreamQuery(stream) };
    if result == CuResult::NotReady {
        return Ok(false);
    }
    check_cuda(result, "cuStreamQuery")?;
    Ok(true)
}

/// Waits on the host until all work of `stream` is done.
///
/// Fails if some of it failed, and during a capture of the stream, which it spoils. Works on a
/// thread without a current context, but for stream 0.
#[doc(alias = "cuStreamSynchronize")]
#[inline]
pub fn sync_stream(stream: CuStream) -> anyhow::Result<()> {
    // SAFETY: takes no pointer; that the handle is live is the caller's part of the contract.
    let result = unsafe { cuStreamSynchronize(stream) };
    check_cuda(result, "cuStreamSynchronize")
}

/// Destroys `stream`; 0 is ignored, and so is a failure.
///
/// Returns at once: what is enqueued still runs. The handle must not be used again.
#[doc(alias = "cuStreamDestroy")]
#[inline]
pub fn destroy_stream(stream: CuStream) {
    if stream != 0 {
        // SAFETY: takes no pointer; that the handle is live, and not used again, is the caller's
        // part of the contract.
        let _ = unsafe { cuStreamDestroy_v2(stream) };
    }
}

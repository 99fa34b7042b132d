//! Events.
//!
//! A handle is an integer that may be copied to any thread; nothing destroys it by itself. Using a
//! destroyed one crashes the process in the driver, which is the caller's to avoid: see the safety
//! contract on the front page.

use super::check::check_cuda;
use super::ffi::*;
use super::types::*;

/// Creates an event in the current context that orders work and takes no times.
///
/// The caller destroys it. Fails with `InvalidContext` on a thread that has no current context:
/// [`use_device`](super::use_device) gives it one.
#[doc(alias = "cuEventCreate")]
#[inline]
pub fn create_event() -> anyhow::Result<CuEvent> {
    let mut event = 0;
    // SAFETY: `event` is live and is all that the call writes.
    let result = unsafe { cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING) };
    check_cuda(result, "cuEventCreate")?;
    Ok(event)
}

/// As [`create_event`], for [`elapsed_ms`]: the event also takes the time.
#[doc(alias = "cuEventCreate")]
#[inline]
pub fn create_timing_event() -> anyhow::Result<CuEvent> {
    let mut event = 0;
    // SAFETY: `event` is live and is all that the call writes.
    let result = unsafe { cuEventCreate(&mut event, CU_EVENT_DEFAULT) };
    check_cuda(result, "cuEventCreate")?;
    Ok(event)
}

/// Makes `event` stand for all work enqueued on `stream` so far, instead of what it stood for.
///
/// The host does not wait. Waits that are enqueued already keep to the earlier record. Stream and
/// event must be of one context, else `InvalidHandle`.
#[doc(alias = "cuEventRecord")]
#[inline]
pub fn record_event(event: CuEvent, stream: CuStream) -> anyhow::Result<()> {
    // SAFETY: takes no pointer; that both handles are live is the caller's part of the contract.
    let result = unsafe { cuEventRecord(event, stream) };
    check_cuda(result, "cuEventRecord")
}

/// Whether the work that `event` stands for is done; true if it was never recorded. Never waits.
///
/// Fails if earlier work failed, and with `CapturedEvent` while a capture holds the event.
#[doc(alias = "cuEventQuery")]
#[inline]
pub fn event_ready(event: CuEvent) -> anyhow::Result<bool> {
    // SAFETY: takes no pointer; that the handle is live is the caller's part of the contract.
    let result = unsafe { cuEventQuery(event) };
    if result == CuResult::NotReady {
        return Ok(false);
    }
    check_cuda(result, "cuEventQuery")?;
    Ok(true)
}

/// Waits on the host until the work that `event` stands for is done; not at all if it was never
/// recorded.
///
/// Fails if earlier work failed, and with `CapturedEvent` while a capture holds the event.
#[doc(alias = "cuEventSynchronize")]
#[inline]
pub fn sync_event(event: CuEvent) -> anyhow::Result<()> {
    // SAFETY: takes no pointer; that the handle is live is the caller's part of the contract.
    let result = unsafe { cuEventSynchronize(event) };
    check_cuda(result, "cuEventSynchronize")
}

/// The milliseconds from `start` to `end`, to about half a microsecond; negative if `end` came
/// first.
///
/// Both are of [`create_timing_event`] and were recorded, else `InvalidHandle`; while either is
/// pending it is an error with the code `NotReady`, so wait for `end` first.
#[doc(alias = "cuEventElapsedTime")]
#[inline]
pub fn elapsed_ms(start: CuEvent, end: CuEvent) -> anyhow::Result<f32> {
    let mut milliseconds = 0.0;
    // The first form of the call: the second would need a driver of CUDA 12.8.
    // SAFETY: `milliseconds` is live and is all that the call writes; that both handles are live is
    // the caller's part of the contract.
    let result = unsafe { cuEventElapsedTime(&mut milliseconds, start, end) };
    check_cuda(result, "cuEventElapsedTime")?;
    Ok(milliseconds)
}

/// Destroys `event`; 0 is ignored, and so is a failure.
///
/// Returns at once: waits that are enqueued on it are kept. The handle must not be used again.
#[doc(alias = "cuEventDestroy")]
#[inline]
pub fn destroy_event(event: CuEvent) {
    if event != 0 {
        // SAFETY: takes no pointer; that the handle is live, and not used again, is the caller's
        // part of the contract.
        let _ = unsafe { cuEventDestroy_v2(event) };
    }
}

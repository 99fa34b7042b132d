//! Device memory, copies and sets.

use std::ffi::c_void;
use std::mem::size_of_val;

use super::check::check_cuda;
use super::ffi::*;
use super::types::*;

/// Allocates `bytes` bytes on the current context's device, aligned for any type.
///
/// The caller frees them. `InvalidValue` for 0 bytes, `OutOfMemory`, `InvalidContext` on a thread
/// without a current context. It may wait for the device: where several ranks share one in a
/// process, allocate before the collectives begin.
#[doc(alias = "cuMemAlloc")]
#[inline]
pub fn mem_alloc(bytes: usize) -> anyhow::Result<CuDevicePtr> {
    let mut ptr = 0;
    // SAFETY: `ptr` is live and is all that the call writes.
    let result = unsafe { cuMemAlloc_v2(&mut ptr, bytes) };
    check_cuda(result, "cuMemAlloc_v2")?;
    Ok(ptr)
}

/// Frees what [`mem_alloc`] returned; 0 is ignored. It may wait for the device.
///
/// `InvalidValue` for an address that is not the start of an allocation, such as one freed before.
///
/// # Safety
///
/// No work that is enqueued or will be uses the memory, and nobody else frees it.
#[doc(alias = "cuMemFree")]
#[inline]
pub unsafe fn mem_free(ptr: CuDevicePtr) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemFree_v2(ptr) };
    check_cuda(result, "cuMemFree_v2")
}

/// The bytes of memory that are free on the current context's device, and that there are.
#[doc(alias = "cuMemGetInfo")]
#[inline]
pub fn mem_info() -> anyhow::Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are live and are all that the call writes.
    let result = unsafe { cuMemGetInfo_v2(&mut free, &mut total) };
    check_cuda(result, "cuMemGetInfo_v2")?;
    Ok((free, total))
}

/// Copies `src` to the device memory at `dst`, in order with the legacy stream.
///
/// `src` is free again on return, but the last bytes may still be on their way: before a stream of
/// [`create_stream`](super::create_stream), which does not wait for the legacy stream, may read
/// them, synchronize with stream 0, or copy with [`memcpy_htod_async`] on that very stream.
/// `InvalidValue` where the driver sees that `dst` has no room.
///
/// # Safety
///
/// `dst` has room for all of `src`, and no work uses that room meanwhile.
#[doc(alias = "cuMemcpyHtoD")]
#[inline]
pub unsafe fn memcpy_htod<T: Copy>(dst: CuDevicePtr, src: &[T]) -> anyhow::Result<()> {
    // SAFETY: `src` is live for its own size; the rest is as the caller promises.
    let result = unsafe { cuMemcpyHtoD_v2(dst, src.as_ptr().cast::<c_void>(), size_of_val(src)) };
    check_cuda(result, "cuMemcpyHtoD_v2")
}

/// Enqueues [`memcpy_htod`] on `stream`.
///
/// From pinned memory it returns at once; other memory is read before it returns.
///
/// # Safety
///
/// `dst` has room for all of `src` when the stream gets here. Until it has passed this point,
/// pinned memory behind `src` stays allocated and unchanged, and no other work uses the room at
/// `dst`. `stream` is live.
#[doc(alias = "cuMemcpyHtoDAsync")]
#[inline]
pub unsafe fn memcpy_htod_async<T: Copy>(
    dst: CuDevicePtr,
    src: &[T],
    stream: CuStream,
) -> anyhow::Result<()> {
    // SAFETY: `src` is live for its own size now, and later as the caller promises.
    let result = unsafe {
        cuMemcpyHtoDAsync_v2(dst, src.as_ptr().cast::<c_void>(), size_of_val(src), stream)
    };
    check_cuda(result, "cuMemcpyHtoDAsync_v2")
}

/// Copies from the device memory at `src` until `dst` is full, in order with the legacy stream.
/// Done on return.
///
/// Work of a stream of [`create_stream`](super::create_stream) is not waited for: synchronize with
/// it first. `InvalidValue` where the driver sees that `src` is shorter.
///
/// # Safety
///
/// `src` holds as many bytes as `dst`, they are valid values of `T`, and no work writes them
/// meanwhile.
#[doc(alias = "cuMemcpyDtoH")]
#[inline]
pub unsafe fn memcpy_dtoh<T: Copy>(dst: &mut [T], src: CuDevicePtr) -> anyhow::Result<()> {
    let bytes = size_of_val(dst);
    // SAFETY: `dst` is live for its own size; the rest is as the caller promises.
    let result = unsafe { cuMemcpyDtoH_v2(dst.as_mut_ptr().cast::<c_void>(), src, bytes) };
    check_cuda(result, "cuMemcpyDtoH_v2")
}

/// Enqueues [`memcpy_dtoh`] on `stream`.
///
/// Into pinned memory it returns at once; for other memory it waits until the copy is done.
///
/// # Safety
///
/// `src` holds as many bytes as `dst` when the stream gets here, they are valid values of `T`, and
/// no other work writes them. Until the stream has passed this point, pinned memory behind `dst`
/// stays allocated, and is neither read nor written, though the borrow ends before. `stream` is
/// live.
#[doc(alias = "cuMemcpyDtoHAsync")]
#[inline]
pub unsafe fn memcpy_dtoh_async<T: Copy>(
    dst: &mut [T],
    src: CuDevicePtr,
    stream: CuStream,
) -> anyhow::Result<()> {
    let bytes = size_of_val(dst);
    // SAFETY: `dst` is live for its own size now, and later as the caller promises.
    let result =
        unsafe { cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast::<c_void>(), src, bytes, stream) };
    check_cuda(result, "cuMemcpyDtoHAsync_v2")
}

/// Copies `bytes` bytes within the device, in order with the legacy stream.
///
/// It may return before the copy is done, and a stream of [`create_stream`](super::create_stream)
/// does not wait for it: synchronize with stream 0 first, or use [`memcpy_dtod_async`].
///
/// # Safety
///
/// Both places hold `bytes` bytes and do not overlap, and no other work writes them meanwhile.
#[doc(alias = "cuMemcpyDtoD")]
#[inline]
pub unsafe fn memcpy_dtod(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemcpyDtoD_v2(dst, src, bytes) };
    check_cuda(result, "cuMemcpyDtoD_v2")
}

/// Enqueues [`memcpy_dtod`] on `stream`.
///
/// # Safety
///
/// When the stream gets here both places hold `bytes` bytes and do not overlap, and until it has
/// passed no other work writes them. `stream` is live.
#[doc(alias = "cuMemcpyDtoDAsync")]
#[inline]
pub unsafe fn memcpy_dtod_async(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemcpyDtoDAsync_v2(dst, src, bytes, stream) };
    check_cuda(result, "cuMemcpyDtoDAsync_v2")
}

/// Sets `count` bytes at `dst` to `value`, in order with the legacy stream.
///
/// It may return before they are set, and a stream of [`create_stream`](super::create_stream) does
/// not wait for it: synchronize with stream 0 first, or use [`memset_d8_async`].
///
/// # Safety
///
/// `dst` has room for `count` bytes, and no other work uses them meanwhile.
#[doc(alias = "cuMemsetD8")]
#[inline]
pub unsafe fn memset_d8(dst: CuDevicePtr, value: u8, count: usize) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemsetD8_v2(dst, value, count) };
    check_cuda(result, "cuMemsetD8_v2")
}

/// Enqueues [`memset_d8`] on `stream`.
///
/// # Safety
///
/// When the stream gets here `dst` has room for `count` bytes, and until it has passed no other
/// work uses them. `stream` is live.
#[doc(alias = "cuMemsetD8Async")]
#[inline]
pub unsafe fn memset_d8_async(
    dst: CuDevicePtr,
    value: u8,
    count: usize,
    stream: CuStream,
) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemsetD8Async(dst, value, count, stream) };
    check_cuda(result, "cuMemsetD8Async")
}

/// Sets `count` values of 32 bits at `dst`, a multiple of 4, to `value`; else as [`memset_d8`].
///
/// # Safety
///
/// `dst` has room for `count` values, and no other work uses them meanwhile.
#[doc(alias = "cuMemsetD32")]
#[inline]
pub unsafe fn memset_d32(dst: CuDevicePtr, value: u32, count: usize) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemsetD32_v2(dst, value, count) };
    check_cuda(result, "cuMemsetD32_v2")
}

/// Enqueues [`memset_d32`] on `stream`.
///
/// # Safety
///
/// When the stream gets here `dst` has room for `count` values, and until it has passed no other
/// work uses them. `stream` is live.
#[doc(alias = "cuMemsetD32Async")]
#[inline]
pub unsafe fn memset_d32_async(
    dst: CuDevicePtr,
    value: u32,
    count: usize,
    stream: CuStream,
) -> anyhow::Result<()> {
    // SAFETY: as the caller promises.
    let result = unsafe { cuMemsetD32Async(dst, value, count, stream) };
    check_cuda(result, "cuMemsetD32Async")
}

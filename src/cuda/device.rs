//! The driver, its devices, and the context that is current on a thread.

use std::ffi::{CStr, c_char};

use super::check::check_cuda;
use super::ffi::*;
use super::types::*;

/// Initializes the driver for this process; every other call but [`driver_version`] needs that
/// first.
///
/// Calling it again does nothing. Not for use before a `fork`: the child could not use the driver.
#[doc(alias = "cuInit")]
#[inline]
pub fn init() -> anyhow::Result<()> {
    // SAFETY: takes no pointer.
    let result = unsafe { cuInit(0) };
    check_cuda(result, "cuInit")
}

/// The newest CUDA release that the driver supports: 1000 for each major and 10 for each minor
/// number, so that 13000 is 13.0 and 12080 is 12.8. Needs no [`init`].
#[doc(alias = "cuDriverGetVersion")]
#[inline]
pub fn driver_version() -> anyhow::Result<i32> {
    let mut version = 0;
    // SAFETY: `version` is live and is all that the call writes.
    let result = unsafe { cuDriverGetVersion(&mut version) };
    check_cuda(result, "cuDriverGetVersion")?;
    Ok(version)
}

/// The number of devices that `CUDA_VISIBLE_DEVICES` leaves.
#[doc(alias = "cuDeviceGetCount")]
#[inline]
pub fn device_count() -> anyhow::Result<i32> {
    let mut count = 0;
    // SAFETY: `count` is live and is all that the call writes.
    let result = unsafe { cuDeviceGetCount(&mut count) };
    check_cuda(result, "cuDeviceGetCount")?;
    Ok(count)
}

/// The device of number `ordinal`, from 0; `InvalidDevice` if there is none.
#[doc(alias = "cuDeviceGet")]
#[inline]
pub fn device(ordinal: i32) -> anyhow::Result<CuDevice> {
    let mut device = 0;
    // SAFETY: `device` is live and is all that the call writes.
    let result = unsafe { cuDeviceGet(&mut device, ordinal) };
    check_cuda(result, "cuDeviceGet")?;
    Ok(device)
}

/// The name of the device's model, such as `NVIDIA H200`.
#[doc(alias = "cuDeviceGetName")]
#[inline]
pub fn device_name(device: CuDevice) -> anyhow::Result<String> {
    let mut name = [0u8; 256];
    // SAFETY: `name` is live, and the call writes at most the length given.
    let result = unsafe {
        cuDeviceGetName(
            name.as_mut_ptr().cast::<c_char>(),
            name.len() as i32,
            device,
        )
    };
    check_cuda(result, "cuDeviceGetName")?;
    Ok(text(&name))
}

/// The identity of the device, the same in every process and after a restart.
///
/// Since CUDA 11.4.
#[doc(alias = "cuDeviceGetUuid")]
#[inline]
pub fn device_uuid(device: CuDevice) -> anyhow::Result<CuUuid> {
    let mut uuid = CuUuid::default();
    // SAFETY: `uuid` is live and is all that the call writes.
    let result = unsafe { cuDeviceGetUuid_v2(&mut uuid, device) };
    check_cuda(result, "cuDeviceGetUuid_v2")?;
    Ok(uuid)
}

/// What `attribute` asks about the device; `InvalidValue` for an attribute newer than the driver.
#[doc(alias = "cuDeviceGetAttribute")]
#[inline]
pub fn device_attribute(device: CuDevice, attribute: CuDeviceAttribute) -> anyhow::Result<i32> {
    let mut value = 0;
    // SAFETY: `value` is live and is all that the call writes.
    let result = unsafe { cuDeviceGetAttribute(&mut value, attribute, device) };
    check_cuda(result, "cuDeviceGetAttribute")?;
    Ok(value)
}

/// The size of the device's memory in bytes, whoever uses it.
#[doc(alias = "cuDeviceTotalMem")]
#[inline]
pub fn device_total_memory(device: CuDevice) -> anyhow::Result<usize> {
    let mut bytes = 0;
    // SAFETY: `bytes` is live and is all that the call writes.
    let result = unsafe { cuDeviceTotalMem_v2(&mut bytes, device) };
    check_cuda(result, "cuDeviceTotalMem_v2")?;
    Ok(bytes)
}

/// The device's PCI address, such as `0000:3B:00.0`.
#[doc(alias = "cuDeviceGetPCIBusId")]
#[inline]
pub fn device_pci_bus_id(device: CuDevice) -> anyhow::Result<String> {
    let mut id = [0u8; 32];
    // SAFETY: `id` is live, and the call writes at most the length given.
    let result =
        unsafe { cuDeviceGetPCIBusId(id.as_mut_ptr().cast::<c_char>(), id.len() as i32, device) };
    check_cuda(result, "cuDeviceGetPCIBusId")?;
    Ok(text(&id))
}

/// Whether `device` can reach the memory of `peer`, another device, directly.
#[doc(alias = "cuDeviceCanAccessPeer")]
#[inline]
pub fn can_access_peer(device: CuDevice, peer: CuDevice) -> anyhow::Result<bool> {
    let mut can = 0;
    // SAFETY: `can` is live and is all that the call writes.
    let result = unsafe { cuDeviceCanAccessPeer(&mut can, device, peer) };
    check_cuda(result, "cuDeviceCanAccessPeer")?;
    Ok(can != 0)
}

/// The device's primary context, the one that the CUDA runtime and NCCL use; created if need be.
///
/// It does not become current. Each call counts, and each is to be met by one
/// [`release_primary_context`] if the context is ever to go before the process does.
#[doc(alias = "cuDevicePrimaryCtxRetain")]
#[inline]
pub fn retain_primary_context(device: CuDevice) -> anyhow::Result<CuContext> {
    let mut context = 0;
    // SAFETY: `context` is live and is all that the call writes.
    let result = unsafe { cuDevicePrimaryCtxRetain(&mut context, device) };
    check_cuda(result, "cuDevicePrimaryCtxRetain")?;
    Ok(context)
}

/// Gives one retention of the device's primary context back; `InvalidContext` if there is none.
///
/// With the last one its memory, streams, events and modules are destroyed, while it stays current
/// where it was: further calls there fail with `ContextIsDestroyed`.
#[doc(alias = "cuDevicePrimaryCtxRelease")]
#[inline]
pub fn release_primary_context(device: CuDevice) -> anyhow::Result<()> {
    // SAFETY: takes no pointer; that nothing of the context is used after its last release is the
    // caller's part of the contract.
    let result = unsafe { cuDevicePrimaryCtxRelease_v2(device) };
    check_cuda(result, "cuDevicePrimaryCtxRelease_v2")
}

/// Makes `context` current on the calling thread, in the place of the one that was; 0 makes none
/// current.
#[doc(alias = "cuCtxSetCurrent")]
#[inline]
pub fn set_current_context(context: CuContext) -> anyhow::Result<()> {
    // SAFETY: takes no pointer; that the context is 0 or live is the caller's part of the contract.
    let result = unsafe { cuCtxSetCurrent(context) };
    check_cuda(result, "cuCtxSetCurrent")
}

/// The context that is current on the calling thread, 0 if there is none.
#[doc(alias = "cuCtxGetCurrent")]
#[inline]
pub fn current_context() -> anyhow::Result<CuContext> {
    let mut context = 0;
    // SAFETY: `context` is live and is all that the call writes.
    let result = unsafe { cuCtxGetCurrent(&mut context) };
    check_cuda(result, "cuCtxGetCurrent")?;
    Ok(context)
}

/// Makes the primary context of device `ordinal` current on the calling thread, and returns it.
///
/// The one call that a thread makes before anything else: it initializes the driver, retains the
/// context and sets it. Each call retains once more, also on the same thread; a program that uses
/// its devices to the end need never release them. A new thread starts without a context, whatever
/// its parent has.
#[doc(alias = "cudaSetDevice")]
#[inline]
pub fn use_device(ordinal: i32) -> anyhow::Result<CuContext> {
    init()?;
    let context = retain_primary_context(device(ordinal)?)?;
    set_current_context(context)?;
    Ok(context)
}

/// Waits on the host until all work of the current context is done, in every stream.
///
/// Fails if some of it failed. Where several ranks share a device in one process, this also waits
/// for the other ranks' collectives, and can so wait for ever for a peer that it keeps from coming:
/// use [`sync_stream`](super::sync_stream) there.
#[doc(alias = "cuCtxSynchronize")]
#[inline]
pub fn sync_context() -> anyhow::Result<()> {
    // SAFETY: takes no argument.
    let result = unsafe { cuCtxSynchronize() };
    check_cuda(result, "cuCtxSynchronize")
}

/// The bytes up to the first zero.
fn text(bytes: &[u8]) -> String {
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::new(),
    }
}

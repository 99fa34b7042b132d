//! Memory: what is allocated, registered, reached by other ranks, and given back for a while.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::comm::Comm;
use super::error::{
    INVALID_ARGUMENT, INVALID_USAGE, Outcome, cuda_failure, lock, not_null, refuse,
};
use super::exchange::Topic;
use super::param;
use crate::cuda::{CuDevice, CuResult};
use crate::emulator::cuda::{self, Kind, Range};
use crate::nccl::{
    NCCL_SUSPEND_MEM, NCCL_WIN_CFT_COUNTED, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_GIN_ONLY,
    NCCL_WIN_REQUIRED_ALIGNMENT, NcclCommMemStat, NcclResult, NcclWindow,
};

/// What sizes are rounded up to.
const GRANULARITY: usize = 2 << 20;
/// What registered ranges are widened to.
const PAGE: u64 = 4096;

/// `ncclMemAlloc` on the current device.
pub(super) fn allocate(size: usize) -> Outcome<*mut c_void> {
    let device = cuda::device_for_nccl().map_err(cuda_failure)?;
    if size == 0 {
        return Ok(ptr::null_mut());
    }
    let rounded = size.checked_next_multiple_of(GRANULARITY);
    let rounded = rounded.ok_or_else(|| cuda_failure(CuResult::OutOfMemory))?;
    let address = cuda::allocate(device, rounded, Kind::Nccl).map_err(cuda_failure)?;
    Ok(address as *mut c_void)
}

/// `ncclMemFree`.
pub(super) fn free(address: *mut c_void) -> Outcome {
    cuda::device_for_nccl().map_err(cuda_failure)?;
    if address.is_null() {
        return Ok(());
    }
    cuda::release(address as u64, Kind::Nccl).map_err(cuda_failure)
}

/// A check of a buffer, made where the environment asks for it: memory that the communicator's
/// device can use.
pub(super) fn check_buffer(address: u64, device: CuDevice, call: &str, name: &str) -> Outcome {
    match cuda::find(address) {
        None => Err(refuse(
            INVALID_ARGUMENT,
            format_args!("{call} : {name} {address:#x} is not a valid pointer"),
        )),
        Some(Range {
            kind: Kind::Device | Kind::Nccl,
            device: other,
            ..
        }) if other != device => Err(refuse(
            INVALID_ARGUMENT,
            format_args!(
                "{call} : {name} allocated on device {other} mismatches with NCCL device {device}"
            ),
        )),
        Some(_) => Ok(()),
    }
}

/// What a communicator knows of memory.
#[derive(Default)]
pub(super) struct Memory {
    registered: Mutex<Vec<Registered>>,
    windows: Mutex<Vec<Window>>,
    /// Shared among communicators that share resources.
    pool: Arc<Pool>,
    /// A window has been there, so that signals work.
    signals: AtomicBool,
}

/// The device memory that NCCL would have for itself. There is none here but the state of it.
#[derive(Default)]
struct Pool {
    suspended: AtomicBool,
}

struct Registered {
    handle: u64,
    start: u64,
    end: u64,
    times: usize,
}

struct Window {
    handle: u64,
    base: u64,
    size: usize,
    flags: i32,
    /// Where each rank's part begins.
    peers: Vec<u64>,
}

/// A handle that none has had: of a registration or of a window.
fn new_handle() -> u64 {
    use std::sync::atomic::AtomicU64;
    // At addresses that no processor takes.
    static NEXT: AtomicU64 = AtomicU64::new(0x6e63_6d65_0000_0000);
    NEXT.fetch_add(16, SeqCst)
}

impl Memory {
    /// That of a communicator which shares this one's resources.
    pub(super) fn shared(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            ..Self::default()
        }
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.pool.suspended.load(SeqCst)
    }

    pub(super) fn knows_signals(&self) -> bool {
        self.signals.load(SeqCst)
    }

    /// `ncclCommRegister`: the handle, null for memory of the host, which is not registered.
    pub(super) fn register(&self, address: u64, size: usize) -> Outcome<*mut c_void> {
        let Some(range) = cuda::find(address) else {
            return Err(cuda_failure(CuResult::InvalidValue));
        };
        if !matches!(range.kind, Kind::Device | Kind::Nccl) {
            return Ok(ptr::null_mut());
        }
        let start = address & !(PAGE - 1);
        let end = address.saturating_add(size as u64).saturating_add(PAGE - 1) & !(PAGE - 1);
        let mut registered = lock(&self.registered);
        let within = |one: &&mut Registered| one.start <= start && end <= one.end;
        let handle = match registered.iter_mut().find(within) {
            Some(one) => {
                one.times += 1;
                one.handle
            }
            None => {
                let handle = new_handle();
                registered.push(Registered {
                    handle,
                    start,
                    end,
                    times: 1,
                });
                handle
            }
        };
        Ok(handle as *mut c_void)
    }

    /// `ncclCommDeregister` of a handle that is not null.
    pub(super) fn deregister(&self, handle: *mut c_void) -> Outcome {
        let mut registered = lock(&self.registered);
        let Some(place) = registered
            .iter()
            .position(|one| one.handle == handle as u64)
        else {
            return Err(refuse(
                INVALID_USAGE,
                format_args!("Deregister: Could not find handle"),
            ));
        };
        registered[place].times -= 1;
        if registered[place].times == 0 {
            registered.remove(place);
        }
        Ok(())
    }

    fn with_window<T>(&self, window: NcclWindow, use_it: impl FnOnce(&Window) -> T) -> Outcome<T> {
        let windows = lock(&self.windows);
        match windows.iter().find(|one| one.handle == window as u64) {
            Some(one) => Ok(use_it(one)),
            None => Err(refuse(
                NcclResult::InternalError,
                format_args!("Could not find the window {window:?}"),
            )),
        }
    }

    /// `ncclWinGetUserPtr`.
    pub(super) fn window_base(&self, window: NcclWindow) -> Outcome<*mut c_void> {
        self.with_window(window, |one| one.base as *mut c_void)
    }

    /// Where a peer's part of a window begins.
    pub(super) fn window_at(&self, window: NcclWindow, peer: usize) -> Outcome<u64> {
        self.with_window(window, |one| one.peers[peer])
    }

    /// Whether an address lies in one of this rank's symmetric windows.
    pub(super) fn is_symmetric(&self, address: u64) -> bool {
        lock(&self.windows).iter().any(|one| {
            one.flags & NCCL_WIN_COLL_SYMMETRIC != 0
                && address >= one.base
                && address - one.base < one.size as u64
        })
    }

    /// `ncclCommWindowDeregister` of a window that is not null.
    pub(super) fn remove_window(&self, window: NcclWindow) -> Outcome {
        self.with_window(window, |_| ())?;
        lock(&self.windows).retain(|one| one.handle != window as u64);
        Ok(())
    }
}

/// Makes a window, together with all other ranks. The first part of it is this rank's own.
pub(super) fn register_window(
    comm: &Comm,
    base: u64,
    size: usize,
    flags: i32,
) -> Outcome<NcclWindow> {
    const RESTRICTED: i32 = NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
    if flags & NCCL_WIN_COLL_SYMMETRIC != 0 && flags & RESTRICTED != 0 {
        return Err(refuse(
            INVALID_ARGUMENT,
            format_args!(
                "NCCL_WIN_COLL_SYMMETRIC cannot be combined with flags that restrict the window"
            ),
        ));
    }
    let range = cuda::find(base).filter(|range| range.kind == Kind::Nccl);
    let Some(range) = range else {
        return Err(cuda_failure(CuResult::InvalidValue));
    };
    let offset = (base - range.base) as usize;
    if offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0 {
        return Err(refuse(
            INVALID_ARGUMENT,
            format_args!("Window address must be suitably aligned."),
        ));
    }
    if size > range.size - offset {
        return Err(cuda_failure(CuResult::InvalidValue));
    }
    comm.expose(base)?;
    let bases = comm.all_gather(Topic::Window, &base.to_ne_bytes())?;
    let peers = bases.iter().map(|base| {
        base.first_chunk()
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    });
    let handle = new_handle();
    let window = Window {
        handle,
        base,
        size,
        flags,
        peers: peers.collect(),
    };
    lock(&comm.memory.windows).push(window);
    comm.memory.signals.store(true, SeqCst);
    Ok(handle as NcclWindow)
}

fn manager_disabled() -> bool {
    param::number("NCCL_DISABLE_MEM_MANAGER", 0) != 0
}

fn refuse_usage(reason: &str) -> Outcome {
    Err(refuse(INVALID_USAGE, format_args!("MemManager: {reason}")))
}

/// What `ncclCommSuspend` refuses before anything is done. False if there is nothing to do.
pub(super) fn check_suspend(comm: &Comm, flags: i32) -> Outcome<bool> {
    if flags & NCCL_SUSPEND_MEM == 0 {
        return Ok(false);
    }
    if manager_disabled() {
        refuse_usage("Suspend not supported, memory manager is disabled")?;
    }
    if Arc::strong_count(&comm.memory.pool) > 1 {
        refuse_usage("suspend not supported with communicators that share resources")?;
    }
    Ok(true)
}

/// What `ncclCommResume` refuses before anything is done.
pub(super) fn check_resume() -> Outcome {
    match manager_disabled() {
        true => refuse_usage("Resume not supported, memory manager is disabled"),
        false => Ok(()),
    }
}

/// Suspends, or resumes, together with all other ranks.
pub(super) fn set_suspended(comm: &Comm, suspended: bool) -> Outcome {
    if comm.memory.is_suspended() == suspended {
        return refuse_usage(if suspended {
            "Already suspended"
        } else {
            "Not in suspended state"
        });
    }
    comm.all_gather(Topic::Memory, &[])?;
    comm.memory.pool.suspended.store(suspended, SeqCst);
    Ok(())
}

/// `ncclCommMemStats`. The emulator holds no device memory of its own.
pub(super) fn statistic(comm: &Comm, stat: NcclCommMemStat, value: *const u64) -> Outcome<u64> {
    not_null(value, "ncclCommMemStats", "value")?;
    if manager_disabled() {
        refuse_usage("no statistics, memory manager is disabled")?;
    }
    match stat {
        NcclCommMemStat::GpuMemSuspended => Ok(comm.memory.is_suspended().into()),
        NcclCommMemStat::GpuMemSuspend
        | NcclCommMemStat::GpuMemPersist
        | NcclCommMemStat::GpuMemTotal => Ok(0),
        _ => Err(refuse(
            INVALID_ARGUMENT,
            format_args!("ncclCommMemStats : unknown statistic {}", stat.0),
        )),
    }
}

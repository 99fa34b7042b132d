//! Primary contexts, and which one is current on a thread.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::device::{device_count, devices};
use super::progress::Point;
use super::stream::{self, Kind, Stream};
use super::table::{context_device, context_handle};
use super::{event, kernel, lock, memory, read, write};
use crate::cuda::{CU_CTX_SCHED_MASK, CuContext, CuDevice, CuResult};
use crate::emulator::system;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

pub(super) fn initialize() {
    INITIALIZED.store(true, Ordering::Release);
}

pub(super) fn is_initialized() -> bool {
    // The driver does not work in a fork either.
    INITIALIZED.load(Ordering::Acquire) && !system::is_fork()
}

/// What a device holds in this process, from its first retention, or one after a reset, to its end.
pub(super) struct Context {
    pub device: CuDevice,
    /// 0, or the code that every call answers from now on.
    failure: AtomicI32,
    pub registry: Mutex<Registry>,
    /// The devices whose memory was opened to it.
    pub peers: Mutex<BTreeSet<CuDevice>>,
}

/// The streams of a context. Its lock also gives the order between the legacy stream and the
/// blocking ones.
#[derive(Default)]
pub(super) struct Registry {
    pub legacy: Option<Arc<Stream>>,
    /// By the number of the thread.
    pub per_thread: BTreeMap<u64, Arc<Stream>>,
    /// All others, destroyed ones too until their work is done.
    pub streams: Vec<Arc<Stream>>,
    /// Set when the context is destroyed.
    pub closed: bool,
}

impl Registry {
    pub(super) fn blocking(&self) -> impl Iterator<Item = &Arc<Stream>> {
        let created = self.streams.iter();
        created
            .filter(|stream| stream.kind == Kind::Blocking)
            .chain(self.per_thread.values())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.streams
            .iter()
            .chain(self.per_thread.values())
            .chain(&self.legacy)
    }
}

impl Context {
    fn new(device: CuDevice) -> Arc<Self> {
        Arc::new(Self {
            device,
            failure: AtomicI32::new(0),
            registry: Mutex::default(),
            peers: Mutex::default(),
        })
    }

    pub(super) fn handle(&self) -> CuContext {
        context_handle(self.device)
    }

    /// `Success`, or the failure that stays.
    pub(super) fn failure(&self) -> CuResult {
        CuResult(self.failure.load(Ordering::Acquire))
    }

    pub(super) fn check(&self) -> Result<(), CuResult> {
        match self.failure() {
            CuResult::Success => Ok(()),
            failure => Err(failure),
        }
    }

    /// Makes every later call answer `code`; the first failure stays.
    pub(super) fn fail(&self, code: CuResult) {
        let _ = self
            .failure
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The places behind all work that is enqueued now.
    fn points(&self) -> Vec<Point> {
        let registry = lock(&self.registry);
        registry.all().map(|stream| stream.tail()).collect()
    }

    /// Waits for all work that is enqueued now.
    pub(super) fn synchronize(&self) {
        self.points().iter().for_each(Point::wait);
    }

    fn destroy(&self) {
        self.fail(CuResult::ContextIsDestroyed);
        let points = self.points();
        let registry = {
            let mut registry = lock(&self.registry);
            let closed = Registry {
                closed: true,
                ..Registry::default()
            };
            std::mem::replace(&mut *registry, closed)
        };
        registry.all().for_each(Stream::destroy);
        event::drop_all(self);
        kernel::drop_all(self);
        memory::drop_all(self.device, &points);
    }
}

/// The state of a device's primary context.
#[derive(Default)]
pub(super) struct Primary {
    pub retained: u32,
    pub flags: u32,
    pub context: Option<Arc<Context>>,
}

pub(super) fn retain(device: CuDevice) -> Result<CuContext, CuResult> {
    let mut primary = write(&super::device::get(device)?.primary);
    let context = primary
        .context
        .get_or_insert_with(|| Context::new(device))
        .handle();
    primary.retained += 1;
    Ok(context)
}

pub(super) fn give_back(device: CuDevice) -> Result<(), CuResult> {
    let mut primary = write(&super::device::get(device)?.primary);
    primary.retained = primary
        .retained
        .checked_sub(1)
        .ok_or(CuResult::InvalidContext)?;
    let last = match primary.retained {
        0 => primary.context.take(),
        _ => None,
    };
    drop(primary);
    if let Some(context) = last {
        context.destroy();
    }
    Ok(())
}

/// Destroys the context; the retentions stay.
pub(super) fn reset(device: CuDevice) -> Result<(), CuResult> {
    let context = write(&super::device::get(device)?.primary).context.take();
    if let Some(context) = context {
        context.destroy();
    }
    Ok(())
}

pub(super) fn set_flags(device: CuDevice, flags: u32) -> Result<(), CuResult> {
    let mut primary = write(&super::device::get(device)?.primary);
    // The ways to wait exclude each other, and the rest of the bits stand for other things.
    let known = flags & !0xff == 0 && (flags & CU_CTX_SCHED_MASK).count_ones() <= 1;
    if !known {
        return Err(CuResult::InvalidValue);
    }
    primary.flags = flags;
    Ok(())
}

/// The primary context of `device`, if it exists.
pub(super) fn primary(device: CuDevice) -> Result<Arc<Context>, CuResult> {
    read(&super::device::get(device)?.primary)
        .context
        .clone()
        .ok_or(CuResult::ContextIsDestroyed)
}

/// The device whose context a handle is, alive or not.
pub(super) fn device_of(handle: CuContext) -> Result<CuDevice, CuResult> {
    context_device(handle)
        .filter(|device| *device < device_count())
        .ok_or(CuResult::InvalidContext)
}

/// What a thread has in the engine; with the thread goes its own stream of each context.
struct Thread {
    number: u64,
    /// The devices whose contexts are on the stack, the current one last.
    stack: RefCell<Vec<CuDevice>>,
    in_callback: Cell<bool>,
    capture_mode: Cell<i32>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        for device in devices() {
            let context = read(&device.primary).context.clone();
            let own =
                context.and_then(|context| lock(&context.registry).per_thread.remove(&self.number));
            if let Some(stream) = own {
                let context = stream.context.clone();
                let mut registry = lock(&context.registry);
                if !registry.closed {
                    // Its work still counts as the context's.
                    registry.streams.push(stream.clone());
                }
                drop(registry);
                stream.destroy();
            }
        }
    }
}

thread_local! {
    static THREAD: Thread = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Thread {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            stack: RefCell::new(Vec::new()),
            in_callback: Cell::new(false),
            capture_mode: Cell::new(0),
        }
    };
}

/// A number that no other thread has or had; 0 while a thread ends, which then has nothing else
/// either.
pub(super) fn thread_number() -> u64 {
    THREAD.try_with(|thread| thread.number).unwrap_or(0)
}

/// The calling thread's capture mode; `exchange_capture_mode` sets it.
pub(super) fn capture_mode() -> i32 {
    THREAD
        .try_with(|thread| thread.capture_mode.get())
        .unwrap_or(0)
}

pub(super) fn exchange_capture_mode(mode: i32) -> i32 {
    THREAD
        .try_with(|thread| thread.capture_mode.replace(mode))
        .unwrap_or(0)
}

/// Whether the calling thread is inside of a host function or a kernel.
pub(super) fn in_callback() -> bool {
    THREAD
        .try_with(|thread| thread.in_callback.get())
        .unwrap_or(false)
}

/// Runs user code in the place of a stream.
pub(super) fn as_callback<T>(function: impl FnOnce() -> T) -> T {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = THREAD.try_with(|thread| thread.in_callback.set(self.0));
        }
    }
    let outer = THREAD.try_with(|thread| thread.in_callback.replace(true));
    let _back = Back(outer.unwrap_or(false));
    stream::apart(function)
}

/// The device whose context is current, alive or not.
pub(super) fn current_device() -> Option<CuDevice> {
    THREAD
        .try_with(|thread| thread.stack.borrow().last().copied())
        .ok()
        .flatten()
}

/// The current context: `InvalidContext` without one, else its failure.
pub(super) fn current() -> Result<Arc<Context>, CuResult> {
    let device = current_device().ok_or(CuResult::InvalidContext)?;
    let context = primary(device)?;
    context.check()?;
    Ok(context)
}

pub(super) fn push_current(device: CuDevice) {
    let _ = THREAD.try_with(|thread| thread.stack.borrow_mut().push(device));
}

pub(super) fn pop_current() -> Option<CuDevice> {
    THREAD
        .try_with(|thread| thread.stack.borrow_mut().pop())
        .ok()
        .flatten()
}

/// Replaces the top of the stack; none takes it off.
pub(super) fn set_current(device: Option<CuDevice>) {
    pop_current();
    if let Some(device) = device {
        push_current(device);
    }
}

/// The current context's device. Without one, initializes the driver, takes device 0 and makes its
/// primary context current, as NCCL does through the runtime. A dead or failed context: its code.
pub(in crate::emulator) fn device_for_nccl() -> Result<CuDevice, CuResult> {
    if system::is_fork() {
        return Err(CuResult::NotInitialized);
    }
    initialize();
    if current_device().is_none() {
        retain(0)?;
        set_current(Some(0));
    }
    Ok(current()?.device)
}

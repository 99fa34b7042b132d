//! Memory: what the driver knows of it, and the copies and sets that it runs.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use super::capture::Label;
use super::context;
use super::device::{self, MEMORY};
use super::progress::Point;
use super::shared::{Piece, Shared};
use super::stream::{Done, Execution, Item, Step, Stream, Work};
use super::{read, write};
use crate::cuda::{CuDevice, CuResult};

/// What every allocation is aligned to, as on a GPU.
const ALIGNMENT: usize = 512;

/// Bytes up to which a copy or a set is not worth another thread, and up to which the driver keeps
/// a copy of ordinary host memory so that it need not wait.
const SHORT: usize = 64 << 10;

/// Bytes from which on an allocation lies in memory that other processes can be shown. Smaller ones
/// come from the heap, and what ranks of other processes need of them is copied.
const SHAREABLE: usize = 64 << 10;

/// Who made a piece of memory that the driver knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::emulator) enum Kind {
    /// `cuMemAlloc_v2` and `cuMemAllocAsync`.
    Device,
    /// `ncclMemAlloc`: device memory that windows may lie in.
    Nccl,
    /// Pinned host memory that the driver allocated.
    Pinned,
    /// Host memory of the program that it registered.
    Registered,
}

impl Kind {
    pub(super) fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::Nccl)
    }
}

/// A piece of memory that the driver knows, whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::emulator) struct Range {
    pub base: u64,
    pub size: usize,
    pub device: CuDevice,
    pub kind: Kind,
}

impl Range {
    /// Whether `bytes` bytes from `address` on, which lies in it, do too.
    fn holds(&self, address: u64, bytes: usize) -> bool {
        bytes <= self.size - (address - self.base) as usize
    }
}

/// Memory of the emulator's own, given back with the last one who needs it.
pub(super) struct Block {
    home: Home,
    size: usize,
    /// The device whose memory it counts as.
    counted: Option<CuDevice>,
}

/// Where a block's bytes are.
enum Home {
    Heap(*mut u8, Layout),
    Shared(Piece),
}

// SAFETY: the block is only an owner of bytes; who reads and writes them is ordered by streams.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(size: usize, counted: Option<CuDevice>) -> Result<Arc<Self>, CuResult> {
        // Sanitizers end the program over a size that nothing could hold, so it does not get that
        // far.
        let layout = Layout::from_size_align(size, ALIGNMENT)
            .ok()
            .filter(|layout| (1..=MEMORY).contains(&layout.size()))
            .ok_or(CuResult::OutOfMemory)?;
        if let Some(device) = counted {
            let used = &device::get(device)?.used;
            let add = |used: usize| used.checked_add(size).filter(|used| *used <= MEMORY);
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
                .map_err(|_| CuResult::OutOfMemory)?;
        }
        let shared = match size >= SHAREABLE {
            true => Piece::new(size),
            false => None,
        };
        let home = match shared {
            Some(piece) => Home::Shared(piece),
            // SAFETY: the size is not 0.
            None => Home::Heap(unsafe { alloc(layout) }, layout),
        };
        // Made before the test, so that the count is given back too.
        let block = Self {
            home,
            size,
            counted,
        };
        match block.pointer().is_null() {
            true => Err(CuResult::OutOfMemory),
            false => Ok(Arc::new(block)),
        }
    }

    fn pointer(&self) -> *mut u8 {
        match &self.home {
            Home::Heap(address, _) => *address,
            Home::Shared(piece) => piece.address(),
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.pointer().expose_provenance() as u64
    }

    pub(super) fn range(&self, device: CuDevice, kind: Kind) -> Range {
        Range {
            base: self.address(),
            size: self.size,
            device,
            kind,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(Ok(device)) = self.counted.map(device::get) {
            device.used.fetch_sub(self.size, Ordering::Relaxed);
        }
        if let Home::Heap(address, layout) = self.home {
            if !address.is_null() {
                // SAFETY: allocated with this layout, and freed here alone.
                unsafe { dealloc(address, layout) };
            }
        }
    }
}

/// Where the piece at `address` lies in the file that other processes can map; none for memory of
/// the heap or of the program.
pub(in crate::emulator) fn shared_at(address: u64) -> Option<Shared> {
    let place = |entry: &Entry| match &entry.block.as_ref()?.home {
        Home::Shared(piece) => Some(piece.place()),
        _ => None,
    };
    with_entry(address, place).flatten()
}

struct Entry {
    range: Range,
    /// Of `cuMemAllocAsync`: its release waits for nothing.
    pooled: bool,
    /// Never used again in this process.
    id: u64,
    /// None for memory that is the program's own.
    block: Option<Arc<Block>>,
}

/// By base address. Pieces do not overlap.
static ENTRIES: RwLock<BTreeMap<u64, Entry>> = RwLock::new(BTreeMap::new());

fn insert(range: Range, pooled: bool, block: Option<Arc<Block>>) {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    let entry = Entry {
        range,
        pooled,
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        block,
    };
    write(&ENTRIES).insert(range.base, entry);
}

fn with_entry<T>(address: u64, ask: impl FnOnce(&Entry) -> T) -> Option<T> {
    let entries = read(&ENTRIES);
    let (_, entry) = entries.range(..=address).next_back()?;
    ((address - entry.range.base) < entry.range.size as u64).then(|| ask(entry))
}

/// The piece that `address` lies in; none for ordinary host memory and for what was freed.
pub(in crate::emulator) fn find(address: u64) -> Option<Range> {
    with_entry(address, |entry| entry.range)
}

/// A number that only the piece at `address` has.
pub(super) fn id(address: u64) -> Option<u64> {
    with_entry(address, |entry| entry.id)
}

/// Allocates `size` bytes, not 0, of `kind` for the device's primary context.
pub(in crate::emulator) fn allocate(
    device: CuDevice,
    size: usize,
    kind: Kind,
) -> Result<u64, CuResult> {
    let block = Block::new(size, kind.is_device().then_some(device))?;
    publish(&block, device, kind, false);
    Ok(block.address())
}

/// Makes the driver know the block's memory, if it does not already.
fn publish(block: &Arc<Block>, device: CuDevice, kind: Kind, pooled: bool) {
    let range = block.range(device, kind);
    if find(range.base).is_none() {
        insert(range, pooled, Some(block.clone()));
    }
}

/// Frees what `allocate` returned with this kind, after all work of its device; `InvalidValue` for
/// any other address.
pub(in crate::emulator) fn release(address: u64, kind: Kind) -> Result<(), CuResult> {
    let starts = |entry: &Entry| {
        (entry.range.base == address && entry.range.kind == kind)
            .then_some((entry.range.device, entry.pooled))
    };
    let (device, pooled) = with_entry(address, starts)
        .flatten()
        .ok_or(CuResult::InvalidValue)?;
    // Without a context there is no work: memory goes with its context, and this came before one.
    if let Ok(context) = context::primary(device) {
        context.check()?;
        if !pooled {
            context.synchronize();
        }
    }
    take_out(address, |found| found == kind)
        .map(drop)
        .ok_or(CuResult::InvalidValue)
}

/// Makes the driver forget the piece that starts at `address`, if its kind suits.
fn take_out(address: u64, suits: impl FnOnce(Kind) -> bool) -> Option<Entry> {
    let mut entries = write(&ENTRIES);
    match suits(entries.get(&address)?.range.kind) {
        true => entries.remove(&address),
        false => None,
    }
}

/// Makes the driver forget the memory of a block.
pub(super) fn withdraw(block: &Block) {
    drop(take_out(block.address(), |_| true));
}

struct Release(Option<Arc<Block>>);

impl Execution for Release {
    fn start(self: Box<Self>, done: Done) {
        drop(self.0);
        done.finish(CuResult::Success);
    }

    fn is_short(&self) -> bool {
        true
    }
}

/// Registers the program's own memory.
pub(super) fn register(address: u64, size: usize, device: CuDevice) -> Result<(), CuResult> {
    let last = address
        .checked_add(size as u64 - 1)
        .ok_or(CuResult::InvalidValue)?;
    let overlapping = read(&ENTRIES)
        .range(..=last)
        .next_back()
        .map(|(_, entry)| entry.range)
        .filter(|range| range.base + range.size as u64 > address);
    match overlapping {
        Some(range) if range.kind == Kind::Registered => {
            return Err(CuResult::HostMemoryAlreadyRegistered);
        }
        Some(_) => return Err(CuResult::InvalidValue),
        None => {}
    }
    let range = Range {
        base: address,
        size,
        device,
        kind: Kind::Registered,
    };
    insert(range, false, None);
    Ok(())
}

/// Forgets what was registered at `address`, after all work of the device.
pub(super) fn unregister(address: u64) -> Result<(), CuResult> {
    match find(address) {
        None => Err(CuResult::HostMemoryNotRegistered),
        Some(range) if range.base != address || range.kind != Kind::Registered => {
            Err(CuResult::InvalidValue)
        }
        Some(_) => release(address, Kind::Registered),
    }
}

/// Frees all memory of a device whose context ends, once its work up to `points` is done with it.
pub(super) fn drop_all(device: CuDevice, points: &[Point]) {
    let mut freed = Vec::new();
    write(&ENTRIES).retain(|_, entry| {
        let stays = entry.range.device != device;
        if !stays {
            freed.extend(entry.block.take());
        }
        stays
    });
    let freed = Arc::new(freed);
    for point in points {
        let keep = freed.clone();
        drop(point.when_done(Step::Call(Box::new(move || drop(keep)))));
    }
}

/// Free and total bytes of a device.
pub(super) fn info(device: CuDevice) -> Result<(usize, usize), CuResult> {
    let used = device::get(device)?.used.load(Ordering::Relaxed);
    Ok((MEMORY - used.min(MEMORY), MEMORY))
}

/// Which memory one end of a copy may be in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Memory that the driver knows.
    Known,
    /// Ordinary host memory as well.
    Any,
}

/// What kind of memory `bytes` bytes from `address` on are in; none for ordinary host memory. Work
/// of a captured stream may also use what its graph allocates.
pub(super) fn check(
    address: u64,
    bytes: usize,
    end: End,
    stream: &Stream,
) -> Result<Option<Kind>, CuResult> {
    let in_graph = || {
        let capture = stream.captured()?;
        capture.graph.allocation_at(address)
    };
    match find(address).or_else(in_graph) {
        Some(range) if range.holds(address, bytes) => Ok(Some(range.kind)),
        Some(_) => Err(CuResult::InvalidValue),
        None if end == End::Any && address != 0 => Ok(None),
        None => Err(CuResult::InvalidValue),
    }
}

#[derive(Clone)]
struct Copy {
    dst: u64,
    src: u64,
    bytes: usize,
    /// What was at `src` at the time of the call, if that need not stay there.
    staged: Option<Arc<[u8]>>,
    short: bool,
}

impl Work for Copy {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(self.clone())
    }
}

impl Execution for Copy {
    fn start(self: Box<Self>, done: Done) {
        let src = match &self.staged {
            Some(staged) => staged.as_ptr(),
            None => pointer(self.src),
        };
        // SAFETY: both ends were in bounds at the call; until the stream has passed, they stay as
        // the caller of the copy vouches. They may overlap.
        unsafe { pointer(self.dst).copy_from(src, self.bytes) };
        done.finish(CuResult::Success);
    }

    fn is_short(&self) -> bool {
        self.short
    }
}

pub(super) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies in order with `stream`, the legacy one; returns before it is done only within device
/// memory.
pub(super) fn copy(
    stream: &Arc<Stream>,
    (dst, dst_end): (u64, End),
    (src, src_end): (u64, End),
    bytes: usize,
) -> Result<(), CuResult> {
    if bytes == 0 {
        return Ok(());
    }
    let dst_kind = check(dst, bytes, dst_end, stream)?;
    let src_kind = check(src, bytes, src_end, stream)?;
    let on_device = |kind: Option<Kind>| kind.is_some_and(Kind::is_device);
    let returns_early = on_device(dst_kind) && on_device(src_kind);
    let point = stream.push(Item::Run(Box::new(Copy {
        dst,
        src,
        bytes,
        staged: None,
        // The caller waits for it anyway.
        short: bytes <= SHORT || (!returns_early && stream.is_idle()),
    })));
    if !returns_early {
        point.wait();
        stream.context.check()?;
    }
    Ok(())
}

/// Enqueues a copy on `stream`.
pub(super) fn copy_async(
    stream: &Arc<Stream>,
    (dst, dst_end): (u64, End),
    (src, src_end): (u64, End),
    bytes: usize,
) -> Result<(), CuResult> {
    if bytes == 0 {
        return Ok(());
    }
    let dst_kind = check(dst, bytes, dst_end, stream)?;
    let src_kind = check(src, bytes, src_end, stream)?;
    let mut copy = Copy {
        dst,
        src,
        bytes,
        staged: None,
        short: bytes <= SHORT,
    };
    let all_known = dst_kind.is_some() && src_kind.is_some();
    if all_known || stream.captured().is_some() {
        return stream.submit(Arc::new(copy), Label::Copy);
    }
    // Ordinary memory may change once the call has returned, so the call waits, or keeps what there
    // is little of.
    if dst_kind.is_some() && bytes <= SHORT && !stream.is_idle() {
        // SAFETY: the caller vouches for the memory until the call returns.
        let source = unsafe { std::slice::from_raw_parts(pointer(src), bytes) };
        copy.staged = Some(source.into());
        return stream.submit(Arc::new(copy), Label::Copy);
    }
    stream.context.check()?;
    copy.short = true;
    stream.push(Item::Run(Box::new(copy))).wait();
    stream.context.check()
}

#[derive(Clone)]
struct Fill {
    dst: u64,
    value: Value,
    count: usize,
}

/// What a set writes over and over.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Byte(u8),
    Half(u16),
    Word(u32),
}

impl Value {
    fn size(self) -> usize {
        match self {
            Self::Byte(_) => 1,
            Self::Half(_) => 2,
            Self::Word(_) => 4,
        }
    }
}

impl Work for Fill {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(self.clone())
    }
}

impl Execution for Fill {
    fn start(self: Box<Self>, done: Done) {
        let dst = pointer(self.dst);
        // SAFETY: in bounds and aligned at the call, and until the stream has passed as its caller
        // vouches. Writing element by element needs no initialized memory.
        unsafe {
            match self.value {
                Value::Byte(value) => dst.write_bytes(value, self.count),
                Value::Half(value) => fill(dst.cast(), value, self.count),
                Value::Word(value) => fill(dst.cast(), value, self.count),
            }
        }
        done.finish(CuResult::Success);
    }

    fn is_short(&self) -> bool {
        self.count * self.value.size() <= SHORT
    }
}

/// # Safety
///
/// `dst` is aligned and has room for `count` values.
unsafe fn fill<T: std::marker::Copy>(dst: *mut T, value: T, count: usize) {
    for i in 0..count {
        // SAFETY: as the caller promises.
        unsafe { dst.add(i).write(value) };
    }
}

/// Enqueues a set on `stream`.
pub(super) fn fill_async(
    stream: &Arc<Stream>,
    dst: u64,
    value: Value,
    count: usize,
) -> Result<(), CuResult> {
    if count == 0 {
        return Ok(());
    }
    let bytes = count
        .checked_mul(value.size())
        .ok_or(CuResult::InvalidValue)?;
    if dst % value.size() as u64 != 0 {
        return Err(CuResult::InvalidValue);
    }
    check(dst, bytes, End::Known, stream)?;
    stream.submit(Arc::new(Fill { dst, value, count }), Label::Set)
}

/// An allocation in a graph. The memory is there from the capture on, but known only from a launch
/// to its release.
pub(super) struct GraphMemory {
    pub block: Arc<Block>,
    device: CuDevice,
    /// Whether the graph itself frees it.
    pub released: AtomicBool,
}

impl GraphMemory {
    pub(super) fn range(&self) -> Range {
        self.block.range(self.device, Kind::Device)
    }
}

/// The node that allocates.
struct Allocate(Arc<GraphMemory>);

impl Work for Allocate {
    fn issue(&self) -> Box<dyn Execution> {
        let memory = self.0.clone();
        let run = move || publish(&memory.block, memory.device, Kind::Device, true);
        if self.0.released.load(Ordering::Relaxed) {
            return Box::new(Short(Arc::new(run)));
        }
        // What the launch leaves is the program's at once.
        run();
        Box::new(Release(None))
    }
}

/// Enqueues an allocation, which is there at once; in a capture, as part of the graph.
pub(super) fn allocate_async(stream: &Arc<Stream>, size: usize) -> Result<u64, CuResult> {
    let device = stream.context.device;
    let block = Block::new(size, Some(device))?;
    let address = block.address();
    let Some(capture) = stream.captured() else {
        publish(&block, device, Kind::Device, true);
        return Ok(address);
    };
    let memory = Arc::new(GraphMemory {
        block,
        device,
        released: AtomicBool::new(false),
    });
    let work = Arc::new(Allocate(memory.clone()));
    capture.add(stream, work, Label::Allocation)?;
    capture.graph.allocated(memory);
    Ok(address)
}

/// Frees the piece at `address` once `stream` gets to this point; in a capture, what the graph
/// allocated, at each launch.
pub(super) fn release_async(address: u64, stream: &Arc<Stream>) -> Result<(), CuResult> {
    if let Some(capture) = stream.captured() {
        capture.check()?;
        let memory = capture.graph.released(address);
        let memory = memory.ok_or(CuResult::InvalidValue)?;
        let run = move || withdraw(&memory.block);
        return capture
            .add(stream, Arc::new(Short(Arc::new(run))), Label::Release)
            .map(drop);
    }
    let entry = take_out(address, Kind::is_device).ok_or(CuResult::InvalidValue)?;
    stream.push(Item::Run(Box::new(Release(entry.block))));
    Ok(())
}

/// Work for whatever thread comes.
pub(super) struct Short(pub Arc<dyn Fn() + Send + Sync>);

impl Work for Short {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(Short(self.0.clone()))
    }
}

impl Execution for Short {
    fn start(self: Box<Self>, done: Done) {
        (self.0)();
        done.finish(CuResult::Success);
    }

    fn is_short(&self) -> bool {
        true
    }
}

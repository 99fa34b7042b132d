//! Words in memory that streams wait for and write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::capture::Label;
use super::memory::{self, End, Short, pointer};
use super::stream::{self, Done, Execution, Stream, Work};
use crate::cuda::{
    CU_STREAM_WAIT_VALUE_AND, CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_FLUSH,
    CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_NOR, CU_STREAM_WRITE_VALUE_DEFAULT, CuDevicePtr,
    CuResult, CuStream,
};

/// The stream of a memory operation on a word, after the checks of the word.
fn word_stream(
    stream: CuStream,
    address: CuDevicePtr,
    size: usize,
) -> Result<Arc<Stream>, CuResult> {
    let stream = stream::resolve(stream)?;
    check_word(address, size, &stream)?;
    Ok(stream)
}

fn check_word(address: CuDevicePtr, size: usize, stream: &Stream) -> Result<(), CuResult> {
    if address % size as u64 != 0 {
        return Err(CuResult::InvalidValue);
    }
    memory::check(address, size, End::Known, stream).map(drop)
}

fn check_wait_flags(flags: u32) -> Result<(), CuResult> {
    let comparison = flags & !CU_STREAM_WAIT_VALUE_FLUSH;
    if comparison > CU_STREAM_WAIT_VALUE_NOR {
        return Err(CuResult::InvalidValue);
    }
    match flags == comparison {
        true => Ok(()),
        false => Err(CuResult::NotSupported),
    }
}

/// Enqueues a wait until the word at `address`, of `size` bytes, compares as `flags` says.
pub(super) fn wait_value(
    stream: CuStream,
    address: u64,
    value: u64,
    size: usize,
    flags: u32,
) -> Result<(), CuResult> {
    check_wait_flags(flags)?;
    let stream = word_stream(stream, address, size)?;
    submit_wait(&stream, address, value, size, flags)
}

fn submit_wait(
    stream: &Arc<Stream>,
    address: u64,
    value: u64,
    size: usize,
    flags: u32,
) -> Result<(), CuResult> {
    let wait = WaitForWord {
        address,
        value,
        size,
        comparison: flags,
    };
    stream.submit(Arc::new(wait), Label::Word)
}

/// Enqueues a write of the word at `address`, of `size` bytes.
pub(super) fn write_value(
    stream: CuStream,
    address: u64,
    value: u64,
    size: usize,
    flags: u32,
) -> Result<(), CuResult> {
    if flags != CU_STREAM_WRITE_VALUE_DEFAULT {
        return Err(CuResult::InvalidValue);
    }
    let stream = word_stream(stream, address, size)?;
    submit_write(&stream, address, value, size)
}

fn submit_write(
    stream: &Arc<Stream>,
    address: u64,
    value: u64,
    size: usize,
) -> Result<(), CuResult> {
    let write = move || write_word(address, value, size);
    stream.submit(Arc::new(Short(Arc::new(write))), Label::Word)
}

/// One entry of `cuStreamBatchMemOp_v2`: a union of structs that begin alike and have their fields
/// at the same places.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemOp {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    _rest: u64,
}

impl MemOp {
    const WAIT_32: u32 = 1;
    const WRITE_32: u32 = 2;
    const FLUSH: u32 = 3;
    const WAIT_64: u32 = 4;
    const WRITE_64: u32 = 5;
    const BARRIER: u32 = 6;

    fn size(&self) -> usize {
        match self.operation {
            Self::WAIT_32 | Self::WRITE_32 => 4,
            _ => 8,
        }
    }

    fn value(&self) -> u64 {
        match self.size() {
            4 => u64::from(self.value as u32),
            _ => self.value,
        }
    }

    pub(super) fn check(&self, stream: &Stream) -> Result<(), CuResult> {
        match self.operation {
            Self::WAIT_32 | Self::WAIT_64 => check_wait_flags(self.flags)?,
            Self::WRITE_32 | Self::WRITE_64 if self.flags == 0 => {}
            Self::FLUSH => return Err(CuResult::NotSupported),
            Self::BARRIER => return Ok(()),
            _ => return Err(CuResult::InvalidValue),
        }
        check_word(self.address, self.size(), stream)
    }

    pub(super) fn submit(&self, stream: &Arc<Stream>) -> Result<(), CuResult> {
        match self.operation {
            Self::WAIT_32 | Self::WAIT_64 => {
                submit_wait(stream, self.address, self.value(), self.size(), self.flags)
            }
            Self::WRITE_32 | Self::WRITE_64 => {
                submit_write(stream, self.address, self.value(), self.size())
            }
            // Streams do all in order here.
            _ => Ok(()),
        }
    }
}

/// Waits in the stream until a word in memory compares as asked.
#[derive(Clone)]
struct WaitForWord {
    address: u64,
    value: u64,
    /// 4 or 8.
    size: usize,
    /// One of `CU_STREAM_WAIT_VALUE_*`.
    comparison: u32,
}

impl WaitForWord {
    fn is_met(&self) -> bool {
        let word = read_word(self.address, self.size);
        // A short word counts with its own sign.
        let distance = match self.size {
            4 => i64::from((word as u32).wrapping_sub(self.value as u32) as i32),
            _ => word.wrapping_sub(self.value) as i64,
        };
        let clear_in_both = match self.size {
            4 => u64::from(!(word as u32 | self.value as u32)),
            _ => !(word | self.value),
        };
        match self.comparison {
            CU_STREAM_WAIT_VALUE_GEQ => distance >= 0,
            CU_STREAM_WAIT_VALUE_EQ => distance == 0,
            CU_STREAM_WAIT_VALUE_AND => word & self.value != 0,
            _ => clear_in_both != 0,
        }
    }
}

impl Work for WaitForWord {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(self.clone())
    }
}

impl Execution for WaitForWord {
    fn start(self: Box<Self>, done: Done) {
        if self.is_met() {
            return done.finish(CuResult::Success);
        }
        // A thread of its own: the stream's may be needed by the branch of a graph that writes the
        // word.
        let thread = std::thread::Builder::new().name("metrale wait".to_owned());
        let wait = move || {
            let failed = || {
                let stream = done.stream();
                stream.is_none_or(|stream| stream.context.failure() != CuResult::Success)
            };
            let mut pause = Duration::from_micros(10);
            while !self.is_met() && !failed() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
            }
            done.finish(CuResult::Success);
        };
        // Without a thread the closure is dropped, and `done` with it, which fails the context.
        let _ = thread.spawn(wait);
    }
}

fn read_word(address: u64, size: usize) -> u64 {
    // SAFETY: a known and aligned word at the call, and until the stream has passed as its caller
    // vouches.
    unsafe {
        match size {
            4 => u64::from(AtomicU32::from_ptr(pointer(address).cast()).load(Ordering::Acquire)),
            _ => AtomicU64::from_ptr(pointer(address).cast()).load(Ordering::Acquire),
        }
    }
}

fn write_word(address: u64, value: u64, size: usize) {
    // SAFETY: a known and aligned word at the call, and until the stream has passed as its caller
    // vouches.
    unsafe {
        match size {
            4 => {
                AtomicU32::from_ptr(pointer(address).cast()).store(value as u32, Ordering::Release)
            }
            _ => AtomicU64::from_ptr(pointer(address).cast()).store(value, Ordering::Release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_the_size_of_the_driver() {
        assert_eq!(size_of::<MemOp>(), 48);
    }

    #[test]
    fn words_compare_with_their_own_size_and_sign() {
        let met = |word: u64, value, size, comparison| {
            let address = (&raw const word).expose_provenance() as u64;
            WaitForWord {
                address,
                value,
                size,
                comparison,
            }
            .is_met()
        };
        let (top, all) = (0x8000_0000, u64::from(u32::MAX));
        for (word, value, size, comparison, expected) in [
            (5, 5, 4, CU_STREAM_WAIT_VALUE_GEQ, true),
            (4, 5, 4, CU_STREAM_WAIT_VALUE_GEQ, false),
            (2, all, 4, CU_STREAM_WAIT_VALUE_GEQ, true),
            (2, all, 8, CU_STREAM_WAIT_VALUE_GEQ, false),
            (top, 0, 4, CU_STREAM_WAIT_VALUE_GEQ, false),
            (top, 0, 8, CU_STREAM_WAIT_VALUE_GEQ, true),
            (1 << 40, 0, 4, CU_STREAM_WAIT_VALUE_EQ, true),
            (1 << 40, 0, 8, CU_STREAM_WAIT_VALUE_EQ, false),
            (6, 4, 4, CU_STREAM_WAIT_VALUE_AND, true),
            (6, 1, 4, CU_STREAM_WAIT_VALUE_AND, false),
            (all, 0, 4, CU_STREAM_WAIT_VALUE_NOR, false),
            (all, 0, 8, CU_STREAM_WAIT_VALUE_NOR, true),
        ] {
            let found = met(word, value, size, comparison);
            assert_eq!(found, expected, "{word:#x} {value:#x} {size} {comparison}");
        }
    }
}

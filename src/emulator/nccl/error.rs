//! What failed: codes, their texts, and the latest warning.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::param;
use crate::cuda::CuResult;
use crate::emulator::system;
use crate::nccl::NcclResult;

/// What a call comes to. An error is whatever it answers in place of `Success`, `InProgress`
/// included.
pub(super) type Outcome<T = ()> = Result<T, NcclResult>;

pub(super) const INVALID_ARGUMENT: NcclResult = NcclResult::InvalidArgument;
pub(super) const INVALID_USAGE: NcclResult = NcclResult::InvalidUsage;

/// Bytes of the latest warning, the last of them always zero.
const SIZE: usize = 1024;

/// The latest warning of the process. Atomic bytes, since a program may read it at any time.
static LATEST: [AtomicU8; SIZE] = [const { AtomicU8::new(0) }; SIZE];

/// Writes one warning at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// Locks what no panic leaves half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `text` the latest warning, and prints it where `NCCL_DEBUG` asks for warnings.
pub(super) fn warn(text: fmt::Arguments<'_>) {
    let mut line = String::new();
    let _ = line.write_fmt(text);
    remember(&line);
    if param::prints_warnings() {
        let _ = writeln!(
            std::io::stdout(),
            "metrale-gpu-sys emulator: NCCL WARN {line}"
        );
    }
}

/// Makes `line` the latest warning, if only again.
pub(super) fn remember(line: &str) {
    // In a fork it may be taken for ever.
    let _writing = (!system::is_fork()).then(|| lock(&WRITING));
    let bytes = line.bytes().take(SIZE - 1).chain([0]);
    for (place, byte) in LATEST.iter().zip(bytes) {
        place.store(byte, Relaxed);
    }
}

/// The answer `code`, once its reason has become the latest warning.
pub(super) fn refuse(code: NcclResult, reason: fmt::Arguments<'_>) -> NcclResult {
    warn(reason);
    code
}

/// The answer to a failure of the driver.
pub(super) fn cuda_failure(code: CuResult) -> NcclResult {
    let name = code.c_name().unwrap_or("an unknown code");
    refuse(
        NcclResult::UnhandledCudaError,
        format_args!("Cuda failure {} '{name}'", code.0),
    )
}

/// This process is not a fork of one that had used the emulator, whose locks may be taken for ever
/// here and whose threads are gone.
pub(super) fn refuse_fork(call: &str) -> Outcome {
    match system::is_fork() {
        true => Err(refuse(
            NcclResult::UnhandledCudaError,
            format_args!("{call} : this process was forked from one that had used the emulator"),
        )),
        false => Ok(()),
    }
}

/// `pointer` is not null.
pub(super) fn not_null<T>(pointer: *const T, call: &str, name: &str) -> Outcome {
    if pointer.is_null() {
        return Err(refuse(
            INVALID_ARGUMENT,
            format_args!("{call} : {name} argument is NULL"),
        ));
    }
    Ok(())
}

/// `ncclGetLastError`.
pub(super) fn latest() -> *const c_char {
    LATEST.as_ptr().cast()
}

/// `ncclGetErrorString`.
pub(super) fn text(code: NcclResult) -> &'static CStr {
    match code {
        NcclResult::Success => c"no error",
        NcclResult::UnhandledCudaError => {
            c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        }
        NcclResult::SystemError => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        NcclResult::InternalError => {
            c"internal error - please report this issue to the NCCL developers"
        }
        NcclResult::InvalidArgument => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        NcclResult::InvalidUsage => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        NcclResult::RemoteError => c"remote process exited or there was a network error",
        NcclResult::InProgress => c"NCCL operation in progress",
        NcclResult::Timeout => c"timeout",
        _ => c"unknown result code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_cut_to_what_the_buffer_holds() {
        warn(format_args!("{}", "x".repeat(5000)));
        assert_eq!(LATEST[SIZE - 1].load(Relaxed), 0);
        // SAFETY: the buffer lives for ever, and its last byte is zero.
        let text = unsafe { CStr::from_ptr(latest()) };
        assert!(text.to_bytes().len() < SIZE);
    }

    #[test]
    fn codes_that_are_not_listed_have_a_text() {
        for code in [-1, 9, 255] {
            assert_eq!(text(NcclResult(code)), c"unknown result code");
        }
    }
}

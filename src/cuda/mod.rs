//! The CUDA driver calls that a communication crate needs: `cuda.h`.
//!
//! Holds for every call, and is not repeated at each:
//!
//! - [`init`] comes first in a process; until then calls answer [`CuResult::NotInitialized`].
//! - Calls may come from any thread. The current context belongs to the thread.
//! - A call may return the failure of work that an earlier call enqueued.
//! - Stream 0 is the legacy default stream, which blocking streams wait for and which waits for them.

mod check;
mod device;
mod event;
mod ffi;
mod library;
mod memory;
mod stream;
mod types;

pub use check::*;
pub use device::*;
pub use event::*;
pub use ffi::*;
pub use library::*;
pub use memory::*;
pub use stream::*;
pub use types::*;

//! The CUDA driver calls that a communication crate needs: `cuda.h`.

mod check;
mod device;
mod event;
mod ffi;
mod memory;
mod stream;
mod types;

pub use check::*;
pub use device::*;
pub use event::*;
pub use ffi::*;
pub use memory::*;
pub use stream::*;
pub use types::*;

//! NCCL's host API: `nccl.h`.

mod check;
mod comm;
mod config;
mod ffi;
mod library;
mod types;

pub use check::*;
pub use comm::*;
pub use config::*;
pub use ffi::*;
pub use library::*;
pub use types::*;

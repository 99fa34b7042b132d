//! NVIDIA NCCL's host API and the CUDA driver calls that a communication crate needs: the C
//! functions under their own names, declared by hand, and thin wrappers that check the status.
//!
//! | module | holds |
//! |---|---|
//! | [`nccl`] | every function, type and constant of `nccl.h` (NCCL 2.32.3), [`check_nccl`](nccl::check_nccl), [`wait_ready`](nccl::wait_ready) |
//! | [`cuda`] | streams, events, memory, devices, contexts, kernels and graphs of `cuda.h`, [`check_cuda`](cuda::check_cuda) |
//!
//! ```no_run
//! use metrale_gpu_sys::{cuda, nccl::*};
//!
//! /// Sums `count` floats of device memory over all ranks, in place.
//! fn all_reduce(comm: NcclComm, buffer: cuda::CuDevicePtr, count: usize) -> anyhow::Result<()> {
//!     let stream = create_stream()?;
//!     let data = buffer as *mut std::ffi::c_void;
//!     // SAFETY: the communicator is live and the buffer holds `count` floats on its device.
//!     let result = unsafe {
//!         ncclAllReduce(data, data, count, NcclDataType::Float32, NcclRedOp::Sum, comm, stream)
//!     };
//!     check_nccl(result, "ncclAllReduce")?;
//!     sync_stream(stream)?;
//!     destroy_stream(stream);
//!     Ok(())
//! }
//! ```
//!
//! # Contract
//!
//! This is a `-sys` crate: nothing is checked but the status.
//!
//! - The C functions are `unsafe`. Each pointer must hold what the function's doc says, for as long
//!   as the call, or the work that it enqueued, uses it. Handles must be live: the driver crashes on
//!   a stream or an event that was destroyed, and NCCL on a communicator.
//! - The stream and event wrappers take plain `u64` handles and are safe functions, because code
//!   exists that calls them so. The same holds for them: a handle is live and comes from the calls
//!   of this crate or of any other binding of the same driver.
//! - Every thread needs a current context before most driver calls: [`cuda::use_device`] is one call
//!   for that.
//! - A communicator is used by one thread at a time, except that another may abort it.
//! - A code that this crate does not list is a value like any other. Libraries newer than this crate
//!   return such codes.
//!
//! # Which release a function needs
//!
//! A doc that ends with `Since NCCL 2.27.` names the first release that has the item; whatever says
//! nothing is in every release that this crate supports, 2.18 and later. A program is bound to the
//! functions that it calls, and to no others: one that calls a newer function than its library has
//! does not start. [`nccl::has_function`] tells what the loaded one has.
//!
//! # How the libraries are found
//!
//! At build time, `NCCL_HOME` and `CUDA_PATH`, then the usual places of the system, then import stubs
//! with which everything builds and every call fails with a sentence. [`BUILD_REPORT`] says what was
//! found and where it was looked for; [`nccl::loaded_library`] and [`cuda::loaded_library`] say what
//! is loaded now. The README has the details.

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "metrale-gpu-sys needs a 64-bit target: CUDA supports no other, and handles are declared as u64"
);

mod bind;
pub mod cuda;
pub mod nccl;

pub use bind::LoadedLibrary;

/// How the functions of this crate are bound to the libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// By the dynamic linker, against `libnccl.so.2` and `libcuda.so.1`.
    Linked,
}

/// The binding that this crate was compiled with.
pub const BINDING: Binding = Binding::Linked;

/// What the build script found, and where it looked: lines of plain text for a bug report.
pub const BUILD_REPORT: &str = include_str!(concat!(env!("OUT_DIR"), "/build_report.txt"));

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

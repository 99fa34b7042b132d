//! NVIDIA NCCL's host API and the CUDA driver calls that a communication crate needs: the C
//! functions under their own names, declared by hand, and thin wrappers that check the status.
//!
//! | module | holds |
//! |---|---|
//! | [`nccl`] | every function, type and constant of `nccl.h` (NCCL 2.32.3), [`check_nccl`](nccl::check_nccl), [`wait_ready`](nccl::wait_ready) |
//! | [`cuda`] | streams, events, memory, devices, contexts, kernels and graphs of `cuda.h`, [`check_cuda`](cuda::check_cuda) |
//!
//! The README shows a whole blocking reduction. A communicator that never keeps the host waiting, so
//! that a peer which does not come ends in an error:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use metrale_gpu_sys::{cuda, nccl::*};
//!
//! /// Joins as one of `nranks` ranks, each on its own device, or gives up after a minute.
//! fn join(id: NcclUniqueId, rank: i32, nranks: i32) -> anyhow::Result<NcclComm> {
//!     cuda::use_device(rank)?;
//!     let mut comm: NcclComm = std::ptr::null_mut();
//!     let config = NcclConfig::non_blocking();
//!     // SAFETY: `comm` takes one communicator, and the config is initialised.
//!     let result = unsafe { ncclCommInitRankConfig(&mut comm, nranks, id, rank, &config) };
//!     check_started(result, "ncclCommInitRankConfig")?;
//!     // SAFETY: the communicator is live, and only this thread knows it.
//!     unsafe {
//!         wait_ready(comm, Duration::from_secs(60)).inspect_err(|_| {
//!             ncclCommAbort(comm);
//!         })?;
//!     }
//!     Ok(comm)
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
//! - The stream, event and context wrappers are safe functions on plain handles, by choice: code exists
//!   that calls them so. A dead handle, or one of another kind (all are `u64`, and the compiler tells
//!   none from another), crashes the process there too.
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
//! functions that it calls, and to no others: with a library that lacks one of these it does not link,
//! or does not start. With the feature `dlopen` it does, and such a call answers
//! [`NotInThisVersion`](nccl::NcclResult::NotInThisVersion). [`nccl::has_function`] tells what the loaded one has.
//!
//! # How the libraries are found
//!
//! At build time, `NCCL_HOME` and `CUDA_PATH`, then the usual places of the system, then import stubs
//! with which everything builds and every call fails with a sentence. [`BUILD_REPORT`] says what was
//! found and where it was looked for; [`nccl::loaded_library`] and [`cuda::loaded_library`] say what
//! is loaded now.
//!
//! With the feature `dlopen` nothing is linked. The first call opens the library: below `NCCL_HOME` or
//! `CUDA_PATH` as they are then, or as the copy that the process has already, or where the dynamic loader finds
//! it. Where there is none, calls answer [`NotLoaded`](nccl::NcclResult::NotLoaded), and the check's
//! error says what was tried. [`nccl::is_available`] asks beforehand, and [`nccl::load`] names a file.
//! The first call may come from several threads at once, before `main`, and in a child of `fork`; only a
//! child that was forked while another thread was in it should not call, since the dynamic loader may be in the
//! middle of it.
//!
//! With the feature `emulator` none of this matters: the crate itself provides the
//! functions, on host memory, for tests on machines without a GPU. The README has the details.

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "metrale-gpu-sys needs a 64-bit target: CUDA supports no other, and handles are declared as u64"
);

mod bind;
pub mod cuda;
#[cfg(dlopen)]
mod dlopen;
#[cfg(feature = "emulator")]
pub mod emulator;
#[cfg(dlopen)]
mod files;
mod loaded;
pub mod nccl;

pub use loaded::LoadedLibrary;

/// How the functions of this crate are bound to the libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// By the dynamic linker, against `libnccl.so.2` and `libcuda.so.1`.
    Linked,
    /// By this crate at run time, with the first call: feature `dlopen`.
    Dlopen,
    /// By this crate itself, on host memory: feature `emulator`.
    Emulated,
}

/// The binding that this crate was compiled with.
pub const BINDING: Binding = if cfg!(feature = "emulator") {
    Binding::Emulated
} else if cfg!(feature = "dlopen") {
    Binding::Dlopen
} else {
    Binding::Linked
};

/// What the build script found, and where it looked: lines of plain text for a bug report.
pub const BUILD_REPORT: &str = include_str!(concat!(env!("OUT_DIR"), "/build_report.txt"));

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Which libnccl answers.

use std::path::Path;
#[cfg(dlopen)]
use std::ptr::null_mut;
#[cfg(dlopen)]
use std::sync::atomic::AtomicPtr;

#[cfg(dlopen)]
use crate::dlopen::{Absent, Library, Why};
use crate::loaded::{self, Function, LoadedLibrary};
#[cfg(dlopen)]
use crate::nccl::SINCE;
#[cfg(not(dlopen))]
use crate::nccl::ncclGetErrorString;
use crate::nccl::{FUNCTIONS, NcclResult, ncclGetVersion};

/// Whether libnccl answers at all: false where it could not be opened, and where a stub stands in for it.
///
/// For a program that does without GPUs where there are none. [`version`](crate::nccl::version) tells the
/// reason.
pub fn is_available() -> bool {
    let mut version = 0;
    // SAFETY: `version` takes one int.
    let result = unsafe { ncclGetVersion(&mut version) };
    !matches!(result, NcclResult::NotLoaded | NcclResult::SystemError)
}

/// Has libnccl opened from `file`, for all calls of this process, and nothing searched for. A name without a
/// slash is one for the dynamic loader's own search.
///
/// Comes before the first call. An error if the file is no libnccl that the loader takes, if another
/// one is open already, and in every binding but [`Binding::Dlopen`](crate::Binding::Dlopen).
pub fn load(file: impl AsRef<Path>) -> anyhow::Result<()> {
    let file = file.as_ref();
    #[cfg(dlopen)]
    let result = LIBRARY.load(file);
    #[cfg(not(dlopen))]
    let result = loaded::cannot_load(file);
    result.map_err(|why| anyhow::anyhow!("nccl::load: {why}"))
}

/// Which file libnccl comes from in this process, and every other mapped file that brings its
/// functions; `None` where nothing in this process needs it, or it could not be opened.
pub fn loaded_library() -> Option<LoadedLibrary> {
    loaded::loaded_library(&function()?)
}

/// Whether the loaded libnccl has the function of this C name.
///
/// With the feature `dlopen` a call of a function that is lacking answers
/// [`NotInThisVersion`](NcclResult::NotInThisVersion). A linked program that mentions one does not start, and
/// this is for messages only. An import stub has every function, and fails in each.
pub fn has_function(name: &str) -> bool {
    #[cfg(dlopen)]
    if FUNCTIONS.contains(&name) {
        return !LIBRARY.address(name).is_null();
    }
    function().is_some_and(|function| loaded::has_function(&function, FUNCTIONS, name))
}

/// A function by which the library is found.
fn function() -> Option<Function> {
    #[cfg(dlopen)]
    return LIBRARY.any_function();
    // One that every error's text needs anyway.
    #[cfg(not(dlopen))]
    Some(Function {
        address: ncclGetErrorString as *const std::ffi::c_void,
        name: "ncclGetErrorString",
    })
}

/// How the library is opened.
#[cfg(dlopen)]
pub(crate) static LIBRARY: Library = Library {
    name: "NCCL",
    soname: c"libnccl.so.2",
    variable: "NCCL_HOME",
    strict: true,
    place: None,
    functions: FUNCTIONS,
    since: SINCE,
    opened: AtomicPtr::new(null_mut()),
};

#[cfg(dlopen)]
impl Absent for NcclResult {
    fn absent(why: Why) -> Self {
        match why {
            Why::NotLoaded => Self::NotLoaded,
            Why::NotInThisVersion => Self::NotInThisVersion,
        }
    }
}

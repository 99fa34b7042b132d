//! From a code to an error that says what happened.

use std::fmt;

use crate::bind;
#[cfg(dlopen)]
use crate::dlopen::Why;
use crate::loaded::LoadedLibrary;
#[cfg(dlopen)]
use crate::nccl::{LIBRARY, NcclVersion, ncclGetVersion};
use crate::nccl::{NcclResult, loaded_library, ncclGetErrorString, ncclGetLastError};

/// Ok for [`NcclResult::Success`], else an [`NcclError`] that names `context`: by habit the C name
/// of the call.
///
/// One compare where nothing failed; the error is built out of line. [`NcclResult::InProgress`] is
/// an error here: a call on a non-blocking communicator is checked by [`check_started`].
#[inline]
pub fn check_nccl(result: NcclResult, context: &str) -> anyhow::Result<()> {
    if result == NcclResult::Success {
        Ok(())
    } else {
        Err(failure(result, context))
    }
}

/// [`check_nccl`] for a call on a non-blocking communicator: [`NcclResult::InProgress`] is Ok too,
/// since it says that the call was taken and goes on in the background. Follow it with
/// [`wait_ready`](crate::nccl::wait_ready).
#[inline]
pub fn check_started(result: NcclResult, context: &str) -> anyhow::Result<()> {
    if result == NcclResult::InProgress {
        return Ok(());
    }
    check_nccl(result, context)
}

/// A call to NCCL that failed. It travels inside an [`anyhow::Error`]: `downcast_ref` finds it, and
/// its code can be matched on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclError {
    /// What the call returned.
    pub code: NcclResult,
    /// The call, as [`check_nccl`] was told.
    pub context: String,
    /// NCCL's own text for the code (`ncclGetErrorString`), if it has one. For the codes of this crate, why
    /// the call could not be made.
    pub text: Option<String>,
    /// The latest warning of this process (`ncclGetLastError`), usually the cause. NCCL never clears
    /// it and does not write one for every failure, so it can be older than this call.
    pub last_error: Option<String>,
    /// Which libnccl answered, and whether another copy is mapped into the process.
    pub library: Option<LoadedLibrary>,
}

#[cold]
#[inline(never)]
fn failure(code: NcclResult, context: &str) -> anyhow::Error {
    NcclError::new(code, context.to_owned()).into()
}

impl NcclError {
    /// Asks NCCL what it has to say about `code`.
    pub(super) fn new(code: NcclResult, context: String) -> Self {
        if is_own(code) {
            return Self {
                code,
                text: own_text(code, &context),
                context,
                last_error: None,
                library: loaded_library(),
            };
        }
        // SAFETY: any code may be asked for, the communicator is ignored, and both answers are null
        // or strings that live as long as the library.
        let (text, last_error) = unsafe {
            (
                bind::text(ncclGetErrorString(code)),
                bind::text(ncclGetLastError(std::ptr::null_mut())),
            )
        };
        Self {
            code,
            context,
            text: text.filter(|text| !text.is_empty()),
            last_error: last_error.filter(|text| !text.is_empty()),
            library: loaded_library(),
        }
    }

    /// What to do about the failures that have one usual cause.
    fn hint(&self) -> Option<&'static str> {
        match self.code {
            NcclResult::InProgress => {
                return Some(
                    "the communicator is still busy, perhaps for want of a peer: wait with nccl::wait_ready, or \
                     end it with ncclCommAbort",
                );
            }
            NcclResult::RemoteError => {
                return Some(
                    "a peer exited or its network failed: the first cause stands in another rank's log",
                );
            }
            // The latest message may stem from another call; with this code it is about CUDA.
            NcclResult::UnhandledCudaError => {}
            NcclResult::NotLoaded if self.library.is_none() => {
                return Some(
                    "install NCCL, or set NCCL_HOME to the folder above its lib, or name the file by nccl::load",
                );
            }
            _ => return None,
        }
        let said = self.last_error.as_deref().unwrap_or_default();
        let known = [
            (
                "driver version is insufficient",
                "the driver is missing or older than this NCCL's CUDA release: look at nvidia-smi, and in \
                 a container at its GPU access",
            ),
            (
                "stub library",
                "a stub of libcuda is loaded instead of the driver's: keep stubs folders out of LD_LIBRARY_PATH",
            ),
            (
                "no CUDA-capable device",
                "the driver sees no GPU: look at nvidia-smi, CUDA_VISIBLE_DEVICES and the container's GPU access",
            ),
        ];
        known
            .into_iter()
            .find(|(sign, _)| said.contains(sign))
            .map(|(_, hint)| hint)
    }
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.context)?;
        if let Some(text) = &self.text {
            write!(f, "{text}: ")?;
        }
        match self.code.c_name() {
            _ if is_own(self.code) => write!(f, "{:?} ({})", self.code, self.code.0)?,
            Some(name) => write!(f, "{name} ({})", self.code.0)?,
            None => write!(f, "code {}, not listed in nccl.h", self.code.0)?,
        }
        if let Some(last) = &self.last_error {
            write!(f, "; NCCL's latest message, which may be older: {last}")?;
        }
        if let Some(hint) = self.hint() {
            write!(f, "; {hint}")?;
        }
        if let Some(library) = &self.library {
            for other in &library.others {
                write!(
                    f,
                    "; two copies of NCCL are mapped, {} answered and {} is the other: keep one",
                    library.path.display(),
                    other.display()
                )?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NcclError {}

fn is_own(code: NcclResult) -> bool {
    matches!(code, NcclResult::NotLoaded | NcclResult::NotInThisVersion)
}

/// Why a call could not be made, for the codes that NCCL does not know.
#[cfg(dlopen)]
fn own_text(code: NcclResult, context: &str) -> Option<String> {
    let why = match code {
        NcclResult::NotLoaded => Why::NotLoaded,
        _ => Why::NotInThisVersion,
    };
    let mut release = 0;
    // SAFETY: `release` takes one int, and stays 0 where there is no such function.
    let _ = unsafe { ncclGetVersion(&mut release) };
    let NcclVersion {
        major,
        minor,
        patch,
    } = NcclVersion::from_code(release);
    Some(LIBRARY.explain(why, context, [major, minor, patch]))
}

#[cfg(not(dlopen))]
fn own_text(_: NcclResult, _: &str) -> Option<String> {
    None
}

//! From a driver code to an error that says what happened.

use std::fmt;
use std::path::PathBuf;

use crate::bind;
use crate::cuda::{CuResult, cuGetErrorString, loaded_library};
#[cfg(dlopen)]
use crate::cuda::{LIBRARY, cuDriverGetVersion};
#[cfg(dlopen)]
use crate::dlopen::Why;

/// Ok for [`CuResult::Success`], else a [`CudaError`] that names `context`: by habit the C name of
/// the call.
///
/// One compare where nothing failed; the error is built out of line. A driver call may also return
/// the failure of asynchronous work that an earlier call enqueued.
#[inline]
pub fn check_cuda(result: CuResult, context: &str) -> anyhow::Result<()> {
    if result == CuResult::Success {
        Ok(())
    } else {
        Err(failure(result, context))
    }
}

/// A driver call that failed. It travels inside an [`anyhow::Error`]: `downcast_ref` finds it, and
/// its code can be matched on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaError {
    /// What the call returned.
    pub code: CuResult,
    /// The call, as [`check_cuda`] was told.
    pub context: String,
    /// The driver's own text for the code (`cuGetErrorString`), if it has one. For the codes of this crate,
    /// why the call could not be made.
    pub text: Option<String>,
    /// The file that libcuda was loaded from.
    pub library: Option<PathBuf>,
}

#[cold]
#[inline(never)]
fn failure(code: CuResult, context: &str) -> anyhow::Error {
    let text = if is_own(code) {
        own_text(code, context)
    } else {
        let mut text = std::ptr::null();
        // SAFETY: `text` is written with null or a string that lives as long as the library.
        unsafe {
            let _ = cuGetErrorString(code, &mut text);
            bind::text(text).filter(|text| !text.is_empty())
        }
    };
    CudaError {
        code,
        context: context.to_owned(),
        text,
        library: loaded_library().map(|library| library.path),
    }
    .into()
}

impl CudaError {
    fn says(&self, sign: &str) -> bool {
        self.text.as_deref().is_some_and(|text| text.contains(sign))
    }

    /// What to do about the codes that have one usual cause.
    fn hint(&self) -> Option<&'static str> {
        Some(match self.code {
            CuResult::NotLoaded if self.library.is_none() => {
                "install the NVIDIA driver, or start the container with access to the GPU"
            }
            CuResult::NotInitialized => "call cuda::init or cuda::use_device first",
            // The stub of this crate's build script explains itself.
            CuResult::StubLibrary if self.says("import stub") => return None,
            CuResult::StubLibrary => {
                "this is a stub without a driver behind it: install the NVIDIA driver, start containers with \
                 GPU access, and keep stubs folders out of LD_LIBRARY_PATH"
            }
            CuResult::NoDevice => {
                "the driver sees no GPU: look at nvidia-smi, CUDA_VISIBLE_DEVICES and the container's GPU access"
            }
            CuResult::InvalidDevice => {
                "device ordinals go from 0 to one below cuda::device_count, as CUDA_VISIBLE_DEVICES leaves them"
            }
            CuResult::InvalidContext => {
                "no context is current on this thread: call cuda::use_device or cuda::set_current_context"
            }
            CuResult::IllegalAddress | CuResult::LaunchFailed => {
                "the context is lost and answers every call with this code; restart the process"
            }
            CuResult::NotPermitted => "host functions and stream captures may not make this call",
            CuResult::SystemNotReady => {
                "on NVSwitch machines nvidia-fabricmanager must be running and match the driver"
            }
            CuResult::SystemDriverMismatch => {
                "the kernel module and libcuda are of different driver releases: reload the module or reboot"
            }
            CuResult::CompatNotSupportedOnDevice => {
                "a forward-compatibility libcuda is loaded that this GPU does not take: drop the cuda-compat \
                 folder from LD_LIBRARY_PATH"
            }
            CuResult::Unknown => {
                "often the driver was replaced under a running system, or /dev/nvidia-uvm is missing: try \
                 nvidia-smi, then a reboot"
            }
            // Not an enumerator of the driver's header: the runtime's number, which some libcuda return.
            CuResult(35) => {
                "the driver is older than the CUDA release that asks: update the driver"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.context)?;
        if let Some(text) = &self.text {
            write!(f, "{text}: ")?;
        }
        match self.code.c_name() {
            _ if is_own(self.code) => write!(f, "{:?} ({})", self.code, self.code.0)?,
            Some(name) => write!(f, "{name} ({})", self.code.0)?,
            None => write!(f, "code {}, not listed in cuda.h", self.code.0)?,
        }
        let hint = self.hint();
        if let Some(hint) = hint {
            write!(f, "; {hint}")?;
        }
        if hint.is_some() || self.code == CuResult::StubLibrary {
            if let Some(library) = &self.library {
                write!(f, " (libcuda in use: {})", library.display())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for CudaError {}

fn is_own(code: CuResult) -> bool {
    matches!(code, CuResult::NotLoaded | CuResult::NotInThisVersion)
}

/// Why a call could not be made, for the codes that the driver does not know.
#[cfg(dlopen)]
fn own_text(code: CuResult, context: &str) -> Option<String> {
    let why = match code {
        CuResult::NotLoaded => Why::NotLoaded,
        _ => Why::NotInThisVersion,
    };
    let mut release = 0;
    // SAFETY: `release` takes one int, and stays 0 where there is no such function.
    let _ = unsafe { cuDriverGetVersion(&mut release) };
    Some(LIBRARY.explain(why, context, [release / 1000, release % 1000 / 10, 0]))
}

#[cfg(not(dlopen))]
fn own_text(_: CuResult, _: &str) -> Option<String> {
    None
}

//! Tests that need something which this machine may lack: reported by name as ignored, with the reason.

#![allow(dead_code)]

use libtest_mimic::{Completion, Failed, Trial};
use metrale_gpu_sys::cuda::CudaError;
use metrale_gpu_sys::nccl::NcclError;

/// A test that runs where `need` is met, and is otherwise ignored with `need`'s reason.
pub fn trial(
    name: &str,
    need: &Result<(), String>,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let need = need.clone();
    Trial::ignorable_test(name, move || match need {
        Ok(()) => test()
            .map(|()| Completion::Completed)
            .map_err(|error| Failed::from(format!("{error:#}"))),
        Err(reason) => Ok(Completion::ignored_with(reason)),
    })
}

/// The call and the code of an error: it stands beside a thousand names.
pub fn short(error: &anyhow::Error) -> String {
    if let Some(error) = error.downcast_ref::<CudaError>() {
        return format!("{} answers {:?}", error.context, error.code);
    }
    match error.downcast_ref::<NcclError>() {
        Some(error) => format!("{} answers {:?}", error.context, error.code),
        None => error.to_string(),
    }
}

//! A communicator that knows when it is ready, and ends with its owner.

use metrale_gpu_sys::nccl::*;

/// A communicator that is aborted wherever it is not closed: whoever closes it takes it out first.
pub struct Comm(pub NcclComm);

impl Comm {
    /// Whether it has done what it was last asked to; an error if it failed.
    pub fn ready(&self) -> anyhow::Result<bool> {
        let mut state = NcclResult::Success;
        // SAFETY: the communicator is live and this thread's own, and `state` takes one code.
        let asked = unsafe { ncclCommGetAsyncError(self.0, &mut state) };
        check_nccl(asked, "ncclCommGetAsyncError")?;
        check_started(state, "the communicator")?;
        Ok(state == NcclResult::Success)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: null, or a communicator in whatever state that nothing uses afterwards.
        unsafe { ncclCommAbort(self.0) };
    }
}

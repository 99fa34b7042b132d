//! Streams that are held until the case lets go: what makes "pending" certain without waiting.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use metrale_gpu_sys::cuda::{CuResult, CuStream};

use crate::calls::cuLaunchHostFunc;
use crate::expect;

/// Holds a stream; opens at the latest when it is dropped.
pub struct Latch(Arc<State>);

#[derive(Default)]
struct State {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    /// Nothing that `stream` gets from now on begins before [`Latch::open`].
    pub fn hold(stream: CuStream) -> Result<Self> {
        let latch = Self(Arc::default());
        let state = Arc::into_raw(latch.0.clone());
        expect!(
            cuLaunchHostFunc(stream, Some(wait), state as *mut c_void),
            CuResult::Success
        );
        Ok(latch)
    }

    pub fn open(self) {}
}

impl Drop for Latch {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.opened.notify_all();
    }
}

/// # Safety
///
/// `state` came from `Arc::into_raw` and is used once.
unsafe extern "C" fn wait(state: *mut c_void) {
    // SAFETY: as above.
    let state = unsafe { Arc::from_raw(state.cast::<State>()) };
    let open = state.open.lock().unwrap_or_else(PoisonError::into_inner);
    // A case that hangs with its latch closed is to end all the same.
    let _ = state
        .opened
        .wait_timeout_while(open, Duration::from_secs(30), |open| !*open);
}

//! Ends the process when a call into NCCL or the driver does not come back, as it may after a peer has died.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much longer than its own deadline a call may take, and how long the end may.
const GRACE: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub struct Watchdog(Arc<Mutex<Limit>>);

struct Limit {
    doing: &'static str,
    end: Instant,
    /// Once the process has begun to end, nothing may take longer than this.
    last: Option<Instant>,
}

impl Watchdog {
    /// Starts a thread that ends the process with code 1 and a sentence that begins with `who`, once what was
    /// announced last takes `GRACE` longer than was announced.
    pub fn start(who: String) -> std::io::Result<Self> {
        let limit = Limit {
            doing: "starting",
            end: Instant::now(),
            last: None,
        };
        let watchdog = Self(Arc::new(Mutex::new(limit)));
        let watched = watchdog.clone();
        thread::Builder::new().spawn(move || {
            loop {
                thread::sleep(PERIOD);
                let limit = watched.limit();
                let end = limit.end + GRACE;
                if Instant::now() > limit.last.map_or(end, |last| last.min(end)) {
                    eprintln!(
                        "multi_process: {who}: still {}, in a call that does not come back: ending the process",
                        limit.doing
                    );
                    end_now();
                }
            }
        })?;
        Ok(watchdog)
    }

    /// Announces what is done next, and how long it may take.
    pub fn allow(&self, doing: &'static str, time: Duration) {
        let mut limit = self.limit();
        limit.doing = doing;
        limit.end = Instant::now() + time;
    }

    /// Announces that the process is about to end, whatever it is doing.
    pub fn hurry(&self) {
        self.limit().last.get_or_insert(Instant::now() + GRACE);
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the process at once. `exit` would first run what the libraries left to be done, which can hang as well.
fn end_now() -> ! {
    unsafe extern "C" {
        fn _exit(code: std::ffi::c_int) -> !;
    }
    // SAFETY: takes no pointer, and nothing of the process runs afterwards.
    unsafe { _exit(1) }
}

//! Threads for work that is worth spreading over the cores.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use super::{lock, wait};

/// One call of [`spread`].
struct Job {
    part: *const (dyn Fn(usize) + Sync),
    parts: usize,
    /// The next part that nobody has taken.
    next: AtomicUsize,
    state: Mutex<State>,
    finished: Condvar,
}

struct State {
    left: usize,
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: `part` may be called from any thread at once, being Sync; that it is alive then is
// `run`'s matter.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Runs parts until all are taken.
    fn run(&self) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.parts {
                return;
            }
            // SAFETY: part `i` is not done, so `spread` has not returned and what it borrows is
            // alive.
            let part = unsafe { &*self.part };
            let panic = catch_unwind(AssertUnwindSafe(|| part(i))).err();
            let mut state = lock(&self.state);
            state.left -= 1;
            if panic.is_some() {
                state.panic = panic;
            }
            if state.left == 0 {
                self.finished.notify_one();
            }
        }
    }

    fn all_taken(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.parts
    }
}

struct Pool {
    jobs: Mutex<VecDeque<Arc<Job>>>,
    more: Condvar,
    threads: usize,
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let pool = POOL.get_or_init(|| Pool {
        jobs: Mutex::default(),
        more: Condvar::new(),
        threads: std::thread::available_parallelism().map_or(1, |cores| cores.get() - 1),
    });
    STARTED.get_or_init(|| {
        for _ in 0..pool.threads {
            // Without a thread, the callers do all the work themselves.
            let thread = std::thread::Builder::new().name("metrale pool".to_owned());
            let _ = thread.spawn(move || work(pool));
        }
    });
    pool
}

fn work(pool: &Pool) {
    loop {
        let job = {
            let mut jobs = lock(&pool.jobs);
            loop {
                while jobs.front().is_some_and(|job| job.all_taken()) {
                    jobs.pop_front();
                }
                if let Some(job) = jobs.front() {
                    break job.clone();
                }
                jobs = wait(&pool.more, jobs);
            }
        };
        job.run();
    }
}

/// Runs `part(0)` to `part(parts - 1)`, each once, on as many threads as there are cores, the
/// caller's included, and returns when all are done. Several callers share the threads. A part must
/// not wait for another.
pub(in crate::emulator) fn spread(parts: usize, part: &(dyn Fn(usize) + Sync)) {
    if parts < 2 || pool().threads == 0 {
        (0..parts).for_each(part);
        return;
    }
    let pool = pool();
    let part: *const (dyn Fn(usize) + Sync + '_) = part;
    // SAFETY: only the lifetime changes. Nobody calls it after this function has returned: see
    // `Job::run`.
    let part = unsafe {
        std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
            part,
        )
    };
    let job = Arc::new(Job {
        part,
        parts,
        next: AtomicUsize::new(0),
        state: Mutex::new(State {
            left: parts,
            panic: None,
        }),
        finished: Condvar::new(),
    });
    lock(&pool.jobs).push_back(job.clone());
    for _ in 0..pool.threads.min(parts - 1) {
        pool.more.notify_one();
    }
    job.run();
    let mut state = lock(&job.state);
    while state.left > 0 {
        state = wait(&job.finished, state);
    }
    let panic = state.panic.take();
    drop(state);
    // A worker takes it out when it passes; until then it would keep the list from being short.
    lock(&pool.jobs).retain(|other| !Arc::ptr_eq(other, &job));
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_part_runs_once() {
        for parts in [0, 1, 2, 3, 100] {
            let runs: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
            spread(parts, &|i| {
                runs[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn many_callers_share_the_threads() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let sum = AtomicUsize::new(0);
                        spread(5, &|i| {
                            sum.fetch_add(i + 1, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 15);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_comes_back_to_the_caller() {
        let caught = catch_unwind(|| spread(4, &|i| assert_ne!(i, 2)));
        assert!(caught.is_err());
    }
}

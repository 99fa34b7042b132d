//! Work that goes on beside the caller: several jobs of a group at once, and all that a
//! non-blocking communicator does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::comm::Flag;
use super::error::{Outcome, lock};
use crate::nccl::NcclResult;

type Task = Box<dyn FnOnce() + Send>;

/// Threads that wait for their next task. They live as long as the process; there are as many as
/// were busy at once.
static IDLE: Mutex<Vec<Sender<Task>>> = Mutex::new(Vec::new());

/// Runs `task` on a thread of its own. Gives it back if there can be none.
fn spawn(task: Task) -> Result<(), Task> {
    let idle = lock(&IDLE).pop();
    let task = match idle {
        None => task,
        // The thread is there as long as its sender.
        Some(thread) => return thread.send(task).map_err(|unsent| unsent.0),
    };
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("emulated nccl".to_owned());
    let own = sender.clone();
    match thread.spawn(move || serve(&own, &receiver)) {
        Ok(_) => sender.send(task).map_err(|unsent| unsent.0),
        Err(_) => Err(task),
    }
}

fn serve(own: &Sender<Task>, tasks: &Receiver<Task>) {
    while let Ok(task) = tasks.recv() {
        // The panic has been printed; whoever waits for the task is told by what it drops.
        let _ = catch_unwind(AssertUnwindSafe(task));
        lock(&IDLE).push(own.clone());
    }
}

/// Runs `task` beside the caller, or before it returns where there can be no thread.
pub(super) fn background(task: impl FnOnce() + Send + 'static) {
    if let Err(task) = spawn(Box::new(task)) {
        task();
    }
}

/// One communicator's part of a group, run beside the others' parts.
pub(super) struct Job {
    /// What ends its waiting; none for one that ends a communicator itself.
    pub(super) flag: Option<Arc<Flag>>,
    pub(super) run: Box<dyn FnOnce() -> Outcome + Send>,
}

/// The jobs of one group, which are ended together: where one fails, and by an abort of a
/// communicator among them.
#[derive(Default)]
pub(super) struct Batch {
    state: Mutex<BatchState>,
}

#[derive(Default)]
struct BatchState {
    ended: bool,
    flags: Vec<Arc<Flag>>,
}

impl Batch {
    fn take_in(&self, flag: &Arc<Flag>) {
        let mut state = lock(&self.state);
        state.flags.push(flag.clone());
        let ended = state.ended;
        drop(state);
        if ended {
            flag.raise();
        }
    }

    /// Ends the waiting of all jobs, also of those to come.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let flags = std::mem::take(&mut state.flags);
        drop(state);
        for flag in flags {
            flag.raise();
        }
    }

    /// Runs jobs, each on a thread of its own, a single one on the caller's. The first failure ends
    /// the others, and is the outcome.
    pub(super) fn run(self: &Arc<Self>, mut jobs: Vec<Job>) -> Outcome {
        for flag in jobs.iter().filter_map(|job| job.flag.as_ref()) {
            self.take_in(flag);
        }
        let outcome = match jobs.len() {
            0 => Ok(()),
            1 => guarded(jobs.remove(0).run),
            _ => self.run_beside(jobs),
        };
        lock(&self.state).flags.clear();
        outcome
    }

    fn run_beside(self: &Arc<Self>, jobs: Vec<Job>) -> Outcome {
        struct Progress {
            left: usize,
            outcome: Outcome,
        }
        let progress = Progress {
            left: jobs.len(),
            outcome: Ok(()),
        };
        let shared = Arc::new((Mutex::new(progress), Condvar::new()));
        for job in jobs {
            let (batch, shared) = (self.clone(), shared.clone());
            background(move || {
                let outcome = guarded(job.run);
                let mut progress = lock(&shared.0);
                let first = outcome.is_err() && progress.outcome.is_ok();
                if first {
                    progress.outcome = outcome;
                    drop(progress);
                    batch.end();
                    progress = lock(&shared.0);
                }
                progress.left -= 1;
                shared.1.notify_all();
            });
        }
        let mut progress = lock(&shared.0);
        while progress.left > 0 {
            progress = shared
                .1
                .wait(progress)
                .unwrap_or_else(PoisonError::into_inner);
        }
        progress.outcome
    }
}

/// Runs a job; a panic, which is a defect of ours, comes out as NCCL calls its own.
fn guarded(run: Box<dyn FnOnce() -> Outcome + Send>) -> Outcome {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(NcclResult::InternalError))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn job(run: impl FnOnce() -> Outcome + Send + 'static) -> Job {
        Job {
            flag: None,
            run: Box::new(run),
        }
    }

    #[test]
    fn jobs_run_beside_each_other() {
        for _ in 0..50 {
            let barrier = Arc::new(Barrier::new(4));
            let jobs = (0..4).map(|_| {
                let barrier = barrier.clone();
                job(move || {
                    barrier.wait();
                    Ok(())
                })
            });
            assert_eq!(Arc::<Batch>::default().run(jobs.collect()), Ok(()));
        }
    }

    #[test]
    fn the_first_failure_comes_out_and_ends_the_others() {
        let flag = Arc::<Flag>::default();
        let watched = flag.clone();
        let waiting = Job {
            flag: Some(flag),
            run: Box::new(move || {
                while !watched.is_raised() {
                    std::thread::yield_now();
                }
                Err(NcclResult::InternalError)
            }),
        };
        let failing = job(|| Err(NcclResult::SystemError));
        let outcome = Arc::<Batch>::default().run(vec![waiting, failing]);
        assert_eq!(outcome, Err(NcclResult::SystemError));
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        let jobs = vec![job(|| panic!("on purpose")), job(|| Ok(()))];
        assert_eq!(
            Arc::<Batch>::default().run(jobs),
            Err(NcclResult::InternalError)
        );
    }
}

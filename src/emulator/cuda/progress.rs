//! How far a queue has come, and who waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::lock;
use super::stream::Step;

/// How long a waiting thread looks again and again before it sleeps. Waking a sleeper costs about
/// as much.
const PATIENCE: Duration = Duration::from_micros(50);

/// A counter that only grows, and the threads and steps that wait for one of its values.
pub(super) struct Progress {
    passed: AtomicU64,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    sleepers: usize,
    steps: Vec<(u64, Step)>,
}

impl Progress {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            passed: AtomicU64::new(0),
            waiting: Mutex::new(Waiting {
                sleepers: 0,
                steps: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Counts one more, and returns the steps that waited for it. The caller takes them, with no
    /// lock held.
    #[must_use]
    pub(super) fn pass(&self) -> Vec<Step> {
        let mut waiting = lock(&self.waiting);
        let passed = self.passed.fetch_add(1, Ordering::Release) + 1;
        if waiting.sleepers > 0 {
            self.changed.notify_all();
        }
        if waiting.steps.is_empty() {
            return Vec::new();
        }
        let mut due = Vec::new();
        let mut i = 0;
        while i < waiting.steps.len() {
            if waiting.steps[i].0 <= passed {
                due.push(waiting.steps.remove(i).1);
            } else {
                i += 1;
            }
        }
        due
    }

    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }
}

/// One value of a [`Progress`]: a place in a queue, complete once the count gets there.
#[derive(Clone)]
pub(super) struct Point {
    pub progress: Arc<Progress>,
    pub position: u64,
}

impl Point {
    pub(super) fn is_done(&self) -> bool {
        self.progress.passed() >= self.position
    }

    /// Blocks the calling thread.
    pub(super) fn wait(&self) {
        if self.is_done() {
            return;
        }
        let start = Instant::now();
        loop {
            for _ in 0..8 {
                std::thread::yield_now();
                if self.is_done() {
                    return;
                }
            }
            if start.elapsed() > PATIENCE {
                break;
            }
        }
        let mut waiting = lock(&self.progress.waiting);
        waiting.sleepers += 1;
        while !self.is_done() {
            waiting = super::wait(&self.progress.changed, waiting);
        }
        waiting.sleepers -= 1;
    }

    /// Has `step` taken once the point is reached; gives it back if that is so already.
    pub(super) fn when_done(&self, step: Step) -> Option<Step> {
        let mut waiting = lock(&self.progress.waiting);
        // Under the lock, so that no pass falls between the look and the entry.
        if self.is_done() {
            return Some(step);
        }
        waiting.steps.push((self.position, step));
        None
    }
}

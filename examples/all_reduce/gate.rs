//! Threads that go on together from step to step, and end together when one of them fails.

use std::sync::{Condvar, Mutex};
use std::thread;

use anyhow::anyhow;

/// Where the ranks meet between steps; all go on, until one fails.
pub struct Gate {
    ranks: i32,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// The ranks that wait, in the order of their coming.
    arrived: Vec<i32>,
    round: u64,
    /// Of the rank that failed first. The others fail because of it, and are not heard.
    failure: Option<anyhow::Error>,
}

#[allow(dead_code)] // Each example needs a part of it.
impl Gate {
    pub fn new(ranks: i32) -> Self {
        Self {
            ranks,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits for every rank to end a step. `None`, at once, when any rank has failed.
    pub fn meet<T>(&self, rank: i32, outcome: anyhow::Result<T>) -> Option<T> {
        let value = match outcome {
            Ok(value) => value,
            Err(error) => {
                self.fail(rank, error);
                return None;
            }
        };
        let mut state = self.state.lock().unwrap();
        state.arrived.push(rank);
        if state.arrived.len() == self.ranks as usize {
            state.arrived.clear();
            state.round += 1;
            self.changed.notify_all();
        } else {
            let round = state.round;
            let waits = |state: &mut GateState| state.round == round && state.failure.is_none();
            state = self.changed.wait_while(state, waits).unwrap();
        }
        state.failure.is_none().then_some(value)
    }

    /// Opens the gate for good: nobody waits here any more.
    pub fn fail(&self, rank: i32, error: anyhow::Error) {
        let mut state = self.state.lock().unwrap();
        state
            .failure
            .get_or_insert_with(|| error.context(format!("rank {rank}")));
        self.changed.notify_all();
    }

    /// Whether any rank has failed.
    pub fn failed(&self) -> bool {
        self.state.lock().unwrap().failure.is_some()
    }

    /// How many steps are over, and the ranks that have not ended the present one.
    pub fn missing(&self) -> (u64, Vec<i32>) {
        let state = self.state.lock().unwrap();
        let missing = (0..self.ranks).filter(|rank| !state.arrived.contains(rank));
        (state.round, missing.collect())
    }

    /// Why the first rank failed, if any did.
    pub fn take_failure(&self) -> Option<anyhow::Error> {
        self.state.lock().unwrap().failure.take()
    }
}

/// Lets the peers of a rank that panics go.
pub struct FailOnPanic<'a> {
    pub gate: &'a Gate,
    pub rank: i32,
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.gate.fail(self.rank, anyhow!("panicked"));
        }
    }
}

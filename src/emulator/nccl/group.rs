//! Groups: what a thread collects between start and end, and how it is carried out.
//!
//! Every call that does something opens a group of its own around itself. So there is one way in
//! which things are done: when the outermost group ends.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use super::comm::Comm;
use super::error::{INVALID_ARGUMENT, INVALID_USAGE, Outcome, cuda_failure, refuse};
use super::exchange::{Kind, Request};
use super::job::{Batch, Job, background};
use super::transfer;
use crate::cuda::{CuEvent, CuResult, CuStream};
use crate::emulator::cuda::{self, Done, Execution, Work};
use crate::nccl::NcclResult;

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// What a thread's open groups hold.
#[derive(Default)]
struct Group {
    depth: usize,
    /// The code of the last call that was refused.
    error: Option<NcclResult>,
    /// Whether its end waits; not known as long as no communicator is in it.
    blocking: Option<bool>,
    collected: Collected,
}

#[derive(Default)]
struct Collected {
    /// First of all: what makes and ends communicators.
    jobs: Vec<(Arc<Comm>, Job)>,
    /// Then: windows, and giving back memory.
    tasks: Vec<(Arc<Comm>, Task)>,
    /// At last: what moves data.
    calls: Vec<Calls>,
}

pub(super) type Task = Box<dyn FnOnce(&Comm) -> Outcome + Send>;

/// One communicator's calls that move data.
struct Calls {
    comm: Arc<Comm>,
    requests: Vec<Request>,
    /// In the order of their first use.
    streams: Vec<CuStream>,
    /// The capture that all of the streams are in.
    capture: Option<u64>,
    /// Recorded when the work is launched.
    events: Vec<CuEvent>,
}

fn with<T>(use_it: impl FnOnce(&mut Group) -> T) -> T {
    GROUP.with_borrow_mut(use_it)
}

pub(super) fn start() {
    with(|group| group.depth += 1);
}

/// Remembers the code of a refused call, if a group is open.
pub(super) fn record(code: NcclResult) -> NcclResult {
    if code != NcclResult::InProgress {
        with(|group| {
            if group.depth > 0 {
                group.error = Some(code);
            }
        });
    }
    code
}

/// Runs `body`, which collects something, in a group of its own. Where no other is open, it is
/// carried out.
pub(super) fn within(body: impl FnOnce() -> Outcome) -> Outcome {
    match within_or_started(body) {
        Err(NcclResult::InProgress) => Ok(()),
        outcome => outcome,
    }
}

/// As [`within`]; `InProgress` where the work goes on beside the caller, whether or not it is
/// through by now.
pub(super) fn within_or_started(body: impl FnOnce() -> Outcome) -> Outcome {
    start();
    let outcome = body();
    if let Err(code) = outcome {
        record(code);
    }
    let ended = end(None);
    match (outcome, ended) {
        (Err(code), Err(NcclResult::InProgress) | Ok(())) => Err(code),
        (_, ended) => ended,
    }
}

/// Collects a job of `comm`. Jobs of blocking and of non-blocking communicators do not mix.
pub(super) fn add_job(comm: &Arc<Comm>, job: Job) -> Outcome {
    with(|group| {
        if comm.is_destroying() {
            group.blocking = Some(true);
        } else if *group.blocking.get_or_insert(comm.config.blocking) != comm.config.blocking {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!("blocking and non-blocking communicators do not go into one group"),
            ));
        }
        group.collected.jobs.push((comm.clone(), job));
        Ok(())
    })
}

pub(super) fn add_task(comm: &Arc<Comm>, task: Task) {
    with(|group| {
        group.blocking = Some(comm.config.blocking);
        group.collected.tasks.push((comm.clone(), task));
    });
}

/// Collects a call that moves data. `event` is recorded when it is launched, unless it is 0.
pub(super) fn add_call(comm: &Arc<Comm>, request: Request, event: CuEvent) -> Outcome {
    let capture = cuda::capture_id(request.stream).map_err(cuda_failure)?;
    with(|group| {
        // The last communicator decides for the group.
        group.blocking = Some(comm.config.blocking);
        let all = &mut group.collected.calls;
        let place = all.iter().position(|calls| Arc::ptr_eq(&calls.comm, comm));
        let calls = match place {
            Some(place) => &mut all[place],
            None => {
                all.push(Calls {
                    comm: comm.clone(),
                    requests: Vec::new(),
                    streams: Vec::new(),
                    capture,
                    events: Vec::new(),
                });
                let last = all.len() - 1;
                &mut all[last]
            }
        };
        if calls.capture != capture {
            return Err(refuse(
                INVALID_USAGE,
                format_args!(
                    "the streams of one communicator in a group are not all in the same capture, or \
                     all in none"
                ),
            ));
        }
        if !calls.streams.contains(&request.stream) {
            calls.streams.push(request.stream);
        }
        if event != 0 {
            calls.events.push(event);
        }
        calls.requests.push(request);
        Ok(())
    })
}

/// What `ncclGroupSimulateEnd` is told.
pub(super) struct Simulation<'a> {
    /// Looks at the program's struct, when the outermost group ends and nothing in it was refused.
    pub(super) check: &'a dyn Fn() -> Outcome,
    /// Estimated microseconds, if there is an estimate.
    pub(super) estimate: Option<f32>,
}

/// Closes a group, and carries out what was collected if it is the outermost one: instead only
/// thinks what it would take, with a `simulation`.
pub(super) fn end(simulation: Option<&mut Simulation<'_>>) -> Outcome {
    let group = with(|group| match group.depth {
        0 => Err(refuse(
            INVALID_USAGE,
            format_args!("ncclGroupEnd: not in a group call."),
        )),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    let Some(group) = group else { return Ok(()) };
    let collected = group.collected;
    let refused = match (group.error, &simulation) {
        (Some(code), _) => Err(code),
        (None, Some(simulation)) => (simulation.check)(),
        (None, None) => Ok(()),
    };
    if let Err(code) = refused {
        collected.drop_all(code);
        return Err(code);
    }
    match group.blocking {
        None => Ok(()),
        Some(true) => collected.carry_out_now(simulation),
        Some(false) => Err(collected.carry_out_in_background()),
    }
}

/// Leaves a group open that its call should have closed, as NCCL does where some checks fail.
pub(super) fn leak() {
    start();
}

impl Comm {
    /// The state after a group that waited.
    fn conclude(&self, outcome: Outcome) {
        if !self.config.blocking {
            self.set_result(outcome.err().unwrap_or(NcclResult::Success));
        }
    }
}

impl Collected {
    /// The communicators that have something in it, once each; those that are to end are left out.
    fn all(&self) -> Vec<Arc<Comm>> {
        let jobs = self
            .jobs
            .iter()
            .filter(|(_, job)| job.flag.is_some())
            .map(|(comm, _)| comm);
        once_each(
            jobs.chain(self.tasks.iter().map(|(comm, _)| comm))
                .chain(self.callers()),
        )
    }

    fn callers(&self) -> impl Iterator<Item = &Arc<Comm>> {
        self.calls.iter().map(|calls| &calls.comm)
    }

    /// The communicators whose state the end of the group sets: where data is moved, none that have
    /// jobs alone.
    fn users(&self) -> Vec<Arc<Comm>> {
        match self.calls.is_empty() {
            true => self.all(),
            false => once_each(
                self.tasks
                    .iter()
                    .map(|(comm, _)| comm)
                    .chain(self.callers()),
            ),
        }
    }

    /// Gives it all up for an error.
    fn drop_all(self, code: NcclResult) {
        for comm in self.all() {
            comm.conclude(Err(code));
        }
    }

    fn carry_out_now(self, simulation: Option<&mut Simulation<'_>>) -> Outcome {
        let batch = Arc::default();
        let jobs = self.jobs.iter().map(|(comm, _)| comm);
        let mut comms = jobs
            .chain(self.tasks.iter().map(|(comm, _)| comm))
            .chain(self.callers());
        if comms.all(|comm| comm.config.blocking) {
            drop(comms);
            return self.carry_out(&batch, simulation);
        }
        drop(comms);
        // Non-blocking ones, in a group that waits all the same.
        let (all, users) = (self.all(), self.users());
        let outcome = self.carry_out(&batch, simulation);
        for comm in if outcome.is_ok() { users } else { all } {
            comm.conclude(outcome);
        }
        outcome
    }

    fn carry_out_in_background(self) -> NcclResult {
        let batch = Arc::<Batch>::default();
        let (all, users) = (self.all(), self.users());
        for comm in &all {
            comm.begin(&batch);
        }
        background(move || {
            let outcome = self.carry_out(&batch, None);
            let result = outcome.err().unwrap_or(NcclResult::Success);
            for comm in all {
                // An error is told to all of them, an end in peace not to those that have jobs
                // beside others' data.
                let told = outcome.is_err() || users.iter().any(|user| Arc::ptr_eq(user, &comm));
                comm.end((told && !comm.config.blocking).then_some(result));
            }
        });
        NcclResult::InProgress
    }

    /// Does all of it, in NCCL's order.
    fn carry_out(self, batch: &Arc<Batch>, simulation: Option<&mut Simulation<'_>>) -> Outcome {
        let Self {
            jobs,
            tasks,
            mut calls,
        } = self;
        for calls in &calls {
            calls.check()?;
        }
        let mut jobs: Vec<Job> = jobs.into_iter().map(|(_, job)| job).collect();
        if simulation.is_none() {
            jobs.extend(calls.iter().filter_map(Calls::connect_peers));
        }
        batch.run(jobs)?;

        // From here on one communicator after the other, in an order that all its ranks share.
        let mut queues: Vec<(Arc<Comm>, Vec<Task>)> = Vec::new();
        for (comm, task) in tasks {
            match queues
                .iter_mut()
                .find(|(other, _)| Arc::ptr_eq(other, &comm))
            {
                Some((_, queue)) => queue.push(task),
                None => queues.push((comm, vec![task])),
            }
        }
        queues.sort_by_key(|(comm, _)| comm.hash());
        let mut queues = queues.into_iter().peekable();
        while let Some(first) = queues.next() {
            let hash = first.0.hash();
            let mut clique = vec![run_tasks(first)];
            while let Some(next) = queues.next_if(|(comm, _)| comm.hash() == hash) {
                clique.push(run_tasks(next));
            }
            batch.run(clique)?;
        }

        calls.sort_by_key(|calls| calls.comm.hash());
        let cliques = || calls.chunk_by(|a, b| a.comm.hash() == b.comm.hash());
        for clique in cliques() {
            batch.run(clique.iter().filter_map(Calls::connect).collect())?;
        }
        if let Some(simulation) = simulation {
            simulation.estimate = calls.iter().rev().find_map(Calls::estimate);
            return Ok(());
        }
        for clique in cliques() {
            let captured = clique
                .iter()
                .filter(|calls| calls.capture.is_some())
                .count();
            if captured != 0 && captured != clique.len() {
                return Err(refuse(
                    INVALID_USAGE,
                    format_args!(
                        "some of a communicator's ranks in a group are captured, others are not"
                    ),
                ));
            }
        }
        calls.into_iter().try_for_each(Calls::launch)
    }
}

fn once_each<'a>(comms: impl Iterator<Item = &'a Arc<Comm>>) -> Vec<Arc<Comm>> {
    let mut all: Vec<Arc<Comm>> = Vec::new();
    for comm in comms {
        if !all.iter().any(|other| Arc::ptr_eq(other, comm)) {
            all.push(comm.clone());
        }
    }
    all
}

fn run_tasks((comm, tasks): (Arc<Comm>, Vec<Task>)) -> Job {
    Job {
        flag: Some(comm.flag.clone()),
        run: Box::new(move || tasks.into_iter().try_for_each(|task| task(&comm))),
    }
}

impl Calls {
    /// What is refused when the calls are carried out, not when they are made.
    fn check(&self) -> Outcome {
        let rank = self.comm.link()?.rank;
        if transfer::lone_self(rank, &self.requests) {
            return Err(refuse(
                INVALID_USAGE,
                format_args!(
                    "a rank's send to itself has no receive in the same group, or the other way round"
                ),
            ));
        }
        Ok(())
    }

    /// The job that connects this rank with the peers that it sends to or receives from for the
    /// first time.
    fn connect_peers(&self) -> Option<Job> {
        let link = self.comm.link().ok()?;
        let mut ways = HashSet::new();
        for asked in &self.requests {
            let root = asked.peer;
            let all = || (0..link.size).filter(|peer| *peer != link.rank);
            match asked.kind {
                Kind::Send => drop(ways.insert((root, false))),
                Kind::Recv => drop(ways.insert((root, true))),
                Kind::AlltoAll => ways.extend(all().flat_map(|peer| [(peer, false), (peer, true)])),
                Kind::Gather if root == link.rank => ways.extend(all().map(|peer| (peer, true))),
                Kind::Gather => drop(ways.insert((root, false))),
                Kind::Scatter if root == link.rank => ways.extend(all().map(|peer| (peer, false))),
                Kind::Scatter => drop(ways.insert((root, true))),
                _ => {}
            }
        }
        ways.retain(|(peer, _)| *peer != link.rank);
        let ways = self.comm.unconnected(&ways);
        if ways.is_empty() {
            return None;
        }
        let comm = self.comm.clone();
        Some(self.comm.job(move || comm.connect_peers(ways)))
    }

    /// The job that connects the ranks, where a collective is the first.
    fn connect(&self) -> Option<Job> {
        let joins = |asked: &Request| is_joint(&asked.kind);
        if !self.comm.must_connect() || !self.requests.iter().any(joins) {
            return None;
        }
        let comm = self.comm.clone();
        Some(self.comm.job(move || comm.connect()))
    }

    /// About how many microseconds the last collective would take: what a good GPU needs to start
    /// and to move its bytes.
    fn estimate(&self) -> Option<f32> {
        let last = self
            .requests
            .iter()
            .rev()
            .find(|asked| is_joint(&asked.kind))?;
        Some(10.0 + last.bytes() as f32 / 100e3)
    }

    fn launch(self) -> Outcome {
        let link = self.comm.link()?;
        let device = self.comm.device;
        // The stream that was seen last runs the work; all of them wait for each other before and
        // after.
        let Some(&stream) = self.streams.last() else {
            return Ok(());
        };
        let work: Arc<dyn Work> = match self.comm.memory.is_suspended() {
            true => Arc::new(Fault),
            false => {
                let exchange = link.exchange.clone();
                transfer::work(exchange, link.rank, device, self.requests)
            }
        };
        let work = match self.capture {
            Some(_) => self.comm.graphs.count(work),
            None => work,
        };
        let enqueue = || {
            if self.streams.len() > 1 {
                cuda::join(&self.streams, device)?;
            }
            for &event in &self.events {
                cuda::record_event(event, stream, device)?;
            }
            cuda::enqueue(stream, device, work)?;
            if self.streams.len() > 1 {
                cuda::join(&self.streams, device)?;
            }
            Ok(())
        };
        enqueue().map_err(cuda_failure)
    }
}

/// Whether all ranks take part at once.
fn is_joint(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::AllGather | Kind::ReduceScatter
    )
}

/// What becomes of the work of a communicator whose memory has been given back.
struct Fault;

impl Work for Fault {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(Fault)
    }
}

impl Execution for Fault {
    fn start(self: Box<Self>, done: Done) {
        done.finish(CuResult::IllegalAddress);
    }

    fn is_short(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: NcclResult = NcclResult::RemoteError;

    /// Runs `body` with this thread's groups as they are at first, and so afterwards.
    fn clean(body: impl FnOnce()) {
        body();
        assert_eq!(end(None), Err(INVALID_USAGE));
    }

    #[test]
    fn inner_ends_answer_success_and_the_outer_one_the_last_error() {
        clean(|| {
            start();
            start();
            record(INVALID_ARGUMENT);
            record(REMOTE);
            assert_eq!(end(None), Ok(()));
            assert_eq!(end(None), Err(REMOTE));
            start();
            assert_eq!(end(None), Ok(()));
        });
    }

    #[test]
    fn nothing_is_remembered_outside_of_a_group_nor_being_in_progress() {
        clean(|| {
            record(REMOTE);
            start();
            record(NcclResult::InProgress);
            assert_eq!(end(None), Ok(()));
        });
    }

    #[test]
    fn a_call_of_its_own_answers_its_error_and_spoils_the_group_around_it() {
        clean(|| {
            assert_eq!(within(|| Err(REMOTE)), Err(REMOTE));
            start();
            assert_eq!(within(|| Err(REMOTE)), Err(REMOTE));
            assert_eq!(within(|| Ok(())), Ok(()));
            assert_eq!(end(None), Err(REMOTE));
        });
    }

    #[test]
    fn a_simulation_is_looked_at_by_the_outermost_end_alone() {
        let mut wrong = Simulation {
            check: &|| Err(INVALID_ARGUMENT),
            estimate: None,
        };
        clean(|| {
            start();
            start();
            assert_eq!(end(Some(&mut wrong)), Ok(()));
            assert_eq!(end(None), Ok(()));
            start();
            assert_eq!(end(Some(&mut wrong)), Err(INVALID_ARGUMENT));
            start();
            record(REMOTE);
            assert_eq!(end(Some(&mut wrong)), Err(REMOTE));
        });
    }

    #[test]
    fn a_leak_puts_off_what_follows() {
        clean(|| {
            leak();
            assert_eq!(within(|| Err(REMOTE)), Err(REMOTE));
            assert_eq!(end(None), Err(REMOTE));
        });
    }
}

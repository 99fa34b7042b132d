//! Ranks as threads, or each in a process of its own, kept with their communicator from case to case, since
//! connecting is what costs time.
//!
//! Several ranks may share a GPU. Then nothing that waits for the whole device (allocate, free, the
//! legacy stream, making and ending communicators) may run on one rank while a collective of another
//! waits for its peer. A rank therefore takes its buffers from memory that it has from the start, waits
//! for its own stream alone, and meets the others before and after everything else.

#![allow(dead_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::apart::{self, Processes, Way};
use crate::calls::*;
use crate::cases::deadline;
use crate::expect;
use crate::world::World;

/// Device memory of each rank. Taken once; an emulator maps only what is touched.
const ARENA: usize = 48 << 20;
/// What separates two buffers, at least, and is watched.
const GUARD: usize = 256;
/// What fresh buffers and guards hold.
pub const BLANK: u8 = 0xee;

/// Memory of a rank's device, for the length of one case.
#[derive(Clone, Copy)]
pub struct Buffer {
    pub address: CuDevicePtr,
    pub bytes: usize,
}

impl Buffer {
    pub fn ptr(self) -> *mut c_void {
        self.at(0)
    }

    pub fn at(self, offset: usize) -> *mut c_void {
        (self.address + offset as u64) as *mut c_void
    }
}

/// One rank of a team, on its own thread.
pub struct Rank {
    pub rank: i32,
    pub nranks: i32,
    pub device: i32,
    pub comm: NcclComm,
    pub stream: CuStream,
    arena: CuDevicePtr,
    used: Cell<usize>,
    buffers: RefCell<Vec<Buffer>>,
    /// When the case began.
    started: Cell<Instant>,
    shared: Arc<Shared>,
}

/// What the ranks of a team have in common.
pub struct Shared {
    nranks: usize,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// The way to the others, where they are in other processes.
    way: Option<Way>,
}

struct Gate {
    arrived: usize,
    round: u64,
    failed: bool,
    /// What each rank has to tell the others.
    told: Vec<Option<Box<dyn Any + Send>>>,
    comms: Vec<usize>,
    /// What the ranks of other processes have told, and this one has not looked at.
    heard: VecDeque<Vec<u8>>,
}

/// What each rank of the case is at, for the report of one that does not end.
static STEPS: Mutex<BTreeMap<i32, Step>> = Mutex::new(BTreeMap::new());

struct Step {
    what: String,
    since: Instant,
    /// It waits for the other ranks to come to [`Rank::meet`].
    meets: bool,
}

fn steps_now() -> MutexGuard<'static, BTreeMap<i32, Step>> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What each rank was last at, and for how long.
pub fn steps() -> String {
    let steps = steps_now();
    let said = steps.iter().map(|(rank, step)| {
        let (what, since) = (&step.what, step.since.elapsed());
        let meets = if step.meets {
            " (done, waits for the others)"
        } else {
            ""
        };
        format!("rank {rank}: {what}{meets}, for {since:.1?}")
    });
    said.collect::<Vec<_>>().join("; ")
}

/// What a rank says that had to stop because a peer failed.
#[derive(Debug)]
pub struct PeerFailed;

impl std::fmt::Display for PeerFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped because another rank failed")
    }
}

impl std::error::Error for PeerFailed {}

impl Shared {
    fn new(nranks: usize, way: Option<Way>) -> Self {
        let gate = Gate {
            arrived: 0,
            round: 0,
            failed: false,
            told: (0..nranks).map(|_| None).collect(),
            comms: vec![0; nranks],
            heard: VecDeque::new(),
        };
        Self {
            nranks,
            gate: Mutex::new(gate),
            changed: Condvar::new(),
            way,
        }
    }

    /// Of ranks in other processes.
    pub fn apart(nranks: usize, way: Way) -> Self {
        Self::new(nranks, Some(way))
    }

    /// Takes what all ranks have told.
    pub fn hear(&self, told: Vec<u8>) {
        self.lock().heard.push_back(told);
        self.changed.notify_all();
    }

    /// Tells the ranks of other processes, and hears what they do.
    fn exchange(&self, way: &Way, bytes: &[u8]) -> Result<Vec<u8>> {
        way.tell(bytes)?;
        let mut gate = self.lock();
        loop {
            if let Some(told) = gate.heard.pop_front() {
                return Ok(told);
            }
            if gate.failed {
                return Err(PeerFailed.into());
            }
            gate = self
                .changed
                .wait(gate)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fail(&self) {
        self.lock().failed = true;
        self.changed.notify_all();
    }

    fn failed(&self) -> bool {
        self.lock().failed
    }

    fn meet(&self) -> Result<()> {
        if let Some(way) = &self.way {
            return self.exchange(way, &[]).map(drop);
        }
        let mut gate = self.lock();
        gate.arrived += 1;
        if gate.arrived == self.nranks {
            gate.arrived = 0;
            gate.round += 1;
            self.changed.notify_all();
        } else {
            let round = gate.round;
            gate = self
                .changed
                .wait_while(gate, |gate| gate.round == round && !gate.failed)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if gate.failed {
            Err(PeerFailed.into())
        } else {
            Ok(())
        }
    }
}

impl Rank {
    /// Says what the rank does next, for the report if it does not end.
    pub fn step(&self, what: impl Into<String>) {
        let step = Step {
            what: what.into(),
            since: Instant::now(),
            meets: false,
        };
        steps_now().insert(self.rank, step);
    }

    /// Waits until every rank is here.
    pub fn meet(&self) -> Result<()> {
        self.step_meets(true);
        self.shared.meet()?;
        self.step_meets(false);
        Ok(())
    }

    fn step_meets(&self, meets: bool) {
        if let Some(step) = steps_now().get_mut(&self.rank) {
            step.meets = meets;
        }
    }

    /// What every rank tells, in the order of ranks.
    pub fn tell<T: Copy + Send + 'static>(&self, value: T) -> Result<Vec<T>> {
        if let Some(way) = &self.shared.way {
            let size = size_of::<T>();
            // SAFETY: the bytes of a value; those that are told are numbers without gaps.
            let own = unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size) };
            let told = self.shared.exchange(way, own)?;
            // A length before each.
            let all = told.chunks_exact(4 + size).map(|one| {
                // SAFETY: the bytes of such a value, as another process of this program has it.
                unsafe { one[4..].as_ptr().cast::<T>().read_unaligned() }
            });
            return Ok(all.collect());
        }
        self.shared.lock().told[self.rank as usize] = Some(Box::new(value));
        self.meet()?;
        let all = self
            .shared
            .lock()
            .told
            .iter()
            .map(|told| {
                *told
                    .as_ref()
                    .and_then(|told| told.downcast_ref::<T>())
                    .expect("all tell the same")
            })
            .collect();
        self.meet()?;
        Ok(all)
    }

    /// Gives all buffers of the case back, once nothing was found to be overrun.
    pub fn reuse(&self) -> Result<()> {
        self.wait()?;
        for buffer in self.buffers.take() {
            let guard: Vec<u8> = fetch(buffer.address + buffer.bytes as u64, GUARD, self.stream)?;
            ensure!(
                guard.iter().all(|&byte| byte == BLANK),
                "a buffer of {} bytes was overrun",
                buffer.bytes
            );
        }
        self.used.set(0);
        Ok(())
    }

    /// A buffer of which every byte is [`BLANK`].
    pub fn blank(&self, bytes: usize) -> Result<Buffer> {
        let start = self.used.get();
        let end = (start + bytes + GUARD).next_multiple_of(256);
        ensure!(end <= ARENA, "the case takes more than {ARENA} bytes");
        self.used.set(end);
        let buffer = Buffer {
            address: self.arena + start as u64,
            bytes,
        };
        self.buffers.borrow_mut().push(buffer);
        expect!(
            cuMemsetD8Async(buffer.address, BLANK, end - start, self.stream),
            CuResult::Success
        );
        sync_stream(self.stream)?;
        Ok(buffer)
    }

    /// A buffer that holds `values`.
    pub fn upload<T: Copy>(&self, values: &[T]) -> Result<Buffer> {
        let buffer = self.blank(size_of_val(values))?;
        self.fill(buffer, values)?;
        Ok(buffer)
    }

    /// Writes `values` to the start of a buffer.
    pub fn fill<T: Copy>(&self, buffer: Buffer, values: &[T]) -> Result<()> {
        ensure!(size_of_val(values) <= buffer.bytes, "the values do not fit");
        let code = cuMemcpyHtoDAsync_v2(
            buffer.address,
            values.as_ptr().cast(),
            size_of_val(values),
            self.stream,
        );
        expect!(code, CuResult::Success);
        sync_stream(self.stream)
    }

    /// What a buffer holds once the rank's stream has done its work.
    pub fn read<T: Copy + Default>(&self, buffer: Buffer) -> Result<Vec<T>> {
        self.wait()?;
        fetch(buffer.address, buffer.bytes, self.stream)
    }

    /// What memory holds now: by a stream of its own, so that the rank's stream may be held meanwhile.
    pub fn peek<T: Copy + Default>(&self, address: CuDevicePtr, bytes: usize) -> Result<Vec<T>> {
        let side = create_stream()?;
        let values = fetch(address, bytes, side)?;
        destroy_stream(side);
        Ok(values)
    }

    /// Waits for the rank's stream.
    pub fn wait(&self) -> Result<()> {
        self.wait_for(self.stream)
    }

    /// Waits for a stream, but not for ever, nor once a peer has failed.
    pub fn wait_for(&self, stream: CuStream) -> Result<()> {
        let mut polls = 0;
        while !stream_ready(stream)? {
            polls += 1;
            if polls < 16 {
                std::thread::yield_now();
            } else {
                self.breathe()?;
            }
        }
        Ok(())
    }

    /// Waits until a non-blocking communicator leaves "in progress", and tells its state.
    pub fn settle(&self, comm: NcclComm) -> Result<NcclResult> {
        loop {
            match state(comm)? {
                NcclResult::InProgress => self.breathe()?,
                other => return Ok(other),
            }
        }
    }

    /// A pause of a rank that polls; an error once the case is late or a peer has failed.
    pub fn breathe(&self) -> Result<()> {
        if self.shared.failed() {
            return Err(PeerFailed.into());
        }
        ensure!(
            self.started.get().elapsed() < deadline() / 2,
            "what is waited for does not come: {}",
            steps()
        );
        std::thread::sleep(Duration::from_micros(50));
        Ok(())
    }

    /// An id that all ranks know.
    pub fn id(&self) -> Result<NcclUniqueId> {
        let mine = if self.rank == 0 {
            unique_id()?
        } else {
            NcclUniqueId { internal: [0; 128] }
        };
        Ok(self.tell(mine)?[0])
    }

    /// Another communicator of all ranks, ready to use. To be left by [`Rank::leave`].
    pub fn join(&self, config: NcclConfig) -> Result<NcclComm> {
        let id = self.id()?;
        let mut comm = null_mut();
        let config = NcclConfig {
            max_ctas: 2,
            ..config
        };
        let started = ncclCommInitRankConfig(&mut comm, self.nranks, id, self.rank, &config);
        if config.blocking == 0 {
            expect!(started, NcclResult::InProgress);
            expect!(self.settle(comm)?, NcclResult::Success);
        } else {
            expect!(started, NcclResult::Success);
        }
        self.meet()?;
        Ok(comm)
    }

    /// Destroys a communicator of [`Rank::join`], with all ranks.
    pub fn leave(&self, comm: NcclComm) -> Result<()> {
        self.meet()?;
        expect!(ncclCommDestroy(comm), NcclResult::Success);
        self.meet()
    }

    /// Aborts a communicator of [`Rank::join`] that the case has spoilt, with all ranks.
    pub fn abort(&self, comm: NcclComm) -> Result<()> {
        self.meet()?;
        expect!(ncclCommAbort(comm), NcclResult::Success);
        self.meet()
    }

    /// Sums one number over the ranks of `comm`: what shows that it works, and who belongs to it.
    pub fn sum_over(&self, comm: NcclComm, value: i32) -> Result<i32> {
        let buffer = self.upload(&[value])?;
        let (p, sum) = (buffer.ptr(), NcclRedOp::Sum);
        expect!(
            ncclAllReduce(p, p, 1, NcclDataType::Int32, sum, comm, self.stream),
            NcclResult::Success
        );
        Ok(self.read::<i32>(buffer)?[0])
    }

    pub fn make(rank: i32, shared: Arc<Shared>) -> Result<Self> {
        let nranks = shared.nranks as i32;
        let device = rank % World::get().devices.max(1);
        use_device(device)?;
        let stream = create_stream()?;
        let arena = mem_alloc(ARENA)?;
        shared.meet()?;
        let mut rank = Rank {
            rank,
            nranks,
            device,
            comm: null_mut(),
            stream,
            arena,
            used: Cell::new(0),
            buffers: RefCell::default(),
            started: Cell::new(Instant::now()),
            shared,
        };
        rank.comm = rank.join(NcclConfig::new())?;
        rank.shared.lock().comms[rank.rank as usize] = rank.comm as usize;
        expect!(rank.sum_over(rank.comm, 1)?, nranks);
        Ok(rank)
    }

    pub fn work(&self, job: &Job) -> Result<()> {
        self.started.set(Instant::now());
        self.step("the case begins");
        job(self)?;
        self.step("the case ends");
        self.reuse()?;
        expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
        Ok(())
    }

    pub fn close(self) -> Result<()> {
        self.leave(self.comm)?;
        destroy_stream(self.stream);
        expect!(cuMemFree_v2(self.arena), CuResult::Success);
        Ok(())
    }
}

/// Copies device memory to the host by a stream that is idle.
fn fetch<T: Copy + Default>(
    address: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> Result<Vec<T>> {
    let mut values = vec![T::default(); bytes / size_of::<T>()];
    let code = cuMemcpyDtoHAsync_v2(
        values.as_mut_ptr().cast(),
        address,
        size_of_val(&*values),
        stream,
    );
    expect!(code, CuResult::Success);
    sync_stream(stream)?;
    Ok(values)
}

/// A communicator's state.
pub fn state(comm: NcclComm) -> Result<NcclResult> {
    let mut state = NcclResult(-1);
    expect!(ncclCommGetAsyncError(comm, &mut state), NcclResult::Success);
    Ok(state)
}

pub type Job = dyn Fn(&Rank) -> Result<()> + Send + Sync;

/// The threads of a team, or its processes.
struct Team {
    shared: Arc<Shared>,
    jobs: Vec<Sender<Arc<Job>>>,
    processes: Option<Processes>,
    outcomes: Receiver<(usize, Result<()>)>,
}

/// Teams that wait for their next case, by their number of ranks.
static IDLE: Mutex<Option<HashMap<i32, Team>>> = Mutex::new(None);

fn idle() -> MutexGuard<'static, Option<HashMap<i32, Team>>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` on every rank of a team. A team on which a case failed is given up.
pub fn run(nranks: i32, body: impl Fn(&Rank) -> Result<()> + Send + Sync + 'static) -> Result<()> {
    if let Some(outcome) = apart::run_here(nranks, &body) {
        return outcome;
    }
    let kept = idle().as_mut().and_then(|teams| teams.remove(&nranks));
    let mut team = match kept {
        Some(team) => team,
        None => Team::start(nranks).context("a team could not be made")?,
    };
    if let Some(processes) = &team.processes {
        // A case's thread has its name.
        let thread = std::thread::current();
        processes.run(thread.name().context("a case has a name")?)?;
    }
    steps_now().clear();
    let body: Arc<Job> = Arc::new(body);
    for jobs in &team.jobs {
        jobs.send(body.clone())
            .map_err(|_| anyhow!("a rank's thread has ended"))?;
    }
    team.collect()?;
    let surplus = idle().get_or_insert_default().insert(nranks, team);
    surplus.map_or(Ok(()), Team::close)
}

/// Ends all teams, in peace.
pub fn close() -> Result<()> {
    let teams = idle().take().unwrap_or_default();
    teams.into_values().try_for_each(Team::close)
}

impl Team {
    fn start(nranks: i32) -> Result<Team> {
        let count = nranks as usize;
        let shared = Arc::new(Shared::new(count, None));
        let (done, outcomes) = channel();
        let mut jobs = Vec::new();
        let mut processes = None;
        if apart::wanted() {
            processes = Some(Processes::start(count, &done)?);
        }
        let threads = if processes.is_some() { 0 } else { count };
        for rank in 0..threads {
            let (sender, receiver) = channel();
            jobs.push(sender);
            let (shared, done) = (shared.clone(), done.clone());
            std::thread::Builder::new()
                .name(format!("rank {rank} of {nranks}"))
                .spawn(move || {
                    let outcome = serve(rank, shared.clone(), receiver, &done);
                    if outcome.is_err() {
                        shared.fail();
                    }
                    let _ = done.send((rank, outcome));
                })?;
        }
        let mut team = Team {
            shared,
            jobs,
            processes,
            outcomes,
        };
        team.collect()?;
        Ok(team)
    }

    /// Waits for every rank. Once one has failed the others have a moment to come back; then their
    /// communicators are aborted, which is what frees a call that waits for its peer.
    fn collect(&mut self) -> Result<()> {
        let count = self.shared.nranks;
        let mut back = vec![false; count];
        let mut first: Option<anyhow::Error> = None;
        let mut until = Instant::now() + deadline() * 9 / 10;
        let mut aborted = false;
        while back.contains(&false) {
            match self
                .outcomes
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok((rank, outcome)) => {
                    back[rank] = true;
                    let Err(error) = outcome else { continue };
                    if first
                        .as_ref()
                        .is_none_or(|first| first.is::<PeerFailed>() && !error.is::<PeerFailed>())
                    {
                        // Kept as it is until the end, so that its kind can still be told.
                        if first.is_none() {
                            until = Instant::now() + deadline() / 10;
                        }
                        first = Some(if error.is::<PeerFailed>() {
                            error
                        } else {
                            error.context(format!("rank {rank}"))
                        });
                    }
                }
                Err(RecvTimeoutError::Timeout) if !aborted => {
                    aborted = true;
                    self.shared.fail();
                    if first.is_none() {
                        let missing: Vec<usize> = (0..count).filter(|&rank| !back[rank]).collect();
                        first = Some(anyhow!(
                            "hung: ranks {missing:?} did not come back ({})",
                            steps()
                        ));
                    }
                    if let Some(processes) = &mut self.processes {
                        processes.kill();
                    }
                    let comms = self.shared.lock().comms.clone();
                    for (rank, comm) in comms.into_iter().enumerate() {
                        if !back[rank] && comm != 0 {
                            // On a thread of its own: an abort may hang as well.
                            std::thread::spawn(move || ncclCommAbort(comm as NcclComm));
                        }
                    }
                    until = Instant::now() + deadline() / 10;
                }
                Err(_) => break,
            }
        }
        match first {
            None => Ok(()),
            Some(error) if back.contains(&false) => {
                Err(error.context("a rank did not even come back after an abort"))
            }
            Some(error) => Err(error),
        }
    }

    fn close(mut self) -> Result<()> {
        self.jobs.clear();
        if let Some(processes) = &self.processes {
            processes.end();
        }
        self.collect().context("a team could not be ended")
    }
}

/// The life of a rank: makes itself, then takes job after job, and ends in peace when there are no more.
fn serve(
    index: usize,
    shared: Arc<Shared>,
    jobs: Receiver<Arc<Job>>,
    done: &Sender<(usize, Result<()>)>,
) -> Result<()> {
    let rank = Rank::make(index as i32, shared.clone())?;
    let _ = done.send((index, Ok(())));
    for job in jobs {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rank.work(&*job)));
        let outcome =
            outcome.unwrap_or_else(|_| Err(anyhow!("the rank panicked; its words are above")));
        outcome?;
        let _ = done.send((index, Ok(())));
    }
    rank.close()
}

/// A communicator of one rank on this thread's device, for cases that need their own thread.
pub fn alone(config: &NcclConfig) -> Result<NcclComm> {
    let mut comm = null_mut();
    expect!(
        ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, config),
        NcclResult::Success
    );
    Ok(comm)
}

/// As [`alone`], non-blocking, and ready.
pub fn alone_non_blocking() -> Result<NcclComm> {
    let mut comm = null_mut();
    let started =
        ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, &NcclConfig::non_blocking());
    expect!(started, NcclResult::InProgress);
    expect!(settled(comm)?, NcclResult::Success);
    Ok(comm)
}

/// The first of two ranks whose peer never comes: a communicator that stays in progress.
pub fn waiting_for_its_peer() -> Result<NcclComm> {
    let mut comm = null_mut();
    let started =
        ncclCommInitRankConfig(&mut comm, 2, unique_id()?, 0, &NcclConfig::non_blocking());
    expect!(started, NcclResult::InProgress);
    Ok(comm)
}

/// The state of a communicator once it is no longer in progress.
pub fn settled(comm: NcclComm) -> Result<NcclResult> {
    let start = Instant::now();
    loop {
        match state(comm)? {
            NcclResult::InProgress if start.elapsed() > deadline() / 2 => {
                bail!("the communicator stays in progress")
            }
            NcclResult::InProgress => std::thread::sleep(Duration::from_micros(50)),
            other => return Ok(other),
        }
    }
}

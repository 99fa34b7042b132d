//! Communicators: one rank's membership each, found by handles that are never followed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use super::config::Config;
use super::error::{
    INVALID_ARGUMENT, INVALID_USAGE, Outcome, lock, not_null, refuse, refuse_fork, remember,
};
use super::exchange::{Aborted, Exchange, Topic};
use super::ids::{self, Seat};
use super::job::{Batch, Job};
use super::operators::Operators;
use super::param;
use super::processes;
use super::window::Memory;
use crate::cuda::CuDevice;
use crate::emulator::cuda::{Execution, Work};
use crate::nccl::{NcclComm, NcclResult};

/// What ends all that a rank waits for. Communicators that share resources with their parent share
/// its flag.
#[derive(Default)]
pub(super) struct Flag {
    state: Mutex<FlagState>,
}

#[derive(Default)]
struct FlagState {
    raised: bool,
    /// Where the rank may wait.
    targets: Vec<(Arc<dyn Exchange>, usize)>,
}

impl Flag {
    pub(super) fn is_raised(&self) -> bool {
        lock(&self.state).raised
    }

    /// From now on raising the flag aborts `rank` there. Done at once, and an error, if it is
    /// raised.
    fn enter(&self, exchange: &Arc<dyn Exchange>, rank: usize) -> Outcome {
        let mut state = lock(&self.state);
        if state.raised {
            drop(state);
            exchange.abort(rank);
            return Err(aborted());
        }
        state.targets.push((exchange.clone(), rank));
        Ok(())
    }

    fn leave(&self, exchange: &Arc<dyn Exchange>) {
        let mut state = lock(&self.state);
        let place = state
            .targets
            .iter()
            .rposition(|(other, _)| Arc::ptr_eq(other, exchange));
        let left = place.map(|place| state.targets.remove(place));
        drop(state);
        drop(left);
    }

    /// Ends the rank's work and waiting, now and from now on.
    pub(super) fn raise(&self) {
        let mut state = lock(&self.state);
        state.raised = true;
        let targets = state.targets.clone();
        drop(state);
        for (exchange, rank) in targets {
            exchange.abort(rank);
        }
    }

    /// Lets the rank wait again for what is not work on the device.
    pub(super) fn lower(&self) {
        let mut state = lock(&self.state);
        state.raised = false;
        let targets = state.targets.clone();
        drop(state);
        for (exchange, rank) in targets {
            exchange.restore(rank);
        }
    }
}

/// What a call answers that an abort has ended.
fn aborted() -> NcclResult {
    refuse(
        NcclResult::InternalError,
        format_args!("the communicator was aborted meanwhile"),
    )
}

/// What a call answers that waited for other ranks in vain.
fn broken_off(exchange: &Arc<dyn Exchange>) -> NcclResult {
    match exchange.lost() {
        Some(reason) => refuse(NcclResult::RemoteError, format_args!("{reason}")),
        None => aborted(),
    }
}

/// A communicator, as one rank has it.
pub(super) struct Comm {
    handle: u64,
    pub(super) device: CuDevice,
    pub(super) config: Config,
    pub(super) flag: Arc<Flag>,
    link: OnceLock<Link>,
    /// The ranks that this process has of it; there once it was made.
    locals: OnceLock<Arc<Locals>>,
    state: Mutex<State>,
    /// Told when a background job is through.
    settled: Condvar,
    pub(super) operators: Mutex<Operators>,
    pub(super) memory: Memory,
    /// The first collective is through its connecting.
    connected: AtomicBool,
    /// Peers that this rank has connected to send to, or to receive from (true).
    peers: Mutex<HashSet<(usize, bool)>>,
    /// How often these ranks have left to form another communicator.
    children: Mutex<HashMap<Vec<usize>, u64>>,
    /// The id that this rank has made for the next growth.
    pub(super) growth: Mutex<Option<crate::nccl::NcclUniqueId>>,
    pub(super) graphs: Arc<Graphs>,
}

/// Where a rank meets the others.
pub(super) struct Link {
    pub(super) exchange: Arc<dyn Exchange>,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// What all ranks of the communicator know it by.
    pub(super) hash: u64,
}

struct State {
    /// What `ncclCommGetAsyncError` tells.
    result: NcclResult,
    /// Background jobs under way, and how many of them wait for something that this communicator's
    /// abort does not end.
    jobs: usize,
    parked: usize,
    batch: Option<Arc<Batch>>,
    finalized: bool,
    revoked: bool,
    destroying: bool,
    excused: bool,
}

static COMMS: RwLock<BTreeMap<u64, Arc<Comm>>> = RwLock::new(BTreeMap::new());

/// Handles begin here, at addresses that no processor takes.
const FIRST: u64 = 0x6e63_636c_0000_0000;
static NEXT: AtomicU64 = AtomicU64::new(FIRST);

/// The live communicator of a handle.
pub(super) fn find(handle: NcclComm, call: &str) -> Outcome<Arc<Comm>> {
    not_null(handle, call, "comm")?;
    refuse_fork(call)?;
    let comms = COMMS.read().unwrap_or_else(PoisonError::into_inner);
    let comm = comms.get(&(handle as u64));
    comm.cloned().ok_or_else(|| {
        refuse(
            INVALID_ARGUMENT,
            format_args!(
                "Error: corrupted comm object detected by {call}: it was destroyed, or never made"
            ),
        )
    })
}

/// Whether there was a communicator with this handle.
pub(super) fn was_there(handle: NcclComm) -> bool {
    let handle = handle as u64;
    (FIRST..NEXT.load(Ordering::Relaxed)).contains(&handle) && handle % 16 == 0
}

/// A place of the caller's for a handle, which a job may write to later.
#[derive(Clone, Copy)]
pub(super) struct Out(*mut *mut c_void);

// SAFETY: the callers of the functions that take one keep it valid until it is written to.
unsafe impl Send for Out {}

impl Out {
    pub(super) fn new(place: *mut *mut c_void) -> Self {
        Self(place)
    }

    /// # Safety
    ///
    /// As [`Self::set`].
    pub(super) unsafe fn set_comm(self, comm: Option<&Comm>) {
        // SAFETY: as the caller says.
        unsafe { self.set(comm.map_or(ptr::null_mut(), |comm| comm.handle as NcclComm)) };
    }

    /// # Safety
    ///
    /// The place is still the caller's.
    pub(super) unsafe fn set(self, handle: *mut c_void) {
        // SAFETY: valid and aligned, as the caller vouches for. Atomic, since the program may look
        // at it meanwhile.
        let place = unsafe { AtomicPtr::from_ptr(self.0) };
        place.store(handle, Ordering::Release);
    }
}

impl Comm {
    pub(super) fn new(
        device: CuDevice,
        config: Config,
        flag: Arc<Flag>,
        memory: Memory,
    ) -> Arc<Self> {
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        Arc::new(Self {
            handle,
            device,
            config,
            flag,
            link: OnceLock::new(),
            locals: OnceLock::new(),
            state: Mutex::new(State {
                result: NcclResult::Success,
                jobs: 0,
                parked: 0,
                batch: None,
                finalized: false,
                revoked: false,
                destroying: false,
                excused: false,
            }),
            settled: Condvar::new(),
            operators: Mutex::new(Operators::new(handle)),
            memory,
            connected: AtomicBool::new(false),
            peers: Mutex::default(),
            children: Mutex::default(),
            growth: Mutex::default(),
            graphs: Arc::default(),
        })
    }

    /// Lets the handle be found.
    pub(super) fn publish(self: &Arc<Self>) {
        let mut comms = COMMS.write().unwrap_or_else(PoisonError::into_inner);
        comms.insert(self.handle, self.clone());
    }

    /// Takes the handle back. False if that was done before.
    pub(super) fn withdraw(&self) -> bool {
        let mut comms = COMMS.write().unwrap_or_else(PoisonError::into_inner);
        let removed = comms.remove(&self.handle);
        drop(comms);
        removed.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// How many ranks there are, and which this one is; 0 as long as the job that makes the
    /// communicator has not begun.
    pub(super) fn shape(&self) -> (i32, i32) {
        self.link
            .get()
            .map_or((0, 0), |link| (link.size as i32, link.rank as i32))
    }

    /// Where the ranks meet, once the communicator is made.
    pub(super) fn link(&self) -> Outcome<&Link> {
        match (self.locals.get(), self.link.get()) {
            (Some(_), Some(link)) => Ok(link),
            _ => Err(refuse(
                INVALID_ARGUMENT,
                format_args!("the communicator has never been made"),
            )),
        }
    }

    /// What all ranks know the communicator by; 0 before it is made.
    pub(super) fn hash(&self) -> u64 {
        self.link.get().map_or(0, |link| link.hash)
    }

    /// What `ncclCommGetAsyncError` tells. A lost rank is told once the communicator is made, and until
    /// its work was given up for it.
    pub(super) fn result(&self) -> NcclResult {
        let state = self.state();
        let (result, excused) = (state.result, state.excused);
        drop(state);
        if result == NcclResult::Success && !excused && self.locals.get().is_some() {
            if let Some(reason) = self.link.get().and_then(|link| link.exchange.lost()) {
                remember(&reason);
                return NcclResult::RemoteError;
            }
        }
        result
    }

    /// From now on a lost rank is none of this communicator's concern: its work was given up.
    pub(super) fn excuse(&self) {
        self.state().excused = true;
    }

    pub(super) fn set_result(&self, result: NcclResult) {
        self.state().result = result;
    }

    /// The state as the answer of a call: of a blocking communicator nothing is told.
    pub(super) fn answer(&self) -> Outcome {
        match self.result() {
            code if !self.config.blocking && code != NcclResult::Success => Err(code),
            _ => Ok(()),
        }
    }

    /// Notes a failed call in the state of a non-blocking communicator.
    pub(super) fn spoil(&self, code: NcclResult) -> NcclResult {
        if !self.config.blocking {
            self.set_result(code);
        }
        code
    }

    /// The communicator takes calls now.
    pub(super) fn ready(&self) -> Outcome {
        if self.flag.is_raised() {
            self.wait_for_jobs();
            return Ok(());
        }
        match self.result() {
            NcclResult::Success => Ok(()),
            NcclResult::InProgress => Err(refuse(
                INVALID_ARGUMENT,
                format_args!("the communicator is still in progress: poll ncclCommGetAsyncError"),
            )),
            code => Err(code),
        }
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.state().revoked
    }

    pub(super) fn is_destroying(&self) -> bool {
        self.state().destroying
    }

    /// From now on jobs of this communicator are its end.
    pub(super) fn set_destroying(&self) {
        self.state().destroying = true;
    }

    /// Marks it finalized. An error if it was.
    pub(super) fn set_finalized(&self) -> Outcome {
        let mut state = self.state();
        if state.finalized {
            return Err(INVALID_ARGUMENT);
        }
        state.finalized = true;
        Ok(())
    }

    /// Marks it revoked, unless something else came first.
    pub(super) fn set_revoked(&self) -> Outcome {
        let mut state = self.state();
        if state.destroying || state.finalized || state.revoked {
            return Err(INVALID_ARGUMENT);
        }
        (state.revoked, state.finalized) = (true, true);
        Ok(())
    }

    /// A background job begins: in progress from now on.
    pub(super) fn begin(&self, batch: &Arc<Batch>) {
        let mut state = self.state();
        state.result = NcclResult::InProgress;
        state.jobs += 1;
        state.batch = Some(batch.clone());
    }

    /// A background job is through. A result takes the place of whatever state there is, also of a
    /// refusal meanwhile.
    pub(super) fn end(&self, result: Option<NcclResult>) {
        let mut state = self.state();
        state.jobs -= 1;
        if state.jobs == 0 {
            state.batch = None;
        }
        if let Some(result) = result {
            state.result = result;
        }
        drop(state);
        self.settled.notify_all();
    }

    /// Waits for something, within a job, that the abort of this communicator does not end.
    pub(super) fn parked<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.state().parked += 1;
        self.settled.notify_all();
        let result = wait();
        self.state().parked -= 1;
        result
    }

    /// Raises the flag and waits until no job uses the communicator any more.
    pub(super) fn end_all(&self) {
        self.flag.raise();
        let batch = self.state().batch.clone();
        if let Some(batch) = batch {
            batch.end();
        }
        self.wait_for_jobs();
    }

    fn wait_for_jobs(&self) {
        let mut state = self.state();
        while state.jobs > state.parked {
            state = self
                .settled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A job of this communicator that its abort ends.
    pub(super) fn job(&self, run: impl FnOnce() -> Outcome + Send + 'static) -> Job {
        Job {
            flag: Some(self.flag.clone()),
            run: Box::new(run),
        }
    }

    /// Takes the rank's place at `exchange`.
    fn enter(&self, exchange: Arc<dyn Exchange>, rank: usize, hash: u64) -> Outcome<&Link> {
        self.flag.enter(&exchange, rank)?;
        Ok(self.link.get_or_init(|| Link {
            size: exchange.size(),
            exchange,
            rank,
            hash,
        }))
    }

    /// Waits for the other ranks and compares notes with them: then the communicator is made.
    fn introduce(&self, link: &Link) -> Result<Outcome, Aborted> {
        let process = processes::own();
        let mut card = self.device.to_ne_bytes().to_vec();
        card.extend(process);
        let cards = link.exchange.all_gather(link.rank, Topic::Init, &card)?;
        // The devices of the processes of a machine are the same.
        let device = |card: &[u8]| card.first_chunk::<{ size_of::<CuDevice>() }>().copied();
        let shares_device = |(place, card): (usize, &Vec<u8>)| {
            let mut before = cards[..place].iter();
            before.any(|other| device(other) == device(card))
        };
        if cards.iter().enumerate().any(shares_device)
            && param::number("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 0
        {
            return Ok(Err(refuse(
                INVALID_USAGE,
                format_args!(
                    "Multiple Ranks are using the same GPU/Partition. Set \
                     NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
                ),
            )));
        }
        let here = cards.iter().filter(|card| card.ends_with(&process)).count();
        self.locals.get_or_init(|| Locals::of(link.hash, here));
        Ok(Ok(()))
    }

    /// Makes the communicator with the ranks that hold the same ids.
    pub(super) fn meet(&self, seat: &Seat, rank: usize) -> Outcome {
        let link = self.enter(seat.exchange.clone(), rank, seat.hash)?;
        self.introduce(link)
            .unwrap_or_else(|Aborted| Err(broken_off(&link.exchange)))
    }

    /// Makes this communicator of `members`, ranks of `parent`, which all do so.
    pub(super) fn descend(&self, parent: &Comm, members: &[usize]) -> Outcome {
        let from = parent.link()?;
        let rank = members.iter().position(|member| *member == from.rank);
        let rank = rank.ok_or(NcclResult::InternalError)?;
        let times = {
            let mut children = lock(&parent.children);
            let times = children.entry(members.to_vec()).or_default();
            *times += 1;
            *times
        };
        let names: Vec<u8> = members
            .iter()
            .flat_map(|member| member.to_ne_bytes())
            .collect();
        let hash = ids::hash(&[&from.hash.to_ne_bytes(), &names, &times.to_ne_bytes()]);
        let exchange = from.exchange.derive(from.rank, members);
        let shared = Arc::ptr_eq(&self.flag, &parent.flag);
        if !shared {
            parent.flag.enter(&exchange, rank)?;
        }
        let made = self.enter(exchange.clone(), rank, hash).and_then(|link| {
            self.introduce(link)
                .unwrap_or_else(|Aborted| Err(broken_off(&link.exchange)))
        });
        if !shared {
            parent.flag.leave(&exchange);
        }
        made
    }

    /// Tells the others that they may write to this rank's memory at an address.
    pub(super) fn expose(&self, address: u64) -> Outcome {
        let link = self.link()?;
        link.exchange.expose(link.rank, address);
        Ok(())
    }

    /// Hands every rank all ranks' messages.
    pub(super) fn all_gather(&self, topic: Topic, message: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let link = self.link()?;
        let gathered = link.exchange.all_gather(link.rank, topic, message);
        gathered.map_err(|Aborted| broken_off(&link.exchange))
    }

    /// Whether the first collective is still to connect the ranks.
    pub(super) fn must_connect(&self) -> bool {
        !self.connected.load(Ordering::Relaxed)
    }

    /// Connects the ranks: all of them come here at their first collective.
    pub(super) fn connect(&self) -> Outcome {
        self.all_gather(Topic::Connect, &[])?;
        self.connected.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Those of the ways to send (false) and to receive (true) that are not connected.
    pub(super) fn unconnected(&self, ways: &HashSet<(usize, bool)>) -> HashSet<(usize, bool)> {
        ways - &*lock(&self.peers)
    }

    /// Connects ways to and from peers, which do the same.
    pub(super) fn connect_peers(&self, ways: HashSet<(usize, bool)>) -> Outcome {
        let link = self.link()?;
        let of = |receives| -> Vec<usize> {
            let ways = ways.iter().filter(|(_, way)| *way == receives);
            ways.map(|(peer, _)| *peer).collect()
        };
        let connected = link.exchange.connect(link.rank, &of(false), &of(true));
        connected.map_err(|Aborted| broken_off(&link.exchange))?;
        lock(&self.peers).extend(ways);
        Ok(())
    }

    /// Waits until the rank's work is through and no graph holds any, and then for the other ranks'
    /// as well. An error if one of those is lost, and with it what waited for it.
    pub(super) fn synchronize(&self, with_others: bool) -> Outcome {
        let Ok(link) = self.link() else { return Ok(()) };
        // An abort is no failure of these; it only has them return at once.
        let drained = link.exchange.drain(link.rank);
        if drained.is_err() && link.exchange.lost().is_some() {
            link.exchange.abort(link.rank);
        }
        self.graphs.wait();
        let mut gathered = drained;
        if with_others && !self.flag.is_raised() {
            let others = link.exchange.all_gather(link.rank, Topic::Finalize, &[]);
            gathered = gathered.and(others.map(drop));
        }
        match (gathered, link.exchange.lost()) {
            (Err(Aborted), Some(_)) if !self.flag.is_raised() => Err(broken_off(&link.exchange)),
            _ => Ok(()),
        }
    }

    /// Ends this rank's membership. The last rank that this process has ends the communicator: it
    /// finalizes those that were not.
    pub(super) fn reclaim(self: &Arc<Self>) -> Outcome {
        if !self.withdraw() {
            return Ok(());
        }
        // One that was never made is left as it is.
        let Some(locals) = self.locals.get() else {
            return Ok(());
        };
        let mut gone = locals.leave(self);
        let all = gone.len();
        gone.retain(|comm| comm.set_finalized().is_ok());
        // Ranks that were aborted or revoked do not come to the barrier.
        let whole = gone.len() == all && gone.iter().all(|comm| !comm.flag.is_raised());
        let jobs = gone.into_iter().map(|comm| {
            let run = move || {
                // Whoever is gone has ended before.
                let _ = comm.synchronize(whole);
                Ok(())
            };
            Job {
                flag: None,
                run: Box::new(run),
            }
        });
        Arc::<Batch>::default().run(jobs.collect())
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Some(link) = self.link.get() {
            self.flag.leave(&link.exchange);
            link.exchange.leave(link.rank);
        }
    }
}

/// The ranks that this process has of one communicator.
struct Locals {
    hash: u64,
    here: usize,
    gone: Mutex<Vec<Arc<Comm>>>,
}

static LOCALS: Mutex<BTreeMap<u64, Arc<Locals>>> = Mutex::new(BTreeMap::new());

impl Locals {
    /// Those of the communicator with this hash, `here` in number.
    fn of(hash: u64, here: usize) -> Arc<Self> {
        let mut all = lock(&LOCALS);
        let locals = all.entry(hash).or_insert_with(|| {
            Arc::new(Self {
                hash,
                here,
                gone: Mutex::default(),
            })
        });
        locals.clone()
    }

    /// Counts a rank out. The last one gets them all.
    fn leave(&self, comm: &Arc<Comm>) -> Vec<Arc<Comm>> {
        let mut gone = lock(&self.gone);
        gone.push(comm.clone());
        if gone.len() < self.here {
            return Vec::new();
        }
        lock(&LOCALS).remove(&self.hash);
        std::mem::take(&mut gone)
    }
}

/// How much of a communicator's work lies in captured graphs.
#[derive(Default)]
pub(super) struct Graphs {
    held: Mutex<usize>,
    released: Condvar,
}

impl Graphs {
    /// Waits until no graph holds work of the communicator.
    fn wait(&self) {
        let mut held = lock(&self.held);
        while *held > 0 {
            held = self
                .released
                .wait(held)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `work`, counted as long as a graph holds it.
    pub(super) fn count(self: &Arc<Self>, work: Arc<dyn Work>) -> Arc<dyn Work> {
        *lock(&self.held) += 1;
        Arc::new(Captured {
            work,
            graphs: self.clone(),
        })
    }
}

struct Captured {
    work: Arc<dyn Work>,
    graphs: Arc<Graphs>,
}

impl Work for Captured {
    fn issue(&self) -> Box<dyn Execution> {
        self.work.issue()
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        *lock(&self.graphs.held) -= 1;
        self.graphs.released.notify_all();
    }
}

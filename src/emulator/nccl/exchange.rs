//! Where the ranks of one communicator meet: what they ask of each other, and the process that does it
//! for them. How ranks of other processes get there is in `processes`.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::error::warn;
use super::processes::{self, Abroad, Atlas, Mapped, Notice, Wire};
use super::transfer::{self, Move};
use crate::cuda::{CuDevice, CuResult, CuStream};
use crate::emulator::cuda::Done;
use crate::nccl::NcclDataType;

/// What one call asks for, kept whole so that the ranks' calls can be compared.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// Address of the elements to read; 0 where the call reads none on this rank.
    pub(super) send: u64,
    /// Address of the elements to write; 0 where the call writes none on this rank. For a put, the
    /// address in the peer's memory.
    pub(super) recv: u64,
    /// Elements, as the call counts them.
    pub(super) count: usize,
    pub(super) datatype: NcclDataType,
    /// How elements are combined; `Sum` where nothing is reduced.
    pub(super) operator: Operator,
    /// The root of a rooted collective, the peer of a point-to-point or one-sided call; otherwise 0.
    pub(super) peer: usize,
    /// The stream that the call named.
    pub(super) stream: CuStream,
}

/// The calls that move data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
    Send,
    Recv,
    /// Writes into a peer's window, then raises a signal there.
    Put(Signal),
    /// Raises a signal at a peer.
    Signal(Signal),
    /// Waits until every entry's signals have come, and uses them up.
    Wait(Vec<Expected>),
}

/// Which of a peer's signals is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Signal {
    pub(super) context: i32,
    pub(super) index: i32,
}

/// Signals of one peer to wait for. A peer that does not exist is waited for forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) peer: i32,
    pub(super) signal: Signal,
    pub(super) times: u64,
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// The sum of every rank's elements times its own scalar.
    PreMulSum(Scalar),
}

/// The scalar of a user's operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    /// One element, in the first bytes.
    Immediate([u8; 8]),
    /// Device address of one element, read when the reduction runs.
    Device(u64),
}

/// What a rank hands over at once on one communicator: a call, or all calls of a group.
#[derive(Debug)]
pub(super) struct Launch {
    /// The rank's device.
    pub(super) device: CuDevice,
    /// The calls, in their order.
    pub(super) requests: Vec<Request>,
    /// The requests that run one after another: one-sided calls, then collectives.
    steps: Vec<usize>,
    /// The sends and receives of all other calls, which follow together.
    messages: Vec<Message>,
    /// About how many bytes are read and written for it, over all ranks.
    pub(super) traffic: usize,
    /// Memory of another process that its addresses are in.
    pub(super) mapped: Vec<Arc<Mapped>>,
}

/// One send or receive.
#[derive(Clone, Copy, Debug)]
struct Message {
    peer: usize,
    sends: bool,
    address: u64,
    bytes: usize,
    /// Its request, among those of the launch.
    request: usize,
}

impl Request {
    /// Bytes in `count` elements.
    pub(super) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.datatype.size().unwrap_or(0))
    }

    /// Whether both ask for the same collective. Calls that only move data compare by bytes.
    fn agrees_with(&self, other: &Self) -> bool {
        let reduced = match self.kind {
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => {
                let operator = |asked: &Self| std::mem::discriminant(&asked.operator);
                self.datatype == other.datatype && operator(self) == operator(other)
            }
            _ => true,
        };
        reduced
            && self.kind == other.kind
            && self.peer == other.peer
            && self.bytes() == other.bytes()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, count, datatype) = (&self.kind, self.count, self.datatype);
        write!(f, "{kind:?} of {count} {datatype:?}")?;
        match self.kind {
            Kind::AllReduce | Kind::ReduceScatter => write!(f, " by {:?}", self.operator),
            Kind::Reduce => write!(f, " by {:?} at root {}", self.operator, self.peer),
            Kind::Broadcast | Kind::Gather | Kind::Scatter => write!(f, ", root {}", self.peer),
            Kind::AllGather | Kind::AlltoAll => Ok(()),
            _ => write!(f, ", peer {}", self.peer),
        }
    }
}

impl Launch {
    /// What `rank` of `size` asks for by `requests`, which are valid. Collectives of no elements are no work.
    pub(super) fn new(rank: usize, size: usize, device: CuDevice, requests: Vec<Request>) -> Self {
        let (mut one_sided, mut collectives) = (Vec::new(), Vec::new());
        let mut messages = Vec::new();
        let mut traffic: usize = 0;
        for (request, asked) in requests.iter().enumerate() {
            let bytes = asked.bytes();
            let block = |base: u64, rank: usize| base.wrapping_add(rank.wrapping_mul(bytes) as u64);
            let mut message = |peer, sends, address| {
                messages.push(Message {
                    peer,
                    sends,
                    address,
                    bytes,
                    request,
                });
            };
            let mut moved = bytes.saturating_mul(2);
            match &asked.kind {
                Kind::Put(_) | Kind::Signal(_) | Kind::Wait(_) => one_sided.push(request),
                Kind::Send => message(asked.peer, true, asked.send),
                Kind::Recv => message(asked.peer, false, asked.recv),
                _ if bytes == 0 => {}
                Kind::AlltoAll => {
                    moved = moved.saturating_mul(size);
                    for peer in 0..size {
                        message(peer, true, block(asked.send, peer));
                        message(peer, false, block(asked.recv, peer));
                    }
                }
                Kind::Gather => {
                    moved = moved.saturating_mul(size);
                    message(asked.peer, true, asked.send);
                    if rank == asked.peer {
                        (0..size).for_each(|peer| message(peer, false, block(asked.recv, peer)));
                    }
                }
                Kind::Scatter => {
                    moved = moved.saturating_mul(size);
                    if rank == asked.peer {
                        (0..size).for_each(|peer| message(peer, true, block(asked.send, peer)));
                    }
                    message(asked.peer, false, asked.recv);
                }
                Kind::AllReduce | Kind::Broadcast | Kind::Reduce => {
                    moved = moved.saturating_mul(size);
                    collectives.push(request);
                }
                Kind::AllGather | Kind::ReduceScatter => {
                    moved = moved.saturating_mul(size).saturating_mul(size);
                    collectives.push(request);
                }
            }
            traffic = traffic.saturating_add(moved);
        }
        one_sided.append(&mut collectives);
        Self {
            device,
            requests,
            steps: one_sided,
            messages,
            traffic,
            mapped: Vec::new(),
        }
    }
}

/// The rank's abort came first, or a peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aborted;

/// What each rank says, in the order of ranks.
pub(super) type Messages = Vec<Vec<u8>>;

/// A communicator's ranks, seen from any of them.
///
/// A rank's launches run one after another in the order of their places, whatever streams they are on.
/// Their n-th collectives meet; sends and receives meet in order for each pair of ranks and direction.
pub(super) trait Exchange: Send + Sync {
    /// How many ranks there are.
    fn size(&self) -> usize;

    /// The next place in `rank`'s order of launches, taken when the launch is issued.
    fn place(&self, rank: usize) -> u64;

    /// Starts a launch: its stream has come to it. It may begin later, if an earlier place is not
    /// through. Returns at once or after a piece of the work, never waiting for a peer.
    fn start(&self, rank: usize, place: u64, launch: Arc<Launch>, done: Done);

    /// Gives up a place whose launch will never start.
    fn skip(&self, rank: usize, place: u64);

    /// Waits until all launches that have a place are through: `Aborted` if an abort ended them, or they
    /// may never be.
    fn drain(&self, rank: usize) -> Result<(), Aborted>;

    /// Ends all that `rank` does and waits for. Its launches, also later ones, finish at once with
    /// success and touch no memory; peers that wait for it go on waiting. Control messages answer
    /// `Aborted` until [`restore`](Self::restore). When it returns, nothing of this rank runs.
    fn abort(&self, rank: usize);

    /// Lets control messages through again after an abort, which some calls only use to end the work.
    fn restore(&self, rank: usize);

    /// Hands every rank all ranks' messages, in the order of ranks. Waits for all of them. The n-th call
    /// for a topic meets the n-th of the others. With an empty message it is a barrier.
    fn all_gather(&self, rank: usize, topic: Topic, message: &[u8]) -> Result<Messages, Aborted>;

    /// Waits until each peer that `rank` sends to has asked to receive from it, and the other way about.
    /// Once is enough for each pair and direction.
    fn connect(&self, rank: usize, send_to: &[usize], recv_from: &[usize]) -> Result<(), Aborted>;

    /// A new meeting place for some of the ranks, `members`, in the order of their new ranks. Each
    /// member calls it with the same list; it does not wait.
    fn derive(&self, rank: usize, members: &[usize]) -> Arc<dyn Exchange>;

    /// Tells the others that they may write to `rank`'s memory at this address.
    fn expose(&self, _rank: usize, _address: u64) {}

    /// Why the ranks can never be whole again, if it is so. Control messages are answered `Aborted` then;
    /// launches that need what is gone wait for their rank's abort.
    fn lost(&self) -> Option<String>;

    /// `rank` has no more to do here.
    fn leave(&self, rank: usize);
}

/// What a control message is about: those of different topics never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    Init,
    /// The first collective.
    Connect,
    Split,
    Grow,
    Window,
    Memory,
    Finalize,
}

/// The exchange of ranks that live in this process.
///
/// Whoever brings what was missing does the work: the last rank to reach a collective, and the later
/// side of a send and its receive. No thread waits for a peer, save in the calls that say so.
pub(super) struct InProcess {
    size: usize,
    lanes: Mutex<Lanes>,
    /// Told when a rank's launches are through, or its work outside the lock is.
    through: Condvar,
    control: Mutex<Control>,
    /// Told when a control message completes something, or a rank is aborted.
    answered: Condvar,
    /// Whether there is a reason in `control` why the ranks are lost: every call asks.
    is_lost: AtomicBool,
}

/// What the ranks are at.
struct Lanes {
    lanes: Vec<Lane>,
    /// The ranks that have reached the next collective. Launches of one rank run one by one, so there
    /// is never more than one collective that some ranks have reached.
    meeting: Vec<Option<Arrival>>,
    arrived: usize,
    /// Sends without a receive yet, or the other way about, for each sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<Post>>,
    /// How many threads wait for `through`.
    watchers: usize,
    /// The processes of the ranks that are not in this one.
    abroad: Vec<Option<Arc<Abroad>>>,
    /// A rank is lost.
    broken: bool,
}

/// What one rank is at.
#[derive(Default)]
struct Lane {
    /// Places handed out.
    issued: u64,
    /// The place whose launch is running, or is the next to run.
    next: u64,
    running: Option<Running>,
    /// Started launches with later places; `None` for a place that was given up.
    waiting: BTreeMap<u64, Option<(Arc<Launch>, Done)>>,
    /// Pieces of work that use this rank's memory just now, outside the lock.
    busy: usize,
    aborted: bool,
    /// Signals that have come and were not waited for, by peer.
    signals: HashMap<(i32, Signal), u64>,
}

struct Running {
    launch: Arc<Launch>,
    done: Done,
    /// How many of its steps are through.
    step: usize,
    /// Whether its messages were posted, and how many of them are not through.
    posted: bool,
    open: usize,
    /// What the work that is done so far came to.
    result: CuResult,
}

/// A rank at a collective: the launch, and which of its requests it is.
pub(super) type Arrival = (Arc<Launch>, usize);

/// A message without its partner yet.
struct Post {
    sends: bool,
    launch: Arc<Launch>,
    message: usize,
}

/// Work that is found under the lock and done outside of it.
enum Action {
    Collective(Vec<Arrival>),
    /// A put of `rank`: what it copies and whom it signals then.
    Put(usize, usize, Move, Signal, Option<Arc<Mapped>>),
    /// A message of the first rank to the second.
    Message(usize, usize, Move),
}

/// What a change under the lock leads to.
#[derive(Default)]
struct Todo {
    /// Ranks that may have got further.
    ready: Vec<usize>,
    actions: Vec<Action>,
    finished: Vec<(Done, CuResult)>,
}

impl InProcess {
    pub(super) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            lanes: Mutex::new(Lanes {
                lanes: (0..size).map(|_| Lane::default()).collect(),
                meeting: (0..size).map(|_| None).collect(),
                arrived: 0,
                mail: HashMap::new(),
                watchers: 0,
                abroad: vec![None; size],
                broken: false,
            }),
            through: Condvar::new(),
            control: Mutex::new(Control {
                aborted: vec![false; size],
                left: vec![false; size],
                wires: vec![None; size],
                ..Control::default()
            }),
            answered: Condvar::new(),
            is_lost: AtomicBool::new(false),
        })
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does all that can be done now, from the ranks that are ready. The lock is given back before any
    /// memory is moved and any launch finished.
    fn go_on<'a>(&'a self, mut lanes: MutexGuard<'a, Lanes>, mut todo: Todo) {
        loop {
            while let Some(rank) = todo.ready.pop() {
                lanes.advance(rank, &mut todo);
            }
            let watched = lanes.watchers > 0;
            drop(lanes);
            if watched {
                self.through.notify_all();
            }
            for (done, result) in todo.finished.drain(..) {
                done.finish(result);
            }
            if todo.actions.is_empty() {
                return;
            }
            let actions = std::mem::take(&mut todo.actions);
            let results = perform(&actions);
            lanes = self.lanes();
            for (action, result) in actions.into_iter().zip(results) {
                lanes.complete(action, result, &mut todo);
            }
        }
    }

    /// Waits until `through` holds for the lane.
    fn watch(&self, rank: usize, through: impl Fn(&Lane, bool) -> bool) -> MutexGuard<'_, Lanes> {
        let mut lanes = self.lanes();
        while !through(&lanes.lanes[rank], lanes.broken) {
            lanes.watchers += 1;
            lanes = self
                .through
                .wait(lanes)
                .unwrap_or_else(PoisonError::into_inner);
            lanes.watchers -= 1;
        }
        lanes
    }
}

/// Moves the memory of all actions, together where they are messages.
fn perform(actions: &[Action]) -> Vec<CuResult> {
    if let [Action::Collective(arrivals)] = actions {
        return vec![transfer::collective(arrivals)];
    }
    let copies: Vec<Move> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Put(_, _, copy, ..) | Action::Message(_, _, copy) => Some(*copy),
            Action::Collective(_) => None,
        })
        .collect();
    let mut copied = transfer::copy_all(&copies).into_iter();
    actions
        .iter()
        .map(|action| match action {
            Action::Collective(arrivals) => transfer::collective(arrivals),
            _ => copied.next().unwrap_or(CuResult::Success),
        })
        .collect()
}

impl Lanes {
    /// Takes a rank as far as it can go.
    fn advance(&mut self, rank: usize, todo: &mut Todo) {
        loop {
            let lane = &mut self.lanes[rank];
            if lane.busy > 0 {
                return;
            }
            if lane.aborted {
                lane.finish_all(todo);
                return;
            }
            let Some(running) = &mut lane.running else {
                match lane.waiting.remove(&lane.next) {
                    None => return,
                    Some(None) => lane.next += 1,
                    Some(Some((launch, done))) => lane.running = Some(Running::new(launch, done)),
                }
                continue;
            };
            if running.result != CuResult::Success {
                lane.finish(todo);
                self.withdraw(rank);
                continue;
            }
            let launch = running.launch.clone();
            if let Some(&request) = launch.steps.get(running.step) {
                if !self.step(rank, launch, request, todo) {
                    return;
                }
            } else if !running.posted {
                running.posted = true;
                running.open = launch.messages.len();
                for message in 0..launch.messages.len() {
                    self.post(rank, &launch, message, todo);
                }
            } else if running.open > 0 {
                return;
            } else {
                lane.finish(todo);
            }
        }
    }

    /// Does one step of the running launch. False if the rank must wait, for a peer or for the action.
    fn step(&mut self, rank: usize, launch: Arc<Launch>, request: usize, todo: &mut Todo) -> bool {
        let asked = &launch.requests[request];
        match &asked.kind {
            Kind::Put(signal) => {
                let (to, mapped) = match &self.abroad[asked.peer] {
                    None => (asked.recv, None),
                    Some(abroad) => abroad.reach(asked.recv),
                };
                let copy = Move {
                    from: asked.send,
                    to,
                    bytes: asked.bytes(),
                };
                self.lanes[rank].busy += 1;
                if asked.peer != rank {
                    if self.lanes[asked.peer].aborted {
                        self.lanes[rank].busy -= 1;
                        return self.stepped(rank);
                    }
                    self.lanes[asked.peer].busy += 1;
                }
                todo.actions
                    .push(Action::Put(rank, asked.peer, copy, *signal, mapped));
                false
            }
            Kind::Signal(signal) => {
                self.raise(rank, asked.peer, *signal, todo);
                self.stepped(rank)
            }
            Kind::Wait(expected) => {
                let signals = &mut self.lanes[rank].signals;
                // Entries for the same signal wait for as many as all of them together.
                let mut needed: HashMap<(i32, Signal), u64> = HashMap::new();
                for one in expected {
                    let times = needed.entry((one.peer, one.signal)).or_default();
                    *times = times.saturating_add(one.times);
                }
                if needed
                    .iter()
                    .any(|(key, times)| signals.get(key).copied().unwrap_or(0) < *times)
                {
                    return false;
                }
                for (key, times) in needed {
                    *signals.entry(key).or_default() -= times;
                }
                self.stepped(rank)
            }
            _ => {
                if self.meeting[rank].is_some() {
                    return false;
                }
                self.meeting[rank] = Some((launch, request));
                self.arrived += 1;
                if self.arrived < self.meeting.len() || self.disagree() {
                    return false;
                }
                self.arrived = 0;
                let arrivals = self.meeting.iter_mut().filter_map(Option::take).collect();
                for lane in &mut self.lanes {
                    lane.busy += 1;
                }
                todo.actions.push(Action::Collective(arrivals));
                false
            }
        }
    }

    fn stepped(&mut self, rank: usize) -> bool {
        if let Some(running) = &mut self.lanes[rank].running {
            running.step += 1;
        }
        true
    }

    fn raise(&mut self, rank: usize, peer: usize, signal: Signal, todo: &mut Todo) {
        let signals = &mut self.lanes[peer].signals;
        *signals.entry((rank as i32, signal)).or_default() += 1;
        if peer != rank {
            todo.ready.push(peer);
        }
    }

    /// Whether the ranks at the collective ask for different things. NCCL would hang or spoil memory;
    /// here they wait until they are aborted.
    fn disagree(&self) -> bool {
        let arrivals = || self.meeting.iter().flatten();
        let mut asked = arrivals().map(|(launch, i)| &launch.requests[*i]);
        let Some(first) = asked.next() else {
            return false;
        };
        let differ = asked.any(|other| !first.agrees_with(other));
        if differ {
            complain(
                arrivals()
                    .enumerate()
                    .map(|(rank, (launch, i))| (rank, &**launch, *i)),
            );
        }
        differ
    }

    /// Brings a message to its partner, or leaves it for the partner to find.
    fn post(&mut self, rank: usize, launch: &Arc<Launch>, message: usize, todo: &mut Todo) {
        let Message { peer, sends, .. } = launch.messages[message];
        let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
        let mail = self.mail.entry((from, to)).or_default();
        match mail.front() {
            Some(partner) if partner.sends != sends => {}
            _ => {
                mail.push_back(Post {
                    sends,
                    launch: launch.clone(),
                    message,
                });
                return;
            }
        }
        let Some(partner) = mail.pop_front() else {
            return;
        };
        let own = &launch.messages[message];
        let other = &partner.launch.messages[partner.message];
        let (sent, received) = if sends { (own, other) } else { (other, own) };
        // A rank's message to itself is as long as the send. Two ranks that disagree wait for ever.
        if sent.bytes != received.bytes && from != to {
            let asked = [
                (rank, &**launch, own.request),
                (peer, &*partner.launch, other.request),
            ];
            complain(asked.into_iter());
            return;
        }
        let copy = Move {
            from: sent.address,
            to: received.address,
            bytes: sent.bytes,
        };
        self.lanes[from].busy += 1;
        self.lanes[to].busy += 1;
        todo.actions.push(Action::Message(from, to, copy));
    }

    /// Takes note that an action is through.
    fn complete(&mut self, action: Action, result: CuResult, todo: &mut Todo) {
        match action {
            Action::Collective(_) => {
                for rank in 0..self.lanes.len() {
                    self.worked(rank, result, todo);
                    self.stepped(rank);
                }
            }
            Action::Put(rank, peer, _, signal, mapped) => {
                drop(mapped);
                self.worked(rank, result, todo);
                self.stepped(rank);
                if peer != rank {
                    self.worked(peer, CuResult::Success, todo);
                }
                if result == CuResult::Success {
                    self.raise(rank, peer, signal, todo);
                }
            }
            Action::Message(from, to, _) => {
                for rank in [from, to] {
                    self.worked(rank, result, todo);
                    if let Some(running) = &mut self.lanes[rank].running {
                        running.open -= 1;
                    }
                }
            }
        }
    }

    /// One piece of work less uses the rank's memory.
    fn worked(&mut self, rank: usize, result: CuResult, todo: &mut Todo) {
        let lane = &mut self.lanes[rank];
        lane.busy -= 1;
        if let Some(running) = &mut lane.running {
            if running.result == CuResult::Success {
                running.result = result;
            }
        }
        todo.ready.push(rank);
    }

    /// Takes back all that the rank has left for its peers to find.
    fn withdraw(&mut self, rank: usize) {
        if self.meeting[rank].take().is_some() {
            self.arrived -= 1;
        }
        for (&(from, to), mail) in &mut self.mail {
            // The rank has sent to the peer, or received from it.
            if from == rank {
                mail.retain(|post| to != rank && !post.sends);
            }
            if to == rank {
                mail.retain(|post| from != rank && post.sends);
            }
        }
    }
}

/// Says what each rank asked for, by its launch and which request of it that is.
fn complain<'a>(asked: impl Iterator<Item = (usize, &'a Launch, usize)>) {
    let calls: Vec<String> = asked
        .map(|(rank, launch, i)| {
            let (device, request) = (launch.device, &launch.requests[i]);
            format!(
                "\n  rank {rank}, device {device}, stream {:#x}: {request}",
                request.stream
            )
        })
        .collect();
    eprintln!(
        "metrale-gpu-sys: ranks disagree, and wait until they are aborted (NCCL hangs or spoils memory):{}",
        calls.concat()
    );
}

impl Running {
    fn new(launch: Arc<Launch>, done: Done) -> Self {
        Self {
            launch,
            done,
            step: 0,
            posted: false,
            open: 0,
            result: CuResult::Success,
        }
    }
}

impl Lane {
    /// The running launch is through.
    fn finish(&mut self, todo: &mut Todo) {
        if let Some(running) = self.running.take() {
            todo.finished.push((running.done, running.result));
            self.next += 1;
        }
    }

    /// An aborted rank's launches are through, all of them.
    fn finish_all(&mut self, todo: &mut Todo) {
        let running = self.running.take().map(|running| running.done);
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_values().flatten().map(|(_, done)| done);
        let dones = running.into_iter().chain(waiting);
        todo.finished
            .extend(dones.map(|done| (done, CuResult::Success)));
    }
}

impl Exchange for InProcess {
    fn size(&self) -> usize {
        self.size
    }

    fn place(&self, rank: usize) -> u64 {
        let mut lanes = self.lanes();
        let issued = &mut lanes.lanes[rank].issued;
        *issued += 1;
        *issued - 1
    }

    fn start(&self, rank: usize, place: u64, launch: Arc<Launch>, done: Done) {
        let mut lanes = self.lanes();
        let lane = &mut lanes.lanes[rank];
        let mut todo = Todo::default();
        if lane.aborted && lane.busy == 0 {
            todo.finished.push((done, CuResult::Success));
        } else {
            if lane.running.is_none() && place == lane.next {
                lane.running = Some(Running::new(launch, done));
            } else {
                lane.waiting.insert(place, Some((launch, done)));
            }
            todo.ready.push(rank);
        }
        self.go_on(lanes, todo);
    }

    fn skip(&self, rank: usize, place: u64) {
        let mut lanes = self.lanes();
        lanes.lanes[rank].waiting.insert(place, None);
        let todo = Todo {
            ready: vec![rank],
            ..Todo::default()
        };
        self.go_on(lanes, todo);
    }

    fn drain(&self, rank: usize) -> Result<(), Aborted> {
        let through = |lane: &Lane| lane.next == lane.issued;
        let lanes = self.watch(rank, |lane, broken| lane.aborted || broken || through(lane));
        let lane = &lanes.lanes[rank];
        match !lane.aborted && through(lane) {
            true => Ok(()),
            false => Err(Aborted),
        }
    }

    fn abort(&self, rank: usize) {
        let mut control = self.control();
        control.aborted[rank] = true;
        self.changed(&mut control);
        drop(control);
        let mut lanes = self.lanes();
        lanes.lanes[rank].aborted = true;
        lanes.withdraw(rank);
        let todo = Todo {
            ready: vec![rank],
            ..Todo::default()
        };
        self.go_on(lanes, todo);
        drop(self.watch(rank, |lane, _| lane.busy == 0 && lane.running.is_none()));
    }

    fn restore(&self, rank: usize) {
        self.control().aborted[rank] = false;
    }

    fn all_gather(&self, rank: usize, topic: Topic, message: &[u8]) -> Result<Messages, Aborted> {
        let mut control = self.control();
        let round = control.gather(rank, topic, message)?;
        self.changed(&mut control);
        self.wait(control, rank, |control| control.gathered(rank, round))
    }

    fn connect(&self, rank: usize, send_to: &[usize], recv_from: &[usize]) -> Result<(), Aborted> {
        let mut control = self.control();
        control.offer(rank, send_to, recv_from);
        self.changed(&mut control);
        self.wait(control, rank, |control| {
            control.met(rank, send_to, recv_from).then_some(())
        })
    }

    fn derive(&self, rank: usize, members: &[usize]) -> Arc<dyn Exchange> {
        let mut control = self.control();
        let times = control.derived.entry((rank, members.to_vec())).or_default();
        let child = (members.to_vec(), *times);
        *times += 1;
        if let Some(atlas) = control.atlas.clone() {
            drop(control);
            return processes::derive(&atlas, rank, members, child.1);
        }
        let (exchange, takers) = control
            .children
            .entry(child.clone())
            .or_insert_with(|| (InProcess::new(members.len()), 0));
        *takers += 1;
        let exchange = exchange.clone();
        if *takers == members.len() {
            control.children.remove(&child);
        }
        exchange
    }

    fn lost(&self) -> Option<String> {
        match self.is_lost.load(Ordering::Acquire) {
            true => self.control().lost.clone(),
            false => None,
        }
    }

    fn leave(&self, rank: usize) {
        let mut control = self.control();
        control.left[rank] = true;
        if control.left.iter().all(|left| *left) {
            // Those that were aborted have kept theirs.
            let wires = control.wires.iter_mut().filter_map(Option::take);
            wires.for_each(|wire| wire.close());
        }
    }
}

/// Control messages on their way.
#[derive(Default)]
struct Control {
    aborted: Vec<bool>,
    /// How often each rank has gathered, by topic.
    calls: HashMap<(usize, Topic), u64>,
    /// The messages of each gathering that is not through, by rank.
    rounds: HashMap<Round, HashMap<usize, Vec<u8>>>,
    /// Which sides of the ways from a rank to another are connected; true for the sender's.
    connected: HashSet<(usize, usize, bool)>,
    /// How often each rank has derived an exchange for these members.
    derived: HashMap<(usize, Vec<usize>), u64>,
    /// Exchanges that not all members have taken yet, and how many have.
    children: HashMap<(Vec<usize>, u64), (Arc<InProcess>, usize)>,
    /// The connections of the ranks that are not in this process.
    wires: Vec<Option<Arc<Wire>>>,
    /// What those ranks wait for.
    watches: Vec<Watch>,
    /// A rank of this process, once others may have to know what they lose with it.
    own: Option<usize>,
    /// Where all ranks are, once they have come and some are not in this process.
    atlas: Option<Arc<Atlas>>,
    lost: Option<String>,
    /// All ranks have finalized: nobody is missed any more.
    over: bool,
    left: Vec<bool>,
}

/// Which gathering: the n-th of a topic.
type Round = (Topic, u64);

/// What a rank of another process waits for, and how it is told.
struct Watch {
    rank: usize,
    met: Box<Met>,
    tell: Tell,
}

type Met = dyn FnMut(&mut Control) -> Option<Messages> + Send;

/// Tells a rank of another process what came of its control message.
pub(super) type Tell = Box<dyn FnOnce(Result<Messages, Aborted>) + Send>;

impl Control {
    fn usable(&self, rank: usize) -> Result<(), Aborted> {
        match self.aborted[rank] || self.lost.is_some() {
            true => Err(Aborted),
            false => Ok(()),
        }
    }

    /// Leaves a rank's message for a gathering.
    fn gather(&mut self, rank: usize, topic: Topic, message: &[u8]) -> Result<Round, Aborted> {
        self.usable(rank)?;
        let call = self.calls.entry((rank, topic)).or_default();
        let round = (topic, *call);
        *call += 1;
        let messages = self.rounds.entry(round).or_default();
        messages.insert(rank, message.to_vec());
        self.over |= topic == Topic::Finalize && messages.len() == self.aborted.len();
        Ok(round)
    }

    /// The messages of a gathering, once all are there. Each rank takes them once.
    fn gathered(&mut self, rank: usize, round: Round) -> Option<Messages> {
        let size = self.aborted.len();
        let all = self.rounds.get_mut(&round)?;
        if all.len() < size {
            return None;
        }
        let messages = (0..size).map(|rank| all[&rank].clone()).collect();
        // Counts those who have their answer, beside the messages.
        all.insert(size + rank, Vec::new());
        if all.len() == 2 * size {
            self.rounds.remove(&round);
        }
        Some(messages)
    }

    /// Says which ways a rank would connect.
    fn offer(&mut self, rank: usize, send_to: &[usize], recv_from: &[usize]) {
        let sends = send_to.iter().map(|&to| (rank, to, true));
        let receives = recv_from.iter().map(|&from| (from, rank, false));
        self.connected.extend(sends.chain(receives));
    }

    /// Whether the other sides of these ways have been offered.
    fn met(&self, rank: usize, send_to: &[usize], recv_from: &[usize]) -> bool {
        let mut sends = send_to.iter().map(|&to| (rank, to, false));
        let mut receives = recv_from.iter().map(|&from| (from, rank, true));
        sends.all(|way| self.connected.contains(&way))
            && receives.all(|way| self.connected.contains(&way))
    }
}

impl InProcess {
    /// Waits until `met` has something, or the rank is aborted.
    fn wait<T>(
        &self,
        mut control: MutexGuard<'_, Control>,
        rank: usize,
        mut met: impl FnMut(&mut Control) -> Option<T>,
    ) -> Result<T, Aborted> {
        loop {
            if let Some(answer) = met(&mut control) {
                return Ok(answer);
            }
            control.usable(rank)?;
            control = self
                .answered
                .wait(control)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells all who wait that there may be something for them.
    fn changed(&self, control: &mut Control) {
        self.answered.notify_all();
        if control.watches.is_empty() {
            return;
        }
        for mut watch in std::mem::take(&mut control.watches) {
            match ((watch.met)(control), control.usable(watch.rank)) {
                (Some(answer), _) => (watch.tell)(Ok(answer)),
                (None, Err(aborted)) => (watch.tell)(Err(aborted)),
                (None, Ok(())) => control.watches.push(watch),
            }
        }
    }
}

/// For ranks of other processes.
impl InProcess {
    /// As `all_gather`, for a rank that is told.
    pub(super) fn gather_for(&self, rank: usize, topic: Topic, message: &[u8], tell: Tell) {
        let mut control = self.control();
        match control.gather(rank, topic, message) {
            Err(aborted) => tell(Err(aborted)),
            Ok(round) => {
                control.watches.push(Watch {
                    rank,
                    met: Box::new(move |control| control.gathered(rank, round)),
                    tell,
                });
                self.changed(&mut control);
            }
        }
    }

    /// As `connect`, for a rank that is told.
    pub(super) fn connect_for(
        &self,
        rank: usize,
        send_to: Vec<usize>,
        recv_from: Vec<usize>,
        tell: Tell,
    ) {
        let mut control = self.control();
        control.offer(rank, &send_to, &recv_from);
        control.watches.push(Watch {
            rank,
            met: Box::new(move |control| control.met(rank, &send_to, &recv_from).then(Vec::new)),
            tell,
        });
        self.changed(&mut control);
    }

    /// Gives a rank of another process its place. False if there is one at it.
    pub(super) fn seat(&self, rank: usize, wire: &Arc<Wire>, abroad: &Arc<Abroad>) -> bool {
        let mut control = self.control();
        if control.left.get(rank) != Some(&false) || control.wires[rank].is_some() {
            return false;
        }
        control.wires[rank] = Some(wire.clone());
        if let Some(own) = control.own {
            wire.send(Notice::Host(own).frame());
        }
        if let Some(reason) = &control.lost {
            wire.send(Notice::Lost(reason).frame());
        }
        drop(control);
        self.lanes().abroad[rank] = Some(abroad.clone());
        true
    }

    /// A rank of this process has come.
    pub(super) fn seat_own(&self, rank: usize) {
        let mut control = self.control();
        if control.own.is_none() {
            control.own = Some(rank);
            for wire in control.wires.iter().flatten() {
                wire.send(Notice::Host(rank).frame());
            }
        }
    }

    /// All ranks have come, and this is where they are.
    pub(super) fn chart(&self, atlas: Arc<Atlas>) {
        let mut control = self.control();
        // The work of a communicator is not for a process that may know nothing of it.
        let notice = match atlas.homes.contains(&processes::own()) {
            true => Notice::Atlas(&atlas),
            false => Notice::Moved(&atlas),
        };
        for wire in control.wires.iter().flatten() {
            wire.send(notice.frame());
        }
        control.atlas = Some(atlas);
    }

    /// From now on the ranks can never be whole again.
    pub(super) fn lose(&self, reason: &str) {
        let mut control = self.control();
        if control.over || control.lost.is_some() {
            return;
        }
        control.lost = Some(reason.to_owned());
        self.is_lost.store(true, Ordering::Release);
        // Where a rank of this process may still ask.
        let mut ranks = control.left.iter().zip(&control.wires);
        if ranks.any(|(left, wire)| !left && wire.is_none()) {
            warn(format_args!("{reason}"));
        }
        for wire in control.wires.iter().flatten() {
            wire.send(Notice::Lost(reason).frame());
        }
        self.changed(&mut control);
        drop(control);
        self.lanes().broken = true;
        self.through.notify_all();
    }

    /// Whether a rank of another process is at its place.
    pub(super) fn is_seated(&self, rank: usize) -> bool {
        self.control().wires[rank].is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::emulator::cuda;

    /// Device memory, freed at the end.
    struct Buffer {
        address: u64,
        size: usize,
    }

    impl Buffer {
        fn new(bytes: &[u8]) -> Self {
            let address = cuda::allocate(0, bytes.len(), cuda::Kind::Device).unwrap();
            let size = bytes.len();
            // SAFETY: just allocated, of this size.
            unsafe { (address as *mut u8).copy_from(bytes.as_ptr(), size) };
            Self { address, size }
        }

        fn ints(values: &[i32]) -> Self {
            Self::new(
                &values
                    .iter()
                    .flat_map(|value| value.to_ne_bytes())
                    .collect::<Vec<_>>(),
            )
        }

        fn bytes(&self) -> Vec<u8> {
            // SAFETY: allocated with this size.
            unsafe { std::slice::from_raw_parts(self.address as *const u8, self.size) }.to_vec()
        }

        fn values(&self) -> Vec<i32> {
            let bytes = self.bytes();
            let ints = bytes.chunks_exact(4);
            ints.map(|int| i32::from_ne_bytes(int.try_into().unwrap()))
                .collect()
        }

        /// The address of the n-th int.
        fn at(&self, index: usize) -> u64 {
            self.address + 4 * index as u64
        }
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            cuda::release(self.address, cuda::Kind::Device).unwrap();
        }
    }

    fn ask(kind: Kind, send: u64, recv: u64, count: usize, peer: usize) -> Request {
        Request {
            kind,
            send,
            recv,
            count,
            datatype: NcclDataType::Int32,
            operator: Operator::Sum,
            peer,
            stream: 0,
        }
    }

    fn sum(send: u64, recv: u64, count: usize) -> Request {
        ask(Kind::AllReduce, send, recv, count, 0)
    }

    fn send(address: u64, count: usize, peer: usize) -> Request {
        ask(Kind::Send, address, 0, count, peer)
    }

    fn recv(address: u64, count: usize, peer: usize) -> Request {
        ask(Kind::Recv, 0, address, count, peer)
    }

    /// A launch under way.
    struct Pending(Receiver<CuResult>);

    impl Pending {
        /// Starts a launch at a place that was taken before.
        fn at(exchange: &dyn Exchange, rank: usize, place: u64, requests: Vec<Request>) -> Self {
            let (sender, receiver) = channel();
            let launch = Arc::new(Launch::new(rank, exchange.size(), 0, requests));
            let done = Done::calling(move |result| sender.send(result).unwrap());
            exchange.start(rank, place, launch, done);
            Self(receiver)
        }

        fn start(exchange: &dyn Exchange, rank: usize, requests: Vec<Request>) -> Self {
            Self::at(exchange, rank, exchange.place(rank), requests)
        }

        fn waits(&self) -> bool {
            self.0.try_recv().is_err()
        }

        /// Whether it is through, and only once.
        fn ended(&self, with: CuResult) -> bool {
            self.0.try_recv() == Ok(with) && self.0.try_recv().is_err()
        }

        fn through(&self) -> bool {
            self.ended(CuResult::Success)
        }
    }

    /// Starts the same kind of launch on every rank, the last rank first; all end together.
    fn all(exchange: &dyn Exchange, request: impl Fn(usize) -> Request) {
        let mut started: Vec<Pending> = Vec::new();
        for rank in (0..exchange.size()).rev() {
            assert!(started.iter().all(Pending::waits));
            started.push(Pending::start(exchange, rank, vec![request(rank)]));
        }
        assert!(started.iter().all(Pending::through));
    }

    fn numbers(rank: usize, count: usize) -> Vec<i32> {
        (0..count)
            .map(|i| (i as i32).wrapping_mul(rank as i32 + 3))
            .collect()
    }

    fn total(all: impl Iterator<Item = Vec<i32>>) -> Vec<i32> {
        let add = |(a, b): (i32, i32)| a.wrapping_add(b);
        all.reduce(|sum, next| sum.into_iter().zip(next).map(add).collect())
            .unwrap()
    }

    /// Small, odd, and large enough for several threads.
    const COUNTS: [usize; 4] = [1, 7, 1001, 70_001];

    #[test]
    fn all_reduce_and_reduce() {
        for (ranks, count) in [1, 2, 3, 5]
            .into_iter()
            .flat_map(|n| COUNTS.map(|count| (n, count)))
        {
            let exchange = InProcess::new(ranks);
            let sources: Vec<_> = (0..ranks)
                .map(|rank| Buffer::ints(&numbers(rank, count)))
                .collect();
            let results: Vec<_> = (0..ranks).map(|_| Buffer::ints(&vec![-1; count])).collect();
            let total = total((0..ranks).map(|rank| numbers(rank, count)));
            let root = ranks - 1;
            all(&*exchange, |rank| {
                ask(
                    Kind::Reduce,
                    sources[rank].address,
                    results[rank].address,
                    count,
                    root,
                )
            });
            for (rank, result) in results.iter().enumerate() {
                let untouched = vec![-1; count];
                assert_eq!(
                    result.values(),
                    if rank == root {
                        total.clone()
                    } else {
                        untouched
                    }
                );
            }
            all(&*exchange, |rank| {
                sum(sources[rank].address, results[rank].address, count)
            });
            assert!(results.iter().all(|result| result.values() == total));
            for (rank, source) in sources.iter().enumerate() {
                assert_eq!(source.values(), numbers(rank, count));
            }
            all(&*exchange, |rank| {
                sum(sources[rank].address, sources[rank].address, count)
            });
            assert!(sources.iter().all(|source| source.values() == total));
        }
    }

    #[test]
    fn broadcast() {
        for count in COUNTS {
            let exchange = InProcess::new(3);
            let places: Vec<_> = (0..3)
                .map(|rank| Buffer::ints(&numbers(rank, count)))
                .collect();
            let source = Buffer::ints(&numbers(9, count));
            let from = |rank| if rank == 1 { source.address } else { 0 };
            all(&*exchange, |rank| {
                ask(Kind::Broadcast, from(rank), places[rank].address, count, 1)
            });
            assert!(
                places
                    .iter()
                    .all(|place| place.values() == numbers(9, count))
            );
            // In place.
            let places: Vec<_> = (0..3)
                .map(|rank| Buffer::ints(&numbers(rank, count)))
                .collect();
            all(&*exchange, |rank| {
                let place = places[rank].address;
                ask(Kind::Broadcast, place, place, count, 2)
            });
            assert!(
                places
                    .iter()
                    .all(|place| place.values() == numbers(2, count))
            );
        }
    }

    #[test]
    fn all_gather_and_reduce_scatter() {
        for (ranks, count) in [1, 2, 3]
            .into_iter()
            .flat_map(|n| COUNTS.map(|count| (n, count)))
        {
            let exchange = InProcess::new(ranks);
            let each = 0..ranks;
            let sources: Vec<_> = each
                .clone()
                .map(|rank| Buffer::ints(&numbers(rank, count)))
                .collect();
            let places: Vec<_> = each
                .clone()
                .map(|_| Buffer::ints(&vec![-1; ranks * count]))
                .collect();
            let joined: Vec<i32> = each.clone().flat_map(|rank| numbers(rank, count)).collect();
            all(&*exchange, |rank| {
                ask(
                    Kind::AllGather,
                    sources[rank].address,
                    places[rank].address,
                    count,
                    0,
                )
            });
            assert!(places.iter().all(|place| place.values() == joined));
            let own: Vec<_> = each
                .clone()
                .map(|rank| {
                    let mut values = vec![-1; ranks * count];
                    values[rank * count..][..count].copy_from_slice(&numbers(rank, count));
                    Buffer::ints(&values)
                })
                .collect();
            all(&*exchange, |rank| {
                let place = &own[rank];
                ask(
                    Kind::AllGather,
                    place.at(rank * count),
                    place.address,
                    count,
                    0,
                )
            });
            assert!(own.iter().all(|place| place.values() == joined));

            // Every rank holds the same now, so a sum is `ranks` times that.
            let sums = |rank: usize| -> Vec<i32> {
                let block = joined[rank * count..][..count].iter();
                block
                    .map(|value| value.wrapping_mul(ranks as i32))
                    .collect()
            };
            all(&*exchange, |rank| {
                let (from, to) = (places[rank].address, sources[rank].address);
                ask(Kind::ReduceScatter, from, to, count, 0)
            });
            all(&*exchange, |rank| {
                let place = &own[rank];
                ask(
                    Kind::ReduceScatter,
                    place.address,
                    place.at(rank * count),
                    count,
                    0,
                )
            });
            for rank in each {
                assert_eq!(sources[rank].values(), sums(rank));
                assert_eq!(places[rank].values(), joined);
                let mut values = joined.clone();
                values[rank * count..][..count].copy_from_slice(&sums(rank));
                assert_eq!(own[rank].values(), values);
            }
        }
    }

    #[test]
    fn all_to_all_gather_scatter() {
        for (ranks, count) in [1, 2, 3]
            .into_iter()
            .flat_map(|n| COUNTS.map(|count| (n, count)))
        {
            let exchange = InProcess::new(ranks);
            let sources: Vec<_> = (0..ranks)
                .map(|rank| Buffer::ints(&numbers(rank, ranks * count)))
                .collect();
            let places: Vec<_> = (0..ranks)
                .map(|_| Buffer::ints(&vec![-1; ranks * count]))
                .collect();
            let block =
                |rank: usize, i: usize| numbers(rank, ranks * count)[i * count..][..count].to_vec();
            let root = ranks / 2;
            let mut started = Vec::new();
            for rank in 0..ranks {
                let (from, to) = (sources[rank].address, places[rank].address);
                let request = ask(Kind::AlltoAll, from, to, count, 0);
                started.push(Pending::start(&*exchange, rank, vec![request]));
            }
            assert!(started.iter().all(Pending::through));
            for (rank, place) in places.iter().enumerate() {
                let expected: Vec<i32> = (0..ranks).flat_map(|from| block(from, rank)).collect();
                assert_eq!(place.values(), expected);
            }
            // Scatter blocks of the root, then gather them at the root, in one group.
            let parts: Vec<_> = (0..ranks).map(|_| Buffer::ints(&vec![-1; count])).collect();
            started.clear();
            for rank in 0..ranks {
                let (from, to) = (sources[rank].address, parts[rank].address);
                let scatter = ask(
                    Kind::Scatter,
                    if rank == root { from } else { 0 },
                    to,
                    count,
                    root,
                );
                started.push(Pending::start(&*exchange, rank, vec![scatter]));
            }
            for rank in 0..ranks {
                let (from, to) = (parts[rank].address, places[rank].address);
                let gather = ask(
                    Kind::Gather,
                    from,
                    if rank == root { to } else { 0 },
                    count,
                    root,
                );
                started.push(Pending::start(&*exchange, rank, vec![gather]));
            }
            assert!(started.iter().all(Pending::through));
            for (rank, part) in parts.iter().enumerate() {
                assert_eq!(part.values(), block(root, rank));
            }
            assert_eq!(places[root].values(), numbers(root, ranks * count));
        }
    }

    #[test]
    fn messages_meet_in_order() {
        let exchange = InProcess::new(3);
        let source = Buffer::ints(&[1, 2, 3, 4]);
        let target = Buffer::ints(&[0; 4]);
        // One group of sends against two launches of receives.
        let sends = vec![
            send(source.at(0), 1, 1),
            send(source.at(1), 1, 1),
            send(source.at(2), 2, 1),
        ];
        let sender = Pending::start(&*exchange, 0, sends);
        assert!(sender.waits());
        let first = Pending::start(&*exchange, 1, vec![recv(target.at(3), 1, 0)]);
        assert!(first.through() && sender.waits());
        let rest = vec![recv(target.at(2), 1, 0), recv(target.at(0), 2, 0)];
        let second = Pending::start(&*exchange, 1, rest);
        assert!(second.through() && sender.through());
        assert_eq!(target.values(), [3, 4, 2, 1]);

        // Receives first, and a peer that has nothing to do with it.
        let other = Pending::start(&*exchange, 2, vec![recv(target.at(0), 1, 0)]);
        let receiver = Pending::start(
            &*exchange,
            1,
            vec![recv(target.at(1), 1, 0), recv(target.at(2), 1, 0)],
        );
        let sends = vec![send(source.at(3), 1, 1), send(source.at(2), 1, 1)];
        let sender = Pending::start(&*exchange, 0, sends);
        assert!(receiver.through() && sender.through() && other.waits());
        assert_eq!(target.values(), [3, 4, 3, 1]);
        let sender = Pending::start(&*exchange, 0, vec![send(source.at(0), 1, 2)]);
        assert!(sender.through() && other.through());
        assert_eq!(target.values(), [1, 4, 3, 1]);
    }

    #[test]
    fn a_ring_in_groups_never_stalls() {
        let (ranks, count) = (5, 70_003);
        let exchange = InProcess::new(ranks);
        let sources: Vec<_> = (0..ranks)
            .map(|rank| Buffer::ints(&numbers(rank, count)))
            .collect();
        let targets: Vec<_> = (0..ranks).map(|_| Buffer::ints(&vec![0; count])).collect();
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (exchange, sources, targets) = (&exchange, &sources, &targets);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let pair = vec![
                            send(sources[rank].address, count, (rank + 1) % ranks),
                            recv(targets[rank].address, count, (rank + ranks - 1) % ranks),
                        ];
                        let pending = Pending::start(&**exchange, rank, pair);
                        assert_eq!(pending.0.recv(), Ok(CuResult::Success));
                    }
                });
            }
        });
        for (rank, target) in targets.iter().enumerate() {
            assert_eq!(target.values(), numbers((rank + ranks - 1) % ranks, count));
        }
    }

    #[test]
    fn a_message_to_oneself_is_as_long_as_the_send() {
        let exchange = InProcess::new(2);
        let source = Buffer::ints(&[1, 2, 3, 4]);
        let target = Buffer::ints(&[0; 5]);
        let pair = vec![send(source.address, 4, 0), recv(target.address, 2, 0)];
        assert!(!transfer::lone_self(0, &pair));
        assert!(transfer::lone_self(0, &pair[..1]) && transfer::lone_self(0, &pair[1..]));
        assert!(!transfer::lone_self(1, &pair[..1]));
        assert!(Pending::start(&*exchange, 0, pair).through());
        assert_eq!(target.values(), [1, 2, 3, 4, 0]);
    }

    #[test]
    fn empty_messages_are_messages_and_empty_collectives_nothing() {
        let exchange = InProcess::new(2);
        let empty = Pending::start(&*exchange, 0, vec![send(0, 0, 1)]);
        assert!(empty.waits());
        assert!(Pending::start(&*exchange, 1, vec![recv(0, 0, 0)]).through());
        assert!(empty.through());
        for kind in [
            Kind::AllReduce,
            Kind::AlltoAll,
            Kind::Gather,
            Kind::Broadcast,
        ] {
            assert!(Pending::start(&*exchange, 0, vec![ask(kind, 0, 0, 0, 0)]).through());
        }
    }

    #[test]
    fn launches_run_in_the_order_of_their_places() {
        let exchange = InProcess::new(2);
        let buffer = Buffer::ints(&[1, 10, 100, 0]);
        let places: Vec<u64> = (0..4).map(|_| exchange.place(0)).collect();
        let at = |i: usize| vec![send(buffer.at(i), 1, 1)];
        let late = Pending::at(&*exchange, 0, places[3], at(2));
        let middle = Pending::at(&*exchange, 0, places[1], at(1));
        let one = |i| Pending::start(&*exchange, 1, vec![recv(buffer.at(i), 1, 0)]);
        let first_received = one(3);
        assert!(first_received.waits() && middle.waits());
        let early = Pending::at(&*exchange, 0, places[0], at(0));
        assert!(early.through() && first_received.through() && middle.waits());
        assert_eq!(buffer.values()[3], 1);
        assert!(one(3).through() && middle.through() && late.waits());
        assert_eq!(buffer.values()[3], 10);
        // The third place is given up.
        let received = one(3);
        exchange.skip(0, places[2]);
        assert!(received.through() && late.through());
        assert_eq!(buffer.values()[3], 100);
        assert_eq!(exchange.drain(0), Ok(()));
    }

    #[test]
    fn a_group_does_one_sided_calls_then_collectives_then_messages() {
        let exchange = InProcess::new(2);
        let buffers = [Buffer::ints(&[1, 0, 0]), Buffer::ints(&[2, 0, 0])];
        let signal = Signal {
            context: 0,
            index: 0,
        };
        let group = |rank: usize| {
            let (own, peer) = (&buffers[rank], &buffers[1 - rank]);
            vec![
                recv(own.at(2), 1, 1 - rank),
                send(own.at(1), 1, 1 - rank),
                sum(own.at(0), own.at(1), 1),
                ask(Kind::Put(signal), own.at(0), peer.at(1), 1, 1 - rank),
            ]
        };
        let first = Pending::start(&*exchange, 0, group(0));
        assert!(first.waits());
        assert_eq!(buffers[1].values(), [2, 1, 0]);
        let second = Pending::start(&*exchange, 1, group(1));
        assert!(first.through() && second.through());
        assert_eq!(buffers[0].values(), [1, 3, 3]);
        assert_eq!(buffers[1].values(), [2, 3, 3]);
    }

    #[test]
    fn signals_are_counted() {
        let exchange = InProcess::new(2);
        let signal = |index| Signal { context: 0, index };
        let wait = |times, index| {
            let expected = Expected {
                peer: 0,
                signal: signal(index),
                times,
            };
            ask(Kind::Wait(vec![expected]), 0, 0, 0, 0)
        };
        let raise = |index| {
            let request = ask(Kind::Signal(signal(index)), 0, 0, 0, 1);
            assert!(Pending::start(&*exchange, 0, vec![request]).through());
        };
        raise(0);
        raise(0);
        raise(0);
        assert!(Pending::start(&*exchange, 1, vec![wait(2, 0)]).through());
        let two = Pending::start(&*exchange, 1, vec![wait(2, 0)]);
        assert!(two.waits());
        raise(1);
        assert!(two.waits());
        raise(0);
        assert!(two.through());
        assert!(Pending::start(&*exchange, 1, vec![wait(1, 1)]).through());
        let never = Pending::start(&*exchange, 1, vec![wait(1, 1)]);
        assert!(never.waits());
        exchange.abort(1);
        assert!(never.through());
    }

    #[test]
    fn puts_arrive_before_their_signals() {
        let exchange = InProcess::new(2);
        let count = 200_000;
        let windows: Vec<_> = (0..2).map(|_| Buffer::ints(&vec![0; count])).collect();
        let sources: Vec<_> = (0..2)
            .map(|rank| Buffer::ints(&numbers(rank, count)))
            .collect();
        let signal = Signal {
            context: 0,
            index: 0,
        };
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (exchange, windows, sources) = (&exchange, &windows, &sources);
                scope.spawn(move || {
                    let peer = 1 - rank;
                    let (from, to) = (sources[rank].address, windows[peer].address);
                    let put = ask(Kind::Put(signal), from, to, count, peer);
                    let expected = Expected {
                        peer: peer as i32,
                        signal,
                        times: 1,
                    };
                    let wait = ask(Kind::Wait(vec![expected]), 0, 0, 0, 0);
                    let put = Pending::start(&**exchange, rank, vec![put]);
                    let wait = Pending::start(&**exchange, rank, vec![wait]);
                    assert_eq!(put.0.recv(), Ok(CuResult::Success));
                    assert_eq!(wait.0.recv(), Ok(CuResult::Success));
                    assert_eq!(windows[rank].values(), numbers(peer, count));
                });
            }
        });
    }

    #[test]
    fn an_abort_ends_every_wait() {
        let buffer = Buffer::ints(&[5, 6]);
        let wait = Expected {
            peer: 7,
            signal: Signal {
                context: 0,
                index: 0,
            },
            times: 1,
        };
        let states = [
            vec![sum(buffer.at(0), buffer.at(1), 1)],
            vec![send(buffer.at(0), 1, 1)],
            vec![recv(buffer.at(1), 1, 1), send(buffer.at(0), 1, 1)],
            vec![ask(Kind::AlltoAll, buffer.at(0), buffer.at(0), 1, 0)],
            vec![ask(Kind::Wait(vec![wait]), 0, 0, 0, 0)],
        ];
        for requests in states {
            let exchange = InProcess::new(2);
            let running = Pending::start(&*exchange, 0, requests.clone());
            let behind = Pending::start(&*exchange, 0, requests.clone());
            let hole = exchange.place(0);
            let parked = Pending::start(&*exchange, 0, requests.clone());
            assert!(running.waits() && behind.waits() && parked.waits());
            std::thread::scope(|scope| {
                let drained = scope.spawn(|| exchange.drain(0));
                std::thread::sleep(Duration::from_millis(10));
                exchange.abort(0);
                assert_eq!(drained.join().unwrap(), Err(Aborted));
            });
            assert!(running.through() && behind.through() && parked.through());
            // Whatever comes later is through at once, and the peer finds nothing.
            assert!(Pending::at(&*exchange, 0, hole, requests.clone()).through());
            assert!(Pending::start(&*exchange, 0, requests).through());
            let peer = vec![recv(buffer.at(1), 1, 0)];
            let collective = vec![sum(buffer.at(1), buffer.at(1), 1)];
            let peers = [
                Pending::start(&*exchange, 1, collective),
                Pending::start(&*exchange, 1, peer),
            ];
            assert!(peers.iter().all(Pending::waits));
            assert_eq!(buffer.values(), [5, 6]);
            exchange.abort(1);
            assert!(peers.iter().all(Pending::through));
        }
    }

    /// Aborts that come while memory is moved wait for that, and leave nothing undone.
    #[test]
    fn an_abort_waits_for_work_under_way() {
        let count = 1 << 18;
        for delay in 0..20 {
            let exchange = InProcess::new(2);
            let buffers = [Buffer::ints(&vec![1; count]), Buffer::ints(&vec![2; count])];
            let first = Pending::start(
                &*exchange,
                0,
                vec![sum(buffers[0].at(0), buffers[0].at(0), count)],
            );
            std::thread::scope(|scope| {
                let second = scope.spawn(|| {
                    let request = sum(buffers[1].at(0), buffers[1].at(0), count);
                    Pending::start(&*exchange, 1, vec![request])
                });
                std::thread::sleep(Duration::from_micros(delay * 50));
                exchange.abort(0);
                let seen = buffers[0].values();
                assert!(
                    seen.iter().all(|value| *value == seen[0]),
                    "moved after the abort"
                );
                assert_eq!(
                    first.0.recv_timeout(Duration::from_secs(10)),
                    Ok(CuResult::Success)
                );
                // Through, or waiting for a peer that was aborted before.
                let second = second.join().unwrap();
                assert_eq!(second.waits(), seen[0] == 1);
                exchange.abort(1);
            });
        }
    }

    #[test]
    fn an_abort_ends_control_messages() {
        let exchange = InProcess::new(2);
        type Wait = fn(&dyn Exchange) -> Result<(), Aborted>;
        let waits: [Wait; 3] = [
            |exchange| exchange.all_gather(0, Topic::Init, b"x").map(drop),
            |exchange| exchange.connect(0, &[1], &[]),
            |exchange| exchange.connect(0, &[], &[1]),
        ];
        for wait in waits {
            std::thread::scope(|scope| {
                let exchange: &dyn Exchange = &*exchange;
                let waiting = scope.spawn(move || wait(exchange));
                std::thread::sleep(Duration::from_millis(10));
                assert!(!waiting.is_finished());
                exchange.abort(0);
                assert_eq!(waiting.join().unwrap(), Err(Aborted));
                assert_eq!(exchange.all_gather(0, Topic::Split, b""), Err(Aborted));
                exchange.restore(0);
            });
        }
        // After it, control messages pass again; the data plane stays off.
        std::thread::scope(|scope| {
            let gathered = scope.spawn(|| exchange.all_gather(0, Topic::Split, b"a"));
            let other = exchange.all_gather(1, Topic::Split, b"b");
            assert_eq!(other, Ok(vec![b"a".to_vec(), b"b".to_vec()]));
            assert_eq!(gathered.join().unwrap(), other);
        });
        assert!(Pending::start(&*exchange, 0, vec![sum(0, 0, 4)]).through());
    }

    #[test]
    fn control_messages_meet_by_topic_and_number() {
        let exchange = InProcess::new(3);
        std::thread::scope(|scope| {
            for rank in 0..3u8 {
                let exchange = &exchange;
                scope.spawn(move || {
                    for round in 0..50u8 {
                        let topics = [Topic::Split, Topic::Window];
                        for topic in topics {
                            let own = [rank, round, topic as u8];
                            let all = exchange.all_gather(rank as usize, topic, &own).unwrap();
                            let expected = (0..3).map(|rank| vec![rank, round, topic as u8]);
                            assert_eq!(all, expected.collect::<Vec<_>>());
                        }
                    }
                    let rank = rank as usize;
                    let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
                    assert_eq!(exchange.connect(rank, &[next], &[previous]), Ok(()));
                });
            }
        });
        assert!(exchange.control().rounds.is_empty());
        // Different topics do not meet.
        std::thread::scope(|scope| {
            let exchange = &exchange;
            for (rank, topic) in [(0, Topic::Split), (1, Topic::Connect), (2, Topic::Split)] {
                scope.spawn(move || {
                    assert_eq!(exchange.all_gather(rank, topic, b""), Err(Aborted));
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            (0..3).for_each(|rank| exchange.abort(rank));
        });
    }

    #[test]
    fn derived_exchanges_are_shared_by_their_members() {
        let exchange = InProcess::new(3);
        let derive = |rank, members: &[usize]| exchange.derive(rank, members);
        let first = [derive(0, &[2, 0]), derive(0, &[2, 0])];
        let second = [derive(2, &[2, 0]), derive(2, &[2, 0])];
        let same = |a: &Arc<dyn Exchange>, b: &Arc<dyn Exchange>| {
            std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
        };
        assert!(same(&first[0], &second[0]) && same(&first[1], &second[1]));
        assert!(!same(&first[0], &first[1]));
        assert_eq!((first[0].size(), derive(1, &[1]).size()), (2, 1));
        assert!(exchange.control().children.is_empty());
    }

    #[test]
    fn ranks_that_disagree_wait_until_they_are_aborted() {
        let buffer = Buffer::ints(&[7; 8]);
        let base = sum(buffer.at(0), buffer.at(4), 2);
        let differing = [
            sum(buffer.at(0), buffer.at(4), 1),
            Request {
                operator: Operator::Max,
                ..base.clone()
            },
            Request {
                datatype: NcclDataType::Float32,
                ..base.clone()
            },
            ask(Kind::Reduce, buffer.at(0), buffer.at(4), 2, 0),
        ];
        for other in differing {
            let exchange = InProcess::new(2);
            let pending = [
                Pending::start(&*exchange, 0, vec![base.clone()]),
                Pending::start(&*exchange, 1, vec![other]),
            ];
            assert!(pending.iter().all(Pending::waits));
            (0..2).for_each(|rank| exchange.abort(rank));
            assert!(pending.iter().all(Pending::through));
        }
        let exchange = InProcess::new(2);
        let pending = [
            Pending::start(&*exchange, 0, vec![send(buffer.at(0), 2, 1)]),
            Pending::start(&*exchange, 1, vec![recv(buffer.at(4), 3, 0)]),
        ];
        assert!(pending.iter().all(Pending::waits));
        (0..2).for_each(|rank| exchange.abort(rank));
        assert!(pending.iter().all(Pending::through));
        assert_eq!(buffer.values(), [7; 8]);
        // Calls that only move data are compared by bytes.
        let exchange = InProcess::new(2);
        let bytes = Request {
            datatype: NcclDataType::Int8,
            ..ask(Kind::Broadcast, buffer.at(0), buffer.at(0), 8, 0)
        };
        let ints = ask(Kind::Broadcast, buffer.at(0), buffer.at(4), 2, 0);
        let pending = [
            Pending::start(&*exchange, 0, vec![bytes]),
            Pending::start(&*exchange, 1, vec![ints]),
        ];
        assert!(pending.iter().all(Pending::through));
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault_of_all_ranks() {
        let fault = CuResult::IllegalAddress;
        let buffer = Buffer::ints(&[1, 2, 3, 4]);
        let gone = Buffer::ints(&[0; 4]).address;
        let host = Box::new(0i32);
        let host = &raw const *host as u64;
        for bad in [buffer.at(1), gone, host, 0] {
            let exchange = InProcess::new(2);
            let pending = [
                Pending::start(&*exchange, 0, vec![sum(buffer.at(0), buffer.at(0), 4)]),
                Pending::start(&*exchange, 1, vec![sum(buffer.at(0), bad, 4)]),
            ];
            assert!(pending.iter().all(|pending| pending.ended(fault)));
            // A fault ends the launch: what it left for its peers is taken back.
            let messages = vec![
                recv(bad, 4, 1),
                recv(buffer.at(0), 4, 1),
                send(buffer.at(0), 4, 1),
            ];
            let receiver = Pending::start(&*exchange, 0, messages);
            let sender = Pending::start(&*exchange, 1, vec![send(buffer.at(0), 4, 0)]);
            assert!(receiver.ended(fault) && sender.ended(fault));
            assert!(Pending::start(&*exchange, 1, vec![recv(buffer.at(0), 4, 0)]).waits());
            assert_eq!(buffer.values(), [1, 2, 3, 4]);
        }
        assert!(!transfer::one_rank_fault(&sum(gone, gone, 4)));
        assert!(transfer::one_rank_fault(&sum(gone, buffer.at(0), 4)));
        assert!(transfer::one_rank_fault(&sum(buffer.at(1), gone, 1)));
        assert!(!transfer::one_rank_fault(&sum(
            buffer.at(0),
            buffer.at(2),
            2
        )));
    }

    #[test]
    fn scalars_of_the_ranks_and_of_one_rank() {
        let buffers = [Buffer::ints(&[1, 2]), Buffer::ints(&[10, 20])];
        let scalar = Buffer::ints(&[100]);
        let mut immediate = [0; 8];
        immediate[..4].copy_from_slice(&7i32.to_ne_bytes());
        let scalars = [Scalar::Immediate(immediate), Scalar::Device(scalar.address)];
        let request = |rank: usize| Request {
            operator: Operator::PreMulSum(scalars[rank]),
            ..sum(buffers[rank].address, buffers[rank].address, 2)
        };
        all(&*InProcess::new(2), request);
        assert_eq!(buffers[0].values(), [1007, 2014]);
        // A single rank multiplies too; any other operator leaves its elements as they are.
        all(&*InProcess::new(1), |_| request(1));
        assert_eq!(buffers[1].values(), [100_700, 201_400]);
        let place = Buffer::ints(&[0; 2]);
        for operator in [Operator::Sum, Operator::Prod, Operator::Avg, Operator::Min] {
            all(&*InProcess::new(1), |_| Request {
                operator,
                ..sum(buffers[0].address, place.address, 2)
            });
            assert_eq!(place.values(), [1007, 2014]);
        }
    }

    /// Ranks as threads that run ahead of each other, with launches that start out of order.
    #[test]
    fn many_launches_at_once() {
        let (ranks, rounds) = (4, 300);
        let exchange = InProcess::new(ranks);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let exchange = &*exchange;
                scope.spawn(move || {
                    let (mut pending, mut started) = (Vec::new(), Vec::new());
                    let mut buffers = Vec::new();
                    for round in 0..rounds {
                        let count = 1 + (round * 37) % 700;
                        let buffer = Buffer::ints(&numbers(rank + round, 2 * count));
                        let (from, to) = (buffer.address, buffer.at(count));
                        let request = match round % 3 {
                            0 => vec![sum(from, to, count)],
                            1 => vec![
                                send(from, count, (rank + 1) % ranks),
                                recv(to, count, (rank + ranks - 1) % ranks),
                            ],
                            _ => vec![ask(Kind::Broadcast, from, to, count, round % ranks)],
                        };
                        buffers.push((buffer, count));
                        let place = exchange.place(rank);
                        pending.push((place, request));
                        if pending.len() == 1 + rank {
                            for (place, request) in pending.drain(..).rev() {
                                started.push(Pending::at(exchange, rank, place, request));
                            }
                        }
                    }
                    for (place, request) in pending {
                        started.push(Pending::at(exchange, rank, place, request));
                    }
                    assert_eq!(exchange.drain(rank), Ok(()));
                    let ends = started.iter().map(|pending: &Pending| pending.0.recv());
                    assert!(ends.into_iter().all(|end| end == Ok(CuResult::Success)));
                    for (round, (buffer, count)) in buffers.iter().enumerate() {
                        let of = |rank: usize| numbers(rank + round, *count);
                        let expected = match round % 3 {
                            0 => total((0..ranks).map(of)),
                            1 => of((rank + ranks - 1) % ranks),
                            _ => of(round % ranks),
                        };
                        assert_eq!(buffer.values()[*count..], expected, "round {round}");
                    }
                });
            }
        });
    }
}

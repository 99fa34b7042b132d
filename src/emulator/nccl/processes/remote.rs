//! The side that asks: a rank whose communicator's work is done in another process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufReader;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::wire::{self, Id, Reader, Wire, Writer};
use super::{
    ABORT, ABORTED, ANSWER, ATLAS, ATTACH, Atlas, CONNECT, DONE, GATHER, HOST, JOIN, LEAVE, LOST,
    MOVED, REGION, RESTORE, SKIP, START, Token, USE_UP, derive, gone, hears, nowhere, own,
    read_atlas, write_atlas,
};
use crate::cuda::CuResult;
use crate::emulator::cuda::{self, Done, Piece, Shared};
use crate::emulator::nccl::error::{lock, warn};
use crate::emulator::nccl::exchange::{
    Aborted, Exchange, Kind, Launch, Messages, Operator, Request, Scalar, Topic,
};
use crate::emulator::nccl::transfer;

/// One rank's view of an exchange in another process.
pub(in crate::emulator::nccl) struct Remote(Arc<Inner>);

struct Inner {
    size: usize,
    rank: usize,
    /// The connection with the process that does the work; none if nobody was there.
    wire: Mutex<Option<Arc<Wire>>>,
    state: Mutex<State>,
    /// Told when anything in the state has changed.
    changed: Condvar,
    /// One launch after the other goes out, with what it shows of memory before it.
    shown: Mutex<HashSet<u64>>,
}

#[derive(Default)]
struct State {
    /// It is known which process does the work.
    placed: bool,
    lost: Option<String>,
    /// The connection has ended.
    closed: bool,
    /// All ranks have finalized, or this one has left: the end of the connection is no loss.
    over: bool,
    /// The message by which this rank finalizes.
    finalizing: Option<u64>,
    left: bool,
    /// The rank's work was aborted, and so are control messages, until they are restored.
    aborted: bool,
    silenced: bool,
    /// Aborts that the other side has still to confirm.
    aborting: usize,
    /// Places handed out, and launches that are through.
    issued: u64,
    through: u64,
    pending: BTreeMap<u64, Pending>,
    /// Control messages sent, and the answers that have come.
    asked: u64,
    answers: HashMap<u64, Option<Answer>>,
    atlas: Option<Arc<Atlas>>,
    /// A rank of the process that does the work.
    host: Option<usize>,
    derived: HashMap<Vec<usize>, u64>,
}

type Answer = Result<Messages, Aborted>;

/// A launch that was sent.
struct Pending {
    done: Done,
    copies: Copies,
}

/// An id that goes with others, made by another process, is used up there. Says whether it was still
/// good.
pub(in crate::emulator::nccl) fn use_up(maker: Token, id: &Id) -> bool {
    let asked = || {
        let wire = Wire::dial(maker).ok()?;
        wire.send(Writer::new(USE_UP).fixed(id));
        let answer = wire::receive(&mut wire.stream()).ok()?;
        let mut answer = Reader::new(&answer);
        Some((answer.byte()?, answer.byte()?) == (ANSWER, 1))
    };
    asked().unwrap_or(false)
}

/// What a rank says to take its place where it is expected.
fn attach(atlas: &Atlas, rank: usize) -> Writer {
    write_atlas(Writer::new(ATTACH).fixed(&own()).number(rank as u64), atlas)
}

impl Remote {
    /// Joins the ranks that hold the same ids, at the process that made the first of them. An error is
    /// why that cannot be reached.
    pub(in crate::emulator::nccl) fn join(
        maker: Token,
        ids: &[Id],
        nranks: usize,
        rank: usize,
    ) -> Result<Arc<Self>, String> {
        if !hears() {
            return Err("this process cannot be reached by others: no socket, or no thread".into());
        }
        let wire = Wire::dial(maker).map_err(|error| {
            format!("the process that made the unique id is gone, or on another machine ({error})")
        })?;
        let hello = Writer::new(JOIN)
            .fixed(&own())
            .number(nranks as u64)
            .number(rank as u64)
            .list(ids, |frame, id| frame.fixed(id));
        Ok(Self::begin(wire, hello, nranks, rank, State::default()))
    }

    /// Takes the rank's place in a child communicator.
    pub(super) fn attach(atlas: &Arc<Atlas>, rank: usize) -> Arc<Self> {
        let size = atlas.homes.len();
        let Ok(wire) = Wire::dial(atlas.homes[0]) else {
            let state = State {
                lost: Some(gone(0)),
                closed: true,
                ..State::default()
            };
            return Arc::new(Self(Inner::new(size, rank, None, state)));
        };
        let hello = attach(atlas, rank);
        let state = State {
            placed: true,
            atlas: Some(atlas.clone()),
            host: Some(0),
            ..State::default()
        };
        Self::begin(wire, hello, size, rank, state)
    }

    fn begin(wire: Arc<Wire>, hello: Writer, size: usize, rank: usize, state: State) -> Arc<Self> {
        wire.send(hello);
        let inner = Inner::new(size, rank, Some(wire), state);
        let reading = inner.clone();
        let thread = std::thread::Builder::new().name("metrale rank".to_owned());
        if thread.spawn(move || reading.listen()).is_err() {
            let mut state = inner.state();
            state.closed = true;
            state.lost = Some("there is no thread for the connection with the other ranks".into());
        }
        Arc::new(Self(inner))
    }
}

impl Inner {
    fn new(size: usize, rank: usize, wire: Option<Arc<Wire>>, state: State) -> Arc<Self> {
        Arc::new(Self {
            size,
            rank,
            wire: Mutex::new(wire),
            state: Mutex::new(state),
            changed: Condvar::new(),
            shown: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, frame: Writer) {
        if let Some(wire) = &*lock(&self.wire) {
            wire.send(frame);
        }
    }

    /// Takes in what the other side tells, until the connection ends.
    fn listen(&self) {
        let mut wire = lock(&self.wire).clone();
        while let Some(current) = wire {
            wire = self.listen_on(&current);
            current.close();
        }
        let mut state = self.state();
        state.closed = true;
        let reason = match state.host {
            Some(rank) => gone(rank),
            None => {
                "the process that made the unique id is gone: it has ended, or was killed".into()
            }
        };
        state.lose(reason);
        drop(state);
        self.changed.notify_all();
    }

    /// Listens on one connection: to its end, or until the work moves to another process, and there is
    /// another connection.
    fn listen_on(&self, wire: &Wire) -> Option<Arc<Wire>> {
        let mut stream = BufReader::new(wire.stream());
        loop {
            let frame = wire::receive(&mut stream).ok()?;
            let mut frame = Reader::new(&frame);
            match frame.byte()? {
                MOVED => {
                    let atlas = read_atlas(&mut frame)?;
                    return self.follow(Arc::new(atlas));
                }
                kind => self.hear(kind, &mut frame)?,
            }
        }
    }

    /// The process that made the id has none of the ranks: that of the first rank does the work.
    fn follow(&self, atlas: Arc<Atlas>) -> Option<Arc<Wire>> {
        if atlas.homes.len() != self.size || self.state().aborted {
            return None;
        }
        let wire = Wire::dial(atlas.homes[0]);
        let mut state = self.state();
        state.host = Some(0);
        let wire = wire.ok()?;
        wire.send(attach(&atlas, self.rank));
        *lock(&self.wire) = Some(wire.clone());
        (state.placed, state.atlas) = (true, Some(atlas));
        drop(state);
        self.changed.notify_all();
        Some(wire)
    }

    fn hear(&self, kind: u8, frame: &mut Reader<'_>) -> Option<()> {
        match kind {
            DONE => self.finish(frame.number()?, CuResult(frame.int()?)),
            ANSWER => {
                let number = frame.number()?;
                let answer = match frame.byte()? {
                    1 => Ok(frame.list(|frame| frame.bytes().map(<[u8]>::to_vec))?),
                    _ => Err(Aborted),
                };
                // Nobody waits for one that came after an abort.
                let mut state = self.state();
                // Here, and not where the answer is waited for: the connection can end right behind it.
                state.over |= state.finalizing == Some(number) && answer.is_ok();
                if let Some(place) = state.answers.get_mut(&number) {
                    *place = Some(answer);
                }
            }
            ABORTED => {
                let mut state = self.state();
                state.aborting = state.aborting.saturating_sub(1);
            }
            LOST => {
                let reason = frame.text()?;
                self.state().lose(reason);
            }
            HOST => self.state().host = Some(frame.size()?),
            ATLAS => {
                let atlas = read_atlas(frame)?;
                (atlas.homes.len() == self.size).then_some(())?;
                let mut state = self.state();
                (state.placed, state.atlas) = (true, Some(Arc::new(atlas)));
            }
            _ => return None,
        }
        self.changed.notify_all();
        Some(())
    }

    /// A launch is through.
    fn finish(&self, place: u64, result: CuResult) {
        let mut state = self.state();
        let Some(pending) = state.pending.remove(&place) else {
            return;
        };
        let writes = result == CuResult::Success && !state.aborted;
        drop(state);
        if writes {
            pending.copies.write_back();
        }
        drop(pending.copies);
        self.state().through += 1;
        self.changed.notify_all();
        pending.done.finish(result);
    }

    /// Sends a control message and waits for the answer.
    fn ask(&self, frame: impl FnOnce(&mut State, u64) -> Writer) -> Answer {
        let mut state = self.state();
        while !(state.placed || state.silenced || state.lost.is_some()) {
            state = self.wait(state);
        }
        if state.silenced || state.lost.is_some() {
            return Err(Aborted);
        }
        let number = state.asked;
        state.asked += 1;
        state.answers.insert(number, None);
        // With the lock held, so that messages go out in the order of their numbers.
        let frame = frame(&mut state, number);
        self.send(frame);
        loop {
            let answered = state.answers.get_mut(&number).and_then(Option::take);
            if answered.is_some() || state.silenced || state.lost.is_some() {
                state.answers.remove(&number);
                return answered.unwrap_or(Err(Aborted));
            }
            state = self.wait(state);
        }
    }
}

impl State {
    fn lose(&mut self, reason: String) {
        if self.over || self.left || self.lost.is_some() {
            return;
        }
        warn(format_args!("{reason}"));
        self.lost = Some(reason);
    }
}

impl Exchange for Remote {
    fn size(&self) -> usize {
        self.0.size
    }

    fn place(&self, _: usize) -> u64 {
        let mut state = self.0.state();
        state.issued += 1;
        state.issued - 1
    }

    fn start(&self, _: usize, place: u64, launch: Arc<Launch>, done: Done) {
        let inner = &*self.0;
        // Held until it is sent, so that what it shows of memory is there before any other launch that
        // needs it.
        let mut shown = lock(&inner.shown);
        let mut state = inner.state();
        if state.aborted {
            state.through += 1;
            drop((state, shown));
            inner.changed.notify_all();
            done.finish(CuResult::Success);
            return;
        }
        drop(state);
        let mut requests = launch.requests.clone();
        let copies = Copies::make(&mut requests, inner.rank, inner.size);
        for asked in &requests {
            let put = matches!(asked.kind, Kind::Put(_));
            for address in [asked.send, if put { 0 } else { asked.recv }] {
                let copy = copies.at(address);
                if let Some(shared) = copy.or_else(|| cuda::shared_at(address)) {
                    inner.show(&mut shown, shared);
                }
            }
        }
        let frame = Writer::new(START)
            .number(place)
            .int(launch.device)
            .list(&requests, Writer::request);
        let mut state = inner.state();
        if state.aborted {
            state.through += 1;
            drop((state, shown));
            inner.changed.notify_all();
            done.finish(CuResult::Success);
            return;
        }
        state.pending.insert(place, Pending { done, copies });
        inner.send(frame);
    }

    fn skip(&self, _: usize, place: u64) {
        self.0.state().through += 1;
        self.0.changed.notify_all();
        self.0.send(Writer::new(SKIP).number(place));
    }

    fn drain(&self, _: usize) -> Result<(), Aborted> {
        let mut state = self.0.state();
        loop {
            if state.aborted {
                return Err(Aborted);
            }
            if state.through == state.issued {
                return Ok(());
            }
            if state.lost.is_some() {
                return Err(Aborted);
            }
            state = self.0.wait(state);
        }
    }

    fn abort(&self, _: usize) {
        let inner = &*self.0;
        let mut state = inner.state();
        (state.aborted, state.silenced) = (true, true);
        if !state.closed {
            state.aborting += 1;
            inner.send(Writer::new(ABORT));
        }
        inner.changed.notify_all();
        while state.aborting > 0 && !state.closed {
            state = inner.wait(state);
        }
        // What the other side has not told to be through never will be.
        let left = std::mem::take(&mut state.pending);
        state.through += left.len() as u64;
        drop(state);
        inner.changed.notify_all();
        for pending in left.into_values() {
            pending.done.finish(CuResult::Success);
        }
    }

    fn restore(&self, _: usize) {
        let mut state = self.0.state();
        state.silenced = false;
        self.0.send(Writer::new(RESTORE));
    }

    fn all_gather(&self, _: usize, topic: Topic, message: &[u8]) -> Answer {
        let inner = &*self.0;
        let frame = |state: &mut State, number| {
            if topic == Topic::Finalize {
                state.finalizing = Some(number);
            }
            let frame = Writer::new(GATHER).number(number);
            frame.byte(topic as u8).bytes(message)
        };
        let all = inner.ask(frame)?;
        match all.len() == inner.size {
            true => Ok(all),
            false => Err(Aborted),
        }
    }

    fn connect(&self, _: usize, send_to: &[usize], recv_from: &[usize]) -> Result<(), Aborted> {
        let ranks = |frame: Writer, rank: &usize| frame.number(*rank as u64);
        let frame = |_: &mut State, number| {
            let frame = Writer::new(CONNECT).number(number);
            frame.list(send_to, ranks).list(recv_from, ranks)
        };
        self.0.ask(frame).map(drop)
    }

    fn derive(&self, rank: usize, members: &[usize]) -> Arc<dyn Exchange> {
        let mut state = self.0.state();
        let times = state.derived.entry(members.to_vec()).or_default();
        *times += 1;
        let times = *times - 1;
        let atlas = state.atlas.clone();
        let lost = state.lost.clone();
        drop(state);
        match atlas {
            Some(atlas) => derive(&atlas, rank, members, times),
            // There is a communicator to derive from only after the ranks know where they are.
            None => {
                let state = State {
                    lost: lost.or(Some("the ranks have never met".into())),
                    closed: true,
                    ..State::default()
                };
                Arc::new(Self(Inner::new(members.len(), 0, None, state)))
            }
        }
    }

    fn expose(&self, _: usize, address: u64) {
        if let Some(shared) = cuda::shared_at(address) {
            self.0.show(&mut lock(&self.0.shown), shared);
        }
    }

    fn lost(&self) -> Option<String> {
        self.0.state().lost.clone()
    }

    fn leave(&self, _: usize) {
        let mut state = self.0.state();
        if !std::mem::replace(&mut state.left, true) {
            let clean = !state.aborted;
            drop(state);
            self.0.send(Writer::new(LEAVE).byte(clean.into()));
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.leave(self.0.rank);
    }
}

impl Inner {
    /// Lets the other side know where memory is that it has not seen yet.
    fn show(&self, shown: &mut HashSet<u64>, shared: Shared) {
        if shown.insert(shared.offset) {
            let region = Writer::new(REGION).number(shared.base);
            self.send(region.number(shared.length as u64).number(shared.offset));
        }
    }
}

/// What stands in the place of memory that other processes cannot see, for one launch.
#[derive(Default)]
struct Copies {
    places: Vec<Place>,
    /// Bytes to write back: from, to, how many.
    writes: Vec<(u64, u64, usize)>,
}

/// The part of a piece of memory that is used, and the copy of it.
struct Place {
    base: u64,
    from: u64,
    end: u64,
    copy: Option<Piece>,
}

/// What a request does with memory of its rank.
fn uses(asked: &Request, rank: usize, size: usize) -> [(usize, usize); 2] {
    let bytes = asked.bytes();
    let all = bytes.saturating_mul(size);
    let rooted = |bytes| if asked.peer == rank { bytes } else { 0 };
    let (reads, writes) = match asked.kind {
        Kind::AllReduce => (bytes, bytes),
        Kind::Broadcast => (rooted(bytes), bytes),
        Kind::Reduce => (bytes, rooted(bytes)),
        Kind::AllGather => (bytes, all),
        Kind::ReduceScatter => (all, bytes),
        Kind::AlltoAll => (all, all),
        Kind::Gather => (bytes, rooted(all)),
        Kind::Scatter => (rooted(all), bytes),
        Kind::Send | Kind::Put(_) => (bytes, 0),
        Kind::Recv => (0, bytes),
        Kind::Signal(_) | Kind::Wait(_) => (0, 0),
    };
    [(reads, 0), (writes, 1)]
}

impl Copies {
    /// Copies what the requests read of memory that is this process's alone, and names the copies
    /// instead. What is not there at all gets an address that nobody has.
    fn make(requests: &mut [Request], rank: usize, size: usize) -> Self {
        let mut copies = Self::default();
        // First how much of each piece is used, since one request may read what another wrote.
        for asked in &*requests {
            for (bytes, way) in uses(asked, rank, size) {
                copies.cover([asked.send, asked.recv][way], bytes);
            }
        }
        for place in &mut copies.places {
            place.copy = Piece::new((place.end - place.from) as usize);
        }
        for asked in requests {
            for (bytes, way) in uses(asked, rank, size) {
                let address = match way {
                    0 => &mut asked.send,
                    _ => &mut asked.recv,
                };
                if bytes == 0 {
                    continue;
                }
                if !transfer::known(*address, bytes) {
                    *address = nowhere(*address);
                    continue;
                }
                if cuda::shared_at(*address).is_some() {
                    continue;
                }
                let Some(copy) = copies.copy_of(*address) else {
                    *address = nowhere(*address);
                    continue;
                };
                // Also what is written: a receive from the own rank can take less than it has room for.
                // SAFETY: the copy covers it, and the launch keeps what it reads.
                unsafe { (copy as *mut u8).copy_from(*address as *const u8, bytes) };
                if way == 1 {
                    copies.writes.push((copy, *address, bytes));
                }
                *address = copy;
            }
            if let Operator::PreMulSum(Scalar::Device(address)) = asked.operator {
                let scalar = transfer::read(Scalar::Device(address), asked);
                let scalar = scalar.map_or(Scalar::Device(nowhere(address)), Scalar::Immediate);
                asked.operator = Operator::PreMulSum(scalar);
            }
        }
        copies
    }

    /// Takes note of bytes that are used, if they are this process's alone.
    fn cover(&mut self, address: u64, bytes: usize) {
        if bytes == 0 || !transfer::known(address, bytes) || cuda::shared_at(address).is_some() {
            return;
        }
        let Some(range) = cuda::find(address) else {
            return;
        };
        let end = address + bytes as u64;
        match self
            .places
            .iter_mut()
            .find(|place| place.base == range.base)
        {
            Some(place) => {
                place.from = place.from.min(address);
                place.end = place.end.max(end);
            }
            None => self.places.push(Place {
                base: range.base,
                from: address,
                end,
                copy: None,
            }),
        }
    }

    fn copy_of(&self, address: u64) -> Option<u64> {
        let covers = |place: &&Place| place.from <= address && address < place.end;
        let place = self.places.iter().find(covers)?;
        Some(place.copy.as_ref()?.place().base + (address - place.from))
    }

    /// The copy that an address lies in.
    fn at(&self, address: u64) -> Option<Shared> {
        let copies = self.places.iter().filter_map(|place| place.copy.as_ref());
        copies
            .map(Piece::place)
            .find(|copy| address >= copy.base && address - copy.base < copy.length as u64)
    }

    fn write_back(&self) {
        for &(from, to, bytes) in &self.writes {
            // SAFETY: both were found when the launch began, and it keeps them from being freed.
            unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
        }
    }
}

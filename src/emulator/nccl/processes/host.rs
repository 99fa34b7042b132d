//! The side that does the work: it listens, maps the memory of other processes, and acts for their ranks.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use super::wire::{self, Id, Reader, Wire, Writer};
use super::{
    ABORT, ABORTED, ANSWER, ATTACH, Atlas, CONNECT, DONE, GATHER, JOIN, LEAVE, Notice, REGION,
    RESTORE, SKIP, START, Token, USE_UP, gone, nowhere, own, read_atlas,
};
use crate::cuda::CuDevice;
use crate::emulator::cuda::{Done, Shared};
use crate::emulator::nccl::error::lock;
use crate::emulator::nccl::exchange::{Exchange, InProcess, Kind, Launch, Request, Tell};
use crate::emulator::nccl::ids::{self, Comer};
use crate::emulator::nccl::job::background;
use crate::emulator::system::{self, Mapping};

/// How long a connection may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many ranks another process may speak of: more is a mistake, and would take all memory.
const MOST: usize = 1 << 16;
/// How often those who have not come are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Whether other processes can reach this one, from now on: it listens. Done once.
pub(in crate::emulator::nccl) fn hears() -> bool {
    static LISTENS: OnceLock<bool> = OnceLock::new();
    *LISTENS.get_or_init(|| {
        let listener = wire::address(own()).and_then(|address| UnixListener::bind_addr(&address));
        let Ok(listener) = listener else { return false };
        let thread = std::thread::Builder::new().name("metrale meeting".to_owned());
        thread.spawn(move || accept(&listener)).is_ok()
    })
}

fn accept(listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) if system::is_same_user(&stream) => {
                let thread = std::thread::Builder::new().name("metrale rank".to_owned());
                // Without a thread the connection ends, which the other side sees.
                let _ = thread.spawn(move || answer(stream));
            }
            Ok(_) => {}
            // There is no room for more just now.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Serves a connection. Whatever does not say what it should is let go.
fn answer(stream: UnixStream) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let file = wire::greet(&stream);
    let wire = Wire::new(stream);
    let Ok(file) = file else {
        let reason = "the process that does the work could not take this one's memory: it has no \
                      descriptor left (ulimit -n), or was not told in time";
        wire.send(Notice::Lost(reason).frame());
        return None;
    };
    let mut stream = BufReader::new(wire.stream());
    let hello = wire::receive(&mut stream).ok()?;
    wire.stream().set_read_timeout(None).ok()?;
    let mut hello = Reader::new(&hello);
    match hello.byte()? {
        JOIN => {
            let token = hello.fixed()?;
            let (nranks, rank) = (hello.size()?, hello.size()?);
            let ids: Vec<Id> = hello.list(Reader::fixed)?;
            if ids.is_empty() || ids.len() > nranks || rank >= nranks || nranks > MOST {
                return None;
            }
            let abroad = Abroad::of(token, file);
            let comer = Comer {
                token,
                connection: Some((&wire, &abroad)),
            };
            match ids::take_place(&ids, nranks, rank, &comer) {
                Ok(exchange) => Guest::new(exchange, rank, &wire, abroad).serve(&mut stream),
                Err(reason) => wire.send(Notice::Lost(&reason).frame()),
            }
        }
        ATTACH => {
            let token = hello.fixed()?;
            let rank = hello.size()?;
            let atlas = read_atlas(&mut hello)?;
            let size = atlas.homes.len();
            if atlas.homes.get(rank) != Some(&token) || atlas.homes[0] != own() || size > MOST {
                return None;
            }
            let abroad = Abroad::of(token, file);
            let exchange = take(&Arc::new(atlas));
            if exchange.seat(rank, &wire, &abroad) {
                Guest::new(exchange, rank, &wire, abroad).serve(&mut stream);
            }
        }
        USE_UP => {
            let used = ids::use_up(&hello.fixed()?);
            wire.send(Writer::new(ANSWER).byte(used.into()));
        }
        _ => {}
    }
    Some(())
}

/// Child communicators that not all ranks have come to, by their keys.
static CHILDREN: Mutex<BTreeMap<Vec<u8>, Child>> = Mutex::new(BTreeMap::new());

/// A child communicator's meeting place, and how many ranks have come.
type Child = (Arc<InProcess>, usize);

/// The meeting place of a child communicator whose first rank is in this process.
pub(super) fn take(atlas: &Arc<Atlas>) -> Arc<InProcess> {
    let mut children = lock(&CHILDREN);
    let new = !children.contains_key(&atlas.key);
    let size = atlas.homes.len();
    let make = || (InProcess::new(size), 0);
    let (exchange, takers) = children.entry(atlas.key.clone()).or_insert_with(make);
    *takers += 1;
    let (exchange, all) = (exchange.clone(), *takers == size);
    if all {
        children.remove(&atlas.key);
    }
    drop(children);
    if new {
        // Before anybody can derive from it.
        exchange.chart(atlas.clone());
        if !all {
            let (atlas, exchange) = (atlas.clone(), Arc::downgrade(&exchange));
            background(move || look_for(&atlas, &exchange));
        }
    }
    exchange
}

/// Looks from time to time whether the processes of those who have not come are there at all.
fn look_for(atlas: &Atlas, exchange: &Weak<InProcess>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(exchange) = exchange.upgrade() else {
            return;
        };
        let others = (0..atlas.homes.len()).filter(|rank| atlas.homes[*rank] != own());
        let missing: Vec<usize> = others.filter(|rank| !exchange.is_seated(*rank)).collect();
        let dead = missing.iter().find(|rank| !is_there(atlas.homes[**rank]));
        if let Some(rank) = dead {
            // Whoever comes late finds it lost.
            exchange.lose(&gone(*rank));
        }
        if missing.is_empty() || exchange.lost().is_some() {
            return;
        }
    }
}

/// Whether a process of this name is there.
fn is_there(token: Token) -> bool {
    wire::address(token).is_ok_and(|address| {
        let refused =
            |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        !UnixStream::connect_addr(&address).is_err_and(|error| refused(&error))
    })
}

/// Memory of another process, in this one.
#[derive(Debug)]
pub(in crate::emulator::nccl) struct Mapped(Mapping);

/// All of it that there is, by address: how many bytes.
static MAPPED: RwLock<BTreeMap<u64, usize>> = RwLock::new(BTreeMap::new());

/// Whether so many bytes lie in memory of one other process.
pub(in crate::emulator::nccl) fn is_mapped(address: u64, bytes: usize) -> bool {
    let mapped = MAPPED.read().unwrap_or_else(PoisonError::into_inner);
    mapped
        .range(..=address)
        .next_back()
        .is_some_and(|(base, size)| {
            let offset = (address - base) as usize;
            offset <= *size && bytes <= *size - offset
        })
}

impl Mapped {
    fn new(file: &File, shared: Shared) -> Option<Arc<Self>> {
        let mapping = Mapping::new(file, shared.offset, shared.length).ok()?;
        let mapped = Self(mapping);
        let mut all = MAPPED.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(mapped.base(), shared.length);
        drop(all);
        Some(Arc::new(mapped))
    }

    fn base(&self) -> u64 {
        self.0.address().expose_provenance() as u64
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut all = MAPPED.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.base());
    }
}

/// Another process, as its memory goes.
#[derive(Debug)]
pub(in crate::emulator::nccl) struct Abroad {
    token: Token,
    file: File,
    /// What it has shown of its memory, by its own addresses.
    regions: Mutex<BTreeMap<u64, Region>>,
}

#[derive(Debug)]
struct Region {
    shared: Shared,
    /// Once it was needed.
    mapped: Option<Arc<Mapped>>,
}

static ABROAD: Mutex<BTreeMap<Token, Weak<Abroad>>> = Mutex::new(BTreeMap::new());

impl Abroad {
    fn of(token: Token, file: File) -> Arc<Self> {
        let mut all = lock(&ABROAD);
        if let Some(known) = all.get(&token).and_then(Weak::upgrade) {
            return known;
        }
        let abroad = Arc::new(Self {
            token,
            file,
            regions: Mutex::default(),
        });
        all.insert(token, Arc::downgrade(&abroad));
        abroad
    }

    /// Takes note of memory that the process has shown. It takes the place of what was there before.
    fn show(&self, shared: Shared) -> Option<()> {
        let end = shared.base.checked_add(shared.length as u64)?;
        let there = self.file.metadata().ok()?.len();
        if shared.length == 0 || shared.offset.checked_add(shared.length as u64)? > there {
            return None;
        }
        let mut regions = lock(&self.regions);
        if regions
            .get(&shared.base)
            .is_some_and(|region| region.shared == shared)
        {
            return Some(());
        }
        let overlaps = |region: &Region| {
            region.shared.base < end
                && shared.base < region.shared.base + region.shared.length as u64
        };
        regions.retain(|_, region| !overlaps(region));
        let mapped = None;
        regions.insert(shared.base, Region { shared, mapped });
        Some(())
    }

    /// Where an address of that process is in this one, and what keeps it there.
    pub(in crate::emulator::nccl) fn reach(&self, address: u64) -> (u64, Option<Arc<Mapped>>) {
        let mut regions = lock(&self.regions);
        let region = regions
            .range_mut(..=address)
            .next_back()
            .map(|(_, region)| region);
        let within =
            |region: &&mut Region| address - region.shared.base < region.shared.length as u64;
        let Some(region) = region.filter(within) else {
            return (nowhere(address), None);
        };
        if region.mapped.is_none() {
            region.mapped = Mapped::new(&self.file, region.shared);
        }
        match &region.mapped {
            Some(mapped) => (
                mapped.base() + (address - region.shared.base),
                Some(mapped.clone()),
            ),
            None => (nowhere(address), None),
        }
    }
}

impl Drop for Abroad {
    fn drop(&mut self) {
        let mut all = lock(&ABROAD);
        if all
            .get(&self.token)
            .is_some_and(|known| known.strong_count() == 0)
        {
            all.remove(&self.token);
        }
    }
}

/// A rank of another process.
struct Guest {
    exchange: Arc<InProcess>,
    rank: usize,
    wire: Arc<Wire>,
    abroad: Arc<Abroad>,
}

impl Guest {
    fn new(exchange: Arc<InProcess>, rank: usize, wire: &Arc<Wire>, abroad: Arc<Abroad>) -> Self {
        Self {
            exchange,
            rank,
            wire: wire.clone(),
            abroad,
        }
    }

    /// Does what the rank asks for until it leaves, or its process ends.
    fn serve(self, stream: &mut impl Read) {
        let mut left = false;
        while let Ok(frame) = wire::receive(stream) {
            let mut frame = Reader::new(&frame);
            match frame.byte() {
                Some(LEAVE) => {
                    left = true;
                    self.exchange.leave(self.rank);
                    // An aborted rank's peers learn of the end of its process all the same.
                    if frame.byte() == Some(1) {
                        self.wire.close();
                        return;
                    }
                }
                Some(kind) if self.act(kind, &mut frame).is_some() => {}
                // Whoever does not speak as we do is as good as gone.
                _ => break,
            }
        }
        self.exchange.lose(&gone(self.rank));
        self.exchange.abort(self.rank);
        if !left {
            self.exchange.leave(self.rank);
        }
        self.wire.close();
    }

    fn act(&self, kind: u8, frame: &mut Reader<'_>) -> Option<()> {
        let (exchange, rank) = (&self.exchange, self.rank);
        match kind {
            REGION => self.abroad.show(Shared {
                base: frame.number()?,
                length: frame.size()?,
                offset: frame.number()?,
            })?,
            START => {
                let place = frame.number()?;
                let device = frame.int()?;
                let requests = frame.list(Reader::request)?;
                let launch = self.launch(device, requests)?;
                let wire = self.wire.clone();
                let done = Done::calling(move |result| {
                    wire.send(Writer::new(DONE).number(place).int(result.0));
                });
                exchange.start(rank, place, launch, done);
            }
            SKIP => exchange.skip(rank, frame.number()?),
            GATHER => {
                let tell = self.tell(frame.number()?);
                exchange.gather_for(rank, frame.topic()?, frame.bytes()?, tell);
            }
            CONNECT => {
                let tell = self.tell(frame.number()?);
                let (send_to, recv_from) = (frame.list(Reader::size)?, frame.list(Reader::size)?);
                exchange.connect_for(rank, send_to, recv_from, tell);
            }
            ABORT => {
                exchange.abort(rank);
                self.wire.send(Writer::new(ABORTED));
            }
            RESTORE => exchange.restore(rank),
            _ => return None,
        }
        Some(())
    }

    fn tell(&self, number: u64) -> Tell {
        let wire = self.wire.clone();
        Box::new(move |answer| {
            let frame = Writer::new(ANSWER).number(number);
            wire.send(match answer {
                Ok(all) => frame.byte(1).list(&all, |frame, one| frame.bytes(one)),
                Err(_) => frame.byte(0),
            });
        })
    }

    /// The rank's launch, with addresses of this process.
    fn launch(&self, device: CuDevice, mut requests: Vec<Request>) -> Option<Arc<Launch>> {
        let size = self.exchange.size();
        let mut mapped: HashMap<u64, Arc<Mapped>> = HashMap::new();
        let mut reach = |address: u64| {
            let (there, kept) = self.abroad.reach(address);
            if let Some(kept) = kept {
                mapped.insert(kept.base(), kept);
            }
            there
        };
        for asked in &mut requests {
            (asked.peer < size && asked.datatype.size().is_some()).then_some(())?;
            let put = matches!(asked.kind, Kind::Put(_));
            if asked.send != 0 {
                asked.send = reach(asked.send);
            }
            // A put's is in the memory of the peer, and found there.
            if asked.recv != 0 && !put {
                asked.recv = reach(asked.recv);
            }
        }
        let mut launch = Launch::new(self.rank, size, device, requests);
        launch.mapped = mapped.into_values().collect();
        Some(Arc::new(launch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::system::anonymous_file;

    fn shared(base: u64, length: usize, offset: u64) -> Shared {
        Shared {
            base,
            length,
            offset,
        }
    }

    #[test]
    fn addresses_of_another_process_are_found_within_what_it_has_shown() {
        const PAGE: usize = 64 << 10;
        let file = anonymous_file(c"test").unwrap();
        file.set_len(4 * PAGE as u64).unwrap();
        let abroad = Abroad::of([9; 16], file.try_clone().unwrap());
        assert!(Arc::ptr_eq(&abroad, &Abroad::of([9; 16], file)));
        let base = 0x7000_0000;
        assert!(abroad.reach(base).1.is_none());
        assert!(abroad.show(shared(base, 2 * PAGE, 0)).is_some());
        let (start, kept) = abroad.reach(base);
        let (last, _) = abroad.reach(base + 2 * PAGE as u64 - 1);
        assert_eq!(last - start, 2 * PAGE as u64 - 1);
        assert!(is_mapped(start, 2 * PAGE) && !is_mapped(start, 2 * PAGE + 1));
        assert!(is_mapped(last, 1) && !is_mapped(last, 2));
        for outside in [base - 1, base + 2 * PAGE as u64, u64::MAX] {
            let (nowhere, nothing) = abroad.reach(outside);
            assert!(nothing.is_none() && !is_mapped(nowhere, 1));
        }
        // What takes its place, be it in part, is other memory; who uses the old keeps it.
        let part = shared(base + PAGE as u64, PAGE, 3 * PAGE as u64);
        assert!(abroad.show(part).is_some());
        assert!(abroad.reach(base).1.is_none() && is_mapped(start, 1));
        assert!(abroad.reach(part.base).1.is_some());
        drop(kept);
        // More than there is of the file, or of memory.
        let end = 4 * PAGE as u64;
        for (length, offset) in [(5 * PAGE, 0), (PAGE, end), (PAGE, u64::MAX), (0, 0)] {
            assert!(abroad.show(shared(base, length, offset)).is_none());
        }
        assert!(abroad.show(shared(u64::MAX, PAGE, 0)).is_none());
    }
}

//! The work of a launch: its place in the rank's order, and the bytes that it moves.

use std::ops::Range;
use std::sync::Arc;

use super::arithmetic::{self, Reduction};
use super::exchange::{Arrival, Exchange, Kind, Launch, Operator, Request, Scalar};
use super::processes;
use crate::cuda::{CuDevice, CuResult};
use crate::emulator::cuda::{self, Done, Execution, Work};

/// Bytes that a launch may read and write in all and still be done by the thread that enqueues it.
const SHORT: usize = 1 << 20;
/// Bytes of one rank's buffer that one thread works on at a time.
const PART: usize = 256 << 10;

/// What `rank` enqueues for one call, or for all calls of a group on one communicator: `requests` in the
/// order of the calls, all valid.
pub(super) fn work(
    exchange: Arc<dyn Exchange>,
    rank: usize,
    device: CuDevice,
    requests: Vec<Request>,
) -> Arc<dyn Work> {
    let launch = Arc::new(Launch::new(rank, exchange.size(), device, requests));
    Arc::new(Enqueued {
        exchange,
        rank,
        launch,
    })
}

/// Whether the calls hold a send to the own rank without its receive, or the other way about.
pub(super) fn lone_self(rank: usize, requests: &[Request]) -> bool {
    let own = |kind| {
        let calls = requests.iter();
        calls
            .filter(|asked| asked.peer == rank && asked.kind == kind)
            .count()
    };
    own(Kind::Send) != own(Kind::Recv)
}

/// Whether a collective of a communicator's only rank names memory that a copy cannot take. Its call
/// reports that; other collectives fail when they run.
pub(super) fn one_rank_fault(request: &Request) -> bool {
    let bytes = request.bytes();
    request.send != request.recv && !(known(request.send, bytes) && known(request.recv, bytes))
}

struct Enqueued {
    exchange: Arc<dyn Exchange>,
    rank: usize,
    launch: Arc<Launch>,
}

impl Work for Enqueued {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(Issued {
            exchange: self.exchange.clone(),
            rank: self.rank,
            launch: Some(self.launch.clone()),
            place: self.exchange.place(self.rank),
        })
    }
}

struct Issued {
    exchange: Arc<dyn Exchange>,
    rank: usize,
    /// None once it is started.
    launch: Option<Arc<Launch>>,
    place: u64,
}

impl Execution for Issued {
    fn start(mut self: Box<Self>, done: Done) {
        if let Some(launch) = self.launch.take() {
            self.exchange.start(self.rank, self.place, launch, done);
        }
    }

    fn is_short(&self) -> bool {
        self.launch
            .as_ref()
            .is_some_and(|launch| launch.traffic <= SHORT)
    }
}

impl Drop for Issued {
    fn drop(&mut self) {
        if self.launch.is_some() {
            self.exchange.skip(self.rank, self.place);
        }
    }
}

/// Bytes to copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes: usize,
}

/// Whether so many bytes lie in memory that the devices can use, of this process or of a rank's of
/// another one.
pub(super) fn known(address: u64, bytes: usize) -> bool {
    if bytes == 0 {
        return true;
    }
    match cuda::find(address) {
        Some(range) => {
            let offset = (address - range.base) as usize;
            offset <= range.size && bytes <= range.size - offset
        }
        None => processes::is_mapped(address, bytes),
    }
}

/// Copies, and says for each whether its memory was there. No two write the same bytes. One in place is nothing.
pub(super) fn copy_all(moves: &[Move]) -> Vec<CuResult> {
    let there = |one: &Move| known(one.from, one.bytes) && known(one.to, one.bytes);
    let mut good = Vec::with_capacity(moves.len());
    let mut results = Vec::with_capacity(moves.len());
    for one in moves.iter() {
        let result = match one.from == one.to {
            true => CuResult::Success,
            false if there(one) => {
                good.push((*one, one.bytes));
                CuResult::Success
            }
            false => CuResult::IllegalAddress,
        };
        results.push(result);
    }
    each_part(&good, PART, |one, part| {
        // SAFETY: both were found, and the launches that name them keep them from being freed.
        unsafe {
            let (from, to) = (one.from as *const u8, one.to as *mut u8);
            to.add(part.start)
                .copy_from(from.add(part.start), part.len());
        }
    });
    results
}

/// Has every part of every job done, on all cores if it is more than one part's work. A job is so many items
/// long, and a part has `length` items at most.
fn each_part<J: Copy + Sync>(
    jobs: &[(J, usize)],
    length: usize,
    run: impl Fn(J, Range<usize>) + Sync,
) {
    let total = jobs.iter().map(|(_, items)| *items).sum::<usize>();
    if total <= length {
        let jobs = jobs.iter().filter(|(_, items)| *items > 0);
        jobs.for_each(|(job, items)| run(*job, 0..*items));
        return;
    }
    let parts: Vec<(J, Range<usize>)> = jobs
        .iter()
        .flat_map(|&(job, items)| {
            let starts = (0..items).step_by(length);
            starts.map(move |from| (job, from..items.min(from + length)))
        })
        .collect();
    cuda::spread(parts.len(), &|i| {
        let (job, part) = &parts[i];
        run(*job, part.clone());
    });
}

/// Does a collective that all ranks have reached; they agree on what it is.
pub(super) fn collective(arrivals: &[Arrival]) -> CuResult {
    let asked: Vec<&Request> = arrivals
        .iter()
        .map(|(launch, i)| &launch.requests[*i])
        .collect();
    let ranks = asked.len();
    let first = asked[0];
    let (root, bytes) = (first.peer, first.bytes());
    let block = |rank: usize| rank.wrapping_mul(bytes) as u64;

    // A single rank's elements stay as they are, unless they are multiplied. In place, nobody looks at them.
    let alone = ranks == 1 && !multiplies(first);
    if alone && first.send == first.recv {
        return CuResult::Success;
    }

    // How many bytes each rank reads and writes.
    let (reads, writes) = match first.kind {
        Kind::AllGather => (bytes, bytes.saturating_mul(ranks)),
        Kind::ReduceScatter => (bytes.saturating_mul(ranks), bytes),
        _ => (bytes, bytes),
    };
    let there = asked.iter().enumerate().all(|(rank, asked)| {
        let rooted = rank == root;
        let (sends, receives) = match first.kind {
            Kind::Broadcast => (rooted, true),
            Kind::Reduce => (true, rooted),
            _ => (true, true),
        };
        (!sends || known(asked.send, reads)) && (!receives || known(asked.recv, writes))
    });
    if !there {
        return CuResult::IllegalAddress;
    }
    let sends: Vec<u64> = asked.iter().map(|asked| asked.send).collect();
    let receives: Vec<u64> = asked.iter().map(|asked| asked.recv).collect();

    match first.kind {
        Kind::Broadcast => share(&[(sends[root], receives)], bytes),
        Kind::AllGather => {
            let blocks = (0..ranks).map(|rank| {
                let places = receives.iter().map(|recv| recv + block(rank)).collect();
                (sends[rank], places)
            });
            share(&blocks.collect::<Vec<_>>(), bytes);
        }
        Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter if alone => {
            share(&[(sends[0], receives)], bytes);
        }
        _ => {
            let mut scalars = Vec::new();
            for asked in &asked {
                if let Operator::PreMulSum(scalar) = asked.operator {
                    match read(scalar, asked) {
                        Some(scalar) => scalars.push(scalar),
                        None => return CuResult::IllegalAddress,
                    }
                }
            }
            let reduction = Reduction::new(first.datatype, first.operator, ranks, scalars);
            let jobs = match first.kind {
                Kind::ReduceScatter => (0..ranks)
                    .map(|rank| {
                        let blocks = sends.iter().map(|send| send + block(rank)).collect();
                        (blocks, vec![receives[rank]])
                    })
                    .collect(),
                Kind::Reduce => vec![(sends, vec![receives[root]])],
                _ => vec![(sends, receives)],
            };
            reduce(&reduction, &jobs, first);
        }
    }
    CuResult::Success
}

/// Whether each rank's elements are multiplied before they are combined.
fn multiplies(asked: &Request) -> bool {
    match asked.operator {
        Operator::PreMulSum(_) => true,
        Operator::Avg => arithmetic::is_float(asked.datatype),
        _ => false,
    }
}

/// A user's scalar; `None` if the device memory that should hold it is gone.
pub(super) fn read(scalar: Scalar, asked: &Request) -> Option<[u8; 8]> {
    match scalar {
        Scalar::Immediate(bytes) => Some(bytes),
        Scalar::Device(address) => {
            let size = asked.datatype.size().unwrap_or(0);
            let mut bytes = [0; 8];
            if !known(address, size) {
                return None;
            }
            // SAFETY: the memory was found, and the user keeps it until the reduction has run.
            unsafe { bytes.as_mut_ptr().copy_from(address as *const u8, size) };
            Some(bytes)
        }
    }
}

/// Reduces the inputs of each job into its outputs.
fn reduce(reduction: &Reduction, jobs: &[(Vec<u64>, Vec<u64>)], asked: &Request) {
    let length = PART / asked.datatype.size().unwrap_or(1);
    let jobs: Vec<_> = jobs.iter().map(|job| (job, asked.count)).collect();
    each_part(&jobs, length, |(inputs, outputs), part| {
        // SAFETY: all were found, and the launches that name them keep them from being freed.
        unsafe { reduction.run(inputs, outputs, part) };
    });
}

/// Copies the bytes at each first address to all of the others. A block goes to all of them while it is in
/// the cache.
fn share(jobs: &[(u64, Vec<u64>)], bytes: usize) {
    const BLOCK: usize = 64 << 10;
    let jobs: Vec<_> = jobs.iter().map(|job| (job, bytes)).collect();
    each_part(&jobs, PART, |(from, places), part| {
        for start in part.clone().step_by(BLOCK) {
            let length = BLOCK.min(part.end - start);
            for to in places.iter().filter(|to| *to != from) {
                // SAFETY: all were found, and the launches that name them keep them from being freed.
                unsafe {
                    let (from, to) = (*from as *const u8, *to as *mut u8);
                    to.add(start).copy_from(from.add(start), length);
                }
            }
        }
    });
}

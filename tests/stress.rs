//! Ranks that do random things to two communicators on two streams each, all checked.
//!
//! Three seconds unless `METRALE_STRESS_SECONDS` says otherwise; `METRALE_STRESS_SEED` repeats a run.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use metrale_gpu_sys::cuda::*;
use metrale_gpu_sys::nccl::*;

const RANKS: i32 = 8;
const N: usize = RANKS as usize;
/// Elements of the largest buffer of one rank.
const ROOM: usize = 40_000 * N;

/// The same sequence on every rank (splitmix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What a rank sends at an index of a step.
fn input(step: u64, rank: usize, index: usize) -> u32 {
    let place = step ^ (rank as u64) << 40 ^ (index as u64) << 8;
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 31) as u32
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
    Ring,
}

const KINDS: [Kind; 9] = [
    Kind::AllReduce,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::AlltoAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::Ring,
];

/// One collective, the same for all ranks.
#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    kind: Kind,
    op: NcclRedOp,
    count: usize,
    root: usize,
    comm: usize,
    stream: usize,
    wait: bool,
}

impl Step {
    fn new(number: u64, random: &mut Random) -> Self {
        let sizes = [1, 7, 300, 5_000, 40_000];
        let limit = sizes[random.below(5) as usize];
        Self {
            number,
            kind: KINDS[random.below(9) as usize],
            op: [NcclRedOp::Sum, NcclRedOp::Max, NcclRedOp::Min][random.below(3) as usize],
            count: random.below(limit + 1) as usize,
            root: random.below(N as u64) as usize,
            comm: random.below(2) as usize,
            stream: random.below(2) as usize,
            wait: random.below(4) == 0,
        }
    }

    fn reduce(self, index: usize) -> u32 {
        let inputs = (0..N).map(|rank| input(self.number, rank, index));
        match self.op {
            NcclRedOp::Max => inputs.max().unwrap(),
            NcclRedOp::Min => inputs.min().unwrap(),
            _ => inputs.fold(0, u32::wrapping_add),
        }
    }

    /// Elements that a rank receives.
    fn received(self, rank: usize) -> usize {
        match self.kind {
            Kind::AllGather | Kind::AlltoAll => self.count * N,
            Kind::Gather if rank == self.root => self.count * N,
            Kind::Gather | Kind::Reduce if rank != self.root => 0,
            _ => self.count,
        }
    }

    fn expected(self, rank: usize, index: usize) -> u32 {
        let (block, within) = (index / self.count, index % self.count);
        match self.kind {
            Kind::AllReduce | Kind::Reduce => self.reduce(index),
            Kind::ReduceScatter => self.reduce(rank * self.count + index),
            Kind::Broadcast => input(self.number, self.root, index),
            Kind::AllGather | Kind::Gather => input(self.number, block, within),
            Kind::AlltoAll => input(self.number, block, rank * self.count + within),
            Kind::Scatter => input(self.number, self.root, rank * self.count + index),
            Kind::Ring => input(self.number, (rank + N - 1) % N, index),
        }
    }

    /// # Safety
    ///
    /// Both buffers hold `ROOM` elements, and the communicator is live.
    unsafe fn enqueue(
        self,
        send: CuDevicePtr,
        recv: CuDevicePtr,
        rank: usize,
        comm: NcclComm,
        stream: CuStream,
    ) -> Result<()> {
        const U32: NcclDataType = NcclDataType::Uint32;
        let (s, r) = (send as *const c_void, recv as *mut c_void);
        let (count, op, root) = (self.count, self.op, self.root as i32);
        // SAFETY: as the caller promises; no kind takes more than `count * N` elements.
        let result = unsafe {
            match self.kind {
                Kind::AllReduce => ncclAllReduce(s, r, count, U32, op, comm, stream),
                Kind::Broadcast => ncclBroadcast(s, r, count, U32, root, comm, stream),
                Kind::Reduce => ncclReduce(s, r, count, U32, op, root, comm, stream),
                Kind::AllGather => ncclAllGather(s, r, count, U32, comm, stream),
                Kind::ReduceScatter => ncclReduceScatter(s, r, count, U32, op, comm, stream),
                Kind::AlltoAll => ncclAlltoAll(s, r, count, U32, comm, stream),
                Kind::Gather => ncclGather(s, r, count, U32, root, comm, stream),
                Kind::Scatter => ncclScatter(s, r, count, U32, root, comm, stream),
                Kind::Ring => {
                    let (next, last) = ((rank + 1) % N, (rank + N - 1) % N);
                    ncclGroupStart();
                    ncclSend(s, count, U32, next as i32, comm, stream);
                    ncclRecv(r, count, U32, last as i32, comm, stream);
                    ncclGroupEnd()
                }
            }
        };
        check_nccl(result, "a collective")
    }
}

/// A step under way: its buffers, and what came back.
struct Pending {
    step: Step,
    back: Vec<u32>,
}

fn rank(
    rank: usize,
    ids: [NcclUniqueId; 2],
    seed: u64,
    time: Duration,
    start: Instant,
) -> Result<u64> {
    use_device(rank as i32)?;
    let mut comms: [NcclComm; 2] = [std::ptr::null_mut(); 2];
    for (comm, id) in comms.iter_mut().zip(ids) {
        // SAFETY: `comm` takes one communicator.
        let result = unsafe { ncclCommInitRank(comm, RANKS, id, rank as i32) };
        check_nccl(result, "ncclCommInitRank")?;
    }
    let streams = [create_stream()?, create_stream()?];
    let buffers: Vec<[CuDevicePtr; 2]> = (0..2)
        .map(|_| Ok([mem_alloc(ROOM * 4)?, mem_alloc(ROOM * 4)?]))
        .collect::<Result<_>>()?;
    let stop = mem_alloc(4)?;
    let mut random = Random(seed);
    let mut steps = 0;
    loop {
        let mut pending: [Option<Pending>; 2] = [None, None];
        for _ in 0..200 {
            steps += 1;
            let step = Step::new(steps, &mut random);
            let stream = streams[step.stream];
            if let Some(pending) = pending[step.stream].take() {
                sync_stream(stream)?;
                check(rank, &pending)?;
            }
            let [send, recv] = buffers[step.stream];
            let data: Vec<u32> = (0..step.count * N)
                .map(|i| input(step.number, rank, i))
                .collect();
            let mut back = vec![0u32; step.received(rank)];
            // SAFETY: the buffers are the stream's own, and the host memory lives until the wait.
            unsafe {
                memcpy_htod_async(send, &data, stream)?;
                step.enqueue(send, recv, rank, comms[step.comm], stream)?;
                memcpy_dtoh_async(&mut back, recv, stream)?;
            }
            pending[step.stream] = Some(Pending { step, back });
            if step.wait {
                sync_stream(stream)?;
                check(rank, &pending[step.stream].take().unwrap())?;
            }
        }
        for (stream, pending) in streams.into_iter().zip(pending) {
            sync_stream(stream)?;
            if let Some(pending) = pending {
                check(rank, &pending)?;
            }
        }
        // All stop after the same step: rank 0 decides.
        let mut over = [u32::from(start.elapsed() > time)];
        // SAFETY: `stop` holds one element, and the host memory lives until the wait.
        unsafe {
            memcpy_htod_async(stop, &over, streams[0])?;
            let p = stop as *mut c_void;
            let result = ncclBroadcast(p, p, 1, NcclDataType::Uint32, 0, comms[0], streams[0]);
            check_nccl(result, "ncclBroadcast")?;
            memcpy_dtoh_async(&mut over, stop, streams[0])?;
        }
        sync_stream(streams[0])?;
        if over[0] != 0 {
            break;
        }
    }
    for comm in comms {
        // SAFETY: live, idle, and not used afterwards.
        check_nccl(unsafe { ncclCommDestroy(comm) }, "ncclCommDestroy")?;
    }
    streams.into_iter().for_each(destroy_stream);
    for buffer in buffers.into_iter().flatten().chain([stop]) {
        // SAFETY: all work is done.
        unsafe { mem_free(buffer)? };
    }
    Ok(steps)
}

fn check(rank: usize, pending: &Pending) -> Result<()> {
    for (index, got) in pending.back.iter().enumerate() {
        let expected = pending.step.expected(rank, index);
        ensure!(
            *got == expected,
            "rank {rank} [{index}]: {got:x}, expected {expected:x}, {:?}",
            pending.step
        );
    }
    Ok(())
}

#[test]
fn random_collectives_on_two_streams_and_two_communicators() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let seconds: u64 = number("METRALE_STRESS_SECONDS").unwrap_or(3);
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let seed = number("METRALE_STRESS_SEED").unwrap_or(clock.as_nanos() as u64);
    println!("METRALE_STRESS_SEED={seed}");
    init().unwrap();
    let ids = [unique_id().unwrap(), unique_id().unwrap()];
    let (time, start) = (Duration::from_secs(seconds), Instant::now());
    let steps: Vec<u64> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..N)
            .map(|index| {
                scope.spawn(move || {
                    rank(index, ids, seed, time, start).unwrap_or_else(|error| {
                        // Its peers would wait for it.
                        eprintln!("METRALE_STRESS_SEED={seed}: {error:#}");
                        std::process::exit(1);
                    })
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    println!("{} steps on each rank", steps[0]);
}

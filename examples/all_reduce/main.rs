//! Reduces a buffer over all ranks, one thread a rank, and checks every element on the host.
//!
//! cargo run --release --example all_reduce -- --elements 1048576 --dtype bfloat16 --op avg
//!
//! Exit code 0: every element is right; 1: one is wrong; 2: it could not be run.

mod values;

use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Parser, builder::TypedValueParser};
use metrale_gpu_sys::cuda::{
    create_timing_event, device_count, elapsed_ms, init, mem_alloc, mem_free, memcpy_dtoh_async,
    memcpy_htod_async, use_device,
};
use metrale_gpu_sys::nccl::*;
use values::Reduction;

const TYPES: [(&str, NcclDataType); 12] = [
    ("int8", NcclDataType::Int8),
    ("uint8", NcclDataType::Uint8),
    ("int32", NcclDataType::Int32),
    ("uint32", NcclDataType::Uint32),
    ("int64", NcclDataType::Int64),
    ("uint64", NcclDataType::Uint64),
    ("float16", NcclDataType::Float16),
    ("float32", NcclDataType::Float32),
    ("float64", NcclDataType::Float64),
    ("bfloat16", NcclDataType::Bfloat16),
    ("float8e4m3", NcclDataType::Float8e4m3),
    ("float8e5m2", NcclDataType::Float8e5m2),
];

const OPERATORS: [(&str, NcclRedOp); 5] = [
    ("sum", NcclRedOp::Sum),
    ("prod", NcclRedOp::Prod),
    ("max", NcclRedOp::Max),
    ("min", NcclRedOp::Min),
    ("avg", NcclRedOp::Avg),
];

/// Reduce a buffer over all ranks, one thread a rank, and check every element on the host.
///
/// Exit code 0: every element is right; 1: one is wrong; 2: it could not be run.
#[derive(Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// How many ranks; one a visible GPU if not given. More ranks than GPUs share them, which NCCL
    /// 2.30 and newer take with NCCL_MULTI_RANK_GPU_ENABLE=1.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    ranks: Option<i32>,
    /// Elements of each rank's buffer.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    elements: u64,
    /// Data type of the elements.
    #[arg(long, default_value = "float32", value_parser = one_of(&TYPES))]
    dtype: NcclDataType,
    /// Reduction operator.
    #[arg(long, default_value = "sum", value_parser = one_of(&OPERATORS))]
    op: NcclRedOp,
    /// Seconds after which a rank gives up waiting for its peers.
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

/// Parses a name of `table` to its value.
fn one_of<T: Copy + Send + Sync>(table: &'static [(&str, T)]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).map(|name| {
        let found = table.iter().find(|(known, _)| *known == name);
        found
            .expect("the parser lets only names of the table pass")
            .1
    })
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("all_reduce: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether every element of every rank is right.
fn run(options: &Options) -> anyhow::Result<bool> {
    init()?;
    let devices = device_count()?;
    ensure!(devices > 0, "the driver sees no GPU; `doctor` tells more");
    let nranks = options.ranks.unwrap_or(devices);
    println!(
        "NCCL {}, ranks: {nranks}, GPUs: {}",
        version()?,
        devices.min(nranks)
    );

    let job = Job {
        reduction: Reduction {
            datatype: options.dtype,
            op: options.op,
            nranks,
        },
        elements: options.elements as usize,
        devices,
        id: unique_id()?,
        timeout: Duration::from_secs(options.timeout),
        gate: Gate::new(nranks),
    };
    let rows: Vec<anyhow::Result<Row>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..nranks)
            .map(|rank| {
                let job = &job;
                scope.spawn(move || job.rank(rank).with_context(|| format!("rank {rank}")))
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank's thread panicked"))
            .collect()
    });

    // The rank that failed first, not one that stopped because of it.
    let failed = rows
        .iter()
        .position(|row| matches!(row, Err(e) if !e.is::<PeerFailed>()));
    let rows = match failed {
        Some(index) => return Err(rows.into_iter().nth(index).unwrap().err().unwrap()),
        None => rows.into_iter().collect::<anyhow::Result<Vec<Row>>>()?,
    };
    println!(
        "{:>4} {:>6} {:>12} {:>12} {:>10}",
        "rank", "device", "elements", "result", "time"
    );
    for (rank, row) in rows.iter().enumerate() {
        let result = if row.wrong == 0 {
            "right".to_owned()
        } else {
            format!("{} wrong", row.wrong)
        };
        println!(
            "{rank:>4} {:>6} {:>12} {result:>12} {:>7.3} ms",
            row.device, job.elements, row.ms
        );
        if let Some(first) = &row.first_wrong {
            println!("     {first}");
        }
    }
    Ok(rows.iter().all(|row| row.wrong == 0))
}

/// What all ranks know.
struct Job {
    reduction: Reduction,
    elements: usize,
    devices: i32,
    id: NcclUniqueId,
    timeout: Duration,
    gate: Gate,
}

/// What a rank found.
struct Row {
    device: i32,
    wrong: usize,
    first_wrong: Option<String>,
    ms: f32,
}

impl Job {
    /// The work of one rank. Nothing that waits for the whole device (allocate, free) may run while a
    /// peer's collective waits for this rank on the same GPU: each step ends at the gate.
    fn rank(&self, rank: i32) -> anyhow::Result<Row> {
        let device = rank % self.devices;
        let Reduction {
            datatype,
            op,
            nranks,
        } = self.reduction;
        let size = datatype.size().expect("every type on offer has a size");
        let mut host = Vec::with_capacity(self.elements * size);
        for index in 0..self.elements {
            self.reduction
                .encode(self.reduction.input(rank, index), &mut host);
        }
        // The driver refuses to allocate nothing.
        let bytes = host.len().max(1);
        let (stream, send, recv) = self.gate.meet((|| {
            use_device(device)?;
            let stream = create_stream()?;
            let (send, recv) = (mem_alloc(bytes)?, mem_alloc(bytes)?);
            // SAFETY: `send` holds `host.len()` bytes, and `host` lives past the wait.
            unsafe { memcpy_htod_async(send, &host, stream)? };
            sync_stream(stream)?;
            Ok((stream, send, recv))
        })())?;

        let comm = self.gate.meet(self.connect(rank, nranks))?;
        let row = self.gate.meet((|| {
            let (start, end) = (create_timing_event()?, create_timing_event()?);
            // The first one connects the ranks; the second is timed.
            for _ in 0..2 {
                record_event(start, stream)?;
                // SAFETY: the communicator is live, and both buffers hold `elements` elements on its device.
                let result = unsafe {
                    ncclAllReduce(
                        send as *const c_void,
                        recv as *mut c_void,
                        self.elements,
                        datatype,
                        op,
                        comm.0,
                        stream,
                    )
                };
                check_started(result, "ncclAllReduce")?;
                comm.wait_ready(self.timeout)?;
                record_event(end, stream)?;
                self.wait(&comm, stream)?;
            }
            let ms = elapsed_ms(start, end)?;
            destroy_event(start);
            destroy_event(end);
            // SAFETY: `recv` holds `host.len()` bytes, and `host` lives past the wait.
            unsafe { memcpy_dtoh_async(&mut host, recv, stream)? };
            self.wait(&comm, stream)?;
            let mut row = Row {
                device,
                wrong: 0,
                first_wrong: None,
                ms,
            };
            for (index, element) in host.chunks_exact(size).enumerate() {
                let got = self.reduction.decode(element);
                let (expected, tolerance) = self.reduction.expected(index);
                let right = (got - expected).abs() <= tolerance;
                if !right {
                    row.wrong += 1;
                    row.first_wrong
                        .get_or_insert_with(|| format!("[{index}] is {got}, expected {expected}"));
                }
            }
            Ok(row)
        })())?;

        self.gate.meet(comm.close(self.timeout))?;
        destroy_stream(stream);
        // SAFETY: all work that used the buffers is done.
        unsafe {
            mem_free(send)?;
            mem_free(recv)?;
        }
        Ok(row)
    }

    /// Joins the communicator. It is non-blocking, so that a peer that never comes ends in an error
    /// and not in a hang.
    fn connect(&self, rank: i32, nranks: i32) -> anyhow::Result<Comm> {
        let mut comm = Comm(std::ptr::null_mut());
        let config = NcclConfig::non_blocking();
        // SAFETY: `comm` takes one communicator and `config` is initialised.
        let result = unsafe { ncclCommInitRankConfig(&mut comm.0, nranks, self.id, rank, &config) };
        check_started(result, "ncclCommInitRankConfig")?;
        comm.wait_ready(self.timeout)?;
        Ok(comm)
    }

    /// Waits for the stream, but no longer than the deadline, nor after the communicator has failed.
    fn wait(&self, comm: &Comm, stream: u64) -> anyhow::Result<()> {
        let start = Instant::now();
        while !stream_ready(stream)? {
            comm.wait_ready(self.timeout)?;
            if start.elapsed() > self.timeout {
                bail!(
                    "the collective did not end within {:?}; a peer is missing or stuck",
                    self.timeout
                );
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A communicator that is aborted on every way out but [`Comm::close`].
struct Comm(NcclComm);

impl Comm {
    fn wait_ready(&self, timeout: Duration) -> anyhow::Result<()> {
        // SAFETY: the communicator is live, and this thread's own.
        unsafe { wait_ready(self.0, timeout) }
    }

    /// Ends it in peace, together with its peers.
    fn close(self, timeout: Duration) -> anyhow::Result<()> {
        // SAFETY: the communicator is live and idle.
        check_started(unsafe { ncclCommFinalize(self.0) }, "ncclCommFinalize")?;
        self.wait_ready(timeout)?;
        let comm = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: finalized, and nothing knows it afterwards.
        check_nccl(unsafe { ncclCommDestroy(comm) }, "ncclCommDestroy")
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: null, or a communicator in whatever state that nothing uses afterwards.
        unsafe { ncclCommAbort(self.0) };
    }
}

/// Where the ranks meet between steps; all go on, or none does.
struct Gate {
    ranks: i32,
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    arrived: i32,
    round: u64,
    failed: bool,
}

/// What a rank says that had to stop because a peer failed.
#[derive(Debug)]
struct PeerFailed;

impl std::fmt::Display for PeerFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped because another rank failed")
    }
}

impl std::error::Error for PeerFailed {}

impl Gate {
    fn new(ranks: i32) -> Self {
        let state = Mutex::new(GateState {
            arrived: 0,
            round: 0,
            failed: false,
        });
        Self {
            ranks,
            state,
            changed: Condvar::new(),
        }
    }

    /// Waits for every rank's outcome of a step.
    fn meet<T>(&self, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        let mut state = self.state.lock().unwrap();
        state.failed |= outcome.is_err();
        state.arrived += 1;
        if state.arrived == self.ranks {
            state.arrived = 0;
            state.round += 1;
            self.changed.notify_all();
        } else {
            let round = state.round;
            state = self
                .changed
                .wait_while(state, |state| state.round == round)
                .unwrap();
        }
        if state.failed && outcome.is_ok() {
            Err(PeerFailed.into())
        } else {
            outcome
        }
    }
}

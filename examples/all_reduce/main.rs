//! Reduces a buffer over all ranks, one thread a rank, and checks every element on the host.
//!
//! cargo run --release --example all_reduce -- --elements 1048576 --dtype bfloat16 --op avg
//!
//! Exit code 0: every element is right; 1: one is wrong; 2: it could not be run.

mod comm;
mod gate;
mod values;

use std::ffi::c_void;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use comm::Comm;
use gate::{FailOnPanic, Gate};
use metrale_gpu_sys::cuda::{
    create_timing_event, device_count, elapsed_ms, init, mem_alloc, mem_free, memcpy_dtoh_async,
    memcpy_htod_async, use_device,
};
use metrale_gpu_sys::nccl::*;
use values::{OPERATORS, Reduction, TYPES, one_of};

/// Reduce a buffer over all ranks, one thread a rank, and check every element on the host.
///
/// Exit code 0: every element is right; 1: one is wrong; 2: it could not be run.
#[derive(Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// How many ranks; one a visible GPU if not given. More ranks than GPUs share them, which NCCL
    /// 2.30 and newer take with NCCL_MULTI_RANK_GPU_ENABLE=1.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=1024))]
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
    let reduction = Reduction {
        datatype: options.dtype,
        op: options.op,
        nranks,
    };
    reduction.ensure_checkable()?;
    println!(
        "NCCL {}, ranks: {nranks}, GPUs: {}",
        version()?,
        devices.min(nranks)
    );

    let job = Job {
        reduction,
        elements: options.elements as usize,
        devices,
        id: unique_id()?,
        timeout: Duration::from_secs(options.timeout),
        gate: Gate::new(nranks),
    };
    let rows: Vec<Option<Row>> = thread::scope(|scope| {
        let mut ranks = Vec::new();
        for rank in 0..nranks {
            let job = &job;
            match thread::Builder::new().spawn_scoped(scope, move || job.rank(rank)) {
                Ok(thread) => ranks.push(thread),
                Err(error) => {
                    job.gate.fail(rank, anyhow!(error).context("no thread"));
                    break;
                }
            }
        }
        ranks
            .into_iter()
            .map(|rank| rank.join().ok().flatten())
            .collect()
    });
    if let Some(error) = job.gate.take_failure() {
        return Err(error);
    }

    let rows: Vec<Row> = rows.into_iter().flatten().collect();
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
            row.device, options.elements, row.ms
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

/// A rank's stream, its two buffers on the device, and the one on the host.
struct Buffers {
    stream: u64,
    send: u64,
    recv: u64,
    host: Vec<u8>,
}

impl Job {
    /// The work of one rank; `None` if any rank failed. Nothing that waits for the whole device
    /// (allocate, free) may run while a peer's collective waits for this rank on the same GPU: each
    /// step ends at the gate.
    fn rank(&self, rank: i32) -> Option<Row> {
        let gate = &self.gate;
        let device = rank % self.devices;
        // Aborted only after the gate knows of a failure, so that the peers know the cause.
        let mut comm = Comm(null_mut());
        let _guard = FailOnPanic { gate, rank };
        let mut buffers = gate.meet(rank, self.allocate(device))?;
        gate.meet(rank, self.fill(rank, &mut buffers))?;
        gate.meet(rank, self.connect(rank, &mut comm))?;
        let ms = gate.meet(rank, self.reduce(&comm, &mut buffers))?;
        gate.meet(rank, self.close(&mut comm))?;
        let (wrong, first_wrong) = self.check(&buffers.host);
        gate.meet(rank, buffers.free())?;
        Some(Row {
            device,
            wrong,
            first_wrong,
            ms,
        })
    }

    fn allocate(&self, device: i32) -> anyhow::Result<Buffers> {
        use_device(device)?;
        let bytes = self.elements * self.element_size();
        // The driver refuses to allocate nothing.
        let (send, recv) = (mem_alloc(bytes.max(1))?, mem_alloc(bytes.max(1))?);
        let mut host = Vec::new();
        host.try_reserve_exact(bytes)
            .with_context(|| format!("no room for {bytes} bytes on the host"))?;
        Ok(Buffers {
            stream: create_stream()?,
            send,
            recv,
            host,
        })
    }

    fn fill(&self, rank: i32, buffers: &mut Buffers) -> anyhow::Result<()> {
        for index in 0..self.elements {
            let input = self.reduction.input(rank, index);
            self.reduction.encode(input, &mut buffers.host);
        }
        // SAFETY: `send` holds as many bytes as `host`, which lives past the wait.
        unsafe { memcpy_htod_async(buffers.send, &buffers.host, buffers.stream)? };
        sync_stream(buffers.stream)
    }

    /// Joins the communicator. It is non-blocking, so that a peer that never comes ends in an error
    /// and not in a hang.
    fn connect(&self, rank: i32, comm: &mut Comm) -> anyhow::Result<()> {
        let config = NcclConfig::non_blocking();
        let nranks = self.reduction.nranks;
        // SAFETY: `comm` takes one communicator and `config` is initialised.
        let result = unsafe { ncclCommInitRankConfig(&mut comm.0, nranks, self.id, rank, &config) };
        check_started(result, "ncclCommInitRankConfig")?;
        self.wait(|| comm.ready())
    }

    /// Reduces, brings the result to the host, and tells the milliseconds on the device.
    fn reduce(&self, comm: &Comm, buffers: &mut Buffers) -> anyhow::Result<f32> {
        let stream = buffers.stream;
        let (start, end) = (create_timing_event()?, create_timing_event()?);
        // The first one connects the ranks; the second is timed.
        for _ in 0..2 {
            record_event(start, stream)?;
            // SAFETY: the communicator is live, and both buffers hold `elements` elements on its device.
            let result = unsafe {
                ncclAllReduce(
                    buffers.send as *const c_void,
                    buffers.recv as *mut c_void,
                    self.elements,
                    self.reduction.datatype,
                    self.reduction.op,
                    comm.0,
                    stream,
                )
            };
            check_started(result, "ncclAllReduce")?;
            self.wait(|| comm.ready())?;
            record_event(end, stream)?;
            self.wait(|| Ok(comm.ready()? && stream_ready(stream)?))?;
        }
        let ms = elapsed_ms(start, end)?;
        destroy_event(start);
        destroy_event(end);
        // SAFETY: `recv` holds as many bytes as `host`, which lives past the wait.
        unsafe { memcpy_dtoh_async(&mut buffers.host, buffers.recv, stream)? };
        sync_stream(stream)?;
        Ok(ms)
    }

    /// How many elements are wrong, and the first of them in words.
    fn check(&self, host: &[u8]) -> (usize, Option<String>) {
        let (mut wrong, mut first) = (0, None);
        for (index, element) in host.chunks_exact(self.element_size()).enumerate() {
            let got = self.reduction.decode(element);
            let (expected, tolerance) = self.reduction.expected(index);
            let right = (got - expected).abs() <= tolerance;
            if !right {
                wrong += 1;
                first.get_or_insert_with(|| format!("[{index}] is {got}, expected {expected}"));
            }
        }
        (wrong, first)
    }

    /// Ends the communicator in peace, together with its peers.
    fn close(&self, comm: &mut Comm) -> anyhow::Result<()> {
        // SAFETY: the communicator is live and idle.
        check_started(unsafe { ncclCommFinalize(comm.0) }, "ncclCommFinalize")?;
        self.wait(|| comm.ready())?;
        let comm = std::mem::replace(&mut comm.0, null_mut());
        // SAFETY: finalized, and nothing knows it afterwards.
        check_nccl(unsafe { ncclCommDestroy(comm) }, "ncclCommDestroy")
    }

    /// Waits until `done`, but no longer than the deadline, nor after a rank has failed.
    fn wait(&self, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let start = Instant::now();
        while !done()? {
            ensure!(!self.gate.failed(), "another rank failed");
            ensure!(
                start.elapsed() < self.timeout,
                "not done within {:?}; a peer is missing or stuck",
                self.timeout
            );
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn element_size(&self) -> usize {
        let size = self.reduction.datatype.size();
        size.expect("every type on offer has a size")
    }
}

impl Buffers {
    fn free(self) -> anyhow::Result<()> {
        destroy_stream(self.stream);
        // SAFETY: all work that used the buffers is done.
        unsafe {
            mem_free(self.send)?;
            mem_free(self.recv)
        }
    }
}

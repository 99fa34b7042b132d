//! Measures a collective over a range of sizes, in the way and with the columns of NVIDIA's nccl-tests.
//!
//! cargo run --release --example all_reduce_perf -- -b 8 -e 256M -f 2
//!
//! Each rank is a thread with a GPU of its own, or several share one. For each size the operation runs once untimed, then `-n` times
//! between two readings of the host's clock: all are enqueued, then waited for. The time is the average over
//! the ranks. Then it runs again on fresh data, and every element of every rank is checked on the host.
//!
//! Exit code 0: every element is right; 1: one is wrong; 2: it could not be run.

#[path = "../all_reduce/gate.rs"]
mod gate;
mod operation;
mod report;
#[path = "../all_reduce/values.rs"]
mod values;

use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use gate::{FailOnPanic, Gate};
use metrale_gpu_sys::cuda::{
    CuDevicePtr, CuStream, device, device_count, device_name, init, mem_alloc, mem_free,
    memcpy_dtoh_async, memcpy_htod_async, memset_d8_async, use_device,
};
use metrale_gpu_sys::nccl::*;
use metrale_gpu_sys::{BINDING, Binding};
use operation::{Counts, OPERATIONS, Operation, Part};
use report::{Measured, Row};
use values::{OPERATORS, Reduction, TYPES, one_of};

/// Measure a collective over a range of sizes, in the way and with the columns of NVIDIA's nccl-tests.
///
/// Sizes are numbers of bytes, also with K, M or G. Exit code 0: every element is right; 1: one is wrong; 2: it could not be run.
#[derive(Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// What is measured.
    #[arg(long, default_value = "all-reduce", value_parser = one_of(&OPERATIONS))]
    op: Operation,
    /// Smallest size.
    #[arg(short = 'b', long, default_value = "8", value_parser = parse_size)]
    min_bytes: usize,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "32M", value_parser = parse_size)]
    max_bytes: usize,
    /// From each size to the next, times this.
    #[arg(short = 'f', long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// From each size to the next, plus this, and no factor.
    #[arg(short = 'i', long, value_parser = parse_size, conflicts_with = "factor")]
    step: Option<usize>,
    /// Timed iterations of each size.
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Untimed iterations of the largest and of the smallest size before everything else.
    #[arg(short = 'w', long, default_value_t = 5)]
    warm_up: u32,
    /// How often each size is run and checked after it was timed; 0: never.
    #[arg(short = 'c', long, default_value_t = 1)]
    checks: u32,
    /// Data type of the elements.
    #[arg(short = 'd', long, default_value = "float32", value_parser = one_of(&TYPES))]
    dtype: NcclDataType,
    /// Reduction operator.
    #[arg(short = 'o', long, default_value = "sum", value_parser = one_of(&OPERATORS))]
    redop: NcclRedOp,
    /// Root of a broadcast or a reduce.
    #[arg(short = 'r', long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    root: i32,
    /// How many ranks; one a visible GPU if not given. More ranks than GPUs share them, which NCCL
    /// 2.30 and newer take with NCCL_MULTI_RANK_GPU_ENABLE=1.
    #[arg(short = 't', long, value_parser = clap::value_parser!(i32).range(1..=1024))]
    ranks: Option<i32>,
    /// Comma-separated values instead of the table.
    #[arg(long)]
    csv: bool,
    /// File for a plot of bus bandwidth over size.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Seconds without progress after which the program ends.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

/// Parses a number of bytes.
fn parse_size(text: &str) -> anyhow::Result<usize> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits
        .parse()
        .context("expected a number of bytes, such as 8, 64K, 256M or 1G")?;
    let bytes = number
        .checked_mul(1 << shift)
        .filter(|bytes| (1..=1 << 46).contains(bytes));
    bytes.context("a size is 1 byte at least and 64 TiB at most")
}

impl Options {
    fn sizes(&self) -> anyhow::Result<Vec<usize>> {
        let (min, max) = (self.min_bytes, self.max_bytes);
        ensure!(
            min <= max,
            "the smallest size, -b {min}, is above the largest, -e {max}"
        );
        let next = |size: &usize| match self.step {
            Some(step) => size.checked_add(step),
            None => size.checked_mul(self.factor as usize),
        };
        Ok(std::iter::successors(Some(min), next)
            .take_while(|size| *size <= max)
            .collect())
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("all_reduce_perf: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether every element that was checked is right.
fn run(options: &Options) -> anyhow::Result<bool> {
    let sizes = options.sizes()?;
    init()?;
    let devices = device_count()?;
    ensure!(devices > 0, "the driver sees no GPU; `doctor` tells more");
    let nranks = options.ranks.unwrap_or(devices);
    ensure!(
        options.root < nranks,
        "no rank {} to be the root: there are {nranks}",
        options.root
    );
    let mut reduction = Reduction {
        datatype: options.dtype,
        op: options.redop,
        nranks,
    };
    if !options.op.reduces() {
        // Of the numbers that a maximum is taken of the type holds the most.
        reduction.op = NcclRedOp::Max;
    } else if options.checks > 0 {
        reduction.ensure_checkable()?;
    }
    let title = format!(
        "{}, NCCL {}, ranks: {nranks}, GPUs: {}",
        OPERATIONS
            .iter()
            .find(|(_, op)| *op == options.op)
            .expect("it came from there")
            .0,
        version()?,
        devices.min(nranks)
    );
    if let Some(file) = &options.svg {
        File::create(file).with_context(|| format!("--svg {}", file.display()))?;
    }
    let emulated = BINDING == Binding::Emulated;
    if options.csv {
        println!("{}", report::csv_header());
    } else {
        println!("# {title}, binding: {BINDING:?}");
        println!(
            "# {} timed iterations a size, averaged over the ranks, after {} to warm up; checks: {}",
            options.iterations, options.warm_up, options.checks
        );
        for rank in 0..nranks {
            let number = rank % devices;
            println!(
                "# rank {rank}: device {number}, {}",
                device_name(device(number)?)?
            );
        }
        println!("{}", report::table_header());
    }
    if emulated {
        eprintln!("all_reduce_perf: on the emulator; the times say nothing about a GPU");
    }

    let job = Job {
        options,
        reduction,
        devices,
        id: unique_id()?,
        gate: Gate::new(nranks),
        step: Mutex::default(),
        totals: Mutex::new(vec![Totals::default(); 2 * sizes.len()]),
        rows: Mutex::default(),
        sizes,
    };
    thread::scope(|scope| {
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
        job.watch(|| ranks.iter().all(|rank| rank.is_finished()));
    });
    let rows = job.rows.into_inner().unwrap();

    let measured = || rows.iter().flat_map(|row| row.measured);
    let wrong: u64 = measured().filter_map(|measured| measured.wrong).sum();
    if !options.csv {
        let sum: f64 = measured().map(|measured| measured.busbw).sum();
        match measured().any(|measured| measured.wrong.is_some()) {
            true => println!("# wrong elements: {wrong}"),
            false => println!("# wrong elements: N/A, none was checked"),
        }
        println!(
            "# average bus bandwidth, out of place and in place: {:.4} GB/s",
            sum / measured().count() as f64
        );
    }
    if let Some(file) = &options.svg {
        let title = if emulated {
            format!("{title} (emulator, not a GPU)")
        } else {
            title
        };
        report::plot(&rows, &title, file)?;
    }
    Ok(wrong == 0)
}

/// What all ranks know.
struct Job<'a> {
    options: &'a Options,
    reduction: Reduction,
    devices: i32,
    sizes: Vec<usize>,
    id: NcclUniqueId,
    gate: Gate,
    /// What the ranks are at, in words.
    step: Mutex<String>,
    /// Of each measurement.
    totals: Mutex<Vec<Totals>>,
    rows: Mutex<Vec<Row>>,
}

/// Sums over the ranks.
#[derive(Clone, Copy, Default)]
struct Totals {
    seconds: f64,
    wrong: u64,
}

/// A rank's end of the communicator, its stream, and its memory: as many bytes as the largest size has.
struct Rank {
    part: Part,
    comm: NcclComm,
    stream: CuStream,
    send: CuDevicePtr,
    recv: CuDevicePtr,
    /// What this rank contributes, and room for a result; empty where nothing is checked.
    input: Vec<u8>,
    result: Vec<u8>,
}

/// Where an operation reads and writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    OutOfPlace,
    InPlace,
}

/// What a peer or a check must not take for a result: no number in floats, and an integer no input gives.
const UNWRITTEN: u8 = 0xff;

impl Job<'_> {
    /// The work of one rank; `None` if any rank failed. The communicator blocks, since one that does not
    /// has another thread enqueue, which would be measured too; so a rank can be kept inside a call for good, and
    /// [`watch`](Self::watch) ends that. Nothing that waits for the whole device (allocate, free) may run
    /// while a peer's collective waits for this rank on the same GPU: each step ends at the gate.
    fn rank(&self, rank: i32) -> Option<()> {
        let gate = &self.gate;
        let _guard = FailOnPanic { gate, rank };
        let tell = |step: &str| {
            if rank == 0 {
                self.tell(step);
            }
        };
        tell("allocating");
        let mut this = gate.meet(rank, self.allocate(rank))?;
        tell("filling the buffers");
        gate.meet(rank, self.fill(&mut this))?;
        tell("making the communicator");
        gate.meet(rank, self.connect(&mut this))?;
        tell("warming up");
        gate.meet(rank, self.warm_up(&this))?;
        for (number, bytes) in self.sizes.iter().enumerate() {
            let counts = self.counts(*bytes);
            let mut measured = Vec::new();
            let placements = [
                (Placement::OutOfPlace, "out of place"),
                (Placement::InPlace, "in place"),
            ];
            for (index, (placement, name)) in placements.into_iter().enumerate() {
                let (step, steps) = (number + 1, self.sizes.len());
                tell(&format!("{bytes} bytes (size {step} of {steps}), {name}"));
                measured.push(self.measure(&mut this, 2 * number + index, counts, placement)?);
            }
            if rank == 0 {
                self.print(counts, [measured[0], measured[1]]);
            }
        }
        tell("ending the communicator");
        // SAFETY: the communicator is live and idle.
        let finalized = check_nccl(unsafe { ncclCommFinalize(this.comm) }, "ncclCommFinalize");
        gate.meet(rank, finalized)?;
        // SAFETY: finalized, and nothing knows it afterwards.
        let destroyed = check_nccl(unsafe { ncclCommDestroy(this.comm) }, "ncclCommDestroy");
        gate.meet(rank, destroyed)?;
        tell("freeing");
        gate.meet(rank, this.free())?;
        if rank == 0 {
            self.clear_step();
        }
        Some(())
    }

    fn allocate(&self, rank: i32) -> anyhow::Result<Rank> {
        use_device(rank % self.devices)?;
        let bytes = self.largest();
        let checked = if self.options.checks > 0 { bytes } else { 0 };
        let mut room = [Vec::new(), Vec::new()];
        for vec in &mut room {
            vec.try_reserve_exact(checked)
                .with_context(|| format!("no room for {checked} bytes on the host"))?;
        }
        let [input, result] = room;
        Ok(Rank {
            part: Part {
                operation: self.options.op,
                reduction: self.reduction,
                root: self.options.root,
                rank,
            },
            comm: null_mut(),
            stream: create_stream()?,
            send: mem_alloc(bytes)?,
            recv: mem_alloc(bytes)?,
            input,
            result,
        })
    }

    fn fill(&self, this: &mut Rank) -> anyhow::Result<()> {
        let bytes = self.largest();
        if self.options.checks > 0 {
            for index in 0..bytes / self.element_size() {
                let input = self.reduction.input(this.part.rank, index);
                self.reduction.encode(input, &mut this.input);
            }
            this.result.resize(this.input.len(), 0);
        }
        // SAFETY: both have room for `bytes`, and `input` is not longer and lives past the wait.
        unsafe {
            memset_d8_async(this.send, 0, bytes, this.stream)?;
            memset_d8_async(this.recv, 0, bytes, this.stream)?;
            memcpy_htod_async(this.send, &this.input, this.stream)?;
        }
        sync_stream(this.stream)
    }

    fn connect(&self, this: &mut Rank) -> anyhow::Result<()> {
        let (nranks, rank) = (self.reduction.nranks, this.part.rank);
        // SAFETY: `comm` takes one communicator.
        let result = unsafe { ncclCommInitRank(&mut this.comm, nranks, self.id, rank) };
        check_nccl(result, "ncclCommInitRank")
    }

    fn warm_up(&self, this: &Rank) -> anyhow::Result<()> {
        for bytes in [self.largest(), self.options.min_bytes] {
            let counts = self.counts(bytes);
            for iteration in 0..self.options.warm_up {
                self.enqueue(this, counts, Placement::OutOfPlace, iteration)?;
            }
            this.wait()?;
        }
        Ok(())
    }

    /// Times a size, then checks it, as measurement `number`; `None` if any rank failed.
    fn measure(
        &self,
        this: &mut Rank,
        number: usize,
        counts: Counts,
        placement: Placement,
    ) -> Option<Measured> {
        let (gate, rank) = (&self.gate, this.part.rank);
        let untimed = self.enqueue(this, counts, placement, 0);
        gate.meet(rank, untimed.and_then(|()| this.wait()))?;
        let seconds = gate.meet(rank, self.time(this, counts, placement))?;
        let mut wrong = 0;
        for _ in 0..self.options.checks {
            gate.meet(rank, self.prepare(this, counts, placement))?;
            let once = self.enqueue(this, counts, placement, 0);
            gate.meet(rank, once.and_then(|()| this.wait()))?;
            wrong += gate.meet(rank, self.check(this, counts, placement))?;
        }
        let is_checked = placement == Placement::OutOfPlace || self.options.op.is_right_in_place();

        let add = |totals: &mut Totals| {
            totals.seconds += seconds;
            totals.wrong += wrong;
        };
        add(&mut self.totals.lock().unwrap()[number]);
        gate.meet(rank, Ok(()))?;
        let totals = self.totals.lock().unwrap()[number];
        let seconds = totals.seconds / f64::from(self.reduction.nranks);
        let wrong = (is_checked && self.options.checks > 0).then_some(totals.wrong);

        let algbw = (counts.larger() * self.element_size()) as f64 / 1e9 / seconds;
        Some(Measured {
            seconds,
            algbw,
            busbw: algbw * self.options.op.busbw_factor(self.reduction.nranks),
            wrong,
        })
    }

    /// The seconds of one iteration, on this rank.
    fn time(&self, this: &Rank, counts: Counts, placement: Placement) -> anyhow::Result<f64> {
        let start = Instant::now();
        for iteration in 0..self.options.iterations {
            self.enqueue(this, counts, placement, iteration)?;
        }
        this.wait()?;
        Ok(start.elapsed().as_secs_f64() / f64::from(self.options.iterations))
    }

    /// Enqueues one operation. Each iteration has the next part of the buffers, as far as they reach, so that
    /// small ones do not stay in a cache.
    fn enqueue(
        &self,
        this: &Rank,
        counts: Counts,
        placement: Placement,
        iteration: u32,
    ) -> anyhow::Result<()> {
        let element = self.element_size();
        let bytes = counts.larger() * element;
        let room = self.largest();
        let parts = room.checked_div(bytes).unwrap_or(1);
        let shift = (bytes * (iteration as usize % parts)) as u64;
        let (mut send, mut recv) = (this.send + shift, this.recv + shift);
        if placement == Placement::InPlace {
            let (from, to) = this.part.offsets_in_place(counts);
            send = recv + (from * element) as u64;
            recv += (to * element) as u64;
        }
        // SAFETY: the communicator is live and this thread's own, and at `shift` there is still room for the
        // larger side, within which the places in place lie.
        unsafe { (this.part).enqueue(counts, send, recv, this.comm, this.stream) }
    }

    /// Puts the input in place, and over everything else what no result is.
    fn prepare(&self, this: &Rank, counts: Counts, placement: Placement) -> anyhow::Result<()> {
        let element = self.element_size();
        // SAFETY: the buffers are as large as the largest size, and `input` lives past the wait.
        unsafe {
            let bytes = counts.larger() * element;
            memset_d8_async(this.recv, UNWRITTEN, bytes, this.stream)?;
            let mut target = this.send;
            if placement == Placement::InPlace {
                let (from, _) = this.part.offsets_in_place(counts);
                target = this.recv + (from * element) as u64;
            }
            let input = &this.input[..counts.send * element];
            memcpy_htod_async(target, input, this.stream)?;
        }
        sync_stream(this.stream)
    }

    /// How many elements of this rank's result are wrong.
    fn check(&self, this: &mut Rank, counts: Counts, placement: Placement) -> anyhow::Result<u64> {
        if !this.part.has_result() {
            return Ok(0);
        }
        let element = self.element_size();
        let mut source = this.recv;
        if placement == Placement::InPlace {
            let (_, to) = this.part.offsets_in_place(counts);
            source += (to * element) as u64;
        }
        let result = &mut this.result[..counts.recv * element];
        result.fill(UNWRITTEN);
        // SAFETY: the result has `recv` elements and `result` room for them, which lives past the wait.
        unsafe { memcpy_dtoh_async(result, source, this.stream)? };
        sync_stream(this.stream)?;
        Ok(this.part.wrong(counts, result))
    }

    fn print(&self, counts: Counts, measured: [Measured; 2]) {
        let name_of = |datatype| TYPES.iter().find(|(_, known)| *known == datatype);
        let redop_of = |op| OPERATORS.iter().find(|(_, known)| *known == op);
        let options = self.options;
        let row = Row {
            bytes: counts.larger() * self.element_size(),
            count: counts.count,
            datatype: name_of(options.dtype).expect("it came from there").0,
            redop: if options.op.reduces() {
                redop_of(options.redop).expect("it came from there").0
            } else {
                "none"
            },
            root: if options.op.has_root() {
                options.root
            } else {
                -1
            },
            measured,
        };
        self.clear_step();
        println!("{}", if options.csv { row.csv() } else { row.table() });
        self.rows.lock().unwrap().push(row);
    }

    /// Says what comes next: to the watch, and to whoever sits at a terminal.
    fn tell(&self, step: &str) {
        step.clone_into(&mut self.step.lock().unwrap());
        self.clear_step();
        if stderr().is_terminal() {
            eprint!("{step}");
        }
    }

    fn clear_step(&self) {
        if stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }

    /// Returns when all ranks have ended. Ends the program if one failed, or if none has made a step for
    /// `--timeout` seconds.
    fn watch(&self, ended: impl Fn() -> bool) {
        let timeout = Duration::from_secs(self.options.timeout);
        let mut seen = self.gate.missing();
        let mut since = Instant::now();
        loop {
            let ended = ended();
            let mut failure = self.gate.take_failure();
            let now = self.gate.missing();
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > timeout {
                failure.get_or_insert_with(|| {
                    anyhow!(
                        "not done within {timeout:?}: {}; ranks {:?} are still at it: a peer is missing or stuck, or \
                         --timeout is too short",
                        self.step.lock().unwrap(),
                        seen.1
                    )
                });
            }
            if let Some(error) = failure {
                self.clear_step();
                let _ = stdout().flush();
                eprintln!("all_reduce_perf: {error:#}");
                // Other ranks may sit inside NCCL, where nothing reaches all of them but the end of the process.
                // SAFETY: ends the process, and runs nothing more of it.
                unsafe { _exit(2) };
            }
            if ended {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn counts(&self, bytes: usize) -> Counts {
        (self.options.op).counts(bytes, self.element_size(), self.reduction.nranks as usize)
    }

    /// The size that the buffers have.
    fn largest(&self) -> usize {
        *self.sizes.last().expect("the smallest size is one of them")
    }

    fn element_size(&self) -> usize {
        let size = self.reduction.datatype.size();
        size.expect("every type on offer has a size")
    }
}

impl Rank {
    /// Waits for the stream, and no longer once the communicator has failed.
    fn wait(&self) -> anyhow::Result<()> {
        while !stream_ready(self.stream)? {
            let mut state = NcclResult::Success;
            // SAFETY: the communicator is live and this thread's own, and `state` takes one code.
            let asked = unsafe { ncclCommGetAsyncError(self.comm, &mut state) };
            check_nccl(asked, "ncclCommGetAsyncError")?;
            check_started(state, "the communicator")?;
            thread::yield_now();
        }
        Ok(())
    }

    fn free(self) -> anyhow::Result<()> {
        destroy_stream(self.stream);
        // SAFETY: all work that used the buffers is done.
        unsafe {
            mem_free(self.send)?;
            mem_free(self.recv)
        }
    }
}

unsafe extern "C" {
    /// Ends the process at once, without what `exit` runs before.
    fn _exit(code: i32) -> !;
}

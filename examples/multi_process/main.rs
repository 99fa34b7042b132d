//! One rank of a job, in a process of its own: meets the others, joins the communicator, and runs collectives whose
//! every element it checks. Ends with a sentence, and never hangs, when another rank is killed.
//!
//!     torchrun --nproc-per-node 4 --no-python target/release/examples/multi_process --steps 10
//!     mpirun -np 4 target/release/examples/multi_process --steps 10
//!     srun --ntasks 4 target/release/examples/multi_process --steps 10
//!     multi_process --rank 0 --world 2 --master 127.0.0.1:29500     and the same with --rank 1
//!
//! `launcher.rs` says which variables count, and in which order; `../rendezvous` is how the ranks meet, a module to
//! copy.
//!
//! Exit code 0: every element was right; 1: one was wrong, or a rank failed or was lost; 2: it was not started as
//! it must be, or there is no device for this rank. Then no socket was opened.

#[path = "../all_reduce/comm.rs"]
mod comm;
mod launcher;
#[path = "../rendezvous/mod.rs"]
mod rendezvous;
#[path = "../all_reduce/values.rs"]
mod values;
mod watchdog;

use std::env;
use std::ffi::c_void;
use std::net::IpAddr;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use comm::Comm;
use launcher::{Flags, Place};
use metrale_gpu_sys::cuda::{
    device_count, init, mem_alloc, mem_free, memcpy_dtoh_async, memcpy_htod_async, use_device,
};
use metrale_gpu_sys::nccl::*;
use metrale_gpu_sys::{BINDING, Binding};
use rendezvous::{Settings, Token, exchange};
use values::Reduction;
use watchdog::Watchdog;

/// The secret that a user may give to all ranks. Not an option: those are seen by everybody on the machine.
const TOKEN: &str = "METRALE_JOB_TOKEN";

/// One rank of a job: meet the others, and run collectives whose every element is checked.
///
/// Who this process is comes from --rank, --world and --master, or from torchrun, Open MPI, MVAPICH, MPICH, Intel MPI
/// or Slurm, in this order. METRALE_JOB_TOKEN, if set, must be the same on all ranks.
///
/// Exit code 0: every element was right; 1: one was wrong, or a rank failed or was lost; 2: it was not started as it
/// must be.
#[derive(Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// This rank, by hand.
    #[arg(long)]
    rank: Option<u32>,
    /// The number of ranks, by hand.
    #[arg(long)]
    world: Option<u32>,
    /// This rank's number on its machine, by hand; the rank if not given.
    #[arg(long)]
    local_rank: Option<u32>,
    /// Where rank 0 listens, as host:port or [address]:port.
    #[arg(long)]
    master: Option<String>,
    /// Whose variables count.
    #[arg(long, value_parser = PossibleValuesParser::new(launcher::NAMES))]
    launcher: Option<String>,
    /// The address that rank 0 binds, if it is not the master's; 0.0.0.0 for every interface.
    #[arg(long)]
    listen_on: Option<IpAddr>,
    /// How many ranks may share a device; more than 1 needs NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks_per_gpu: u32,
    /// The device, where each process is given its own, as by srun --gpus-per-task=1; else the local rank.
    #[arg(long)]
    device: Option<u32>,
    /// How often the collectives are run.
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Elements of the largest buffer.
    #[arg(long, default_value_t = 1 << 16, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    elements: u64,
    /// Seconds after which a rank gives up waiting for the others.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    deadline: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let rank = match Rank::new(&options) {
        Ok(rank) => rank,
        Err(error) => {
            eprintln!("multi_process: {error:#}");
            return ExitCode::from(2);
        }
    };
    // Aborted at the end, after the sentence that says why: an abort can hang.
    let mut comm = Comm(null_mut());
    match rank.run(&mut comm) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("multi_process: {error:#}");
            ExitCode::from(1)
        }
    }
}

/// What a rank knows before it has met the others.
struct Rank {
    settings: Settings,
    launcher: &'static str,
    device: i32,
    reduction: Reduction,
    steps: u64,
    elements: usize,
    /// What is known of a rank that was lost.
    lost: Arc<OnceLock<String>>,
    watchdog: Watchdog,
}

impl Rank {
    /// Finds all that can be wrong with how the program was started.
    fn new(options: &Options) -> anyhow::Result<Self> {
        let flags = Flags {
            rank: options.rank,
            world: options.world,
            local_rank: options.local_rank,
            master: options.master.clone(),
            launcher: options.launcher.clone(),
        };
        let variable = |name: &str| Some(env::var_os(name)?.to_string_lossy().into_owned());
        let place = launcher::place(&flags, &variable)?;
        if place.rank == 0 {
            for note in &place.notes {
                eprintln!("multi_process: {note}");
            }
        }
        let reduction = Reduction {
            datatype: NcclDataType::Float32,
            op: NcclRedOp::Sum,
            nranks: i32::try_from(place.world).context("the world size")?,
        };
        reduction.ensure_checkable()?;
        let token = match env::var_os(TOKEN) {
            Some(word) => {
                let word = word
                    .to_str()
                    .with_context(|| format!("{TOKEN} is not UTF-8"))?;
                Token::new(word).context(TOKEN)?
            }
            None if place.job.is_empty() => Token::new("no job number")?,
            None => Token::new(&place.job).with_context(|| {
                format!("the job's own number is too long, so set {TOKEN} instead")
            })?,
        };
        let settings = Settings {
            rank: place.rank,
            world: place.world,
            master: place.master.clone(),
            token,
            deadline: Duration::from_secs(options.deadline),
            listen_on: options.listen_on,
        };
        let watchdog = Watchdog::start(settings.to_string())?;
        watchdog.allow("looking at the devices", settings.deadline);
        init()?;
        Ok(Self {
            device: device(&place, options, device_count()?)?,
            launcher: place.launcher,
            settings,
            reduction,
            steps: options.steps,
            elements: options.elements as usize,
            lost: Arc::default(),
            watchdog,
        })
    }

    /// All that it does together with the others.
    fn run(&self, comm: &mut Comm) -> anyhow::Result<()> {
        let Settings { rank, deadline, .. } = self.settings;
        println!(
            "{}: {}, process {}, device {}",
            self.settings,
            self.launcher,
            std::process::id(),
            self.device
        );
        self.watchdog.allow("meeting the others", deadline);
        let mut log = |line: &str| eprintln!("multi_process: {line}");
        let id = || Ok(unique_id()?.internal);
        let (id, members) = exchange(&self.settings, id, &mut log)?;
        let watch = members.watch({
            let (lost, watchdog) = (self.lost.clone(), self.watchdog.clone());
            move |cause| {
                let _ = lost.set(cause.to_owned());
                watchdog.hurry();
            }
        })?;

        let outcome = self.work(NcclUniqueId { internal: id }, comm);
        let error = match outcome {
            Ok(()) => {
                self.watchdog.allow("leaving", deadline);
                watch.leave();
                if rank == 0 {
                    println!("{} steps, every element right", self.steps);
                }
                return Ok(());
            }
            Err(error) => error,
        };
        self.watchdog.hurry();
        self.watchdog.allow("aborting the communicator", deadline);
        // The others hear of it, and perhaps it is another rank that this one fails by.
        let reason = format!("{error:#}");
        let itself = format!("{} failed: ", self.settings);
        let error = match watch.fail(&reason) {
            Some(cause) if !cause.starts_with(&itself) && !reason.contains(&cause) => {
                error.context(cause)
            }
            _ => error,
        };
        Err(error.context(self.settings.to_string()))
    }

    fn work(&self, id: NcclUniqueId, comm: &mut Comm) -> anyhow::Result<()> {
        let Settings { rank, deadline, .. } = self.settings;
        let watchdog = &self.watchdog;
        watchdog.allow("preparing the device", deadline);
        let mut buffers = self.allocate()?;

        watchdog.allow("joining the communicator", deadline);
        let start = Instant::now();
        let config = NcclConfig::non_blocking();
        let nranks = self.reduction.nranks;
        // SAFETY: `comm` takes one communicator and `config` is initialised.
        let result =
            unsafe { ncclCommInitRankConfig(&mut comm.0, nranks, id, rank as i32, &config) };
        check_started(result, "ncclCommInitRankConfig")?;
        self.wait(|| comm.ready())
            .context("joining the communicator")?;
        if rank == 0 {
            println!(
                "NCCL {}: {nranks} ranks joined in {:.1?}",
                version()?,
                start.elapsed()
            );
        }

        for step in 0..self.steps {
            let start = Instant::now();
            let counts = [1, 1003, self.elements];
            let count = counts[(step % 3) as usize].min(self.elements);
            self.step(step as usize, count, comm, &mut buffers)
                .with_context(|| format!("step {step}"))?;
            if rank == 0 {
                let time = start.elapsed();
                println!(
                    "step {step}: all-reduce, all-gather and broadcast of {count} elements, right, {time:.1?}"
                );
            }
        }

        watchdog.allow("closing the communicator", deadline);
        // SAFETY: the communicator is live and idle.
        check_started(unsafe { ncclCommFinalize(comm.0) }, "ncclCommFinalize")?;
        self.wait(|| comm.ready())
            .context("closing the communicator")?;
        // SAFETY: finalized, and nothing knows it afterwards.
        let destroyed = unsafe { ncclCommDestroy(std::mem::replace(&mut comm.0, null_mut())) };
        check_nccl(destroyed, "ncclCommDestroy")?;
        buffers.free()
    }

    fn allocate(&self) -> anyhow::Result<Buffers> {
        use_device(self.device)?;
        let size = self.element_size();
        Ok(Buffers {
            stream: create_stream()?,
            send: mem_alloc(self.elements * size)?,
            // An all-gather's blocks can be a few elements more in all.
            recv: mem_alloc((self.elements + self.reduction.nranks as usize) * size)?,
            host: Vec::new(),
        })
    }

    /// Three collectives over numbers that differ in each step.
    fn step(
        &self,
        step: usize,
        count: usize,
        comm: &Comm,
        buffers: &mut Buffers,
    ) -> anyhow::Result<()> {
        let Reduction {
            datatype,
            op,
            nranks,
        } = self.reduction;
        let Buffers {
            stream, send, recv, ..
        } = *buffers;
        let (send, recv) = (send as *const c_void, recv as *mut c_void);
        let nranks = nranks as usize;
        let root = (step % nranks) as i32;
        let block = count.div_ceil(nranks);
        let input = |rank: i32, index: usize| self.reduction.input(rank, index + step);

        buffers.host.clear();
        for index in 0..count {
            let input = input(self.settings.rank as i32, index);
            self.reduction.encode(input, &mut buffers.host);
        }
        // SAFETY: `send` has room for `count` elements, and nothing else uses it now.
        unsafe { memcpy_htod_async(buffers.send, &buffers.host, stream)? };

        let announce = |name| self.watchdog.allow(name, self.settings.deadline);
        // SAFETY, for all three: the communicator is live and ready, and `send` and `recv` hold `count` elements on
        // its device, `recv` also as many blocks as there are ranks.
        announce("in an all-reduce");
        // SAFETY: see above.
        let result = unsafe { ncclAllReduce(send, recv, count, datatype, op, comm.0, stream) };
        let expected = |index| self.reduction.expected(index + step).0;
        self.finish("all-reduce", result, count, expected, comm, buffers)?;
        announce("in an all-gather");
        // SAFETY: see above.
        let result = unsafe { ncclAllGather(send, recv, block, datatype, comm.0, stream) };
        let expected = |index: usize| input((index / block) as i32, index % block);
        self.finish(
            "all-gather",
            result,
            block * nranks,
            expected,
            comm,
            buffers,
        )?;
        announce("in a broadcast");
        // SAFETY: see above.
        let result = unsafe { ncclBroadcast(send, recv, count, datatype, root, comm.0, stream) };
        self.finish(
            "broadcast",
            result,
            count,
            |index| input(root, index),
            comm,
            buffers,
        )
    }

    /// Waits for a collective and checks what it left in `recv`.
    fn finish(
        &self,
        name: &str,
        result: NcclResult,
        count: usize,
        expected: impl Fn(usize) -> f64,
        comm: &Comm,
        buffers: &mut Buffers,
    ) -> anyhow::Result<()> {
        let stream = buffers.stream;
        check_started(result, name)?;
        self.wait(|| Ok(comm.ready()? && stream_ready(stream)?))
            .with_context(|| name.to_owned())?;
        let size = self.element_size();
        buffers.host.resize(count * size, 0);
        // SAFETY: `recv` holds as many bytes as `host`, which lives past the wait.
        unsafe { memcpy_dtoh_async(&mut buffers.host, buffers.recv, stream)? };
        self.wait(|| stream_ready(stream))
            .with_context(|| name.to_owned())?;
        for (index, element) in buffers.host.chunks_exact(size).enumerate() {
            let (got, expected) = (self.reduction.decode(element), expected(index));
            ensure!(
                got == expected,
                "{name}: element {index} is {got}, and must be {expected}"
            );
        }
        Ok(())
    }

    /// Waits until `done`, but no longer than the deadline, nor after a rank was lost.
    fn wait(&self, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let start = Instant::now();
        while !done()? {
            if let Some(cause) = self.lost.get() {
                bail!("{cause}");
            }
            let deadline = self.settings.deadline;
            ensure!(
                start.elapsed() < deadline,
                "not done within {deadline:?}: a rank is stuck or cannot be reached"
            );
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn element_size(&self) -> usize {
        let size = self.reduction.datatype.size();
        size.expect("float32 has a size")
    }
}

/// The device of this process: its own, or one that it shares as far as it may.
fn device(place: &Place, options: &Options, devices: i32) -> anyhow::Result<i32> {
    let devices = devices as u32;
    let local_rank = place.local_rank;
    ensure!(devices > 0, "the driver sees no GPU; `doctor` tells more");
    if let Some(device) = options.device {
        ensure!(
            device < devices,
            "--device {device}: this process sees {devices}, which count from 0"
        );
        return Ok(device as i32);
    }
    let more = match BINDING {
        Binding::Emulated => "; METRALE_EMULATOR_DEVICES is how many the emulator has",
        _ => "",
    };
    ensure!(
        u64::from(local_rank) < u64::from(devices) * u64::from(options.ranks_per_gpu),
        "too few devices: this is local rank {local_rank}, the process sees {devices}, and a device takes {} (--ranks-per-gpu): \
         start fewer ranks on a machine, or more on a device; where the launcher gives each process a device of its own, \
         give --device 0{more}",
        options.ranks_per_gpu
    );
    Ok((local_rank % devices) as i32)
}

/// A rank's stream, its two buffers on the device, and the one on the host.
struct Buffers {
    stream: u64,
    send: u64,
    recv: u64,
    host: Vec<u8>,
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

//! Ranks of several processes on the emulator: how they meet, and what becomes of the others when one dies.
//!
//! This program starts itself as the processes. Each has some slots, threads that do what they are told one
//! command after the other; commands and replies go through pipes, a line each.

#[path = "support/gated.rs"]
mod gated;

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use metrale_gpu_sys::cuda::{
    CuResult, cuMemAlloc_v2, cuMemFree_v2, cuMemcpyDtoH_v2, cuMemcpyHtoD_v2, use_device,
};
use metrale_gpu_sys::nccl::*;

/// The argument that makes this program one of the processes.
const CHILD: &str = "--process";
/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often each way to die is tried.
const TIMES: usize = 20;

fn main() {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(CHILD) {
        serve();
        return;
    }
    type Test = (&'static str, fn() -> Result<()>);
    let tests: [Test; 23] = [
        ("threads_and_processes_mix", threads_and_processes_mix),
        (
            "every_process_may_make_the_id",
            every_process_may_make_the_id,
        ),
        ("the_maker_need_not_be_a_rank", the_maker_need_not_be_a_rank),
        (
            "several_ids_of_several_processes",
            several_ids_of_several_processes,
        ),
        ("children_of_communicators", children_of_communicators),
        ("many_communicators", many_communicators),
        ("large_buffers_of_every_kind", large_buffers_of_every_kind),
        (
            "an_abort_ends_the_wait_for_others",
            an_abort_ends_the_wait_for_others,
        ),
        ("children_with_late_ranks", children_with_late_ranks),
        ("waiting_costs_no_time", waiting_costs_no_time),
        ("killed_at_init", killed_at_init),
        ("killed_in_a_collective", killed_in_a_collective),
        ("killed_between_two", killed_between_two),
        ("killed_while_others_split", killed_while_others_split),
        ("survivors_shrink", survivors_shrink),
        ("exit_without_destroy", exit_without_destroy),
        (
            "exit_after_destroy_is_no_loss",
            exit_after_destroy_is_no_loss,
        ),
        ("a_panic_ends_a_process", a_panic_ends_a_process),
        ("an_id_whose_maker_is_dead", an_id_whose_maker_is_dead),
        (
            "ids_are_used_as_in_one_process",
            ids_are_used_as_in_one_process,
        ),
        ("strangers_at_the_socket", strangers_at_the_socket),
        ("nothing_is_left", nothing_is_left),
        ("a_fork_is_refused", a_fork_is_refused),
    ];
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let trials = tests.map(|(name, test)| gated::trial(name, &Ok(()), test));
    libtest_mimic::run(&arguments, trials.into()).exit();
}

// ---- the processes ----

/// One communicator's rank, on the thread of a slot.
struct Slot {
    /// The last is in use; those before it are its parents.
    comms: Vec<NcclComm>,
    device: i32,
}

fn serve() {
    let mut slots: HashMap<String, Sender<Vec<String>>> = HashMap::new();
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { break };
        let mut words = line.split(' ').map(str::to_owned);
        let slot = words.next().unwrap_or_default();
        let sender = slots.entry(slot.clone()).or_insert_with(|| {
            let (sender, orders) = channel();
            std::thread::spawn(move || work(&slot, &orders));
            sender
        });
        let _ = sender.send(words.collect());
    }
    // Without the first process there is nothing to do.
    std::process::exit(0);
}

fn work(name: &str, orders: &Receiver<Vec<String>>) {
    let mut slot = Slot {
        comms: Vec::new(),
        device: 0,
    };
    while let Ok(words) = orders.recv() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = slot
            .act(&words)
            .unwrap_or_else(|error| format!("error {error:#}"));
        println!("{name} {reply}");
    }
}

fn hex(id: &NcclUniqueId) -> String {
    id.internal
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn unhex(text: &str) -> Result<NcclUniqueId> {
    let mut internal = [0; 128];
    for (place, byte) in internal.iter_mut().enumerate() {
        *byte = u8::from_str_radix(
            text.get(2 * place..2 * place + 2).context("a short id")?,
            16,
        )?;
    }
    Ok(NcclUniqueId { internal })
}

/// A code, and where it is an error NCCL's words.
fn verdict(code: NcclResult) -> String {
    if code == NcclResult::Success {
        return "0".to_owned();
    }
    // SAFETY: the library's own text.
    let text = unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) };
    format!("{} {}", code.0, text.to_string_lossy())
}

impl Slot {
    fn comm(&self) -> NcclComm {
        self.comms.last().copied().unwrap_or(null_mut())
    }

    fn act(&mut self, words: &[&str]) -> Result<String> {
        let number =
            |place: usize| -> Result<i32> { Ok(words.get(place).context("a number")?.parse()?) };
        Ok(match words[0] {
            "id" => {
                let mut id = NcclUniqueId { internal: [0; 128] };
                // SAFETY: room for an id.
                ensure!(unsafe { ncclGetUniqueId(&mut id) } == NcclResult::Success);
                hex(&id)
            }
            // Ranks, rank, ids.
            "init" => {
                self.device = number(2)? % 8;
                use_device(self.device)?;
                let ids: Result<Vec<_>> = words[3..].iter().map(|text| unhex(text)).collect();
                let (mut ids, mut comm) = (ids?, null_mut());
                // SAFETY: as many ids as are said, and room for a handle.
                let code = unsafe {
                    ncclCommInitRankScalable(
                        &mut comm,
                        number(1)?,
                        number(2)?,
                        ids.len() as i32,
                        ids.as_mut_ptr(),
                        std::ptr::null(),
                    )
                };
                self.comms.push(comm);
                verdict(code)
            }
            // Ranks, rank, id: without waiting.
            "begin" => {
                use_device(number(2)?)?;
                let (id, mut comm) = (unhex(words[3])?, null_mut());
                let config = NcclConfig::non_blocking();
                // SAFETY: room for a handle, and a whole config.
                let code = unsafe {
                    ncclCommInitRankConfig(&mut comm, number(1)?, id, number(2)?, &config)
                };
                self.comms.push(comm);
                verdict(code)
            }
            // A value.
            "sum" => self.sum(number(1)?, 1)?,
            // Sums of so many elements until one fails.
            "sums" => loop {
                let reply = self.sum(1, number(1)? as usize)?;
                if !reply.starts_with("0 ") {
                    break reply;
                }
            },
            "watch" => self.watch()?,
            "block" => self.block()?,
            "split" | "shrink" => {
                let mut child = null_mut();
                let mut list: Vec<i32> = Vec::new();
                let config = std::ptr::null();
                // SAFETY: the communicator is this slot's, and there is room for a handle.
                let code = unsafe {
                    if words[0] == "split" {
                        ncclCommSplit(self.comm(), number(1)?, number(2)?, &mut child, config)
                    } else {
                        for place in 1..words.len() {
                            list.push(number(place)?);
                        }
                        let flags = NCCL_SHRINK_ABORT;
                        let count = list.len() as i32;
                        ncclCommShrink(
                            self.comm(),
                            list.as_mut_ptr(),
                            count,
                            &mut child,
                            config,
                            flags,
                        )
                    }
                };
                if !child.is_null() {
                    self.comms.push(child);
                }
                verdict(code)
            }
            "finalize" => {
                // SAFETY: the communicator is this slot's.
                verdict(unsafe { ncclCommFinalize(self.comm()) })
            }
            "destroy" | "abort" => {
                let end = match words[0] {
                    "abort" => ncclCommAbort,
                    _ => ncclCommDestroy,
                };
                let comm = self.comms.pop().context("a communicator")?;
                // SAFETY: the communicator is this slot's, and not used any more.
                verdict(unsafe { end(comm) })
            }
            "buffers" => self.buffers()?,
            "exit" => std::process::exit(number(1)?),
            "panic" => {
                // What a panic of the main thread does.
                let _ = std::panic::catch_unwind(|| panic!("on purpose"));
                std::process::exit(101)
            }
            "fork" => self.fork()?,
            other => bail!("no command {other}"),
        })
    }

    /// Polls as a program should: the stream, and the communicator's state.
    fn settle(&self, stream: u64) -> Result<NcclResult> {
        let start = Instant::now();
        loop {
            let mut state = NcclResult::Success;
            // SAFETY: the communicator is this slot's, and there is room for a state.
            let code = unsafe { ncclCommGetAsyncError(self.comm(), &mut state) };
            ensure!(code == NcclResult::Success, "{code:?}");
            if state != NcclResult::Success {
                return Ok(state);
            }
            if stream != 0 && stream_ready(stream)? {
                return Ok(NcclResult::Success);
            }
            ensure!(start.elapsed() < DEADLINE, "nothing happens");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A sum for which the thread blocks.
    fn block(&self) -> Result<String> {
        let (stream, mut buffer) = (create_stream()?, 0);
        // SAFETY: room for an address.
        ensure!(unsafe { cuMemAlloc_v2(&mut buffer, 4) } == CuResult::Success);
        let (p, int32, sum) = (buffer as *mut _, NcclDataType::Int32, NcclRedOp::Sum);
        // SAFETY: the buffer has an element and lives until the stream is done.
        let code = unsafe { ncclAllReduce(p, p, 1, int32, sum, self.comm(), stream) };
        sync_stream(stream)?;
        destroy_stream(stream);
        Ok(verdict(code))
    }

    fn watch(&self) -> Result<String> {
        self.settle(0).map(verdict)
    }

    /// The code, and the sum of one value a rank.
    fn sum(&self, value: i32, count: usize) -> Result<String> {
        let stream = create_stream()?;
        let (values, mut buffer) = (vec![value; count], 0);
        // SAFETY: room for an address, and for as many bytes as are copied.
        unsafe {
            ensure!(cuMemAlloc_v2(&mut buffer, 4 * count) == CuResult::Success);
            ensure!(
                cuMemcpyHtoD_v2(buffer, values.as_ptr().cast(), 4 * count) == CuResult::Success
            );
        }
        let p = buffer as *mut std::ffi::c_void;
        let (int32, sum) = (NcclDataType::Int32, NcclRedOp::Sum);
        // SAFETY: the buffer has so many elements and lives until the stream is done.
        let mut code = unsafe { ncclAllReduce(p, p, count, int32, sum, self.comm(), stream) };
        if code == NcclResult::Success {
            code = self.settle(stream)?;
        }
        if code != NcclResult::Success {
            // The buffer and the stream stay with the work that waits.
            return Ok(verdict(code));
        }
        let mut all = vec![0i32; count];
        // SAFETY: as above.
        unsafe {
            ensure!(
                cuMemcpyDtoH_v2(all.as_mut_ptr().cast(), buffer, 4 * count) == CuResult::Success
            );
            ensure!(cuMemFree_v2(buffer) == CuResult::Success);
        }
        destroy_stream(stream);
        ensure!(all.iter().all(|value| *value == all[0]), "wrong values");
        Ok(format!("0 {}", all[0]))
    }

    /// Sums in memory that other processes can see, and in memory that they cannot.
    fn buffers(&self) -> Result<String> {
        let mut sums = Vec::new();
        for count in [1, 1000, 16 << 10, (16 << 10) + 1, 1 << 20, 1000] {
            for _ in 0..3 {
                sums.push(self.sum(1, count)?);
            }
        }
        let registered = self.sum_registered()?;
        ensure!(
            sums.iter().all(|sum| *sum == registered),
            "{sums:?}, {registered}"
        );
        Ok(registered)
    }

    /// As `sum`, in memory of the program that the driver was told of, next to memory that it was not.
    fn sum_registered(&self) -> Result<String> {
        use metrale_gpu_sys::cuda::{cuMemHostRegister_v2, cuMemHostUnregister};
        let stream = create_stream()?;
        let mut values = vec![1i32; 200_000];
        let count = 100_000;
        let (p, int32) = (values[50_000..].as_mut_ptr().cast(), NcclDataType::Int32);
        // SAFETY: the vector outlives the work, which uses what was registered of it.
        unsafe {
            ensure!(cuMemHostRegister_v2(p, 4 * count, 0) == CuResult::Success);
            let code = ncclAllReduce(p, p, count, int32, NcclRedOp::Sum, self.comm(), stream);
            ensure!(code == NcclResult::Success);
            ensure!(self.settle(stream)? == NcclResult::Success);
            ensure!(cuMemHostUnregister(p) == CuResult::Success);
        }
        destroy_stream(stream);
        let (before, rest) = values.split_at(50_000);
        let (summed, after) = rest.split_at(count);
        ensure!(
            before.iter().chain(after).all(|value| *value == 1),
            "written beside it"
        );
        ensure!(
            summed.iter().all(|value| *value == summed[0]),
            "wrong values"
        );
        Ok(format!("0 {}", summed[0]))
    }

    /// A fork tries what would hang it, and is seen to end.
    fn fork(&self) -> Result<String> {
        unsafe extern "C" {
            fn fork() -> i32;
            fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
            fn _exit(code: i32) -> !;
        }
        let comm = self.comm();
        // SAFETY: the child calls only what answers at once, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                let mut id = NcclUniqueId { internal: [0; 128] };
                let first = ncclCommDestroy(comm);
                let second = ncclGetUniqueId(&mut id);
                let third = ncclCommInitRank(&mut null_mut(), 1, id, 0);
                let driver = cuMemAlloc_v2(&mut 0, 64);
                let failed = NcclResult::UnhandledCudaError;
                let refused = (first, second, third) == (failed, failed, failed);
                _exit(if refused && driver == CuResult::NotInitialized {
                    7
                } else {
                    8
                })
            }
        }
        let (start, mut status) = (Instant::now(), 0);
        // SAFETY: room for a status; 1 is WNOHANG.
        while unsafe { waitpid(child, &mut status, 1) } == 0 {
            ensure!(start.elapsed() < DEADLINE, "the fork hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(format!(
            "{:?}",
            std::process::ExitStatus::from_raw(status).code()
        ))
    }
}

// ---- the tests ----

/// One of the processes, killed at the end.
struct Process {
    child: Child,
    orders: ChildStdin,
    replies: Receiver<String>,
    waiting: Vec<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(CHILD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(std::io::Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Self {
            child,
            orders,
            replies,
            waiting: Vec::new(),
        })
    }

    fn tell(&mut self, slot: usize, order: &str) -> Result<()> {
        writeln!(self.orders, "{slot} {order}").context("a process has ended")
    }

    fn hear(&mut self, slot: usize) -> Result<String> {
        let start = format!("{slot} ");
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(place) = self
                .waiting
                .iter()
                .position(|line| line.starts_with(&start))
            {
                return Ok(self.waiting.remove(place)[start.len()..].to_owned());
            }
            let left = until.saturating_duration_since(Instant::now());
            let line = self.replies.recv_timeout(left).context("no reply")?;
            self.waiting.push(line);
        }
    }

    fn ask(&mut self, slot: usize, order: &str) -> Result<String> {
        self.tell(slot, order)?;
        self.hear(slot)
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn ended(&mut self) -> Result<Option<i32>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            ensure!(start.elapsed() < DEADLINE, "a process does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Ranks in processes: which process each rank is in, and in which slot of it.
struct Job {
    processes: Vec<Process>,
    seats: Vec<(usize, usize)>,
}

impl Job {
    /// As many ranks in each process as it says, in the order of ranks.
    fn start(ranks: &[usize]) -> Result<Self> {
        let mut job = Self {
            processes: Vec::new(),
            seats: Vec::new(),
        };
        for (process, &count) in ranks.iter().enumerate() {
            job.processes.push(Process::start()?);
            job.seats.extend((0..count).map(|slot| (process, slot)));
        }
        Ok(job)
    }

    fn tell(&mut self, rank: usize, order: &str) -> Result<()> {
        let (process, slot) = self.seats[rank];
        self.processes[process].tell(slot, order)
    }

    fn hear(&mut self, rank: usize) -> Result<String> {
        let (process, slot) = self.seats[rank];
        self.processes[process]
            .hear(slot)
            .with_context(|| format!("rank {rank}"))
    }

    fn ask(&mut self, rank: usize, order: &str) -> Result<String> {
        self.tell(rank, order)?;
        self.hear(rank)
    }

    fn ranks(&self) -> std::ops::Range<usize> {
        0..self.seats.len()
    }

    fn kill(&mut self, rank: usize) {
        self.processes[self.seats[rank].0].kill();
    }

    /// Has these ranks do the same at once.
    fn each(&mut self, ranks: &[usize], order: impl Fn(usize) -> String) -> Result<Vec<String>> {
        for &rank in ranks {
            self.tell(rank, &order(rank))?;
        }
        ranks.iter().map(|&rank| self.hear(rank)).collect()
    }

    fn all(&mut self, order: impl Fn(usize) -> String) -> Result<Vec<String>> {
        self.each(&self.ranks().collect::<Vec<_>>(), order)
    }

    /// All ranks make a communicator of an id that `maker` makes.
    fn init(&mut self, maker: usize) -> Result<()> {
        let id = self.ask(maker, "id")?;
        let size = self.seats.len();
        let made = self.all(|rank| format!("init {size} {rank} {id}"))?;
        ensure!(made.iter().all(|code| code == "0"), "{made:?}");
        Ok(())
    }

    fn sum(&mut self) -> Result<()> {
        let size = self.seats.len();
        let sums = self.all(|rank| format!("sum {}", 1 << rank))?;
        let sum = format!("0 {}", (1 << size) - 1);
        ensure!(sums.iter().all(|one| *one == sum), "{sums:?}");
        Ok(())
    }

    fn destroy(&mut self) -> Result<()> {
        let ended = self.all(|_| "destroy".to_owned())?;
        ensure!(ended.iter().all(|code| code == "0"), "{ended:?}");
        Ok(())
    }

    fn others(&self, victim: usize) -> Vec<usize> {
        self.ranks().filter(|rank| *rank != victim).collect()
    }
}

/// A peer's loss, by the name of the rank.
fn check_loss(reply: &str, victim: usize) -> Result<()> {
    let named = reply.contains(&format!("rank {victim} is gone"));
    ensure!(
        reply.starts_with("6 ") && named,
        "rank {victim} is gone, and a peer says: {reply}"
    );
    Ok(())
}

fn threads_and_processes_mix() -> Result<()> {
    for ranks in [
        &[2, 2][..],
        &[1, 1],
        &[1, 3],
        &[3, 1],
        &[1, 1, 1, 1],
        &[4],
        &[2, 1, 3, 2],
    ] {
        let mut job = Job::start(ranks)?;
        for _ in 0..2 {
            job.init(0)?;
            for _ in 0..3 {
                job.sum()?;
            }
            job.destroy()?;
        }
    }
    Ok(())
}

fn every_process_may_make_the_id() -> Result<()> {
    for maker in 0..4 {
        let mut job = Job::start(&[1, 2, 1])?;
        job.init(maker)?;
        job.sum()?;
        job.destroy()?;
    }
    Ok(())
}

fn the_maker_need_not_be_a_rank() -> Result<()> {
    for ranks in [&[1, 1, 1][..], &[2, 2], &[3], &[1]] {
        let mut maker = Process::start()?;
        let id = maker.ask(0, "id")?;
        let mut job = Job::start(ranks)?;
        let size = job.seats.len();
        let made = job.all(|rank| format!("init {size} {rank} {id}"))?;
        ensure!(made.iter().all(|code| code == "0"), "{made:?}");
        job.sum()?;
        // Nor to be there any longer.
        maker.kill();
        job.sum()?;
        let split = job.all(|rank| format!("split 0 -{rank}"))?;
        ensure!(split.iter().all(|code| code == "0"), "{split:?}");
        job.sum()?;
        job.destroy()?;
        job.destroy()?;
    }
    Ok(())
}

fn several_ids_of_several_processes() -> Result<()> {
    let mut job = Job::start(&[1, 1, 1, 1])?;
    let ids = [job.ask(1, "id")?, job.ask(3, "id")?];
    let made = job.all(|rank| format!("init 4 {rank} {} {}", ids[0], ids[1]))?;
    ensure!(made.iter().all(|code| code == "0"), "{made:?}");
    job.sum()?;
    job.destroy()?;
    // They are used up together.
    for id in &ids {
        let again = job.ask(0, &format!("init 1 0 {id}"))?;
        ensure!(again.starts_with("6 "), "{again}");
        job.ask(0, "abort")?;
    }
    // One that was used before spoils what it comes with, for all ranks.
    let good = job.ask(2, "id")?;
    let spoilt = job.all(|rank| format!("init 4 {rank} {good} {}", ids[1]))?;
    ensure!(
        spoilt.iter().all(|code| code.starts_with("6 ")),
        "{spoilt:?}"
    );
    Ok(())
}

fn children_of_communicators() -> Result<()> {
    let mut job = Job::start(&[1, 2, 1])?;
    job.init(0)?;
    // Of the ranks from the second on, in turned order, without those of the first process.
    let made = job.all(|rank| format!("split {} -{rank}", if rank == 0 { -1 } else { 5 }))?;
    ensure!(made.iter().all(|code| code == "0"), "{made:?}");
    for _ in 0..2 {
        let sums = job.each(&[1, 2, 3], |rank| format!("sum {rank}"))?;
        ensure!(sums == ["0 6"; 3], "{sums:?}");
    }
    // And of that once more.
    let made = job.each(&[1, 2, 3], |rank| format!("split {} {rank}", rank / 2))?;
    ensure!(made.iter().all(|code| code == "0"), "{made:?}");
    let sums = job.each(&[1, 2, 3], |rank| format!("sum {rank}"))?;
    ensure!(sums == ["0 1", "0 5", "0 5"], "{sums:?}");
    for _ in 0..2 {
        let ended = job.each(&[1, 2, 3], |_| "destroy".to_owned())?;
        ensure!(ended == ["0"; 3], "{ended:?}");
    }
    job.sum()?;
    job.destroy()
}

fn many_communicators() -> Result<()> {
    let mut job = Job::start(&[1, 1])?;
    for _ in 0..100 {
        job.init(0)?;
        job.sum()?;
    }
    for _ in 0..100 {
        job.sum()?;
        job.destroy()?;
    }
    // Connections and their threads went with them.
    for process in &job.processes {
        let count = |what| {
            fs::read_dir(format!("/proc/{}/{what}", process.child.id())).map(Iterator::count)
        };
        let start = Instant::now();
        while count("fd")? > 20 || count("task")? > 20 {
            ensure!(
                start.elapsed() < DEADLINE,
                "{} files, {} threads",
                count("fd")?,
                count("task")?
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

fn large_buffers_of_every_kind() -> Result<()> {
    let mut job = Job::start(&[1, 2])?;
    job.init(0)?;
    let sums = job.all(|_| "buffers".to_owned())?;
    ensure!(sums.iter().all(|sum| sum == "0 3"), "{sums:?}");
    job.destroy()
}

fn waiting_costs_no_time() -> Result<()> {
    let mut job = Job::start(&[1, 2, 1])?;
    job.init(0)?;
    job.sum()?;
    for rank in 1..4 {
        job.tell(rank, "block")?;
    }
    std::thread::sleep(Duration::from_millis(50));
    // In ticks of 10 milliseconds: the program's and the system's.
    let used = |job: &Job| -> Result<u64> {
        let mut ticks = 0;
        for process in &job.processes {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.child.id()))?;
            let numbers = stat.rsplit(')').next().context("a name in brackets")?;
            let numbers: Vec<&str> = numbers.split_whitespace().collect();
            ticks += numbers[11].parse::<u64>()? + numbers[12].parse::<u64>()?;
        }
        Ok(ticks)
    };
    let before = used(&job)?;
    std::thread::sleep(Duration::from_millis(500));
    let ticks = used(&job)? - before;
    ensure!(
        ticks <= 2,
        "waiting for half a second took {ticks}0 ms of the processors' time"
    );
    job.tell(0, "block")?;
    for rank in 0..4 {
        ensure!(job.hear(rank)? == "0");
    }
    job.destroy()
}

fn an_abort_ends_the_wait_for_others() -> Result<()> {
    for waiting in [&[0][..], &[1], &[0, 1], &[1, 2]] {
        let mut job = Job::start(&[1, 1, 1])?;
        let id = job.ask(0, "id")?;
        let begun = job.each(waiting, |rank| format!("begin 3 {rank} {id}"))?;
        ensure!(begun.iter().all(|code| code.starts_with("7 ")), "{begun:?}");
        std::thread::sleep(Duration::from_millis(10));
        let ended = job.each(waiting, |_| "abort".to_owned())?;
        ensure!(ended.iter().all(|code| code == "0"), "{ended:?}");
        // The processes go on.
        job.init(2)?;
        job.sum()?;
        job.destroy()?;
    }
    Ok(())
}

/// Two ranks of the process that does the work come one long after the other.
fn children_with_late_ranks() -> Result<()> {
    let mut job = Job::start(&[2, 2])?;
    job.init(0)?;
    job.sum()?;
    // Those without rank 3, of which rank 1 is late.
    for rank in [0, 2] {
        job.tell(rank, "shrink 3")?;
    }
    std::thread::sleep(Duration::from_millis(200));
    job.tell(1, "shrink 3")?;
    for rank in [0, 1, 2] {
        let made = job.hear(rank)?;
        ensure!(made == "0", "{made}");
    }
    let sums = job.each(&[0, 1, 2], |_| "sum 2".to_owned())?;
    ensure!(sums == ["0 6"; 3], "{sums:?}");
    let ended = job.each(&[0, 1, 2], |_| "destroy".to_owned())?;
    ensure!(ended == ["0"; 3], "{ended:?}");
    Ok(())
}

/// Runs `test` often, with each rank as the one that dies, alone in its process or not.
fn with_victims(test: impl Fn(&mut Job, usize) -> Result<()>) -> Result<()> {
    for round in 0..TIMES {
        let victim = round % 4;
        let mut job = Job::start(&[1; 4])?;
        test(&mut job, victim).with_context(|| format!("rank {victim} dies, round {round}"))?;
    }
    Ok(())
}

fn killed_at_init() -> Result<()> {
    with_victims(|job, victim| {
        let id = job.ask(0, "id")?;
        // One rank comes late; the others wait for it in the call.
        let late = (victim + 1) % 4;
        let early = job.others(late);
        for &rank in &early {
            job.tell(rank, &format!("init 4 {rank} {id}"))?;
        }
        std::thread::sleep(Duration::from_millis(30));
        job.kill(victim);
        for rank in job.others(victim) {
            if rank == late {
                // Nobody is there, or those who are there can never be whole.
                let reply = job.ask(rank, &format!("init 4 {rank} {id}"))?;
                ensure!(reply.starts_with("6 "), "{reply}");
            } else {
                check_loss(&job.hear(rank)?, victim)?;
            }
        }
        Ok(())
    })
}

fn killed_in_a_collective() -> Result<()> {
    with_victims(|job, victim| {
        job.init(0)?;
        job.sum()?;
        let count = if victim % 2 == 0 { 100 } else { 1 << 20 };
        for rank in job.ranks() {
            job.tell(rank, &format!("sums {count}"))?;
        }
        std::thread::sleep(Duration::from_millis(5 + 3 * victim as u64));
        job.kill(victim);
        for rank in job.others(victim) {
            check_loss(&job.hear(rank)?, victim)?;
        }
        let ended = job.each(&job.others(victim), |_| "abort".to_owned())?;
        ensure!(ended == ["0"; 3], "{ended:?}");
        Ok(())
    })
}

fn killed_between_two() -> Result<()> {
    with_victims(|job, victim| {
        job.init(1)?;
        job.sum()?;
        job.kill(victim);
        let others = job.others(victim);
        for seen in job.each(&others, |_| "watch".to_owned())? {
            check_loss(&seen, victim)?;
        }
        // So does whatever is asked next.
        for seen in job.each(&others, |_| "sum 1".to_owned())? {
            check_loss(&seen, victim)?;
        }
        for seen in job.each(&others, |_| "finalize".to_owned())? {
            check_loss(&seen, victim)?;
        }
        let ended = job.each(&others, |_| "abort".to_owned())?;
        ensure!(ended == ["0"; 3], "{ended:?}");
        Ok(())
    })
}

fn killed_while_others_split() -> Result<()> {
    with_victims(|job, victim| {
        job.init(0)?;
        let others = job.others(victim);
        for &rank in &others {
            job.tell(rank, "split 0 0")?;
        }
        std::thread::sleep(Duration::from_millis(10));
        job.kill(victim);
        for &rank in &others {
            check_loss(&job.hear(rank)?, victim)?;
        }
        Ok(())
    })
}

fn survivors_shrink() -> Result<()> {
    with_victims(|job, victim| {
        job.init(0)?;
        job.sum()?;
        let others = job.others(victim);
        for &rank in &others {
            job.tell(rank, "sum 1")?;
        }
        job.kill(victim);
        for &rank in &others {
            check_loss(&job.hear(rank)?, victim)?;
        }
        let made = job.each(&others, |_| format!("shrink {victim}"))?;
        ensure!(made == ["0"; 3], "{made:?}");
        let sums = job.each(&others, |_| "sum 5".to_owned())?;
        ensure!(sums == ["0 15"; 3], "{sums:?}");
        // A second one dies; where nobody knows it yet, it is missed at the next shrink.
        let second = others[victim % 3];
        job.kill(second);
        let last: Vec<usize> = others
            .iter()
            .copied()
            .filter(|rank| *rank != second)
            .collect();
        for seen in job.each(&last, |_| "watch".to_owned())? {
            ensure!(seen.starts_with("6 rank "), "{seen}");
        }
        Ok(())
    })
}

fn exit_without_destroy() -> Result<()> {
    for victim in 0..4 {
        let mut job = Job::start(&[1; 4])?;
        job.init(0)?;
        job.sum()?;
        job.tell(victim, "exit 0")?;
        let others = job.others(victim);
        for seen in job.each(&others, |_| "sum 1".to_owned())? {
            check_loss(&seen, victim)?;
        }
    }
    Ok(())
}

fn exit_after_destroy_is_no_loss() -> Result<()> {
    for first in 0..3 {
        let mut job = Job::start(&[1; 3])?;
        job.init(0)?;
        job.sum()?;
        let ended = job.all(|_| "finalize".to_owned())?;
        ensure!(ended == ["0"; 3], "{ended:?}");
        let ended = job.ask(first, "destroy")?;
        ensure!(ended == "0", "{ended}");
        job.tell(first, "exit 0")?;
        job.processes[first].ended()?;
        let ended = job.each(&job.others(first), |_| "destroy".to_owned())?;
        ensure!(ended == ["0"; 2], "{ended:?}");
    }
    Ok(())
}

fn a_panic_ends_a_process() -> Result<()> {
    let mut job = Job::start(&[2, 2])?;
    job.init(0)?;
    job.sum()?;
    job.tell(3, "panic")?;
    ensure!(job.processes[1].ended()? == Some(101));
    for seen in job.each(&[0, 1], |_| "sum 1".to_owned())? {
        // One of the two that were there is named.
        ensure!(
            check_loss(&seen, 2)
                .or_else(|_| check_loss(&seen, 3))
                .is_ok(),
            "{seen}"
        );
    }
    Ok(())
}

fn an_id_whose_maker_is_dead() -> Result<()> {
    let mut maker = Process::start()?;
    let id = maker.ask(0, "id")?;
    maker.kill();
    let mut rank = Process::start()?;
    let start = Instant::now();
    let reply = rank.ask(0, &format!("init 2 0 {id}"))?;
    ensure!(
        reply.starts_with("6 ") && reply.contains("made the unique id is gone"),
        "{reply}"
    );
    ensure!(
        start.elapsed() < Duration::from_secs(2),
        "only after {:?}",
        start.elapsed()
    );
    Ok(())
}

fn ids_are_used_as_in_one_process() -> Result<()> {
    let mut job = Job::start(&[1, 1, 1])?;
    let expect_lost = |reply: &str, why: &str| {
        ensure!(reply.starts_with("6 ") && reply.contains(why), "{reply}");
        Ok(())
    };
    // Twice.
    job.init(0)?;
    let id = job.ask(0, "id")?;
    let made = job.each(&[0, 1], |rank| format!("init 2 {rank} {id}"))?;
    ensure!(made == ["0"; 2], "{made:?}");
    expect_lost(&job.ask(2, &format!("init 2 0 {id}"))?, "used before")?;
    // Of a process that has made none like it.
    let mut never = unhex(&id)?;
    never.internal[127] ^= 1;
    expect_lost(
        &job.ask(2, &format!("init 2 0 {}", hex(&never)))?,
        "never made",
    )?;
    // A rank twice, and numbers of ranks that differ: those who are there learn of it too.
    for (first, second) in [("init 3 1", "init 3 1"), ("init 3 1", "init 2 0")] {
        for (here, there) in [(0, 2), (2, 0), (1, 2)] {
            let id = job.ask(0, "id")?;
            job.tell(here, &format!("{first} {id}"))?;
            std::thread::sleep(Duration::from_millis(20));
            expect_lost(&job.ask(there, &format!("{second} {id}"))?, "do not fit")?;
            expect_lost(&job.hear(here)?, "do not fit")?;
        }
    }
    Ok(())
}

/// Where the process that made an id listens.
fn listener(id: &str) -> Result<String> {
    let token = id.get(48..80).context("an id")?;
    Ok(format!("metrale-emulator-{token}"))
}

fn strangers_at_the_socket() -> Result<()> {
    let mut job = Job::start(&[1, 1, 1])?;
    let id = job.ask(0, "id")?;
    let name = listener(&id)?;
    job.tell(0, &format!("init 3 0 {id}"))?;
    let connect = || -> Result<UnixStream> {
        Ok(UnixStream::connect_addr(&SocketAddr::from_abstract_name(
            &name,
        )?)?)
    };
    // Some stay and say nothing, some go at once, some say what nobody understands.
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(connect()?);
        drop(connect()?);
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"metrale1",
            &[0; 3],
            &[255; 4096],
        ] {
            let mut stream = connect()?;
            let _ = stream.write_all(garbage);
            if garbage.len() > 8 {
                // They are let go.
                stream.set_read_timeout(Some(DEADLINE))?;
                let _ = stream.read(&mut [0; 8]);
            } else {
                silent.push(stream);
            }
        }
    }
    let made = job.each(&[1, 2], |rank| format!("init 3 {rank} {id}"))?;
    ensure!(made == ["0"; 2] && job.hear(0)? == "0", "{made:?}");
    job.sum()?;
    drop(silent);
    job.sum()?;
    job.destroy()
}

fn nothing_is_left() -> Result<()> {
    let files = || -> Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in ["/dev/shm", "/tmp", "/run", "/var/tmp"] {
            let Ok(entries) = fs::read_dir(folder) else {
                continue;
            };
            for entry in entries.flatten() {
                names.push(entry.path().display().to_string());
            }
        }
        names.retain(|name| name.contains("emulator"));
        names.sort();
        Ok(names)
    };
    let before = files()?;
    let mut job = Job::start(&[1; 4])?;
    let mut names = Vec::new();
    for rank in 0..4 {
        names.push(listener(&job.ask(rank, "id")?)?);
    }
    let sockets = || {
        fs::read_to_string("/proc/net/unix")
            .map(|text| names.iter().filter(|name| text.contains(*name)).count())
    };
    job.init(0)?;
    let sums = job.all(|_| "buffers".to_owned())?;
    ensure!(sums.iter().all(|sum| sum == "0 4"), "{sums:?}");
    ensure!(sockets()? == 4, "{} of 4 processes listen", sockets()?);
    ensure!(files()? == before, "files: {:?}", files()?);
    for rank in 0..4 {
        job.tell(rank, "sums 1000000")?;
    }
    for rank in 0..4 {
        job.kill(rank);
    }
    let start = Instant::now();
    while sockets()? != 0 {
        ensure!(
            start.elapsed() < DEADLINE,
            "{} sockets are left",
            sockets()?
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    ensure!(files()? == before, "files: {:?}", files()?);
    Ok(())
}

fn a_fork_is_refused() -> Result<()> {
    let mut job = Job::start(&[1, 1])?;
    job.init(0)?;
    job.sum()?;
    let reply = job.ask(0, "fork")?;
    ensure!(reply == "Some(7)", "{reply}");
    job.sum()?;
    job.destroy()
}

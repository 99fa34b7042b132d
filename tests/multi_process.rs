//! `examples/multi_process` as processes, on the emulator: that they compute, and how they end when one is killed.
//!
//! `cargo test` has built the example; this test alone, by `--test multi_process`, needs
//! `cargo build --features emulator --examples` first.

#[path = "support/gated.rs"]
mod gated;
mod support;

use std::env;
use std::ffi::c_int;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use support::clean;

/// What the ranks are given where one is lost. A loss is seen at once; this is for where it is not.
const DEADLINE: Duration = Duration::from_secs(10);
/// All of a test's processes, with a busy machine in mind.
const LONG: Duration = Duration::from_secs(60);
/// How often each kill is tried, at another moment each time.
const KILLS: u32 = 5;

fn main() {
    let everywhere = Ok(());
    let installed = |program: &str, sign: &str| {
        let version = Command::new(program).arg("--version").output();
        let found =
            version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains(sign));
        found
            .then_some(())
            .ok_or(format!("no {program} of {sign} here"))
    };
    // It has no option for its version.
    let torchrun = Command::new("torchrun").arg("--help").output();
    let torchrun = torchrun
        .map(drop)
        .map_err(|error| format!("torchrun: {error}"));
    let trial = |name, test: fn() -> Result<()>| gated::trial(name, &everywhere, test);
    let trials = vec![
        trial("four_processes_compute", four_processes_compute),
        trial("ranks_may_share_a_device", ranks_may_share_a_device),
        trial("too_few_devices_are_named", too_few_devices_are_named),
        trial("wrong_starts_are_refused", wrong_starts_are_refused),
        trial("another_jobs_rank_is_refused", another_jobs_rank_is_refused),
        trial("a_missing_rank_is_named", a_missing_rank_is_named),
        trial("a_rank_killed_at_the_start", a_rank_killed_at_the_start),
        trial(
            "a_rank_killed_while_they_join",
            a_rank_killed_while_they_join,
        ),
        trial("a_rank_killed_in_small_collectives", || killed_at_work("1")),
        trial("a_rank_killed_in_large_collectives", || {
            killed_at_work("100000")
        }),
        trial("rank_0_killed", rank_0_killed),
        trial(
            "a_rank_that_stops_ends_all_at_the_deadline",
            a_rank_that_stops_ends_all_at_the_deadline,
        ),
        gated::trial("mpirun", &installed("mpirun", "Open MPI"), by_mpirun),
        gated::trial("torchrun", &torchrun, by_torchrun),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn example() -> Command {
    // target/<profile>/deps/multi_process-…
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().with_file_name("examples");
    let program = folder.join("multi_process");
    assert!(
        program.is_file(),
        "{} is missing: `cargo build --features emulator --examples` makes it",
        program.display()
    );
    clean(program)
}

/// A process of the example, and what it has said so far. It is killed when this is dropped.
struct Rank {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Rank {
    fn start(command: &mut Command) -> Result<Self> {
        // A group of its own, so that a launcher's children go with it.
        let command = command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let reader = |stream: Box<dyn Read + Send>| {
            let lines = lines.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            })
        };
        let stdout = child.stdout.take().context("a pipe")?;
        let stderr = child.stderr.take().context("a pipe")?;
        let readers = vec![reader(Box::new(stdout)), reader(Box::new(stderr))];
        Ok(Self {
            child,
            lines,
            readers,
        })
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits for a line that has `part`.
    fn says(&mut self, part: &str) -> Result<String> {
        let start = Instant::now();
        loop {
            let ended = self.child.try_wait()?.is_some();
            let lines = self.lines.lock().unwrap();
            if let Some(line) = lines.iter().find(|line| line.contains(part)) {
                return Ok(line.clone());
            }
            drop(lines);
            ensure!(
                !ended && start.elapsed() < LONG,
                "no {part:?} in:\n{}",
                self.text()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn kill(&mut self) {
        // As `kill -9`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its exit code, `None` if a signal ended it, and all that it said.
    fn end(mut self, limit: Duration) -> Result<(Option<i32>, String)> {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(
                start.elapsed() < limit,
                "not done within {limit:?}:\n{}",
                self.text()
            );
            thread::sleep(Duration::from_millis(2));
        };
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        Ok((status.code(), self.text()))
    }

    fn expect(self, code: i32, parts: &[&str]) -> Result<String> {
        let (got, text) = self.end(LONG)?;
        ensure!(
            got == Some(code),
            "exit code {got:?}, expected {code}:\n{text}"
        );
        for part in parts {
            ensure!(text.contains(part), "no {part:?} in:\n{text}");
        }
        Ok(text)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Rank 0 to `count`, by hand, of a world of `world`, with more words for all. Rank 0 picks the port.
fn start(count: u32, world: u32, words: &[&str]) -> Result<Vec<Rank>> {
    let rank = |rank: u32, port: &str| {
        let mut command = example();
        command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
        command
            .args(["--master", &format!("127.0.0.1:{port}")])
            .args(words);
        Rank::start(&mut command)
    };
    let mut ranks = vec![rank(0, "0")?];
    let line = ranks[0].says("listens on 127.0.0.1:")?;
    let port = line.split("127.0.0.1:").nth(1).context("a port")?;
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    for number in 1..count {
        ranks.push(rank(number, &port)?);
    }
    Ok(ranks)
}

fn four_processes_compute() -> Result<()> {
    let mut ranks = start(4, 4, &["--steps", "6"])?;
    let text = ranks
        .remove(0)
        .expect(0, &["6 steps, every element right"])?;
    ensure!(text.matches(", right, ").count() == 6, "{text}");
    for (rank, number) in ranks.into_iter().zip(1..) {
        rank.expect(
            0,
            &[
                &format!("rank {number} of 4: by hand, process "),
                &format!(", device {number}"),
            ],
        )?;
    }
    Ok(())
}

fn ranks_may_share_a_device() -> Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let ranks = (0..4).map(|rank| {
        let mut command = example();
        command.args([
            "--rank",
            &rank.to_string(),
            "--world",
            "4",
            "--steps",
            "3",
            "--ranks-per-gpu",
            "2",
        ]);
        command.args(["--master", &format!("127.0.0.1:{port}")]);
        command
            .env("METRALE_EMULATOR_DEVICES", "2")
            .env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
        Rank::start(&mut command)
    });
    for (rank, number) in ranks.collect::<Result<Vec<_>>>()?.into_iter().zip(0..) {
        rank.expect(0, &[&format!(", device {}", number % 2)])?;
    }
    Ok(())
}

fn too_few_devices_are_named() -> Result<()> {
    for (words, part) in [
        (
            "--local-rank 2",
            "this is local rank 2, the process sees 2, and a device takes 1",
        ),
        (
            "--local-rank 2 --device 2",
            "--device 2: this process sees 2",
        ),
        (
            "--local-rank 4 --world 5 --ranks-per-gpu 2",
            "this is local rank 4",
        ),
    ] {
        let mut command = example();
        command
            .args("--rank 1 --master 127.0.0.1:29500".split(' '))
            .args(words.split(' '));
        if !words.contains("--world") {
            command.args(["--world", "3"]);
        }
        command.env("METRALE_EMULATOR_DEVICES", "2");
        Rank::start(&mut command)?.expect(2, &[part])?;
    }
    Ok(())
}

fn wrong_starts_are_refused() -> Result<()> {
    let by_hand = "--rank 0 --world 2 --master 127.0.0.1:0";
    for (words, variables, part) in [
        ("", "", "nothing says which rank this is"),
        (
            "--rank 0",
            "",
            "--rank, --world and --master are given together",
        ),
        ("--rank -1", "", "invalid value '-1'"),
        (
            "--launcher lsf",
            "",
            "possible values: torchrun, openmpi, mvapich, pmi, slurm",
        ),
        ("--deadline 0", "", "0 is not in 1..="),
        ("--elements 0", "", "0 is not in 1..="),
        ("--ranks-per-gpu 0", "", "0 is not in 1..=1024"),
        ("--speed 9", "", "unexpected argument '--speed'"),
        (
            "",
            "RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1",
            "RANK is 4 and WORLD_SIZE is 4",
        ),
        (
            by_hand,
            "METRALE_JOB_TOKEN=",
            "METRALE_JOB_TOKEN: a job token has 1 to 128 bytes",
        ),
        (
            "--rank 0 --world 20000000 --master a:1",
            "",
            "is not exact in",
        ),
    ] {
        let mut command = example();
        command.args(words.split_whitespace());
        command.envs(
            variables
                .split_whitespace()
                .filter_map(|word| word.split_once('=')),
        );
        let text = Rank::start(&mut command)?.expect(2, &[part])?;
        ensure!(!text.contains("listens on"), "a socket was opened:\n{text}");
    }
    Ok(())
}

fn another_jobs_rank_is_refused() -> Result<()> {
    let mut ranks = start(1, 2, &["--deadline", "3"])?;
    let line = ranks[0].says("listens on 127.0.0.1:")?;
    let port = line
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .context("a port")?;
    let mut command = example();
    command.args([
        "--rank",
        "1",
        "--world",
        "2",
        "--master",
        &format!("127.0.0.1:{port}"),
    ]);
    let token = "of another job";
    let text = Rank::start(command.env("METRALE_JOB_TOKEN", token))?.expect(
        1,
        &[
            "rank 1 of 2: refused by rank 0 at 127.0.0.1:",
            "it has another job's token",
        ],
    )?;
    let rank0 = ranks.remove(0);
    let text = text
        + &rank0.expect(
            1,
            &[
                "is refused: it has another job's token",
                "rank 1 of 2 did not come within 3s",
            ],
        )?;
    ensure!(!text.contains(token), "{text}");
    Ok(())
}

fn a_missing_rank_is_named() -> Result<()> {
    for rank in start(3, 4, &["--deadline", "2"])? {
        rank.expect(1, &["rank 3 of 4 did not come within 2s"])?;
    }
    Ok(())
}

/// Kills `dead`, and has all others end in time and name it.
fn all_end(mut ranks: Vec<Rank>, dead: u32, limit: Duration) -> Result<()> {
    let start = Instant::now();
    ranks.remove(dead as usize).kill();
    for rank in ranks {
        let (code, text) = rank.end(limit.saturating_sub(start.elapsed()))?;
        ensure!(code == Some(1), "exit code {code:?}:\n{text}");
        let sentence = text
            .lines()
            .rfind(|line| line.starts_with("multi_process: rank "));
        let sentence = sentence.context("no sentence")?;
        let (_, cause) = sentence.split_once(": ").context("no cause")?;
        let cause = cause.split_once(": ").map_or("", |(_, cause)| cause);
        ensure!(
            cause.contains(&format!("rank {dead} ")),
            "rank {dead} is not named:\n{text}"
        );
    }
    Ok(())
}

fn a_rank_killed_at_the_start() -> Result<()> {
    for kill in 0..KILLS {
        let mut ranks = start(4, 4, &["--deadline", "4"])?;
        ranks[3].says("rank 3 of 4: by hand")?;
        // While the ranks meet, or as soon as they have met.
        thread::sleep(Duration::from_micros(700) * kill);
        all_end(ranks, 3, Duration::from_secs(4) + DEADLINE)?;
    }
    Ok(())
}

fn a_rank_killed_while_they_join() -> Result<()> {
    for kill in 0..KILLS {
        let mut ranks = start(3, 4, &["--deadline", "10", "--steps", "1000000"])?;
        let port = ranks[0].says("listens on 127.0.0.1:")?;
        let port = port
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        let mut command = example();
        command.args([
            "--rank",
            "3",
            "--world",
            "4",
            "--deadline",
            "10",
            "--steps",
            "1000000",
        ]);
        command.args([
            "--master",
            &format!("127.0.0.1:{}", port.context("a port")?),
        ]);
        // The last to come: once it has, all join.
        ranks.push(Rank::start(&mut command)?);
        ranks[3].says("rank 3 of 4: by hand")?;
        thread::sleep(Duration::from_micros(2000 + 500 * u64::from(kill)));
        all_end(ranks, 3, 2 * DEADLINE)?;
    }
    Ok(())
}

fn killed_at_work(elements: &str) -> Result<()> {
    for kill in 0..KILLS {
        let mut ranks = start(
            4,
            4,
            &[
                "--deadline",
                "10",
                "--steps",
                "1000000",
                "--elements",
                elements,
            ],
        )?;
        ranks[0].says(&format!("step {}: ", 3 * kill + 1))?;
        thread::sleep(Duration::from_micros(1300) * kill);
        all_end(ranks, 1 + kill % 3, DEADLINE)?;
    }
    Ok(())
}

fn rank_0_killed() -> Result<()> {
    for kill in 0..KILLS {
        let mut ranks = start(4, 4, &["--deadline", "10", "--steps", "1000000"])?;
        ranks[0].says(&format!("step {kill}: "))?;
        all_end(ranks, 0, DEADLINE)?;
    }
    Ok(())
}

/// It lives, so nothing but the deadline can tell.
fn a_rank_that_stops_ends_all_at_the_deadline() -> Result<()> {
    let mut ranks = start(4, 4, &["--deadline", "2", "--steps", "1000000"])?;
    ranks[0].says("step 3: ")?;
    let mut stopped = ranks.remove(2);
    unsafe extern "C" {
        fn kill(process: c_int, signal: c_int) -> c_int;
    }
    const SIGSTOP: c_int = 19;
    // SAFETY: takes no pointer; the process is a child that has not been waited for.
    ensure!(unsafe { kill(stopped.child.id() as c_int, SIGSTOP) } == 0);
    let start = Instant::now();
    for rank in ranks {
        rank.expect(
            1,
            &["not done within 2s: a rank is stuck or cannot be reached"],
        )?;
    }
    ensure!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    stopped.kill();
    Ok(())
}

fn launched(command: &mut Command, launcher: &str) -> Result<()> {
    let text = Rank::start(command)?.expect(0, &["4 steps, every element right"])?;
    for rank in 0..4 {
        let line = format!("rank {rank} of 4: {launcher}, process ");
        ensure!(text.contains(&line), "no {line:?} in:\n{text}");
    }
    Ok(())
}

fn by_mpirun() -> Result<()> {
    let mut command = clean("mpirun");
    // Both are for containers and small machines.
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "4"]);
    command.arg(example().get_program()).args(["--steps", "4"]);
    launched(&mut command, "Open MPI")
}

fn by_torchrun() -> Result<()> {
    let mut command = clean("torchrun");
    command.args(["--standalone", "--nproc-per-node", "4", "--no-python"]);
    command.arg(example().get_program()).args(["--steps", "4"]);
    launched(&mut command, "torchrun")
}

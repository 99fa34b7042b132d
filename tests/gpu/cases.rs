//! The list of tests, and how one is run: by a second process, against the test's own deadline.
//!
//! The first process lists the tests, asks for one after the other by name, and waits. The second runs
//! them, and keeps its ranks and their communicators from test to test, since those take time to make. It
//! ends with the first test that does not pass, and the next test gets a fresh one: nothing that
//! hangs, crashes or is left behind reaches another test.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use libtest_mimic::{Completion, Failed, Trial};

use crate::calls::{c_text, current_context, ncclGetLastError, set_current_context};
use crate::team::{self, Rank};
use crate::world::{Need, World};

/// The argument that makes this program the second process.
pub const SERVE: &str = "--serve";

/// How long a test may take that says nothing else.
const LIMIT: Duration = Duration::from_secs(20);
/// How much later than the test's deadline the second process, then the first, loses patience.
const GRACE: Duration = Duration::from_secs(3);

/// What begins a line that the second process says to the first, before its kind.
const SIGN: &str = "@gpu ";
/// Stands for the end of a line within what is said.
const NEW_LINE: &str = "\u{1e}";

type Body = Box<dyn FnOnce() -> Result<()> + Send>;

pub struct Case {
    name: String,
    need: Need,
    limit: Duration,
    apart: bool,
    body: Body,
}

impl Case {
    /// Its deadline.
    pub fn limit(&mut self, seconds: u64) -> &mut Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// It leaves ranks behind that no other test can use.
    pub fn apart(&mut self) {
        self.apart = true;
    }
}

/// What a test finds out only while it runs that this machine lacks: it counts as ignored, with this reason.
#[derive(Debug)]
pub struct Lacks(pub String);

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacks {}

/// All tests, in the order in which they run.
#[derive(Default)]
pub struct Cases {
    subject: &'static str,
    list: Vec<Case>,
}

impl Cases {
    /// What the names of the next tests begin with.
    pub fn subject(&mut self, subject: &'static str) {
        self.subject = subject;
    }

    /// On a fresh thread without a context.
    pub fn solo(
        &mut self,
        name: &str,
        need: Need,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> &mut Case {
        let name = format!("{}::{name}", self.subject);
        assert!(
            self.list.iter().all(|case| case.name != name),
            "two tests are called {name}"
        );
        self.list.push(Case {
            name,
            need,
            limit: LIMIT,
            apart: false,
            body: Box::new(body),
        });
        self.list.last_mut().expect("one was pushed")
    }

    /// On all ranks that there are, up to 8, each of which runs `body` on its thread.
    pub fn team(
        &mut self,
        name: &str,
        need: Need,
        body: impl Fn(&Rank) -> Result<()> + Send + Sync + 'static,
    ) -> &mut Case {
        self.team_of(World::get().ranks, name, need, body)
    }

    /// As [`Cases::team`], on so many of the ranks.
    pub fn team_of(
        &mut self,
        ranks: i32,
        name: &str,
        need: Need,
        body: impl Fn(&Rank) -> Result<()> + Send + Sync + 'static,
    ) -> &mut Case {
        self.solo(name, need, move || team::run(ranks.clamp(1, 8), body))
    }

    pub fn into_trials(self) -> Vec<Trial> {
        let world = World::get();
        let trials = self.list.into_iter().map(|case| {
            let Case {
                name,
                need,
                limit,
                apart,
                ..
            } = case;
            let met = need.met(world);
            let title = name.clone();
            Trial::ignorable_test(title, move || match met {
                Err(reason) => Ok(Completion::ignored_with(reason)),
                Ok(()) => ask(&name, limit, apart),
            })
        });
        trials.collect()
    }

    /// The life of the second process: runs what it is told by name, until there is no more or a test
    /// did not pass.
    pub fn serve(mut self) -> ! {
        for name in std::io::stdin().lines() {
            let Ok(name) = name else { break };
            let place = self.list.iter().position(|case| case.name == name);
            let case = self
                .list
                .remove(place.unwrap_or_else(|| panic!("no test is called {name}")));
            let apart = case.apart;
            let verdict = run_here(case);
            verdict.say();
            if apart || verdict != Verdict::Passed {
                break;
            }
        }
        exit_now(0)
    }
}

#[derive(PartialEq)]
enum Verdict {
    Passed,
    Ignored(String),
    Failed(String),
}

impl Verdict {
    fn say(&self) {
        match self {
            Verdict::Passed => tell("passed", ""),
            Verdict::Ignored(reason) => tell("ignored", reason),
            Verdict::Failed(text) => tell("failed", text),
        }
    }
}

/// Says one line to the first process.
fn tell(kind: &str, text: &str) {
    let mut out = std::io::stdout().lock();
    let text = text.replace('\n', NEW_LINE);
    // Where nobody listens any more there is nobody to tell that either.
    let _ = writeln!(out, "{SIGN}{kind} {text}").and_then(|()| out.flush());
}

/// What a test measured, for whoever looks on.
pub fn say(text: &str) {
    tell("says", text);
}

static DEADLINE: Mutex<Duration> = Mutex::new(LIMIT);

/// How long the test that runs may take.
pub fn deadline() -> Duration {
    *DEADLINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test on a thread of its own. Nothing can stop a thread that hangs in a call, but the process can
/// say where it hangs, and end.
fn run_here(case: Case) -> Verdict {
    *DEADLINE.lock().unwrap_or_else(PoisonError::into_inner) = case.limit;
    let (done, outcome) = channel();
    let body = case.body;
    let start = Instant::now();
    let thread = std::thread::Builder::new().name(case.name).spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let result = result.unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panic.downcast_ref::<&str>().copied());
            Err(anyhow!("it panicked: {}", words.unwrap_or("no text")))
        });
        let _ = done.send(result);
    });
    if let Err(error) = thread {
        return Verdict::Failed(format!("no thread could be made: {error}"));
    }
    match outcome.recv_timeout(case.limit + GRACE) {
        Ok(Ok(())) if start.elapsed() > case.limit => Verdict::Failed(format!(
            "it took {:?}, more than {:?}",
            start.elapsed(),
            case.limit
        )),
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(error)) => match error.downcast_ref::<Lacks>() {
            Some(Lacks(reason)) => Verdict::Ignored(reason.clone()),
            None => Verdict::Failed(format!("{error:#}{}", nccl_says())),
        },
        Err(_) => Verdict::Failed(format!(
            "it hangs: it did not end within {:?} ({}){}",
            start.elapsed(),
            team::steps(),
            nccl_says()
        )),
    }
}

/// NCCL's latest message, if there is one.
fn nccl_says() -> String {
    let text = c_text(ncclGetLastError(null_mut()));
    match text.to_string_lossy() {
        text if text.is_empty() => String::new(),
        text => format!("\nNCCL's latest message, which may be older: {text}"),
    }
}

/// The second process, as the first sees it.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

fn process() -> MutexGuard<'static, Option<Process>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a process for the tests could not be started")?;
        let out = child.stdout.take().context("the process has no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n') {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).into_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Process { child, lines })
    }

    /// Has a test run. An error if there is no verdict.
    fn ask(&mut self, name: &str, limit: Duration) -> Result<Verdict> {
        let until = Instant::now() + limit + 2 * GRACE;
        let input = self
            .child
            .stdin
            .as_mut()
            .context("the process has no input")?;
        writeln!(input, "{name}")
            .and_then(|()| input.flush())
            .context("the process for the tests has ended")?;
        loop {
            let line = self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = match line {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => bail!(
                    "it hangs: after {:?} it has not ended, and its process does not even say where it is",
                    limit + 2 * GRACE
                ),
                Err(RecvTimeoutError::Disconnected) => bail!(
                    "its process ended{}; what it said last stands above",
                    self.how_it_ended()
                ),
            };
            // The libraries may talk, too.
            let Some((_, told)) = line.split_once(SIGN) else {
                eprintln!("{line}");
                continue;
            };
            let (kind, text) = told.split_once(' ').unwrap_or((told, ""));
            let text = text.replace(NEW_LINE, "\n");
            match kind {
                "passed" => return Ok(Verdict::Passed),
                "ignored" => return Ok(Verdict::Ignored(text)),
                "failed" => return Ok(Verdict::Failed(text)),
                _ => eprintln!("{name}: {text}"),
            }
        }
    }

    fn how_it_ended(&mut self) -> String {
        match self.wait(GRACE) {
            Some(status) => format!(" by itself ({status})"),
            None => String::new(),
        }
    }

    fn wait(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => return None,
            }
        }
    }

    /// Waits for the end of a process that has no more to do, and brings it about if it does not come.
    fn end(mut self) {
        drop(self.child.stdin.take());
        if self.wait(GRACE).is_none() {
            let _ = self.child.kill();
            // The driver may take its time to clear away; nobody needs to wait for that.
            let _ = self.wait(GRACE);
        }
    }
}

/// Has the second process run a test, and is rid of that process where it is of no more use.
fn ask(name: &str, limit: Duration, apart: bool) -> Result<Completion, Failed> {
    let mut kept = process();
    let mut process = match kept.take() {
        Some(process) => process,
        None => Process::start().map_err(|error| format!("{error:?}"))?,
    };
    match process.ask(name, limit) {
        Ok(Verdict::Passed) => {
            if apart {
                process.end();
            } else {
                *kept = Some(process);
            }
            Ok(Completion::Completed)
        }
        Ok(Verdict::Ignored(reason)) => {
            process.end();
            Ok(Completion::ignored_with(reason))
        }
        Ok(Verdict::Failed(text)) => {
            process.end();
            Err(text.into())
        }
        Err(error) => {
            let _ = process.child.kill();
            process.end();
            Err(format!("{error:#}").into())
        }
    }
}

/// Ends the second process once there is nothing more to run.
pub fn end_process() {
    if let Some(process) = process().take() {
        process.end();
    }
}

/// Ends the process without the libraries' own goodbye, which can hang where a rank hangs.
pub fn exit_now(code: i32) -> ! {
    unsafe extern "C" {
        fn _exit(code: i32) -> !;
    }
    // SAFETY: takes no pointer.
    unsafe { _exit(code) }
}

/// Calls `call` on another thread, in the context of this one.
pub fn elsewhere<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    let context = current_context()?;
    Ok(std::thread::spawn(move || {
        set_current_context(context)?;
        Ok(call())
    }))
}

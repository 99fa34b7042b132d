//! The list of cases, and how one is run: on a thread of its own, against a deadline.

use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use metrale_gpu_sys::cuda::{CuResult, use_device};

use crate::calls::cuMemGetInfo_v2;
use crate::gated::trial;
use crate::team::{self, Rank};
use crate::world::{Need, World};

/// How long one case may take. Real GPUs connect for seconds; the emulator does nothing slow.
const DEADLINE: Duration = Duration::from_secs(if cfg!(feature = "emulator") { 10 } else { 30 });

/// How long the case that runs may take.
pub fn deadline() -> Duration {
    DEADLINE
}

/// How long a thread has to come back once its case has failed by its deadline.
const GRACE: Duration = Duration::from_secs(5);

type Body = Box<dyn FnOnce() -> Result<()> + Send>;
/// What to change in the environment of a process.
pub type Variables = &'static [(&'static str, Option<&'static str>)];

struct Case {
    name: String,
    need: Need,
    /// What to change in the environment of the process that runs the case, if it has its own.
    child: Option<Variables>,
    body: Body,
}

/// All cases, in the order in which they run.
#[derive(Default)]
pub struct Cases {
    subject: &'static str,
    list: Vec<Case>,
}

impl Cases {
    /// What the names of the next cases begin with.
    pub fn subject(&mut self, subject: &'static str) {
        self.subject = subject;
    }

    fn push(&mut self, name: &str, need: Need, child: Option<Variables>, body: Body) {
        let name = format!("{}::{name}", self.subject);
        assert!(
            self.list.iter().all(|case| case.name != name),
            "two cases are called {name}"
        );
        self.list.push(Case {
            name,
            need,
            child,
            body,
        });
    }

    /// On a fresh thread without a context.
    pub fn bare(
        &mut self,
        name: &str,
        need: Need,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        self.push(name, need, None, Box::new(body));
    }

    /// On a fresh thread with the first device's context.
    pub fn solo(
        &mut self,
        name: &str,
        need: Need,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        self.bare(name, need, move || {
            use_device(0)?;
            body()
        });
    }

    /// On a team of ranks, each of which runs `body` on its thread.
    pub fn team(
        &mut self,
        nranks: i32,
        name: &str,
        need: Need,
        body: impl Fn(&Rank) -> Result<()> + Send + Sync + 'static,
    ) {
        self.bare(name, need.ranks(nranks), move || team::run(nranks, body));
    }

    /// On a fresh thread of a process of its own that has called nothing yet.
    pub fn child(
        &mut self,
        name: &str,
        need: Need,
        variables: Variables,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        self.push(name, need, Some(variables), Box::new(body));
    }

    pub fn into_trials(self) -> Vec<Trial> {
        let world = World::get();
        let trials = self.list.into_iter().map(|case| {
            let Case {
                name,
                need,
                child,
                body,
            } = case;
            let met = need.met(world);
            let title = name.clone();
            match child {
                None => trial(&title, &met, move || {
                    watched(&name, body).inspect_err(|_| end_if_lost(&name))
                }),
                Some(variables) => trial(&title, &met, move || in_child(&name, variables)),
            }
        });
        trials.collect()
    }

    /// Runs one case on this thread, of a process that is one of its ranks.
    pub fn run_here(self, name: &str) -> Result<()> {
        let case = self.list.into_iter().find(|case| case.name == name);
        (case.context("there is such a case")?.body)()
    }

    /// Runs one case in this process, which was started for it, and says how it went.
    pub fn run_child(self, name: &str) -> i32 {
        let case = self.list.into_iter().find(|case| case.name == name);
        let case = case.unwrap_or_else(|| panic!("no case is called {name}"));
        match watched(name, case.body) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error:?}");
                1
            }
        }
    }
}

/// Runs a case on a thread of its own. One that is still busy after its deadline has failed; one that does
/// not come back even then ends the process, since nothing can stop a thread that hangs in a call.
fn watched(name: &str, body: Body) -> Result<()> {
    let (done, outcome) = channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    let case = thread.spawn(move || {
        let result = body();
        let _ = done.send(());
        result
    })?;
    let start = Instant::now();
    let mut late = false;
    if let Err(RecvTimeoutError::Timeout) = outcome.recv_timeout(DEADLINE) {
        late = true;
        if let Err(RecvTimeoutError::Timeout) = outcome.recv_timeout(GRACE) {
            eprintln!(
                "\nconformance: {name} hangs: it did not come back within {:?}. The process ends here; \
                 run the rest with --skip {name}",
                start.elapsed()
            );
            exit_now(101);
        }
    }
    let outcome = case.join();
    match outcome {
        Ok(Ok(())) if late => bail!("it took {:?}, more than {DEADLINE:?}", start.elapsed()),
        Ok(result) => result,
        Err(panic) => bail!(
            "it panicked: {}",
            panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("no text")
        ),
    }
}

/// A fault on the device, which is for good, would fail all other cases with it.
fn end_if_lost(name: &str) {
    if use_device(0).is_err() {
        return;
    }
    let code = cuMemGetInfo_v2(&mut 0, &mut 0);
    if code == CuResult::IllegalAddress || code == CuResult::LaunchFailed {
        eprintln!(
            "\nconformance: the device's context is lost ({code:?}) since {name}. The process ends here; run \
             the rest with --skip {name}"
        );
        exit_now(101);
    }
}

/// Runs the case `name` in a process of its own.
fn in_child(name: &str, variables: Variables) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args([CHILD, name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (variable, value) in variables {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    // The child has the same deadline and ends itself by it.
    let output = command.spawn()?.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    bail!(
        "in a process of its own ({}): {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The argument that makes this program run one case.
pub const CHILD: &str = "--child";

/// Ends the process without the libraries' own goodbye, which can hang where a rank hangs.
pub fn exit_now(code: i32) -> ! {
    unsafe extern "C" {
        fn _exit(code: i32) -> !;
    }
    // SAFETY: takes no pointer.
    unsafe { _exit(code) }
}

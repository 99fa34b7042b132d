//! Ranks in processes of their own: this program again, once a rank, told by the first process which cases
//! to run. What ranks tell each other goes through that one.

#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::cases::exit_now;
use crate::team::{PeerFailed, Rank, Shared};

/// The argument that makes this program one rank.
pub const RANK: &str = "--rank";

/// Whether teams have a process for each rank.
pub fn wanted() -> bool {
    std::env::var_os("METRALE_TEST_PROCESSES").is_some_and(|value| value == "1")
}

// What goes over a connection: a kind, a length and as many bytes.
const TELL: u8 = 0;
const TOLD: u8 = 1;
const RUN: u8 = 2;
const END: u8 = 3;
const FAILED: u8 = 4;
const GOOD: u8 = 5;
const BAD: u8 = 6;
const STOPPED: u8 = 7;
const ENDED: u8 = 8;

fn send(stream: &TcpStream, kind: u8, bytes: &[u8]) -> std::io::Result<()> {
    let mut frame = vec![kind];
    frame.extend((bytes.len() as u32).to_ne_bytes());
    frame.extend(bytes);
    (&mut &*stream).write_all(&frame)
}

fn receive(stream: &TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut stream = stream;
    let (mut kind, mut length) = ([0], [0; 4]);
    stream.read_exact(&mut kind)?;
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_ne_bytes(length) as usize];
    stream.read_exact(&mut bytes)?;
    Ok((kind[0], bytes))
}

/// The processes of a team, as the first process has them.
pub struct Processes {
    children: Vec<Child>,
    streams: Vec<Arc<TcpStream>>,
}

/// What a rank's process reports: the rank, and what became of its job.
pub type Outcomes = Sender<(usize, Result<()>)>;

impl Processes {
    pub fn start(nranks: usize, done: &Outcomes) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let mut processes = Self {
            children: Vec::new(),
            streams: Vec::new(),
        };
        for rank in 0..nranks {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([
                RANK,
                &rank.to_string(),
                &nranks.to_string(),
                &port.to_string(),
            ]);
            command.stdin(Stdio::null());
            processes.children.push(command.spawn()?);
        }
        let mut streams: Vec<Option<Arc<TcpStream>>> = vec![None; nranks];
        listener.set_nonblocking(true)?;
        let start = Instant::now();
        while streams.contains_none() {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    let (_, rank) = receive(&stream)?;
                    let rank = usize::from(rank[0]);
                    streams[rank] = Some(Arc::new(stream));
                }
                Err(_) => {
                    for child in &mut processes.children {
                        ensure!(child.try_wait()?.is_none(), "a rank's process has ended");
                    }
                    ensure!(
                        start.elapsed() < Duration::from_secs(5),
                        "ranks do not come"
                    );
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        processes.streams = streams.into_iter().flatten().collect();
        let board = Arc::new(Mutex::new(vec![VecDeque::new(); nranks]));
        for rank in 0..nranks {
            let (streams, board, done) = (processes.streams.clone(), board.clone(), done.clone());
            std::thread::spawn(move || listen(rank, &streams, &board, &done));
        }
        Ok(processes)
    }

    /// Has every rank run the case of this name.
    pub fn run(&self, name: &str) -> Result<()> {
        for stream in &self.streams {
            send(stream, RUN, name.as_bytes()).context("a rank's process has ended")?;
        }
        Ok(())
    }

    pub fn end(&self) {
        for stream in &self.streams {
            let _ = send(stream, END, &[]);
        }
    }

    /// Ends them whatever they do.
    pub fn kill(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
        }
    }
}

trait Missing {
    fn contains_none(&self) -> bool;
}

impl<T> Missing for Vec<Option<T>> {
    fn contains_none(&self) -> bool {
        self.iter().any(Option::is_none)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Passes on what a rank tells, once all have told, and what became of it.
fn listen(
    rank: usize,
    streams: &[Arc<TcpStream>],
    board: &Mutex<Vec<VecDeque<Vec<u8>>>>,
    done: &Outcomes,
) {
    let fail = || {
        for stream in streams {
            let _ = send(stream, FAILED, &[]);
        }
    };
    loop {
        let outcome = match receive(&streams[rank]) {
            Ok((TELL, bytes)) => {
                let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
                board[rank].push_back(bytes);
                if board.iter().all(|told| !told.is_empty()) {
                    let mut all = Vec::new();
                    for bytes in board.iter_mut().filter_map(VecDeque::pop_front) {
                        all.extend((bytes.len() as u32).to_ne_bytes());
                        all.extend(bytes);
                    }
                    for stream in streams {
                        let _ = send(stream, TOLD, &all);
                    }
                }
                continue;
            }
            Ok((ENDED, _)) => {
                let _ = done.send((rank, Ok(())));
                return;
            }
            Ok((GOOD, _)) => Ok(()),
            Ok((STOPPED, _)) => Err(PeerFailed.into()),
            Ok((BAD, text)) => Err(anyhow!("{}", String::from_utf8_lossy(&text))),
            _ => {
                fail();
                let _ = done.send((rank, Err(anyhow!("its process has ended"))));
                return;
            }
        };
        if outcome.is_err() {
            fail();
        }
        if done.send((rank, outcome)).is_err() {
            return;
        }
    }
}

/// A rank's way to the others, in its process.
pub struct Way(Arc<TcpStream>);

impl Way {
    pub fn tell(&self, bytes: &[u8]) -> Result<()> {
        send(&self.0, TELL, bytes).context("the first process has ended")
    }
}

thread_local! {
    static OWN: RefCell<Option<Rank>> = const { RefCell::new(None) };
    /// Why the rank's job failed, if it did.
    static FAILURE: RefCell<Option<anyhow::Error>> = const { RefCell::new(None) };
}

/// Runs a team's job on this process's rank, if it has one.
pub fn run_here(nranks: i32, job: &crate::team::Job) -> Option<Result<()>> {
    OWN.with_borrow(|rank| {
        let rank = rank.as_ref()?;
        let outcome = match rank.nranks == nranks {
            true => rank.work(job),
            false => Err(anyhow!("this process is one of {} ranks", rank.nranks)),
        };
        Some(outcome.map_err(|error| {
            let text = format!("{error:#}");
            FAILURE.set(Some(error));
            anyhow!(text)
        }))
    })
}

/// The life of a rank in its own process: `run` runs the cases of the names that it is told.
pub fn serve(words: &mut dyn Iterator<Item = String>, run: fn(&str) -> Result<()>) -> ! {
    let code = match live(words, run) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("a rank's process: {error:?}");
            1
        }
    };
    exit_now(code)
}

fn live(words: &mut dyn Iterator<Item = String>, run: fn(&str) -> Result<()>) -> Result<()> {
    let mut number = || -> Result<u16> { Ok(words.next().context("three numbers")?.parse()?) };
    let (rank, nranks, port) = (number()?, number()?, number()?);
    let stream = Arc::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?);
    stream.set_nodelay(true)?;
    send(&stream, TELL, &[rank as u8])?;
    let shared = Arc::new(Shared::apart(nranks.into(), Way(stream.clone())));
    let (jobs, orders) = std::sync::mpsc::channel();
    let (heard, reading) = (shared.clone(), stream.clone());
    std::thread::spawn(move || {
        loop {
            match receive(&reading) {
                Ok((TOLD, bytes)) => heard.hear(bytes),
                Ok((RUN, name)) => drop(jobs.send(Some(name))),
                Ok((END, _)) => drop(jobs.send(None)),
                Ok((FAILED, _)) => heard.fail(),
                // Without the first process there is nothing to do.
                _ => exit_now(1),
            }
        }
    });
    let report = |outcome: Result<()>| -> Result<()> {
        match outcome {
            Ok(()) => send(&stream, GOOD, &[])?,
            Err(error) if error.is::<PeerFailed>() => send(&stream, STOPPED, &[])?,
            Err(error) => send(&stream, BAD, format!("{error:#}").as_bytes())?,
        }
        Ok(())
    };
    match Rank::make(rank.into(), shared) {
        Ok(own) => OWN.set(Some(own)),
        Err(error) => return report(Err(error)),
    }
    report(Ok(()))?;
    while let Ok(order) = orders.recv() {
        let Some(name) = order else {
            let own = OWN.take().context("there is a rank")?;
            own.close()?;
            send(&stream, ENDED, &[])?;
            return Ok(());
        };
        let name = String::from_utf8(name)?;
        let outcome = std::panic::catch_unwind(|| run(&name));
        let outcome = outcome.unwrap_or_else(|_| bail_panicked());
        // What the case makes of it is the first process's to say.
        let outcome = FAILURE.take().map_or(outcome, Err);
        let failed = outcome.is_err();
        report(outcome)?;
        if failed {
            // The first process ends all of the team.
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    bail!("the first process has ended")
}

fn bail_panicked() -> Result<()> {
    bail!("the rank panicked; its words are above")
}

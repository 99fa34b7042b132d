//! How the ranks of a job find each other: rank 0 listens, the others connect, and all get the same 128 bytes.
//!
//! Copy this folder. It needs the standard library, anyhow and a Unix system, and knows nothing of NCCL.
//!
//! ```text
//! rank 0                            rank n
//!        <- JOIN: version, rank, world, token
//!        -> WELCOME                                  or REFUSED, and why
//!           (until all have come)
//!        -> ID: 128 bytes                            or FAILED, and why
//!        <- GOT
//!           (until all have got it)
//!        -> GO                                       or FAILED, and why
//! ```
//!
//! [`exchange`] is all of it. It returns on every rank or fails on every rank, but for one that dies as the last
//! word is on its way, and no later than the deadline. Rank 0's error then names the ranks that did not come, and
//! reaches those that did. What it leaves are the connections: [`Members::watch`] tells each rank, from then on,
//! when another one dies.
//!
//! A rank that dies before all have met may come again. One that is refused (another token, another world size, a
//! rank that is there already) is told why, and gives up.
//!
//! ```ignore
//! let (id, members) = exchange(&settings, || Ok(unique_id()?.internal), &mut log)?;
//! let lost = Arc::new(OnceLock::new());
//! let watch = members.watch({
//!     let lost = lost.clone();
//!     move |cause| _ = lost.set(cause.to_owned())
//! })?;
//! // Work with `NcclUniqueId { internal: id }`; whatever waits for others looks at `lost` meanwhile.
//! match work(id, &lost) {
//!     Ok(()) => watch.leave(),
//!     Err(error) => _ = watch.fail(&error.to_string()),
//! }
//! ```
//!
//! All ranks watch, or none: who drops its [`Members`], or its [`Watch`] without [`Watch::leave`], counts as dead.
//!
//! # Limits
//!
//! - A frame has 152 bytes, whatever it says; no peer can make rank 0 read or keep more.
//! - Who has connected must have said who it is after 5 seconds. 256 such connections are open at a time; one
//!   more, and the oldest is dropped. Those who spoke up are never dropped for others.
//! - Rank 0 keeps a connection a rank: `ulimit -n` must leave room for all ranks and these 256.
//! - It looks at its connections in turn and waits for none: who is slow or silent keeps nobody waiting.
//! - It listens on the addresses of the master's name alone, unless [`Settings::listen_on`] says otherwise.
//! - The log gets ten lines a second; what is above that is counted.
//! - Looking up the master's name takes as long as the system takes, on a thread that is left behind at the deadline.
//!
//! # What it does not protect against
//!
//! - Nothing is encrypted or signed. Who can read the network sees the token and the id, and can join in a
//!   rank's place; who can change packets can do anything.
//! - Who listens on the master's port before rank 0 does is shown the token, and can hand out an id of its own.
//! - A token that is derived from a job's number keeps jobs apart that meet by mistake. It is no secret.
//! - A flood that is faster than the machine keeps good ranks out. They go on trying until the deadline.
//!
//! Use it within a cluster's own network, as NCCL itself, which sends everything in clear as well.

// A program that only needs the id uses half of it.
#![allow(dead_code, unused_imports)]

mod members;
mod wire;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

pub use members::{Members, Watch};
pub use wire::Token;
use wire::{Frame, Kind, Link, PAYLOAD, TICK, VERSION};

/// How long a connection may take to say who it is.
const JOIN_LIMIT: Duration = Duration::from_secs(5);
/// How many connections may be open that have not said it yet.
const PENDING_LIMIT: usize = 256;
/// How often the ranks that wait are looked at: they have nothing to say, but may have gone.
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// How long rank 0 may take to answer; then another address is tried.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long rank 0 waits before it looks up a name again that has no address.
const RESOLVE_AGAIN: Duration = Duration::from_millis(200);
/// How much longer a rank waits for rank 0's word, which names who is missing.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A deadline beyond this is a mistake, and could overflow the clock.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// What rank 0 hands to all.
pub type Id = [u8; PAYLOAD];

/// Takes lines about what goes on, such as a stranger that was dropped.
pub type Log<'a> = &'a mut dyn FnMut(&str);

/// Who this process is, and where and how long the ranks of its job meet.
#[derive(Debug, Clone)]
pub struct Settings {
    /// From 0.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
    /// Where rank 0 listens.
    pub master: Master,
    /// The same on every rank of the job, and on none of another.
    pub token: Token,
    /// From the start on this rank to the id on every rank.
    pub deadline: Duration,
    /// The address that rank 0 binds instead of the master's own, such as `0.0.0.0` for every interface.
    pub listen_on: Option<IpAddr>,
}

impl Settings {
    fn check(&self) -> Result<()> {
        let Self {
            rank,
            world,
            deadline,
            ..
        } = self;
        ensure!(
            rank < world,
            "there is no rank {rank} in a world of {world}"
        );
        ensure!(
            *rank == 0 || self.master.port != 0,
            "{self}: port 0 lets rank 0 pick one, and no other rank can know which"
        );
        ensure!(
            *deadline <= LONGEST,
            "{self}: a deadline of {deadline:?} is too long to be one"
        );
        Ok(())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.world)
    }
}

/// A name or an address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// A name, or an address without brackets.
    pub host: String,
    /// 0 lets rank 0 pick one.
    pub port: u16,
}

impl Master {
    /// An IPv6 address may have its brackets or not.
    pub fn new(host: &str, port: u16) -> Result<Self> {
        let inner = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        let is_name = !host.is_empty()
            && !host.contains(|letter: char| letter.is_whitespace() || "/[]:".contains(letter));
        let is_address = host.parse::<IpAddr>().is_ok();
        // As in fe80::1%eth0, which the system reads.
        let has_zone = host.contains(':') && host.contains('%');
        ensure!(
            is_name || is_address || has_zone,
            "'{}' is neither a host's name nor an address",
            host.escape_debug()
        );
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// Reads `host:port`, `1.2.3.4:port` or `[::1]:port`.
    pub fn parse(text: &str) -> Result<Self> {
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let shown = text.escape_debug();
        ensure!(
            !host.contains(':') || (host.starts_with('[') && host.ends_with(']')),
            "'{shown}' is ambiguous: an IPv6 address stands in brackets before its port, as in [::1]:29500"
        );
        let port = parse_port(port).with_context(|| format!("'{shown}' is not host:port"))?;
        Self::new(host, port)
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A port from 0 to 65535.
pub fn parse_port(text: &str) -> Result<u16> {
    // `parse` alone would take a sign.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|_| digits);
    port.with_context(|| format!("'{}' is not a port, 0 to 65535", text.escape_debug()))
}

/// Gives every rank the id that `make_id` makes on rank 0 once all have come.
pub fn exchange(
    settings: &Settings,
    make_id: impl FnOnce() -> Result<Id>,
    log: Log<'_>,
) -> Result<(Id, Members)> {
    if settings.rank == 0 {
        Host::bind(settings, log)?.share(make_id, log)
    } else {
        join(settings, log)
    }
}

/// Rank 0, which listens.
pub struct Host<'a> {
    settings: &'a Settings,
    end: Instant,
    listeners: Vec<TcpListener>,
    port: u16,
}

impl<'a> Host<'a> {
    /// Listens, and keeps the sockets: nobody else can take the port between this and [`Host::share`].
    pub fn bind(settings: &'a Settings, log: Log<'_>) -> Result<Self> {
        settings.check()?;
        let end = Instant::now() + settings.deadline;
        let master = &settings.master;
        let addresses = match settings.listen_on {
            Some(address) => vec![SocketAddr::new(address, master.port)],
            None => own_addresses(settings, end, log)?,
        };
        let mut host = Self {
            settings,
            end,
            listeners: Vec::new(),
            port: master.port,
        };
        let mut refusals = Vec::new();
        for address in addresses {
            match host.listen(address) {
                Ok(()) => {
                    let only = if address.ip().is_loopback() {
                        ", which this machine alone can reach"
                    } else {
                        ""
                    };
                    let address = SocketAddr::new(address.ip(), host.port);
                    log(&format!("{settings}: listens on {address}{only}"));
                }
                // Another job's ranks would be met there.
                Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                    "{settings}: cannot listen on {address}: port {} is in use, by another job or program: take \
                     another port, or end what holds this one",
                    address.port()
                ),
                Err(error) => refusals.push(format!("{address}: {error}")),
            }
            if master.port == 0 && host.port != 0 {
                break;
            }
        }
        ensure!(
            !host.listeners.is_empty(),
            "{settings}: cannot listen on {master}, which must be an address of the machine that rank 0 runs on: {}",
            refusals.join("; ")
        );
        Ok(host)
    }

    fn listen(&mut self, address: SocketAddr) -> std::io::Result<()> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        queue_more(&listener);
        self.port = listener.local_addr()?.port();
        self.listeners.push(listener);
        Ok(())
    }

    /// The port that it listens on: one that was free where the settings say 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for all ranks, makes the id and gives it to them. A failure, also one of `make_id`, reaches the
    /// ranks that have come.
    pub fn share(
        self,
        make_id: impl FnOnce() -> Result<Id>,
        log: Log<'_>,
    ) -> Result<(Id, Members)> {
        let Settings { rank, world, .. } = *self.settings;
        let mut ranks = Ranks::new(world);
        let outcome = self
            .gather(&mut ranks, &mut Throttle::new(log))
            .and_then(|()| {
                let id = make_id().context("no id")?;
                self.hand_out(&mut ranks, id)?;
                Ok(id)
            });
        match outcome {
            Ok(id) => Ok((id, Members::new(rank, world, ranks.into_links()))),
            Err(error) => {
                ranks.send(&Frame::text(
                    Kind::FAILED,
                    rank,
                    world,
                    &format!("{error:#}"),
                ));
                Err(error.context(self.settings.to_string()))
            }
        }
    }

    /// Until every rank has come and is still there.
    fn gather(&self, ranks: &mut Ranks, log: &mut Throttle<'_>) -> Result<()> {
        let mut strangers: VecDeque<Link> = VecDeque::new();
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() >= LOOK_AFTER || ranks.missing == 0 {
                looked = Instant::now();
                ranks.look_after(log);
            }
            if ranks.missing == 0 {
                return Ok(());
            }
            if Instant::now() >= self.end {
                bail!(
                    "{} within {:?}",
                    ranks.who_is_missing(),
                    self.settings.deadline
                );
            }
            let arrived = self.accept(&mut strangers, log);
            for _ in 0..strangers.len() {
                let Some(mut link) = strangers.pop_front() else {
                    break;
                };
                match link.poll() {
                    Ok(Some(frame)) => self.admit(link, &frame, ranks, log),
                    Ok(None) if link.age() < JOIN_LIMIT => strangers.push_back(link),
                    Ok(None) => {
                        let reason = format!("did not say who it is within {JOIN_LIMIT:?}");
                        log.dropped(&link, &reason);
                    }
                    Err(reason) => log.dropped(&link, &reason),
                }
            }
            if !arrived {
                thread::sleep(TICK);
            }
        }
    }

    /// Takes who has connected; whether there was anybody.
    fn accept(&self, strangers: &mut VecDeque<Link>, log: &mut Throttle<'_>) -> bool {
        let mut arrived = false;
        for listener in &self.listeners {
            // As many as there is room for, so that nobody who spoke up at once is dropped unread.
            for _ in 0..PENDING_LIMIT / 2 {
                match listener
                    .accept()
                    .and_then(|(stream, peer)| Link::new(stream, peer))
                {
                    Ok(link) => strangers.push_back(link),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => {
                        log.line(&format!("a connection could not be taken: {error}"));
                        // Perhaps there is no descriptor left: not for those who are silent.
                        if let Some(oldest) = strangers.pop_front() {
                            log.dropped(&oldest, "was silent while there was no room for others");
                        }
                        break;
                    }
                }
                arrived = true;
                if strangers.len() > PENDING_LIMIT {
                    if let Some(oldest) = strangers.pop_front() {
                        log.dropped(&oldest, "was silent while many others came");
                    }
                }
            }
        }
        arrived
    }

    /// Lets a stranger in, or tells it why not.
    fn admit(&self, mut link: Link, frame: &Frame, ranks: &mut Ranks, log: &mut Throttle<'_>) {
        let world = self.settings.world;
        let rank = frame.rank;
        let outcome = if frame.version != VERSION {
            let theirs = frame.version;
            Err(format!(
                "it speaks version {theirs} of the protocol, and rank 0 version {VERSION}"
            ))
        } else if frame.kind != Kind::JOIN {
            Err("it did not begin with who it is".to_owned())
        } else if !self.settings.token.is(&frame.payload) {
            Err("it has another job's token".to_owned())
        } else if frame.world != world {
            Err(format!(
                "it is of a world of {}, and rank 0 of one of {world}",
                frame.world
            ))
        } else if rank == 0 || rank >= world {
            Err(format!(
                "there is no rank {rank} to come in a world of {world}"
            ))
        } else if ranks.has(rank) {
            Err(format!("rank {rank} is here already"))
        } else {
            let welcome = Frame::new(Kind::WELCOME, 0, world, [0; PAYLOAD]);
            link.send(&welcome)
        };
        match outcome {
            Ok(()) => ranks.enter(rank, link),
            Err(reason) => {
                // It may have gone; there is nobody else to tell.
                let _ = link.send(&Frame::text(Kind::REFUSED, 0, world, &reason));
                log.dropped(&link, &format!("is refused: {reason}"));
            }
        }
    }

    /// Until every rank has the id and knows that all have it.
    fn hand_out(&self, ranks: &mut Ranks, id: Id) -> Result<()> {
        let world = self.settings.world;
        ranks.send(&Frame::new(Kind::ID, 0, world, id));
        for rank in 1..world {
            let Some(link) = ranks.link(rank) else {
                bail!("rank {rank} left before it had the id");
            };
            match link.wait(self.end) {
                Ok(Some(frame)) if frame.kind == Kind::GOT => {}
                Ok(Some(frame)) if frame.kind == Kind::FAILED => {
                    bail!("rank {rank} failed: {}", frame.words())
                }
                Ok(Some(_)) => bail!("rank {rank} broke the protocol"),
                Ok(None) => bail!(
                    "rank {rank} did not take the id within {:?}",
                    self.settings.deadline
                ),
                Err(reason) => bail!("rank {rank} left before it had the id: it {reason}"),
            }
        }
        ranks.send(&Frame::new(Kind::GO, 0, world, [0; PAYLOAD]));
        Ok(())
    }
}

/// Lets 4096 connections wait to be taken, where the system allows it, instead of the standard library's 128: the
/// system drops what is above that, and a rank that is dropped tries again after a second.
fn queue_more(listener: &TcpListener) {
    unsafe extern "C" {
        fn listen(socket: c_int, backlog: c_int) -> c_int;
    }
    // SAFETY: takes no pointer. The socket is open and listens already, which makes this change the number alone; where
    // it fails, the number stays.
    unsafe { listen(listener.as_raw_fd(), 4096) };
}

/// The ranks that have come.
struct Ranks {
    links: Vec<Option<Link>>,
    /// Those that came and are gone.
    left: Vec<bool>,
    missing: u32,
}

impl Ranks {
    fn new(world: u32) -> Self {
        Self {
            links: (0..world).map(|_| None).collect(),
            left: vec![false; world as usize],
            missing: world - 1,
        }
    }

    fn link(&mut self, rank: u32) -> Option<&mut Link> {
        self.links[rank as usize].as_mut()
    }

    /// Whether it has come and is still there: who was started anew may take its own place.
    fn has(&mut self, rank: u32) -> bool {
        let gone = match self.link(rank) {
            Some(link) => link.poll().is_err(),
            None => return false,
        };
        if gone {
            self.leave(rank);
        }
        !gone
    }

    fn enter(&mut self, rank: u32, link: Link) {
        self.links[rank as usize] = Some(link);
        self.missing -= 1;
    }

    fn leave(&mut self, rank: u32) {
        self.links[rank as usize] = None;
        self.left[rank as usize] = true;
        self.missing += 1;
    }

    /// Lets go who has gone, or speaks though it is not its turn.
    fn look_after(&mut self, log: &mut Throttle<'_>) {
        for rank in 1..self.links.len() as u32 {
            let Some(link) = self.link(rank) else {
                continue;
            };
            let reason = match link.poll() {
                Ok(None) => continue,
                Ok(Some(_)) => "spoke out of turn".to_owned(),
                Err(reason) => reason,
            };
            log.line(&format!("rank {rank} from {} {reason}", link.peer));
            self.leave(rank);
        }
    }

    fn who_is_missing(&self) -> String {
        let mut never = Vec::new();
        let mut left = Vec::new();
        for rank in 1..self.links.len() {
            if self.links[rank].is_none() {
                let group = if self.left[rank] {
                    &mut left
                } else {
                    &mut never
                };
                group.push(rank as u32);
            }
        }
        let world = self.links.len();
        let mut parts = Vec::new();
        if !never.is_empty() {
            parts.push(format!("{} of {world} did not come", list(&never)));
        }
        if !left.is_empty() {
            parts.push(format!("{} of {world} came and left again", list(&left)));
        }
        parts.join(", and ")
    }

    /// Who does not get it has gone, which is seen when it is waited for.
    fn send(&mut self, frame: &Frame) {
        for link in self.links.iter_mut().flatten() {
            let _ = link.send(frame);
        }
    }

    fn into_links(self) -> Vec<(u32, Link)> {
        let links = (0..).zip(self.links);
        links
            .filter_map(|(rank, link)| Some((rank, link?)))
            .collect()
    }
}

/// `rank 3`, `ranks 3 and 5`, `ranks 1, 2, 3 and 5`; no more than eight by name.
fn list(ranks: &[u32]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<String> = ranks.iter().take(NAMED).map(u32::to_string).collect();
    if ranks.len() > NAMED {
        names.push(format!("{} more", ranks.len() - NAMED));
    }
    match names.split_last() {
        Some((last, [])) => format!("rank {last}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
        None => "no rank".to_owned(),
    }
}

/// Connects to rank 0 as another rank, and tries on until the deadline.
pub fn join(settings: &Settings, log: Log<'_>) -> Result<(Id, Members)> {
    join_at(settings, |end| resolve(&settings.master, end), log)
}

/// As [`join`], at the addresses that `addresses` finds, in turn: it is asked again before each round, and has until
/// the instant that it is given.
pub fn join_at(
    settings: &Settings,
    mut addresses: impl FnMut(Instant) -> Result<Vec<SocketAddr>, String>,
    log: Log<'_>,
) -> Result<(Id, Members)> {
    settings.check()?;
    ensure!(settings.rank != 0, "{settings}: rank 0 listens");
    let end = Instant::now() + settings.deadline;
    let mut said = String::new();
    let mut connect_limit = Duration::from_millis(250);
    let mut pause = Duration::from_millis(10);
    loop {
        let mut failures = Vec::new();
        match addresses(end) {
            Ok(addresses) => {
                for address in addresses {
                    match Guest::connect(settings, address, connect_limit, end) {
                        Ok(guest) => return guest.finish(end),
                        Err(Failure::Final(error)) => {
                            return Err(error.context(settings.to_string()));
                        }
                        Err(Failure::Passing(reason)) => {
                            failures.push(format!("{address} {reason}"))
                        }
                    }
                }
            }
            Err(error) => failures.push(error),
        }
        let failures = failures.join("; ");
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!(
                "{settings}: rank 0 was not reached at {} within {:?}: {failures}",
                settings.master,
                settings.deadline
            );
        }
        if said != failures {
            log(&format!("{settings}: {failures}; trying on"));
            said = failures;
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(500));
        connect_limit = (connect_limit * 2).min(ANSWER_LIMIT);
    }
}

/// Why a connection came to nothing.
enum Failure {
    /// Another address, or a later time, may do.
    Passing(String),
    /// Rank 0 was there and said no.
    Final(anyhow::Error),
}

/// A rank that rank 0 has let in.
struct Guest<'a> {
    settings: &'a Settings,
    link: Link,
}

impl<'a> Guest<'a> {
    fn connect(
        settings: &'a Settings,
        address: SocketAddr,
        limit: Duration,
        end: Instant,
    ) -> Result<Self, Failure> {
        let left = end.saturating_duration_since(Instant::now());
        // Zero is refused as a limit.
        let limit = limit.min(left).max(TICK);
        let stream = TcpStream::connect_timeout(&address, limit);
        let mut link = stream
            .and_then(|stream| Link::new(stream, address))
            .map_err(|error| Failure::Passing(format!("cannot be connected to: {error}")))?;
        let Settings { rank, world, .. } = *settings;
        let join = Frame::new(Kind::JOIN, rank, world, settings.token.bytes());
        link.send(&join).map_err(Failure::Passing)?;
        let answer = link.wait(end.min(Instant::now() + ANSWER_LIMIT));
        let frame = match answer.map_err(Failure::Passing)? {
            Some(frame) => frame,
            None => {
                return Err(Failure::Passing(
                    "was connected to, but says nothing".into(),
                ));
            }
        };
        match frame.kind {
            Kind::WELCOME if frame.version == VERSION => Ok(Self { settings, link }),
            Kind::REFUSED => Err(Failure::Final(anyhow!(
                "refused by rank 0 at {address}: {}",
                frame.words()
            ))),
            Kind::FAILED => Err(Failure::Final(anyhow!("rank 0 failed: {}", frame.words()))),
            _ => Err(Failure::Passing("answers as no rank 0 does".into())),
        }
    }

    /// Waits for the id, and for the word that all have it.
    fn finish(mut self, end: Instant) -> Result<(Id, Members)> {
        let Settings { rank, world, .. } = *self.settings;
        let outcome = (|| {
            let id = self.next(Kind::ID, end)?.payload;
            let got = Frame::new(Kind::GOT, rank, world, [0; PAYLOAD]);
            // If rank 0 has gone, the next line says so.
            let _ = self.link.send(&got);
            self.next(Kind::GO, end)?;
            Ok(id)
        })();
        match outcome {
            Ok(id) => Ok((id, Members::new(rank, world, vec![(0, self.link)]))),
            Err(error) => Err(anyhow::Error::context(error, self.settings.to_string())),
        }
    }

    fn next(&mut self, kind: Kind, end: Instant) -> Result<Frame> {
        let peer = self.link.peer;
        match self.link.wait(end + LAST_WORD) {
            Ok(Some(frame)) if frame.kind == kind => Ok(frame),
            Ok(Some(frame)) if frame.kind == Kind::FAILED => {
                bail!("rank 0 failed: {}", frame.words())
            }
            Ok(Some(_)) => bail!("rank 0 at {peer} broke the protocol"),
            Ok(None) => bail!(
                "rank 0 at {peer} is there, but not everybody came within {:?}",
                self.settings.deadline
            ),
            Err(reason) => {
                bail!("rank 0 at {peer} was there, but has gone before all had met: it {reason}")
            }
        }
    }
}

/// The addresses to listen on. A machine's name can be known a little later than the machine.
fn own_addresses(settings: &Settings, end: Instant, log: Log<'_>) -> Result<Vec<SocketAddr>> {
    let mut said = false;
    loop {
        match resolve(&settings.master, end) {
            Ok(addresses) => return Ok(addresses),
            Err(error) if Instant::now() + RESOLVE_AGAIN >= end => bail!("{settings}: {error}"),
            Err(error) => {
                if !said {
                    log(&format!("{settings}: {error}; trying on"));
                }
                said = true;
                thread::sleep(RESOLVE_AGAIN);
            }
        }
    }
}

/// The addresses of the master's name. Looked up on a thread, since the system may take longer than there is time.
fn resolve(master: &Master, end: Instant) -> Result<Vec<SocketAddr>, String> {
    let port = master.port;
    if let Ok(address) = master.host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (send, receive) = mpsc::channel();
    let host = master.host.clone();
    let looked_up = thread::Builder::new().spawn(move || {
        let addresses = (host.as_str(), port).to_socket_addrs();
        // Nobody may be waiting any more.
        let _ = send.send(addresses.map(Iterator::collect::<Vec<_>>));
    });
    looked_up.map_err(|error| format!("no thread to look up {}: {error}", master.host))?;
    let left = end.saturating_duration_since(Instant::now());
    let mut addresses = match receive.recv_timeout(left.max(TICK)) {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(format!("'{}' has no address: {error}", master.host)),
        Err(_) => return Err(format!("looking up '{}' took too long", master.host)),
    };
    addresses.dedup();
    if addresses.is_empty() {
        return Err(format!("'{}' has no address", master.host));
    }
    Ok(addresses)
}

/// Lets ten lines a second pass, and counts the others.
struct Throttle<'a> {
    log: Log<'a>,
    second: Instant,
    lines: u32,
    held_back: u32,
}

impl<'a> Throttle<'a> {
    const LINES: u32 = 10;

    fn new(log: Log<'a>) -> Self {
        Self {
            log,
            second: Instant::now(),
            lines: 0,
            held_back: 0,
        }
    }

    fn dropped(&mut self, link: &Link, reason: &str) {
        self.line(&format!("a connection from {} {reason}", link.peer));
    }

    fn line(&mut self, line: &str) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.sum_up();
            self.second = Instant::now();
            self.lines = 0;
        }
        if self.lines < Self::LINES {
            self.lines += 1;
            (self.log)(line);
        } else {
            self.held_back += 1;
        }
    }

    fn sum_up(&mut self) {
        if self.held_back > 0 {
            (self.log)(&format!("and {} lines more", self.held_back));
            self.held_back = 0;
        }
    }
}

impl Drop for Throttle<'_> {
    fn drop(&mut self) {
        self.sum_up();
    }
}

//! How the ranks of `examples/multi_process` find each other, among strangers, with ranks that do not come, and
//! with names and ports of all kinds. The ranks are threads.

#[path = "support/gated.rs"]
mod gated;
#[path = "../examples/rendezvous/mod.rs"]
mod rendezvous;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Arguments;
use rendezvous::{Host, Id, Master, Members, Settings, Token, exchange, join, join_at};

const LOCAL: &str = "127.0.0.1";
const WORD: &str = "the word of this job";
const ID: Id = [0xa5; 128];
/// Far beyond what any of these may take.
const LONG: Duration = Duration::from_secs(60);
/// What happens at once takes less, also on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

fn main() {
    let everywhere = Ok(());
    let ipv6 = match TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("no IPv6 here: {error}")),
    };
    let trial = |name, test: fn() -> Result<()>| gated::trial(name, &everywhere, test);
    let trials = vec![
        trial("all_get_the_id", all_get_the_id),
        trial(
            "strangers_are_dropped_with_a_reason",
            strangers_are_dropped_with_a_reason,
        ),
        trial(
            "a_silent_stranger_is_dropped_in_time",
            a_silent_stranger_is_dropped_in_time,
        ),
        trial(
            "a_thousand_strangers_delay_nobody",
            a_thousand_strangers_delay_nobody,
        ),
        trial("impostors_are_told_why", impostors_are_told_why),
        trial(
            "the_oldest_silent_stranger_makes_room",
            the_oldest_silent_stranger_makes_room,
        ),
        trial(
            "a_rank_that_is_silent_with_the_id_fails_all",
            a_rank_that_is_silent_with_the_id_fails_all,
        ),
        trial(
            "words_of_others_are_fit_to_print",
            words_of_others_are_fit_to_print,
        ),
        trial("tokens_differ_in_any_byte", tokens_differ_in_any_byte),
        trial("a_slow_rank_is_let_in", a_slow_rank_is_let_in),
        trial("a_rank_may_come_again", a_rank_may_come_again),
        trial(
            "missing_ranks_are_named_to_all",
            missing_ranks_are_named_to_all,
        ),
        trial(
            "a_failure_of_rank_0_reaches_all",
            a_failure_of_rank_0_reaches_all,
        ),
        trial(
            "a_rank_that_leaves_with_the_id_fails_all",
            a_rank_that_leaves_with_the_id_fails_all,
        ),
        trial(
            "a_silent_rank_0_ends_at_the_deadline",
            a_silent_rank_0_ends_at_the_deadline,
        ),
        trial("nothing_secret_is_said", nothing_secret_is_said),
        trial("a_port_in_use_is_named", a_port_in_use_is_named),
        trial("rank_0_picks_a_port", rank_0_picks_a_port),
        trial("a_port_is_free_again_at_once", a_port_is_free_again_at_once),
        trial(
            "addresses_are_read_as_written",
            addresses_are_read_as_written,
        ),
        trial("a_name_works_as_an_address", || {
            meet_at(&Master::new("localhost", 0)?)
        }),
        trial("a_name_that_does_not_exist", a_name_that_does_not_exist),
        trial("all_addresses_are_tried", all_addresses_are_tried),
        trial(
            "only_the_masters_address_is_bound",
            only_the_masters_address_is_bound,
        ),
        trial("a_death_is_named_to_all", a_death_is_named_to_all),
        trial(
            "a_death_is_the_cause_of_failures",
            a_death_is_the_cause_of_failures,
        ),
        trial("leaving_in_peace_is_no_loss", leaving_in_peace_is_no_loss),
        gated::trial("ipv6_without_brackets", &ipv6, || {
            meet_at(&Master::new("::1", 0)?)
        }),
        gated::trial("ipv6_with_brackets", &ipv6, || {
            meet_at(&Master::parse("[::1]:0")?)
        }),
        gated::trial("every_interface_if_asked", &ipv6, every_interface_if_asked),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn settings(rank: u32, world: u32, port: u16) -> Settings {
    Settings {
        rank,
        world,
        master: Master {
            host: LOCAL.to_owned(),
            port,
        },
        token: Token::new(WORD).unwrap(),
        deadline: LONG,
        listen_on: None,
    }
}

type Outcome = Result<(Id, Members)>;
type Lines = Arc<Mutex<Vec<String>>>;

/// Rank 0 on a thread, which listens already.
struct Rank0 {
    port: u16,
    lines: Lines,
    thread: JoinHandle<Outcome>,
}

impl Rank0 {
    fn start(settings: Settings) -> Result<Self> {
        Self::with(settings, || Ok(ID))
    }

    fn with(settings: Settings, make_id: fn() -> Result<Id>) -> Result<Self> {
        let lines = Lines::default();
        let (send, receive) = mpsc::channel();
        let thread = thread::spawn({
            let lines = lines.clone();
            move || {
                let mut log = |line: &str| lines.lock().unwrap().push(line.to_owned());
                let host = Host::bind(&settings, &mut log)?;
                send.send(host.port())?;
                host.share(make_id, &mut log)
            }
        });
        match receive.recv() {
            Ok(port) => Ok(Self {
                port,
                lines,
                thread,
            }),
            Err(_) => bail!("{}", error(end(thread)?)?),
        }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(LOCAL.parse().unwrap(), self.port)
    }

    /// The others, on threads too.
    fn others(&self, world: u32) -> Vec<JoinHandle<Outcome>> {
        (1..world)
            .map(|rank| joins(settings(rank, world, self.port)))
            .collect()
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until a line has `part`.
    fn says(&self, part: &str) -> Result<()> {
        let start = Instant::now();
        while !self.lines().iter().any(|line| line.contains(part)) {
            ensure!(
                start.elapsed() < 2 * AT_ONCE,
                "no {part:?} in {:#?}",
                self.lines()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn joins(settings: Settings) -> JoinHandle<Outcome> {
    thread::spawn(move || join(&settings, &mut |_| {}))
}

fn end<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().ok().context("it panicked")
}

fn error(outcome: Outcome) -> Result<String> {
    match outcome {
        Ok(_) => bail!("it got an id"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

/// All have the id.
fn all_have_it(rank0: Rank0, others: Vec<JoinHandle<Outcome>>) -> Result<Vec<Members>> {
    let mut all = Vec::new();
    for thread in std::iter::once(rank0.thread).chain(others) {
        let (id, members) = end(thread)??;
        ensure!(id == ID);
        all.push(members);
    }
    Ok(all)
}

fn all_get_the_id() -> Result<()> {
    for world in [1, 2, 8, 100] {
        let rank0 = Rank0::start(settings(0, world, 0))?;
        let others = rank0.others(world);
        all_have_it(rank0, others)?;
    }
    Ok(())
}

/// A frame, from what the module's front page says.
fn frame(version: u32, kind: u32, rank: u32, world: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"RANKS\r\n\0".to_vec();
    for number in [version, kind, rank, world] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(payload);
    bytes.resize(152, 0);
    bytes
}

fn stranger(rank0: &Rank0, bytes: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(rank0.address())?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(bytes)?;
    Ok(stream)
}

/// What rank 0 says to a stranger before it closes the connection.
fn answer(mut stream: TcpStream) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => Ok(answer),
        // Dropped with bytes unread.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(answer),
        Err(error) => Err(error.into()),
    }
}

fn strangers_are_dropped_with_a_reason() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 8, 0))?;
    let no_rank = "sent something else than a rank does";
    let length = 1_u64 << 32;
    let cases: [(&[u8], &str); 7] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", no_rank),
        (&length.to_be_bytes(), no_rank),
        (&[0xff; 4096], no_rank),
        (&vec![0; 1 << 20], no_rank),
        (b"RANKS\r\nx", no_rank),
        (&frame(7, 1, 1, 8, WORD.as_bytes()), "version 7"),
        (
            &frame(1, 3, 1, 8, WORD.as_bytes()),
            "did not begin with who it is",
        ),
    ];
    // It stays, silent after a byte, while the good ranks are served.
    let silent = stranger(&rank0, b"R")?;
    for (bytes, reason) in cases {
        let stream = TcpStream::connect(rank0.address())?;
        stream.set_read_timeout(Some(LONG))?;
        let peer = stream.local_addr()?;
        // The end of a long one may find the connection closed already.
        let _ = (&stream).write_all(bytes);
        let answer = answer(stream)?;
        ensure!(
            answer.len() == if reason == no_rank { 0 } else { 152 },
            "{reason}"
        );
        rank0.says(&format!("a connection from {peer} "))?;
        let lines = rank0.lines();
        let line = lines.iter().find(|line| line.contains(&format!("{peer}")));
        ensure!(
            line.is_some_and(|line| line.contains(reason)),
            "no {reason:?} in {lines:#?}"
        );
    }
    drop(stranger(&rank0, b"")?);
    rank0.says("closed the connection")?;
    let others = rank0.others(8);
    all_have_it(rank0, others)?;
    drop(silent);
    Ok(())
}

fn a_silent_stranger_is_dropped_in_time() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 2, 0))?;
    let start = Instant::now();
    let stream = stranger(&rank0, b"R")?;
    ensure!(answer(stream)?.is_empty());
    let waited = start.elapsed();
    ensure!(
        waited > Duration::from_secs(4) && waited < 2 * AT_ONCE,
        "{waited:?}"
    );
    rank0.says("did not say who it is within 5s")?;
    let others = rank0.others(2);
    all_have_it(rank0, others).map(drop)
}

/// The strangers come together with six of the ranks, and the last rank comes after them. Both times are taken in
/// turn, and the slowest compared.
fn a_thousand_strangers_delay_nobody() -> Result<()> {
    const WORLD: u32 = 8;
    let meeting = |strangers: usize| -> Result<Duration> {
        let start = Instant::now();
        let rank0 = Rank0::start(settings(0, WORLD, 0))?;
        let lines = rank0.lines.clone();
        let port = rank0.port;
        let joins = |rank| joins(settings(rank, WORLD, port));
        let mut others: Vec<_> = (1..WORLD - 1).map(joins).collect();
        let mut open = VecDeque::new();
        for number in 0..strangers {
            let bytes: &[u8] = match number % 4 {
                0 => b"",
                1 => b"R",
                2 => b"GET / HTTP/1.1\r\n\r\n",
                _ => &[0xff; 200],
            };
            let mut stream = TcpStream::connect(rank0.address())?;
            // It may be closed by then.
            let _ = stream.write_all(bytes);
            open.push_back(stream);
            // A process may have a thousand files open by default, and other tests run beside this one.
            if open.len() > 100 {
                open.pop_front();
            }
        }
        others.push(joins(WORLD - 1));
        all_have_it(rank0, others)?;
        let time = start.elapsed();
        let lines = lines.lock().unwrap();
        let more = lines
            .iter()
            .filter_map(|line| line.strip_prefix("and ")?.strip_suffix(" lines more"));
        let more: usize = more.map(|count| count.parse::<usize>().unwrap()).sum();
        let seconds = 1 + time.as_secs() as usize;
        ensure!(lines.len() <= 2 + 11 * seconds, "{} lines", lines.len());
        // But for those that it still listened to when the last rank came.
        ensure!(
            lines.len() + more >= strangers.saturating_sub(256),
            "{lines:#?}"
        );
        Ok(time)
    };
    let mut undisturbed = Vec::new();
    let mut disturbed = Vec::new();
    for _ in 0..5 {
        undisturbed.push(meeting(0)?);
        disturbed.push(meeting(1000)?);
    }
    undisturbed.sort();
    disturbed.sort();
    println!("undisturbed {undisturbed:.1?}, among strangers {disturbed:.1?}");
    ensure!(
        disturbed[4] < undisturbed[4] + Duration::from_secs(1),
        "undisturbed {undisturbed:?}, among strangers {disturbed:?}"
    );
    Ok(())
}

fn the_oldest_silent_stranger_makes_room() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 2, 0))?;
    let start = Instant::now();
    let strangers = (0..270).map(|_| stranger(&rank0, b"R"));
    let strangers = strangers.collect::<Result<Vec<_>>>()?;
    rank0.says("was silent while many others came")?;
    let mut closed = 0;
    // Long before their time is up.
    while closed < 14 {
        ensure!(
            start.elapsed() < Duration::from_secs(4),
            "{closed} were dropped"
        );
        closed = 0;
        for stream in &strangers {
            stream.set_nonblocking(true)?;
            closed += usize::from(stream.peek(&mut [0]).is_ok_and(|count| count == 0));
        }
    }
    ensure!(closed == 14, "{closed} were dropped");
    let others = rank0.others(2);
    all_have_it(rank0, others).map(drop)
}

fn tokens_differ_in_any_byte() -> Result<()> {
    let word = [b'x'; 128];
    let token = Token::new(std::str::from_utf8(&word)?)?;
    ensure!(token.is(&word));
    for place in 0..128 {
        for bit in 0..8 {
            let mut other = word;
            other[place] ^= 1 << bit;
            ensure!(!token.is(&other), "byte {place} is not compared");
        }
    }
    // A shorter one is not the beginning of a longer one.
    ensure!(!Token::new("ab")?.is(&Token::new("abc")?.bytes()));
    Ok(())
}

fn impostors_are_told_why() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 8, 0))?;
    let port = rank0.port;
    let other_job = Settings {
        token: Token::new("the word of that job")?,
        ..settings(1, 8, port)
    };
    let first = joins(settings(2, 8, port));
    // Rank 2 has come once a second one is refused.
    let mut second = String::new();
    let start = Instant::now();
    while !second.contains("already") {
        ensure!(start.elapsed() < AT_ONCE, "{second}");
        thread::sleep(Duration::from_millis(50));
        second = answer_to(&rank0, 2, 8)?;
    }
    for (settings, reason) in [
        (other_job, "rank 1 of 8: refused by rank 0 at 127.0.0.1:"),
        (settings(2, 8, port), "rank 2 is here already"),
        (
            settings(1, 4, port),
            "it is of a world of 4, and rank 0 of one of 8",
        ),
        (
            settings(9, 16, port),
            "it is of a world of 16, and rank 0 of one of 8",
        ),
    ] {
        let start = Instant::now();
        let error = error(join(&settings, &mut |_| {}))?;
        ensure!(error.contains(reason), "no {reason:?} in {error}");
        ensure!(start.elapsed() < AT_ONCE);
        let reason = error.rsplit(": ").next().unwrap_or_default();
        rank0.says(&format!("is refused: {reason}"))?;
    }
    rank0.says("it has another job's token")?;
    for rank in [0, 8, u32::MAX] {
        let reason = answer_to(&rank0, rank, 8)?;
        ensure!(
            reason.contains(&format!("there is no rank {rank} to come")),
            "{reason}"
        );
    }
    let others = (1..8).filter(|rank| *rank != 2);
    let mut others: Vec<_> = others.map(|rank| joins(settings(rank, 8, port))).collect();
    others.push(first);
    all_have_it(rank0, others).map(drop)
}

/// What is said to one who comes as `rank`.
fn answer_to(rank0: &Rank0, rank: u32, world: u32) -> Result<String> {
    let stream = stranger(rank0, &frame(1, 1, rank, world, WORD.as_bytes()))?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut answer = [0; 152];
    (&stream).read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[24..])
        .trim_end_matches('\0')
        .to_owned())
}

fn a_slow_rank_is_let_in() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 3, 0))?;
    let mut slow = stranger(&rank0, b"")?;
    let good = joins(settings(1, 3, rank0.port));
    for byte in frame(1, 1, 2, 3, WORD.as_bytes()) {
        slow.write_all(&[byte])?;
        thread::sleep(Duration::from_millis(5));
    }
    let mut received = [0; 2 * 152];
    slow.read_exact(&mut received)?;
    ensure!(received[152..] == frame(1, 3, 0, 3, &ID));
    slow.write_all(&frame(1, 4, 2, 3, b""))?;
    slow.read_exact(&mut received[..152])?;
    ensure!(received[..152] == frame(1, 5, 0, 3, b""));
    all_have_it(rank0, vec![good]).map(drop)
}

fn a_rank_may_come_again() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 3, 0))?;
    let mut gone = stranger(&rank0, &frame(1, 1, 2, 3, WORD.as_bytes()))?;
    let mut welcome = [0; 152];
    gone.read_exact(&mut welcome)?;
    drop(gone);
    let others = rank0.others(3);
    all_have_it(rank0, others).map(drop)
}

fn missing_ranks_are_named_to_all() -> Result<()> {
    let deadline = Duration::from_secs(3);
    let short = |rank, world, port| Settings {
        deadline,
        ..settings(rank, world, port)
    };
    for (world, missing, named) in [
        (2, vec![1], "rank 1 of 2 did not come within 3s"),
        (8, vec![3, 5], "ranks 3 and 5 of 8 did not come within 3s"),
        (
            8,
            vec![1, 2, 7],
            "ranks 1, 2 and 7 of 8 did not come within 3s",
        ),
        (
            40,
            (2..40).collect(),
            "ranks 2, 3, 4, 5, 6, 7, 8, 9 and 30 more of 40 did not come",
        ),
    ] {
        let start = Instant::now();
        let rank0 = Rank0::start(short(0, world, 0))?;
        let come = (1..world).filter(|rank| !missing.contains(rank));
        let others: Vec<_> = come
            .map(|rank| joins(short(rank, world, rank0.port)))
            .collect();
        let port = rank0.port;
        let said = error(end(rank0.thread)?)?;
        ensure!(
            said.starts_with(&format!("rank 0 of {world}: {named}")),
            "{said}"
        );
        for other in others {
            let said = error(end(other)?)?;
            ensure!(
                said.contains("rank 0 failed") && said.contains(named),
                "{said}"
            );
        }
        let time = start.elapsed();
        ensure!(time >= deadline && time < deadline + AT_ONCE, "{time:?}");
        // Who comes too late finds nobody, until its own deadline.
        let late = Settings {
            deadline: Duration::from_millis(200),
            ..settings(1, world, port)
        };
        let said = error(join(&late, &mut |_| {}))?;
        ensure!(
            said.contains("rank 0 was not reached at 127.0.0.1:"),
            "{said}"
        );
    }

    let rank0 = Rank0::start(short(0, 3, 0))?;
    let mut gone = stranger(&rank0, &frame(1, 1, 2, 3, WORD.as_bytes()))?;
    gone.read_exact(&mut [0; 152])?;
    drop(gone);
    let said = error(end(rank0.thread)?)?;
    let named = "rank 1 of 3 did not come, and rank 2 of 3 came and left again within 3s";
    ensure!(said.contains(named), "{said}");
    Ok(())
}

fn a_failure_of_rank_0_reaches_all() -> Result<()> {
    let start = Instant::now();
    let rank0 = Rank0::with(settings(0, 4, 0), || bail!("there is no device"))?;
    let others = rank0.others(4);
    let said = error(end(rank0.thread)?)?;
    ensure!(said == "rank 0 of 4: no id: there is no device", "{said}");
    for other in others {
        let said = error(end(other)?)?;
        ensure!(
            said.ends_with("rank 0 failed: no id: there is no device"),
            "{said}"
        );
    }

    let rank0 = Rank0::with(settings(0, 4, 0), || panic!("on purpose"))?;
    let others = rank0.others(4);
    ensure!(rank0.thread.join().is_err());
    for other in others {
        let said = error(end(other)?)?;
        ensure!(
            said.contains("was there, but has gone before all had met"),
            "{said}"
        );
    }
    ensure!(start.elapsed() < AT_ONCE, "not told at once");
    Ok(())
}

fn a_rank_that_leaves_with_the_id_fails_all() -> Result<()> {
    let start = Instant::now();
    let rank0 = Rank0::start(settings(0, 3, 0))?;
    let good = joins(settings(1, 3, rank0.port));
    let mut bad = stranger(&rank0, &frame(1, 1, 2, 3, WORD.as_bytes()))?;
    let mut received = [0; 2 * 152];
    bad.read_exact(&mut received)?;
    drop(bad);
    let named = "rank 2 left before it had the id: it ";
    for thread in [rank0.thread, good] {
        let said = error(end(thread)?)?;
        ensure!(said.contains(named), "{said}");
    }
    ensure!(start.elapsed() < AT_ONCE, "not told at once");
    Ok(())
}

fn a_rank_that_is_silent_with_the_id_fails_all() -> Result<()> {
    let deadline = Duration::from_secs(1);
    let rank0 = Rank0::start(Settings {
        deadline,
        ..settings(0, 3, 0)
    })?;
    let good = joins(settings(1, 3, rank0.port));
    let silent = stranger(&rank0, &frame(1, 1, 2, 3, WORD.as_bytes()))?;
    for thread in [rank0.thread, good] {
        let said = error(end(thread)?)?;
        ensure!(
            said.contains("rank 2 did not take the id within 1s"),
            "{said}"
        );
    }
    drop(silent);
    Ok(())
}

/// Whoever answers, what it says cannot play with the terminal.
fn words_of_others_are_fit_to_print() -> Result<()> {
    let impostor = TcpListener::bind((LOCAL, 0))?;
    let settings = settings(1, 2, impostor.local_addr()?.port());
    let served = thread::spawn(move || -> Result<()> {
        let (mut stream, _) = impostor.accept()?;
        stream.write_all(&frame(1, 7, 0, 2, b"\x1b[2Jnever\r\nmind\xff"))?;
        stream.read_exact(&mut [0; 152])?;
        Ok(())
    });
    let said = error(join(&settings, &mut |_| {}))?;
    ensure!(said.ends_with(": ?[2Jnever??mind\u{fffd}"), "{said:?}");
    end(served)?
}

fn a_silent_rank_0_ends_at_the_deadline() -> Result<()> {
    let silent = TcpListener::bind((LOCAL, 0))?;
    let deadline = Duration::from_millis(800);
    let settings = Settings {
        deadline,
        ..settings(3, 8, silent.local_addr()?.port())
    };
    let start = Instant::now();
    let said = error(join(&settings, &mut |_| {}))?;
    let time = start.elapsed();
    ensure!(
        said.starts_with("rank 3 of 8: rank 0 was not reached at 127.0.0.1:"),
        "{said}"
    );
    ensure!(
        said.contains("within 800ms") && said.contains("says nothing"),
        "{said}"
    );
    ensure!(time < deadline + AT_ONCE, "{time:?}");

    // One that lets the rank in, and then is silent.
    let silent = TcpListener::bind((LOCAL, 0))?;
    let settings = Settings {
        deadline,
        ..self::settings(3, 8, silent.local_addr()?.port())
    };
    let served = thread::spawn(move || -> Result<TcpStream> {
        let (mut stream, _) = silent.accept()?;
        stream.write_all(&frame(1, 2, 0, 8, b""))?;
        Ok(stream)
    });
    let start = Instant::now();
    let said = error(join(&settings, &mut |_| {}))?;
    ensure!(
        said.contains("is there, but not everybody came within 800ms"),
        "{said}"
    );
    ensure!(start.elapsed() < deadline + AT_ONCE);
    drop(end(served)?);
    Ok(())
}

fn nothing_secret_is_said() -> Result<()> {
    let shown = format!("{:?}", settings(0, 2, 1));
    ensure!(
        !shown.contains(WORD) && shown.contains("Token(..)"),
        "{shown}"
    );
    let rank0 = Rank0::with(settings(0, 2, 0), || {
        Ok(*b"SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__SECRET__")
    })?;
    let lines = rank0.lines.clone();
    let mut impostor = settings(1, 2, rank0.port);
    impostor.token = Token::new("another word")?;
    let mut said = error(join(&impostor, &mut |_| {}))?;
    let others = rank0.others(2);
    for thread in std::iter::once(rank0.thread).chain(others) {
        end(thread)??;
    }
    said += &lines.lock().unwrap().join("\n");
    for secret in [WORD, "another word", "SECRET"] {
        ensure!(!said.contains(secret), "{said}");
    }
    let long = error_of(Token::new(&"x".repeat(129)))?;
    ensure!(
        long == "a job token has 1 to 128 bytes, and this one 129",
        "{long}"
    );
    error_of(Token::new(""))?;
    Ok(())
}

fn error_of<T>(result: Result<T>) -> Result<String> {
    match result {
        Ok(_) => bail!("it was taken"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

fn a_port_in_use_is_named() -> Result<()> {
    let holder = TcpListener::bind((LOCAL, 0))?;
    let port = holder.local_addr()?.port();
    let start = Instant::now();
    let settings = settings(0, 4, port);
    let said = error(exchange(&settings, || Ok(ID), &mut |_| {}))?;
    let expected = format!("rank 0 of 4: cannot listen on 127.0.0.1:{port}: port {port} is in use");
    ensure!(said.starts_with(&expected), "{said}");
    ensure!(start.elapsed() < AT_ONCE);

    // An address of another machine (one for documentation).
    let master = Master::new("192.0.2.77", 29500)?;
    let settings = Settings { master, ..settings };
    let said = error(exchange(&settings, || Ok(ID), &mut |_| {}))?;
    let expected = "cannot listen on 192.0.2.77:29500, which must be an address of the machine that rank 0 runs on";
    ensure!(said.contains(expected), "{said}");
    Ok(())
}

fn rank_0_picks_a_port() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 2, 0))?;
    ensure!(rank0.port != 0);
    rank0.says(&format!(
        "rank 0 of 2: listens on 127.0.0.1:{}, which this machine alone",
        rank0.port
    ))?;
    let said = error(join(&settings(1, 2, 0), &mut |_| {}))?;
    ensure!(
        said.starts_with("rank 1 of 2: port 0 lets rank 0 pick one"),
        "{said}"
    );
    let others = rank0.others(2);
    all_have_it(rank0, others).map(drop)
}

fn a_port_is_free_again_at_once() -> Result<()> {
    let mut port = 0;
    for _ in 0..5 {
        let rank0 = Rank0::start(settings(0, 3, port))?;
        port = rank0.port;
        let others = rank0.others(3);
        // Rank 0 closes its connections first, which keeps the port busy for a program that does not reuse it.
        let mut all = all_have_it(rank0, others)?;
        all.reverse();
        while all.pop().is_some() {}
    }
    Ok(())
}

fn addresses_are_read_as_written() -> Result<()> {
    for (text, host, port) in [
        ("127.0.0.1:29500", "127.0.0.1", 29500),
        ("[::1]:29500", "::1", 29500),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("node-3.cluster:65535", "node-3.cluster", 65535),
        ("localhost:0", "localhost", 0),
    ] {
        let master = Master::parse(text)?;
        ensure!(
            (master.host.as_str(), master.port) == (host, port),
            "{text}"
        );
        ensure!(master.to_string() == text);
    }
    for (text, reason) in [
        ("", "'' is not a port"),
        ("localhost", "'' is not a port"),
        ("localhost:", "'' is not a port"),
        (":29500", "'' is neither a host's name nor an address"),
        ("localhost:abc", "'abc' is not a port"),
        ("localhost:70000", "'70000' is not a port"),
        ("localhost:-1", "'-1' is not a port"),
        ("localhost:+1", "'+1' is not a port"),
        ("::1:29500", "an IPv6 address stands in brackets"),
        ("::1", "an IPv6 address stands in brackets"),
        ("fe80::1:29500", "an IPv6 address stands in brackets"),
        ("[::1]", "an IPv6 address stands in brackets"),
        ("[node]:1:2", "an IPv6 address stands in brackets"),
        ("a b:1", "is neither a host's name nor an address"),
        ("http://node:1", "an IPv6 address stands in brackets"),
    ] {
        let said = error_of(Master::parse(text))?;
        ensure!(said.contains(reason), "{text}: {said}");
    }
    for host in ["::1", "[::1]"] {
        ensure!(Master::new(host, 1)?.to_string() == "[::1]:1");
    }
    error_of(Master::new("1::2::3", 1))?;
    Ok(())
}

/// Rank 0 and two others at an address of this machine, with a port that rank 0 picks.
fn meet_at(master: &Master) -> Result<()> {
    let at = |rank, port| Settings {
        master: Master {
            port,
            ..master.clone()
        },
        ..settings(rank, 3, 0)
    };
    let rank0 = Rank0::start(at(0, 0))?;
    let others = [1, 2].map(|rank| joins(at(rank, rank0.port)));
    all_have_it(rank0, others.into()).map(drop)
}

fn a_name_that_does_not_exist() -> Result<()> {
    for rank in [0, 1] {
        let deadline = Duration::from_secs(1);
        let settings = Settings {
            master: Master::new("no-such-machine.invalid", 29500)?,
            deadline,
            ..settings(rank, 2, 0)
        };
        let start = Instant::now();
        let mut lines = Vec::new();
        let said = error(exchange(&settings, || Ok(ID), &mut |line| {
            lines.push(line.to_owned())
        }))?;
        ensure!(said.contains("no-such-machine.invalid"), "{said}");
        ensure!(said.starts_with(&format!("rank {rank} of 2: ")), "{said}");
        ensure!(start.elapsed() < deadline + AT_ONCE);
        // Said when it is first seen, and not each time.
        ensure!(lines.len() < 4, "{lines:#?}");
    }
    Ok(())
}

fn all_addresses_are_tried() -> Result<()> {
    let silent = TcpListener::bind((LOCAL, 0))?;
    let closes = TcpListener::bind((LOCAL, 0))?;
    let speaks = TcpListener::bind((LOCAL, 0))?;
    let [silent_at, closes_at, speaks_at] =
        [&silent, &closes, &speaks].map(|listener| listener.local_addr().unwrap());
    thread::spawn(move || while closes.accept().is_ok() {});
    thread::spawn(move || {
        while let Ok((mut stream, _)) = speaks.accept() {
            let _ = stream.write_all(&[b'x'; 500]);
        }
    });
    let refuses_at = TcpListener::bind((LOCAL, 0))?.local_addr()?;
    // Nor is rank 0 there from the start.
    let port = TcpListener::bind((LOCAL, 0))?.local_addr()?.port();
    let good_at = SocketAddr::new(LOCAL.parse()?, port);
    let other = thread::spawn(move || {
        let mut asked = 0;
        let addresses = |_| {
            asked += 1;
            match asked {
                1 => Err("no address yet".to_owned()),
                _ => Ok(vec![refuses_at, closes_at, speaks_at, silent_at, good_at]),
            }
        };
        join_at(&settings(1, 2, port), addresses, &mut |_| {})
    });
    thread::sleep(Duration::from_millis(300));
    let rank0 = Rank0::start(settings(0, 2, port))?;
    all_have_it(rank0, vec![other])?;
    drop(silent);
    Ok(())
}

fn only_the_masters_address_is_bound() -> Result<()> {
    let rank0 = Rank0::start(settings(0, 2, 0))?;
    // All of 127.0.0.0/8 is this machine.
    let elsewhere = TcpStream::connect(("127.0.0.2", rank0.port));
    ensure!(elsewhere.is_err(), "it listens on every interface");
    let others = rank0.others(2);
    all_have_it(rank0, others).map(drop)
}

fn every_interface_if_asked() -> Result<()> {
    let rank0 = Rank0::start(Settings {
        listen_on: Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        ..settings(0, 3, 0)
    })?;
    let others = ["127.0.0.2", "::1"]
        .into_iter()
        .zip(1..)
        .map(|(host, rank)| {
            joins(Settings {
                master: Master::new(host, rank0.port).unwrap(),
                ..settings(rank, 3, 0)
            })
        });
    let others = others.collect();
    all_have_it(rank0, others).map(drop)
}

/// Ranks that watch each other, and what each hears of a loss.
fn watched(world: u32) -> Result<Vec<(rendezvous::Watch, mpsc::Receiver<String>)>> {
    let rank0 = Rank0::start(settings(0, world, 0))?;
    let others = rank0.others(world);
    let mut all = Vec::new();
    for members in all_have_it(rank0, others)? {
        let (send, receive) = mpsc::channel();
        let watch = members.watch(move |cause| {
            let _ = send.send(cause.to_owned());
        })?;
        all.push((watch, receive));
    }
    Ok(all)
}

fn a_death_is_named_to_all() -> Result<()> {
    for dead in 0..4 {
        let mut all = watched(4)?;
        // As the kernel does, when a process dies.
        drop(all.remove(dead));
        for (watch, heard) in all {
            let said = heard.recv_timeout(AT_ONCE)?;
            ensure!(
                said == format!("rank {dead} of 4 has died, or left without a word"),
                "{said}"
            );
            watch.leave();
        }
    }
    Ok(())
}

fn a_death_is_the_cause_of_failures() -> Result<()> {
    for dead in 1..4 {
        let mut all = watched(4)?;
        let last = all.remove(dead);
        // Those that fail by a death are heard before it.
        let failing = all
            .into_iter()
            .map(|(watch, _)| thread::spawn(move || watch.fail("a peer is gone")));
        let failing: Vec<_> = failing.collect();
        thread::sleep(Duration::from_millis(200));
        drop(last);
        for thread in failing {
            let said = end(thread)?.context("nothing was heard")?;
            ensure!(
                said.starts_with(&format!("rank {dead} of 4 has died")),
                "{said}"
            );
        }
    }

    // A failure without a death is the cause itself.
    let mut all = watched(4)?;
    let (failing, _) = all.remove(2);
    let failing = thread::spawn(move || failing.fail("element 3 is wrong"));
    for (watch, heard) in all {
        let said = heard.recv_timeout(AT_ONCE)?;
        ensure!(said == "rank 2 of 4 failed: element 3 is wrong", "{said}");
        watch.leave();
    }
    end(failing)?;
    Ok(())
}

fn leaving_in_peace_is_no_loss() -> Result<()> {
    let mut all = watched(4)?;
    // Rank 0 last, then first.
    for order in [[3, 2, 1, 0], [0, 0, 0, 0]] {
        let mut heard = Vec::new();
        for next in order {
            let (watch, receive) = all.remove(next);
            watch.leave();
            heard.push(receive);
            thread::sleep(Duration::from_millis(50));
        }
        for heard in heard {
            ensure!(heard.try_recv().is_err(), "a loss was heard of");
        }
        all = watched(4)?;
    }
    Ok(())
}

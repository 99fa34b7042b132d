//! Ranks of other processes.
//!
//! One process does the work of a communicator: the one that made its unique id, or that of the first
//! rank, where the maker has no rank, and of a child communicator. Its ranks meet as they do without others. A rank of another
//! process has a connection to it, on which it asks for what it would ask there itself, in [`Remote`],
//! and the process does that in its name, in [`host`](self). So there is one order of things, and one
//! arithmetic.
//!
//! Large device memory lies in a file without a name, one a process, which each sends to those that
//! work for it: they map what a call names, and read and write it in place. What a call names of other
//! memory is copied to such a place before it and back after it.
//!
//! Sockets have names that are in no folder. With a process all of that is gone, however it ends, and
//! its peers see that by the end of the connection.
//!
//! | file | holds |
//! |---|---|
//! | `wire` | a connection, and the form of what goes over it |
//! | `host` | the side that does the work |
//! | `remote` | the side that asks for it |

mod host;
mod remote;
mod wire;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use super::exchange::Exchange;

pub(super) use host::{Abroad, Mapped, hears, is_mapped};
pub(super) use remote::{Remote, use_up};
pub(super) use wire::Wire;
use wire::Writer;

/// What a process is known by.
pub(super) type Token = [u8; 16];

/// This process's token.
pub(super) fn own() -> Token {
    static TOKEN: OnceLock<Token> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut token = [0; 16];
        for bytes in token.chunks_exact_mut(8) {
            // A fresh hasher's keys are random, but those of a thread that has had some before a fork
            // are the same in all of its forks.
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u32(std::process::id());
            hasher.write_u128(now.as_ref().map_or(0, |now| now.as_nanos()));
            bytes.copy_from_slice(&hasher.finish().to_ne_bytes());
        }
        token
    })
}

/// Where a communicator's ranks are, and what they know it by among themselves.
#[derive(Debug)]
pub(super) struct Atlas {
    pub(super) key: Vec<u8>,
    /// The process of each rank.
    pub(super) homes: Vec<Token>,
}

impl Atlas {
    /// That of the child that some of the ranks form for the `times`-th time.
    fn child(&self, members: &[usize], times: u64) -> Self {
        let mut key = self.key.clone();
        key.extend((members.len() as u64).to_ne_bytes());
        key.extend(
            members
                .iter()
                .flat_map(|member| (*member as u64).to_ne_bytes()),
        );
        key.extend(times.to_ne_bytes());
        let homes = members.iter().map(|member| self.homes[*member]);
        Self {
            key,
            homes: homes.collect(),
        }
    }
}

/// As [`Exchange::derive`], for ranks in several processes.
pub(super) fn derive(
    parent: &Atlas,
    rank: usize,
    members: &[usize],
    times: u64,
) -> Arc<dyn Exchange> {
    let atlas = Arc::new(parent.child(members, times));
    let rank = members
        .iter()
        .position(|member| *member == rank)
        .unwrap_or(0);
    match atlas.homes[0] == own() {
        true => host::take(&atlas),
        false => Remote::attach(&atlas, rank),
    }
}

/// What a rank says of itself on a new connection, to join the ranks that hold the same ids, to take
/// its place in a child communicator, or to use up an id that goes with others.
const JOIN: u8 = 1;
const ATTACH: u8 = 2;
const USE_UP: u8 = 3;
/// What it asks for then.
const REGION: u8 = 10;
const START: u8 = 11;
const SKIP: u8 = 12;
const GATHER: u8 = 13;
const CONNECT: u8 = 14;
const ABORT: u8 = 15;
const RESTORE: u8 = 16;
const LEAVE: u8 = 17;
/// What it is told.
const DONE: u8 = 20;
const ANSWER: u8 = 21;
const ABORTED: u8 = 22;
const LOST: u8 = 23;
const ATLAS: u8 = 24;
const HOST: u8 = 25;
const MOVED: u8 = 26;

/// What every rank of another process is told.
pub(super) enum Notice<'a> {
    Lost(&'a str),
    Atlas(&'a Atlas),
    /// The process of the first rank does the work, not this one.
    Moved(&'a Atlas),
    /// The first rank that has come of those of the process that does the work.
    Host(usize),
}

impl Notice<'_> {
    pub(super) fn frame(&self) -> Writer {
        match self {
            Self::Lost(reason) => Writer::new(LOST).bytes(reason.as_bytes()),
            Self::Atlas(atlas) => write_atlas(Writer::new(ATLAS), atlas),
            Self::Moved(atlas) => write_atlas(Writer::new(MOVED), atlas),
            Self::Host(rank) => Writer::new(HOST).number(*rank as u64),
        }
    }
}

fn write_atlas(frame: Writer, atlas: &Atlas) -> Writer {
    frame
        .bytes(&atlas.key)
        .list(&atlas.homes, |frame, home| frame.fixed(home))
}

fn read_atlas(frame: &mut wire::Reader<'_>) -> Option<Atlas> {
    Some(Atlas {
        key: frame.bytes()?.to_vec(),
        homes: frame.list(wire::Reader::fixed)?,
    })
}

/// Why a communicator without this rank is lost.
fn gone(rank: usize) -> String {
    format!("rank {rank} is gone: its process has ended, or was killed")
}

/// An address that no memory has, in any process.
fn nowhere(address: u64) -> u64 {
    address | 1 << 63
}

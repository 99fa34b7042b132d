//! Unique ids, and the places where the ranks that hold one meet.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::error::{Outcome, lock, refuse};
use super::exchange::{Exchange, InProcess};
use super::processes::{self, Abroad, Atlas, Remote, Token, Wire};
use crate::nccl::{NCCL_UNIQUE_ID_BYTES, NcclResult, NcclUniqueId};

type Bytes = [u8; NCCL_UNIQUE_ID_BYTES];

/// Ids that were made and are not used up.
static IDS: Mutex<BTreeMap<Bytes, Option<Meeting>>> = Mutex::new(BTreeMap::new());

/// Ranks that have come with one id.
struct Meeting {
    ids: Vec<Bytes>,
    exchange: Arc<InProcess>,
    /// The processes of those who are there.
    homes: Vec<Option<Token>>,
    /// Some are of other processes.
    abroad: bool,
}

/// A rank that comes to a meeting.
pub(super) struct Comer<'a> {
    /// Its process.
    pub(super) token: Token,
    /// What connects it, if that is another one.
    pub(super) connection: Option<(&'a Arc<Wire>, &'a Arc<Abroad>)>,
}

/// A rank's place at a meeting.
pub(super) struct Seat {
    pub(super) exchange: Arc<dyn Exchange>,
    /// What all ranks of the communicator know it by.
    pub(super) hash: u64,
}

/// What every id begins with.
const MAGIC: &[u8; 8] = b"metrale\0";
/// Where in an id its maker's token is.
const MAKER: usize = 24;

/// A new id, which ranks of other processes can come with as well.
pub(super) fn create() -> NcclUniqueId {
    // Where they cannot, those of this process still can.
    let _ = processes::hears();
    create_here()
}

/// A new id for ranks of this process.
pub(super) fn create_here() -> NcclUniqueId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut internal = [0; NCCL_UNIQUE_ID_BYTES];
    internal[..8].copy_from_slice(MAGIC);
    internal[8..16].copy_from_slice(&COUNT.fetch_add(1, Relaxed).to_ne_bytes());
    internal[16..24].copy_from_slice(&u64::from(std::process::id()).to_ne_bytes());
    internal[MAKER..40].copy_from_slice(&processes::own());
    for bytes in internal[40..].chunks_exact_mut(8) {
        // A fresh hasher's keys are random.
        bytes.copy_from_slice(&RandomState::new().build_hasher().finish().to_ne_bytes());
    }
    lock(&IDS).insert(internal, None);
    NcclUniqueId { internal }
}

/// The process that made an id, if that is another one.
fn other_maker(id: &Bytes) -> Option<Token> {
    let token = id[MAKER..].first_chunk()?;
    (id.starts_with(MAGIC) && *token != processes::own()).then_some(*token)
}

/// Uses up an id that goes with others. False if it was used before, or never made.
pub(super) fn use_up(id: &Bytes) -> bool {
    let mut table = lock(&IDS);
    let good = matches!(table.get(id), Some(None));
    if good {
        table.remove(id);
    }
    good
}

/// Takes `rank`'s place among the `nranks` ranks that come with these ids, at least one, without
/// waiting for the others.
///
/// An id that was used up or never made, one that comes with different numbers of ranks, and a rank
/// that comes twice are a `RemoteError`, for the ranks that are there already as well. NCCL tries
/// for a minute to reach the one that made a used id, and leaves ranks that have come hanging when
/// a later one does not fit.
pub(super) fn join(ids: &[NcclUniqueId], nranks: usize, rank: usize) -> Outcome<Seat> {
    let ids: Vec<Bytes> = ids.iter().map(|id| id.internal).collect();
    if ids[0] == [0; NCCL_UNIQUE_ID_BYTES] {
        return Err(refuse(
            NcclResult::InternalError,
            format_args!("Bootstrap : the unique id is all zero"),
        ));
    }
    let comer = Comer {
        token: processes::own(),
        connection: None,
    };
    let exchange = match other_maker(&ids[0]) {
        Some(maker) => {
            let joined = Remote::join(maker, &ids, nranks, rank);
            joined.map(|remote| remote as Arc<dyn Exchange>)
        }
        None => {
            let taken = take_place(&ids, nranks, rank, &comer);
            taken.map(|exchange| exchange as Arc<dyn Exchange>)
        }
    };
    match exchange {
        Ok(exchange) => Ok(Seat {
            exchange,
            hash: hash(&[&ids[0]]),
        }),
        Err(reason) => Err(refuse(NcclResult::RemoteError, format_args!("{reason}"))),
    }
}

/// Takes a rank's place at a meeting in this process. An error is why there is none.
pub(super) fn take_place(
    ids: &[Bytes],
    nranks: usize,
    rank: usize,
    comer: &Comer<'_>,
) -> Result<Arc<InProcess>, String> {
    let refused = |reason: &str| Err(format!("Bootstrap : {reason}"));
    let mut table = lock(&IDS);
    if !table.contains_key(&ids[0]) {
        return refused("connection refused: the unique id was used before, or never made");
    }
    let others = &ids[1..];
    let first = matches!(table.get(&ids[0]), Some(None));
    if first {
        let mut here = others.iter().filter(|id| other_maker(id).is_none());
        if here.any(|id| !matches!(table.get(id), Some(None))) {
            return refused("connection refused: one of the unique ids was used before");
        }
        for id in others {
            table.remove(id);
        }
    }
    let meeting = table
        .entry(ids[0])
        .or_default()
        .get_or_insert_with(|| Meeting {
            ids: ids.to_vec(),
            exchange: InProcess::new(nranks),
            homes: vec![None; nranks],
            abroad: false,
        });
    let exchange = meeting.exchange.clone();
    let fits = meeting.homes.len() == nranks && meeting.ids == ids && meeting.homes[rank].is_none();
    if !fits {
        table.remove(&ids[0]);
        drop(table);
        let reason = "the ranks that came with one unique id do not fit together: their numbers of \
                      ranks differ, or a rank came twice";
        exchange.lose(&format!("Bootstrap : {reason}"));
        return refused(reason);
    }
    meeting.homes[rank] = Some(comer.token);
    match comer.connection {
        Some((wire, abroad)) => {
            meeting.abroad = true;
            exchange.seat(rank, wire, abroad);
        }
        None => exchange.seat_own(rank),
    }
    if meeting.homes.iter().all(Option::is_some) {
        if meeting.abroad {
            exchange.chart(Arc::new(Atlas {
                key: ids[0].to_vec(),
                homes: meeting.homes.iter().copied().flatten().collect(),
            }));
        }
        table.remove(&ids[0]);
    }
    drop(table);
    if first {
        // Other processes are asked with no lock held; the ranks that come meanwhile are told.
        let mut elsewhere = others.iter().filter_map(|id| Some((other_maker(id)?, id)));
        if elsewhere.any(|(maker, id)| !processes::use_up(maker, id)) {
            let reason =
                "one of the unique ids was used before, or the process that made it is gone";
            exchange.lose(&format!("Bootstrap : {reason}"));
            return refused(reason);
        }
    }
    Ok(exchange)
}

/// A number that all ranks compute alike (FNV-1a).
pub(super) fn hash(parts: &[&[u8]]) -> u64 {
    parts
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(result: Outcome<Seat>) -> NcclResult {
        result.err().unwrap_or(NcclResult::Success)
    }

    #[test]
    fn an_id_serves_once() {
        let id = create();
        assert_ne!(id, create());
        for rank in 0..3 {
            assert_eq!(code(join(&[id], 3, rank)), NcclResult::Success);
        }
        assert_eq!(code(join(&[id], 3, 0)), NcclResult::RemoteError);
    }

    #[test]
    fn ranks_that_do_not_fit_break_up() {
        for (nranks, rank) in [(3, 1), (2, 0)] {
            let id = create();
            let seat = join(&[id], 2, 0).unwrap_or_else(|code| panic!("{code:?}"));
            assert_eq!(code(join(&[id], nranks, rank)), NcclResult::RemoteError);
            assert!(seat.exchange.lost().is_some());
            assert_eq!(code(join(&[id], 2, 1)), NcclResult::RemoteError);
        }
    }

    #[test]
    fn several_ids_are_used_up_together() {
        let ids = [create(), create()];
        assert_eq!(code(join(&ids, 2, 0)), NcclResult::Success);
        assert_eq!(code(join(&ids[1..], 1, 0)), NcclResult::RemoteError);
        assert_eq!(code(join(&ids, 2, 1)), NcclResult::Success);
        assert_eq!(code(join(&ids[..1], 1, 0)), NcclResult::RemoteError);
    }

    #[test]
    fn ids_that_nobody_made() {
        let id = |byte| NcclUniqueId {
            internal: [byte; NCCL_UNIQUE_ID_BYTES],
        };
        assert_eq!(code(join(&[id(0)], 1, 0)), NcclResult::InternalError);
        assert_eq!(code(join(&[id(9)], 1, 0)), NcclResult::RemoteError);
    }
}

//! Unique ids, and the places where the ranks that hold one meet.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::error::{Outcome, lock, refuse};
use super::exchange::{Exchange, InProcess};
use crate::nccl::{NCCL_UNIQUE_ID_BYTES, NcclResult, NcclUniqueId};

type Bytes = [u8; NCCL_UNIQUE_ID_BYTES];

/// Ids that were made and are not used up.
static IDS: Mutex<BTreeMap<Bytes, Option<Meeting>>> = Mutex::new(BTreeMap::new());

/// Ranks that have come with one id.
struct Meeting {
    ids: Vec<Bytes>,
    exchange: Arc<InProcess>,
    here: Vec<bool>,
    failed: Arc<AtomicBool>,
}

/// A rank's place at a meeting.
pub(super) struct Seat {
    pub(super) exchange: Arc<dyn Exchange>,
    /// What all ranks of the communicator know it by.
    pub(super) hash: u64,
    failed: Arc<AtomicBool>,
}

impl Seat {
    /// Whether ranks that do not fit together have broken up the meeting.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(SeqCst)
    }
}

/// A new id.
pub(super) fn create() -> NcclUniqueId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut internal = [0; NCCL_UNIQUE_ID_BYTES];
    internal[..8].copy_from_slice(b"metrale\0");
    internal[8..16].copy_from_slice(&COUNT.fetch_add(1, Relaxed).to_ne_bytes());
    internal[16..24].copy_from_slice(&u64::from(std::process::id()).to_ne_bytes());
    for bytes in internal[24..].chunks_exact_mut(8) {
        // A fresh hasher's keys are random.
        bytes.copy_from_slice(&RandomState::new().build_hasher().finish().to_ne_bytes());
    }
    lock(&IDS).insert(internal, None);
    NcclUniqueId { internal }
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
    let remote_error = |reason: &str| {
        Err(refuse(
            NcclResult::RemoteError,
            format_args!("Bootstrap : {reason}"),
        ))
    };
    if ids[0] == [0; NCCL_UNIQUE_ID_BYTES] {
        return Err(refuse(
            NcclResult::InternalError,
            format_args!("Bootstrap : the unique id is all zero"),
        ));
    }
    let mut table = lock(&IDS);
    if !table.contains_key(&ids[0]) {
        return remote_error("connection refused: the unique id was used before, or never made");
    }
    let others = &ids[1..];
    if matches!(table.get(&ids[0]), Some(None)) {
        if others.iter().any(|id| !matches!(table.get(id), Some(None))) {
            return remote_error("connection refused: one of the unique ids was used before");
        }
        for id in others {
            table.remove(id);
        }
    }
    let meeting = table
        .entry(ids[0])
        .or_default()
        .get_or_insert_with(|| Meeting {
            ids: ids.clone(),
            exchange: InProcess::new(nranks),
            here: vec![false; nranks],
            failed: Arc::default(),
        });
    if meeting.here.len() != nranks || meeting.ids != ids || meeting.here[rank] {
        meeting.failed.store(true, SeqCst);
        let (exchange, here) = (meeting.exchange.clone(), std::mem::take(&mut meeting.here));
        table.remove(&ids[0]);
        drop(table);
        for rank in (0..here.len()).filter(|rank| here[*rank]) {
            exchange.abort(rank);
        }
        return remote_error(
            "the ranks that came with one unique id do not fit together: their numbers of ranks \
             differ, or a rank came twice",
        );
    }
    meeting.here[rank] = true;
    let seat = Seat {
        exchange: meeting.exchange.clone(),
        hash: hash(&[&ids[0]]),
        failed: meeting.failed.clone(),
    };
    if meeting.here.iter().all(|here| *here) {
        table.remove(&ids[0]);
    }
    Ok(seat)
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
            assert!(seat.failed());
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

//! How communicators are made, from ids and from each other, and how they end.

use std::ptr;
use std::sync::Arc;

use super::comm::{self, Comm, Out};
use super::config::Config;
use super::error::{
    INVALID_ARGUMENT, INVALID_USAGE, Outcome, cuda_failure, lock, not_null, refuse,
};
use super::exchange::Topic;
use super::group;
use super::ids;
use super::job::Job;
use super::param;
use super::window::Memory;
use crate::cuda::{CuDevice, CuResult};
use crate::emulator::cuda;
use crate::nccl::{
    NCCL_REVOKE_DEFAULT, NCCL_SHRINK_ABORT, NCCL_SPLIT_NOCOLOR, NCCL_UNIQUE_ID_BYTES, NcclComm,
    NcclConfig, NcclUniqueId,
};

/// What a call to make a communicator from ids says.
pub(super) struct Init<'a> {
    pub(super) newcomm: *mut NcclComm,
    pub(super) nranks: i32,
    pub(super) rank: i32,
    pub(super) ids: &'a [NcclUniqueId],
    pub(super) config: *const NcclConfig,
}

impl Init<'_> {
    /// Makes one communicator, on the current device, in a group of its own, and says which.
    /// `within_group` tells whether that group is open already when the device is asked for,
    /// and left open if there is none.
    ///
    /// # Safety
    ///
    /// The pointers hold what `ncclCommInitRankScalable` asks for.
    pub(super) unsafe fn run(&self, within_group: bool) -> Outcome<Option<Arc<Comm>>> {
        let device = cuda::device_for_nccl().map_err(|code| {
            if within_group {
                group::leak();
            }
            cuda_failure(code)
        })?;
        let mut made = None;
        let outcome = group::within_or_started(|| {
            // SAFETY: the caller vouches for the pointers.
            made = Some(unsafe { self.collect(device) }?);
            Ok(())
        });
        outcome.map(|()| made)
    }

    /// Checks the arguments and collects the job.
    ///
    /// # Safety
    ///
    /// The pointers hold what `ncclCommInitRankScalable` asks for.
    unsafe fn collect(&self, device: CuDevice) -> Outcome<Arc<Comm>> {
        let Self {
            nranks, rank, ids, ..
        } = *self;
        if ids.is_empty() || ids.len() > usize::try_from(nranks).unwrap_or(0) {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!(
                    "improper usage of ncclCommInitRank: nId = {}, nranks={nranks}",
                    ids.len()
                ),
            ));
        }
        not_null(self.newcomm, "CommInitRank", "newcomm")?;
        let out = Out::new(self.newcomm);
        let made = (|| {
            if rank < 0 || rank >= nranks {
                return Err(refuse(
                    INVALID_ARGUMENT,
                    format_args!("Invalid rank requested : {rank}/{nranks}"),
                ));
            }
            // SAFETY: the caller vouches for it.
            let config = unsafe { Config::parse(self.config) }?;
            let comm = Comm::new(device, config, Arc::default(), Memory::default());
            let (ids, joining) = (ids.to_vec(), comm.clone());
            group::add_job(&comm, comm.job(move || join(&joining, &ids, nranks, rank)))?;
            Ok(comm)
        })();
        if let Ok(comm) = &made {
            comm.publish();
        }
        // SAFETY: not null, and the caller vouches for it.
        unsafe { out.set_comm(made.as_deref().ok()) };
        made
    }
}

/// Makes `comm` with the other ranks that hold the ids.
fn join(comm: &Comm, ids: &[NcclUniqueId], nranks: i32, rank: i32) -> Outcome {
    check_network(&comm.config)?;
    let seat = ids::join(ids, nranks as usize, rank as usize)?;
    comm.meet(&seat, rank as usize)
}

/// There is no network here, and so the two modules that NCCL itself has serve alike.
fn check_network(config: &Config) -> Outcome {
    let known =
        |name: &String| name.eq_ignore_ascii_case("Socket") || name.eq_ignore_ascii_case("IB");
    match &config.net_name {
        Some(name) if !known(name) => Err(refuse(
            INVALID_USAGE,
            format_args!("Failed to initialize any NET plugin: {name} is not known"),
        )),
        _ => Ok(()),
    }
}

/// `ncclCommInitAll`.
///
/// # Safety
///
/// `comms` is null or has room for `ndev` communicators, and `devices` is null or holds `ndev`
/// numbers.
pub(super) unsafe fn init_all(comms: *mut NcclComm, ndev: i32, devices: *const i32) -> Outcome {
    cuda::device_for_nccl().map_err(cuda_failure)?;
    not_null(comms, "CommInitAll", "comms")?;
    if ndev < 0 {
        return Err(refuse(
            INVALID_ARGUMENT,
            format_args!("Invalid device count requested : {ndev}"),
        ));
    }
    let total = cuda::device_count();
    let devices: Vec<CuDevice> = match devices.is_null() {
        true => (0..ndev).collect(),
        false => {
            // SAFETY: the caller vouches for so many numbers.
            let listed = unsafe { std::slice::from_raw_parts(devices, ndev as usize) };
            check_devices(listed, total)?;
            listed.to_vec()
        }
    };
    if ndev == 0 {
        // NCCL goes on, and reads the first communicator.
        return Err(refuse(
            INVALID_ARGUMENT,
            format_args!("ncclCommInitAll : no devices"),
        ));
    }
    let ids = [ids::create_here()];
    group::start();
    for (rank, &device) in (0..).zip(&devices) {
        if device >= total {
            // NCCL returns from within its group here.
            return Err(cuda_failure(CuResult::InvalidDevice));
        }
        let init = Init {
            // SAFETY: the caller vouches for so much room.
            newcomm: unsafe { comms.add(rank as usize) },
            nranks: ndev,
            rank,
            ids: &ids,
            config: ptr::null(),
        };
        // SAFETY: the one pointer that is not null is the caller's.
        if let Err(code) = unsafe { init.collect(device) } {
            group::record(code);
        }
    }
    group::end(None)
}

fn check_devices(devices: &[CuDevice], total: i32) -> Outcome {
    for (place, device) in devices.iter().enumerate() {
        if !(0..total).contains(device) {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!("Invalid device {device} (totalnDev={total})"),
            ));
        }
        if devices[..place].contains(device) && param::number("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 0
        {
            return Err(INVALID_USAGE);
        }
    }
    Ok(())
}

/// Which ranks a new communicator takes from an old one.
pub(super) enum Choice<'a> {
    /// Those of one color, by key.
    Split { color: i32, key: i32 },
    /// All but these.
    Shrink { excluded: &'a mut [i32], flags: i32 },
}

/// `ncclCommSplit` and `ncclCommShrink`, without their own group.
///
/// # Safety
///
/// The pointers hold what those functions ask for.
pub(super) unsafe fn descend(
    parent: NcclComm,
    choice: Choice<'_>,
    newcomm: *mut NcclComm,
    config: *const NcclConfig,
) -> Outcome {
    let call = match choice {
        Choice::Split { .. } => "ncclCommSplit",
        Choice::Shrink { .. } => "ncclCommShrink",
    };
    let parent = comm::find(parent, call)?;
    let aborts = matches!(choice, Choice::Shrink { flags, .. } if flags & NCCL_SHRINK_ABORT != 0);
    if aborts {
        parent.flag.raise();
        parent.flag.lower();
        parent.excuse();
    }
    not_null(newcomm, call, "newcomm")?;
    let out = Out::new(newcomm);
    let (rank, size) = (parent.shape().1, parent.shape().0 as usize);
    let mut members = Vec::new();
    let (color, key) = match choice {
        Choice::Split { color, key } => (color, key),
        Choice::Shrink { excluded, .. } => {
            if excluded.is_empty() {
                return Err(INVALID_ARGUMENT);
            }
            excluded.sort_unstable();
            if excluded.binary_search(&rank).is_ok() {
                return Err(INVALID_ARGUMENT);
            }
            members.extend((0..size).filter(|rank| !excluded.contains(&(*rank as i32))));
            if members.len() + excluded.len() != size {
                // NCCL goes on with a wrong number of ranks, and may hang.
                return Err(refuse(
                    INVALID_ARGUMENT,
                    format_args!("{call} : a rank to leave out is named twice, or does not exist"),
                ));
            }
            (0, rank)
        }
    };
    let shrinks = !members.is_empty();
    parent.ready()?;
    parent.link()?;
    // SAFETY: not null, and the caller vouches for it.
    unsafe { out.set_comm(None) };
    let child = match shrinks || color != NCCL_SPLIT_NOCOLOR {
        false => None,
        true => {
            let config = match config.is_null() {
                true => parent.config.inherited(),
                // SAFETY: the caller vouches for it.
                false => unsafe { Config::parse(config) }?,
            };
            let shares = !parent.is_revoked()
                && match shrinks {
                    true => !aborts && parent.config.shrink_share,
                    false => parent.config.split_share,
                };
            let (flag, memory) = match shares {
                true => (parent.flag.clone(), parent.memory.shared()),
                false => (Arc::default(), Memory::default()),
            };
            if shares && config.net_name != parent.config.net_name {
                return Err(refuse(
                    INVALID_USAGE,
                    format_args!(
                        "{call} : the network module differs from the parent's, whose resources \
                         are shared"
                    ),
                ));
            }
            Some(Comm::new(parent.device, config, flag, memory))
        }
    };
    let from = parent.clone();
    let job = parent.job(move || {
        let members = match shrinks {
            true => members,
            false => gather_color(&from, color, key)?,
        };
        let Some(child) = child else { return Ok(()) };
        check_network(&child.config)?;
        child.descend(&from, &members)?;
        child.publish();
        // SAFETY: the caller keeps the place until the job is through.
        unsafe { out.set_comm(Some(&child)) };
        Ok(())
    });
    group::add_job(&parent, job)
}

/// The ranks of one color, by key and then by rank. All ranks take part.
fn gather_color(parent: &Comm, color: i32, key: i32) -> Outcome<Vec<usize>> {
    let message = [color.to_ne_bytes(), key.to_ne_bytes()].concat();
    let number = |bytes: &[u8]| {
        bytes
            .first_chunk()
            .map_or(0, |bytes| i32::from_ne_bytes(*bytes))
    };
    let all = parent.all_gather(Topic::Split, &message)?;
    let mut ranks: Vec<usize> = (0..all.len())
        .filter(|rank| number(&all[*rank]) == color)
        .collect();
    ranks.sort_by_key(|rank| number(all[*rank].get(4..).unwrap_or_default()));
    Ok(ranks)
}

/// `ncclCommGetUniqueId`.
pub(super) fn growth_id(comm: &Comm) -> NcclUniqueId {
    let id = ids::create();
    *lock(&comm.growth) = Some(id);
    id
}

/// `ncclCommGrow` after its first checks, without its own group.
///
/// # Safety
///
/// The pointers hold what that function asks for, and `newcomm` is not null.
pub(super) unsafe fn grow(
    parent: NcclComm,
    nranks: i32,
    id: *const NcclUniqueId,
    rank: i32,
    newcomm: *mut NcclComm,
    config: *const NcclConfig,
) -> Outcome {
    let call = "ncclCommGrow";
    let refused = |reason| Err(refuse(INVALID_ARGUMENT, reason));
    // SAFETY: the caller vouches for it.
    let id = (!id.is_null()).then(|| unsafe { id.read() });
    let parent = match parent.is_null() {
        true => None,
        false => Some(comm::find(parent, call)?),
    };
    if let Some(parent) = &parent {
        parent.ready()?;
        parent.link()?;
        if rank != -1 {
            return refused(format_args!(
                "{call}: existing ranks must pass rank=-1, got {rank}"
            ));
        }
    } else {
        if rank < 0 {
            return refused(format_args!(
                "{call}: new ranks must pass valid rank >= 0, got {rank}"
            ));
        }
        if id.is_none() {
            return refused(format_args!(
                "{call}: new ranks must pass non-NULL uniqueId"
            ));
        }
        if rank >= nranks {
            return refused(format_args!(
                "{call}: new rank {rank} exceeds total ranks {nranks}"
            ));
        }
    }
    let config = match &parent {
        Some(parent) if config.is_null() => parent.config.inherited(),
        // SAFETY: the caller vouches for it.
        _ => unsafe { Config::parse(config) }?,
    };
    let (device, rank) = match &parent {
        Some(parent) => (parent.device, parent.shape().1),
        None => (cuda::device_for_nccl().map_err(cuda_failure)?, rank),
    };
    let comm = Comm::new(device, config, Arc::default(), Memory::default());
    let joining = comm.clone();
    let job = comm.job(move || {
        let id = match &parent {
            Some(parent) => share_growth_id(&joining, parent, id)?,
            None => id.ok_or(INVALID_ARGUMENT)?,
        };
        join(&joining, &[id], nranks, rank)
    });
    group::add_job(&comm, job)?;
    comm.publish();
    // SAFETY: not null, and the caller vouches for it.
    unsafe { Out::new(newcomm).set_comm(Some(&comm)) };
    Ok(())
}

/// The id with which the ranks of `parent` grow: one of them has made it.
fn share_growth_id(
    comm: &Comm,
    parent: &Comm,
    given: Option<NcclUniqueId>,
) -> Outcome<NcclUniqueId> {
    let made = lock(&parent.growth).take();
    let message = given.or(made).map_or(Vec::new(), |id| id.internal.to_vec());
    // Only the parent's abort ends this.
    let all = comm.parked(|| parent.all_gather(Topic::Grow, &message))?;
    let id = all
        .iter()
        .find_map(|message| message.first_chunk::<NCCL_UNIQUE_ID_BYTES>());
    match id {
        Some(internal) => Ok(NcclUniqueId {
            internal: *internal,
        }),
        // NCCL waits for one without end.
        None => Err(refuse(
            INVALID_USAGE,
            format_args!("ncclCommGrow: no rank has called ncclCommGetUniqueId"),
        )),
    }
}

/// `ncclCommFinalize` of a communicator that is not null.
pub(super) fn finalize(handle: NcclComm) -> Outcome {
    let mut found = None;
    group::within_or_started(|| {
        let comm = comm::find(handle, "ncclCommFinalize")?;
        found = Some(comm.clone());
        let collect = || {
            comm.ready()?;
            comm.set_finalized()?;
            let finalized = comm.clone();
            let job = comm.job(move || finalized.synchronize(true));
            group::add_job(&comm, job)
        };
        collect().map_err(|code| comm.spoil(code))
    })?;
    found.map_or(Ok(()), |comm| comm.answer())
}

/// The job that ends a rank's membership.
fn end_of(comm: &Arc<Comm>) -> Job {
    let ended = comm.clone();
    Job {
        flag: None,
        run: Box::new(move || ended.reclaim()),
    }
}

/// `ncclCommDestroy` of a communicator that is not null.
pub(super) fn destroy(handle: NcclComm) -> Outcome {
    let comm = comm::find(handle, "ncclCommDestroy").inspect_err(|_| {
        // NCCL returns from within its group, here and where the communicator is not ready.
        if comm::was_there(handle) {
            group::leak();
        }
    })?;
    comm.set_destroying();
    comm.ready().inspect_err(|_| group::leak())?;
    group::within(|| group::add_job(&comm, end_of(&comm)))
}

/// `ncclCommAbort` of a communicator that is not null.
pub(super) fn abort(handle: NcclComm) -> Outcome {
    let comm = comm::find(handle, "ncclCommAbort")?;
    comm.set_destroying();
    comm.end_all();
    group::within(|| group::add_job(&comm, end_of(&comm)))
}

/// `ncclCommRevoke` of a communicator that is not null.
pub(super) fn revoke(handle: NcclComm, flags: i32) -> Outcome {
    let comm = comm::find(handle, "ncclCommRevoke")?;
    if flags != NCCL_REVOKE_DEFAULT {
        return Err(INVALID_ARGUMENT);
    }
    comm.set_revoked()?;
    comm.end_all();
    comm.excuse();
    group::within_or_started(|| {
        let revoked = comm.clone();
        // Nothing of it runs any more. What comes now are calls that make other communicators of
        // its ranks.
        let job = comm.job(move || {
            revoked.flag.lower();
            Ok(())
        });
        group::add_job(&comm, job).map_err(|code| comm.spoil(code))
    })?;
    comm.answer()
}

//! The communication backend of `examples/comm_backend`, on the emulator or on the GPUs that there are.
//!
//! Linked, there is a rank a GPU; `METRALE_TEST_RANKS_PER_GPU` asks for more (NCCL 2.30 or newer).

#[path = "../examples/comm_backend/comm.rs"]
mod comm;
#[path = "support/gated.rs"]
mod gated;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use comm::{Comm, run};
use libtest_mimic::Arguments;
use metrale_gpu_sys::cuda::{device_count, init};
use metrale_gpu_sys::nccl::{NcclError, NcclRedOp, NcclResult, unique_id, version};

/// Real GPUs connect for seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    let per_gpu = std::env::var("METRALE_TEST_RANKS_PER_GPU")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    if per_gpu > 1 {
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var("NCCL_MULTI_RANK_GPU_ENABLE", "1") };
    }
    let ranks = || -> Result<i32> {
        init()?;
        version()?;
        Ok(device_count()? * per_gpu)
    };
    let need = |wanted: i32| match ranks() {
        Ok(ranks) if ranks >= wanted => Ok(()),
        Ok(ranks) => Err(format!("needs {wanted} ranks, and there are {ranks}")),
        // A machine that must have a GPU fails, and does not pass over everything.
        Err(_) if std::env::var_os("METRALE_EXPECT_GPU").is_some() => Ok(()),
        Err(error) => Err(format!("needs {wanted} ranks: {}", gated::short(&error))),
    };
    let mut trials = Vec::new();
    for nranks in [1, 2, 4, 8] {
        trials.push(gated::trial(
            &format!("all_reduce_{nranks}"),
            &need(nranks),
            move || all_reduce(nranks),
        ));
        trials.push(gated::trial(
            &format!("broadcast_{nranks}"),
            &need(nranks),
            move || broadcast(nranks),
        ));
        trials.push(gated::trial(
            &format!("ring_{nranks}"),
            &need(nranks),
            move || ring(nranks),
        ));
    }
    trials.push(gated::trial("send_and_recv", &need(2), send_and_recv));
    trials.push(gated::trial(
        "a_peer_that_never_comes",
        &need(1),
        a_peer_that_never_comes,
    ));
    trials.push(gated::trial(
        "a_peer_that_gives_up",
        &need(2),
        a_peer_that_gives_up,
    ));
    let mut arguments = Arguments::from_args();
    // Several communicators on one GPU can wait for each other in vain.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn all_reduce(nranks: i32) -> Result<()> {
    let results = run(nranks, TIMEOUT, |comm| {
        let mut sum = comm.upload(&vec![comm.rank() as f32 + 0.5; 1000])?;
        let mut largest = comm.upload(&[comm.rank(), -comm.rank()])?;
        comm.all_reduce(&mut sum, NcclRedOp::Sum)?;
        comm.all_reduce(&mut largest, NcclRedOp::Max)?;
        Ok((comm.download(&sum)?, comm.download(&largest)?))
    })?;
    let expected = (0..nranks).map(|rank| rank as f32 + 0.5).sum::<f32>();
    for (sum, largest) in results {
        ensure!(
            sum == vec![expected; 1000],
            "{}, expected {expected}",
            sum[0]
        );
        ensure!(largest == [nranks - 1, 0], "{largest:?}");
    }
    Ok(())
}

fn broadcast(nranks: i32) -> Result<()> {
    for root in 0..nranks {
        let results = run(nranks, TIMEOUT, |comm| {
            let mut buffer = comm.upload(&vec![comm.rank() as u8; 257])?;
            comm.broadcast(&mut buffer, root)?;
            comm.download(&buffer)
        })?;
        ensure!(
            results
                .iter()
                .all(|values| *values == vec![root as u8; 257]),
            "from {root}"
        );
    }
    Ok(())
}

/// Everything goes once round.
fn ring(nranks: i32) -> Result<()> {
    let results = run(nranks, TIMEOUT, |comm| {
        let (rank, nranks) = (comm.rank(), comm.nranks());
        let (next, previous) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
        let mut mine = comm.upload(&[i64::from(rank); 100])?;
        let mut theirs = comm.upload(&[-1i64; 100])?;
        let mut seen = Vec::new();
        for _ in 0..nranks {
            comm.exchange(&mine, next, &mut theirs, previous)?;
            std::mem::swap(&mut mine, &mut theirs);
            seen.push(comm.download(&mine)?[99]);
        }
        Ok(seen)
    })?;
    for (rank, seen) in (0..).zip(results) {
        let expected: Vec<i64> = (1..=nranks)
            .map(|step| i64::from((rank + nranks - step) % nranks))
            .collect();
        ensure!(
            seen == expected,
            "rank {rank}: {seen:?}, expected {expected:?}"
        );
    }
    Ok(())
}

fn send_and_recv() -> Result<()> {
    let results = run(2, TIMEOUT, |comm| {
        let mut buffer = comm.upload(&[f64::from(comm.rank()) + 0.25; 33])?;
        match comm.rank() {
            0 => comm.send(&buffer, 1)?,
            _ => comm.recv(&mut buffer, 0)?,
        }
        comm.download(&buffer)
    })?;
    ensure!(results.iter().all(|values| *values == [0.25; 33]));
    Ok(())
}

fn a_peer_that_never_comes() -> Result<()> {
    let start = Instant::now();
    let Err(error) = Comm::join(unique_id()?, 0, 2, 0, Duration::from_millis(300)) else {
        anyhow::bail!("it was joined without its peer");
    };
    let code = error.downcast_ref::<NcclError>().map(|error| error.code);
    ensure!(code == Some(NcclResult::InProgress), "{error}");
    ensure!(
        start.elapsed() < TIMEOUT,
        "the communicator was not aborted in time"
    );
    Ok(())
}

/// A rank that leaves early ends in an error on the other, and not in a hang.
fn a_peer_that_gives_up() -> Result<()> {
    let outcome = run(2, TIMEOUT, |comm| {
        if comm.rank() == 1 {
            anyhow::bail!("rank 1 gives up");
        }
        comm.set_timeout(Duration::from_millis(300));
        let mut buffer = comm.upload(&[1f32])?;
        comm.all_reduce(&mut buffer, NcclRedOp::Sum)?;
        comm.download(&buffer)
    });
    ensure!(outcome.is_err());
    Ok(())
}

//! Registered buffers and windows, and collectives in them.

use std::ptr::null_mut;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, Lacks};
use crate::expect;
use crate::numbers::{check, number, numbers, sum, sum_at};
use crate::team::Rank;
use crate::world::ANY;

const OK: NcclResult = NcclResult::Success;
const DONE: CuResult = CuResult::Success;

pub fn add(cases: &mut Cases) {
    let need = ANY.calls("ncclCommRegister");
    cases.subject("registered");
    cases.team("memory_of_the_driver", need, |rank| {
        registered(rank, &|| mem_alloc(SIZE), &|memory| {
            cuMemFree_v2(memory) == DONE
        })
    });
    cases.team("memory_of_nccl", need, |rank| {
        registered(rank, &nccl_memory, &|memory| {
            ncclMemFree(memory as *mut _) == OK
        })
    });
    let need = ANY.calls("ncclCommWindowRegister");
    cases.subject("windows");
    cases.team("symmetric", need, |rank| {
        window(rank, NCCL_WIN_COLL_SYMMETRIC)
    });
    cases.team("plain", need, |rank| window(rank, NCCL_WIN_DEFAULT));
}

/// Bytes of each buffer: half for what is sent, half for what is received.
const SIZE: usize = 8 << 20;
/// Words of each rank in a collective: 8 ranks' fit into a half.
const WORDS: usize = 100_003;

fn nccl_memory() -> Result<CuDevicePtr> {
    let mut memory = null_mut();
    expect!(ncclMemAlloc(&mut memory, SIZE), OK);
    Ok(memory as CuDevicePtr)
}

fn registered(
    rank: &Rank,
    allocate: &dyn Fn() -> Result<CuDevicePtr>,
    free: &dyn Fn(CuDevicePtr) -> bool,
) -> Result<()> {
    rank.step("memory is allocated");
    rank.meet()?;
    let memory = allocate()?;
    rank.meet()?;
    let mut handle = null_mut();
    rank.step("ncclCommRegister");
    expect!(
        ncclCommRegister(rank.comm, memory as *mut _, SIZE, &mut handle),
        OK
    );
    rank.meet()?;
    collectives(rank, memory)?;
    rank.step("ncclCommDeregister");
    rank.meet()?;
    expect!(ncclCommDeregister(rank.comm, handle), OK);
    rank.meet()?;
    ensure!(free(memory), "the memory cannot be freed");
    rank.meet()
}

fn window(rank: &Rank, flags: i32) -> Result<()> {
    rank.step("ncclMemAlloc");
    rank.meet()?;
    let (memory, mut window) = (nccl_memory()?, null_mut());
    rank.meet()?;
    rank.step("ncclCommWindowRegister");
    expect!(
        ncclCommWindowRegister(rank.comm, memory as *mut _, SIZE, &mut window, flags),
        OK
    );
    // So NCCL says that the devices cannot reach each other's memory.
    let none = rank.tell(window.is_null())?;
    if none.iter().all(|&none| none) {
        return Err(Lacks("needs windows, and NCCL has none on this system".to_owned()).into());
    }
    ensure!(!window.is_null(), "some ranks have a window: {none:?}");
    collectives(rank, memory)?;
    rank.step("ncclCommWindowDeregister");
    rank.meet()?;
    expect!(ncclCommWindowDeregister(rank.comm, window), OK);
    rank.meet()?;
    expect!(ncclMemFree(memory as *mut _), OK);
    rank.meet()
}

/// All-reduce in place and not, all-gather and reduce-scatter, within SIZE bytes at `memory`.
fn collectives(rank: &Rank, memory: CuDevicePtr) -> Result<()> {
    let (comm, stream, nranks) = (rank.comm, rank.stream, rank.nranks as usize);
    let (from, to) = (memory, memory + SIZE as u64 / 2);
    let uint32 = NcclDataType::Uint32;
    let mine = numbers(rank.rank, nranks * WORDS);
    let fill = |what: &str| -> Result<()> {
        expect!(
            cuMemcpyHtoDAsync_v2(from, mine.as_ptr().cast(), size_of_val(&*mine), stream),
            DONE
        );
        expect!(cuMemsetD8Async(to, 0xee, SIZE / 2, stream), DONE);
        rank.wait()?;
        // The others read and write here: nobody prepares while somebody still communicates.
        rank.step(what);
        rank.meet()
    };
    let read = |address, words: usize| -> Result<Vec<u32>> {
        rank.wait()?;
        rank.peek(address, 4 * words)
    };
    for round in 0..3 {
        fill(&format!("all-reduce, round {round}"))?;
        expect!(sum(comm, from, to, WORDS, stream), OK);
        check("all-reduce", &read(to, WORDS)?, |index| {
            sum_at(rank.nranks, index)
        })?;
        check(
            "behind the result",
            &read(to + 4 * WORDS as u64, 64)?,
            |_| 0xeeee_eeee,
        )?;
        expect!(sum(comm, from, from, WORDS, stream), OK);
        check("all-reduce in place", &read(from, WORDS)?, |index| {
            sum_at(rank.nranks, index)
        })?;
        rank.meet()?;

        fill(&format!("all-gather, round {round}"))?;
        expect!(
            ncclAllGather(from as *const _, to as *mut _, WORDS, uint32, comm, stream),
            OK
        );
        check("all-gather", &read(to, nranks * WORDS)?, |index| {
            number((index / WORDS) as i32, index % WORDS)
        })?;
        rank.meet()?;

        fill(&format!("reduce-scatter, round {round}"))?;
        let (send, recv, add) = (from as *const _, to as *mut _, NcclRedOp::Sum);
        expect!(
            ncclReduceScatter(send, recv, WORDS, uint32, add, comm, stream),
            OK
        );
        let start = rank.rank as usize * WORDS;
        check("reduce-scatter", &read(to, WORDS)?, |index| {
            sum_at(rank.nranks, start + index)
        })?;
        rank.meet()?;
    }
    Ok(())
}

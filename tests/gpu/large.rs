//! Counts that do not fit into 31 and 32 bits.

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, Lacks};
use crate::expect;
use crate::kernels::Kernels;
use crate::team::Rank;
use crate::world::{ANY, World};

const DONE: CuResult = CuResult::Success;

pub fn add(cases: &mut Cases) {
    let gpu = ANY.gpu("the emulator would take gigabytes of the host's memory");
    cases.subject("large_counts");
    for (name, count, need) in [
        // The test itself, everywhere.
        ("some_million_elements", (1usize << 22) + 4_099, ANY),
        ("more_than_2_to_the_31_elements", (1 << 31) + 4_099, gpu),
        ("more_than_2_to_the_32_elements", (1 << 32) + 4_099, gpu),
    ] {
        cases
            .team(name, need, move |rank| large(rank, count))
            .limit(40);
    }
}

/// What lies behind the buffer, and is not to be touched.
const GUARD: usize = 4096;
const BLANK: u8 = 0xee;

/// Bytes, all alike but for some at both ends and around the powers of two. The device itself compares
/// all of them, and the host those that differ.
fn large(rank: &Rank, count: usize) -> Result<()> {
    let kernels = Kernels::load(rank)?;
    rank.step("memory is allocated");
    rank.meet()?;
    let devices = World::get().devices;
    let here = (0..rank.nranks)
        .filter(|other| other % devices == rank.device)
        .count();
    // Room for what NCCL may take meanwhile.
    let (need, free) = (here * (count + GUARD) + (1 << 30), mem_info()?.0);
    let short = rank.tell((need > free).then_some((need, free)))?;
    if let Some((need, free)) = short.into_iter().flatten().next() {
        return Err(Lacks(format!(
            "needs {} MiB of device memory, and {} are free",
            need >> 20,
            free >> 20
        ))
        .into());
    }
    let data = mem_alloc(count + GUARD)?;
    let found = rank.upload(&[0u64])?;
    rank.meet()?;

    // Each in a word of its own.
    let marks: Vec<usize> = [
        0,
        4,
        1 << 20,
        (1 << 30) + 1,
        (1 << 31) - 4,
        1 << 31,
        (1 << 31) + 4,
        (1 << 32) - 4,
        1 << 32,
        (1 << 32) + 4,
    ]
    .into_iter()
    .filter(|&place| place < count - 8)
    .chain([count - 1])
    .collect();
    let set = |value: u8, mark: &dyn Fn(usize) -> u8| -> Result<()> {
        let stream = rank.stream;
        expect!(cuMemsetD8Async(data, value, count, stream), DONE);
        expect!(
            cuMemsetD8Async(data + count as u64, BLANK, GUARD, stream),
            DONE
        );
        for (n, &place) in marks.iter().enumerate() {
            expect!(
                cuMemsetD8Async(data + place as u64, mark(n), 1, stream),
                DONE
            );
        }
        rank.wait()
    };
    let verify = |what: &str, value: u8, mark: &dyn Fn(usize) -> u8| -> Result<()> {
        rank.step(format!("{what} runs"));
        rank.wait()?;
        rank.step(format!("{what} is checked"));
        for (n, &place) in marks.iter().enumerate() {
            let got: Vec<u8> = rank.peek(data + place as u64, 1)?;
            ensure!(
                got[0] == mark(n),
                "{what}: byte {place} is {}, expected {}",
                got[0],
                mark(n)
            );
        }
        // The last word, which may not be whole, and what lies behind.
        let tail = count & !3;
        let got: Vec<u8> = rank.peek(data + tail as u64, count - tail + GUARD)?;
        for (index, &byte) in got.iter().enumerate() {
            let place = tail + index;
            let expected = if place >= count {
                BLANK
            } else if let Some(n) = marks.iter().position(|&mark| mark == place) {
                mark(n)
            } else {
                value
            };
            ensure!(
                byte == expected,
                "{what}: byte {place} of {count} is {byte}, expected {expected}"
            );
        }
        // All whole words: only those with a mark differ.
        rank.fill(found, &[0u64])?;
        let word = u32::from_ne_bytes([value; 4]);
        kernels.count_others(data, count / 4, word, found.address, rank.stream)?;
        let marked = marks.iter().filter(|&&place| place < tail).count() as u64;
        let others = rank.read::<u64>(found)?[0];
        ensure!(
            others == marked,
            "{what}: {others} words are not {value} throughout, expected {marked}"
        );
        rank.meet()
    };

    let (uint8, n, p) = (NcclDataType::Uint8, rank.nranks as u8, data as *mut _);
    let (comm, stream, mine) = (rank.comm, rank.stream, rank.rank as u8);
    // 1 + 2 + …, and a mark adds the same on every rank.
    let sum = n * (n + 1) / 2;
    rank.step("all-reduce");
    set(mine + 1, &|mark| mine + 1 + mark as u8 + 1)?;
    rank.meet()?;
    expect!(
        ncclAllReduce(p, p, count, uint8, NcclRedOp::Sum, comm, stream),
        NcclResult::Success
    );
    verify("all-reduce", sum, &|mark| sum + n * (mark as u8 + 1))?;

    let root = rank.nranks - 1;
    rank.step("broadcast");
    set(100 + mine, &|mark| 150 + mine + 8 * mark as u8)?;
    rank.meet()?;
    expect!(
        ncclBroadcast(p, p, count, uint8, root, comm, stream),
        NcclResult::Success
    );
    let root = root as u8;
    verify("broadcast", 100 + root, &|mark| 150 + root + 8 * mark as u8)?;

    expect!(cuMemFree_v2(data), DONE);
    kernels.unload(rank)
}

//! Send and receive.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::team::{BLANK, Buffer, Rank};
use crate::world::{ANY, EMULATOR};

const OK: NcclResult = NcclResult::Success;
const INT: NcclDataType = NcclDataType::Int32;

fn send(rank: &Rank, buffer: Buffer, peer: i32) -> NcclResult {
    ncclSend(
        buffer.ptr(),
        buffer.bytes / 4,
        INT,
        peer,
        rank.comm,
        rank.stream,
    )
}

fn recv(rank: &Rank, buffer: Buffer, peer: i32) -> NcclResult {
    ncclRecv(
        buffer.ptr(),
        buffer.bytes / 4,
        INT,
        peer,
        rank.comm,
        rank.stream,
    )
}

pub fn add(cases: &mut Cases) {
    cases.subject("p2p");
    oneself(cases);
    cases.team(2, "one_way", ANY, |rank| {
        let buffer = rank.upload(&[rank.rank + 1; 100])?;
        let code = if rank.rank == 0 {
            send(rank, buffer, 1)
        } else {
            recv(rank, buffer, 0)
        };
        expect!(code, OK);
        expect!(rank.read::<i32>(buffer)?, [1; 100]);
        Ok(())
    });
    cases.team(2, "there_and_back", ANY, |rank| {
        let buffer = rank.upload(&[rank.rank + 1; 100])?;
        for round in 0..20 {
            let code = if (rank.rank + round) % 2 == 0 {
                send(rank, buffer, 1 - rank.rank)
            } else {
                recv(rank, buffer, 1 - rank.rank)
            };
            expect!(code, OK);
        }
        expect!(rank.read::<i32>(buffer)?, [1; 100]);
        Ok(())
    });
    for elements in [1, 3, 1000, 1 << 18, (1 << 20) + 5] {
        cases.team(2, &format!("exchange_of_{elements}"), ANY, move |rank| {
            let (mine, theirs) = (
                rank.upload(&vec![rank.rank + 1; elements])?,
                rank.blank(4 * elements)?,
            );
            expect!(ncclGroupStart(), OK);
            expect!(send(rank, mine, 1 - rank.rank), OK);
            expect!(recv(rank, theirs, 1 - rank.rank), OK);
            expect!(ncclGroupEnd(), OK);
            ensure!(rank.read::<i32>(theirs)? == vec![2 - rank.rank; elements]);
            Ok(())
        });
    }
    for nranks in [2, 3, 4, 8] {
        cases.team(nranks, &format!("ring::{nranks}"), ANY, |rank| {
            let (next, previous) = (
                (rank.rank + 1) % rank.nranks,
                (rank.rank + rank.nranks - 1) % rank.nranks,
            );
            let mut buffers = [rank.upload(&[rank.rank])?, rank.blank(4)?];
            for _ in 0..rank.nranks {
                expect!(ncclGroupStart(), OK);
                expect!(send(rank, buffers[0], next), OK);
                expect!(recv(rank, buffers[1], previous), OK);
                expect!(ncclGroupEnd(), OK);
                buffers.reverse();
            }
            expect!(rank.read::<i32>(buffers[0])?, [rank.rank]);
            Ok(())
        });
        cases.team(
            nranks,
            &format!("everyone_to_everyone::{nranks}"),
            ANY,
            |rank| {
                let mine: Result<Vec<Buffer>> = (0..rank.nranks)
                    .map(|to| rank.upload(&vec![100 * rank.rank + to; 1 + to as usize]))
                    .collect();
                let theirs: Result<Vec<Buffer>> = (0..rank.nranks)
                    .map(|_| rank.blank(4 * (1 + rank.rank as usize)))
                    .collect();
                let (mine, theirs) = (mine?, theirs?);
                expect!(ncclGroupStart(), OK);
                for peer in 0..rank.nranks {
                    expect!(send(rank, mine[peer as usize], peer), OK);
                    expect!(recv(rank, theirs[peer as usize], peer), OK);
                }
                expect!(ncclGroupEnd(), OK);
                for (peer, buffer) in (0..).zip(theirs) {
                    expect!(
                        rank.read::<i32>(buffer)?,
                        vec![100 * peer + rank.rank; 1 + rank.rank as usize]
                    );
                }
                Ok(())
            },
        );
    }
    cases.team(2, "in_order_to_one_peer", ANY, |rank| {
        let mine = [
            rank.upload(&[10 * rank.rank + 1])?,
            rank.upload(&[10 * rank.rank + 2, 7])?,
        ];
        let theirs = [rank.blank(4)?, rank.blank(8)?];
        let peer = 1 - rank.rank;
        expect!(ncclGroupStart(), OK);
        // The receives come first on one side: only the order to and from a peer counts.
        for step in 0..2 {
            for i in 0..2 {
                if (step + rank.rank) % 2 == 0 {
                    expect!(send(rank, mine[i], peer), OK);
                } else {
                    expect!(recv(rank, theirs[i], peer), OK);
                }
            }
        }
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(theirs[0])?, [10 * peer + 1]);
        expect!(rank.read::<i32>(theirs[1])?, [10 * peer + 2, 7]);
        Ok(())
    });
    cases.team(2, "many_small_ones", ANY, |rank| {
        let buffers: Result<Vec<Buffer>> = (0..100)
            .map(|i| rank.upload(&[if rank.rank == 0 { i } else { -1 }]))
            .collect();
        let buffers = buffers?;
        expect!(ncclGroupStart(), OK);
        for &buffer in &buffers {
            let code = if rank.rank == 0 {
                send(rank, buffer, 1)
            } else {
                recv(rank, buffer, 0)
            };
            expect!(code, OK);
        }
        expect!(ncclGroupEnd(), OK);
        for (i, buffer) in (0..).zip(buffers) {
            expect!(rank.read::<i32>(buffer)?, [i]);
        }
        Ok(())
    });
    // Bytes flow, and the two ends may call them differently.
    cases.team(2, "types_need_not_agree", ANY, |rank| {
        let buffer = if rank.rank == 0 {
            rank.upload(&[1.5f64, -2.25])?
        } else {
            rank.blank(16)?
        };
        let p = buffer.ptr();
        let code = match rank.rank {
            0 => ncclSend(p, 2, NcclDataType::Float64, 1, rank.comm, rank.stream),
            _ => ncclRecv(p, 16, NcclDataType::Uint8, 0, rank.comm, rank.stream),
        };
        expect!(code, OK);
        expect!(rank.read::<f64>(buffer)?, [1.5, -2.25]);
        Ok(())
    });
    // A message without content is a message: it keeps its place in the order.
    cases.team(2, "of_nothing", ANY, |rank| {
        let buffer = rank.upload(&[rank.rank + 1])?;
        let call = |count, p: *mut c_void| match rank.rank {
            0 => ncclSend(p, count, INT, 1, rank.comm, rank.stream),
            _ => ncclRecv(p, count, INT, 0, rank.comm, rank.stream),
        };
        expect!(ncclGroupStart(), OK);
        expect!(call(0, null_mut()), OK);
        expect!(call(1, buffer.ptr()), OK);
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(buffer)?, [1]);
        Ok(())
    });
    cases.team(2, "beside_a_collective_in_one_group", ANY, |rank| {
        let (mine, theirs, all) = (
            rank.upload(&[rank.rank])?,
            rank.blank(4)?,
            rank.upload(&[3])?,
        );
        expect!(ncclGroupStart(), OK);
        expect!(send(rank, mine, 1 - rank.rank), OK);
        expect!(
            ncclAllReduce(
                all.ptr(),
                all.ptr(),
                1,
                INT,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream
            ),
            OK
        );
        expect!(recv(rank, theirs, 1 - rank.rank), OK);
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(theirs)?, [1 - rank.rank]);
        expect!(rank.read::<i32>(all)?, [6]);
        Ok(())
    });
    // Each communicator has its own order.
    cases.team(2, "two_communicators", ANY, |rank| {
        let other = rank.join(NcclConfig::new())?;
        let buffers = [rank.upload(&[rank.rank, 1])?, rank.upload(&[rank.rank, 2])?];
        let comms = [rank.comm, other];
        expect!(ncclGroupStart(), OK);
        for turn in 0..2 {
            // Rank 1 asks for the second first.
            let i = if rank.rank == 0 { turn } else { 1 - turn };
            let code = match rank.rank {
                0 => ncclSend(buffers[i].ptr(), 2, INT, 1, comms[i], rank.stream),
                _ => ncclRecv(buffers[i].ptr(), 2, INT, 0, comms[i], rank.stream),
            };
            expect!(code, OK);
        }
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(buffers[0])?, [0, 1]);
        expect!(rank.read::<i32>(buffers[1])?, [0, 2]);
        rank.leave(other)
    });
    cases.team(2, "on_two_streams_of_a_group", ANY, |rank| {
        let second = create_stream()?;
        let (mine, theirs) = (rank.upload(&[rank.rank])?, rank.blank(4)?);
        expect!(ncclGroupStart(), OK);
        expect!(send(rank, mine, 1 - rank.rank), OK);
        expect!(
            ncclRecv(theirs.ptr(), 1, INT, 1 - rank.rank, rank.comm, second),
            OK
        );
        expect!(ncclGroupEnd(), OK);
        rank.wait_for(second)?;
        expect!(rank.read::<i32>(theirs)?, [1 - rank.rank]);
        destroy_stream(second);
        Ok(())
    });
    // A pair of ranks that the others know nothing of.
    cases.team(4, "the_others_take_no_part", ANY, |rank| {
        let buffer = rank.upload(&[rank.rank; 10])?;
        let code = match rank.rank {
            3 => send(rank, buffer, 1),
            1 => recv(rank, buffer, 3),
            _ => OK,
        };
        expect!(code, OK);
        expect!(
            rank.read::<i32>(buffer)?,
            [if rank.rank == 1 { 3 } else { rank.rank }; 10]
        );
        Ok(())
    });
    cases.team(4, "gather_by_hand", ANY, |rank| {
        let mine = rank.upload(&[rank.rank; 3])?;
        let all: Result<Vec<Buffer>> = (0..4).map(|_| rank.blank(12)).collect();
        let all = all?;
        expect!(ncclGroupStart(), OK);
        expect!(send(rank, mine, 2), OK);
        if rank.rank == 2 {
            for (peer, &buffer) in (0..).zip(&all) {
                expect!(recv(rank, buffer, peer), OK);
            }
        }
        expect!(ncclGroupEnd(), OK);
        for (peer, buffer) in (0..).zip(all) {
            if rank.rank == 2 {
                expect!(rank.read::<i32>(buffer)?, [peer; 3]);
            } else {
                expect!(rank.read::<u8>(buffer)?, [BLANK; 12]);
            }
        }
        Ok(())
    });
}

fn oneself(cases: &mut Cases) {
    for nranks in [1, 2] {
        cases.team(nranks, &format!("to_oneself::{nranks}"), ANY, |rank| {
            let (mine, theirs) = (rank.upload(&[1, 2, 3, 4])?, rank.blank(16)?);
            for receive_first in [false, true] {
                rank.fill(theirs, &[0; 4])?;
                expect!(ncclGroupStart(), OK);
                if receive_first {
                    expect!(recv(rank, theirs, rank.rank), OK);
                }
                expect!(send(rank, mine, rank.rank), OK);
                if !receive_first {
                    expect!(recv(rank, theirs, rank.rank), OK);
                }
                expect!(ncclGroupEnd(), OK);
                expect!(rank.read::<i32>(theirs)?, [1, 2, 3, 4]);
            }
            Ok(())
        });
    }
    // As many bytes as are sent, whatever the receive asks for: here the buffer is large enough.
    for asked in [1, 2, 6] {
        cases.team(
            1,
            &format!("to_oneself_asked_for_{asked}"),
            ANY,
            move |rank| {
                let (mine, theirs) = (
                    rank.upload(&[1f32, 2.0, 3.0, 4.0])?,
                    rank.upload(&[0f32; 6])?,
                );
                expect!(ncclGroupStart(), OK);
                expect!(
                    ncclSend(
                        mine.ptr(),
                        4,
                        NcclDataType::Float32,
                        0,
                        rank.comm,
                        rank.stream
                    ),
                    OK
                );
                expect!(
                    ncclRecv(
                        theirs.ptr(),
                        asked,
                        NcclDataType::Float32,
                        0,
                        rank.comm,
                        rank.stream
                    ),
                    OK
                );
                expect!(ncclGroupEnd(), OK);
                expect!(rank.read::<f32>(theirs)?, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
                Ok(())
            },
        );
    }
    cases.team(1, "to_oneself_in_place", ANY, |rank| {
        let buffer = rank.upload(&[1, 2, 3])?;
        expect!(ncclGroupStart(), OK);
        expect!(send(rank, buffer, 0), OK);
        expect!(recv(rank, buffer, 0), OK);
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(buffer)?, [1, 2, 3]);
        Ok(())
    });
    cases.team(1, "to_oneself_several", ANY, |rank| {
        let mine = [rank.upload(&[1])?, rank.upload(&[2])?, rank.upload(&[3])?];
        let theirs = [rank.blank(4)?, rank.blank(4)?, rank.blank(4)?];
        expect!(ncclGroupStart(), OK);
        for buffer in mine {
            expect!(send(rank, buffer, 0), OK);
        }
        for buffer in theirs {
            expect!(recv(rank, buffer, 0), OK);
        }
        expect!(ncclGroupEnd(), OK);
        for (i, buffer) in (1..).zip(theirs) {
            expect!(rank.read::<i32>(buffer)?, [i]);
        }
        Ok(())
    });
    cases.team(1, "to_oneself_of_nothing", ANY, |rank| {
        expect!(ncclGroupStart(), OK);
        expect!(ncclSend(null(), 0, INT, 0, rank.comm, rank.stream), OK);
        expect!(ncclRecv(null_mut(), 0, INT, 0, rank.comm, rank.stream), OK);
        expect!(ncclGroupEnd(), OK);
        Ok(())
    });
    // In memory of its own, which other processes do not share.
    cases.team(2, "to_oneself_less_than_there_is_room", EMULATOR, |rank| {
        let (from, to) = (mem_alloc(32)?, mem_alloc(32)?);
        expect!(cuMemsetD32_v2(from, 1, 8), CuResult::Success);
        expect!(cuMemsetD32_v2(to, 5, 8), CuResult::Success);
        let (send, recv) = (from as *const c_void, to as *mut c_void);
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclSend(send, 2, INT, rank.rank, rank.comm, rank.stream),
            OK
        );
        expect!(
            ncclRecv(recv, 8, INT, rank.rank, rank.comm, rank.stream),
            OK
        );
        expect!(ncclGroupEnd(), OK);
        rank.wait()?;
        expect!(rank.peek::<i32>(to, 32)?, [1, 1, 5, 5, 5, 5, 5, 5]);
        for address in [from, to] {
            expect!(cuMemFree_v2(address), CuResult::Success);
        }
        Ok(())
    });
    // One half of a pair too many.
    cases.team(2, "to_oneself_one_too_many", ANY, |rank| {
        let (a, b) = (rank.upload(&[1])?.ptr(), rank.blank(4)?.ptr());
        let comm = rank.join(NcclConfig::new())?;
        expect!(ncclGroupStart(), OK);
        for _ in 0..2 {
            expect!(ncclSend(a, 1, INT, rank.rank, comm, rank.stream), OK);
        }
        expect!(ncclRecv(b, 1, INT, rank.rank, comm, rank.stream), OK);
        expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
        rank.abort(comm)
    });
}

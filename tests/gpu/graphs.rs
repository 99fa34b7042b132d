//! Collectives captured into a graph that is launched again and again.

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::kernels::Kernels;
use crate::numbers::{check, number, numbers, sum};
use crate::team::Rank;
use crate::world::ANY;

const OK: CuResult = CuResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("graphs");
    cases.team("collectives_replay_a_thousand_times", ANY, replay);
}

fn replay(rank: &Rank) -> Result<()> {
    const LAUNCHES: u32 = 1000;
    const WORDS: usize = 1 << 10;
    let kernels = Kernels::load(rank)?;
    let nranks = rank.nranks as usize;
    let data = rank.upload(&numbers(rank.rank, WORDS))?;
    let (sums, total) = (rank.blank(4 * WORDS)?, rank.upload(&vec![0u32; WORDS])?);
    let gathered = rank.blank(4 * WORDS * nranks)?;
    let stream = create_stream()?;

    // One launch: every word grows, is summed over the ranks, joins the total; and all get all words.
    let (mut graph, mut exec) = (0, 0);
    rank.step("capture");
    rank.meet()?;
    let thread = CuStreamCaptureMode::ThreadLocal;
    expect!(cuStreamBeginCapture_v2(stream, thread), OK);
    kernels.add(data.address, WORDS, rank.rank as u32 + 1, stream)?;
    let code = sum(rank.comm, data.address, sums.address, WORDS, stream);
    expect!(code, NcclResult::Success);
    kernels.accumulate(total.address, sums.address, WORDS, stream)?;
    let (from, to) = (data.ptr(), gathered.ptr());
    let code = ncclAllGather(from, to, WORDS, NcclDataType::Uint32, rank.comm, stream);
    expect!(code, NcclResult::Success);
    expect!(cuStreamEndCapture(stream, &mut graph), OK);
    ensure!(graph != 0, "there is no graph");
    rank.step("the graph is made");
    expect!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), OK);
    expect!(cuGraphDestroy(graph), OK);
    expect!(cuGraphUpload(exec, stream), OK);
    rank.wait_for(stream)?;
    check("the total before any launch", &rank.read(total)?, |_| 0)?;
    // None launches while another still makes its graph, for which the device may have to be idle.
    rank.meet()?;

    let grown = |rank: i32, index, launches: u32| {
        number(rank, index).wrapping_add(launches.wrapping_mul(rank as u32 + 1))
    };
    for launch in 1..=LAUNCHES {
        expect!(cuGraphLaunch(exec, stream), OK);
        // No queue runs full: a launch that waits for room keeps other ranks' launches waiting.
        if launch % 50 == 0 {
            rank.step(format!("the end of launch {launch}"));
            rank.wait_for(stream)?;
        }
        if launch % 250 == 0 {
            let summed = |index, launches| {
                (0..rank.nranks).fold(0u32, |sum, rank| {
                    sum.wrapping_add(grown(rank, index, launches))
                })
            };
            check("the sums", &rank.read(sums)?, |index| summed(index, launch))?;
            check("the total", &rank.read(total)?, |index| {
                let sums = (1..=launch).map(|launches| summed(index, launches));
                sums.fold(0, u32::wrapping_add)
            })?;
            check("what was gathered", &rank.read(gathered)?, |index| {
                grown((index / WORDS) as i32, index % WORDS, launch)
            })?;
        }
    }
    rank.step("the graph is destroyed");
    rank.meet()?;
    expect!(cuGraphExecDestroy(exec), OK);
    kernels.unload(rank)?;
    destroy_stream(stream);
    rank.meet()
}

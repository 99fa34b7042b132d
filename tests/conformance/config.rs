//! Configs of communicators, field by field, and of single collectives.

use std::ffi::CStr;
use std::ptr::null_mut;

use anyhow::ensure;

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::operations::{Arguments, collectives};
use crate::team::{alone_non_blocking, settled, state};
use crate::world::ANY;

const IA: NcclResult = NcclResult::InvalidArgument;
const OK: NcclResult = NcclResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("config");
    fields(cases);
    layouts(cases);
    variables(cases);
    cases.subject("collective_config");
    collective(cases);
}

/// One field of the config and values for it.
struct Field {
    name: &'static str,
    set: fn(&mut NcclConfig, i32),
    /// The release that has it.
    since: i32,
    good: &'static [i32],
    bad: &'static [i32],
}

const fn field(
    name: &'static str,
    set: fn(&mut NcclConfig, i32),
    since: i32,
    good: &'static [i32],
    bad: &'static [i32],
) -> Field {
    Field {
        name,
        set,
        since,
        good,
        bad,
    }
}

const FIELDS: [Field; 23] = [
    field("blocking", |c, v| c.blocking = v, 18, &[1], &[2, -1]),
    field(
        "cga_cluster_size",
        |c, v| c.cga_cluster_size = v,
        18,
        &[0, 1, 8, 9],
        &[-1],
    ),
    // Set alone it was refused before 2.32, when the unset other end counted as smaller.
    field("min_ctas", |c, v| c.min_ctas = v, 32, &[1, 4], &[0, -1]),
    field(
        "max_ctas",
        |c, v| c.max_ctas = v,
        18,
        &[1, 4, 64, 1000],
        &[0, -1],
    ),
    field(
        "split_share",
        |c, v| c.split_share = v,
        18,
        &[0, 1],
        &[2, -1],
    ),
    field(
        "traffic_class",
        |c, v| c.traffic_class = v,
        26,
        &[0, 7, -1],
        &[],
    ),
    field(
        "collnet_enable",
        |c, v| c.collnet_enable = v,
        27,
        &[0, 1],
        &[2, -1],
    ),
    field(
        "cta_policy",
        |c, v| c.cta_policy = v,
        27,
        &[0, 1, 2],
        &[4, -1],
    ),
    // Two policies at once: refused by 2.28.
    field("both_cta_policies", |c, v| c.cta_policy = v, 30, &[3], &[]),
    field(
        "shrink_share",
        |c, v| c.shrink_share = v,
        27,
        &[0, 1],
        &[2, -1],
    ),
    field("nvls_ctas", |c, v| c.nvls_ctas = v, 27, &[1, 16], &[0, -1]),
    field(
        "n_channels_per_net_peer",
        |c, v| c.n_channels_per_net_peer = v,
        28,
        &[1, 64],
        &[0, 65, -1],
    ),
    field(
        "nvlink_centric_sched",
        |c, v| c.nvlink_centric_sched = v,
        28,
        &[0, 1],
        &[2, -1],
    ),
    field(
        "graph_usage_mode",
        |c, v| c.graph_usage_mode = v,
        29,
        &[0, 1, 2],
        &[3, -1],
    ),
    field("num_rma_ctx", |c, v| c.num_rma_ctx = v, 29, &[0, 1], &[-1]),
    field(
        "max_p2p_peers",
        |c, v| c.max_p2p_peers = v,
        30,
        &[1, 8],
        &[0, -1],
    ),
    field(
        "graph_stream_ordering",
        |c, v| c.graph_stream_ordering = v,
        31,
        &[0, 1],
        &[2, -1],
    ),
    field(
        "launch_order_implicit",
        |c, v| c.launch_order_implicit = v,
        31,
        &[0, 1],
        &[2, -1],
    ),
    field("num_rma_sig", |c, v| c.num_rma_sig = v, 31, &[0, 1], &[-1]),
    field(
        "rma_eager_init",
        |c, v| c.rma_eager_init = v,
        31,
        &[0, 1],
        &[2, -1],
    ),
    field(
        "host_cft_mode",
        |c, v| c.host_cft_mode = v,
        31,
        &[1, 2, 3],
        &[0, 4, -1],
    ),
    field(
        "nvls_host_mode",
        |c, v| c.nvls_host_mode = v,
        32,
        &[0, 1, 2, i32::MAX],
        &[4, -1],
    ),
    // Both ends of the range of channels.
    field(
        "min_and_max_ctas",
        |c, v| (c.min_ctas, c.max_ctas) = (v, 4),
        18,
        &[1, 4],
        &[5, 0],
    ),
];

/// Makes a communicator of one rank by `config`, and tells the code and whether there was one.
fn init(config: &NcclConfig) -> anyhow::Result<(NcclResult, NcclComm)> {
    let mut comm = 7 as NcclComm;
    let code = ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, config);
    ensure!(comm as usize != 7, "the communicator was left as it was");
    Ok((code, comm))
}

fn accepted(config: &NcclConfig) -> anyhow::Result<()> {
    let (code, comm) = init(config)?;
    expect!(code, OK);
    let mut count = 0;
    expect!(ncclCommCount(comm, &mut count), OK);
    expect!(count, 1);
    expect!(ncclCommDestroy(comm), OK);
    Ok(())
}

fn refused(config: &NcclConfig) -> anyhow::Result<()> {
    expect!(init(config)?, (IA, null_mut()));
    expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
    Ok(())
}

fn fields(cases: &mut Cases) {
    cases.solo("untouched", ANY, || accepted(&NcclConfig::new()));
    for Field {
        name,
        set,
        since,
        good,
        bad,
    } in FIELDS
    {
        for (values, judge) in [(good, accepted as fn(&NcclConfig) -> _), (bad, refused)] {
            for &value in values {
                let word = if values == good { "accepts" } else { "refuses" };
                cases.solo(
                    &format!("{name}::{word}_{value}"),
                    ANY.nccl(since),
                    move || {
                        let mut config = NcclConfig::new();
                        set(&mut config, value);
                        judge(&config)
                    },
                );
            }
        }
    }
    cases.solo("min_above_max_ctas", ANY, || {
        refused(&NcclConfig {
            min_ctas: 4,
            max_ctas: 2,
            ..NcclConfig::new()
        })
    });
    cases.solo("comm_name::accepts_any", ANY.nccl(27), || {
        static NAME: &CStr = c"a name of my own";
        accepted(&NcclConfig {
            comm_name: NAME.as_ptr(),
            ..NcclConfig::new()
        })
    });
    cases.solo("net_name::refuses_an_unknown_one", ANY, || {
        static NAME: &CStr = c"Nope";
        let (code, comm) = init(&NcclConfig {
            net_name: NAME.as_ptr(),
            ..NcclConfig::new()
        })?;
        expect!(code, NcclResult::InvalidUsage);
        ensure!(
            !comm.is_null(),
            "it is found out only while the communicator is made"
        );
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    cases.solo("blocking::accepts_0", ANY, || {
        let comm = alone_non_blocking()?;
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
}

fn layouts(cases: &mut Cases) {
    let new = NcclConfig::new();
    for (name, config) in [
        ("wrong_magic", NcclConfig { magic: 1, ..new }),
        ("size_0", NcclConfig { size: 0, ..new }),
        ("size_11", NcclConfig { size: 11, ..new }),
    ] {
        let config = Send(config);
        cases.solo(&format!("layout::refuses_{name}"), ANY, move || {
            refused(config.get())
        });
    }
    for (name, since, config) in [
        ("a_larger_struct", 18, NcclConfig { size: 1000, ..new }),
        ("version_0", 18, NcclConfig { version: 0, ..new }),
        (
            "a_version_to_come",
            18,
            NcclConfig {
                version: 99_999,
                ..new
            },
        ),
        (
            "the_header_alone",
            18,
            NcclConfig {
                size: 16,
                max_ctas: 0,
                ..new
            },
        ),
        // A bad value where the caller's struct has already ended is never seen.
        (
            "bad_values_past_the_size_of_2_14",
            18,
            NcclConfig {
                size: 24,
                max_ctas: 0,
                split_share: 2,
                ..new
            },
        ),
        (
            "bad_values_past_the_size_of_2_18",
            27,
            NcclConfig {
                size: 48,
                collnet_enable: 2,
                cta_policy: 9,
                ..new
            },
        ),
        // Nor one in a field that is younger than the caller's version.
        (
            "bad_values_younger_than_2_14",
            18,
            NcclConfig {
                version: 21_400,
                max_ctas: 0,
                cga_cluster_size: -1,
                ..new
            },
        ),
        (
            "bad_values_younger_than_2_18",
            27,
            NcclConfig {
                version: 21_800,
                cta_policy: 9,
                shrink_share: 2,
                nvls_ctas: 0,
                ..new
            },
        ),
        (
            "bad_values_younger_than_2_27",
            28,
            NcclConfig {
                version: 22_700,
                n_channels_per_net_peer: 0,
                ..new
            },
        ),
        (
            "bad_values_younger_than_2_28",
            29,
            NcclConfig {
                version: 22_800,
                graph_usage_mode: 3,
                num_rma_ctx: -1,
                ..new
            },
        ),
        (
            "bad_values_younger_than_2_29",
            30,
            NcclConfig {
                version: 22_900,
                max_p2p_peers: 0,
                ..new
            },
        ),
    ] {
        let config = Send(config);
        cases.solo(
            &format!("layout::accepts_{name}"),
            ANY.nccl(since),
            move || accepted(config.get()),
        );
    }
}

/// A config whose pointers are null.
struct Send(NcclConfig);

// SAFETY: without pointers it is numbers alone.
unsafe impl std::marker::Send for Send {}

impl Send {
    fn get(&self) -> &NcclConfig {
        &self.0
    }
}

/// Variables win over fields.
fn variables(cases: &mut Cases) {
    cases.child(
        "variables::comm_blocking_0_wins",
        ANY,
        &[("NCCL_COMM_BLOCKING", Some("0"))],
        || {
            use_device(0)?;
            let (code, comm) = init(&NcclConfig {
                blocking: 1,
                ..NcclConfig::new()
            })?;
            expect!(code, NcclResult::InProgress);
            expect!(settled(comm)?, OK);
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
    cases.child(
        "variables::comm_blocking_1_wins",
        ANY,
        &[("NCCL_COMM_BLOCKING", Some("1"))],
        || {
            use_device(0)?;
            accepted(&NcclConfig::non_blocking())
        },
    );
    // ncclCommInitRank waits, whatever the variable says.
    cases.child(
        "variables::comm_blocking_0_and_init_rank",
        ANY,
        &[("NCCL_COMM_BLOCKING", Some("0"))],
        || {
            use_device(0)?;
            let mut comm = null_mut();
            expect!(ncclCommInitRank(&mut comm, 1, unique_id()?, 0), OK);
            expect!(settled(comm)?, OK);
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
    cases.child(
        "variables::comm_blocking_0_and_init_all",
        ANY,
        &[("NCCL_COMM_BLOCKING", Some("0"))],
        || {
            use_device(0)?;
            let mut comm = null_mut();
            expect!(ncclCommInitAll(&mut comm, 1, &0), NcclResult::InProgress);
            expect!(settled(comm)?, OK);
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
}

fn collective(cases: &mut Cases) {
    for operation in collectives() {
        let Some((function, call)) = operation.with_config else {
            continue;
        };
        let (name, need) = (operation.name, ANY.calls(function));
        cases.team(1, &format!("{name}::default_and_null"), need, move |rank| {
            let buffer = rank.blank(64)?;
            let arguments = Arguments {
                send: buffer.ptr(),
                recv: buffer.ptr(),
                count: 4,
                ..Arguments::new(rank.comm, rank.stream)
            };
            if name != "all_to_all" {
                expect!(call(&arguments, &NcclCollConfig::new()), OK);
                expect!(call(&arguments, std::ptr::null()), OK);
            }
            let nothing = Arguments {
                count: 0,
                ..arguments
            };
            expect!(call(&nothing, &NcclCollConfig::new()), OK);
            expect!(call(&nothing, std::ptr::null()), OK);
            Ok(())
        });
        cases.team(1, &format!("{name}::refuses"), need, move |rank| {
            static NOPE: &CStr = c"nope";
            let (send, recv) = (rank.blank(64)?.ptr(), rank.blank(64)?.ptr());
            let arguments = Arguments {
                send,
                recv,
                count: 4,
                ..Arguments::new(rank.comm, rank.stream)
            };
            let good = NcclCollConfig::new();
            expect!(call(&arguments, &NcclCollConfig { magic: 1, ..good }), IA);
            let bad = NcclCollConfig {
                force_alg_selection: 2,
                ..good
            };
            expect!(call(&arguments, &bad), IA);
            let bad = NcclCollConfig {
                cta_policy: 4,
                ..good
            };
            expect!(call(&arguments, &bad), IA);
            expect!(
                call(
                    &arguments,
                    &NcclCollConfig {
                        alg_selection: NOPE.as_ptr(),
                        ..good
                    }
                ),
                IA
            );
            let nobody = Arguments {
                comm: null_mut(),
                ..arguments
            };
            expect!(call(&nobody, &good), IA);
            expect!(call(&nobody, std::ptr::null()), IA);
            expect!(call(&nobody, &NcclCollConfig { magic: 1, ..good }), IA);
            expect!(state(rank.comm)?, OK);
            Ok(())
        });
    }
}

//! What the Rust compiler makes of each struct. The fields are listed here once more, since only a
//! name in a program can be asked for its offset; a list that is not the declared one is reported.

use std::mem::offset_of;

use metrale_gpu_sys::cuda::{CuGraphEdgeData, CuGraphExecUpdateResultInfo, CuUuid};
use metrale_gpu_sys::nccl::{
    NcclCollConfig, NcclConfig, NcclConfigExt, NcclConfigExtKey, NcclConfigExtVal,
    NcclEncryptionConfig, NcclSimInfo, NcclUniqueId, NcclWaitSignalDesc,
};

pub struct Layout {
    pub rust: &'static str,
    pub size: usize,
    pub align: usize,
    /// Each field's name and offset.
    pub fields: Vec<(&'static str, usize)>,
}

macro_rules! layouts {
    ($($record:ident { $($field:ident),* })*) => {
        vec![$(Layout {
            rust: stringify!($record),
            size: size_of::<$record>(),
            align: align_of::<$record>(),
            fields: vec![$((stringify!($field), offset_of!($record, $field))),*],
        }),*]
    };
}

#[rustfmt::skip]
pub fn layouts() -> Vec<Layout> {
    layouts! {
        NcclUniqueId { internal }
        NcclConfig {
            size, magic, version, blocking, cga_cluster_size, min_ctas, max_ctas, net_name,
            split_share, traffic_class, comm_name, collnet_enable, cta_policy, shrink_share, nvls_ctas,
            n_channels_per_net_peer, nvlink_centric_sched, graph_usage_mode, num_rma_ctx,
            max_p2p_peers, graph_stream_ordering, launch_order_implicit, num_rma_sig, rma_eager_init,
            host_cft_mode, nvls_host_mode
        }
        NcclConfigExt { next, key, val }
        NcclConfigExtKey { vendor_id, option_id }
        NcclConfigExtVal { i, s, raw }
        NcclCollConfig {
            size, magic, version, ext, min_ctas, max_ctas, nvls_ctas, cga_cluster_size, alg_selection,
            force_alg_selection, cta_policy, user_profiler_tag, launch_completion_event
        }
        NcclSimInfo { size, magic, version, estimated_time }
        NcclWaitSignalDesc { op_cnt, peer, sig_idx, ctx }
        NcclEncryptionConfig { size, magic, version, mode, psk }
        CuUuid { bytes }
        CuGraphEdgeData { from_port, to_port, kind, reserved }
        CuGraphExecUpdateResultInfo { result, error_node, error_from_node }
    }
}

//! The structs that callers configure communicators, collectives and encryption with.

use std::ffi::{CStr, c_char};
use std::mem::offset_of;

use super::error::{INVALID_ARGUMENT, Outcome, refuse};
use super::exchange::Kind;
use super::param;
use crate::cuda::CuEvent;
use crate::nccl::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, NcclCollConfig, NcclConfig, NcclEncryptionConfig,
    NcclEncryptionMode, version_code,
};

const UNSET: i32 = NCCL_CONFIG_UNDEF_INT;
/// The most channels that a kernel has.
const CHANNELS: i32 = 64;

/// What matters here of a communicator's config.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) blocking: bool,
    pub(super) split_share: bool,
    pub(super) shrink_share: bool,
    pub(super) net_name: Option<String>,
    /// Contexts and signals of one-sided operations.
    pub(super) contexts: i32,
    pub(super) signals: i32,
    /// Signals work before the first window.
    pub(super) eager: bool,
    /// Buffers are checked in each call.
    pub(super) checks_buffers: bool,
}

/// A copy of as much of a caller's struct as its `size`, the first field, says; the rest is as in
/// `fresh`.
///
/// # Safety
///
/// `given` points to a `usize`, and to as many bytes as it says or as `T` has; any bytes make a
/// `T`.
unsafe fn read<T>(given: *const T, fresh: T) -> T {
    let mut read = fresh;
    // SAFETY: the caller vouches for `given`, and no more is written than `read` has.
    unsafe {
        let size = given.cast::<usize>().read_unaligned().min(size_of::<T>());
        (&raw mut read)
            .cast::<u8>()
            .copy_from_nonoverlapping(given.cast(), size);
    }
    read
}

fn not_initialized(what: &str) -> crate::nccl::NcclResult {
    refuse(
        INVALID_ARGUMENT,
        format_args!("{what} argument not initialized via its initializer: the magic is wrong"),
    )
}

impl Config {
    /// What a caller's config comes to; null is the default. Variables win over fields.
    ///
    /// # Safety
    ///
    /// `config` is null or points to a config of the size that its first field says, and `net_name`
    /// within that is null or a C string.
    pub(super) unsafe fn parse(config: *const NcclConfig) -> Outcome<Self> {
        let fresh = NcclConfig::new();
        if config.is_null() {
            // SAFETY: the fresh config has no name.
            return Ok(unsafe { Self::resolve(&fresh) });
        }
        let unmarked = NcclConfig { magic: 0, ..fresh };
        // SAFETY: the caller vouches for the struct, which is numbers and raw pointers.
        let mut given = unsafe { read(config, unmarked) };
        if given.magic != NCCL_API_MAGIC {
            return Err(not_initialized("ncclConfig_t"));
        }
        forget_younger_fields(&mut given);
        check(&given)?;
        // SAFETY: the caller vouches for the name.
        Ok(unsafe { Self::resolve(&given) })
    }

    /// # Safety
    ///
    /// `net_name` is null or a C string.
    unsafe fn resolve(given: &NcclConfig) -> Self {
        let or = |value, default| if value == UNSET { default } else { value };
        // SAFETY: the caller vouches for it.
        let net_name = unsafe { string(given.net_name) };
        let mut config = Self {
            blocking: or(given.blocking, 1) == 1,
            split_share: or(given.split_share, 0) == 1,
            shrink_share: or(given.shrink_share, 0) == 1,
            net_name,
            contexts: or(given.num_rma_ctx, 1),
            signals: or(given.num_rma_sig, 1),
            eager: or(given.rma_eager_init, 0) == 1,
            checks_buffers: false,
        };
        config.override_by_variables();
        config
    }

    /// The config of a communicator made from one of this config, where none is given for it.
    pub(super) fn inherited(&self) -> Self {
        let mut config = self.clone();
        config.override_by_variables();
        config
    }

    fn override_by_variables(&mut self) {
        let switch = |key| match param::set_number(key) {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        };
        if let Some(blocking) = switch("NCCL_COMM_BLOCKING") {
            self.blocking = blocking;
        }
        if let Some(share) = param::set_number("NCCL_COMM_SPLIT_SHARE_RESOURCES") {
            self.split_share = share == 1;
        }
        if let Some(share) = param::set_number("NCCL_COMM_SHRINK_SHARE_RESOURCES") {
            self.shrink_share = share == 1;
        }
        if let Some(contexts) = param::set_number("NCCL_NUM_RMA_CTX") {
            if contexts >= 0 {
                self.contexts = contexts;
            }
        }
        if let Some(eager) = switch("NCCL_RMA_EAGER_INIT") {
            self.eager = eager;
        }
        if let Some(name) = param::text("NCCL_NET") {
            self.net_name = Some(name);
        }
        let mode = param::text("NCCL_CHECK_MODE").unwrap_or_default();
        self.checks_buffers = param::number("NCCL_CHECK_POINTERS", 0) == 1
            || mode.eq_ignore_ascii_case("DEBUG_LOCAL")
            || mode.eq_ignore_ascii_case("DEBUG_GLOBAL");
    }
}

/// A copy of a C string.
///
/// # Safety
///
/// `text` is null or a C string.
unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Takes back what the release that a config was made for does not know.
fn forget_younger_fields(config: &mut NcclConfig) {
    let older_than = |minor, patch| (config.version as i32) < version_code(2, minor, patch);
    let fresh = NcclConfig::new();
    if older_than(14, 0) {
        config.blocking = fresh.blocking;
    }
    if older_than(17, 0) {
        config.cga_cluster_size = fresh.cga_cluster_size;
        config.min_ctas = fresh.min_ctas;
        config.max_ctas = fresh.max_ctas;
        config.net_name = fresh.net_name;
    }
    if older_than(25, 0) {
        config.traffic_class = fresh.traffic_class;
    }
    if older_than(27, 0) {
        config.collnet_enable = fresh.collnet_enable;
        config.cta_policy = fresh.cta_policy;
        config.shrink_share = fresh.shrink_share;
        config.nvls_ctas = fresh.nvls_ctas;
    }
    if older_than(28, 0) {
        config.n_channels_per_net_peer = fresh.n_channels_per_net_peer;
        config.nvlink_centric_sched = fresh.nvlink_centric_sched;
    }
    if older_than(29, 0) {
        config.graph_usage_mode = fresh.graph_usage_mode;
        config.num_rma_ctx = fresh.num_rma_ctx;
    }
    if older_than(30, 0) {
        config.max_p2p_peers = fresh.max_p2p_peers;
    }
    if older_than(30, 5) {
        config.graph_stream_ordering = fresh.graph_stream_ordering;
    }
    if older_than(31, 0) {
        config.launch_order_implicit = fresh.launch_order_implicit;
        config.num_rma_sig = fresh.num_rma_sig;
        config.rma_eager_init = fresh.rma_eager_init;
        config.host_cft_mode = fresh.host_cft_mode;
    }
    if older_than(32, 0) {
        config.nvls_host_mode = fresh.nvls_host_mode;
    }
}

/// Each field is unset or in its range.
fn check(config: &NcclConfig) -> Outcome {
    type Range = fn(i32) -> bool;
    let switch: Range = |value| matches!(value, 0 | 1);
    let positive: Range = |value| value > 0;
    let not_negative: Range = |value| value >= 0;
    let fields: [(&str, i32, Range); 20] = [
        ("blocking", config.blocking, switch),
        ("cgaClusterSize", config.cga_cluster_size, not_negative),
        ("minCTAs", config.min_ctas, positive),
        ("maxCTAs", config.max_ctas, positive),
        ("splitShare", config.split_share, switch),
        ("collnetEnable", config.collnet_enable, switch),
        ("CTAPolicy", config.cta_policy, |value| {
            (0..=3).contains(&value)
        }),
        ("shrinkShare", config.shrink_share, switch),
        ("nvlsCTAs", config.nvls_ctas, positive),
        (
            "nChannelsPerNetPeer",
            config.n_channels_per_net_peer,
            |value| (1..=CHANNELS).contains(&value),
        ),
        ("nvlinkCentricSched", config.nvlink_centric_sched, switch),
        ("graphUsageMode", config.graph_usage_mode, |value| {
            (0..=2).contains(&value)
        }),
        ("numRmaCtx", config.num_rma_ctx, not_negative),
        ("numRmaSig", config.num_rma_sig, not_negative),
        ("maxP2pPeers", config.max_p2p_peers, positive),
        ("graphStreamOrdering", config.graph_stream_ordering, switch),
        ("launchOrderImplicit", config.launch_order_implicit, switch),
        ("rmaEagerInit", config.rma_eager_init, switch),
        ("hostCftMode", config.host_cft_mode, |value| {
            (1..=3).contains(&value)
        }),
        ("nvlsHostMode", config.nvls_host_mode, |value| {
            (0..=3).contains(&value) || value == i32::MAX
        }),
    ];
    let bad = |name: &str, value: i32| {
        refuse(
            INVALID_ARGUMENT,
            format_args!("Invalid config {name} attribute value {value}"),
        )
    };
    for (name, value, good) in fields {
        if value != UNSET && !good(value) {
            return Err(bad(name, value));
        }
    }
    let (min, max) = (config.min_ctas, config.max_ctas);
    if min != UNSET && max != UNSET && min > max {
        return Err(bad("minCTAs above maxCTAs", min));
    }
    Ok(())
}

/// What matters here of a single collective's config.
#[derive(Clone, Debug, Default)]
pub(super) struct CollConfig {
    /// The algorithms that may be used; all of them if none are named.
    algorithms: Option<String>,
    /// Whether a choice that cannot be had is an error.
    forced: bool,
    /// Recorded when the collective is launched; 0 for none.
    pub(super) event: CuEvent,
}

impl CollConfig {
    /// What a caller's config comes to; null is the plain call.
    ///
    /// # Safety
    ///
    /// `config` is null or points to a config of the size that its first field says, and
    /// `alg_selection` within that is null or a C string.
    pub(super) unsafe fn parse(config: *const NcclCollConfig) -> Outcome<Self> {
        if config.is_null() {
            return Ok(Self::default());
        }
        let unmarked = NcclCollConfig {
            magic: 0,
            ..NcclCollConfig::new()
        };
        // SAFETY: the caller vouches for the struct, which is numbers and raw pointers.
        let given = unsafe { read(config, unmarked) };
        if given.magic != NCCL_API_MAGIC {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!(
                    "ncclCollConfig_t magic mismatch (got {:#x}, expected {NCCL_API_MAGIC:#x})",
                    given.magic
                ),
            ));
        }
        let policy = given.cta_policy;
        if !matches!(given.force_alg_selection, 0 | 1)
            || policy != UNSET && !(0..=3).contains(&policy)
        {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!(
                    "config->forceAlgSelection={} or config->CTAPolicy={policy} is invalid",
                    given.force_alg_selection
                ),
            ));
        }
        Ok(Self {
            // SAFETY: the caller vouches for the name.
            algorithms: unsafe { string(given.alg_selection) }.filter(|names| !names.is_empty()),
            forced: given.force_alg_selection == 1,
            event: given.launch_completion_event,
        })
    }

    /// Whether the choice of algorithms leaves one for a collective, or need not.
    pub(super) fn check(&self, kind: &Kind, call: &str) -> Outcome {
        match &self.algorithms {
            Some(names) if self.forced && !selects(names, kind) => Err(refuse(
                INVALID_ARGUMENT,
                format_args!("config->algSelection \"{names}\" cannot be honored for {call}"),
            )),
            _ => Ok(()),
        }
    }
}

const ALL_REDUCE: u8 = 1;
const ALL_GATHER: u8 = 2;
const REDUCE_SCATTER: u8 = 4;
const BROADCAST: u8 = 8;
const REDUCE: u8 = 16;
const EVERY: u8 = ALL_REDUCE | ALL_GATHER | REDUCE_SCATTER | BROADCAST | REDUCE;

/// NCCL's algorithms by name, each with the collectives that have it.
const ALGORITHMS: [(&str, u8); 29] = [
    ("TREE_LL", ALL_REDUCE),
    ("TREE_LL128", ALL_REDUCE),
    ("TREE_SIMPLE", ALL_REDUCE),
    ("RING_LL", EVERY),
    ("RING_LL128", EVERY),
    ("RING_SIMPLE", EVERY),
    (
        "COLLNET_DIRECT_SIMPLE",
        ALL_REDUCE | ALL_GATHER | REDUCE_SCATTER,
    ),
    ("COLLNET_CHAIN_SIMPLE", ALL_REDUCE),
    ("NVLS_SIMPLE", ALL_REDUCE | ALL_GATHER | REDUCE_SCATTER),
    ("NVLSTREE_SIMPLE", ALL_REDUCE),
    ("PAT_SIMPLE", ALL_GATHER | REDUCE_SCATTER),
    ("SYMK_AGxLL_R", ALL_REDUCE),
    ("SYMK_AGxLLMC_R", ALL_REDUCE),
    ("SYMK_RSxTmaLD_AGxTmaST", ALL_REDUCE),
    ("SYMK_RSxLD_AGxST", ALL_REDUCE),
    ("SYMK_RSxLDMC_AGxSTMC", ALL_REDUCE),
    ("SYMK_LL", ALL_GATHER),
    ("SYMK_LLMC", ALL_GATHER),
    ("SYMK_TmaST", ALL_GATHER),
    ("SYMK_ST", ALL_GATHER),
    ("SYMK_TmaSTMC", ALL_GATHER),
    ("SYMK_STMC", ALL_GATHER),
    ("SYMK_RailRing_LsaSTMC", ALL_GATHER),
    ("SYMK_LL", REDUCE_SCATTER),
    ("SYMK_TmaLD", REDUCE_SCATTER),
    ("SYMK_LD", REDUCE_SCATTER),
    ("SYMK_LDMC", REDUCE_SCATTER),
    ("SYMK_RailA2A_LsaLD", REDUCE_SCATTER),
    ("SYMK_RailA2A_LsaLDMC", REDUCE_SCATTER),
];

/// Whether a choice of algorithms is well formed and leaves one for the collective: name prefixes
/// without case, `,` for "or", `+` for "and", `^` for "not".
fn selects(names: &str, kind: &Kind) -> bool {
    let collective = match kind {
        Kind::AllReduce => ALL_REDUCE,
        Kind::AllGather => ALL_GATHER,
        Kind::ReduceScatter => REDUCE_SCATTER,
        Kind::Broadcast => BROADCAST,
        Kind::Reduce => REDUCE,
        _ => return false,
    };
    const ALL: u64 = (1 << ALGORITHMS.len()) - 1;
    let set = |keep: &dyn Fn(&str, u8) -> bool| {
        let bits = ALGORITHMS.iter().enumerate();
        bits.filter(|(_, (name, of))| keep(name, *of))
            .fold(0u64, |set, (bit, _)| set | 1 << bit)
    };
    let named = |tag: &str| {
        set(&|name, _| {
            name.get(..tag.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(tag))
        })
    };
    let names: String = names
        .chars()
        .filter(|c| !matches!(c, ' ' | '\t' | '\n' | '\r'))
        .collect();
    let mut chosen = 0;
    for term in names.split(',').filter(|term| !term.is_empty()) {
        let mut left = ALL;
        let mut factors = 0;
        for factor in term.split('+').filter(|factor| !factor.is_empty()) {
            factors += 1;
            let (negated, tag) = match factor.strip_prefix('^') {
                Some(tag) => (true, tag),
                None => (false, factor),
            };
            let found = named(tag);
            if tag.is_empty() || found == 0 {
                return false;
            }
            left &= if negated { ALL & !found } else { found };
        }
        if factors == 0 || left == 0 {
            return false;
        }
        chosen |= left;
    }
    chosen & set(&|_, of| of & collective != 0) != 0
}

/// `ncclSetEncryption`. There is nothing to encrypt here.
///
/// # Safety
///
/// `config` is null or points to a config, and `psk` within it is null or a C string.
pub(super) unsafe fn set_encryption(config: *const NcclEncryptionConfig) -> Outcome {
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller vouches for it. NCCL does not look at the size.
    let given = unsafe { config.read() };
    let refuse = |reason| Err(refuse(INVALID_ARGUMENT, reason));
    if given.magic != NCCL_API_MAGIC {
        return refuse(format_args!(
            "ncclSetEncryption: config not initialized via NCCL_ENCRYPTION_CONFIG_INITIALIZER"
        ));
    }
    match NcclEncryptionMode(given.mode) {
        NcclEncryptionMode::None => Ok(()),
        NcclEncryptionMode::Psk if given.psk.is_null() => refuse(format_args!(
            "ncclSetEncryption: NCCL_ENCRYPTION_MODE_PSK requires config->psk"
        )),
        NcclEncryptionMode::Psk => {
            // SAFETY: not null, and the caller vouches for it.
            let key = unsafe { CStr::from_ptr(given.psk) };
            match key.count_bytes() {
                32.. => Ok(()),
                length => refuse(format_args!(
                    "ncclSetEncryption: config->psk has {length} bytes, at least 32 are needed"
                )),
            }
        }
        mode => refuse(format_args!(
            "ncclSetEncryption: config->mode={} is not a supported encryption mode",
            mode.0
        )),
    }
}

/// What a caller's `NcclSimInfo` says of itself: its magic, and whether it has room for the
/// estimate.
///
/// # Safety
///
/// `info` points to a struct of the size that its first field says.
pub(super) unsafe fn check_sim_info(info: *const crate::nccl::NcclSimInfo) -> Outcome<bool> {
    use crate::nccl::NcclSimInfo;
    let fresh = NcclSimInfo::new();
    // SAFETY: the caller vouches for the struct, which is numbers alone.
    let given = unsafe { read(info, NcclSimInfo { magic: 0, ..fresh }) };
    if given.magic != fresh.magic {
        return Err(refuse(
            INVALID_ARGUMENT,
            format_args!("ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER"),
        ));
    }
    Ok(given.size >= offset_of!(NcclSimInfo, estimated_time) + size_of::<f32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(config: NcclConfig) -> Outcome<Config> {
        // SAFETY: a whole config without strings.
        unsafe { Config::parse(&config) }
    }

    #[test]
    fn a_larger_struct_is_cut_and_a_smaller_one_filled_up() {
        let new = NcclConfig::new();
        for size in [1000, 120, 48, 24, 16] {
            assert!(parse(NcclConfig { size, ..new }).is_ok(), "{size}");
        }
        for size in [0, 8, 11] {
            assert!(parse(NcclConfig { size, ..new }).is_err(), "{size}");
        }
        assert!(
            parse(NcclConfig {
                size: 24,
                max_ctas: 0,
                split_share: 2,
                ..new
            })
            .is_ok()
        );
    }

    #[test]
    fn fields_younger_than_the_version_are_passed_over() {
        let new = NcclConfig::new();
        let config = parse(NcclConfig {
            version: 0,
            blocking: 0,
            num_rma_ctx: 7,
            ..new
        });
        assert_eq!(config, parse(new));
        assert!(
            parse(NcclConfig {
                version: 23_100,
                nvls_host_mode: 9,
                ..new
            })
            .is_ok()
        );
        assert!(
            parse(NcclConfig {
                version: 23_200,
                nvls_host_mode: 9,
                ..new
            })
            .is_err()
        );
    }

    #[test]
    fn each_field_has_its_range() {
        let new = NcclConfig::new();
        for bad in [
            NcclConfig { magic: 1, ..new },
            NcclConfig { blocking: 2, ..new },
            NcclConfig {
                cga_cluster_size: -1,
                ..new
            },
            NcclConfig {
                min_ctas: 4,
                max_ctas: 2,
                ..new
            },
            NcclConfig { max_ctas: 0, ..new },
            NcclConfig {
                n_channels_per_net_peer: 65,
                ..new
            },
            NcclConfig {
                host_cft_mode: 0,
                ..new
            },
            NcclConfig {
                nvls_host_mode: 4,
                ..new
            },
        ] {
            assert_eq!(parse(bad), Err(INVALID_ARGUMENT), "{bad:?}");
        }
        for good in [
            NcclConfig { min_ctas: 4, ..new },
            NcclConfig {
                cga_cluster_size: 9,
                ..new
            },
            NcclConfig {
                nvls_host_mode: i32::MAX,
                ..new
            },
        ] {
            assert!(parse(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn algorithms_are_chosen_by_prefix() {
        for (names, kind, chosen) in [
            ("ring", Kind::Reduce, true),
            ("Tree", Kind::Broadcast, false),
            ("tree,ring", Kind::Broadcast, true),
            ("nvls", Kind::AllGather, true),
            ("nvlstree", Kind::AllGather, false),
            ("^ring", Kind::Reduce, false),
            ("^ring", Kind::AllReduce, true),
            ("ring+ring_ll", Kind::Reduce, true),
            ("ring+tree", Kind::AllReduce, false),
            ("nope", Kind::AllReduce, false),
            ("ring,nope", Kind::AllReduce, false),
            ("ring,^", Kind::AllReduce, false),
            ("ring,+", Kind::AllReduce, false),
            (" , ", Kind::AllReduce, false),
            ("ring", Kind::AlltoAll, false),
            ("symk_railring", Kind::AllGather, true),
        ] {
            assert_eq!(selects(names, &kind), chosen, "{names} for {kind:?}");
        }
    }
}

//! Who this process is: what the command line or the launcher's variables say, and nothing guessed.
//!
//! | order | who started it | rank, world size, local rank | ranks on this machine |
//! |---|---|---|---|
//! | 1 | by hand | `--rank --world --master`, `--local-rank` if it is not the rank | |
//! | 2 | torchrun | `RANK WORLD_SIZE LOCAL_RANK`, with `MASTER_ADDR MASTER_PORT` | `LOCAL_WORLD_SIZE` |
//! | 3 | Open MPI | `OMPI_COMM_WORLD_` with `RANK SIZE LOCAL_RANK` | `…LOCAL_SIZE` |
//! | 4 | MVAPICH | `MV2_COMM_WORLD_` with `RANK SIZE LOCAL_RANK` | `…LOCAL_SIZE` |
//! | 5 | MPICH, Intel MPI | `PMI_RANK PMI_SIZE MPI_LOCALRANKID` (or `PMI_LOCAL_RANK`) | `MPI_LOCALNRANKS` (or `PMI_LOCAL_SIZE`) |
//! | 6 | Slurm | `SLURM_PROCID SLURM_STEP_NUM_TASKS` (or `SLURM_NTASKS`) `SLURM_LOCALID` | |
//!
//! The first set that is whole is taken, with all its values; one that lacks a variable is not used, and is named.
//! Inner launchers come first: torchrun and mpirun are often started by srun, whose variables their processes
//! inherit. Where two whole sets differ and neither is known to be the inner one, that is an error, and `--launcher`
//! decides.
//!
//! Where rank 0 listens, each part from the first that there is:
//!
//! - the address: `--master`, `MASTER_ADDR`, the first machine of `SLURM_STEP_NODELIST`, `SLURM_LAUNCH_NODE_IPADDR`
//!   (which is where srun was called, not always where rank 0 is), 127.0.0.1 if all ranks are on this machine;
//! - the port: `--master`, `MASTER_PORT`, one that follows from the job's number where the launcher gives one.
//!
//! torchrun itself listens on `MASTER_PORT` when `TORCHELASTIC_USE_AGENT_STORE` is `True`, as it is by default. Then
//! the port follows from the run's id and that port. All ports that follow from something are in 10000..30000, below those
//! that the system gives to outgoing connections.

use anyhow::{Context, Result, bail, ensure};

use crate::rendezvous::{Master, parse_port};

/// What the command line says.
#[derive(Debug, Default)]
pub struct Flags {
    pub rank: Option<u32>,
    pub world: Option<u32>,
    pub local_rank: Option<u32>,
    pub master: Option<String>,
    /// The name of the one launcher whose variables count.
    pub launcher: Option<String>,
}

/// Who this process is.
// No Debug: the job's name can be a key.
pub struct Place {
    pub launcher: &'static str,
    pub rank: u32,
    pub world: u32,
    pub local_rank: u32,
    pub master: Master,
    /// The same on all ranks; empty where the launcher gives nothing.
    pub job: String,
    /// What was found and not used.
    pub notes: Vec<String>,
}

struct Launcher {
    name: &'static str,
    flag: &'static str,
    /// Each under its names, of which the first that is set counts.
    rank: &'static [&'static str],
    world: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_world: &'static [&'static str],
    /// What is different in each job.
    job: &'static [&'static str],
}

const TORCHRUN: usize = 0;
const SLURM: usize = 4;
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "torchrun",
        flag: "torchrun",
        rank: &["RANK"],
        world: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_world: &["LOCAL_WORLD_SIZE"],
        job: &[
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_PORT",
        ],
    },
    Launcher {
        name: "Open MPI",
        flag: "openmpi",
        rank: &["OMPI_COMM_WORLD_RANK"],
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        // The last one is a key of 128 bits that Open MPI 4 makes for each job.
        job: &[
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_precondition_transports",
        ],
    },
    Launcher {
        name: "MVAPICH",
        flag: "mvapich",
        rank: &["MV2_COMM_WORLD_RANK"],
        world: &["MV2_COMM_WORLD_SIZE"],
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        local_world: &["MV2_COMM_WORLD_LOCAL_SIZE"],
        job: &[],
    },
    Launcher {
        name: "PMI",
        flag: "pmi",
        rank: &["PMI_RANK"],
        world: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_world: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        job: &[],
    },
    Launcher {
        name: "Slurm",
        flag: "slurm",
        rank: &["SLURM_PROCID"],
        // The second may be the allocation's, with `--preserve-env`.
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_world: &[],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

/// What `--launcher` can be.
pub const NAMES: [&str; 5] = ["torchrun", "openmpi", "mvapich", "pmi", "slurm"];

/// The value of a variable, if it is set.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Finds out who this process is. No socket is opened, and nothing but `lookup` is asked.
pub fn place(flags: &Flags, lookup: Lookup<'_>) -> Result<Place> {
    let env = Env { flags, lookup };
    let master = flags.master.as_deref().map(Master::parse).transpose();
    let master = master.context("--master")?;
    if flags.rank.is_some() || flags.world.is_some() || flags.local_rank.is_some() {
        return by_hand(flags, master);
    }

    let mut whole = Vec::new();
    let mut partial = Vec::new();
    for (number, launcher) in LAUNCHERS.iter().enumerate() {
        if flags
            .launcher
            .as_deref()
            .is_some_and(|name| name != launcher.flag)
        {
            continue;
        }
        match env.lacks(number) {
            Some(lacking) if lacking.is_empty() => whole.push(number),
            Some(lacking) => partial.push(format!(
                "{}'s set is not whole: {} without {}",
                launcher.name,
                env.present(launcher),
                lacking.join(", ")
            )),
            None => {}
        }
    }
    let Some(&number) = whole.first() else {
        ensure!(partial.is_empty(), "{}: {HOW}", partial.join("; "));
        if let Some(name) = &flags.launcher {
            bail!("--launcher {name}: none of its variables is set: {HOW}");
        }
        ensure!(
            lookup("PMIX_RANK").is_none(),
            "PMIX_RANK is set, but PMIx tells the world size by its own calls alone, and no other launcher's \
             variables are there: {HOW}"
        );
        bail!("nothing says which rank this is: {HOW}");
    };
    let launcher = &LAUNCHERS[number];
    let numbers = env.numbers(launcher)?;
    // Slurm's variables reach whatever is started within it, and torchrun says that it is there.
    let innermost = number == TORCHRUN && lookup("TORCHELASTIC_RUN_ID").is_some();
    for &other in &whole[1..] {
        let theirs = env.numbers(&LAUNCHERS[other]);
        if let Err(error) = &theirs {
            partial.push(format!("{}'s set is wrong: {error}", LAUNCHERS[other].name));
        }
        let differs = !innermost
            && (other != SLURM || number == TORCHRUN)
            && theirs.is_ok_and(|theirs| theirs != numbers);
        ensure!(
            !differs,
            "{} and {} both say who this is, and differ ({} and {}): unset what is left over, or give --launcher {} \
             or --launcher {}",
            launcher.name,
            LAUNCHERS[other].name,
            env.present(launcher),
            env.present(&LAUNCHERS[other]),
            launcher.flag,
            LAUNCHERS[other].flag
        );
    }
    let job = env.job(launcher);
    let (rank, world, local_rank) = numbers;
    let master = match master {
        Some(master) => {
            ensure!(master.port != 0, "--master {master}: {PORT_0}");
            master
        }
        None => env.master(number, world, &job)?,
    };
    Ok(Place {
        launcher: launcher.name,
        rank,
        world,
        local_rank,
        master,
        job,
        notes: partial
            .into_iter()
            .map(|partial| format!("{partial}: it is not used"))
            .collect(),
    })
}

const HOW: &str =
    "start it by torchrun --no-python, mpirun or srun, or give --rank, --world and --master";
const PORT_0: &str =
    "port 0 lets rank 0 pick one, and the launcher's other ranks cannot know which";

fn by_hand(flags: &Flags, master: Option<Master>) -> Result<Place> {
    ensure!(
        flags.launcher.is_none(),
        "--launcher means the launcher's variables, and --rank, --world and --local-rank say it by hand: give one"
    );
    let (Some(rank), Some(world), Some(master)) = (flags.rank, flags.world, master) else {
        bail!("by hand, --rank, --world and --master are given together");
    };
    ensure!(world > 0, "--world is 0, and there is a rank at least");
    ensure!(
        rank < world,
        "--rank {rank} is too large for --world {world}: ranks count from 0"
    );
    let local_rank = flags.local_rank.unwrap_or(rank);
    ensure!(
        local_rank < world,
        "--local-rank {local_rank} is too large for --world {world}"
    );
    ensure!(
        rank == 0 || master.port != 0,
        "--master {master}: port 0 lets rank 0 pick one, which it prints: give that one to rank {rank}"
    );
    Ok(Place {
        launcher: "by hand",
        rank,
        world,
        local_rank,
        master,
        job: String::new(),
        notes: Vec::new(),
    })
}

struct Env<'a> {
    flags: &'a Flags,
    lookup: Lookup<'a>,
}

impl Env<'_> {
    /// The first of these that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names
            .iter()
            .find_map(|name| Some((*name, (self.lookup)(name)?)))
    }

    /// What a launcher's set lacks; `None` if there is nothing of it.
    fn lacks(&self, number: usize) -> Option<Vec<String>> {
        let launcher = &LAUNCHERS[number];
        let numbers = [launcher.rank, launcher.world, launcher.local_rank];
        // An allocation alone has SLURM_NTASKS, and is no launcher.
        let signs = if number == SLURM {
            &numbers[..1]
        } else {
            &numbers[..]
        };
        if signs.iter().all(|names| self.first(names).is_none()) {
            return None;
        }
        let mut needed = numbers.to_vec();
        if number == TORCHRUN && self.flags.master.is_none() {
            needed.extend([&["MASTER_ADDR"][..], &["MASTER_PORT"][..]]);
        }
        let lacking = needed
            .into_iter()
            .filter(|names| self.first(names).is_none());
        Some(lacking.map(|names| names.join(" or ")).collect())
    }

    /// The variables of a set that are there, as `NAME=value`.
    fn present(&self, launcher: &Launcher) -> String {
        let numbers = [launcher.rank, launcher.world, launcher.local_rank];
        let present = numbers.into_iter().filter_map(|names| self.first(names));
        let present: Vec<String> = present
            .map(|(name, value)| format!("{name}={}", value.escape_debug()))
            .collect();
        present.join(" ")
    }

    fn number(&self, names: &[&'static str]) -> Result<Option<(&'static str, u32)>> {
        let Some((name, value)) = self.first(names) else {
            return Ok(None);
        };
        // `parse` alone would take a sign.
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value.parse().ok().filter(|_| digits);
        let number = number.with_context(|| {
            format!(
                "{name} is '{}', and must be a number from 0",
                value.escape_debug()
            )
        })?;
        Ok(Some((name, number)))
    }

    /// Rank, world size and local rank of a whole set.
    fn numbers(&self, launcher: &Launcher) -> Result<(u32, u32, u32)> {
        let known = "a set that is whole has it";
        let (rank_name, rank) = self.number(launcher.rank)?.expect(known);
        let (world_name, world) = self.number(launcher.world)?.expect(known);
        let (local_name, local_rank) = self.number(launcher.local_rank)?.expect(known);
        ensure!(world > 0, "{world_name} is 0, and there is a rank at least");
        ensure!(
            rank < world,
            "{rank_name} is {rank} and {world_name} is {world}: ranks count from 0 to one less than the world size"
        );
        let (size_name, size) = self
            .number(launcher.local_world)?
            .unwrap_or((world_name, world));
        ensure!(
            local_rank < size,
            "{local_name} is {local_rank} and {size_name} is {size}: local ranks count from 0 to one less than that"
        );
        ensure!(
            size <= world,
            "{size_name} is {size} and {world_name} is {world}: a part cannot be larger than the whole"
        );
        Ok((rank, world, local_rank))
    }

    fn job(&self, launcher: &Launcher) -> String {
        let parts = launcher.job.iter().filter_map(|name| (self.lookup)(name));
        parts.collect::<Vec<_>>().join(".")
    }

    /// Where rank 0 listens, if `--master` does not say it.
    fn master(&self, number: usize, world: u32, job: &str) -> Result<Master> {
        let launcher = &LAUNCHERS[number];
        let (name, host) = self.host(number, world)?;
        let given = match (self.lookup)("MASTER_PORT") {
            Some(port) => {
                let port = parse_port(&port).context("MASTER_PORT")?;
                ensure!(port != 0, "MASTER_PORT is 0: {PORT_0}");
                Some(port)
            }
            None => None,
        };
        let taken = number == TORCHRUN
            && (self.lookup)("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = match given {
            Some(port) if !taken => port,
            _ if !job.is_empty() => derived_port(job),
            _ => bail!(
                "{} gives no number of the job that a port could follow from: set MASTER_PORT on all ranks, or give --master \
                 host:port",
                launcher.name
            ),
        };
        Master::new(&host, port).context(name)
    }

    /// Where rank 0 is, and what says so.
    fn host(&self, number: usize, world: u32) -> Result<(&'static str, String)> {
        let launcher = &LAUNCHERS[number];
        if let Some(host) = (self.lookup)("MASTER_ADDR") {
            return Ok(("MASTER_ADDR", host));
        }
        if number == SLURM {
            if let Some(list) = (self.lookup)("SLURM_STEP_NODELIST") {
                return Ok(("SLURM_STEP_NODELIST", first_host(&list)));
            }
            let found = self.first(&["SLURM_LAUNCH_NODE_IPADDR"]);
            return found.context(
                "Slurm's set is not whole: neither SLURM_STEP_NODELIST nor SLURM_LAUNCH_NODE_IPADDR nor MASTER_ADDR is set, as \
                 in a batch script outside of srun: start it by srun, or give --master host:port",
            );
        }
        match self.number(launcher.local_world)? {
            Some((_, here)) if here == world => {
                Ok(("all ranks on this machine", "127.0.0.1".to_owned()))
            }
            here => {
                let here = match here {
                    Some((name, here)) => format!("{name} is {here}"),
                    None => format!("{} is not set", launcher.local_world.join(" or ")),
                };
                bail!(
                    "{} does not say where rank 0 is, and the ranks may be on several machines ({here} and the world size \
                     {world}): set MASTER_ADDR on all ranks (mpirun -x MASTER_ADDR=…), or give --master host:port",
                    launcher.name
                )
            }
        }
    }
}

/// The first machine of a list such as `gpu[003-007,9]-ib,login1`.
fn first_host(list: &str) -> String {
    let mut host = String::new();
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => break,
            '[' => {
                let range: String = letters
                    .by_ref()
                    .take_while(|letter| *letter != ']')
                    .collect();
                let first = range.split([',', '-']).next();
                host += first.unwrap_or_default();
            }
            _ => host.push(letter),
        }
    }
    host
}

/// The same port on all ranks (FNV-1a over the job's name).
fn derived_port(job: &str) -> u16 {
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    10_000 + (hash % 20_000) as u16
}

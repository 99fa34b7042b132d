//! Who a process of `examples/multi_process` takes itself for, whatever the launchers' variables are.

#[allow(dead_code)]
#[path = "../examples/multi_process/launcher.rs"]
mod launcher;
#[path = "../examples/rendezvous/mod.rs"]
mod rendezvous;

use launcher::{Flags, Place, place};

/// Variables as a shell would be given them: `A=1 B=2`.
fn find(flags: &Flags, variables: &str) -> Result<Place, String> {
    let lookup = |name: &str| {
        let mut all = variables.split(' ').filter_map(|word| word.split_once('='));
        all.find(|(known, _)| *known == name)
            .map(|(_, value)| value.to_owned())
    };
    place(flags, &lookup).map_err(|error| format!("{error:#}"))
}

fn by_variables(variables: &str) -> Result<Place, String> {
    find(&Flags::default(), variables)
}

/// `launcher rank/world/local rank master`
fn shown(place: &Place) -> String {
    let Place {
        launcher,
        rank,
        world,
        local_rank,
        master,
        ..
    } = place;
    format!("{launcher} {rank}/{world}/{local_rank} {master}")
}

#[track_caller]
fn expect(flags: &Flags, variables: &str, expected: &str) {
    match find(flags, variables) {
        Ok(place) => assert_eq!(shown(&place), expected, "{variables}"),
        Err(error) => panic!("{variables}: {error}"),
    }
}

#[track_caller]
fn refused(flags: &Flags, variables: &str, parts: &[&str]) {
    match find(flags, variables) {
        Ok(place) => panic!("{variables}: {}", shown(&place)),
        Err(error) => {
            for part in parts {
                assert!(error.contains(part), "{variables}: no {part:?} in: {error}");
            }
        }
    }
}

const TORCHRUN: &str =
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=29501";
const OPENMPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 \
                       OMPI_MCA_ess_base_jobid=1397686273 PMIX_NAMESPACE=1397686273 PMIX_RANK=2";
const MVAPICH: &str = "MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=3 MV2_COMM_WORLD_LOCAL_SIZE=4";
const PMI: &str = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4";
const SLURM: &str = "SLURM_PROCID=6 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=2 SLURM_JOB_ID=4711 SLURM_STEP_ID=0 \
                     SLURM_STEP_NODELIST=gpu[003-004] SLURM_LAUNCH_NODE_IPADDR=10.0.0.1";

fn and(set: &str, more: &str) -> String {
    format!("{more} {set}")
}

fn without(set: &str, name: &str) -> String {
    let words = set.split(' ').filter(|word| {
        let (known, _) = word.split_once('=').unwrap_or_default();
        known != name
    });
    words.collect::<Vec<_>>().join(" ")
}

fn flags(rank: u32, world: u32, master: &str) -> Flags {
    Flags {
        rank: Some(rank),
        world: Some(world),
        master: Some(master.to_owned()),
        ..Flags::default()
    }
}

fn master(master: &str) -> Flags {
    Flags {
        master: Some(master.to_owned()),
        ..Flags::default()
    }
}

fn launched_by(name: &str) -> Flags {
    Flags {
        launcher: Some(name.to_owned()),
        ..Flags::default()
    }
}

#[test]
fn each_launcher_is_known() {
    let none = Flags::default();
    expect(&none, TORCHRUN, "torchrun 5/8/1 node1:29501");
    for (set, rest) in [
        (OPENMPI, "Open MPI 2/4/2 127.0.0.1:"),
        (SLURM, "Slurm 6/8/2 gpu003:"),
    ] {
        let place = by_variables(set).unwrap();
        let place = (shown(&place), place.master.port);
        assert!(place.0.starts_with(rest), "{}", place.0);
        assert!((10_000..30_000).contains(&place.1), "{}", place.0);
    }
    expect(
        &none,
        &and(OPENMPI, "MASTER_PORT=29501"),
        "Open MPI 2/4/2 127.0.0.1:29501",
    );
    expect(
        &none,
        &and(MVAPICH, "MASTER_PORT=29501"),
        "MVAPICH 3/4/3 127.0.0.1:29501",
    );
    expect(
        &none,
        &and(PMI, "MASTER_PORT=29501"),
        "PMI 1/4/1 127.0.0.1:29501",
    );
    let cray = "PMI_RANK=1 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 MASTER_ADDR=nid1 MASTER_PORT=29501";
    expect(&none, cray, "PMI 1/4/1 nid1:29501");
    expect(
        &none,
        &and(SLURM, "MASTER_ADDR=::1 MASTER_PORT=29501"),
        "Slurm 6/8/2 [::1]:29501",
    );
    expect(&master("[::1]:1"), SLURM, "Slurm 6/8/2 [::1]:1");
    expect(&flags(1, 4, "node1:29500"), "", "by hand 1/4/1 node1:29500");
    expect(&flags(0, 1, "localhost:0"), "", "by hand 0/1/0 localhost:0");
}

#[test]
fn the_order_is_as_documented() {
    let all = [TORCHRUN, OPENMPI, MVAPICH, PMI, SLURM].join(" ");
    expect(&flags(1, 4, "node9:1"), &all, "by hand 1/4/1 node9:1");
    // torchrun says that it is the inner one; Slurm is always the outer one.
    let all = and(&all, "TORCHELASTIC_RUN_ID=x");
    expect(&Flags::default(), &all, "torchrun 5/8/1 node1:29501");
    for (name, expected) in [
        ("torchrun", "torchrun 5/8/1"),
        ("openmpi", "Open MPI 2/4/2"),
        ("mvapich", "MVAPICH 3/4/3"),
        ("pmi", "PMI 1/4/1"),
        ("slurm", "Slurm 6/8/2"),
    ] {
        expect(&launched_by(name), &all, &format!("{expected} node1:29501"));
    }
    for inner in [OPENMPI, MVAPICH, PMI] {
        let both = and(inner, &format!("MASTER_PORT=1 {SLURM}"));
        let place = by_variables(&both).unwrap();
        assert_ne!(place.launcher, "Slurm");
    }
    // A wrapper script that sets torchrun's variables from Slurm's.
    let wrapper = "RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 MASTER_ADDR=gpu003 MASTER_PORT=29501";
    expect(
        &Flags::default(),
        &and(SLURM, wrapper),
        "torchrun 6/8/2 gpu003:29501",
    );
}

#[test]
fn contradictions_are_named() {
    let none = Flags::default();
    let left_over = "unset what is left over, or give --launcher";
    for (one, other) in [
        (TORCHRUN, OPENMPI),
        (TORCHRUN, SLURM),
        (OPENMPI, MVAPICH),
        (OPENMPI, PMI),
        (MVAPICH, PMI),
    ] {
        let both = format!("{one} {other}");
        refused(
            &none,
            &both,
            &["both say who this is, and differ", left_over],
        );
    }
    refused(
        &none,
        &format!("{TORCHRUN} {OPENMPI}"),
        &["RANK=5 WORLD_SIZE=8 LOCAL_RANK=1", "OMPI_COMM_WORLD_RANK=2"],
    );
}

#[test]
fn a_set_is_taken_whole_or_not_at_all() {
    let none = Flags::default();
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ] {
        let part = without(TORCHRUN, name);
        refused(
            &none,
            &part,
            &["torchrun's set is not whole", &format!("without {name}")],
        );
        // Another launcher's variables do not complete it, nor it theirs.
        let both = and(&part, SLURM);
        let place = by_variables(&both).unwrap();
        assert_eq!(
            (place.launcher, place.rank, place.world, place.local_rank),
            ("Slurm", 6, 8, 2)
        );
        let [note] = &place.notes[..] else {
            panic!("{:?}", place.notes);
        };
        assert!(
            note.contains("torchrun's set is not whole") && note.ends_with("it is not used"),
            "{note}"
        );
    }
    // Nor is one that is whole and wrong passed over in silence.
    let wrong = and(
        &without(OPENMPI, "OMPI_COMM_WORLD_RANK"),
        "OMPI_COMM_WORLD_RANK=zz",
    );
    let place = by_variables(&and(TORCHRUN, &wrong)).unwrap();
    assert_eq!(place.launcher, "torchrun");
    assert!(
        place.notes[0].contains("OMPI_COMM_WORLD_RANK is 'zz'")
            && place.notes[0].ends_with("it is not used"),
        "{:?}",
        place.notes
    );
    for (set, name) in [
        (OPENMPI, "OMPI_COMM_WORLD_RANK"),
        (OPENMPI, "OMPI_COMM_WORLD_SIZE"),
        (OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (MVAPICH, "MV2_COMM_WORLD_SIZE"),
        (PMI, "PMI_RANK"),
        (SLURM, "SLURM_LOCALID"),
    ] {
        refused(
            &none,
            &without(set, name),
            &["set is not whole", &format!("without {name}")],
        );
    }
    let place = by_variables(&and(&without(OPENMPI, "OMPI_COMM_WORLD_SIZE"), SLURM)).unwrap();
    assert_eq!(place.launcher, "Slurm");
    // srun --mpi=pmi2 sets a part of PMI's.
    let place = by_variables(&and(SLURM, "PMI_RANK=6 PMI_SIZE=8")).unwrap();
    assert_eq!(place.launcher, "Slurm");

    refused(&none, "", &["nothing says which rank this is"]);
    // What everybody may have set is nobody's.
    refused(
        &none,
        "MASTER_ADDR=node1 MASTER_PORT=29501",
        &["nothing says which rank this is"],
    );
    refused(
        &none,
        "PMIX_RANK=1 PMIX_NAMESPACE=x",
        &["PMIX_RANK is set, but"],
    );
    // An allocation, and a batch script outside of srun.
    refused(
        &none,
        "SLURM_JOB_ID=4711 SLURM_NTASKS=8",
        &["nothing says which rank this is"],
    );
    let batch = "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=gpu[003-004]";
    refused(
        &none,
        batch,
        &[
            "neither SLURM_STEP_NODELIST nor SLURM_LAUNCH_NODE_IPADDR",
            "start it by srun",
        ],
    );
    refused(
        &launched_by("openmpi"),
        SLURM,
        &["--launcher openmpi: none of its variables is set"],
    );
    refused(
        &launched_by("torchrun"),
        "RANK=1",
        &["torchrun's set is not whole: RANK=1 without WORLD_SIZE, LOCAL_RANK"],
    );
}

#[test]
fn bad_values_are_named() {
    let none = Flags::default();
    // The first of a name counts in these tests.
    for (name, value, reason) in [
        ("RANK", "abc", "RANK is 'abc', and must be a number from 0"),
        ("RANK", "", "RANK is '', and must be a number from 0"),
        ("RANK", "-1", "RANK is '-1', and must be a number from 0"),
        ("RANK", "+1", "RANK is '+1', and must be a number from 0"),
        ("RANK", "1.0", "RANK is '1.0', and must be a number from 0"),
        (
            "RANK",
            "99999999999",
            "RANK is '99999999999', and must be a number from 0",
        ),
        (
            "RANK",
            "8",
            "RANK is 8 and WORLD_SIZE is 8: ranks count from 0",
        ),
        ("WORLD_SIZE", "0", "WORLD_SIZE is 0"),
        ("WORLD_SIZE", "-8", "WORLD_SIZE is '-8'"),
        ("WORLD_SIZE", "3", "RANK is 5 and WORLD_SIZE is 3"),
        ("LOCAL_RANK", "x", "LOCAL_RANK is 'x'"),
        (
            "LOCAL_RANK",
            "4",
            "LOCAL_RANK is 4 and LOCAL_WORLD_SIZE is 4",
        ),
        (
            "LOCAL_WORLD_SIZE",
            "9",
            "LOCAL_WORLD_SIZE is 9 and WORLD_SIZE is 8",
        ),
        (
            "MASTER_PORT",
            "abc",
            "MASTER_PORT: 'abc' is not a port, 0 to 65535",
        ),
        ("MASTER_PORT", "", "MASTER_PORT: '' is not a port"),
        ("MASTER_PORT", "70000", "MASTER_PORT: '70000' is not a port"),
        ("MASTER_PORT", "-1", "MASTER_PORT: '-1' is not a port"),
        ("MASTER_PORT", "0", "MASTER_PORT is 0"),
        (
            "MASTER_ADDR",
            "",
            "MASTER_ADDR: '' is neither a host's name nor an address",
        ),
        (
            "MASTER_ADDR",
            "node1:29501",
            "MASTER_ADDR: 'node1:29501' is neither a host's name nor an address",
        ),
    ] {
        let set = and(TORCHRUN, &format!("{name}={value}"));
        refused(&none, &set, &[reason]);
        // Nothing else is taken in its place.
        refused(
            &none,
            &and(&set, "TORCHELASTIC_RUN_ID=x OMPI_COMM_WORLD_RANK=1"),
            &[reason],
        );
    }
    for (set, bad, reason) in [
        (
            OPENMPI,
            "OMPI_COMM_WORLD_RANK=4",
            "OMPI_COMM_WORLD_RANK is 4 and OMPI_COMM_WORLD_SIZE is 4",
        ),
        (
            MVAPICH,
            "MV2_COMM_WORLD_RANK=x",
            "MV2_COMM_WORLD_RANK is 'x'",
        ),
        (PMI, "PMI_SIZE=", "PMI_SIZE is ''"),
        (
            SLURM,
            "SLURM_PROCID=8",
            "SLURM_PROCID is 8 and SLURM_STEP_NUM_TASKS is 8",
        ),
        (
            SLURM,
            "SLURM_LOCALID=8",
            "SLURM_LOCALID is 8 and SLURM_STEP_NUM_TASKS is 8",
        ),
        (SLURM, "MASTER_PORT=0", "MASTER_PORT is 0"),
        (
            SLURM,
            "SLURM_STEP_NODELIST=",
            "SLURM_STEP_NODELIST: '' is neither",
        ),
    ] {
        refused(&none, &and(set, bad), &[reason]);
    }

    for (flags, reason) in [
        (flags(4, 4, "a:1"), "--rank 4 is too large for --world 4"),
        (flags(0, 0, "a:1"), "--world is 0"),
        (
            flags(1, 4, "a:0"),
            "--master a:0: port 0 lets rank 0 pick one",
        ),
        (flags(1, 4, "a"), "--master: 'a' is not host:port"),
        (
            flags(1, 4, "a:70000"),
            "--master: 'a:70000' is not host:port: '70000' is not a port",
        ),
        (
            flags(1, 4, "::1:29500"),
            "--master: '::1:29500' is ambiguous",
        ),
        (
            Flags {
                local_rank: Some(4),
                ..flags(1, 4, "a:1")
            },
            "--local-rank 4 is too large for --world 4",
        ),
        (
            Flags {
                world: None,
                ..flags(1, 4, "a:1")
            },
            "--rank, --world and --master are given together",
        ),
        (
            Flags {
                launcher: Some("slurm".to_owned()),
                ..flags(1, 4, "a:1")
            },
            "give one",
        ),
    ] {
        // The variables complete nothing that was begun by hand.
        for variables in ["", TORCHRUN, SLURM] {
            refused(&flags, variables, &[reason]);
        }
    }
    refused(&master("a:0"), SLURM, &["--master a:0: port 0"]);
}

#[test]
fn where_rank_0_is() {
    let none = Flags::default();
    for (list, first) in [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[003-007,9],login1", "gpu003"),
        ("gpu[7,9]-ib,login1", "gpu7-ib"),
        ("rack[1-2]node[05-06]", "rack1node05"),
    ] {
        let set = and(SLURM, &format!("SLURM_STEP_NODELIST={list} MASTER_PORT=1"));
        expect(&none, &set, &format!("Slurm 6/8/2 {first}:1"));
    }
    let launch_node = without(SLURM, "SLURM_STEP_NODELIST");
    expect(
        &none,
        &and(&launch_node, "MASTER_PORT=1"),
        "Slurm 6/8/2 10.0.0.1:1",
    );

    // mpirun does not say it, but where all ranks are on one machine.
    let several = and(OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE=3");
    let reason = "OMPI_COMM_WORLD_LOCAL_SIZE is 3 and the world size 4";
    refused(
        &none,
        &several,
        &[reason, "set MASTER_ADDR", "--master host:port"],
    );
    expect(
        &none,
        &and(&several, "MASTER_ADDR=node1 MASTER_PORT=1"),
        "Open MPI 2/4/2 node1:1",
    );
    expect(&master("node1:2"), &several, "Open MPI 2/4/2 node1:2");
    refused(
        &none,
        &without(PMI, "MPI_LOCALNRANKS"),
        &["MPI_LOCALNRANKS or PMI_LOCAL_SIZE is not set"],
    );
    refused(&none, PMI, &["a port could follow from: set MASTER_PORT"]);
}

#[test]
fn a_port_follows_from_the_job() {
    let port = |variables: &str| by_variables(variables).unwrap().master.port;
    // The same on every rank, and another one for another job, or step.
    let other_rank = and(SLURM, "SLURM_PROCID=1 SLURM_LOCALID=1");
    assert_eq!(port(SLURM), port(&other_rank));
    for other in ["SLURM_JOB_ID=4712", "SLURM_STEP_ID=1"] {
        assert_ne!(port(SLURM), port(&and(SLURM, other)));
    }
    // torchrun's agent holds the port that it names.
    let agent = "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none";
    let derived = port(&and(TORCHRUN, agent));
    assert!((10_000..30_000).contains(&derived), "{derived}");
    assert_ne!(
        derived,
        port(&and(TORCHRUN, &format!("MASTER_PORT=29502 {agent}")))
    );
    assert_eq!(
        port(&and(TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE=False")),
        29501
    );
    // A bad one is bad also where it is not used.
    refused(
        &Flags::default(),
        &and(TORCHRUN, &format!("MASTER_PORT=x {agent}")),
        &["'x' is not a port"],
    );
}
